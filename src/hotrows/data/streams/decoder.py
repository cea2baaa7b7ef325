"""Decoder: encodes events, and takes out those that are malformed or late, as dead letters.

A `JoinDecoder` reads impressions and labels, and hands out impressions that have got their label, see
`label_join`. Events of both count in the state of the stream.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import numpy as np

from hotrows.data import Encoder
from hotrows.data.columns.history import USERS
from hotrows.data.columns.label import LabelColumns, missing_labels
from hotrows.data.columns.number import MISSING
from hotrows.data.columns.time import TimeColumn
from hotrows.data.raw.reading import Reading
from hotrows.data.raw.values import MISSING_TIME, RawIds, hash_values
from hotrows.data.rows import RawRows, Rows
from hotrows.data.stored.user_histories import ShortLists, UserHistories
from hotrows.data.streams.alarms import log
from hotrows.data.streams.events import RawEvents
from hotrows.data.streams.joined_source import (
    JoinedEvents,
    JoinedSource,
    reading_of_impressions,
    reading_of_labels,
)
from hotrows.data.streams.label_join import IDS, TIMES, HeldImpressions, LabelJoin, Labels
from hotrows.data.streams.line_log import LATE, MALFORMED, DeadLetters
from hotrows.data.streams.settings import StreamConfig
from hotrows.data.streams.state import LabelState, StreamState

_NEVER = -(1 << 62)  # before any time
_MEMORY = 1 << 32  # bytes of impressions that are held
_DAY = 86400  # seconds by which clocks may differ
_LINE_SECTIONS = "line_users", "has_user", "line_times"  # of lines, before they have histories
_MANY = 1000  # labels of which at least one should have been joined
Decoded = TypeVar("Decoded")


class Decoder:
    """Decodes events in order.

    state: of the stream, with the events that were decoded so far. histories: of users before the next
    event.
    """

    holds = False  # whether events become samples later

    def __init__(
        self,
        encoder: Encoder,
        config: StreamConfig,
        state: StreamState,
        letters: DeadLetters | None,
        histories: UserHistories | None,
        how: Reading | None = None,
    ) -> None:
        self._config, self.state, self._letters = config, state, letters
        self._how = how or Reading(encoder.schema, encoder.threads, histories="lines")
        self._encoder, self.columns = encoder, encoder.columns_with("lines")
        self._lines = None if histories is None else LineHistories(encoder, histories, state.short)
        self._lateness, self._pieces = config.lateness, list[Rows]()

    @property
    def histories(self) -> UserHistories | None:
        """Those behind the events that were decoded."""
        return None if self._lines is None else self._lines.histories

    @property
    def held(self) -> HeldImpressions | None:
        """The events that are not samples yet."""
        return None

    def note(self) -> dict[str, Any]:
        """What a position says beside the place in the source, so that a batch is cut alike."""
        return {}

    def replay(self, position: dict[str, Any]) -> list[Rows]:
        """The samples that were taken up to a position."""
        return self.take(0)

    def add(self, events: RawEvents | JoinedEvents) -> None:
        assert not isinstance(events, JoinedEvents)
        for rows in self._rows(events):
            self._pieces.append(rows if self._lines is None else self._lines.read(rows))
        self._count_short()

    def take(self, limit: int) -> list[Rows]:
        """The samples that are ready, in order."""
        pieces, self._pieces = self._pieces, []
        return pieces

    def _count_short(self) -> None:
        if self._lines is not None:
            self.state = dataclasses.replace(self.state, short=self._lines.short.count)

    def _rows(self, events: RawEvents) -> Iterator[Rows]:
        """The rows of events that are neither malformed nor late."""
        for (raw, rows), some, read in self._decoded(events, self.state.read, self._encode):
            late = self._late(raw.get("times"))
            if self._config.late == "train":
                self.state = dataclasses.replace(self.state, late=self.state.late + int(late.sum()))
            elif late.any():
                for place in np.flatnonzero(late).tolist():
                    what = f"more than {self._lateness:g} s older than the newest event before it"
                    self._drop(LATE, read + place, what, some[place : place + 1])
                rows = rows.take(np.flatnonzero(~late))
            if len(rows):
                yield rows
        self.state = dataclasses.replace(self.state, read=self.state.read + len(events))

    def _encode(self, events: RawEvents) -> tuple[RawRows, Rows]:
        raw = self.columns.read(events.columns(self._how))
        added = {} if self._lines is None else self._lines.sections(raw)
        if self._how.by is not None:
            ids = _ids_of(raw.values["units"], self._how.by, raw.where)
            added |= {IDS: ids, TIMES: _checked(raw.values["times"], raw.where)}
        rows = self._encoder.encode_rows(raw, self.columns).without(MISSING)
        return raw, rows.with_arrays(added, {})

    def _decoded(
        self, events: RawEvents, read: int, decode: Callable[[RawEvents], Decoded]
    ) -> Iterator[tuple[Decoded, RawEvents, int]]:
        """Decodes them together; where that fails, by halves, down to the events that are malformed.
        Yields what was decoded, of which events, and how many were read before."""
        if not len(events):
            return
        try:
            decoded = decode(events)
        except ValueError as error:
            if len(events) == 1:
                self._drop(MALFORMED, read, str(error), events)
                return
            half = len(events) // 2
            yield from self._decoded(events[:half], read, decode)
            yield from self._decoded(events[half:], read + half, decode)
            return
        yield decoded, events, read

    def _late(self, times: np.ndarray | None) -> np.ndarray:
        """Which events are late, [events]; those without a time are not."""
        if times is None or not len(times):
            return np.zeros(0, bool)
        first = _NEVER if self.state.event_time is None else self.state.event_time
        known = times != MISSING_TIME
        newest = np.maximum.accumulate(np.concatenate([[first], np.where(known, times, _NEVER)]))
        if newest[-1] != _NEVER:
            self.state = dataclasses.replace(self.state, event_time=int(newest[-1]))
        if self._lateness is None:
            return np.zeros(len(times), bool)
        return known & (newest[:-1] - times > self._lateness) & (newest[:-1] != _NEVER)

    def _drop(self, reason: str, read: int, what: str, event: RawEvents) -> None:
        self.state = dataclasses.replace(self.state, **{reason: getattr(self.state, reason) + 1})
        if self._letters is not None:
            self._letters.write(read, event.place(0), reason, what, event.texts()[0])


class JoinDecoder(Decoder):
    """Decodes impressions and labels of a `JoinedSource`, and joins them.

    held: impressions of an earlier process.
    """

    holds = True

    def __init__(
        self,
        source: JoinedSource,
        encoder: Encoder,
        config: StreamConfig,
        state: StreamState,
        letters: DeadLetters | None,
        histories: UserHistories | None,
        held: HeldImpressions,
    ) -> None:
        how = reading_of_impressions(encoder.schema, source.join_on, encoder.threads)
        super().__init__(encoder, config, state, letters, histories, how)
        self._source = source
        self._of_labels = reading_of_labels(encoder.schema, source.join_on, encoder.threads)
        self._labels, self._times = LabelColumns(encoder.schema), TimeColumn(encoder.schema)
        window = config.window_seconds
        # An impression whose window is over would be one without a label, whatever its label is.
        self._lateness = window if config.lateness is None else config.lateness
        self._slack = math.ceil(config.lateness or 0)
        is_weighted, memory = config.delayed_labels == "weight", config.label_memory or _MEMORY
        self._join = LabelJoin(window, is_weighted, memory, state.labels or LabelState(), held)
        self._has_warned = False
        self._choose()

    @property
    def held(self) -> HeldImpressions:
        return self._join.held

    def note(self) -> dict[str, Any]:
        return {"until": self._join.state.until, "released": self._join.state.released}

    def replay(self, position: dict[str, Any]) -> list[Rows]:
        if position["until"] is not None:
            self._join.advance(position["until"])
        return self.take(position["released"] - self._join.state.released)

    def add(self, events: RawEvents | JoinedEvents) -> None:
        assert isinstance(events, JoinedEvents)
        for rows in self._rows(events.impressions):
            self._join.add(rows, len(self._labels.labels))
        for labels, _, _ in self._decoded(events.labels, self.state.read, self._read_labels):
            newest, before = int(labels.times.max()), self._join.state.label_time
            newest = newest if before is None else max(newest, before)
            self._join.state = dataclasses.replace(self._join.state, label_time=newest)
            self._join.label(labels)
        self._warn_of_none()
        self.state = dataclasses.replace(self.state, read=self.state.read + len(events.labels))
        if (until := self._known_until(events.has_all_labels)) is not None:
            self._join.advance(until)
        self._choose()
        self.state = dataclasses.replace(self.state, labels=self._join.state)

    def take(self, limit: int) -> list[Rows]:
        pieces = self._join.take(limit)
        pieces = pieces if self._lines is None else [self._lines.read(rows) for rows in pieces]
        self._count_short()
        self.state = dataclasses.replace(self.state, labels=self._join.state)
        return pieces

    def _warn_of_none(self) -> None:
        state = self._join.state
        if state.joined or self._has_warned or state.late + state.unmatched < _MANY:
            return
        self._has_warned = True
        log.warning(
            f"of {state.late + state.unmatched:,} labels none was joined to an impression: have both the "
            f"same values in {self._source.join_on!r}, and times in one unit?"
        )

    def _known_until(self, has_all_labels: bool) -> int | None:
        """The event time up to which all impressions and labels were read; None: nobody knows."""
        newest, of_labels = self.state.event_time, self._join.state.label_time
        if newest is None or (of_labels is None and not has_all_labels):
            return None
        if not has_all_labels and of_labels is not None:
            newest = min(newest, of_labels - 1)
        return newest - self._slack

    def _choose(self) -> None:
        """Lets the source read next what is behind in event time."""
        newest, of_labels = self.state.event_time, self._join.state.label_time
        self._source.wants_labels = newest is not None and (of_labels is None or of_labels <= newest)

    def _read_labels(self, events: RawEvents) -> Labels:
        cells = events.columns(self._of_labels)
        numeric = self._labels.numeric
        cells = dataclasses.replace(cells, numeric=numeric, of_labels=frozenset(numeric))
        read: dict[str, Any] = {}
        cells.raise_first([*self._labels.read(cells, read), *self._times.read(cells, read)])
        if cells.problem is not None:
            raise cells.problem
        ids = _ids_of(cells.ids(self._source.join_on), self._source.join_on, cells.where)
        values = self._labels.of_batch(read["labels"].T)
        if len(self._labels.labels) == 1:
            values[np.isnan(values)] = 1  # what says no value is a click
        elif (empty := np.isnan(values).all(1)).any():
            names = ", ".join(label.name for label in self._labels.labels)
            where = cells.where(int(empty.argmax()))
            raise ValueError(f"{where} has none of the labels {names}: say which one it is")
        times = _checked(read["times"], cells.where)
        if (ahead := times > time.time() + _DAY).any():  # labels would seem to be read far ahead
            where = cells.where(int(ahead.argmax()))
            raise ValueError(f"{where} has a time in the future; is it in the unit that the schema says?")
        return Labels(ids, times, values)


def _ids_of(raw: RawIds, column: str, where: Callable[[int], str]) -> np.ndarray:
    """Hashes of ids by which labels are joined; ValueError where one is missing."""
    if (absent := raw.lengths == 0).any():
        raise ValueError(
            f"{where(int(absent.argmax()))} has no {column!r}, by which labels find impressions; give it "
            f"one, or name the column that has it (join_on, --join-on)"
        )
    return hash_values(raw).view(np.int64)


def _checked(times: np.ndarray, where: Callable[[int], str]) -> np.ndarray:
    if (absent := times == MISSING_TIME).any():
        raise ValueError(
            f"{where(int(absent.argmax()))} has no time, and labels count for a while; give it one"
        )
    return times


class LineHistories:
    """The lines of a stream get the histories of their users, and are events of these.

    A line whose first label is above 0 is an event of its user, at its time, with the values of its
    columns. A line sees the events of earlier seconds that came before it.

    encoder: of the lines; histories: of the events before the next line; num_short: lines before it
    whose lists may lack events."""

    def __init__(self, encoder: Encoder, histories: UserHistories, num_short: int = 0) -> None:
        if endless := [name for name, length in histories.lengths.items() if length is None]:
            raise ValueError(
                f"history {endless[0]!r} has no max_length, and a stream would keep all events of its "
                f"users in memory: declare one and prepare again, or train on EncodedData.cut(100)"
            )
        self.histories, self.short = histories, ShortLists(num_short)

    def sections(self, raw: RawRows) -> dict[str, np.ndarray]:
        """What `read` needs of lines; raises ValueError where one has no time."""
        if (absent := raw.values["times"] == MISSING_TIME).any():
            where = raw.where(int(absent.argmax()))
            raise ValueError(f"{where} has no time, which says where its history ends; give it one")
        users = raw.values[USERS]
        values = hash_values(users).view(np.int64), users.lengths > 0, raw.values["times"]
        return dict(zip(_LINE_SECTIONS, values, strict=True))

    def read(self, rows: Rows) -> Rows:
        """Encoded lines with these sections, and their histories in place of the value of the line alone;
        adds the events."""
        users, has_user, times = (rows.arrays[name] for name in _LINE_SECTIONS)
        rows = rows.without(*_LINE_SECTIONS)
        first_label = rows.arrays["labels"].reshape(len(rows), -1)[:, 0]
        is_event = (first_label > 0) & ~missing_labels(first_label) & has_user
        values = {name: rows.values(f"ids/{name}") for name in self.histories.lengths}
        lists, num_short, self.histories = self.histories.read(
            users.view(np.uint64), times, is_event, values
        )
        self.short.add(num_short, self.histories)
        ids = {f"ids/{name}": ids for name, (ids, _) in lists.items()}
        return rows.with_arrays(ids, {name: bounds for name, (_, bounds) in lists.items()})
