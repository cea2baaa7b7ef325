"""A chunk of raw rows, column by column: what every reader makes and every encoder takes.

Readers differ (text, Parquet, frames); from here on nothing knows where rows came from. Values of id
columns stay bytes, as they stand in the reader's buffer: nothing is copied, nothing is a Python
object per row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

MISSING_LABEL = 255


@dataclass(frozen=True)
class RawIds:
    """The values of an id column, as bytes.

    text: [size] uint8, what the values stand in; starts, lengths: [N] uint32, of each value; a value
    of length 0 is missing.
    offsets: [rows + 1] int64 where a row holds a list: its values are offsets[r] .. offsets[r + 1].
    None: one value per row, N = rows.
    """

    text: np.ndarray
    starts: np.ndarray
    lengths: np.ndarray
    offsets: np.ndarray | None = None

    def __len__(self) -> int:
        """N, the number of values."""
        return len(self.starts)

    def value(self, n: int) -> bytes:
        start = int(self.starts[n])
        return self.text[start : start + int(self.lengths[n])].tobytes()


@dataclass(frozen=True)
class Columns:
    """Raw rows, cut into columns and checked.

    first_row: the number of the first row, counted from 0 through all inputs.
    ids: one per id feature of the schema, sparse ones first; dense: [num_dense, rows] float64, NaN
    where missing; labels: [num_labels, rows] uint8, 255 where missing; None without labels.
    weights: [rows] float32; groups: a value per row; times: [rows] int64, seconds since 1970, of the
    schema's clock. None where the schema has no such column.
    where: says of a row of the chunk where it stands ("train.csv line 17").
    """

    first_row: int
    num_rows: int
    ids: tuple[RawIds, ...]
    dense: np.ndarray
    labels: np.ndarray | None
    where: Callable[[int], str]
    weights: np.ndarray | None = None
    groups: RawIds | None = None
    times: np.ndarray | None = None
