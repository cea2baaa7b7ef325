"""Events that are histories of samples: sorted by user and time, found, counted and encoded.

    deal      user, time and row of each event  ->  a file for each of 64 ranges of hashes of users
    sort      each of them, by user and time    ->  `users`, `starts`, `times`, and the `places` of rows
    find      samples (user, time)              ->  begin and end of their histories, by binary search
    refer     begins and ends of the training part, each as often as histories have it
    count     events, each as often as histories of the training part have it
    write     events                            ->  `events.shard`, the ids of each at its place

`EventFiles` does it all; on a cluster its process deals, sorts, counts and writes, and tasks find, in
an `EventIndex` of the same files. Memory holds a chunk of events and one of the 64 files. The others are
mapped, about 16 bytes per event, and removed in the end. A time counts to the second. Events of one time
keep the order of the file.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from hotrows.data.columns.history import USERS
from hotrows.data.columns.of_schema import SchemaColumns, histories_of
from hotrows.data.columns.stream import stream
from hotrows.data.encode.encoder import Encoder
from hotrows.data.encode.vocabulary import Counts
from hotrows.data.raw.inputs import Input, Progress
from hotrows.data.raw.reading import Reading
from hotrows.data.raw.tables import RayInput
from hotrows.data.raw.values import MISSING_TIME, RawIds, hash_values, no_values
from hotrows.data.rows import RawRows
from hotrows.data.stored.histories import (
    EVENTS_FILE,
    NEWEST,
    SortedEvents,
    StoredHistories,
    last_begins,
    type_of_times,
)
from hotrows.data.stored.sections import write_sections
from hotrows.runtime.atomic_files import replaced
from hotrows.runtime.terminal import silent
from hotrows.runtime.user_warnings import warn
from hotrows.schema import Schema, Sparse, column_of

_EVENT = np.dtype([("user", "u8"), ("time", "i8"), ("row", "i8")])
_INT64 = np.iinfo(np.int64)
_RANGE_BITS = 6  # of the hash of a user
_AS_SAMPLES = "name", "delimiter", "missing", "strip", "encoding", "decimal", "thousands"
_READ_AT_ONCE = 1 << 22  # numbers of references


class _EventSchema(Schema):
    """The columns of events, which have no label, and the words that mean missing in these."""

    def __post_init__(self) -> None:
        if isinstance(self.missing, dict):
            words = {name: self.missing[name] for name in self.raw_columns if name in self.missing}
            object.__setattr__(self, "missing", words)
        super().__post_init__()

    @cached_property
    def raw_columns(self) -> tuple[str, ...]:
        columns = [*map(column_of, self.features), *([self.time.column] if self.time else [])]
        return tuple(dict.fromkeys(columns))


@dataclass(frozen=True)
class Matches:
    """What samples have in the events: a user, an event before their time. first: the samples' user."""

    user: bool = False
    past: bool = False
    first: str = ""

    def joined(self, later: Matches) -> Matches:
        return Matches(self.user or later.user, self.past or later.past, self.first or later.first)


class EventIndex:
    """Where the events of each user are, by time: files that `EventFiles` has made, mapped.

    schema: of the samples. folder: of the data that is prepared. rows: number of events.
    """

    def __init__(self, schema: Schema, folder: Path) -> None:
        self.schema, self.matches, self._out = schema, Matches(), folder
        self.folder = folder / "events"
        epoch, last = np.fromfile(self.folder / "span", np.int64).tolist()
        types: dict[str, Any] = {"users": np.uint64, "starts": np.int64}
        types["times"] = type_of_times(epoch, last)
        users, starts, times = (
            np.memmap(self.folder / name, dtype, "r").view(np.ndarray) for name, dtype in types.items()
        )
        self._sorted, self.rows = SortedEvents(users, starts, {"times": times}, epoch), len(times)
        self._lengths = list(dict.fromkeys(column.max_length for column in histories_of(schema)))

    def find(self, raw: RawRows) -> tuple[np.ndarray, np.ndarray]:
        """Begin and end of the events of each sample's user before its time: [rows], [rows] int64."""
        of_users, moments = raw.values[USERS], raw.values["times"]
        if (absent := moments == MISSING_TIME).any():
            raise ValueError(
                f"{raw.where(int(absent.argmax()))} has no time, which says where its history ends; "
                f"give it one, or leave it out"
            )
        users = hash_values(of_users)
        begins, ends = self._sorted.before(users, moments)
        self._check_past(raw, begins, ends)
        past = bool((ends > begins).any())
        known = past or self.matches.user or bool(self._sorted.before(users, np.array(NEWEST))[1].any())
        self.matches = self.matches.joined(Matches(known, past, _text(of_users)))
        return begins, ends

    def _check_past(self, raw: RawRows, begins: np.ndarray, ends: np.ndarray) -> None:
        """Stops a preparation whose samples would see an event at or after their time."""
        rows = np.flatnonzero(ends > begins)
        leaks = rows[self._sorted.times(ends[rows] - 1) >= raw.values["times"][rows]]
        if len(leaks):
            raise ValueError(
                f"{raw.where(int(leaks[0]))}: its history has an event that is not before its time, "
                f"which no model may see; prepare again"
            )

    def references(self, raw: RawRows, training: np.ndarray) -> np.ndarray:
        """[n, 2] int64: places in `EventFiles` where histories of the chosen samples begin or end, and
        what to add there. training: [rows] bool."""
        begins, ends = (bounds[training] for bounds in self.find(raw))
        changes = []
        for number, longest in enumerate(self._lengths):
            for bounds, change in ((last_begins(begins, ends, longest), 1), (ends, -1)):
                places, num = np.unique(bounds, return_counts=True)
                changes.append(np.stack([places + number * (self.rows + 1), change * num], 1))
        return np.concatenate(changes)

    def references_of(self, number: int) -> Path:
        """The file in which a task leaves its references. number: of the task."""
        return self.folder / f"references-{number}"

    def stored(self, schema: Schema) -> StoredHistories:
        return StoredHistories.open(self._out / EVENTS_FILE, schema, self.rows)


class EventFiles(EventIndex):
    """The events, sorted in temporary files in the folder."""

    def __init__(
        self,
        inputs: Sequence[Input],
        schema: Schema,
        folder: Path,
        threads: int,
        progress: Progress = silent,
    ) -> None:
        how = {name: getattr(schema, name) for name in _AS_SAMPLES}
        of_users = _EventSchema((Sparse(USERS, schema.user),), "\0", time=schema.time, **how)
        features = [column.feature for column in histories_of(schema)]
        values = _EventSchema(tuple(Sparse(f.name, column_of(f)) for f in features), "\0", **how)
        self._users_read, self._values_read = Reading(of_users, threads), Reading(values, threads)
        columns = {*of_users.raw_columns, *values.raw_columns}
        self._inputs = [
            source.kept(columns) if isinstance(source, RayInput) else source for source in inputs
        ]
        self._first_user = ""
        self.folder = folder / "events"
        shutil.rmtree(self.folder, ignore_errors=True)  # left by an interruption
        self.folder.mkdir()
        self.rows = self._deal(progress)
        self._places = self._mapped("places", np.uint32 if self.rows < 1 << 32 else np.int64)
        self._sort()
        super().__init__(schema, folder)

    def _deal(self, progress: Progress) -> int:
        rows, first, last = 0, _INT64.max, _INT64.min
        for columns in self._chunks(self._users_read, progress):
            raw, times = columns.values[f"ids/{USERS}"], columns.values["times"]
            if not len(times):
                continue
            for absent, what in ((raw.lengths == 0, "user"), (times == MISSING_TIME, "time")):
                if absent.any():
                    raise ValueError(
                        f"{columns.where(int(absent.argmax()))} is an event without a {what}: give it "
                        f"one, or leave it out"
                    )
            self._first_user = self._first_user or _text(raw)
            first, last = min(first, int(times.min())), max(last, int(times.max()))
            events = np.empty(columns.num_rows, _EVENT)
            events["user"], events["time"] = hash_values(raw), times
            events["row"] = np.arange(rows, rows + len(events))
            numbers = (events["user"] >> np.uint64(64 - _RANGE_BITS)).astype(np.uint8)
            order = np.argsort(numbers, kind="stable")
            ends = np.searchsorted(numbers[order], np.arange((1 << _RANGE_BITS) + 1))
            for number in np.unique(numbers).tolist():
                with open(self.folder / f"range-{number:02d}", "ab") as file:
                    file.write(events[order[ends[number] : ends[number + 1]]].data)
            rows += len(events)
        np.array([first, last]).tofile(self.folder / "span")
        return rows

    def _sort(self) -> None:
        first, folder = 0, self.folder
        epoch, last = np.fromfile(folder / "span", np.int64).tolist()
        with (
            open(folder / "users", "wb") as users,
            open(folder / "starts", "wb") as starts,
            open(folder / "times", "wb") as times,
        ):
            for path in sorted(folder.glob("range-*")):
                events = np.fromfile(path, _EVENT)
                path.unlink()
                events = events[np.lexsort((events["time"], events["user"]))]
                self._places[events["row"]] = np.arange(first, first + len(events))
                of_user = np.ascontiguousarray(events["user"])
                begins = np.flatnonzero(np.append(True, of_user[1:] != of_user[:-1]))
                users.write(of_user[begins].data)
                starts.write((begins + first).data)
                times.write((events["time"] - epoch).astype(type_of_times(epoch, last)).data)
                first += len(events)
            starts.write(np.array([first]).data)

    def check_users(self) -> None:
        """Raises ValueError if no sample has a user of the events: their columns differ. Warns where none
        has an event before its time."""
        if not self.matches.user:
            events, samples = self._first_user, self.matches.first
            raise ValueError(
                f"no sample has a user of the events: column {self.schema.user!r} has {events!r} in the "
                f"events and {samples!r} in the samples; write users alike in both"
            )
        if not self.matches.past:
            warn("no sample has an event before its time: write times alike in events and samples")

    def refer(self, references: np.ndarray) -> None:
        """Adds references of some samples, see `EventIndex.references`."""
        places, numbers = np.unique(references[:, 0], return_inverse=True)
        changes = np.bincount(numbers, references[:, 1], len(places)).astype(np.int64)
        self._references.reshape(-1)[places] += changes

    def refer_all(self, number: int) -> None:
        """Adds the references of a task, and removes its file."""
        path = self.references_of(number)
        with open(path, "rb") as file:
            while len(some := np.fromfile(file, np.int64, _READ_AT_ONCE)):
                self.refer(some.reshape(-1, 2))
        path.unlink()

    def count(self, counts: Counts, progress: Progress = silent) -> None:
        """Counts the values of events, each as often as histories have it."""
        self.check_users()
        of_schema = SchemaColumns(self.schema)
        for changes in self._references:
            np.cumsum(changes, out=changes)
        for columns in self._chunks(self._values_read, progress):
            places = self._places_of(columns)
            for longest, times in zip(self._lengths, self._references, strict=True):
                names = [c.name for c in histories_of(self.schema) if c.max_length == longest]
                counts.add(of_schema.words(self._values(columns, names, of_schema)), times[places])

    def write(self, encoder: Encoder, progress: Progress = silent) -> StoredHistories:
        """Writes the ids of the events, unless that was done before an interruption."""
        path = self._out / EVENTS_FILE
        if not path.exists():
            into = {
                column.name: self._mapped(f"ids-{number}", column.lookup.dtype)
                for number, column in enumerate(histories_of(encoder.schema))
            }
            for columns in self._chunks(self._values_read, progress):
                places = self._places_of(columns)
                encoded = encoder.encode_ids(self._values(columns, tuple(into), encoder.columns))
                for name, ids in into.items():
                    ids[places] = encoded[name]
            with replaced(path) as part:
                events = self._sorted
                arrays = {"users": events.users, "starts": events.starts, **events.columns}
                arrays |= {f"ids/{name}": ids for name, ids in into.items()}
                write_sections(part, {"kind": "events", "rows": self.rows, "epoch": events.epoch}, arrays)
        return self.stored(encoder.schema)

    def remove(self) -> None:
        shutil.rmtree(self.folder)

    def _chunks(self, how: Reading, progress: Progress) -> Iterator[RawRows]:
        return (columns for _, columns in stream(self._inputs, how, progress))

    def _places_of(self, columns: RawRows) -> np.ndarray:
        first = columns.first_row
        return self._places[first : first + columns.num_rows]

    def _values(self, events: RawRows, names: Sequence[str], columns: SchemaColumns) -> RawRows:
        """Events as rows of the schema, with one value in each of these histories, and none in others."""
        nothing = no_values(events.num_rows)
        values = {f"ids/{name}": events.values[f"ids/{name}"] for name in names}
        return replace(events, values={f"ids/{c.name}": nothing for c in columns.ids} | values)

    @cached_property
    def _references(self) -> np.ndarray:
        """[lengths, rows + 1] int64: how many histories begin at an event, less those that end there."""
        size = len(self._lengths) * (self.rows + 1)
        return self._mapped("references", np.int64, size).reshape(-1, self.rows + 1)

    def _mapped(self, name: str, dtype: Any, size: int | None = None) -> np.ndarray:
        """A new file of zeros, mapped. size: number of values (default: of events)."""
        path, shape = self.folder / name, (self.rows if size is None else size,)
        with open(path, "wb") as file:  # a full disk is an error here, and a signal where it is mapped
            if hasattr(os, "posix_fallocate"):  # macOS has none
                os.posix_fallocate(file.fileno(), 0, shape[0] * np.dtype(dtype).itemsize)
        return np.memmap(path, dtype, "r+", shape=shape).view(np.ndarray)


def _text(users: RawIds) -> str:
    return users.value(0)[:60].decode("utf-8", "backslashreplace") if len(users) else ""
