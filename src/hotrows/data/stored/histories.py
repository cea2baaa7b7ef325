"""Histories by reference: the events of all users once, and of each sample where its own are.

    events of a user, in time order     ann: 7 8 9 4   bob: 5 2        ids 7 8 9 4 5 2
    sample (ann, before the event 4)    begin 0, end 3                 history 7 8 9
    sample (bob, before the event 2)    begin 4, end 5                 history 5

The file `events.shard` has `ids/NAME` of every history: an id of each event, users one after the other,
those of one by time, those of one time in the order of the file; `users`, `starts` and `times`, seconds
after the header's `epoch`, say whose and of when they are. A shard has no lists of histories but
`ids/histories/begin` and `ids/histories/end` [rows]. A loader slices the lists (`StoredHistories`); those
of `max_length` are the last ids before the end.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from hotrows.data.columns.history import BEGIN, END
from hotrows.data.columns.of_schema import histories_of
from hotrows.data.rows import Room, Rows, ends_of, lists_between
from hotrows.data.stored.request_rows import RequestRows
from hotrows.data.stored.sections import Sections, open_sections
from hotrows.schema import Schema

EVENTS_FILE = "events.shard"
NEWEST = 1 << 62  # a moment after all events
Columns = Mapping[str, np.ndarray]  # of events: users, times, numbers, and ids/NAME of each history


def check_no_histories(schema: Schema, what: str) -> None:
    """Raises ValueError if a schema has histories. what: what takes lists in their place."""
    if schema.histories:
        raise ValueError(
            f"{what} takes histories as lists in the samples, and schema {schema.name!r} has them in an "
            f"events file: leave user= and histories= out of it, or use `prepare`"
        )


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
    lengths = {column.name: column.max_length or last for column in histories_of(schema)}
    return schema.with_fields({name: {"max_length": min(last, n)} for name, n in lengths.items()})


@dataclass(frozen=True, eq=False)
class StoredHistories:
    """The events of all users. columns: their ids, by history; lengths: `max_length` of each."""

    columns: Mapping[str, np.ndarray]
    lengths: Mapping[str, int | None]

    @staticmethod
    def open(path: Path, schema: Schema, rows: int, header_crc32: int | None = None) -> StoredHistories:
        """Maps the file; an error if it is not as data.json has it."""
        sections, wanted = open_sections(path, header_crc32), histories_of(schema)
        columns = {c.name: sections[f"ids/{c.name}"] for c in wanted}
        types = {c.name: c.lookup.dtype for c in wanted}
        if any(ids.shape != (rows,) or ids.dtype != types[name] for name, ids in columns.items()):
            raise ValueError(
                f"{path}: sections do not have the {rows:,} ids of each history that data.json says; "
                f"prepare the data again"
            )
        return StoredHistories(columns, {c.name: c.max_length for c in wanted})

    def rows_of(self, stored: Rows | RequestRows, room: Room | None = None) -> Rows:
        """Copies rows, each with all of its features. room: for the lists (default: new)."""
        rows = stored.expanded() if isinstance(stored, RequestRows) else stored
        return self._with_lists(rows, room or Room())

    def parts_of(self, stored: RequestRows, room: Room) -> RequestRows:
        """Rows of requests with the lists of whichever has the histories, the rows or the requests."""
        samples, shared = (self._with_lists(rows, room) for rows in (stored.samples, stored.shared))
        return dataclasses.replace(stored, samples=samples, shared=shared)

    def _with_lists(self, rows: Rows, room: Room) -> Rows:
        if BEGIN not in rows.arrays:
            return rows
        begins, ends = rows.arrays[BEGIN].astype(np.int64), rows.arrays[END].astype(np.int64)
        arrays, bounds = dict[str, np.ndarray](), dict[str, np.ndarray]()
        for name, ids in self.columns.items():  # of events begin .. end - 1, at most the last ones
            firsts = last_begins(begins, ends, self.lengths[name])
            lists = lists_between(ids, firsts, ends, partial(room.array, name))
            arrays[f"ids/{name}"], bounds[name] = lists
        return rows.without(BEGIN, END).with_arrays(arrays, bounds)


def places_between(begins: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """begin .. end - 1 of each pair, one after the other."""
    offsets = ends_of(ends - begins)
    return np.repeat(begins - offsets[:-1], ends - begins) + np.arange(offsets[-1])


def last_begins(begins: np.ndarray, ends: np.ndarray, max_length: int | None) -> np.ndarray:
    """Where the last `max_length` events of each list begin."""
    return begins if max_length is None else np.maximum(begins, ends - max_length)


@dataclass(frozen=True, eq=False)
class SortedEvents:
    """Events by user, of one by time, of one time by number.

    users [U]: ascending, uint64 hashes of prepared users, or as the log of a data set numbers them;
    starts [U + 1]: where the events of each begin. columns [N], those that are needed: times, in seconds
    after `epoch`; numbers: how many events were appended up to each, 0 of prepared ones, in the log of a
    data set its place; ids of each history.
    """

    users: np.ndarray
    starts: np.ndarray
    columns: Columns
    epoch: int = 0

    @staticmethod
    def joined(*parts: Columns) -> SortedEvents:
        """Sorts events, of which the later parts came later."""
        columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        order = np.lexsort((columns["numbers"], columns["times"], columns["users"]))
        users, starts = np.unique(columns.pop("users")[order], return_index=True)
        columns = {name: values[order] for name, values in columns.items()}
        return SortedEvents(users, np.append(starts, len(order)), columns)

    @staticmethod
    def stored(sections: Sections, prefix: str, ids: Sequence[str]) -> SortedEvents:
        """Those of a file, in sections of these names behind a prefix."""
        columns = {name: sections[prefix + name] for name in ("times", *ids)}
        columns["numbers"] = np.broadcast_to(np.int64(0), columns["times"].shape)
        epoch = sections.header.get(f"{prefix}epoch", 0)
        return SortedEvents(sections[f"{prefix}users"], sections[f"{prefix}starts"], columns, epoch)

    def take(self, places: np.ndarray) -> Columns:
        users = self.users[np.searchsorted(self.starts, places, "right") - 1]
        taken = {name: values[places] for name, values in self.columns.items()}
        return {"users": users, **taken, "times": self.times(places)}

    def times(self, places: np.ndarray) -> np.ndarray:
        """The times of the events at places [n], in seconds since 1970."""
        return self.columns["times"][places].astype(np.int64) + self.epoch

    def before(self, users: np.ndarray, moments: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        times = self.columns["times"]
        return events_before(self.users, self.starts, times, users, moments - self.epoch)

    def seen(self, longest: int, users: slice = slice(None)) -> Columns:
        """Of each of these users the events of the newest second, and so many before it."""
        begins, all_ends = self.starts[:-1][users], self.starts[1:][users]
        _, ends = self.before(self.users[users], self.times(all_ends - 1))
        return self.take(places_between(np.maximum(begins, ends - longest), all_ends))
