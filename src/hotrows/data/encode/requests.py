"""Requests of raw rows: a number for each, and whether their rows share what the schema says."""

from __future__ import annotations

import numpy as np

from hotrows.data.raw.cells import Columns
from hotrows.data.raw.values import hash_values, mix64
from hotrows.data.stored.request_rows import differences
from hotrows.data.stored.rows import Room, Rows, gathered
from hotrows.schema import Schema


def request_numbers(columns: Columns) -> np.ndarray | None:
    """A number of the request of each row, [rows] int64: of one value, one number, and of a missing value
    one that no other row has. None where the schema has no requests."""
    if columns.requests is None:
        return None
    rows = np.arange(columns.first_row, columns.first_row + columns.num_rows, dtype=np.uint64)
    missing = columns.requests.lengths == 0
    return np.where(missing, mix64(~rows), hash_values(columns.requests)).view(np.int64)


class SharedChecks:
    """Checks that rows of a request share features, chunk after chunk."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self.last: Rows | None = None  # the last row of the chunk before

    def check(self, rows: Rows, columns: Columns) -> None:
        """ValueError names the first row that differs from the one before it, which is of its request."""
        if rows.requests is None or not len(rows):
            return
        if self.last is not None:
            self._check(gathered([self.last, rows[:1]], np.arange(2), Room()), columns, 0)
        self._check(rows, columns, 1)
        self.last = rows.take(np.array([len(rows) - 1]))

    def _check(self, rows: Rows, columns: Columns, first: int) -> None:
        assert rows.requests is not None and columns.requests is not None
        same = rows.requests[1:] == rows.requests[:-1]
        differing = [
            (int(places[0]) + first, name)
            for name, differs in differences(rows, self._schema).items()
            if len(places := np.flatnonzero(same & differs))
        ]
        if not differing:
            return
        row, name = min(differing)
        request = columns.requests.value(row)[:60].decode("utf-8", "backslashreplace")
        raise ValueError(
            f"{columns.where(row)}, feature {name!r}: expected the value of the row before, of "
            f"the same request {request!r}, found another; correct the row, or leave {name!r} out of "
            f"shared"
        )
