"""RunLock: the lock of a run's folder, taken by everything that writes there."""

from __future__ import annotations

import os
import platform
import time
from contextlib import suppress
from functools import partial
from pathlib import Path

from hotrows.engine.distributed import job
from hotrows.engine.distributed.all_or_none import of_rank_0, together
from hotrows.engine.distributed.comm import Ranks
from hotrows.runtime.atomic_files import make_folder
from hotrows.runtime.locks import NAME, Held, Lock, LockLost, gone
from hotrows.runtime.remote.copies import named, origin_of
from hotrows.runtime.remote.files import open_files

_PATIENCE = 2.0  # seconds for a process to end that has just been stopped
_LOOKS = 50  # for a file of rank 0, over 5 s, until a rank calls the folder another one
_PATIENCE_OF_RESTART = 30.0  # torchrun starts ranks anew when the others have ended, perhaps elsewhere


class RunLock:
    """Keeps other processes from writing the folder `run`; rank 0 holds it for all ranks.

    Collective where it is taken, which fails on all ranks or on none; taken when it is made. All ranks
    then read the file of the lock: the folder is one that they share. Of a run at a URL each rank locks
    its own copy, and the file that all read is at the URL.
    """

    def __init__(self, run: Path, ranks: Ranks) -> None:
        self._run, self._ranks = run, ranks
        self._lock: Lock | None = None
        self._is_taken = False
        self._is_new = not run.exists()
        self.url = origin_of(run)
        self.take()

    def take(self) -> None:
        """Takes it anew after a release; while it is taken, checks it."""
        if self._is_taken:
            self.check()
            return
        try:
            if self.url is None:
                text = of_rank_0(self._ranks, self._take)
            else:
                together(self._ranks, self._take)
                text = of_rank_0(self._ranks, self._take_remote)
            together(self._ranks, partial(self._check_shared, text))
        except BaseException:
            self.release()
            raise
        self._is_taken = True

    def check(self) -> None:
        """Raises `LockLost` where the folder is gone, or another process has it; each rank for itself."""
        if self._lock is not None:
            self._lock.check()
        elif not self._run.is_dir():
            raise gone(self._run)

    def check_remote(self) -> None:
        """Raises `LockLost` on rank 0 where another job has taken the run at its URL."""
        if self.url is not None and self._lock is not None:
            text = open_files(self.url).read(NAME)
            if text is not None and text != self._lock.text:
                holder = text.decode(errors="replace").strip()
                raise LockLost(f"{self.url} was taken over by {holder}: this job ends, that one goes on")

    def release(self) -> None:
        """Lets other processes write; each rank for itself."""
        self._is_taken = False
        if self._lock is None:
            return
        self._lock.release()
        if self._is_new:
            with suppress(OSError):  # it is not empty: the run has begun
                self._run.rmdir()

    def _check_shared(self, text: bytes) -> None:
        for _ in range(_LOOKS):
            if self.url is not None:
                if open_files(self.url).read(NAME) == text:
                    return
                time.sleep(0.1)
                continue
            with suppress(OSError):
                os.listdir(self._run.parent)  # NFS asks its server again for what it noted as absent
                if (self._run / NAME).read_bytes() == text:
                    return
            time.sleep(0.1)
        raise ValueError(
            f"the run folder {named(self._run)} is not shared: {platform.node()} does not see there what "
            f"rank 0 has written; name a folder that is the same on all machines, such as one on NFS, or "
            f"a URL, --run-dir s3://bucket/run"
        )

    def _take(self) -> bytes:
        patience = _PATIENCE_OF_RESTART if job.restarted() else _PATIENCE
        make_folder(self._run)
        try:
            self._lock = Lock(self._run, patience)
        except Held as held:
            raise ValueError(
                f"run {self._run} is being written by {held.holder}; wait until that ends, or "
                f"stop it, or name another folder"
            ) from None
        return self._lock.text

    def _take_remote(self) -> bytes:
        assert self.url is not None and self._lock is not None, "the copy is locked first"
        open_files(self.url).write(NAME, self._lock.text)
        return self._lock.text
