"""The batches of a run on a stream: of one rank, or read by rank 0 and dealt to all.

    main thread        turn: what rank 0 has cut | step, idle or end | turn ..       all ranks alike
    planning thread            rank 0: a share to each | plan | ..                   behind such a turn

Rank 0 reads, decodes, joins and cuts as one rank does. Nobody waits for a batch that may never come:
ranks plan, train, idle, stop and end by what it said at the last turn.
"""

from __future__ import annotations

import dataclasses
import pickle
import sys
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hotrows.batch import Batch, samples
from hotrows.data.stored.order import Share
from hotrows.data.streams import CutBatch, EventStream
from hotrows.engine.distributed.all_or_none import of_rank_0
from hotrows.engine.distributed.comm import Ranks
from hotrows.engine.distributed.first_rank import from_first
from hotrows.train.run.data import RunBatches
from hotrows.train.run.state import RunState


class StreamBatches(RunBatches):
    """The batches of `events`, from the step `state.step` on, up to `steps` in all (None: no bound).

    trained: the last batch that was trained, as it was cut; held: the impressions behind it whose labels
    are to come. is_due: whether a checkpoint is, by the clock of the rank that reads.
    """

    known_steps, epoch_steps = 0, sys.maxsize

    def __init__(
        self, events: EventStream | None, state: RunState, steps: int | None, is_due: Callable[[], bool]
    ) -> None:
        self._source, self._limit, self._is_due = events, steps or sys.maxsize, is_due
        self.total_steps = self._limit  # until `wait` has seen the end
        self._first_step = state.step
        self._taken: deque[CutBatch] = deque()  # and not trained
        self.trained: CutBatch | None = None
        self.histories, self.held = (events.histories, events.held) if events else (None, None)
        self.arrived = self._has_arrived

    @property
    def _events(self) -> EventStream:
        assert self._source is not None, "another rank reads"
        return self._source

    def _has_arrived(self) -> bool:
        return self._events.has_arrived or self._next_step >= self._limit

    @property
    def _next_step(self) -> int:
        """The step of the next batch that is taken."""
        return self._first_step + self._events.num_taken

    def on_arrival(self, wake: Callable[[], None]) -> None:
        self._events.on_arrival = wake
        wake()  # a batch may have come before

    def wait(self, seconds: float, requests: Any) -> bool:
        has_come = bool(self._taken) or self._events.wait(seconds)
        if self._is_due():
            requests.request_checkpoint()
        if not has_come:
            return False
        self.total_steps = min(self._limit, self._next_step) if self._events.has_ended else self._limit
        return True

    def after(self, state: RunState) -> Iterator[tuple[int, Batch]]:
        assert state.step == self._next_step, "a stream is read once"
        while self._next_step < self._limit:
            try:
                cut = self._events.take()
            except StopIteration:
                return
            self._taken.append(cut)
            yield self._next_step - 1, cut.batch

    def advance(self, state: RunState) -> RunState:
        self.trained = self._taken.popleft()
        self.histories, self.held = self.trained.histories, self.trained.held
        return dataclasses.replace(state, step=state.step + 1, stream=self.trained.state)


class DealtStream(StreamBatches):
    """This rank's share of the batches of a stream, which rank 0 reads; events: None on other ranks."""

    def __init__(
        self,
        events: EventStream | None,
        state: RunState,
        steps: int | None,
        is_due: Callable[[], bool],
        ranks: Ranks,
    ) -> None:
        super().__init__(events, state, steps, is_due)
        self._turns, self._shares = ranks, ranks.channel("events")
        self._num_cut = self._num_taken = self._num_trained = 0
        self._has_ended = False
        self._wake: Callable[[], None] = lambda: None

    def _has_arrived(self) -> bool:
        return self._num_taken < self._num_cut or self._is_last

    @property
    def _next_step(self) -> int:
        return self._first_step + self._num_taken

    @property
    def _is_last(self) -> bool:
        """True if no batch comes after those taken."""
        is_over = self._has_ended and self._num_taken >= self._num_cut
        return is_over or self._next_step >= self._limit

    def on_arrival(self, wake: Callable[[], None]) -> None:
        self._wake = wake

    def wait(self, seconds: float, requests: Any) -> bool:
        """Collective: a turn of all ranks."""
        state, events = [0, 0, 0, 0], self._source
        if events is not None:
            if self._num_trained == self._num_cut:
                events.wait(seconds)
            has_arrived, has_ended, num_cut = events.has_arrived, events.has_ended, events.num_cut
            has_failed = has_arrived and not has_ended and num_cut == self._num_trained
            state = [num_cut, has_ended, has_failed, self._is_due()]
        of_ranks = self._turns.all_gather(torch.tensor([*state, int(requests.signals())])).wait()
        self._num_cut, has_ended, has_failed, is_due, _ = of_ranks[0].tolist()
        self._has_ended = bool(has_ended)
        self._wake()
        if has_failed:
            of_rank_0(self._turns, lambda: events and events.take())
        if is_due:
            requests.request_checkpoint()
        for signals in of_ranks[:, 4].tolist():
            requests.hear(signals)
        last = self._first_step + self._num_cut if has_ended else self._limit
        self.total_steps = min(self._limit, last)
        return self._has_ended or self._num_trained < self._num_cut

    def after(self, state: RunState) -> Iterator[tuple[int, Batch]]:
        assert state.step == self._next_step, "a stream is read once"
        while not self._is_last:
            cut = self._share_of_next()
            self._num_taken += 1
            self._taken.append(cut)
            yield self._next_step - 1, cut.batch

    def _share_of_next(self) -> CutBatch:
        """Collective: this rank's share of the next batch."""
        messages, cut = [b""], None
        if self._source is not None:
            cut = self._source.take()
            bounds = shares_of(cut.size, self._shares.num_ranks)
            shares = [dataclasses.replace(cut, batch=samples(cut.batch, *of_rank)) for of_rank in bounds]
            cut, messages = shares[0], [b"", *map(_packed, shares[1:])]
        message = from_first(self._shares, messages if cut else ())
        return cut or _unpacked(message)

    def advance(self, state: RunState) -> RunState:
        self._num_trained += 1
        return super().advance(state)


def shares_of(size: int, num_ranks: int) -> list[tuple[int, int]]:
    """The samples of each rank in a batch, first and end, as `Loader` deals those of prepared data."""
    return [Share(size, size, rank, num_ranks).of_batch(0) for rank in range(num_ranks)]


def _packed(cut: CutBatch) -> bytes:
    """A share for another rank, without what rank 0 alone keeps."""
    values = vars(cut.batch).items()
    arrays = {name: v.numpy() if isinstance(v, Tensor) else v for name, v in values}
    return pickle.dumps((arrays, cut.size, cut.state), protocol=5)


def _unpacked(message: bytes) -> CutBatch:
    arrays, size, state = pickle.loads(message)
    values: dict[str, Any] = {
        n: torch.from_numpy(v) if isinstance(v, np.ndarray) else v for n, v in arrays.items()
    }
    return CutBatch(Batch(**values), size, state)
