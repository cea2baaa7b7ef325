"""StreamBatches: the batches of a stream, each with the number of its step, as `TrainingBatches` has
them."""

from __future__ import annotations

import dataclasses
import sys
from collections import deque
from collections.abc import Callable, Iterator

from hotrows.batch import Batch
from hotrows.streams import CutBatch, EventStream
from hotrows.train.run_state import RunState


class StreamBatches:
    """The batches of `events`, from the step `state.step` on, up to `steps` in all (None: no bound).

    trained: the last batch that was trained, as it was cut.
    """

    is_stream = True

    def __init__(self, events: EventStream, state: RunState, steps: int | None) -> None:
        self.events, self._limit = events, steps or sys.maxsize
        self._first_step, self._end = state.step, sys.maxsize
        self._taken: deque[CutBatch] = deque()  # and not trained
        self.trained: CutBatch | None = None

    @property
    def total_steps(self) -> int:
        """The steps of the run; unknown, and more than any run has, until `wait` has seen the end."""
        return min(self._limit, self._end)

    @property
    def _next_step(self) -> int:
        """The step of the next batch that is taken."""
        return self._first_step + self.events.num_taken

    @property
    def epoch_steps(self) -> int:
        return sys.maxsize

    @property
    def arrived(self) -> Callable[[], bool]:
        """True if the next batch has arrived, or none will; see `hotrows.engine.stages`."""
        return lambda: self.events.has_arrived or self._next_step >= self._limit

    def on_arrival(self, wake: Callable[[], None]) -> None:
        """wake: called, on a thread of the stream, when a batch has arrived; and now, as one may have
        come before."""
        self.events.on_arrival = wake
        wake()

    def wait(self, seconds: float) -> bool:
        """Waits until there is a batch to train, or the stream has ended, so long at most."""
        if not self._taken and not self.events.wait(seconds):
            return False
        self._end = self._next_step if self.events.has_ended else sys.maxsize
        return True

    def after(self, state: RunState) -> Iterator[tuple[int, Batch]]:
        """Yields the batches still to train, each with its step."""
        assert state.step == self._next_step, "a stream is read once"
        while self._next_step < self._limit:
            try:
                cut = self.events.take()
            except StopIteration:
                return
            self._taken.append(cut)
            yield self._next_step - 1, cut.batch

    def advance(self, state: RunState) -> RunState:
        """The state after one more step."""
        self.trained = self._taken.popleft()
        return dataclasses.replace(state, step=state.step + 1, stream=self.trained.state)
