"""The timeline of a run: when each stage was at work, of its last batches and around its slowest step."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path

from hotrows.engine.pipeline.trace import Event, trace_text
from hotrows.runtime.atomic_files import absolute, is_special, write_text
from hotrows.train.telling import pictures

_KEPT_EVENTS = 40_000
_FIRST = 20  # steps that are not compared: they fill the pipeline
SLOWEST = "slowest step"


class RunTrace:
    """Events of the last batches, and those of the slowest step so far.

    path: a file for them, which Perfetto opens; None: there is no timeline. batch: the number of the
    batch in training.
    """

    def __init__(self, path: Path | str | None) -> None:
        self._path = None if path is None else absolute(path)
        self.events: deque[Event] = deque(maxlen=_KEPT_EVENTS)
        self.batch = self._num_steps = 0
        self._slowest: Event | None = None
        self._around: list[Event] = []  # it
        self._is_new = False  # the slowest step: stages that were at work when it ended will be noted

    @property
    def is_on(self) -> bool:
        return self._path is not None

    def note(self, stage: str, lane: str, begin: float, end: float) -> None:
        """Adds an event of the batch in training; begin, end: in seconds of one clock."""
        self.events.append(Event(stage, lane, self.batch, begin, end))

    def end_step(self, begin: float, runner_events: Sequence[Event]) -> None:
        """Says that a step has ended that began at `begin`; runner_events: of the stages so far."""
        if not self.is_on:
            return
        end, self._num_steps = time.perf_counter(), self._num_steps + 1
        self._keep_slowest(runner_events)
        is_slower = self._slowest is None or end - begin > self._slowest.end - self._slowest.begin
        if self._num_steps > _FIRST and is_slower:
            self._slowest, self._is_new = Event(SLOWEST, SLOWEST, self.batch, begin, end), True

    def _keep_slowest(self, runner_events: Sequence[Event]) -> None:
        """Keeps what was at work during the slowest step, once that is noted."""
        step = self._slowest
        if step is not None and self._is_new:
            events = [*list(runner_events), *list(self.events)]
            self._around = [step, *(e for e in events if e.end > step.begin and e.begin < step.end)]
            self._is_new = False

    def write(self) -> None:
        """Writes the file, and a picture next to it."""
        if self._path is not None:
            last = list(self.events)
            self._keep_slowest(())
            known = set(last)
            events = [*(event for event in self._around if event not in known), *last]
            write_text(self._path, trace_text(events))
            if not is_special(self._path):
                pictures.draw_timeline(last, self._path.with_suffix(".svg"))
