"""Events that are histories of samples: sorted by user and time, found, counted and encoded.

    deal      user, time and row of each event  ->  a file for each of 64 ranges of hashes of users
    sort      each of them, by user and time    ->  `users`, `starts`, `times`, and the `places` of rows
    find      samples (user, time)              ->  begin and end of their histories, by binary search
    count     events, each as often as histories of the training part have it
    write     events                            ->  `events.shard`, the ids of each at its place

Memory holds a chunk of events and one of the 64 files. The others are mapped, about 16 bytes per event,
and removed in the end. A time counts to the second. Events of one time keep the order of the file.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from hotrows.data.encode.encoder import Encoder, without_keys
from hotrows.data.encode.vocabulary import Counts
from hotrows.data.raw.cells import Columns, Reading
from hotrows.data.raw.inputs import Input, Progress, stream
from hotrows.data.raw.values import MISSING_TIME, RawIds, hash_values, no_values
from hotrows.data.stored.histories import (
    BEGIN,
    END,
    EVENTS_FILE,
    StoredHistories,
    events_before,
    last_begins,
    stored_schema,
    type_of_times,
    with_features,
)
from hotrows.data.stored.rows import Rows, id_type
from hotrows.data.stored.sections import write_sections
from hotrows.data.stored.user_histories import NEWEST
from hotrows.runtime.atomic_files import replaced
from hotrows.runtime.user_warnings import warn
from hotrows.schema import Schema, Sparse, column_of, is_list

_EVENT = np.dtype([("user", "u8"), ("time", "i8"), ("row", "i8")])
_RANGE_BITS = 6  # of the hash of a user


class _EventSchema(Schema):
    """The columns of events, which have no label."""

    @cached_property
    def raw_columns(self) -> tuple[str, ...]:
        columns = [*map(column_of, self.features), *([self.time.column] if self.time else [])]
        return tuple(dict.fromkeys(columns))


class EventIndex:
    """Where the events of each user are, by time; made of the events in a temporary folder.

    schema: of the samples. rows: number of events.
    """

    def __init__(
        self,
        inputs: Sequence[Input],
        schema: Schema,
        folder: Path,
        threads: int,
        progress: Progress | None = None,
    ) -> None:
        self.schema = schema
        self._inputs, self._folder = inputs, folder
        histories = [f for f in schema.sequences if f.name in schema.histories]
        self._longest = {f.name: f.max_length for f in histories}
        how = {name: getattr(schema, name) for name in ("name", "delimiter", "missing", "strip")}
        of_users = _EventSchema((Sparse(END, schema.user),), "\0", time=schema.time, **how)
        values = _EventSchema(tuple(Sparse(f.name, column_of(f)) for f in histories), "\0", **how)
        self._users_read, self._values_read = Reading(of_users, threads), Reading(values, threads)
        self._users_known = self._has_past = False
        self._first_users = ["", ""]
        self._epoch = self._last_time = 0
        shutil.rmtree(folder, ignore_errors=True)  # left by an interruption
        folder.mkdir()
        self.rows = self._deal(progress)
        self._places = self._mapped("places", np.uint32 if self.rows < 1 << 32 else np.int64)
        self._sort()
        files: dict[str, Any] = {"users": np.uint64, "starts": np.int64, "times": self._type_of_times}
        self._users, self._starts, self._times = (
            np.memmap(folder / name, dtype, "r").view(np.ndarray) for name, dtype in files.items()
        )
        self._references: dict[int | None, np.ndarray] = {}

    def _deal(self, progress: Progress | None) -> int:
        rows = 0
        for columns in self._chunks(self._users_read, progress):
            raw, times = columns.ids[0], columns.times
            assert times is not None
            if not len(times):
                continue
            for absent, what in ((raw.lengths == 0, "user"), (times == MISSING_TIME, "time")):
                if absent.any():
                    raise ValueError(
                        f"{columns.where(int(absent.argmax()))} is an event without a {what}: give it "
                        f"one, or leave it out"
                    )
            self._first_users[0] = self._first_users[0] or _text(raw)
            first, last = int(times.min()), int(times.max())
            self._epoch = min(first, self._epoch) if rows else first
            self._last_time = max(last, self._last_time) if rows else last
            events = np.empty(columns.num_rows, _EVENT)
            events["user"], events["time"] = hash_values(raw), times
            events["row"] = np.arange(rows, rows + len(events))
            numbers = (events["user"] >> np.uint64(64 - _RANGE_BITS)).astype(np.uint8)
            order = np.argsort(numbers, kind="stable")
            ends = np.searchsorted(numbers[order], np.arange((1 << _RANGE_BITS) + 1))
            for number in np.unique(numbers).tolist():
                with open(self._folder / f"range-{number:02d}", "ab") as file:
                    file.write(events[order[ends[number] : ends[number + 1]]].data)
            rows += len(events)
        return rows

    @property
    def _type_of_times(self) -> np.dtype:
        return type_of_times(self._epoch, self._last_time)

    def _sort(self) -> None:
        first, folder = 0, self._folder
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
                times.write((events["time"] - self._epoch).astype(self._type_of_times).data)
                first += len(events)
            starts.write(np.array([first]).data)

    def find(self, columns: Columns) -> tuple[np.ndarray, np.ndarray]:
        """Begin and end of the events of each sample's user before its time: [rows], [rows] int64."""
        raw, moments = columns.ids[self._names.index(END)], columns.times
        assert moments is not None
        if (absent := moments == MISSING_TIME).any():
            raise ValueError(
                f"{columns.where(int(absent.argmax()))} has no time, which says where its history ends; "
                f"give it one, or leave it out"
            )
        users = hash_values(raw)
        of_users = (self._users, self._starts, self._times, users)
        begins, ends = events_before(*of_users, moments - self._epoch)
        self._check_past(columns, begins, ends)
        self._has_past |= bool((ends > begins).any())
        if not self._users_known:
            self._users_known = bool(events_before(*of_users, np.array(NEWEST))[1].any())
        self._first_users[1] = self._first_users[1] or _text(raw)
        return begins, ends

    def _check_past(self, columns: Columns, begins: np.ndarray, ends: np.ndarray) -> None:
        """Stops a preparation whose samples would see an event at or after their time."""
        assert columns.times is not None
        rows = np.flatnonzero(ends > begins)
        leaks = rows[self._times[ends[rows] - 1] >= columns.times[rows] - self._epoch]
        if len(leaks):
            raise ValueError(
                f"{columns.where(int(leaks[0]))}: its history has an event that is not before its time, "
                f"which no model may see; prepare again"
            )

    def check_users(self) -> None:
        """Raises ValueError if no sample has a user of the events: their columns differ. Warns where none
        has an event before its time."""
        if not self._users_known:
            events, samples = self._first_users
            raise ValueError(
                f"no sample has a user of the events: column {self.schema.user!r} has {events!r} in the "
                f"events and {samples!r} in the samples; write users alike in both"
            )
        if not self._has_past:
            warn("no sample has an event before its time: write times alike in events and samples")

    def refer(self, columns: Columns, training: np.ndarray) -> None:
        """Notes which events the histories of the chosen samples have. training: [rows] bool."""
        begins, ends = (bounds[training] for bounds in self.find(columns))
        for longest in set(self._longest.values()):
            if longest not in self._references:
                name = f"references-{len(self._references)}"
                self._references[longest] = self._mapped(name, np.int64, self.rows + 1)
            changes = self._references[longest]
            for bounds, change in ((last_begins(begins, ends, longest), 1), (ends, -1)):
                distinct, num = np.unique(bounds, return_counts=True)
                changes[distinct] += change * num

    def count(self, counts: Counts, progress: Progress | None = None) -> None:
        """Counts the values of events, each as often as histories have it."""
        self.check_users()
        for changes in self._references.values():
            np.cumsum(changes, out=changes)
        for columns in self._chunks(self._values_read, progress):
            places = self._places_of(columns)
            for longest, times in self._references.items():
                names = [name for name, length in self._longest.items() if length == longest]
                ids = self._values(columns, names).ids
                counts.add(without_keys(self.schema, ids), times[places])

    def without_users(self, columns: Columns) -> Columns:
        """Samples as the schema has them: with empty histories in place of users."""
        return with_ids(columns, self.schema, dict(zip(self._names, columns.ids, strict=True)))

    def encoded(self, encoder: Encoder, columns: Columns) -> Rows:
        """Encodes samples: rows of the stored schema."""
        begins, ends = self.find(columns)
        rows = encoder.encode_columns(self.without_users(columns))
        stored = stored_schema(encoder.schema, self.rows)
        places = {BEGIN: (begins, None), END: (ends, None)}
        return with_features(rows, encoder.schema.id_features, stored.id_features, places)

    def write(self, encoder: Encoder, folder: Path, progress: Progress | None = None) -> StoredHistories:
        """Writes the ids of the events, unless that was done before an interruption."""
        path, features = folder / EVENTS_FILE, encoder.schema.id_features
        if not path.exists():
            into = {
                f.name: self._mapped(f"ids-{number}", id_type(encoder.schema, f))
                for number, f in enumerate(features)
                if f.name in self._longest
            }
            for columns in self._chunks(self._values_read, progress):
                places = self._places_of(columns)
                encoded = encoder.encode_ids(self._values(columns, tuple(into)))
                for feature, ids in zip(features, encoded, strict=True):
                    if feature.name in into:
                        into[feature.name][places] = ids
            with replaced(path) as part:
                arrays = {"users": self._users, "starts": self._starts, "times": self._times}
                arrays |= {f"ids/{name}": ids for name, ids in into.items()}
                write_sections(part, {"kind": "events", "rows": self.rows, "epoch": self._epoch}, arrays)
        return StoredHistories.open(path, encoder.schema, self.rows)

    def remove(self) -> None:
        """Removes the temporary files."""
        shutil.rmtree(self._folder)

    @property
    def _names(self) -> list[str]:
        """The features of samples as they are read."""
        return [feature.name for feature in stored_schema(self.schema).id_features]

    def _chunks(self, how: Reading, progress: Progress | None) -> Iterator[Columns]:
        return (columns for _, columns in stream(self._inputs, how, progress))

    def _places_of(self, columns: Columns) -> np.ndarray:
        first = columns.first_row
        return self._places[first : first + columns.num_rows]

    def _values(self, events: Columns, names: Sequence[str]) -> Columns:
        """Events as the schema has its rows, with one value in each history."""
        features = zip(self._values_read.schema.id_features, events.ids, strict=True)
        return with_ids(events, self.schema, {f.name: raw for f, raw in features if f.name in names})

    def _mapped(self, name: str, dtype: Any, size: int | None = None) -> np.ndarray:
        """A new file of zeros, mapped. size: number of values (default: of events)."""
        path, shape = self._folder / name, (self.rows if size is None else size,)
        with open(path, "wb") as file:  # a full disk is an error here, and a signal where it is mapped
            if hasattr(os, "posix_fallocate"):  # macOS has none
                os.posix_fallocate(file.fileno(), 0, shape[0] * np.dtype(dtype).itemsize)
        return np.memmap(path, dtype, "r+", shape=shape).view(np.ndarray)


def with_ids(columns: Columns, schema: Schema, by_name: dict[str, RawIds]) -> Columns:
    """Columns with the id features of the schema; others than those by name have no values."""
    rows = columns.num_rows
    nothing, no_lists = no_values(rows), no_values(0, np.zeros(rows + 1, np.int64))
    ids = tuple(by_name.get(f.name, no_lists if is_list(f) else nothing) for f in schema.id_features)
    return dataclasses.replace(columns, ids=ids)


def _text(users: RawIds) -> str:
    return users.value(0)[:60].decode("utf-8", "backslashreplace") if len(users) else ""
