"""Files of records: written completely or with an error that says what to do, read, and synced."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

BLOCK = 4096
CUT_OFF = -100000  # the failure of a read beyond the end of a file
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Disk:
    """The system calls that read and change files; tests put faults in their place."""

    if hasattr(os, "pread"):  # not on Windows, where there are no stores in files
        pread = staticmethod(os.pread)
        pwrite = staticmethod(os.pwrite)
    truncate = staticmethod(os.ftruncate)
    sync = staticmethod(os.fsync)
    replace = staticmethod(os.replace)
    unlink = staticmethod(os.unlink)


class RecordFile:
    """An open file of records of `stride` bytes. align: of direct I/O; 1 where reads are plain."""

    def __init__(self, path: Path, stride: int, align: int = 1, flags: int = os.O_RDWR) -> None:
        self.path, self.stride, self.align, self.fd = path, stride, align, -1
        direct = getattr(os, "O_DIRECT", 0) if align > 1 else 0
        try:
            self.fd = os.open(path, flags | direct | os.O_CLOEXEC, 0o666)
        except FileNotFoundError:
            raise ValueError(
                f"{path} is missing, and the store needs it; bring back the whole folder"
            ) from None

    def write(self, buffer: Any, offset: int) -> None:
        """Writes all of the buffer, or raises and says how much room is missing."""
        left = memoryview(buffer).cast("B")
        with explained(self.path, len(left)):
            while left:
                done = Disk.pwrite(self.fd, left, offset)
                if done < len(left) and self.align > 1:  # direct I/O continues at a block's begin
                    done -= done % BLOCK
                if not done:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                left, offset = left[done:], offset + done

    def read(self, size: int, offset: int) -> bytes:
        """`size` bytes of the file, which must have them, in as many reads as it takes."""
        parts = []
        while size:
            try:
                part = Disk.pread(self.fd, size, offset)
            except OSError as error:
                raise unreadable(self.path, offset, -(error.errno or errno.EIO)) from error
            if not part:
                raise unreadable(self.path, offset, CUT_OFF)
            parts.append(part)
            size, offset = size - len(part), offset + len(part)
        return b"".join(parts)

    def written(self, begin: int, end: int) -> Iterator[tuple[int, int]]:
        """The ranges from `begin` to `end` outside of which the file has holes alone, which are zeros."""
        if not hasattr(os, "SEEK_DATA"):
            yield begin, end
            return
        while begin < end:
            try:
                begin = os.lseek(self.fd, begin, os.SEEK_DATA)
            except OSError as error:
                if error.errno != errno.ENXIO:
                    raise
                return  # a hole up to the end of the file
            if begin < end:
                hole = min(os.lseek(self.fd, begin, os.SEEK_HOLE), end)
                yield begin, hole
                begin = hole

    def sync(self) -> None:
        with explained(self.path, 0):
            Disk.sync(self.fd)

    @property
    def is_open(self) -> bool:
        return self.fd >= 0

    def close(self) -> None:
        if self.is_open:
            os.close(self.fd)
            self.fd = -1

    __del__ = close  # of a store that failed half-way, or that nobody closed


def runs(numbers: np.ndarray, step: int) -> Iterator[tuple[int, int]]:
    """The ranges [begin, end) in which ascending numbers follow one another at `step`.

    numbers = [3, 4, 9], step = 1  ->  (0, 2), (2, 3)
    """
    cuts = (np.flatnonzero(np.diff(numbers) != step) + 1).tolist()
    return zip([0, *cuts], [*cuts, len(numbers)], strict=True) if len(numbers) else iter(())


def sync_folder(folder: Path) -> None:
    """Makes the names in a folder durable."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        Disk.sync(fd)
    finally:
        os.close(fd)


def full(path: Path, needed: int, code: int = errno.ENOSPC) -> OSError:
    """The error of a write of `needed` bytes for which the disk has no room."""
    free = shutil.disk_usage(path.parent).free
    return OSError(
        code,
        f"{path}: no room for {needed:,} bytes ({free:,} bytes are free); earlier checkpoints are "
        f"whole; make room, then resume, or begin again if there is no checkpoint yet",
    )


@contextmanager
def explained(path: Path, needed: int) -> Iterator[None]:
    """Says of a failed write which file, how many bytes, and what to do."""
    try:
        yield
    except OSError as error:
        if error.errno in FULL:
            raise full(path, needed, error.errno) from error
        raise OSError(
            error.errno,
            f"{path}: writing failed ({error.strerror}); earlier checkpoints are whole; check the "
            f"disk, then resume, or begin again if there is no checkpoint yet",
        ) from error


def unreadable(path: Path, offset: int, failure: int) -> Exception:
    """The error of a read at byte `offset`. failure: minus the system's error number, or CUT_OFF."""
    if failure == CUT_OFF:
        return ValueError(
            f"{path} is cut off: it ends before byte {offset:,} is whole; bring back the file, or "
            f"begin anew from another checkpoint"
        )
    return OSError(
        -failure,
        f"{path}: reading at byte {offset:,} failed ({os.strerror(-failure)}); check the disk, then "
        f"resume from the last checkpoint",
    )
