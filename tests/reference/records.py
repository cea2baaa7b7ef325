"""Records of a file store, read, written and indexed one after the other."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from hotrows.engine.storage import base_file, record_io
from hotrows.engine.storage.disk_io import RecordFile, runs
from hotrows.engine.storage.record_io import ABSENT


@contextmanager
def plain_records() -> Iterator[None]:
    """File stores that are opened here read, write and index by these references, without direct I/O."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(record_io, "Fetcher", PlainFetcher)
        patch.setattr(record_io, "Index", PlainIndex)
        patch.setattr(base_file, "sweep", plain_sweep)
        patch.setattr(base_file, "alignment", lambda path: 1)
        yield


class PlainFetcher:
    """Reads records of a file one after the other, adjacent ones in one read."""

    memory_bytes = 0

    def __init__(self, stride: int) -> None:
        self.stride, self.num_requests, self.num_bytes = stride, 0, 0

    def fetch(self, file: RecordFile, places: np.ndarray, targets: np.ndarray, out: np.ndarray) -> None:
        """out[targets[i]] = the record at byte places[i] of the file."""
        order = np.argsort(places, kind="stable")
        places, targets = places[order], targets[order]
        for begin, end in runs(places, self.stride):
            size = (end - begin) * self.stride
            records = np.frombuffer(file.read(size, int(places[begin])), np.uint8)
            out[targets[begin:end]] = records.reshape(-1, self.stride)
            self.num_requests += 1
            self.num_bytes += size


class PlainIndex:
    """Where rows are in a file, as a dictionary."""

    def __init__(self, rows: int = 0) -> None:
        self._places: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._places)

    def put(self, rows: np.ndarray, first: int, stride: int) -> None:
        places = range(first, first + rows.size * stride, stride)
        self._places.update(zip(rows.tolist(), places, strict=True))

    def find(self, rows: np.ndarray) -> np.ndarray:
        return np.array([self._places.get(row, ABSENT) for row in rows.tolist()], np.int64)


def plain_sweep(file: RecordFile, first: int, rows: np.ndarray, records: np.ndarray) -> tuple[int, int]:
    """Writes the records of `rows`, ascending, one run of adjacent ones after the other."""
    for begin, end in runs(rows, 1):
        file.write(np.ascontiguousarray(records[begin:end]), first + int(rows[begin]) * file.stride)
    return 0, records.size
