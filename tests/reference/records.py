"""Records of a file store, read, written and indexed one after the other."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from hotrows.engine.storage import record_io
from hotrows.engine.storage.disk_io import RecordFile, runs
from hotrows.engine.storage.record_io import ABSENT


@contextmanager
def plain_records() -> Iterator[None]:
    """File stores that are opened here read, write and index by these references, without direct I/O."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(record_io, "Fetcher", PlainFetcher)
        patch.setattr(record_io, "Index", PlainIndex)
        patch.setattr(record_io, "ranks", plain_ranks)
        patch.setattr(record_io, "merge", plain_merge)
        patch.setattr(record_io, "alignment", lambda path: 1)
        yield


class PlainFetcher:
    """Reads records of a file one after the other, adjacent ones in one read."""

    memory_bytes = 0

    def __init__(self, stride: int, depth: int = 1) -> None:
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


def _set_in(bits: np.ndarray) -> np.ndarray:
    return np.flatnonzero(np.unpackbits(bits, bitorder="little"))


def plain_ranks(bits: np.ndarray, counts: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """How many rows below each of `rows` are set, -1 where it is not."""
    ranks = {row: rank for rank, row in enumerate(_set_in(bits).tolist())}
    return np.array([ranks.get(row, -1) for row in rows.tolist()], np.int64)


def plain_merge(bits, first, old, rows, records, merged, out) -> int:
    """Merges records into old ones of the rows set in bits, by a dictionary."""
    all_records = dict(zip((first + _set_in(bits)).tolist(), old, strict=True))
    all_records |= dict(zip(rows.tolist(), records, strict=True))
    is_set = np.zeros(8 * bits.size, bool)
    is_set[[row - first for row in all_records]] = True
    merged[:] = np.packbits(is_set, bitorder="little")
    joined = b"".join(all_records[row].tobytes() for row in sorted(all_records))
    out[: len(joined)] = np.frombuffer(joined, np.uint8)
    return len(all_records)
