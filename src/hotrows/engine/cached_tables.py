"""CachedTables: the rows of a model in two tiers, a cache in fast memory in front of a store.

For every group of packs that read the same rows there is a `CachedGroup`: a store where all rows live,
a cache with its slots, and a map that plans which row sits in which slot. The map describes the
batches that are planned, ahead of those whose rows the cache has; cache and store only obey it.

    cached_tables.feed(rows)           the rows of batches to come, as far ahead as `wants` says
    plan = cached_tables.take(plan)    the next batch's plan, with its slots and moves
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hotrows.engine.cached_group import CachedGroup
from hotrows.engine.caching import CacheTraffic, Caching
from hotrows.engine.planning import device_slots
from hotrows.engine.planning.device_slots import DeviceSlots
from hotrows.engine.planning.packing import Group
from hotrows.engine.planning.policy import Hot, Policy
from hotrows.engine.planning.slot_budget import divide
from hotrows.engine.planning.slots import Allocation
from hotrows.engine.planning.threads import Threads
from hotrows.engine.storage.cache import Cache
from hotrows.engine.storage.file_store import FileStore
from hotrows.engine.storage.store import HostStore, InitialValues, MemoryStore, Store
from hotrows.engine.storage.store_view import ReadOnlyStore, RecordSource, view_at
from hotrows.ops.plan import NewRows, Plan
from hotrows.ops.record import RankShard, TableSlice
from hotrows.runtime.device import HOST, Device, aligned
from hotrows.runtime.shapes import Int64, UInt8

log = logging.getLogger("hotrows")

_LOG_ROWS = 1 << 20  # records in the log of a store that grows, so that its index stays small


class CachedTables:
    """The cached groups of all tables; without any, and false, where all rows are in memory.

    shards: what this rank holds of each pack; groups: of packs; initial_values: of the rows of each
    pack; seed: theirs. stores: the packs in host memory; none where they live in files.
    read_only: files are not opened for training: `view` says what is read. device: where fast memory
    is. threads: those that plan groups side by side; None: the caller alone.
    """

    def __init__(
        self,
        caching: Caching,
        shards: Sequence[RankShard],
        groups: Sequence[Group],
        initial_values: Sequence[InitialValues],
        stores: Sequence[MemoryStore],
        seed: int,
        read_only: bool = False,
        device: Device = HOST,
        threads: Threads | None = None,
    ) -> None:
        self._threads = threads or Threads()
        self.caching, self._device = caching, device
        self._shards, self._groups = shards, tuple(groups)
        self._initial_values, self._seed = initial_values, seed
        # Too little fast memory is refused before a store is made.
        num_slots = (
            [1] * len(groups)
            if read_only
            else divide(caching.fast_memory, _sizes_in_fast_memory(groups, device), caching.memory_split)
        )
        self.files: tuple[FileStore, ...] = ()
        self.is_in_files = caching.path is not None
        self._has_requested = False  # a checkpoint
        if self.is_in_files and not read_only:
            self.files = tuple(map(self._open, range(len(groups))))
        caches = [
            self._cache(num_slots[g], group.strides, self._store(g, stores))
            for g, group in enumerate(groups)
        ]
        window = caching.lookahead_bytes // max(len(groups), 1)
        self.maps_on_device = self._maps_on_device(num_slots, read_only)
        maps = device if self.maps_on_device else None
        self.groups = tuple(
            CachedGroup(group, cache, self._policy(group), caching.in_flight, window, maps)
            for group, cache in zip(groups, caches, strict=True)
        )

    def __bool__(self) -> bool:
        return bool(self.groups)

    def _maps_on_device(self, num_slots: Sequence[int], read_only: bool) -> bool:
        """True if the device maps the slots; logs why, where it was to and cannot."""
        caching = self.caching
        if caching.map_slots == "host" or read_only:
            return False
        most = max(caching.fast_memory, caching.lookahead_bytes)
        reason = device_slots.refusal(
            caching.policy, [group.rows for group in self._groups], num_slots, most
        )
        if reason is not None:
            level = logging.WARNING if caching.map_slots == "device" else logging.INFO
            log.log(level, "slots of the cache are mapped on the host, since %s", reason)
        return reason is None

    @property
    def device_slots(self) -> list[DeviceSlots]:
        """The slots of each group, where the device maps them."""
        return [group.slots for group in self.groups if isinstance(group.slots, DeviceSlots)]

    # ---- planning

    @property
    def wants(self) -> bool:
        """True if another batch should be fed before moves are planned."""
        return any(group.host_slots.wants() for group in self.groups)

    def feed(self, rows: Sequence[Tensor]) -> None:
        """Shows planning a batch to come: the rows, [N] with repeats, of each group."""
        self._threads.map(lambda g: self.groups[g].host_slots.feed(rows[g]), range(len(self.groups)))

    def feed_end(self) -> None:
        """Says that no batch comes after those fed."""
        for group in self.groups:
            group.host_slots.end()

    def take(self, plan: Plan, next_uses: Sequence[Tensor | None] = ()) -> Plan:
        """The plan of the next batch with its slots, and with the rows that it moves. next_uses: of its
        rows, by group, where the maps are told of these."""

        def take(g: int) -> tuple[Allocation, NewRows | None]:
            part = plan.packs[self.groups[g].group.packs[0]]
            new = plan.new_rows[g] if plan.new_rows else None
            return self.groups[g].take(part, new, next_uses[g] if next_uses else None)

        packs, results = list(plan.packs), self._threads.map(take, range(len(self.groups)))
        taken = [places for places, _ in results]
        for cached, places in zip(self.groups, taken, strict=True):
            for p in cached.group.packs:
                packs[p] = dataclasses.replace(packs[p], slots=places.slots)
        return dataclasses.replace(
            plan,
            packs=tuple(packs),
            moves=tuple(places.moves for places in taken),
            waits_for=max(places.waits_for for places in taken),
            new_rows=tuple(new for _, new in results if new is not None),
        )

    def traffic(self, plan: Plan) -> CacheTraffic:
        """Counts what a plan moves."""
        plan, total = plan.host, CacheTraffic()
        pairs = zip(self.groups, plan.moves, strict=False)
        return sum((g.traffic(plan.packs[g.group.packs[0]], moves) for g, moves in pairs), total)

    def use_hints(self, hinted: bool) -> None:
        """Lets the maps be told of next uses, or look ahead by themselves; the pipeline is paused."""
        for group in () if self.maps_on_device else self.groups:
            group.use_hints(hinted)

    @property
    def num_planned(self) -> int:
        """How many batches have been planned since the plans were last forgotten."""
        return self.groups[0].slots.num_allocated if self.groups else 0

    def forget_plans(self) -> None:
        """Empties the caches; batches planned and not trained are forgotten, and all that were fed.

        What was not flushed is lost.
        """
        self._has_requested = False
        for group in self.groups:
            group.forget_plans()

    def warm(self) -> None:
        """Fills the caches with the hot ids, where there are any; before the first batch is fed."""
        for cached in self.groups:
            rows = self._hot_rows(cached.group)
            if rows is not None:
                cached.warm(rows)

    def _policy(self, group: Group) -> Policy:
        if not isinstance(self.caching.policy, Hot):
            return self.caching.policy
        rows = self._hot_rows(group)
        if rows is None:
            raise ValueError(
                "policy 'hot' needs to know which rows are hot: train on data that `hotrows "
                "regroup` has laid out, or pass Caching(hot_ids=...)"
            )
        return Hot(rows)

    def _hot_rows(self, group: Group) -> Tensor | None:
        """The rows of a group that are hot."""
        if self.caching.hot_ids is None:
            return None
        shard, hot_ids = self._shards[group.packs[0]], self.caching.hot_ids
        rows = [piece.rows_of(hot_ids[shard.tables[piece.table].name]) for piece in shard.slices]
        return torch.cat(rows) if rows else torch.empty(0, dtype=torch.int64)

    # ---- the stores; the pipeline is paused

    def flush(self) -> None:
        """Writes all trained rows to the stores."""
        for group in self.groups:
            group.cache.flush()

    def requests_checkpoint(self) -> bool:
        """True if the log of a file store is so long that it should be closed by a checkpoint.

        True once until there is one: while batches that were planned before are trained, the log is still
        as long.
        """
        is_new = not self._has_requested and any(store.wants_checkpoint for store in self.files)
        self._has_requested |= is_new
        return is_new

    def checkpoint(self) -> list[int]:
        """Makes the file stores durable as they are; returns the number of each one's checkpoint."""
        self.flush()
        self._has_requested = False
        return [store.checkpoint() for store in self.files]

    def retain(self, checkpoints: Sequence[Sequence[int]]) -> None:
        """Lets the file stores drop all checkpoints but these."""
        for store, *generations in zip(self.files, *checkpoints, strict=True):
            store.retain(sorted(set(generations)))

    def restore(self, checkpoint: Sequence[int] | None) -> None:
        """Brings the file stores back to a checkpoint of theirs; None: as they began."""
        for g, store in enumerate(self.files):
            store.restore(None if checkpoint is None else checkpoint[g])
        self.forget_plans()

    def view(self, checkpoint: Sequence[int]) -> None:
        """Reads the file stores as they were at a checkpoint, and trains no more."""
        self.close()
        self.read_from(
            [view_at(*self._file_arguments(g), generation) for g, generation in enumerate(checkpoint)]
        )

    def read_from(self, sources: Sequence[RecordSource]) -> None:
        """Reads rows from these, one for each group, and trains no more."""
        self.close()
        for group, source in zip(self.groups, sources, strict=True):
            group.read_from(source)

    def stop_writing(self) -> None:
        """Closes the file stores that are open for training."""
        for store in self.files:
            store.close()
        self.files = ()

    def close(self) -> None:
        """Closes whatever is open; nothing may be looked up afterwards."""
        self.stop_writing()
        for group in self.groups:
            group.close()

    def _cache(self, num_slots: int, strides: tuple[int, ...], store: Store) -> Cache:
        zero_copy = self.caching.cache_transfer == "zero_copy" and isinstance(store, HostStore)
        return Cache(num_slots, strides, store, self._device, zero_copy)

    def _store(self, g: int, stores: Sequence[MemoryStore]) -> Store:
        if self.files:
            return self.files[g]
        if self.is_in_files:
            return ReadOnlyStore(self._groups[g].stride)
        return HostStore([stores[p] for p in self._groups[g].packs])

    def _open(self, g: int) -> FileStore:
        arguments, tables = self._file_arguments(g), self._shards[self._groups[g].packs[0]].tables
        grows = any(table.grows for table in tables)
        log_rows = _LOG_ROWS if grows else None
        if arguments[0].exists():
            return FileStore.open(*arguments, log_rows=log_rows)
        return FileStore.create(*arguments, log_rows=log_rows, grows=grows)

    def _file_arguments(self, g: int) -> tuple[Path, int, int, Callable[..., Any], dict[str, Any]]:
        """Where a group's file store is and what it holds, as `FileStore` takes it."""
        assert self.caching.path is not None
        group = self._groups[g]
        tables = [
            {**_described(piece, self._shards[p]), **self._initial_values[p].layout.to_json()}
            for p in group.packs
            for piece in self._shards[p].slices
        ]
        meta = {"seed": self._seed, "tables": tables}
        path = self.caching.path / _folder(self._shards[group.packs[0]]) / f"group-{g}"
        rows = max(group.rows, 1)  # a rank may have none of a group, a file has at least one
        return path, rows, group.stride, self.initial_values(g), meta

    def initial_values(self, g: int) -> Callable[[Tensor, Tensor], None]:
        """fill(rows, records), which gives rows of a group their initial records."""
        group = self._groups[g]

        def fill(rows: Int64[Tensor, "m"], records: UInt8[Tensor, "m _"]) -> None:
            parts = records.split(list(group.strides), 1)
            for p, part in zip(group.packs, parts, strict=True):
                self._initial_values[p].fill(part, rows)

        return fill


def _sizes_in_fast_memory(groups: Sequence[Group], device: Device) -> Sequence[Group]:
    """The groups, their strides being the bytes that records take in fast memory."""
    if device.on_host:
        return groups
    return [dataclasses.replace(group, strides=tuple(map(aligned, group.strides))) for group in groups]


def _described(piece: TableSlice, shard: RankShard) -> dict[str, Any]:
    """Describes the ids of a file store, for its metadata."""
    table = shard.tables[piece.table]
    if shard.is_whole:
        return {"name": table.name, "rows": table.rows}
    ids = {"rows": piece.num_rows, "first_id": piece.first_id, "id_step": piece.id_step}
    return {"name": table.name, **ids, "columns": list(shard.columns)}


def _folder(shard: RankShard) -> str:
    """The folder of a rank's stores within that of all ranks."""
    return "" if shard.is_whole else f"rank-{shard.rank}-of-{shard.num_ranks}"
