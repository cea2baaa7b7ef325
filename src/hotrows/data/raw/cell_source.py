"""What readers of each format offer: the cells of a chunk of rows, by column."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from hotrows.data.raw.values import RawIds
from hotrows.schema import Dense


@dataclass(frozen=True)
class Bad:
    """A value of the wrong kind: its row, its column, the kind that was expected, and what to do."""

    row: int
    column: str
    expected: str
    remedy: str = "correct the row, or the schema"


class Cells(Protocol):
    """The columns of a chunk; the values of `raw` and `lists` are those of `Reading.text`."""

    @property
    def num_rows(self) -> int: ...

    @property
    def kept(self) -> Any:
        """The columns to keep, an Arrow table; None where there are none."""
        ...

    def has(self, column: str) -> bool: ...

    def raw(self, column: str) -> RawIds:
        """The values of a column, one per row."""
        ...

    def lists(self, column: str, separator: str) -> RawIds:
        """The values of a column of lists, with offsets."""
        ...

    def numbers(self, columns: Sequence[str]) -> tuple[np.ndarray, Bad | None]:
        """[columns, rows] float64, NaN where missing; and the first value that is no number."""
        ...

    def list_numbers(self, column: str, separator: str) -> tuple[np.ndarray, np.ndarray, int | None]:
        """The numbers of a column of lists, NaN where missing, their offsets, and the place of the first
        value that is no number."""
        ...

    def vectors(self, column: str, feature: Dense) -> tuple[np.ndarray, Bad | None]:
        """[rows, width] float32, NaN where missing; and the first value that is no such list."""
        ...

    def times(self, column: str, format: str) -> tuple[np.ndarray, Bad | None]:
        """[2, rows] int64: seconds since 1970, and those that the clock of each time shows; and the first
        value that is no time."""
        ...

    def where(self, row: int) -> str:
        """Names the file and line of a row: "train.csv line 17"."""
        ...

    def shown(self, row: int, column: str) -> str:
        """Formats a value for an error message."""
        ...
