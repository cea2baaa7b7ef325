"""Uploads: sends the checkpoints of a run to its URL in the background, one after the other.

    training     .. | save 1 | ............ | save 2 | ....... | save 3 | waits ..
    this thread              | send 1 | commit |      | send 2            | commit |

Every rank sends the files that it wrote. Once all have, rank 0 writes the manifest, and then the
pointer, which makes it the run's last checkpoint: whoever reads the URL at any moment finds a complete
one. Then it deletes the checkpoints that the pointer does not name and that are no base. Other files of
the run (metrics, settings, pictures) go along if they have changed.

Nobody is kept from starting a second job on a URL, as a machine that is gone cannot say so. The later one
wins: it writes its name into the file `lock`, and the earlier one ends before its next commit.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from hotrows.engine.checkpoint.fetch import FOLDER, MANIFEST
from hotrows.engine.checkpoint.pointer import POINTER, needed_by, pointed
from hotrows.engine.checkpoint.run_lock import RunLock
from hotrows.engine.distributed.all_or_none import of_rank_0, together
from hotrows.engine.distributed.comm import Ranks
from hotrows.runtime.atomic_files import files_below
from hotrows.runtime.background import Worker
from hotrows.runtime.locks import NAME as LOCK
from hotrows.runtime.remote.copies import as_fetched, put_all, time_and_size
from hotrows.runtime.remote.files import open_files

_ELSEWHERE = (f"{FOLDER}/", "published/")  # sent with a checkpoint, or to a URL of its own
_BEHIND = 2  # checkpoints that wait or are sent; a further one waits for the first of these
_USUAL_RATE = 20e6  # bytes that are sent in a second, until some were
_LOOK = 0.5  # seconds between two looks at whether others wait
_MOMENT = 2.0  # seconds
_SMALL = 16 << 20  # bytes of a file that is read at once: it may grow meanwhile


@dataclass(frozen=True)
class _Checkpoint:
    """A checkpoint to be sent: its name, the pointer that names it, and all checkpoints needed then."""

    name: str
    pointer: bytes
    needed: frozenset[str]


class Uploads:
    """The checkpoints of `run`, a rank's copy of a run at `url`, on their way there.

    safe: the name of the last checkpoint that is there; "": none. is_stopping: whether this rank is to
    stop, and has no time for storage that does not answer.
    """

    def __init__(self, run: Path, url: str, ranks: Ranks, lock: RunLock) -> None:
        self._run, self._files, self._lock = run, open_files(url), lock
        self._ranks, self._waiting = ranks.channel("uploads"), ranks.channel("behind")
        self.is_stopping: Callable[[], bool] = lambda: False
        self._queue: deque[_Checkpoint] = deque()  # the first one is being sent
        self._changed = threading.Condition()
        self._worker: Worker[None] | None = None
        self._error: BaseException | None = None
        self._sent = as_fetched(run)  # time and size of other files, as the URL has them
        pointer = pointed(run)
        self.safe = pointer.last if pointer else ""
        self._seconds, self._rate = 0.0, _USUAL_RATE  # of the last one
        self._files.stopped.clear()

    @property
    def names(self) -> set[str]:
        """The checkpoints whose files are needed here until they are sent."""
        with self._changed:
            return {checkpoint.name for checkpoint in self._queue}

    def add(self, name: str) -> None:
        """Collective: sends a checkpoint, to which the run has just been pointed. Waits while two are on
        their way, unless a rank is to stop; raises the error of an earlier one."""
        pointer = pointed(self._run)
        assert pointer is not None, "the run was pointed to the checkpoint"
        content, needed = (self._run / POINTER).read_bytes(), needed_by(self._run, pointer)
        while True:
            with self._changed:
                is_full = len(self._queue) >= _BEHIND
                ends = self._error is not None or self.is_stopping()
            of_ranks = self._waiting.gather_objects((is_full, ends))
            if not any(full for full, _ in of_ranks) or any(ends for _, ends in of_ranks):
                break
            with self._changed:
                self._changed.wait_for(lambda: len(self._queue) < _BEHIND or self._error, _LOOK)
        with self._changed:
            self._raise_error()
            self._queue.append(_Checkpoint(name, content, frozenset(needed)))
            if self._worker is None:
                self._worker = Worker("hotrows uploads", self._send_all, self.stop, patience=_MOMENT)
            self._changed.notify_all()

    def seconds_for(self, num_bytes: int) -> float:
        """The time to send this rank's part of a checkpoint after those on their way, as fast as the last
        one."""
        return num_bytes / self._rate + self._seconds * len(self._queue)

    def finish(self, end: float | None = None) -> bool:
        """Waits until all is sent, until this time of `time.monotonic`; then sends what else has changed.
        Returns whether all was sent; raises the error of what could not be."""
        seconds = None if end is None else max(end - time.monotonic(), 0.0)
        with self._changed:
            is_sent = self._changed.wait_for(lambda: not self._queue or self._error, seconds)
            self._raise_error()
        if is_sent:
            self._send_others()
        return bool(is_sent)

    def stop(self) -> None:
        """Ends after what is being sent; a call that fails is not repeated."""
        self._files.stopped.set()
        with self._changed:
            self._error = self._error or OSError("the process ends")
            self._changed.notify_all()

    def close(self) -> None:
        """Stops, and waits a moment for what is being sent; `add` begins again."""
        self.stop()
        if self._worker is None or self._worker.wait(_MOMENT):
            self._worker = self._error = None
            self._queue.clear()
            self._files.stopped.clear()

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error

    def _send_all(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queue or self._error)
                if self._error:
                    return
                first = self._queue[0]
            try:
                begin = time.monotonic()
                together(self._ranks, partial(self._send, first.name))
                of_rank_0(self._ranks, partial(self._commit, first))
                self._seconds = time.monotonic() - begin
            except BaseException as error:
                with self._changed:
                    self._error = error
                    self._changed.notify_all()
                return
            self.safe = first.name
            with self._changed:
                self._queue.popleft()
                self._changed.notify_all()

    def _send(self, name: str) -> None:
        """Sends the files of a checkpoint that this rank wrote, and what else has changed."""
        folder = self._run / FOLDER / name
        paths = [path for path in folder.rglob("*") if path.is_file() and path != folder / MANIFEST]
        begin = time.monotonic()
        put_all(self._files, self._run, [path.relative_to(self._run).as_posix() for path in paths])
        num_bytes = sum(path.stat().st_size for path in paths)
        self._rate = num_bytes / max(time.monotonic() - begin, 1e-3)
        self._send_others()

    def _send_others(self) -> None:
        """Sends files of the run in no checkpoint, if they have changed; of other ranks their logs."""
        kept = (LOCK, POINTER)
        paths = [path for path, _ in files_below(self._run) if path.name not in kept]
        by_name = {path.relative_to(self._run).as_posix(): path for path in paths}
        is_ours = self._ranks.rank == 0
        for name in sorted(by_name, key=lambda name: (name == "choices.json", name)):
            if name.startswith(_ELSEWHERE) or not (is_ours or name.startswith("ranks/")):
                continue
            with suppress(FileNotFoundError):  # it was replaced, and comes the next time
                now = time_and_size(by_name[name])
                if self._sent.get(name) == now or name.endswith(".part"):
                    continue
                if now[1] < _SMALL:
                    self._files.write(name, by_name[name].read_bytes())
                else:
                    self._files.put(name, by_name[name])
                self._sent[name] = now

    def _commit(self, last: _Checkpoint) -> None:
        """Makes a checkpoint the last one of the URL; deletes those that it no longer needs."""
        self._lock.check_remote()
        manifest = f"{FOLDER}/{last.name}/{MANIFEST}"
        self._files.write(manifest, (self._run / manifest).read_bytes())
        self._files.write(POINTER, last.pointer)
        names = [file for file in self._files.names() if file.startswith(f"{FOLDER}/")]
        gone = [file for file in names if file.split("/")[1] not in last.needed]
        for file in sorted(gone, key=lambda file: not file.endswith(MANIFEST)):
            self._files.remove(file)
