"""Files of records: logs that are appended to, indexes of where rows stand, reads that wait together.

A log is segments, each on whole blocks, its rows ascending:

    | magic, generation, count, flags, two checksums | rows int64[count] | records | zeros |

Journals of old bytes ("undo") have the same form; rows without bytes of their own are in segments
marked BARE, which end after the rows. Reading, rewriting and indexing run on the native core, files
then being open for direct I/O where the file system takes it; without the core the same is done
plainly, by `os.pread` and a dictionary, on the same files.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import shutil
import struct
import weakref
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hotrows import native

BLOCK = 4096
KEEPS, BARE = 1, 2  # flags: the writer held the rows on; the rows have no records
ABSENT, UNTOUCHED = -1, -2  # places of a row: not in this file; in it, as one without a record

_HEADER = struct.Struct("<8sqqIII28x")
_MAGIC = b"hotrowsL"
_SWEEP_THREADS = 4
_CUT_OFF = -100000  # what the core answers where a file ends too early
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Disk:
    """The system calls that read and change files; tests put faults in their place."""

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

    def write(self, buffer, offset: int) -> None:
        """Writes all of the buffer, or raises and says how much room is missing."""
        left = memoryview(buffer).cast("B")
        with explained(self.path, len(left)):
            while left:
                done = Disk.pwrite(self.fd, left, offset)
                if done < len(left) and self.align > 1:  # direct I/O goes on from a whole block
                    done -= done % BLOCK
                if not done:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                left, offset = left[done:], offset + done

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


class Fetcher:
    """Reads many records of a file at once; for one thread at a time.

    ring: with io_uring where the system has it and permits it, else with waiting threads.
    """

    def __init__(self, stride: int, ring: bool = True) -> None:
        self.stride, self.num_requests, self.num_bytes = stride, 0, 0
        plain = native.load() is None
        self._handle = None if plain else _handle("fetcher", ctypes.c_int64(stride), ring)
        if self._handle is not None:
            weakref.finalize(self, _core().hotrows_file_fetcher_free, self._handle)

    def fetch(
        self, file: RecordFile, places: np.ndarray, targets: np.ndarray, out: np.ndarray
    ) -> None:
        """out[targets[i]] = the record at places[i] of the file."""
        if not places.size:
            return
        if self._handle is None:
            self._fetch_plainly(file, places, targets, out)
            return
        seen = np.zeros(3, np.int64)
        failure = _call(
            "fetch", self._handle, file.fd, ctypes.c_int64(file.align), np.ascontiguousarray(places),
            np.ascontiguousarray(targets), _count(places), ctypes.c_int64(self.stride), out, seen,
        )  # fmt: skip
        self.num_requests += int(seen[0])
        self.num_bytes += int(seen[1])
        if failure:
            raise _unreadable(file.path, int(seen[2]), failure)

    def _fetch_plainly(self, file, places, targets, out) -> None:
        order = np.argsort(places, kind="stable")
        places, targets = places[order], targets[order]
        for begin, end in runs(places, self.stride):
            size, at = (end - begin) * self.stride, int(places[begin])
            bytes_ = read_whole(file, size, at)
            out[targets[begin:end]] = np.frombuffer(bytes_, np.uint8).reshape(-1, self.stride)
            self.num_requests += 1
            self.num_bytes += size


def sweep(file: RecordFile, first: int, rows: np.ndarray, records: np.ndarray) -> tuple[int, int]:
    """Writes the records of `rows`, ascending, of the table that begins at `first`, in order.

    Returns the bytes read and the bytes written.
    """
    if not rows.size:
        return 0, 0
    if native.load() is None:
        for begin, end in runs(rows, 1):
            file.write(
                np.ascontiguousarray(records[begin:end]), first + int(rows[begin]) * file.stride
            )
        return 0, records.size
    seen = np.zeros(3, np.int64)
    with explained(file.path, records.size):
        failure = _call(
            "sweep", file.fd, ctypes.c_int64(first), ctypes.c_int64(file.stride),
            np.ascontiguousarray(rows), _count(rows), np.ascontiguousarray(records),
            ctypes.c_int64(_SWEEP_THREADS), seen,
        )  # fmt: skip
        if failure and -failure in _FULL:
            raise OSError(-failure, os.strerror(-failure))
    if failure:
        raise _unreadable(file.path, int(seen[2]), failure)
    return int(seen[0]), int(seen[1])


def new_index() -> Index | DictIndex:
    return DictIndex() if native.load() is None else Index()


class Index:
    """Where rows stand in a file: a hash table of the core, 21 to 43 bytes of memory per row.

    One thread may `find` while another puts.
    """

    def __init__(self) -> None:
        self._handle = _handle("index")
        weakref.finalize(self, _core().hotrows_file_index_free, self._handle)

    def __len__(self) -> int:
        return _call("index_size", self._handle)

    def put(self, rows: np.ndarray, first: int, stride: int) -> None:
        """Row rows[i] stands at first + i * stride from now on."""
        _call(
            "index_put", self._handle, np.ascontiguousarray(rows), _count(rows),
            ctypes.c_int64(first), ctypes.c_int64(stride),
        )  # fmt: skip

    def find(self, rows: np.ndarray) -> np.ndarray:
        """The place of each row, ABSENT where it is not here."""
        places = np.empty(rows.size, np.int64)
        _call("index_find", self._handle, np.ascontiguousarray(rows), _count(rows), places)
        return places


class DictIndex:
    """The same as `Index`, as a dictionary."""

    def __init__(self) -> None:
        self._places: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._places)

    def put(self, rows: np.ndarray, first: int, stride: int) -> None:
        places = range(first, first + rows.size * stride, stride)
        self._places.update(zip(rows.tolist(), places, strict=True))

    def find(self, rows: np.ndarray) -> np.ndarray:
        return np.array([self._places.get(row, ABSENT) for row in rows.tolist()], np.int64)


@dataclass(frozen=True)
class Segment:
    rows: np.ndarray  # [count], ascending
    first: int  # where the record of its first row stands
    bare: bool
    records: np.ndarray | None = None  # [count, stride], where they were asked for


class Log:
    """An open file of segments that one thread appends to while another reads its records."""

    def __init__(self, path: Path, number: int, stride: int, align: int, length: int = -1) -> None:
        """length: of a log that was closed; without it, an empty file is made anew."""
        fresh = os.O_CREAT | os.O_TRUNC if length < 0 else 0
        self.file = RecordFile(path, stride, align, os.O_RDWR | fresh)
        self.path, self.number, self.stride, self.end = path, number, stride, max(length, 0)
        self.num_records = 0  # appended
        self.index = new_index()
        self._buffer = mmap.mmap(-1, BLOCK)  # aligned, as direct I/O wants it

    def append(self, rows: np.ndarray, records: np.ndarray | None, flags: int = 0) -> int:
        """Adds a segment; where its first record stands. On failure the log is as before."""
        header, row_bytes = _HEADER.size, rows.size * 8
        size = header + row_bytes + (0 if records is None else rows.size * self.stride)
        whole = -(-size // BLOCK) * BLOCK
        if len(self._buffer) < whole:
            self._buffer = mmap.mmap(-1, whole)
        bytes_ = np.frombuffer(self._buffer, np.uint8, whole)
        bytes_[header : header + row_bytes].view(np.int64)[:] = rows
        if records is not None:
            bytes_[header + row_bytes : size].reshape(rows.size, self.stride)[:] = records
        bytes_[size:] = 0
        fields = (_MAGIC, self.number, rows.size, flags | (BARE if records is None else 0))
        of_records = zlib.crc32(bytes_[header + row_bytes : size].data)
        of_rows = _checksum(fields, bytes_[header : header + row_bytes])
        bytes_[:header] = np.frombuffer(_HEADER.pack(*fields, of_rows, of_records), np.uint8)
        self.file.write(bytes_, self.end)
        begin, self.end = self.end, self.end + whole
        self.num_records += rows.size
        return begin + header + row_bytes

    def find(self, rows: np.ndarray) -> np.ndarray:
        return self.index.find(rows)

    def take_back(self, end: int) -> None:
        """Forgets what was appended after `end`, and what a failed append left."""
        self.end = end
        with explained(self.path, 0):
            Disk.truncate(self.file.fd, end)

    def index_segments(self) -> None:
        """Checks the whole log and enters its rows into the index, the newest last."""
        for segment in segments(self.path, self.number, self.stride, self.end):
            self.index.put(segment.rows, segment.first, self.stride)

    def close(self) -> None:
        self.file.close()


class Undo:
    """A journal of the bytes that rows had before a generation was merged; rows found by search."""

    def __init__(self, path: Path, number: int, stride: int) -> None:
        self.file = RecordFile(path, stride, flags=os.O_RDONLY)
        self.number = number
        self._bytes = np.memmap(path, np.uint8, "r") if path.stat().st_size else None
        self._parts: dict[bool, list[tuple[int, int, int]]] = {False: [], True: []}
        for segment in segments(path, number, stride, path.stat().st_size, records=False):
            at = segment.first - segment.rows.nbytes
            self._parts[segment.bare].append((int(segment.rows[0]), at, segment.rows.size))

    def find(self, rows: np.ndarray) -> np.ndarray:
        """Where the old bytes of each row, ascending, stand: a place, ABSENT or UNTOUCHED."""
        places = np.full(rows.size, ABSENT)
        for bare, parts in self._parts.items():
            firsts = np.array([first for first, _, _ in parts], np.int64)
            part_of = np.searchsorted(firsts, rows, "right") - 1
            for begin, end in runs(part_of, 0):
                if part_of[begin] < 0:
                    continue
                _, at, count = parts[part_of[begin]]
                assert self._bytes is not None
                here = self._bytes[at : at + 8 * count].view(np.int64)
                i = np.minimum(np.searchsorted(here, rows[begin:end]), count - 1)
                place = UNTOUCHED if bare else at + 8 * count + i * self.file.stride
                places[begin:end] = np.where(here[i] == rows[begin:end], place, places[begin:end])
        return places

    def close(self) -> None:
        self.file.close()


def segments(
    path: Path, number: int, stride: int, length: int, records: bool = True, keep: bool = False
) -> Iterator[Segment]:
    """The segments of a log's first `length` bytes, checked; keep: with their records.

    records: whether to read and check the records, too.
    """
    file = RecordFile(path, stride, flags=os.O_RDONLY)
    try:
        at = 0
        while at < length:
            header = read_whole(file, _HEADER.size, at)
            magic, generation, count, flags, of_rows, of_records = _HEADER.unpack(header)
            size = 0 if flags & BARE else count * stride
            first = at + _HEADER.size + 8 * count
            fields = (magic, generation, count, flags)
            if magic != _MAGIC or generation != number or count <= 0 or first + size > length:
                raise _damaged(path, at)
            rows = np.frombuffer(read_whole(file, 8 * count, at + _HEADER.size), np.int64)
            if _checksum(fields, rows) != of_rows:
                raise _damaged(path, at)
            found = None
            if records:
                found = np.frombuffer(read_whole(file, size, first), np.uint8)
                if zlib.crc32(found.data) != of_records:
                    raise _damaged(path, at)
                found = found.reshape(-1, stride) if keep else None
            yield Segment(rows, first, bool(flags & BARE), found)
            at = -(-(first + size) // BLOCK) * BLOCK
    finally:
        file.close()


def read_whole(file: RecordFile, size: int, offset: int) -> bytes:
    """Bytes of a file that must be there, however many reads it takes."""
    parts = []
    while size:
        try:
            part = Disk.pread(file.fd, size, offset)
        except OSError as error:
            raise _unreadable(file.path, offset, -(error.errno or errno.EIO)) from error
        if not part:
            raise _unreadable(file.path, offset, _CUT_OFF)
        parts.append(part)
        size, offset = size - len(part), offset + len(part)
    return b"".join(parts)


def runs(numbers: np.ndarray, step: int) -> Iterator[tuple[int, int]]:
    """Where ascending numbers follow one another at `step`.

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
    free = shutil.disk_usage(path.parent).free
    return OSError(
        code,
        f"{path}: no room for {needed:,} bytes ({free:,} bytes are free); earlier checkpoints are "
        f"whole; make room, then resume",
    )


@contextmanager
def explained(path: Path, needed: int) -> Iterator[None]:
    """Says of a failed write which file, how many bytes, and what to do."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise full(path, needed, error.errno) from error
        raise OSError(
            error.errno,
            f"{path}: writing failed ({error.strerror}); earlier checkpoints are whole; check the "
            f"disk, then resume",
        ) from error


def alignment(path: Path) -> int:
    """What direct I/O on a file must be aligned to; 1 where the file is better read plainly."""
    core, direct = native.load(), getattr(os, "O_DIRECT", 0)
    if core is None or not direct:
        return 1
    try:
        fd = os.open(path, os.O_RDONLY | direct)
    except OSError:
        return 1
    try:
        return _call("alignment", fd) or 1
    finally:
        os.close(fd)


def _unreadable(path: Path, offset: int, failure: int) -> Exception:
    if failure == _CUT_OFF:
        return ValueError(
            f"{path} is cut off: it ends before byte {offset:,} is whole; bring back the file, or "
            f"begin anew from another checkpoint"
        )
    return OSError(
        -failure,
        f"{path}: reading at byte {offset:,} failed ({os.strerror(-failure)}); check the disk, then "
        f"resume from the last checkpoint",
    )


def _damaged(path: Path, offset: int) -> ValueError:
    return ValueError(
        f"{path} is damaged: the segment at byte {offset:,} is not as it was written; bring back "
        f"the file, or begin anew from another checkpoint"
    )


def _checksum(fields: tuple, rows: np.ndarray) -> int:
    return zlib.crc32(rows.data, zlib.crc32(_HEADER.pack(*fields, 0, 0)))


def _call(name: str, *arguments) -> int:
    """Calls `hotrows_file_<name>` of the core; arrays go as their addresses."""
    function = getattr(_core(), f"hotrows_file_{name}")
    function.restype = ctypes.c_int64
    result = function(
        *(ctypes.c_void_p(a.ctypes.data) if isinstance(a, np.ndarray) else a for a in arguments)
    )
    if result == -errno.ENOMEM:
        raise MemoryError(f"{name} of a file store: no memory")
    return result


def _handle(kind: str, *arguments) -> ctypes.c_void_p:
    make = getattr(_core(), f"hotrows_file_{kind}_new")
    make.restype = ctypes.c_void_p
    handle = ctypes.c_void_p(make(*arguments))
    if not handle.value:
        raise MemoryError(f"{kind} of a file store: no memory")
    return handle


def _core() -> ctypes.CDLL:
    core = native.load()
    assert core is not None
    return core


def _count(rows: np.ndarray) -> ctypes.c_int64:
    return ctypes.c_int64(rows.size)
