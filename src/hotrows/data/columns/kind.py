"""Kind: the columns of one kind of a schema, and what `data` asks of them; the rest knows no kind.

    read       cells of raw rows  ->  raw values, and those that are wrong
    encode     raw values         ->  sections, as shards store them

All columns of a kind are read and encoded together: a chunk has few rows where it has many columns.
`RawRows` and `Rows` hold values by the name of their section.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from hotrows.data.raw.cells import Cells
from hotrows.data.raw.values import Bad
from hotrows.data.rows import Section

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class RawRows:
    """Raw rows, read and checked.

    first_row: number of the first row, counted from 0 through all inputs. values: by section, `dense`
    [numbers, rows] float64, NaN where missing; `labels` [labels, rows], absent without labels; values of
    ids, groups, requests and users as bytes; `times` [rows] int64, seconds since 1970, and `clocks`,
    those that the schema's clock shows; `units`, those of `Reading.by`.
    where: function from a row of the chunk to its file and line ("train.csv line 17").
    kept: columns as they are in the input, an Arrow table; None where none are kept.
    """

    first_row: int
    num_rows: int
    values: Mapping[str, Any]
    where: Callable[[int], str] = field(compare=False)
    kept: Any = None

    def get(self, name: str) -> Any:
        return self.values.get(name)


class Kind(Protocol):
    """The columns of one kind of a schema.

    sections: those that rows have of them; numeric: the raw columns that are read as numbers.
    """

    @property
    def sections(self) -> tuple[Section, ...]: ...

    @property
    def numeric(self) -> tuple[str, ...]: ...

    def read(self, cells: Cells, values: dict[str, Any]) -> Iterable[Bad | None]:
        """Reads the columns into values; returns the first wrong value of each."""
        ...

    def encode(self, raw: RawRows, arrays: Arrays, threads: int) -> None:
        """Adds the sections of raw values."""
        ...
