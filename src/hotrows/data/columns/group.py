"""Groups, by whose values samples are ranked and AUC is grouped, and requests, whose rows stay together.

A request is a grouping of rows: it has a number, `requests`, and what its rows share is stored once (see
`stored.request_rows`). Where the schema names no group, requests are the groups.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from hotrows.data.raw.cells import Cells
from hotrows.data.raw.values import Bad, RawIds, hash_values, mix64
from hotrows.data.rows import Arrays, RawRows, Section
from hotrows.losses import NO_GROUP
from hotrows.schema import Schema


class GroupColumns:
    """The columns of groups and of requests, as far as a schema has them."""

    numeric: tuple[str, ...] = ()

    def __init__(self, schema: Schema) -> None:
        self._columns = {"groups": schema.group, "requests": schema.request}
        self.sections = tuple(
            Section(name, np.dtype(np.int64), shared=name == "requests")
            for name, column in self._columns.items()
            if column is not None
        )

    def read(self, cells: Cells, values: dict[str, Any]) -> Iterable[Bad | None]:
        for name, column in (*self._columns.items(), ("units", cells.how.by)):
            if column is not None and cells.has(column):
                values[name] = cells.ids(column)
        return ()

    def encode(self, raw: RawRows, arrays: Arrays, threads: int) -> None:
        if (groups := raw.get("groups")) is not None:
            arrays["groups"] = np.where(groups.lengths == 0, NO_GROUP, hash_values(groups).view(np.int64))
        if (requests := raw.get("requests")) is not None:
            arrays["requests"] = numbers_of(requests, raw.first_row)


def numbers_of(values: RawIds, first_row: int) -> np.ndarray:
    """A number of the value of each row, [rows] int64: of one value, one number, and of a missing value
    one that no other row has. first_row: the number of the first row."""
    rows = np.arange(first_row, first_row + len(values), dtype=np.uint64)
    return np.where(values.lengths == 0, mix64(~rows), hash_values(values)).view(np.int64)
