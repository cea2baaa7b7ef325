"""A chunk of raw rows, column by column: the output of every reader and the input of every encoder.

Readers differ (text, Parquet, frames); encoders do not depend on the reader. Values of id columns
remain bytes in the reader's buffer: nothing is copied, and no row becomes a Python object.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

MISSING_LABEL = 255  # of labels that are 0 or 1; NaN where labels are numbers


@dataclass(frozen=True)
class RawIds:
    """The values of an id column, as bytes.

    text: [size] uint8, the bytes of all values; starts, lengths: [N] uint32, the span of each value in
    `text`; a value of length 0 is missing.
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

    first_row: number of the first row, counted from 0 through all inputs.
    ids: one per id feature of the schema, sparse ones first; dense: [num_dense, rows] float64, NaN
    where missing; labels: [num_labels, rows] uint8, 255 where missing, or float32 where the schema
    has numbers, NaN where missing; None without labels.
    weights: [rows] float32; groups, requests: a value per row; times: [rows] int64, seconds since 1970,
    of the schema's clock. None where the schema has no such column.
    kept: columns as they are in the input, an Arrow table; None where none are kept.
    where: function from a row of the chunk to its file and line ("train.csv line 17").
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
    kept: Any = None
    requests: RawIds | None = None


def no_labels(shape: tuple[int, ...], numbers: bool) -> np.ndarray:
    """Labels that are all missing; numbers: whether they are float32, not 0 and 1."""
    return np.full(shape, np.nan, np.float32) if numbers else np.full(shape, MISSING_LABEL, np.uint8)


def missing_labels(labels: np.ndarray) -> np.ndarray:
    """Where labels are missing."""
    return np.isnan(labels) if labels.dtype.kind == "f" else labels == MISSING_LABEL
