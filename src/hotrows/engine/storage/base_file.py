"""The base file of a file store: records by row, and a bitmap of the rows ever written."""

from __future__ import annotations

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

from hotrows.engine.storage.disk_io import BLOCK, Disk, RecordFile, explained, runs, sync_folder
from hotrows.engine.storage.record_io import Fetcher, alignment, sweep
from hotrows.runtime.atomic_files import part_of
from hotrows.runtime.json_file import check_version

KIND, FORMAT = "hotrows file store", 1
FillInitial = Callable[[Tensor, Tensor], None]  # fills out [m, stride] with new rows [m]

_BASE_HEADER = struct.Struct("<8sqqqqI")
_BASE_MAGIC = b"hotrowsB"
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
        return _up(BLOCK + self.bit_bytes, _RECORDS_ALIGN)

    @property
    def bit_bytes(self) -> int:
        return _up(-(-self.rows // 8), BLOCK)

    @property
    def base_bytes(self) -> int:
        return self.records_at + _up(self.rows * self.stride, BLOCK)

    def as_json(self) -> dict[str, Any]:
        return {"kind": KIND, "records_at": self.records_at} | asdict(self)


class BaseFile:
    """The file of all records: header, a bit per row that was ever written, records; sparse."""

    def __init__(self, path: Path, form: Form, flags: int = os.O_RDWR) -> None:
        self.path, self.form, self.bytes_read, self.bytes_written = path, form, 0, 0
        self._flags = flags
        self._open()

    def _open(self) -> None:
        path, form, flags = self.path, self.form, self._flags
        self._plain = RecordFile(path, form.stride, flags=flags)
        header = self._plain.read(_BASE_HEADER.size, 0)
        if header != _base_header(form):
            *fields, crc32 = _BASE_HEADER.unpack(header)
            if fields[0] == _BASE_MAGIC and zlib.crc32(_BASE_HEADER.pack(*fields, 0)) == crc32:
                check_version(path, fields[1], FORMAT, "open it with the hotrows that wrote it")
            raise ValueError(
                f"{path} is damaged, or of another store: its header does not say {form.rows:,} "
                f"rows of {form.stride} bytes in format {FORMAT}; bring back the whole folder"
            )
        self._bits = np.zeros(form.bit_bytes, np.uint8)  # takes memory for rows that were written
        for begin, end in self._plain.written(BLOCK, BLOCK + form.bit_bytes):
            bits = self._plain.read(end - begin, begin)
            self._bits[begin - BLOCK : end - BLOCK] = np.frombuffer(bits, np.uint8)
        self.file = RecordFile(path, form.stride, alignment(path), flags)

    @staticmethod
    def create(path: Path, form: Form) -> None:
        """Makes a file of rows that were never written."""
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC
        with closing(RecordFile(path, form.stride, flags=flags)) as file:
            with explained(path, form.base_bytes):
                Disk.truncate(file.fd, form.base_bytes)
            file.write(_base_header(form), 0)
            file.sync()

    def marked(self, rows: np.ndarray) -> np.ndarray:
        """Which of the rows were ever written."""
        return (self._bits[rows >> 3] >> (rows & 7).astype(np.uint8) & 1).astype(bool)

    def mark(self, rows: np.ndarray, written: bool) -> None:
        """Says of rows, ascending, whether they were ever written."""
        for bit in range(8):
            bytes_, mask = rows[rows & 7 == bit] >> 3, np.uint8(1 << bit)
            self._bits[bytes_] = self._bits[bytes_] | mask if written else self._bits[bytes_] & ~mask
        blocks = np.unique(rows // (8 * BLOCK))
        for first, last in runs(blocks, 1):
            begin, end = int(blocks[first]) * BLOCK, (int(blocks[last - 1]) + 1) * BLOCK
            self._plain.write(self._bits[begin:end], BLOCK + begin)
            self.bytes_written += end - begin

    def fetch(self, fetcher: Fetcher, rows: np.ndarray, targets: np.ndarray, out: np.ndarray) -> None:
        """out[targets[i]] = the record of rows[i]."""
        fetcher.fetch(self.file, self.form.records_at + rows * self.form.stride, targets, out)

    def write(self, rows: np.ndarray, records: np.ndarray) -> None:
        """Overwrites the records of rows, ascending."""
        read, written = sweep(self.file, self.form.records_at, rows, records)
        self.bytes_read += read
        self.bytes_written += written

    def clear(self) -> None:
        """Makes every row one that was never written: a new file takes the place of this one."""
        part = part_of(self.path)
        BaseFile.create(part, self.form)
        with explained(self.path, 0):
            Disk.replace(part, self.path)
        sync_folder(self.path.parent)
        self.close()
        self._open()

    def sync(self) -> None:
        self._plain.sync()

    def close(self) -> None:
        self._plain.close()
        self.file.close()


def _base_header(form: Form) -> bytes:
    fields = (_BASE_MAGIC, FORMAT, form.stride, form.rows, form.records_at)
    return _BASE_HEADER.pack(*fields, zlib.crc32(_BASE_HEADER.pack(*fields, 0)))


def _up(size: int, to: int) -> int:
    return -(-size // to) * to
