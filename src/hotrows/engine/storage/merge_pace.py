"""How fast a file store merges: in short pieces, no faster than the log that fills meanwhile demands.

Reads of training and merging want the same disk. At full speed a merge would take it for seconds; so it
works in pieces of some milliseconds, which begin between reads of rows, and pauses after each:

    the open log is full to           as far as the merge    farther      80 %      110 %
    share of the time it works        a tenth                a half       all       all, and writes wait

Reads come as planned, some batches ahead of training, so a merge that gives way to them delays nobody.
It ends before the log is full. Should it not, writes are held back: from half a log on they go on only as
the merge does, so that both would end together a tenth beyond a full log. Training then goes at the speed
of the merge, instead of standing still once logs have piled up, and memory for their rows is bounded.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Note = Callable[[str, str, float, float], None]
LEAST, MOST = 0.1, 0.5  # shares of the time in which a merge works: ahead of the log, and behind it
LATE = 0.8  # how full the open log is when a merge should have ended
WAIT = 0.5  # how full it is when writes begin to wait for a merge that is farther behind
MOST_FULL = 1.1  # how full it becomes at most, but for the write that fills it
_LONGEST, _READ = 0.5, 0.02  # seconds of a pause; seconds that a piece waits for a read to end
_LOOK = 0.02  # seconds after which a write that waits looks at how far the merge is


class MergePace:
    """Paces one merge after the other.

    fullness: of the logs that are yet to be merged, as a share of what one holds at most.
    note: called with stage, lane, begin and end of every piece, and of every write that was held back.
    """

    def __init__(self, fullness: Callable[[], float]) -> None:
        self._fullness = fullness
        self._begin = self._done = 0.0  # how full they were when the merge began; the share that is done
        self._no_read, self._at_once = threading.Event(), threading.Event()
        self._no_read.set()
        self.worked = self.held_back = 0.0  # seconds of merging, and of writes that waited for it
        self.note: Note | None = None

    def begin(self) -> None:
        """A merge begins."""
        self._begin, self._done = self._fullness(), 0.0

    @contextmanager
    def reading(self) -> Iterator[None]:
        """While rows are read for training."""
        self._no_read.clear()
        try:
            yield
        finally:
            self._no_read.set()

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """While someone waits for the end of a merge: it does not pause."""
        self._at_once.set()
        try:
            yield
        finally:
            self._at_once.clear()

    def pause(self, begin: float, done: float) -> None:
        """Waits until the next piece is due. begin: of the last one; done: share of the merge."""
        end = time.perf_counter()
        worked, self._done = end - begin, done
        self.worked += worked
        if self.note is not None:
            self.note("merge", "merge", begin, end)
        share = self.share(done)
        if share < 1:
            self._at_once.wait(min(worked * (1 / share - 1), _LONGEST))
            if not self._at_once.is_set():
                self._no_read.wait(_READ)

    def share(self, done: float) -> float:
        """The share of the time in which a merge works that is done so far."""
        fullness = self._fullness()
        if self._at_once.is_set() or fullness >= LATE or self._holds_back():
            return 1.0
        due = (fullness - self._begin) / (LATE - self._begin) if self._begin < LATE else 1.0
        return MOST if done < due else LEAST

    def hold_back(self, ended: threading.Event) -> None:
        """Lets a write wait until the merge is as far as it has to be by then, or has ended."""
        if ended.is_set() or not self._holds_back():
            return
        begin = time.perf_counter()
        while self._holds_back() and not ended.wait(_LOOK):
            pass
        end = time.perf_counter()
        self.held_back += end - begin
        if self.note is not None:
            self.note("held back", "write", begin, end)

    def _holds_back(self) -> bool:
        """True if the merge is farther behind than writes may be ahead of it."""
        fullness, first = self._fullness(), max(self._begin, WAIT)
        if fullness >= MOST_FULL:
            return True
        return fullness > first and self._done < (fullness - first) / (MOST_FULL - first)
