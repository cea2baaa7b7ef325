"""EventStream: the events of a source as batches, read, encoded and cut on a thread of their own.

    source = open_source("folder:clicks", encoder.schema)
    with EventStream(source, encoder, batch_size=1024) as events:
        for batch in events:               # waits for events; ends with the source
            ...                            # events.state: the position behind this batch, JSON-able

A batch is full, or `max_wait` seconds old, or the last. At most `queue` batches wait to be trained: then
the thread reads no more, and the source waits.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from hotrows.batch import Batch
from hotrows.data import Encoder
from hotrows.data.columns.number import MISSING
from hotrows.data.columns.of_schema import batch_of
from hotrows.data.raw.reading import Reading
from hotrows.data.raw.values import MISSING_TIME
from hotrows.data.rows import Room, Rows, gathered
from hotrows.data.stored.user_histories import UserHistories
from hotrows.data.streams.dead_letters import LATE, MALFORMED, DeadLetters
from hotrows.data.streams.events import RawEvents
from hotrows.data.streams.line_histories import LineHistories
from hotrows.data.streams.settings import StreamConfig
from hotrows.data.streams.source import EventSource
from hotrows.engine.pipeline.prefetch import Queue
from hotrows.runtime.background import Worker

_LOOK = 0.05  # seconds after which the thread looks whether it is to end
_NEVER = -(1 << 62)  # before any time


@dataclass(frozen=True)
class StreamState:
    """How far a stream was read: part of every checkpoint.

    source: its name; position: behind the last event. events: in batches so far; read: events in all,
    those that were malformed or late included. malformed, late: how many were; event_time: the newest one
    so far, in seconds since 1970, None where none has a time; short: events whose histories may lack some
    that were dropped.
    """

    source: str
    position: dict[str, Any]
    events: int = 0
    read: int = 0
    malformed: int = 0
    late: int = 0
    event_time: int | None = None
    short: int = 0


@dataclass(frozen=True)
class CutBatch:
    """A batch, the state of the stream behind it, the position behind each read that made it, and the
    histories of users behind its events."""

    batch: Batch
    state: StreamState
    reads: tuple[dict[str, Any], ...]
    histories: UserHistories | None = None


class EventStream:
    """A stream of batches of at most `batch_size` events, in the order of the source.

    state: of an earlier process, to go on from.
    dead_letters: where malformed and late events go; None: they are counted alone.
    cuts: the positions of the reads that each batch is made of, as an earlier run has logged them: the
    same batches are made anew.
    histories: of users behind `state` (default: those of the encoder's data).

    >>> from hotrows.data.streams import StreamConfig, open_source
    >>> stop = StreamConfig(stop_when_idle=0.1)
    >>> source = open_source(f"folder:{folder}", data.schema)
    >>> with EventStream(source, hotrows.data.Encoder.open(data.path), 64, stop) as events:
    ...     len(list(events))
    0
    """

    def __init__(
        self,
        source: EventSource,
        encoder: Encoder,
        batch_size: int,
        config: StreamConfig | None = None,
        state: StreamState | None = None,
        dead_letters: DeadLetters | None = None,
        cuts: Iterable[Sequence[dict[str, Any]]] | None = None,
        histories: UserHistories | None = None,
    ) -> None:
        self._source, self._batch_size, self._config = source, batch_size, config or StreamConfig()
        if self._config.lateness is not None and encoder.schema.time is None:
            raise ValueError(
                "lateness needs the time of events: say in the schema which column it is, "
                "time=Time(COLUMN)"
            )
        if (worker := torch.utils.data.get_worker_info()) is not None and worker.num_workers > 1:
            raise ValueError(
                f"each of {worker.num_workers} workers of a DataLoader would read all events of "
                f"{source.name}: leave num_workers out, an EventStream has a thread that reads ahead"
            )
        if state is not None:
            if source.name != state.source:
                raise ValueError(
                    f"the run was trained on the stream {state.source}, not on {source.name}: resume it "
                    f"on that one, or begin a new run from this one (--init-from)"
                )
            source.seek(state.position)
        self.state = state or StreamState(source.name, source.position)
        self.histories = histories or encoder.histories
        if encoder.schema.histories and self.histories is None:
            raise ValueError(
                f"schema {encoder.schema.name!r} has histories, and the encoder has no events of users; "
                f"open one that `prepare` wrote (Encoder.open)"
            )
        self._decoder = _Decoder(encoder, self._config, self.state, dead_letters, self.histories)
        self._cuts = None if cuts is None else iter(cuts)
        self._queue: Queue[CutBatch] = Queue(self._config.queue)
        self.last_arrival = time.monotonic()  # of an event that can be trained
        self.on_arrival: Callable[[], None] = lambda: None
        self._worker = Worker("hotrows-events", self._run, self._queue.drop)

    # ---- for who trains

    def __iter__(self) -> EventStream:
        return self

    def __next__(self) -> Batch:
        return self.take().batch

    def take(self) -> CutBatch:
        """Waits for the next batch, and returns it with its state; StopIteration: the stream ended."""
        cut = self._queue.take()
        self.state, self.histories = cut.state, cut.histories
        return cut

    @property
    def num_taken(self) -> int:
        """Batches."""
        return self._queue.num_taken

    @property
    def has_arrived(self) -> bool:
        """True if `take` returns, or raises, at once."""
        return self._queue.may_take

    @property
    def has_ended(self) -> bool:
        """True if neither a batch nor an error will come."""
        return self._queue.is_over

    def wait(self, seconds: float) -> bool:
        """Waits until `has_arrived`, so long at most; returns whether it has."""
        return self._queue.wait(seconds)

    def __enter__(self) -> EventStream:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the thread, and closes the source; what waits is dropped: it was not trained."""
        self._worker.close()
        self._source.close()

    # ---- the thread

    def _run(self) -> None:
        try:
            while self._queue.wait_for_room():
                self.last_arrival = time.monotonic()  # nothing was read while there was no room
                if (cut := self._next_batch()) is None:
                    break
                self._queue.add(cut)
                self.on_arrival()
            self._queue.end()
        except BaseException as error:
            self._queue.end(error)
        self.on_arrival()

    def _next_batch(self) -> CutBatch | None:
        """Reads the events of a batch, and cuts it; None: there are none, and none will come."""
        batch = _OpenBatch(self._decoder)
        if self._cuts is None:
            self._fill(batch)
        else:
            while not batch.size and (reads := next(self._cuts, None)) is not None:
                self._refill(batch, reads)
        if not batch.size or self._queue.has_ended:
            return None
        rows = batch.pieces[0]
        if len(batch.pieces) > 1:
            rows = gathered(batch.pieces, np.arange(batch.size), Room())
        state = self._decoder.state = dataclasses.replace(
            self._decoder.state,
            position=self._source.position,
            events=self._decoder.state.events + batch.size,
        )
        first = state.events - batch.size
        encoded = batch_of(self._decoder.columns, rows, first)
        return CutBatch(encoded, state, tuple(batch.reads), self._decoder.histories)

    def _fill(self, batch: _OpenBatch) -> None:
        """Reads until the batch is full or old enough, or nothing comes any more."""
        last_event = due = time.monotonic()
        limit, position = self._config.stop_when_idle, None
        while not self._queue.has_ended and batch.size < self._batch_size:
            now = time.monotonic()
            left = due - now if batch.size else _LOOK
            if left <= 0:
                return
            events = self._source.read(self._batch_size - batch.size, min(left, _LOOK))
            if events is None:
                return
            if len(events):
                last_event, was_empty = time.monotonic(), not batch.size
                batch.add(events, self._source.position)
                due = last_event + self._config.max_wait if was_empty else due
                self.last_arrival = last_event if batch.size else self.last_arrival
            elif self._source.position != position:  # what was read has no event
                last_event, position = now, self._source.position
            elif limit is not None and now - last_event >= limit:
                return  # nothing came, nor was it there after a pause of the process

    def _refill(self, batch: _OpenBatch, reads: Sequence[dict[str, Any]]) -> None:
        """Reads the events of a batch that was cut before."""
        for position in reads:
            while not (self._source.has_reached(position) or self._queue.has_ended):
                events = self._source.read_to(position, _LOOK)
                if events is None:
                    raise ValueError(
                        f"{self._source.name} ended before {position}, up to which a batch was cut"
                    )
                if len(events):
                    batch.add(events, self._source.position)


class _OpenBatch:
    """A batch while it is filled: encoded pieces, and the position behind each read."""

    def __init__(self, decoder: _Decoder) -> None:
        self._decoder = decoder
        self.pieces: list[Rows] = []
        self.reads: list[dict[str, Any]] = []
        self.size = 0

    def add(self, events: RawEvents, position: dict[str, Any]) -> None:
        pieces = self._decoder.decode(events)
        self.pieces += pieces
        self.size += sum(map(len, pieces))
        self.reads.append({n: value for n, value in position.items() if not n.startswith("_")})


class _Decoder:
    """Encodes events, and takes out those that are malformed or late.

    state: of the stream, with the events that were decoded so far.
    """

    def __init__(
        self,
        encoder: Encoder,
        config: StreamConfig,
        state: StreamState,
        letters: DeadLetters | None,
        histories: UserHistories | None,
    ) -> None:
        self._config, self.state, self._letters = config, state, letters
        self._how = Reading(encoder.schema, encoder.threads, histories="lines")
        self._encoder, self.columns = encoder, encoder.columns_with("lines")
        self._lines = None if histories is None else LineHistories(encoder, histories, state.short)

    @property
    def histories(self) -> UserHistories | None:
        """Those behind the events that were decoded."""
        return None if self._lines is None else self._lines.histories

    def decode(self, events: RawEvents) -> list[Rows]:
        """The events that can be trained, in order."""
        pieces = list(self._decode(events, self.state.read))
        short = 0 if self._lines is None else self._lines.short.count
        self.state = dataclasses.replace(self.state, read=self.state.read + len(events), short=short)
        return pieces

    def _decode(self, events: RawEvents, read: int) -> Iterator[Rows]:
        """Decodes them together; where that fails, by halves, down to the events that are malformed."""
        try:
            raw = self.columns.read(events.cells(self._how))
            if self._lines is not None:
                self._lines.check(raw)
            rows = self._encoder.encode_rows(raw, self.columns).without(MISSING)
        except ValueError as error:
            if len(events) == 1:
                self._drop(MALFORMED, read, str(error), events)
                return
            half = len(events) // 2
            yield from self._decode(events[:half], read)
            yield from self._decode(events[half:], read + half)
            return
        late, chosen = self._late(raw.get("times")), np.arange(len(rows))
        if self._config.late == "train":
            self.state = dataclasses.replace(self.state, late=self.state.late + int(late.sum()))
        elif late.any():
            for place in np.flatnonzero(late).tolist():
                what = f"more than {self._config.lateness:g} s older than the newest event before it"
                self._drop(LATE, read + place, what, events[place : place + 1])
            chosen, rows = chosen[~late], rows.take(np.flatnonzero(~late))
        if len(rows):
            yield rows if self._lines is None else self._lines.read(rows, raw, chosen)

    def _late(self, times: np.ndarray | None) -> np.ndarray:
        """Which events are late, [events]; those without a time are not."""
        if times is None or not len(times):
            return np.zeros(0, bool)
        first = _NEVER if self.state.event_time is None else self.state.event_time
        known = times != MISSING_TIME
        newest = np.maximum.accumulate(np.concatenate([[first], np.where(known, times, _NEVER)]))
        if newest[-1] != _NEVER:
            self.state = dataclasses.replace(self.state, event_time=int(newest[-1]))
        if self._config.lateness is None:
            return np.zeros(len(times), bool)
        return known & (newest[:-1] - times > self._config.lateness) & (newest[:-1] != _NEVER)

    def _drop(self, reason: str, read: int, what: str, event: RawEvents) -> None:
        self.state = dataclasses.replace(self.state, **{reason: getattr(self.state, reason) + 1})
        if self._letters is not None:
            self._letters.write(read, event.place(0), reason, what, event.texts()[0])
