"""What file stores of format 3 had: a sparse base file that was overwritten, and undo journals.

They are read as they are, whichever of their checkpoints is gone to, until the first merge has made a
base file of today's from them. A base had each row at its number, and what merging a log into it
overwrote was in a journal: seen from a checkpoint, the oldest later journal that has a row decides.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from hotrows.engine.storage import record_io
from hotrows.engine.storage.base_file import Base, Form, count, read_bits
from hotrows.engine.storage.disk_io import RecordFile, runs
from hotrows.engine.storage.log import segments
from hotrows.engine.storage.record_io import ABSENT, Fetcher

SPARSE = -1  # in place of the length of a base file: it is such a one
UNTOUCHED = -2  # the place of a row that a journal has as one without a record
_FORMAT = 1


class SparseBase(Base):
    """A base file in which row n is at n times the stride."""

    def __init__(self, form: Form, path: Path) -> None:
        super().__init__(form)
        self.path = path
        read_bits(path, form, _FORMAT, self.bits)
        self.file = RecordFile(path, form.stride, record_io.alignment(path), os.O_RDONLY)
        count(self.bits, self.counts)

    def find(self, rows: np.ndarray) -> np.ndarray:
        is_set = (self.bits[rows >> 3] >> (rows & 7).astype(np.uint8) & 1).astype(bool)
        return np.where(is_set, self._places(rows), ABSENT)

    def read(self, fetcher: Fetcher, first: int, bits: np.ndarray) -> np.ndarray:
        rows = first + np.flatnonzero(np.unpackbits(bits, bitorder="little"))
        records = np.empty((rows.size, self.form.stride), np.uint8)
        assert self.file is not None
        fetcher.fetch(self.file, self._places(rows), np.arange(rows.size), records)
        return records


class UndoJournal:
    """The records that rows had before a generation was merged; rows are searched for in the file."""

    def __init__(self, path: Path, number: int, stride: int, length: int, checksum: int) -> None:
        self.path, self.number, self.end, self.checksum = path, number, length, checksum
        self.file = RecordFile(path, stride, flags=os.O_RDONLY)
        self._parts: dict[bool, list[tuple[int, int, int]]] = {False: [], True: []}
        for segment in segments(path, number, stride, length, checksum):
            begin = segment.first - segment.rows.nbytes
            self._parts[segment.bare].append((int(segment.rows[0]), begin, segment.rows.size))
        self._bytes = np.memmap(path, np.uint8, "r") if length else None

    def find(self, rows: np.ndarray) -> np.ndarray:
        """The place of the old record of each row, ascending; or ABSENT, or UNTOUCHED."""
        places = np.full(rows.size, ABSENT)
        for bare, parts in self._parts.items():
            firsts = np.array([first for first, _, _ in parts], np.int64)
            part_of = np.searchsorted(firsts, rows, "right") - 1
            for begin, end in runs(part_of, 0):
                if part_of[begin] < 0:
                    continue
                _, first, count = parts[part_of[begin]]
                assert self._bytes is not None
                listed = self._bytes[first : first + 8 * count].view(np.int64)
                i = np.minimum(np.searchsorted(listed, rows[begin:end]), count - 1)
                place = UNTOUCHED if bare else first + 8 * count + i * self.file.stride
                places[begin:end] = np.where(listed[i] == rows[begin:end], place, places[begin:end])
        return places

    def close(self) -> None:
        self.file.close()
