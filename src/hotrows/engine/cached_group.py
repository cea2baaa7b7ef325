"""CachedGroup: the rows of the tables that batches read together, behind a cache."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor

from hotrows.engine.caching import CacheTraffic
from hotrows.engine.planning.device_slots import DeviceSlots
from hotrows.engine.planning.packing import Group, Pack
from hotrows.engine.planning.policy import Lookahead, Policy
from hotrows.engine.planning.slots import Allocation, SlotMap
from hotrows.engine.storage.cache import Cache
from hotrows.engine.storage.file_store import FileStore
from hotrows.engine.storage.store_view import ReadOnlyStore, RecordSource
from hotrows.ops.plan import Moves, NewRows, PackPlan
from hotrows.runtime.device import Device
from hotrows.runtime.shapes import Int64

_SLOT_BYTES = (
    90  # of planning for a slot at most (`engine.planning.slots`), and of the cache's own record
)


class CachedGroup:
    """The rows of one group of packs: a cache in front of the store that has all of them.

    group: the packs and their records. slots: which row is in which slot, as far as batches are
        planned. policy: which rows stay in slots; in_flight: how many batches may be between their
        first move and their write-back; lookahead_bytes: see `SlotMap`. device: maps the slots; None:
        the host does.
    """

    slots: SlotMap | DeviceSlots

    def __init__(
        self,
        group: Group,
        cache: Cache,
        policy: Policy,
        in_flight: int = 1,
        lookahead_bytes: int | None = None,
        device: Device | None = None,
    ) -> None:
        self.group, self.cache = group, cache
        self._lookahead_bytes, self._device, self._hinted = lookahead_bytes, device, False
        self.slots = self._slot_map(policy, in_flight)

    def _slot_map(self, policy: Policy, in_flight: int) -> SlotMap | DeviceSlots:
        num_slots = self.cache.num_slots
        if self._device is None:
            return SlotMap(
                num_slots,
                policy,
                in_flight,
                lookahead_bytes=self._lookahead_bytes,
                num_rows=self.group.rows,
                hinted=self._hinted,
            )
        assert isinstance(policy, Lookahead)
        return DeviceSlots(self.group.rows, num_slots, policy, in_flight, self._device)

    @property
    def host_slots(self) -> SlotMap:
        """The slots, where the host maps them."""
        assert isinstance(self.slots, SlotMap)
        return self.slots

    # ---- planning

    def take(
        self, part: PackPlan, new: NewRows | None, next_uses: Tensor | None = None
    ) -> tuple[Allocation, NewRows | None]:
        """Plans the moves of the next batch, from the plan of one of the group's packs.

        Returns the slots of the rows that it reads, and of those that stand for new keys.
        next_uses: of the rows that it reads, where the map is told of these.
        """
        if new is None:
            return self.host_slots.allocate(part.rows, next_uses), None
        rows = torch.cat([part.rows, new.rows]).unique()
        taken = self.host_slots.allocate(rows)
        slots, of_new = (taken.slots[torch.searchsorted(rows, r)] for r in (part.rows, new.rows))
        return dataclasses.replace(taken, slots=slots), dataclasses.replace(new, slots=of_new)

    def traffic(self, part: PackPlan, moves: Moves) -> CacheTraffic:
        """Counts what a batch moves; rows that bypass the cache come in twice and go out once."""
        bypassing = int((part.slots < 0).sum()) if moves.bypasses_cache else 0
        rows_in, rows_out = moves.rows_in.numel(), moves.rows_out.numel()
        return CacheTraffic(
            rows=part.num_rows,
            rows_in=rows_in + bypassing,
            bytes_in=(rows_in + 2 * bypassing) * self.group.stride,
            bytes_out=(rows_out + bypassing) * self.group.stride,
        )

    def describe(self, packs: Sequence[Pack]) -> str:
        """How many of the group's rows fast memory holds. packs: all, of which it has some."""
        names = ", ".join(packs[p].name for p in self.group.packs)
        rows, bytes_ = self.group.rows, self.group.rows * self.group.stride
        of_store = self.cache.store.memory_bytes if isinstance(self.cache.store, FileStore) else 0
        beside = f", {of_store / 2**20:,.0f} MiB for the file store" if of_store else ""
        return (
            f"{names}: {self.cache.num_slots:,} of {rows:,} rows in fast memory "
            f"({self.cache.num_bytes / 2**20:,.1f} of {bytes_ / 2**20:,.1f} MiB); beside them at most "
            f"{self.planning_bytes / 2**20:,.0f} MiB for planning{beside}"
        )

    @property
    def planning_bytes(self) -> int:
        """Bytes of memory at most that say which row is where, and which rows are read next."""
        return (self._lookahead_bytes or 0) + _SLOT_BYTES * self.cache.num_slots

    def forget_plans(self) -> None:
        """Empties the cache; batches planned and not trained are forgotten, and all that were fed.

        What was not flushed is lost.
        """
        self.cache.clear()
        self.slots = self._slot_map(self.slots.policy, self.slots.in_flight)

    def warm(self, rows: Int64[Tensor, "_"]) -> None:
        """Fills the empty cache with rows, those wanted most first; before the first batch is fed."""
        self.cache.warm(self.slots.warm(rows))

    def fit(self, policy: Policy, in_flight: int) -> None:
        """Plans batches to come for so many in flight; the pipeline is paused and the rows stay."""
        if self.slots.in_flight != in_flight:
            self._map_anew(policy, in_flight)

    def use_hints(self, hinted: bool) -> None:
        """Lets the map be told of next uses, or look ahead by itself; the pipeline is paused."""
        if hinted != self._hinted:
            self._hinted = hinted
            self._map_anew(self.slots.policy, self.slots.in_flight)

    def _map_anew(self, policy: Policy, in_flight: int) -> None:
        rows = self.cache.rows
        self.cache.flush(keeps=False)
        self.cache.clear()
        self.slots = self._slot_map(policy, in_flight)
        self.warm(rows)

    # ---- rows; the pipeline is paused

    def move(self, moves: Moves) -> None:
        """Moves the rows of a batch, every stage in turn."""
        self.cache.move(moves)

    def bring(self, rows: Int64[Tensor, "U"]) -> Int64[Tensor, "U"] | None:
        """Brings rows, distinct and ascending, into slots; returns these.

        None: there are more rows than slots, and nothing moves.
        """
        self.host_slots.end()
        taken = self.host_slots.allocate(rows)
        self.move(taken.moves)
        return None if taken.moves.bypasses_cache else taken.slots

    def bound_log(self) -> None:
        """Closes the log of a file store that has grown long: where no run takes checkpoints."""
        store = self.cache.store
        if isinstance(store, FileStore) and store.wants_checkpoint:
            store.retain([store.checkpoint()])

    def read_from(self, source: RecordSource) -> None:
        """Reads rows from a source from here on, and trains no more."""
        self.cache.clear()
        self.cache.store = ReadOnlyStore(self.group.stride, source)

    def close(self) -> None:
        """Closes the source that it reads from, if any."""
        if isinstance(self.cache.store, ReadOnlyStore):
            self.cache.store.close()
