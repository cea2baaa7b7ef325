"""Reads many records at once, merges and indexes them, in the native core.

Files are open for direct I/O where the file system takes it. `tests/reference/records.py` is the
specification: the work on equal files by `os.pread`, and on rows by a dictionary.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import numpy as np

from hotrows.engine.storage.disk_io import BLOCK, RecordFile, unreadable
from hotrows.runtime import native

ABSENT = -1  # the place of a row that an index does not have
# Of the core: bytes of the longest request of a read; those that a read rather leaves out.
REQUEST, READ_GAP = 64 << 10, 16 << 10

_DEPTH = 128  # requests in flight


def alignment(path: Path) -> int:
    """The bytes that direct I/O on a file must be aligned to; 1 where it is better read plainly."""
    direct = getattr(os, "O_DIRECT", 0)
    if not direct:
        return 1
    try:
        fd = os.open(path, os.O_RDONLY | direct)
    except OSError:
        return 1
    try:
        return _call("alignment", fd) or 1
    finally:
        os.close(fd)


class Fetcher:
    """Reads many records of a file at once; for one thread at a time.

    ring: with io_uring where the system has it and permits it, else with waiting threads.
    depth: the number of requests in flight at most; None: 128, or 32 threads.
    """

    def __init__(self, stride: int, ring: bool = True, depth: int | None = None) -> None:
        self.stride, self.num_requests, self.num_bytes = stride, 0, 0
        self.memory_bytes = (depth or _DEPTH) * max(REQUEST, stride + 3 * BLOCK)
        self._core = _object("fetcher", stride, ring, depth or 0)

    def fetch(self, file: RecordFile, places: np.ndarray, targets: np.ndarray, out: np.ndarray) -> None:
        """out[targets[i]] = the record at byte places[i] of the file."""
        if not places.size:
            return
        counters = np.zeros(3, np.int64)  # requests, bytes, where it failed
        places, targets = np.ascontiguousarray(places), np.ascontiguousarray(targets)
        failure = _call(
            "fetch", self._core.handle, file.fd, file.align, places, targets, places.size, self.stride,
            out, counters,
        )  # fmt: skip
        self.num_requests += int(counters[0])
        self.num_bytes += int(counters[1])
        if failure:
            raise unreadable(file.path, int(counters[2]), failure)


class Index:
    """Where rows are in a file: a hash table of the core, with memory for the rows that are in it.

    One thread may `find` while another puts. rows: of the table; places: multiples of 4, not 0.
    """

    ROW_BYTES = 13  # of memory for each row, at most, where there are many

    def __init__(self, rows: int) -> None:
        self._core = _object("index", rows)

    def __len__(self) -> int:
        return _call("index_size", self._core.handle)

    @property
    def memory_bytes(self) -> int:
        """Bytes of memory that it takes."""
        return _call("index_bytes", self._core.handle)

    def put(self, rows: np.ndarray, first: int, stride: int) -> None:
        """Row rows[i] is at byte first + i * stride from now on."""
        if _call("index_put", self._core.handle, np.ascontiguousarray(rows), rows.size, first, stride):
            raise ValueError(
                f"a log of {first:,} bytes is too long for its table: spread the table over more ranks"
            )

    def find(self, rows: np.ndarray) -> np.ndarray:
        """The place of each row, ABSENT where the file does not have it."""
        places = np.empty(rows.size, np.int64)
        _call("index_find", self._core.handle, np.ascontiguousarray(rows), rows.size, places)
        return places


def ranks(bits: np.ndarray, counts: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """How many rows below each of `rows` are set in bits, -1 where the row itself is not. counts: of bits
    that are set before each 64 bytes."""
    numbers, rows = np.empty(rows.size, np.int64), np.ascontiguousarray(rows)
    _call("rank", bits, counts, rows, rows.size, numbers)
    return numbers


def merge(
    bits: np.ndarray, first: int, old: np.ndarray, rows: np.ndarray, records: np.ndarray,
    merged: np.ndarray, out: np.ndarray,
) -> int:  # fmt: skip
    """Merges new records of `rows`, ascending, into the old ones of the rows set in bits, of which the
    first is row `first`. Fills out and the bits `merged`; returns how many records there are."""
    rows, stride = np.ascontiguousarray(rows), records.shape[1]
    return _call(
        "merge", bits, bits.size, first, old, rows, rows.size, np.ascontiguousarray(records),
        stride, merged, out,
    )  # fmt: skip


def _call(name: str, *arguments: Any) -> int:
    """Calls `hotrows_file_<name>` of the core."""
    result = native.call(f"file_{name}", *arguments)
    if result == -errno.ENOMEM:
        raise MemoryError(f"{name} of a file store: no memory")
    return result


def _object(kind: str, *arguments: Any) -> native.Object:
    """An object of the core, `hotrows_file_<kind>`."""
    opened = native.Object(f"file_{kind}", *arguments)
    if not opened:
        raise MemoryError(f"{kind} of a file store: no memory")
    return opened
