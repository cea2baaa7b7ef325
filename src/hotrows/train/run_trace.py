"""The timeline of a run: when each stage of its last batches was at work."""

from __future__ import annotations

from collections import deque
from pathlib import Path

from hotrows.pipeline.trace import Event, trace_text
from hotrows.runtime.atomic_files import write_text
from hotrows.train import pictures

_KEPT_EVENTS = 40_000


class RunTrace:
    """Events of the last batches.

    path: a file for them, which Perfetto opens; None: there is no timeline. batch: the number of the
    batch in training.
    """

    def __init__(self, path: Path | str | None) -> None:
        self._path = None if path is None else Path(path)
        self.events: deque[Event] = deque(maxlen=_KEPT_EVENTS)
        self.batch = 0

    @property
    def is_on(self) -> bool:
        return self._path is not None

    def note(self, stage: str, lane: str, begin: float, end: float) -> None:
        """Adds an event of the batch in training; begin, end: in seconds of one clock."""
        self.events.append(Event(stage, lane, self.batch, begin, end))

    def write(self) -> None:
        """Writes the file, and a picture beside it."""
        if self._path is not None:
            events = list(self.events)
            write_text(self._path, trace_text(events))
            pictures.draw_timeline(events, self._path.with_suffix(".png"))
