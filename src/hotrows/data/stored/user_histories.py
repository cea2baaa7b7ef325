"""UserHistories: the last events of each user, which grow as events come, for streams and servers.

    runs[0]     the events of prepared data: all of them, in a file
    runs[1:]    those that were appended since, each run at most half of the run before it

A value is never changed: `append` returns the next one, so that a batch, a checkpoint and a version each
have that of their moment. A sample sees the last events of its user before its time, however many came
after it. Only of those that were appended older ones are dropped, as runs are joined, so that memory is
bounded: the last `kept` before a user's newest second, and those of that second, stay. Lists that may
lack dropped events are counted. `lists` returns the same lists whichever runs were joined.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from hotrows.data.columns.of_schema import histories_of
from hotrows.data.raw.values import last_ones
from hotrows.data.rows import ends_of, joined_offsets
from hotrows.data.stored.histories import (
    EVENTS_FILE,
    NEWEST,
    Columns,
    SortedEvents,
    places_between,
    type_of_times,
)
from hotrows.data.stored.sections import check_once, open_sections, write_sections
from hotrows.runtime.atomic_files import replaced
from hotrows.schema import Schema

log = logging.getLogger("hotrows")

_UNBOUNDED = 1 << 40
_LEAST_SPARE = 100  # appended events of a user that stay beyond those of the longest history
_QUIET = 60.0  # seconds between two warnings
_APPENDED = "appended/"  # in the names of what a file has of the second run
_RANGES = 64  # of hashes of users: the events of one are sorted at a time
Lists = dict[str, tuple[np.ndarray, np.ndarray]]  # by history: ids and offsets [n + 1]


@dataclass(frozen=True, eq=False)
class UserHistories:
    """The histories of all users. lengths: `max_length` by history; count: of all appended events."""

    lengths: Mapping[str, int | None]
    runs: tuple[SortedEvents, ...]
    count: int = 0

    @staticmethod
    def open(folder: Path, schema: Schema, checked: bool = True) -> UserHistories | None:
        """Those of prepared data, or of a bundle's encoders; None where the folder has none.

        checked: compare the file with its checksums, for which it is read whole.
        """
        path, wanted = folder / EVENTS_FILE, histories_of(schema)
        if not wanted or not path.exists():
            return None
        if checked:
            check_once(path)
        sections, ids = open_sections(path), [f"ids/{c.name}" for c in wanted]
        prefixes = ["", _APPENDED] if f"{_APPENDED}epoch" in sections.header else [""]
        runs = tuple(SortedEvents.stored(sections, prefix, ids) for prefix in prefixes)
        lengths = {column.name: column.max_length for column in wanted}
        return UserHistories(lengths, runs, sections.header.get("count", 0))

    @property
    def longest(self) -> int:
        return max(length or _UNBOUNDED for length in self.lengths.values())

    @property
    def kept(self) -> int:
        """How many of the appended events of a user before the newest second stay."""
        return self.longest + max(self.longest, _LEAST_SPARE)

    def append(self, users: np.ndarray, times: np.ndarray, ids: Columns) -> UserHistories:
        """The histories with events [n] more, in the order in which they came. ids: by history."""
        columns = {"users": users, "times": times, **{f"ids/{name}": ids[name] for name in self.lengths}}
        columns["numbers"] = self.count + 1 + np.arange(len(users))
        return self._with(columns, self.count + len(users))

    def appended(self, events: Columns) -> UserHistories:
        """The histories with what `since` gave."""
        if not events:
            return self
        columns = {name: values for name, values in events.items() if name != "count"}
        return self._with({**columns, "users": events["users"].view(np.uint64)}, int(events["count"][0]))

    def _with(self, columns: Columns, count: int) -> UserHistories:
        """Joins what was appended before, and leaves the new run whole: its own lines read it next."""
        if count == self.count:
            return self
        runs = self.runs
        while len(runs) > 2 and len(runs[-2].columns["times"]) < 2 * len(runs[-1].columns["times"]):
            runs = (*runs[:-2], SortedEvents.joined(*(run.seen(self.kept) for run in runs[-2:])))
        return dataclasses.replace(self, runs=(*runs, SortedEvents.joined(columns)), count=count)

    def since(self, count: int) -> dict[str, np.ndarray]:
        """The events that came after the first `count`, int64 arrays by name; empty if there is none."""
        if self.count <= count:
            return {}
        runs = (run.take(np.flatnonzero(run.columns["numbers"] > count)) for run in self.runs[1:])
        events = SortedEvents.joined(*runs)
        columns = events.take(np.arange(len(events.columns["times"])))
        columns = {name: values.astype(np.int64) for name, values in columns.items()}
        return {**columns, "count": np.array([self.count])}

    def newest(self, users: np.ndarray) -> np.ndarray:
        """The time of the newest appended event of each user [n]; the least int64 if there is none."""
        newest = np.full(len(users), np.iinfo(np.int64).min)
        for run in self.runs[1:]:
            begins, ends = run.before(users, np.array(NEWEST))
            known = ends > begins
            newest[known] = np.maximum(newest[known], run.times(ends[known] - 1))
        return newest

    def lists(self, users: np.ndarray, times: np.ndarray) -> tuple[Lists, int]:
        """The lists of users [n] before times [n], and how many of these may lack dropped events."""
        return self._lists_before(users, times, self._left(users, times))

    def offsets_of(self, users: np.ndarray, times: np.ndarray) -> dict[str, np.ndarray]:
        """The offsets [n + 1] of these lists, by history; the lists are not made."""
        bounds = (run.before(users, times) for run in self.runs)
        prepared, *appended = (ends - begins for begins, ends in bounds)
        lengths = prepared + np.minimum(sum(appended), self._left(users, times))
        pairs = self.lengths.items()
        return {name: ends_of(np.minimum(lengths, most or _UNBOUNDED)) for name, most in pairs}

    def _left(self, users: np.ndarray, times: np.ndarray) -> np.ndarray:
        """How many of the appended events before times [n] are not dropped: `kept`, less those after."""
        left, newest = np.full(len(users), self.kept), self.newest(users)
        for run in self.runs[1:] if (times < newest).any() else ():
            _, (ends, all_ends) = run.before(users, np.stack([times, np.maximum(times, newest)]))
            left -= all_ends - ends
        return np.maximum(left, 0)

    def read(
        self, users: np.ndarray, times: np.ndarray, is_event: np.ndarray, ids: Columns
    ) -> tuple[Lists, int, UserHistories]:
        """The lists of lines [n] in the order in which they came, some of them events with ids [n]; how
        many of these may lack dropped events; and the histories after them. A line sees the events of
        earlier seconds that came before it."""
        parts, num_short, histories = [], 0, self
        for first, end in pairwise([0, *self._cuts(users, times), len(users)]):
            added = first + np.flatnonzero(is_event[first:end])
            left = histories._left(users[first:end], times[first:end])
            of_added = {name: of_history[added] for name, of_history in ids.items()}
            histories = histories.append(users[added], times[added], of_added)
            part, short = histories._lists_before(users[first:end], times[first:end], left)
            parts.append(part)
            num_short += short
        pairs = {name: list(zip(*(part[name] for part in parts), strict=True)) for name in self.lengths}
        lists = {name: (np.concatenate(v), joined_offsets(o)) for name, (v, o) in pairs.items()}
        return lists, num_short, histories

    def _cuts(self, users: np.ndarray, times: np.ndarray) -> list[int]:
        """The lines, not the first of their users, that are older than what came before them:
        what these see does not follow from their time."""
        order = np.argsort(users, kind="stable")
        is_first = np.append(True, users[order][1:] != users[order][:-1])[: len(users)]
        low = times.min(initial=0)
        span = times.max(initial=0) - low + 2
        base = is_first.cumsum() * span  # apart, so that one maximum runs over all users
        newest = np.clip(self.newest(users[order]), low, low + span - 1) - low
        moments = base + times[order] - low
        is_late = moments < np.maximum.accumulate(np.maximum(moments, base + newest))
        return np.sort(order[is_late & ~is_first]).tolist()

    def _lists_before(self, users: np.ndarray, times: np.ndarray, left: np.ndarray) -> tuple[Lists, int]:
        """left [n]: how many of the last appended events are seen; more of them have been dropped."""
        samples, places = [], []
        for run in self.runs:
            begins, ends = run.before(users, times)
            begins = np.maximum(begins, ends - self.longest)
            samples.append(np.repeat(np.arange(len(users)), ends - begins))
            places.append(places_between(begins, ends))
        pairs = list(zip(self.runs, places, strict=True))
        sample = np.concatenate(samples)
        order = np.lexsort((np.concatenate([run.times(of_run) for run, of_run in pairs]), sample))
        is_short = left < self.longest
        if is_short.any():
            appended = _offsets(sample[len(places[0]) :], len(users))
            is_short &= np.diff(appended) >= left
            is_appended = order >= len(places[0])
            later = appended[1:][sample[order]] - is_appended.cumsum()
            order = order[~is_appended | (later < left[sample[order]])]
        offsets = _offsets(sample[order], len(users))
        lists = {}
        for name, length in self.lengths.items():
            parts = (run.columns[f"ids/{name}"][of_run] for run, of_run in pairs)
            ids = np.concatenate([part.astype(np.int64) for part in parts])[order]
            kept = last_ones(offsets, length)
            all_ends = offsets if kept is None else ends_of(kept)[offsets]
            lists[name] = (ids if kept is None else ids[kept], all_ends)
        return lists, int(is_short.sum())

    def write(self, path: Path) -> None:
        """Writes the prepared events, and the appended ones that stay; of these, memory holds them once
        more meanwhile, as they are stored."""
        prepared, *appended = self.runs
        header = {"kind": "events", "rows": len(prepared.columns["times"]), "epoch": prepared.epoch}
        arrays = {"users": prepared.users, "starts": prepared.starts, **prepared.columns}
        del arrays["numbers"]
        if appended:
            epoch = min(run.epoch + int(run.columns["times"].min()) for run in appended)
            last = max(run.epoch + int(run.columns["times"].max()) for run in appended)
            kind = type_of_times(epoch, last)
            pieces = [self._seen_in(number, epoch, kind) for number in range(_RANGES)]
            more = {
                name: np.concatenate([piece.pop(name) for piece in pieces]) for name in list(pieces[0])
            }
            more["starts"] = ends_of(more["starts"])
            arrays |= {_APPENDED + name: values for name, values in more.items()}
            header |= {"count": self.count, f"{_APPENDED}epoch": epoch}
        with replaced(path) as part:
            write_sections(part, header, arrays)

    def _seen_in(self, number: int, epoch: int, kind: np.dtype) -> dict[str, np.ndarray]:
        """What a file has of the users in a range of hashes, in place of `starts` lengths."""
        size, parts = (1 << 64) // _RANGES, []
        for run in self.runs[1:]:
            first = np.searchsorted(run.users, np.uint64(number * size))
            end = np.searchsorted(run.users, np.uint64((number + 1) * size - 1), "right")
            parts.append(run.seen(self.kept, slice(first, end)))
        seen, base = SortedEvents.joined(*parts).seen(self.kept), self.runs[0].columns
        users, lengths = np.unique(seen["users"], return_counts=True)
        columns = {"users": users, "starts": lengths, "times": (seen["times"] - epoch).astype(kind)}
        ids = (f"ids/{name}" for name in self.lengths)
        return {**columns, **{name: seen[name].astype(base[name].dtype) for name in ids}}


def _offsets(samples: np.ndarray, size: int) -> np.ndarray:
    """The offsets [size + 1] of the lists of samples, by the sample of each value."""
    return ends_of(np.bincount(samples, minlength=size))


class ShortLists:
    """Counts lists that may lack events, on top of `count`, and warns of them once a minute at most."""

    def __init__(self, count: int = 0) -> None:
        self.count, self._lock, self._quiet_until = count, threading.Lock(), 0.0

    def add(self, number: int, histories: UserHistories) -> None:
        """number: of lists by these histories that may lack events."""
        if not number:
            return
        with self._lock:
            self.count += number
            if is_due := time.monotonic() >= self._quiet_until:
                self._quiet_until = time.monotonic() + _QUIET
        if is_due:
            log.warning(
                f"{number:,} histories may lack events: of each user the last {histories.kept:,} that a "
                f"stream has appended are kept, and these are of a time before most of them; prepare the "
                f"events, of which all are kept, or bring lines in the order of their times"
            )
