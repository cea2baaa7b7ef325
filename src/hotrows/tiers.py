"""Tiers: the rows of a model in two tiers, a cache in fast memory in front of a store.

For every group of packs that read the same rows there is a cache with its slots, a map that plans
which row sits in which slot, and a store where all rows live. The map is ahead of the caches by as
many batches as are planned; caches and stores only obey it.

    tiers.feed(rows)             the rows of batches to come, as far ahead as `wants` says
    plan = tiers.take(plan)      the next batch's plan, with its slots and moves
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from hotrows.device import HOST, Device, aligned
from hotrows.piece import Piece, Shard
from hotrows.plan import Plan
from hotrows.planning.budget import SPLITS, divide
from hotrows.planning.packing import Group
from hotrows.planning.policy import Hot, Lookahead, Policy
from hotrows.planning.slots import SlotMap, Taken
from hotrows.planning.threads import Threads
from hotrows.storage.cache import Cache
from hotrows.storage.device_cache import WAYS, DeviceCache
from hotrows.storage.file import FileStore
from hotrows.storage.store import FirstValues, HostStore, MemoryStore, Store

FILE = "file:"


@dataclass(frozen=True)
class Caching:
    """How rows are kept where fast memory does not hold all of them; changes no bit of any result.

    fast_memory: bytes of the records held in fast memory.
    store: where all rows live: `memory`, or `file:PATH`, a folder made when training begins.
    policy: which rows stay. in_flight: how many batches may be on their way at once.
    lookahead_memory: bytes of ids waiting in the window of `Lookahead`; None: a quarter of
        `fast_memory`, 64 MiB at least.
    memory_split: how groups of packs share fast memory, see `planning.budget.divide`.
    way: how rows go between host memory and a device: `direct`, the device reads and writes them
        itself, or `staged`, the host gathers them and blocks are copied; those of files are staged.
    hot_ids: by table, the ids that the policy `Hot` keeps, the most popular first; under any policy
        the cache begins with them.
    """

    fast_memory: int
    store: str = "memory"
    policy: Policy = Lookahead()  # noqa: RUF009  (frozen)
    in_flight: int = 4
    lookahead_memory: int | None = None
    hot_ids: Mapping[str, Tensor] | None = None
    memory_split: str = "reads"
    way: str = "direct"

    def __post_init__(self) -> None:
        if self.store != "memory" and not (self.path and str(self.path) != "."):
            raise ValueError(f"store must be 'memory' or 'file:PATH', not {self.store!r}")
        if self.in_flight < 1:
            raise ValueError(f"in_flight must be at least 1, not {self.in_flight}")
        if self.way not in WAYS:
            raise ValueError(f"way must be one of {', '.join(WAYS)}, not {self.way!r}")
        if self.memory_split not in SPLITS:
            raise ValueError(
                f"memory_split must be one of {', '.join(SPLITS)}, not {self.memory_split!r}"
            )

    @property
    def path(self) -> Path | None:
        """The folder of a file store."""
        return Path(self.store[len(FILE) :]) if self.store.startswith(FILE) else None

    @property
    def lookahead_bytes(self) -> int:
        if self.lookahead_memory is not None:
            return self.lookahead_memory
        return max(self.fast_memory // 4, 64 << 20)


@dataclass(frozen=True)
class Moved:
    """What batches moved: distinct rows, those that were not in fast memory, bytes in and out."""

    rows: int = 0
    rows_in: int = 0
    bytes_in: int = 0
    bytes_out: int = 0

    def __add__(self, other: Moved) -> Moved:
        return Moved(
            self.rows + other.rows,
            self.rows_in + other.rows_in,
            self.bytes_in + other.bytes_in,
            self.bytes_out + other.bytes_out,
        )


class Tiers:
    """Caches, slot maps and stores of all groups.

    shards: what this rank holds of each pack; groups: of packs; first_values: how the rows of each
    begin; seed: theirs.
    stores: what holds the packs in host memory; none where they live in files. read_only: files are
    not opened for training: `view` says what is read. device: where fast memory is. threads: those
    that plan groups side by side; None: the caller alone.
    """

    def __init__(
        self,
        caching: Caching,
        shards: Sequence[Shard],
        groups: Sequence[Group],
        first_values: Sequence[FirstValues],
        stores: Sequence[MemoryStore],
        seed: int,
        read_only: bool = False,
        device: Device = HOST,
        threads: Threads | None = None,
    ) -> None:
        self._threads = threads or Threads()
        self.caching, self.groups, self.device = caching, tuple(groups), device
        self._shards, self._first_values, self._seed = shards, first_values, seed
        # Too little fast memory is refused before a store is made.
        num_slots = [1] * len(groups)
        if not read_only:
            num_slots = divide(caching.fast_memory, _as_held(groups, device), caching.memory_split)
        self.files: tuple[FileStore, ...] = ()
        if caching.path is not None and not read_only:
            self.files = tuple(map(self._open, range(len(groups))))
        self.caches = tuple(
            self._cache(num_slots[g], group.strides, self._store(g, stores))
            for g, group in enumerate(groups)
        )
        self.forget_plans()

    # ---- planning

    @property
    def wants(self) -> bool:
        """Whether another batch should be fed before moves are planned."""
        return any(slots.wants() for slots in self.slots)

    def feed(self, rows: Sequence[Tensor]) -> None:
        """Shows planning a batch that will come: the rows, [N] with repeats, of each group."""
        self._threads.map(lambda g: self.slots[g].feed(rows[g]), range(len(self.groups)))

    def feed_end(self) -> None:
        """No batch comes after those fed."""
        for slots in self.slots:
            slots.end()

    def take(self, plan: Plan) -> Plan:
        """The plan of the next batch with its slots, and with the rows that it moves."""

        def take(g: int) -> Taken:
            return self.slots[g].take(plan.packs[self.groups[g].packs[0]].rows)

        packs, taken = list(plan.packs), self._threads.map(take, range(len(self.groups)))
        for group, found in zip(self.groups, taken, strict=True):
            for p in group.packs:
                packs[p] = dataclasses.replace(packs[p], slots=found.slots)
        return dataclasses.replace(
            plan,
            packs=tuple(packs),
            moves=tuple(found.moves for found in taken),
            waits_for=max(found.waits_for for found in taken),
        )

    def moved(self, plan: Plan) -> Moved:
        """What a plan moves; rows that pass through come in twice and go out once."""
        total, plan = Moved(), plan.host
        for group, moves in zip(self.groups, plan.moves or (), strict=False):
            part = plan.packs[group.packs[0]]
            passing = int((part.slots < 0).sum()) if moves.passes_through else 0
            rows_in, rows_out = moves.rows_in.numel(), moves.rows_out.numel()
            total += Moved(
                rows=part.num_rows,
                rows_in=rows_in + passing,
                bytes_in=(rows_in + 2 * passing) * group.stride,
                bytes_out=(rows_out + passing) * group.stride,
            )
        return total

    @property
    def num_planned(self) -> int:
        """How many batches have been planned since the plans were last forgotten."""
        return self.slots[0].taken

    def forget_plans(self) -> None:
        """Empties the caches; batches planned and not trained are forgotten, what they fed too.

        What was not flushed is lost.
        """
        share = self.caching.lookahead_bytes // len(self.groups)
        for cache in self.caches:
            cache.clear()
        self.slots = tuple(
            SlotMap(
                cache.num_slots, self._policy(group), self.caching.in_flight, lookahead_bytes=share
            )
            for group, cache in zip(self.groups, self.caches, strict=True)
        )

    def warm(self) -> None:
        """Fills the caches with the hot ids, where there are any; before the first batch is fed."""
        for group, cache, slots in zip(self.groups, self.caches, self.slots, strict=True):
            rows = self._hot_rows(group)
            if rows is not None:
                cache.warm(slots.warm(rows))

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
        rows = [_rows_of(hot_ids[shard.tables[of.table].name], of) for of in shard.pieces]
        return torch.cat(rows) if rows else torch.empty(0, dtype=torch.int64)

    # ---- the stores; the pipeline rests

    def flush(self) -> None:
        """Writes all trained rows to the stores."""
        for cache in self.caches:
            cache.flush()

    @property
    def wants_checkpoint(self) -> bool:
        """Whether a file store has gathered so much since its last checkpoint that it wants one."""
        return any(store.wants_checkpoint for store in self.files)

    def checkpoint(self) -> list[int]:
        """Makes the file stores durable as they are; returns the number of each one's checkpoint."""
        self.flush()
        return [store.checkpoint() for store in self.files]

    def retain(self, checkpoints: Sequence[Sequence[int]]) -> None:
        """These checkpoints of the file stores will be asked for again, no other."""
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
            [FileStore.view_at(*self._file_arguments(g), of) for g, of in enumerate(checkpoint)]
        )

    def read_from(self, sources: Sequence[Source]) -> None:
        """Reads rows from these, one for each group, and trains no more."""
        self.close()
        for group, cache, source in zip(self.groups, self.caches, sources, strict=True):
            cache.clear()
            cache.store = _ReadOnly(group.stride, source)

    def stop_writing(self) -> None:
        """Closes the file stores that are open for training."""
        for store in self.files:
            store.close()
        self.files = ()

    def close(self) -> None:
        """Closes whatever is open; nothing may be looked up afterwards."""
        self.stop_writing()
        for cache in self.caches:
            if isinstance(cache.store, _ReadOnly):
                cache.store.close()

    def _cache(self, num_slots: int, strides: tuple[int, ...], store: Store) -> Cache:
        if self.device.on_host:
            return Cache(num_slots, strides, store)
        direct = self.caching.way == "direct" and isinstance(store, HostStore)
        return DeviceCache(num_slots, strides, store, self.device, direct)

    def _store(self, g: int, stores: Sequence[MemoryStore]) -> Store:
        if self.files:
            return self.files[g]
        if self.caching.path is not None:
            return _ReadOnly(self.groups[g].stride)
        return HostStore([stores[p] for p in self.groups[g].packs])

    def _open(self, g: int) -> FileStore:
        arguments = self._file_arguments(g)
        exists = arguments[0].exists()
        return FileStore.open(*arguments) if exists else FileStore.create(*arguments)

    def _file_arguments(self, g: int) -> tuple[Path, int, int, Callable, dict[str, Any]]:
        """Where a group's file store is and what it holds, as `FileStore` takes it."""
        assert self.caching.path is not None
        group = self.groups[g]
        tables = [
            {**_described(piece, self._shards[p]), **self._first_values[p].layout.to_json()}
            for p in group.packs
            for piece in self._shards[p].pieces
        ]
        meta = {"seed": self._seed, "tables": tables}
        path = self.caching.path / _folder(self._shards[group.packs[0]]) / f"group-{g}"
        rows = max(group.rows, 1)  # a rank may have none of a group, a file has at least one
        return path, rows, group.stride, self.first_values(g), meta

    def first_values(self, g: int) -> Callable[[Tensor, Tensor], None]:
        """What makes records of a group the first ones of their rows: fill(rows, records)."""
        group = self.groups[g]

        def fill(rows: Tensor, records: Tensor) -> None:
            for p, own in zip(group.packs, records.split(list(group.strides), 1), strict=True):
                self._first_values[p].fill(own, rows)

        return fill


def _as_held(groups: Sequence[Group], device: Device) -> Sequence[Group]:
    """The groups with the bytes that their records take in fast memory."""
    if device.on_host:
        return groups
    return [
        dataclasses.replace(group, strides=tuple(map(aligned, group.strides))) for group in groups
    ]


def _rows_of(ids: Tensor, piece: Piece) -> Tensor:
    """The rows of those ids that a piece holds."""
    place = ids - piece.first_id
    row = place // piece.id_step
    held = (place >= 0) & (place % piece.id_step == 0) & (row < piece.num_rows)
    return row[held] + piece.first_row


def _described(piece: Piece, shard: Shard) -> dict[str, Any]:
    """What a file store says of the ids that it holds."""
    table = shard.tables[piece.table]
    if shard.is_whole:
        return {"name": table.name, "rows": table.rows}
    return {
        "name": table.name, "rows": piece.num_rows, "first_id": piece.first_id,
        "id_step": piece.id_step, "columns": list(shard.columns),
    }  # fmt: skip


def _folder(shard: Shard) -> str:
    """Where a rank's stores are in the folder of all."""
    return "" if shard.is_whole else f"rank-{shard.rank}-of-{shard.num_ranks}"


class Source(Protocol):
    """Records of a group that can be read, and closed."""

    def read(self, rows: Tensor, out: Tensor) -> None:
        """As a store's."""

    def close(self) -> None:
        """Reads no more."""


class _ReadOnly:
    """A file store that is not open for training; source: one of its checkpoints, once it is known."""

    def __init__(self, stride: int, source: Source | None = None) -> None:
        self.stride = stride
        self._source = source

    def read(self, rows: Tensor, out: Tensor) -> None:
        if self._source is None:
            raise ValueError("the tables are in a file store: load a checkpoint of the run first")
        self._source.read(rows, out)

    def write(self, rows: Tensor, records: Tensor, keeps: bool = False) -> None:
        raise ValueError("this file store is open for reading alone; train with `Trainer`")

    def close(self) -> None:
        if self._source is not None:
            self._source.close()
