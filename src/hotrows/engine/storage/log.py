"""Logs of records: segments that are appended.

Each segment begins a block, its rows ascending:

    | magic, generation, count, flags, two checksums | rows int64[count] | records | zeros |

Journals of stores of format 3 are alike; their rows without records are in segments marked BARE, which
end after the rows.
"""

from __future__ import annotations

import mmap
import os
import struct
import zlib
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hotrows.engine.storage import record_io
from hotrows.engine.storage.disk_io import BLOCK, CUT_OFF, Disk, RecordFile, explained, unreadable
from hotrows.runtime.device import aligned

SEGMENT_BYTES = 8 << 20  # a longer write becomes several segments
KEEPS, BARE = 1, 2  # flags: the writer retains the rows in its cache; old ones without records

_HEADER = struct.Struct("<8sqqIII28x")
_MAGIC = b"hotrowsL"


@dataclass(frozen=True)
class Segment:
    """Rows of a log with the place of their records."""

    rows: np.ndarray  # [count], ascending
    first: int  # the byte at which the record of its first row begins
    bare: bool
    records: np.ndarray | None = None  # [count, stride], where `segments` read them


class RecordLog:
    """An open file of segments that one thread appends to while another reads its records."""

    def __init__(
        self,
        path: Path,
        number: int,
        stride: int,
        align: int,
        length: int = -1,
        checksum: int = 0,
        rows: int = 1,
    ) -> None:
        """length, checksum: of a log that was closed; without them, an empty file is made anew.

        rows: of the table, where the log is indexed.
        """
        fresh = os.O_CREAT | os.O_TRUNC if length < 0 else 0
        self.file = RecordFile(path, stride, align, os.O_RDWR | fresh)
        self.path, self.number, self.stride, self.end = path, number, stride, max(length, 0)
        self.checksum = checksum  # of all headers, which have those of rows and records
        self.num_records = 0  # appended, but for those that the writer retains
        self.index = record_io.Index(rows)
        self._buffer = mmap.mmap(-1, BLOCK)  # aligned, as direct I/O wants it

    def append(self, rows: np.ndarray, records: np.ndarray, flags: int = 0) -> int:
        """Adds a segment, and returns the place of its first record. On failure the log stays as it
        was."""
        header, row_bytes = _HEADER.size, rows.size * 8
        size = header + row_bytes + rows.size * self.stride
        padded = aligned(size, BLOCK)
        if len(self._buffer) < padded:
            self._buffer = mmap.mmap(-1, padded)
        bytes_ = np.frombuffer(self._buffer, np.uint8, padded)
        bytes_[header : header + row_bytes].view(np.int64)[:] = rows
        bytes_[header + row_bytes : size].reshape(rows.size, self.stride)[:] = records
        bytes_[size:] = 0
        fields = (_MAGIC, self.number, rows.size, flags)
        of_records = zlib.crc32(bytes_[header + row_bytes : size].data)
        of_rows = _checksum(fields, bytes_[header : header + row_bytes])
        bytes_[:header] = np.frombuffer(_HEADER.pack(*fields, of_rows, of_records), np.uint8)
        checksum = zlib.crc32(bytes_[:header].data, self.checksum)
        self.file.write(bytes_, self.end)
        self.checksum = checksum
        begin, self.end = self.end, self.end + padded
        self.num_records += 0 if flags & KEEPS else rows.size
        return begin + header + row_bytes

    def find(self, rows: np.ndarray) -> np.ndarray:
        """The place of each row's newest record, or ABSENT."""
        return self.index.find(rows)

    def take_back(self, end: int, checksum: int) -> None:
        """Cuts off what was appended after byte `end`, where the log had `checksum`, and what a failed
        append left."""
        self.end, self.checksum = end, checksum
        with explained(self.path, 0):
            Disk.truncate(self.file.fd, end)

    def index_segments(self) -> None:
        """Checks every segment of the log and enters its rows into the index, the newest last."""
        for segment in segments(self.path, self.number, self.stride, self.end, self.checksum):
            self.index.put(segment.rows, segment.first, self.stride)
            self.num_records += segment.rows.size

    def close(self) -> None:
        self.file.close()


def segments(
    path: Path, number: int, stride: int, length: int, checksum: int, records: bool = True
) -> Iterator[Segment]:
    """The segments in the first `length` bytes of a log, checked; records: whether to read these, too.

    checksum: of all headers, which tells this log from others; compared at the end.
    """
    of_headers = 0
    with closing(RecordFile(path, stride, flags=os.O_RDONLY)) as file:
        begin = 0
        if path.stat().st_size < length:
            raise unreadable(path, length, CUT_OFF)
        while begin < length:
            header = file.read(_HEADER.size, begin)
            of_headers = zlib.crc32(header, of_headers)
            magic, generation, count, flags, of_rows, of_records = _HEADER.unpack(header)
            size = 0 if flags & BARE else count * stride
            first = begin + _HEADER.size + 8 * count
            fields = (magic, generation, count, flags)
            if magic != _MAGIC or generation != number or count <= 0 or first + size > length:
                raise _damaged(path, begin)
            rows = np.frombuffer(file.read(8 * count, begin + _HEADER.size), np.int64)
            if _checksum(fields, rows) != of_rows:
                raise _damaged(path, begin)
            stored = None
            if records:
                stored = np.frombuffer(file.read(size, first), np.uint8)
                if zlib.crc32(stored.data) != of_records:
                    raise _damaged(path, begin)
                stored = stored.reshape(-1, stride)
            yield Segment(rows, first, bool(flags & BARE), stored)
            begin = -(-(first + size) // BLOCK) * BLOCK
    if checksum != of_headers:
        raise ValueError(
            f"{path} is not the file that was written there; bring it back, or begin anew from another "
            f"checkpoint"
        )


def pieces(count: int, stride: int) -> Iterator[slice]:
    """Slices of `count` rows whose records fit into a segment."""
    step = max(SEGMENT_BYTES // (stride + 8), 1)
    return (slice(begin, min(begin + step, count)) for begin in range(0, count, step))


def _damaged(path: Path, offset: int) -> ValueError:
    return ValueError(
        f"{path} is damaged: the segment at byte {offset:,} is not as it was written; bring back "
        f"the file, or begin anew from another checkpoint"
    )


def _checksum(fields: tuple[Any, ...], rows: np.ndarray) -> int:
    return zlib.crc32(rows.data, zlib.crc32(_HEADER.pack(*fields, 0, 0)))
