"""Measures a disk as a file store uses it, in a few seconds.

    disk = measure_disk(Path("tables").parent)     # reads_per_second, bytes_per_second, ...
    disk.warning                                   # None, or why training from it will be slow

A store of a quarter GiB is made there, written, merged and read row by row, and deleted.
"""

from __future__ import annotations

import math
import shutil
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple, dataclass
from functools import partial
from pathlib import Path
from threading import Event

import torch
from torch import Tensor

from hotrows.engine.storage.disk_io import BLOCK, full
from hotrows.engine.storage.file_store import FileStore
from hotrows.runtime.sums import Summed

SLOW_READS, SLOW_BYTES = 10_000, 50e6  # below, training waits most of the time

_SIZE = 256 << 20  # bytes of the store
_ROWS = 4000  # read at once: those of a batch that are not in fast memory
_NEAR = 32 << 20  # bytes of neighbouring rows read at once
_WRITTEN = 1 << 16  # rows written at once
_MERGES = 3


@dataclass(frozen=True)
class DiskRates:
    """Rates of a disk under a file store, and what its work takes of one processor.

    reads_per_second: rows at random places, some thousand at once, each by a short request of its own.
    bytes_read_per_second: by long requests, of rows near one another.
    bytes_per_second: of records appended and synced. merged_per_second: of a base that merges rewrite.
    request_seconds, row_seconds: for a request of a read, and for a row. write_seconds: for a row.
    merge_seconds: for a byte that a merge rewrites; merge_row_seconds: for a row beyond one a block.
    sync_seconds: that a merge takes besides, however small, to be durable.
    beside: how many times as long reads take beside training, where that was measured.
    """

    reads_per_second: float
    bytes_read_per_second: float
    bytes_per_second: float
    merged_per_second: float
    request_seconds: float
    row_seconds: float
    write_seconds: float
    merge_seconds: float
    merge_row_seconds: float
    sync_seconds: float
    beside: float = 1.0

    def mean(self, other: DiskRates) -> DiskRates:
        """Geometric means of both."""
        pairs = zip(astuple(self), astuple(other), strict=True)
        return DiskRates(*((one * two) ** 0.5 for one, two in pairs))

    @property
    def warning(self) -> str | None:
        """Why training from this disk will be slow; None where it will not."""
        reasons = []
        if self.reads_per_second < SLOW_READS:
            reasons.append(
                f"it reads {self.reads_per_second:,.0f} rows a second at random places (expected at "
                f"least {SLOW_READS:,})"
            )
        if self.bytes_per_second < SLOW_BYTES:
            reasons.append(
                f"it writes {self.bytes_per_second / 1e6:,.0f} MB a second (expected at least "
                f"{SLOW_BYTES / 1e6:,.0f})"
            )
        if not reasons:
            return None
        return (
            f"this disk is slow for tables: {' and '.join(reasons)}; keep the store on a local "
            f"solid-state disk, or give more fast memory: `hotrows simulate DATA --store file --disk "
            f"measured` says how much"
        )


def measure_disk(
    folder: Path, stride: int = 128, seconds: float = 1.0, size: int | None = None,
    train: Callable[[], object] | None = None,
) -> DiskRates:  # fmt: skip
    """Measures the disk of a folder.

    stride: bytes of a record; seconds: of reading; size: bytes of the store that is made. train: called
    while another thread reads row by row.
    """
    size, chance = size or _SIZE, torch.Generator().manual_seed(0)
    if shutil.disk_usage(folder).free < 3 * size:
        raise full(folder / "store", 3 * size)
    num_rows = size // stride
    num_near, rows_of_block = min(_NEAR // stride, num_rows), max(BLOCK // stride, 1)

    def far() -> Tensor:
        return torch.randint(0, num_rows, (_ROWS,), generator=chance).unique()

    def near() -> Tensor:
        first = torch.randint(0, num_rows - num_near + 1, (), generator=chance)
        return torch.arange(num_near) + first

    def of_blocks() -> Tensor:
        return near()[::rows_of_block]

    pieces: list[float] = []  # seconds of those of merging
    with tempfile.TemporaryDirectory(prefix=".disk-", dir=folder) as temporary:
        store = FileStore.create(
            Path(temporary) / "store", num_rows, stride, lambda rows, out: None, {}, log_rows=num_rows
        )
        with store:
            written = _timed(lambda: _write(store, torch.arange(num_rows)))
            merged_all = _timed(lambda: _merge(store))
            store.note_times(lambda stage, lane, begin, end: pieces.append(end - begin))
            short = _timed_reads(store, seconds, far)
            beside = short if train is None else _reads_beside(store, far, train)
            long = _timed_reads(store, seconds / 2, of_blocks)
            nearby = _timed_reads(store, seconds / 4, near)
            merged = _Spent()
            for n in range(_MERGES):  # of logs that are full: a row for each block
                _write(store, torch.arange(n, num_rows, rows_of_block))
                merged += _timed(lambda: _merge(store))
    # Solve for the cost of each kind of request.
    row_seconds = nearby.processor / nearby.rows
    more_rows = num_rows - num_rows / rows_of_block
    more_seconds = merged_all.processor - merged.processor / _MERGES
    return DiskRates(
        reads_per_second=short.requests / short.seconds,
        bytes_read_per_second=long.rows * rows_of_block * stride / long.seconds,
        bytes_per_second=size / written.seconds,
        merged_per_second=_MERGES * size / sum(pieces),
        request_seconds=max(short.processor / short.rows - row_seconds, 0.0),
        row_seconds=row_seconds,
        write_seconds=written.processor / num_rows,
        merge_seconds=merged.processor / (_MERGES * size),
        merge_row_seconds=max(more_seconds / more_rows, 0.0) if more_rows else 0.0,
        sync_seconds=(merged.seconds - sum(pieces)) / _MERGES,
        beside=short.requests / short.seconds * beside.seconds / beside.requests,
    )


@dataclass(frozen=True)
class _Spent(Summed):
    """Seconds that something took, those of processors, and what was read meanwhile."""

    seconds: float = 0.0
    processor: float = 0.0
    rows: int = 0
    requests: int = 0


def _timed(call: Callable[[], object]) -> _Spent:
    begin, processor = time.perf_counter(), time.process_time()
    call()
    return _Spent(time.perf_counter() - begin, time.process_time() - processor)


def _write(store: FileStore, rows: Tensor) -> None:
    """Writes rows, and makes them durable."""
    records = torch.randint(0, 256, (min(_WRITTEN, len(rows)), store.stride), dtype=torch.uint8)
    for some in rows.split(_WRITTEN):
        store.write(some, records[: len(some)])
    store.checkpoint()


def _merge(store: FileStore) -> None:
    """Merges what was written."""
    store.retain(store.generations)
    store.merge_now()


def _reads_beside(store: FileStore, choose: Callable[[], Tensor], train: Callable[[], object]) -> _Spent:
    """Reads rows while the calling thread trains."""
    is_trained = Event()
    with ThreadPoolExecutor(1) as reader:
        reads = reader.submit(_timed_reads, store, math.inf, choose, is_trained)
        try:
            train()
        finally:
            is_trained.set()
        return reads.result()


def _timed_reads(
    store: FileStore, seconds: float, choose: Callable[[], Tensor], ended: Event | None = None
) -> _Spent:
    """Reads rows for so long, or until that has ended; at least once. choose: returns those to read at
    once."""
    spent = _Spent()
    while not spent.rows or (spent.seconds < seconds and not (ended and ended.is_set())):
        rows, before = choose(), store.counters["requests"]
        out = torch.empty(len(rows), store.stride, dtype=torch.uint8)
        spent += _timed(partial(store.read, rows, out))
        spent += _Spent(rows=len(rows), requests=store.counters["requests"] - before)
    return spent
