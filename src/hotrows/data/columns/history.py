"""Histories: lists that are the events of a sample's user before its time, kept once for all samples.

A history is a column that reads another file. In shards it is a reference: where the user's events
begin and end, among those of `events.shard` (see `stored.histories`). It is encoded by looking both up,
as an id is by its vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from hotrows.data.columns.list import ListColumn
from hotrows.data.raw.cells import Cells
from hotrows.data.raw.values import Bad, no_values
from hotrows.data.rows import RawRows, Section, width_of
from hotrows.schema import Schema

BEGIN, END = "ids/histories/begin", "ids/histories/end"
USERS = "users"  # the raw values of the users whose events histories are


class HistoryColumn(ListColumn):
    """A history in place of whose lists rows have references."""

    sections: tuple[Section, ...] = ()

    def read(self, cells: Cells, values: dict[str, Any]) -> Iterable[Bad]:
        offsets = np.zeros(cells.num_rows + 1, np.int64)
        values[f"ids/{self.name}"] = no_values(0, offsets)
        return ()

    def encode(
        self, values: Mapping[str, Any], ids: np.ndarray, arrays: dict[str, Any], bounds: dict[str, Any]
    ) -> None:
        pass


class ReferenceColumns:
    """The references of all histories of a schema, which have the same events: `rows` of them, in which
    `find` gives begin and end of those of each sample's user before its time."""

    def __init__(self, schema: Schema, events: Any) -> None:
        self._events, shared = events, set(schema.histories) <= set(schema.shared)
        dtype = width_of(events.rows + 1)
        self.sections = tuple(
            Section(name, dtype, shared=shared, legal=("u1", "u2", "u4", "i8")) for name in (BEGIN, END)
        )

    def encode(self, raw: RawRows, arrays: dict[str, np.ndarray]) -> None:
        arrays[BEGIN], arrays[END] = self._events.find(raw)
