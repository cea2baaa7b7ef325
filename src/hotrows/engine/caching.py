"""Settings of a cache in front of a store, and counts of the rows that it moved."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor

from hotrows.engine.planning.policy import Lookahead, Policy
from hotrows.runtime.atomic_files import local
from hotrows.runtime.settings import CACHE_TRANSFERS, SPLITS
from hotrows.runtime.sums import Summed

FILE = "file:"


@dataclass(frozen=True)
class Caching:
    """Settings of a cache in front of a store; they change no bit of any result.

    fast_memory: bytes of the records in the cache's slots.
    store: where all rows are: `memory`, or `file:PATH`, a folder made when training begins.
    policy: which rows stay in slots.
    in_flight: number of batches between their first move and their write-back at most.
    lookahead_memory: bytes of metadata of the batches in the window of `Lookahead`, or of slot maps on
        a device; None: a quarter of `fast_memory`, 64 MiB at least.
    memory_split: how groups of packs share fast memory, see `engine.planning.slot_budget.divide`.
    cache_transfer: how rows are copied between host memory and a device: `zero_copy`, the device reads
        and writes them itself, or `staged`, the host gathers them and copies blocks; rows of files are
        always staged.
    map_slots: where slots are mapped to rows: on the `host`, or on the `device` where it can; with
        `auto`, without a warning where it cannot.
    hot_ids: by table, the ids whose rows the policy `Hot` keeps in slots, the most popular first;
        under any policy the cache begins with them.

    >>> Caching(fast_memory=1 << 30, store="file:tables").path.name
    'tables'
    """

    fast_memory: int
    store: str = "memory"
    policy: Policy = field(default_factory=Lookahead)
    in_flight: int = 4
    lookahead_memory: int | None = None
    hot_ids: Mapping[str, Tensor] | None = None
    memory_split: str = "reads"
    cache_transfer: str = "zero_copy"
    map_slots: str = "host"

    def __post_init__(self) -> None:
        if self.store != "memory" and not (self.path and str(self.path) != "."):
            raise ValueError(f"store must be 'memory' or 'file:PATH', not {self.store!r}")
        if self.path and not hasattr(os, "pread"):
            raise ValueError("store='file:PATH' needs Linux, macOS or WSL 2; here tables are in memory")
        if self.in_flight < 1:
            raise ValueError(f"in_flight must be at least 1, not {self.in_flight}")
        if self.cache_transfer not in CACHE_TRANSFERS:
            raise ValueError(
                f"cache_transfer must be one of {', '.join(CACHE_TRANSFERS)}, not {self.cache_transfer!r}"
            )
        if self.memory_split not in SPLITS:
            raise ValueError(
                f"memory_split must be one of {', '.join(SPLITS)}, not {self.memory_split!r}"
            )

    @property
    def path(self) -> Path | None:
        """The folder of a file store."""
        is_file = isinstance(self.store, str) and self.store.startswith(FILE)
        return local(self.store[len(FILE) :]) if is_file else None

    @property
    def can_grow(self) -> bool:
        """True if the store takes room as rows come: memory that a device reads by itself is locked."""
        return self.path is not None or self.cache_transfer != "zero_copy"

    @property
    def lookahead_bytes(self) -> int:
        if self.lookahead_memory is not None:
            return self.lookahead_memory
        return max(self.fast_memory // 4, 64 << 20)


@dataclass(frozen=True)
class CacheTraffic(Summed):
    """Counts of what batches moved.

    rows: distinct ones that batches read; rows_in: those of them that were not in fast memory;
    bytes_in, bytes_out: of records moved.
    """

    rows: int = 0
    rows_in: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
