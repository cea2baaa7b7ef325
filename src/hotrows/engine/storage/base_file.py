"""The base file of a file store: the records of all rows written up to a checkpoint, in row order.

    | header | a bit for each row that was ever written | the records of these rows, side by side |

A row's place is its rank among the rows whose bit is set: counted in memory, where the bits are, with the
help of a count for each 512 rows. A base file never changes: `BaseWriter` makes the next one beside it.
"""

from __future__ import annotations

import mmap
import os
import struct
import zlib
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from hotrows.engine.storage import record_io
from hotrows.engine.storage.disk_io import BLOCK, CUT_OFF, Disk, RecordFile, explained, unreadable
from hotrows.engine.storage.record_io import ABSENT, Fetcher
from hotrows.runtime import native
from hotrows.runtime.device import aligned
from hotrows.runtime.json_file import check_version

KIND, FORMAT = "hotrows file store", 2
FillInitial = Callable[[Tensor, Tensor], None]  # fills out [m, stride] with new rows [m]
COUNTED = 512  # rows that share a count
PIECE_BYTES = 4 << 20  # of records, read or written without a pause

_HEADER = struct.Struct("<8sqqqqI")
_MAGIC = b"hotrowsB"
_RECORDS_ALIGN = 1 << 20


@dataclass(frozen=True)
class Form:
    """The number of rows, bytes of a record and description of a store; never change."""

    rows: int
    stride: int
    meta: dict[str, Any]

    def __post_init__(self) -> None:
        if self.rows < 1 or self.stride < 4 or self.stride % 4:
            raise ValueError(
                f"a store holds at least one row, of a multiple of 4 bytes, not {self.rows:,} rows "
                f"of {self.stride}"
            )

    @property
    def records_at(self) -> int:
        return aligned(BLOCK + self.bit_bytes, _RECORDS_ALIGN)

    @property
    def bit_bytes(self) -> int:
        return aligned(-(-self.rows // 8), BLOCK)

    @property
    def base_bytes(self) -> int:
        """Of a file that has all rows."""
        return self.records_at + aligned(self.rows * self.stride, BLOCK)

    def as_json(self) -> dict[str, Any]:
        return {"kind": KIND, "records_at": self.records_at} | asdict(self)


class Base:
    """A base file to read from, or none: no row was written yet.

    length, checksum: of the whole file, and of its header and bits.
    """

    def __init__(
        self,
        form: Form,
        path: Path | None = None,
        length: int = 0,
        checksum: int = 0,
        before: Base | None = None,
    ) -> None:
        """before: the base that this one was just made from, which is read no more: it has no row that
        this one has not, and leaves its memory to it."""
        self.form, self.path = form, path
        self.file: RecordFile | None = None
        if before is None:
            self.bits = np.zeros(form.bit_bytes, np.uint8)  # takes memory for rows that were written
            self.counts = np.zeros(form.bit_bytes * 8 // COUNTED + 1, np.int64)
        else:
            self.bits, self.counts = before.bits, before.counts
        if path is not None:
            header = read_bits(path, form, FORMAT, self.bits)
            if path.stat().st_size < length:
                raise unreadable(path, length, CUT_OFF)
            if before is None and zlib.crc32(self.bits.data, zlib.crc32(header)) != checksum:
                raise ValueError(
                    f"{path} is not the file that was written there; bring it back, or begin anew from "
                    f"another checkpoint"
                )
            self.file = RecordFile(path, form.stride, record_io.alignment(path), os.O_RDONLY)
            count(self.bits, self.counts)

    @property
    def memory_bytes(self) -> int:
        return self.bits.nbytes + self.counts.nbytes

    def find(self, rows: np.ndarray) -> np.ndarray:
        """The place of each row's record, or ABSENT."""
        return self._places(record_io.ranks(self.bits, self.counts, rows))

    def read(self, fetcher: Fetcher, first: int, bits: np.ndarray) -> np.ndarray:
        """The records of the rows that are set in `bits`, of which the first is row `first`."""
        end = first + 8 * bits.size
        places = self._places(np.arange(self.counts[first // COUNTED], self.counts[end // COUNTED]))
        records = np.empty((places.size, self.form.stride), np.uint8)
        if places.size:
            assert self.file is not None
            fetcher.fetch(self.file, places, np.arange(places.size), records)
        return records

    def cuts(self, first: int, end: int) -> np.ndarray:
        """The rows between which PIECE_BYTES of records lie, about: multiples of COUNTED."""
        counts = self.counts[first // COUNTED : end // COUNTED]
        step = max(PIECE_BYTES // self.form.stride, 1)
        return first + COUNTED * np.searchsorted(counts, np.arange(counts[0] + step, counts[-1], step))

    def close(self) -> None:
        if self.file is not None:
            self.file.close()

    def _places(self, ranks: np.ndarray) -> np.ndarray:
        return np.where(ranks < 0, ABSENT, self.form.records_at + ranks * self.form.stride)


class BaseWriter:
    """Writes a base file from its first row to its last; it means nothing before `finish`."""

    def __init__(self, path: Path, form: Form, align: int) -> None:
        self.path, self._form, self.bytes_written = path, form, 0
        self._file = RecordFile(path, form.stride, align, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        self._plain = RecordFile(path, form.stride)
        self._end, self._held = form.records_at, 0  # where to write on; bytes that are yet to be
        self._buffer = mmap.mmap(-1, 2 * PIECE_BYTES)  # aligned, as direct I/O wants it
        self._checksum = zlib.crc32(_header(form))

    def add(
        self, first: int, bits: np.ndarray, old: np.ndarray, rows: np.ndarray, records: np.ndarray
    ) -> None:
        """Adds the next rows, from `first` on: the old records of those set in `bits`, and new ones of
        `rows`, ascending."""
        size = aligned(self._held + (len(old) + len(rows)) * self._form.stride, BLOCK)
        if size > len(self._buffer):
            larger = mmap.mmap(-1, size)
            larger[: self._held] = self._buffer[: self._held]
            self._buffer = larger
        merged, out = np.zeros_like(bits), np.frombuffer(self._buffer, np.uint8)
        count = record_io.merge(bits, first, old, rows, records, merged, out[self._held :])
        self._held += count * self._form.stride
        self._checksum = zlib.crc32(merged.data, self._checksum)
        if merged.any():
            self._plain.write(merged, BLOCK + first // 8)
            self.bytes_written += merged.size
        complete = self._held // BLOCK * BLOCK
        self._write(out[:complete])
        self._held -= complete
        out[: self._held] = out[complete : complete + self._held]

    def finish(self) -> tuple[int, int]:
        """Makes the file durable; returns its length and checksum."""
        tail = np.frombuffer(self._buffer, np.uint8)[: aligned(self._held, BLOCK)]
        tail[self._held :] = 0
        self._write(tail)
        with explained(self.path, 0):
            Disk.truncate(self._file.fd, self._end)  # of no records, the file has none
        self._plain.write(_header(self._form), 0)
        self._plain.sync()
        self.close()
        return self._end, self._checksum

    def close(self) -> None:
        self._file.close()
        self._plain.close()

    def _write(self, bytes_: np.ndarray) -> None:
        self._file.write(bytes_, self._end)
        self._end += bytes_.size
        self.bytes_written += bytes_.size


def read_bits(path: Path, form: Form, version: int, bits: np.ndarray) -> bytes:
    """Fills the bits of a base file of a version, and returns its header, which is checked."""
    with closing(RecordFile(path, form.stride, flags=os.O_RDONLY)) as plain:
        header = plain.read(_HEADER.size, 0)
        if header != _header(form, version):
            *fields, crc32 = _HEADER.unpack(header)
            if fields[0] == _MAGIC and zlib.crc32(_HEADER.pack(*fields, 0)) == crc32:
                check_version(path, fields[1], version, "open it with the hotrows that wrote it")
            raise ValueError(
                f"{path} is damaged, or of another store: its header does not say {form.rows:,} "
                f"rows of {form.stride} bytes in format {version}; bring back the whole folder"
            )
        for begin, end in plain.written(BLOCK, BLOCK + form.bit_bytes):
            part = np.frombuffer(plain.read(end - begin, begin), np.uint8)
            bits[begin - BLOCK : end - BLOCK] = part
        return header


def count(bits: np.ndarray, counts: np.ndarray) -> None:
    """Fills counts: for each COUNTED rows, how many before them are set; then how many are in all."""
    native.call("file_count", bits, bits.size, counts)


def _header(form: Form, version: int = FORMAT) -> bytes:
    fields = (_MAGIC, version, form.stride, form.rows, form.records_at)
    return _HEADER.pack(*fields, zlib.crc32(_HEADER.pack(*fields, 0)))
