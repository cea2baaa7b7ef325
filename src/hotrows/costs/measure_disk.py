"""Measures a disk as a file store uses it, in a few seconds.

    disk = measure_disk(Path("tables").parent)     # reads_per_second, bytes_per_second, ...
    disk.warning                                   # None, or why training from it will be slow

A store of a quarter GiB is made there, written, merged and read row by row, and deleted.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from hotrows.storage.disk_io import full
from hotrows.storage.file_store import FileStore

SLOW_READS, SLOW_BYTES = 10_000, 50e6  # below, training waits most of the time

_SIZE = 256 << 20  # bytes of the store
_ROWS = 4000  # read at once: those of a batch that are not in fast memory
_WRITTEN = 1 << 16  # rows written at once


@dataclass(frozen=True)
class DiskRates:
    """Rates of a disk under a file store, and what a row takes of a processor.

    reads_per_second: rows at random places, some thousand at once. bytes_per_second: of records
    appended and synced; merged_per_second: of tables rewritten by a merge.
    read_seconds, write_seconds: of one processor, for a row.
    """

    reads_per_second: float
    bytes_per_second: float
    merged_per_second: float
    read_seconds: float
    write_seconds: float

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
    folder: Path, stride: int = 128, seconds: float = 1.0, size: int | None = None
) -> DiskRates:
    """Measures the disk of a folder.

    stride: bytes of a record; seconds: of reading; size: bytes of the store that is made.
    """
    size = size or _SIZE
    if shutil.disk_usage(folder).free < 3 * size:
        raise full(folder / "store", 3 * size)
    num_rows = size // stride
    with tempfile.TemporaryDirectory(prefix=".disk-", dir=folder) as temporary:
        store = FileStore.create(
            Path(temporary) / "store", num_rows, stride, lambda rows, out: None, {}, log_rows=num_rows
        )
        with store:
            wrote, write_seconds = _timed(lambda: _write(store))
            merged, _ = _timed(lambda: _merge(store))
            read, read_seconds = _timed(lambda: _read(store, seconds))
            reads = store.counters["rows_read"]
    return DiskRates(
        reads / read, size / wrote, size / merged, read_seconds / reads, write_seconds / num_rows
    )


def _timed(call: Callable[[], None]) -> tuple[float, float]:
    """Seconds that a call takes, and those of processors."""
    begin, processors = time.perf_counter(), time.process_time()
    call()
    return time.perf_counter() - begin, time.process_time() - processors


def _write(store: FileStore) -> None:
    """Writes every row, and makes it durable."""
    records = torch.randint(0, 256, (min(_WRITTEN, store.num_rows), store.stride), dtype=torch.uint8)
    for begin in range(0, store.num_rows, _WRITTEN):
        rows = torch.arange(begin, min(begin + _WRITTEN, store.num_rows))
        store.write(rows, records[: len(rows)], keeps=True)
    store.checkpoint()


def _merge(store: FileStore) -> None:
    """Merges what was written."""
    store.retain(store.generations)
    store.merge_now()


def _read(store: FileStore, seconds: float) -> None:
    """Reads random rows for so long."""
    chance, begin = torch.Generator().manual_seed(0), time.perf_counter()
    while time.perf_counter() - begin < seconds:
        rows = torch.randint(0, store.num_rows, (_ROWS,), generator=chance).unique()
        store.read(rows, torch.empty(len(rows), store.stride, dtype=torch.uint8))
