"""Histories by reference: the events of all users once, and of each sample where its own are.

    events of a user, in time order     ann: 7 8 9 4   bob: 5 2        ids 7 8 9 4 5 2
    sample (ann, before the event 4)    begin 0, end 3                 history 7 8 9
    sample (bob, before the event 2)    begin 4, end 5                 history 5

The file `events.shard` has `ids/NAME` of every history: an id of each event, users one after the other,
those of one by time, those of one time in the order of the file; `users`, `starts` and `times`, seconds
after the header's `epoch`, say whose and of when they are (`UserHistories`). A shard has no lists of
histories but `ids/histories/begin` and `ids/histories/end` [rows], as of two features with ids: shards
hold the rows of the `stored_schema`. A loader slices the lists; those of `max_length` are the last ids
before the end.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np

from hotrows.data.stored.request_rows import RequestRows, id_features
from hotrows.data.stored.rows import Room, Rows, ends_of, id_type, measured, take_lists
from hotrows.data.stored.sections import open_sections
from hotrows.schema import IdFeature, Schema, Sparse, column_of
from hotrows.schema import Sequence as SequenceFeature

BEGIN, END = "histories/begin", "histories/end"
EVENTS_FILE = "events.shard"
Column = tuple[np.ndarray, np.ndarray | None]  # the ids of a feature, and their offsets


def check_no_histories(schema: Schema, what: str) -> None:
    """Raises ValueError if a schema has histories. what: what takes lists in their place."""
    if schema.histories:
        raise ValueError(
            f"{what} takes histories as lists in the samples, and schema {schema.name!r} has them in an "
            f"events file: leave user= and histories= out of it, or use `prepare`"
        )


@lru_cache(maxsize=64)
def stored_schema(schema: Schema, num_events: int = 0) -> Schema:
    """The schema of rows in shards, and of raw samples: two features that read the user, in place of the
    histories."""
    if not schema.histories:
        return schema
    return _in_place(schema, [Sparse(name, schema.user, rows=num_events + 1) for name in (BEGIN, END)])


@lru_cache(maxsize=64)
def stream_schema(schema: Schema) -> Schema:
    """The schema of the lines of a stream, which may be events: the user, and a value of each history, in
    place of the histories."""
    if not schema.histories:
        return schema
    histories = [f for f in schema.sequences if f.name in schema.histories]
    values = [Sparse(f"{END}/{f.name}", column_of(f)) for f in histories]
    return _in_place(schema, [Sparse(END, schema.user), *values])


def with_user(schema: Schema) -> Schema:
    """The schema of rows whose histories are lists, or those of the user, who is a feature more."""
    if not schema.histories:
        return schema
    return dataclasses.replace(schema, features=(*schema.features, Sparse(END, schema.user)))


def _in_place(schema: Schema, places: Sequence[Sparse]) -> Schema:
    """The schema with other features in place of its histories."""
    shared = [name for name in schema.shared if name not in schema.histories]
    shared += [f.name for f in places] if len(shared) < len(schema.shared) else []
    features = (*(f for f in schema.features if f.name not in schema.histories), *places)
    return dataclasses.replace(schema, features=features, shared=tuple(shared), user=None, histories=())


def events_before(
    users: np.ndarray, starts: np.ndarray, times: np.ndarray, wanted: np.ndarray, moments: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Begin and end [n] int64 of the events of users `wanted` [n] before moments [n], or [.., n].

    users [U] ascending; starts [U + 1]: where the events of each begin; times: of all events.
    """
    if not len(times):
        nothing = np.zeros(np.broadcast_shapes(wanted.shape, moments.shape), np.int64)
        return nothing, nothing
    place = np.minimum(np.searchsorted(users, wanted), len(users) - 1)
    known = users[place] == wanted
    begins = np.where(known, starts[place], 0)
    high = np.where(known, starts[place + 1], 0)
    low = np.where(times[high - 1] < moments, high, begins)  # most moments are after all events
    while (is_open := low < high).any():
        middle = (low + high) >> 1
        is_before = times[np.minimum(middle, len(times) - 1)] < moments
        low, high = (
            np.where(is_open & is_before, middle + 1, low),
            np.where(is_open & ~is_before, middle, high),
        )
    return begins, low


def type_of_times(first: int, last: int) -> np.dtype:
    """The type of times of events, less that of the first one."""
    return np.dtype(np.uint32 if last - first < 1 << 32 else np.int64)


def cut_histories(schema: Schema, last: int) -> Schema:
    """The schema with at most the last so many events in each history."""
    if not schema.histories or last < 1:
        raise ValueError(
            f"expected histories in schema {schema.name!r}, and at least 1 as the number of last events, "
            f"not {last}; longer lists are cut when data is prepared (max_length)"
        )
    cut = tuple(
        dataclasses.replace(f, max_length=min(last, f.max_length or last))
        if isinstance(f, SequenceFeature) and f.name in schema.histories
        else f
        for f in schema.features
    )
    return dataclasses.replace(schema, features=cut)


def with_features(
    rows: Rows, features: Sequence[IdFeature], wanted: Sequence[IdFeature], more: Mapping[str, Column]
) -> Rows:
    """Rows of the features `wanted`, out of those of `features` and more ones by name. Weights of ids
    stand behind the features, and stay."""
    columns = list(zip(rows.ids, rows.offsets, strict=True))
    by_name = {**{f.name: column for f, column in zip(features, columns, strict=False)}, **more}
    kept = [*(by_name[f.name] for f in wanted), *columns[len(features) :]]
    ids, offsets = zip(*kept, strict=True) if kept else ((), ())
    return dataclasses.replace(rows, ids=tuple(ids), offsets=tuple(offsets))


@dataclasses.dataclass(frozen=True, eq=False)
class StoredHistories:
    """The events of all users. schema: of the data; columns: the ids of the events, by history."""

    schema: Schema
    columns: Mapping[str, np.ndarray]
    rows: int

    @staticmethod
    def open(path: Path, schema: Schema, rows: int, header_crc32: int | None = None) -> StoredHistories:
        """Maps the file; an error if it is not as data.json has it."""
        sections = open_sections(path, header_crc32)
        columns = {name: sections[f"ids/{name}"] for name in schema.histories}
        types = {f.name: id_type(schema, f) for f in schema.sequences if f.name in columns}
        if any(ids.shape != (rows,) or ids.dtype != types[name] for name, ids in columns.items()):
            raise ValueError(
                f"{path}: sections do not have the {rows:,} ids of each history that data.json says; "
                f"prepare the data again"
            )
        return StoredHistories(schema, columns, rows)

    @property
    def stored_schema(self) -> Schema:
        return stored_schema(self.schema, self.rows)

    def rows_of(self, stored: Rows | RequestRows, room: Room | None = None) -> Rows:
        """Copies rows, each with all of its features. room: for the lists (default: new)."""
        rows = stored.expanded() if isinstance(stored, RequestRows) else stored
        features = self.stored_schema.id_features
        return self._with_lists(rows, features, self.schema.id_features, room or Room())

    def parts_of(self, stored: RequestRows, room: Room) -> RequestRows:
        """Rows of requests with the lists of whichever has the histories, the rows or the requests."""
        samples, shared = (
            self._with_lists(
                rows, id_features(self.stored_schema, once), id_features(self.schema, once), room
            )
            for rows, once in ((stored.samples, False), (stored.shared, True))
        )
        return RequestRows(self.schema, samples, shared, stored.starts)

    def _with_lists(
        self, rows: Rows, features: Sequence[IdFeature], wanted: Sequence[IdFeature], room: Room
    ) -> Rows:
        by_name = {f.name: ids for f, ids in zip(features, rows.ids, strict=False)}
        if BEGIN not in by_name:
            return rows
        begins, ends = by_name[BEGIN].astype(np.int64), by_name[END].astype(np.int64)
        lists = {f.name: self._lists(f, begins, ends, room) for f in wanted if f.name in self.columns}
        return with_features(rows, features, wanted, lists)

    def _lists(self, feature: IdFeature, begins: np.ndarray, ends: np.ndarray, room: Room) -> Column:
        """The ids of events begin .. end - 1 of each row, at most the last `max_length`, end to end."""
        ids = self.columns[feature.name]
        bounds = np.stack([last_begins(begins, ends, feature.max_length), ends], 1).reshape(-1)
        order = np.arange(0, len(bounds), 2)
        offsets = ends_of(measured(bounds, len(ids), order))
        into = room.array(feature.name, (int(offsets[-1]),), ids.dtype)
        return take_lists(ids, bounds, order, offsets, into), offsets


def places_between(begins: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """begin .. end - 1 of each pair, one after the other."""
    offsets = ends_of(ends - begins)
    return np.repeat(begins - offsets[:-1], ends - begins) + np.arange(offsets[-1])


def last_begins(begins: np.ndarray, ends: np.ndarray, max_length: int | None) -> np.ndarray:
    """Where the last `max_length` events of each list begin."""
    return begins if max_length is None else np.maximum(begins, ends - max_length)
