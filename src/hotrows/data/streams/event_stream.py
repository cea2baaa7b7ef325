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
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from hotrows.batch import Batch
from hotrows.data import Encoder
from hotrows.data.columns.of_schema import batch_of
from hotrows.data.rows import Room, Rows, gathered
from hotrows.data.stored.user_histories import UserHistories
from hotrows.data.streams.decoder import Decoder, JoinDecoder
from hotrows.data.streams.events import RawEvents
from hotrows.data.streams.joined_source import JoinedEvents, JoinedSource
from hotrows.data.streams.label_join import HeldImpressions
from hotrows.data.streams.line_log import DeadLetters
from hotrows.data.streams.settings import StreamConfig
from hotrows.data.streams.source import EventSource
from hotrows.data.streams.state import StreamState
from hotrows.engine.pipeline.prefetch import Queue
from hotrows.runtime.background import Worker

_LOOK = 0.05  # seconds after which the thread looks whether it is to end


@dataclass(frozen=True)
class CutBatch:
    """A batch, or a rank's share of one, its size on all ranks, the state of the stream behind it, the
    position behind each read that made it, and the histories of users behind its events. held: the
    impressions whose labels are to come."""

    batch: Batch
    size: int
    state: StreamState
    reads: tuple[dict[str, Any], ...] = ()
    histories: UserHistories | None = None
    held: HeldImpressions | None = None


class EventStream:
    """A stream of batches of at most `batch_size` events, in the order of the source.

    state: of an earlier process, to go on from.
    dead_letters: where malformed and late events go; None: they are counted alone.
    cuts: the positions of the reads that each batch is made of, as an earlier run has logged them: the
    same batches are made anew.
    histories: of users behind `state` (default: those of the encoder's data). held: impressions behind
    `state` whose labels are to come, of a source that `open_joined` has opened.

    >>> from hotrows.data.streams import StreamConfig, open_source
    >>> stop = StreamConfig(stop_when_idle=0.1)
    >>> source = open_source(f"folder:{folder}", data.schema)
    >>> with EventStream(source, hotrows.data.Encoder.open(data.path), 64, stop) as events:
    ...     len(list(events))
    0
    """

    def __init__(
        self,
        source: EventSource | JoinedSource,
        encoder: Encoder,
        batch_size: int,
        config: StreamConfig | None = None,
        state: StreamState | None = None,
        dead_letters: DeadLetters | None = None,
        cuts: Iterable[Sequence[dict[str, Any]]] | None = None,
        histories: UserHistories | None = None,
        held: HeldImpressions | None = None,
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
        if isinstance(source, JoinedSource):
            self._decoder: Decoder = JoinDecoder(
                source,
                encoder,
                self._config,
                self.state,
                dead_letters,
                self.histories,
                held or HeldImpressions(),
            )
        else:
            self._decoder = Decoder(encoder, self._config, self.state, dead_letters, self.histories)
        self.held = self._decoder.held
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
        self.state, self.histories, self.held = cut.state, cut.histories, cut.held
        return cut

    @property
    def num_cut(self) -> int:
        """Batches, those that were taken included."""
        return self._queue.num_added

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
        """True if all batches were taken, and the stream ended without an error."""
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
        batch = _OpenBatch(self._decoder, self._batch_size)
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
        decoder, reads = self._decoder, tuple(batch.reads)
        return CutBatch(encoded, batch.size, state, reads, decoder.histories, decoder.held)

    def _fill(self, batch: _OpenBatch) -> None:
        """Reads until the batch is full or old enough, or nothing comes any more."""
        batch.take(self._source.position)  # what was read with the batch before
        last_event = time.monotonic()
        due = last_event + (self._config.max_wait if batch.size else 0)
        limit, position = self._config.stop_when_idle, None
        while not self._queue.has_ended and batch.room > 0:
            now = time.monotonic()
            left = due - now if batch.size else _LOOK
            if left <= 0:
                return
            most = self._batch_size if self._decoder.holds else batch.room
            events, was_empty = self._source.read(most, min(left, _LOOK)), not batch.size
            if events is None:
                return
            if len(events) or self._decoder.holds:
                batch.add(events, self._source.position)
            if len(events):
                last_event = time.monotonic()
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
                self._decoder.add(events)
            batch.replay(position)


class _OpenBatch:
    """A batch of `size` samples at most while it is filled: encoded pieces, and the position behind each
    read."""

    def __init__(self, decoder: Decoder, size: int) -> None:
        self._decoder, self._limit = decoder, size
        self.pieces: list[Rows] = []
        self.reads: list[dict[str, Any]] = []
        self.size = 0

    @property
    def room(self) -> int:
        return self._limit - self.size

    def add(self, events: RawEvents | JoinedEvents, position: dict[str, Any]) -> None:
        self._decoder.add(events)
        if not self.take(position) and len(events):
            self._note(position)

    def take(self, position: dict[str, Any]) -> bool:
        """Takes the samples that are ready, as many as there is room for; returns whether there are
        any."""
        pieces = self._decoder.take(self.room)
        if has_any := self._append(pieces):
            self._note(position)
        return has_any

    def replay(self, position: dict[str, Any]) -> None:
        """Takes the samples up to a position."""
        self._append(self._decoder.replay(position))
        self.reads.append(position)

    def _append(self, pieces: list[Rows]) -> bool:
        self.pieces += pieces
        num = sum(map(len, pieces))
        self.size += num
        return num > 0

    def _note(self, position: dict[str, Any]) -> None:
        self.reads.append({**_public(position), **self._decoder.note()})


def _public(position: dict[str, Any]) -> dict[str, Any]:
    """A position without what is for `seek` alone."""
    public = {name: value for name, value in position.items() if not name.startswith("_")}
    return {n: _public(value) if isinstance(value, dict) else value for n, value in public.items()}
