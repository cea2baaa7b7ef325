"""Locks of folders: one process at a time writes a folder, and a file in it says which one.

    lock = Lock(folder)      # FOLDER/lock; Held: another process, or this one, has it
    lock.check()             # before something is published: the folder is there, and locked by this
    lock.release()

The operating system holds the lock (flock) and ends it with the process, however that ends, so no lock is
ever stale. Other hosts respect it where the file system passes locks on. Where it does not, a second
process gets in, and writes its name over that of the first, whose next `check` notices.
"""

from __future__ import annotations

import datetime
import errno
import logging
import os
import platform
import shlex
import sys
import time
import weakref
from contextlib import suppress
from pathlib import Path

try:
    import fcntl
except ImportError:  # not a POSIX system: two processes are not kept apart
    fcntl = None  # type: ignore[assignment]

NAME = "lock"
_POLL, _TRIES = 0.05, 3  # seconds between tries; several, since a holder deletes the file as it ends
_GONE = (errno.ENOENT, errno.ENOTDIR, errno.ESTALE)

log = logging.getLogger("hotrows")


class Held(ValueError):
    """A folder is locked. holder: `process 17 on node3, since ...`, as far as it is known."""

    def __init__(self, folder: Path, holder: str) -> None:
        super().__init__(f"{folder} is locked by {holder}; wait for it, or stop it")
        self.holder = holder


class LockLost(ValueError):
    """A folder was deleted or moved while it was locked, or another process locked it nevertheless."""


class Lock:
    """A lock of a folder, which is made if there is none; held until `release`, or the process ends.

    text: what the file says, unlike that of any other lock. patience: seconds to wait while another
    process has it. A child made by fork does not hold it.
    """

    def __init__(self, folder: Path, patience: float = 0.0) -> None:
        self.folder, self.path = folder, folder / NAME
        self.text, self._fd = _this_process().encode(errors="backslashreplace"), -1
        begun, tries = time.monotonic(), 1
        while not self._take():
            if tries >= _TRIES and time.monotonic() >= begun + patience:
                raise Held(self.folder, _holder(self.path))
            time.sleep(_POLL)
            tries += 1
        _held.add(self)
        try:
            os.ftruncate(self._fd, 0)
            os.write(self._fd, self.text)
        except OSError as error:  # of a full disk
            error.filename = str(self.path)
            raise
        if fcntl is None:  # Windows renames no folder with an open file
            os.close(self._fd)
            self._fd = os.open(os.devnull, os.O_RDONLY)

    @property
    def is_held(self) -> bool:
        """True if this process has not released it; `check` says whether others still respect it."""
        return self._fd >= 0

    def check(self) -> None:
        """Raises `LockLost` where it no longer protects the folder."""
        try:
            text = self.path.read_bytes()
        except OSError as error:
            if error.errno in _GONE:
                raise gone(self.folder) from None
            return  # it cannot be read; what is written next says why
        if text != self.text:
            raise LockLost(
                f"{self.folder} was taken over by {_holder(self.path)}: its file system keeps no process "
                f"out; end one of the two, and resume the other one"
            )

    def release(self) -> None:
        """Lets other processes in, and deletes the file of the lock; does nothing the second time."""
        if not self.is_held:
            return
        with suppress(OSError):
            if self.path.read_bytes() == self.text:
                self.path.unlink()
        self._close()

    def _close(self) -> None:
        fd, self._fd = self._fd, -1
        _held.discard(self)
        os.close(fd)

    def _take(self) -> bool:
        """Opens and locks the file; False: another process holds it, or has just deleted it."""
        self.folder.mkdir(parents=True, exist_ok=True)
        fd = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o666)
        with suppress(FileNotFoundError):
            if _locked(fd, self.folder) and os.path.samestat(os.fstat(fd), os.stat(self.path)):
                self._fd = fd
                return True
        os.close(fd)
        return False

    def __del__(self) -> None:
        with suppress(Exception):
            self.release()


def holder_of(folder: Path) -> str | None:
    """Says which process writes a folder; None: none does, or the file system has no locks."""
    if fcntl is None:
        return None
    try:
        with open(folder / NAME, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _holder(folder / NAME)
    except OSError:
        pass
    return None


def gone(folder: Path) -> LockLost:
    """The error of a folder that is no longer there."""
    return LockLost(
        f"{folder} was deleted or moved while it was written; bring it back and resume, or begin anew"
    )


def _locked(fd: int, folder: Path) -> bool:
    if fcntl is None:
        return True
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:  # ENOLCK, EIO and others: no other process is the reason, no waiting helps
        log.warning(
            f"the file system of {folder} has no locks ({error.strerror}): see that one process alone "
            f"writes there"
        )
    return True


def _this_process() -> str:
    """Who holds a lock, for those that wait for it, and unlike any other holder."""
    since = datetime.datetime.now().astimezone().isoformat(sep=" ", timespec="milliseconds")
    words = shlex.join([Path(sys.argv[0] or "python").name, *sys.argv[1:]]).split()
    command = " ".join(words)[:300]
    return f"process {os.getpid()} on {platform.node()}, since {since} ({command})\n"


def _holder(path: Path) -> str:
    try:
        text = path.read_bytes().decode(errors="replace").strip()
    except OSError:
        text = ""
    return text or "another process"


_held: weakref.WeakSet[Lock] = weakref.WeakSet()


def _forget_in_child() -> None:
    for lock in list(_held):
        lock._close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_in_child)
