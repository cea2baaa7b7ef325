"""Where rows are: all in memory, or in slots in front of a store.

`AllInMemory` and `BehindCache` have a rank's rows. Which of these objects has those of a plan, `of` says
once; all have the same verbs:

    InSlots     each row has a slot: its own in memory, or one of the cache, where moves have put it
    OnDevice    rows without slots: a device reads them at the lookup, and holds them until the update
    InChunks    rows without slots, on the host or too many to be held: some at a time

    where.begin(plan, g, records)           gives rows that stand for new keys their first values
    where.catch_up(plan, g, p, dense_rows)  makes the steps that rows to be trained have missed
    where.read(plan, g, p)                  the records that a lookup reads
    for part in where.parts(plan, g): ..    those that an update changes, and stored behind it
    where.note_update(plan, g)              says that they change, to who writes them back

Behind a cache, rows have no slots where a batch has more of them than there are slots, and where it was
not planned for training. They are then read through the cache: from their slots or from the store.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
from torch import Tensor

from hotrows import ops
from hotrows.engine.cached_group import CachedGroup
from hotrows.engine.dense_rows import DenseRows
from hotrows.engine.planning.packing import Group
from hotrows.engine.storage.cache import CHUNK_ROWS, Cache, chunks
from hotrows.engine.storage.store import MemoryStore
from hotrows.ops.plan import PackPlan, Plan
from hotrows.ops.record import RecordLayout, views
from hotrows.runtime.device import Device
from hotrows.runtime.shapes import Int64, UInt8

_LEAST_CHUNK = 256  # rows
_MOST_HELD = 4 << 30  # bytes of rows that a device holds at once


@dataclass(frozen=True)
class StoredRows:
    """Rows of a pack where they are: records, their layout, and the slot of each row among them."""

    records: UInt8[Tensor, "C _"]
    layout: list[int]
    slots: Int64[Tensor, "U"]


@dataclass(frozen=True)
class ChangingRows:
    """Rows of pack p that an update changes, whose records are at `slots`.

    part: of the plan, with these rows alone, which are those at `places` of all.
    """

    p: int
    records: UInt8[Tensor, "C _"]
    part: PackPlan
    slots: Int64[Tensor, "U"]
    places: slice


@dataclass(frozen=True)
class InSlots:
    """Rows that have slots.

    groups: of packs; layouts: of the records of each pack; device: where these are.
    records_of: those of a group's pack that slots number. changed: called with a group and its slots
    that training changes. waits: whether a lookup makes the host and the device wait for one another.
    """

    groups: Sequence[Group]
    layouts: Sequence[list[int]]
    device: Device
    records_of: Callable[[int, int], UInt8[Tensor, "C _"]]
    changed: Callable[[int, Int64[Tensor, "U"]], None] = lambda g, slots: None
    waits: ClassVar[bool] = False

    def begin(self, plan: Plan, g: int, records: Sequence[Tensor]) -> None:
        """Makes records in host memory, of each pack, those of a plan's new rows of group g."""
        slots = plan.new_rows[g].slots
        for p, of_pack in zip(self.groups[g].packs, records, strict=True):
            ops.copy_rows(self.device.put(of_pack), None, self.records_of(g, p), slots)
        self.changed(g, slots)

    def catch_up(self, plan: Plan, g: int, p: int, dense_rows: DenseRows) -> bool:
        """Lets the plan's rows of pack p make the steps that they missed, where they are: True."""
        part = plan.packs[p]
        dense_rows.catch_up(p, self.records_of(g, p), part.rows, part.slots)
        return True

    def read(self, plan: Plan, g: int, p: int) -> StoredRows:
        """The plan's rows of pack p in group g, for a lookup."""
        return StoredRows(self.records_of(g, p), self.layouts[p], plan.packs[p].slots)

    def parts(self, plan: Plan, g: int) -> Iterator[ChangingRows]:
        """Yields the rows of group g that an update changes: each pack's at once."""
        for p in self.groups[g].packs:
            part = plan.packs[p]
            yield ChangingRows(p, self.records_of(g, p), part, part.slots, slice(None))

    def note_update(self, plan: Plan, g: int) -> None:
        self.changed(g, plan.packs[self.groups[g].packs[0]].slots)


@dataclass(frozen=True)
class _WithoutSlots:
    """Rows behind a cache that have no slots; its verbs are those of `InSlots`."""

    cached: Sequence[CachedGroup]
    layouts: Sequence[list[int]]
    device: Device
    waits: ClassVar[bool] = True

    def begin(self, plan: Plan, g: int, records: Sequence[Tensor]) -> None:
        cache, rows = self.cached[g].cache, plan.host.new_rows[g].rows
        spaced = torch.zeros(len(rows), cache.store.stride, dtype=torch.uint8)  # gaps, too
        for part, of_pack in zip(cache.of_packs(spaced), records, strict=True):
            part.copy_(of_pack)
        cache.write(rows, spaced)

    def catch_up(self, plan: Plan, g: int, p: int, dense_rows: DenseRows) -> bool:
        """As `InSlots` where sums of squares are followed; False: a lookup lets copies catch up."""
        dense_rows.catch_up_stored(self.cached[g], plan.packs[p].rows)
        return False

    def note_update(self, plan: Plan, g: int) -> None:
        """Says nothing: rows without slots are written back at once."""


@dataclass(frozen=True)
class OnDevice(_WithoutSlots):
    """Rows without slots that a device holds; held: by group, those of a plan that was looked up."""

    held: dict[int, tuple[Plan, Tensor]] = field(default_factory=dict)

    def read(self, plan: Plan, g: int, p: int) -> StoredRows:
        records = of_pack(self.cached[g], self._hold(plan, g), p)
        slots = torch.arange(plan.packs[p].num_rows, device=records.device)
        return StoredRows(records, self.layouts[p], slots)

    def parts(self, plan: Plan, g: int) -> Iterator[ChangingRows]:
        cache, packs, records = self.cached[g].cache, self.cached[g].group.packs, self._hold(plan, g)
        slots = torch.arange(plan.packs[packs[0]].num_rows, device=records.device)
        for p, part in zip(packs, cache.of_packs(records), strict=True):
            yield ChangingRows(p, part, plan.packs[p], slots, slice(None))
        rows = plan.host.packs[packs[0]].rows
        cache.write_on_device(rows, plan.packs[packs[0]].rows[: len(rows)], records)
        self.held.pop(g, None)

    def _hold(self, plan: Plan, g: int) -> UInt8[Tensor, "U stride"]:
        """The records of a plan's rows on the device, read once for all packs."""
        held_plan, records = self.held.pop(g, (None, None))
        if records is None or held_plan is not plan:
            p = self.cached[g].group.packs[0]
            rows = plan.host.packs[p].rows  # without padding, which the device's have behind
            records = self.cached[g].cache.read_on_device(rows, plan.packs[p].rows[: len(rows)])
        if torch.is_grad_enabled():  # else there is no update to come
            self.held[g] = plan, records
        return records


@dataclass(frozen=True)
class InChunks(_WithoutSlots):
    """Rows without slots, some at a time. unsplit: packs whose rows of a batch are updated at once, since
    what rows catch up together decides on their rounding."""

    unsplit: Container[int] = ()

    def read(self, plan: Plan, g: int, p: int) -> StoredRows:
        """Reads the weights of distinct rows, from whose block bags are made."""
        cache, layout, rows = self.cached[g].cache, self.layouts[p], plan.host.packs[p].rows
        block = torch.empty(rows.numel(), layout[0])
        for begin, end in chunks(rows.numel(), _chunk_rows(cache)):
            records = of_pack(self.cached[g], cache.read(rows[begin:end]), p)
            places = torch.arange(end - begin)
            block[begin:end] = ops.pool(records, layout, places, places.int(), None, None)
        weights = self.device.put(block).view(torch.uint8)
        slots = torch.arange(plan.packs[p].num_rows, device=weights.device)
        return StoredRows(weights, RecordLayout(layout[0]).as_ints(), slots)

    def parts(self, plan: Plan, g: int) -> Iterator[ChangingRows]:
        cache, packs, put = self.cached[g].cache, self.cached[g].group.packs, self.device.put
        all_rows, host_rows = plan.packs[packs[0]], plan.host.packs[packs[0]].rows
        splits = not any(p in self.unsplit for p in packs)
        size = _chunk_rows(cache) if splits else max(all_rows.num_rows, 1)
        for begin, end in chunks(all_rows.num_rows, size):
            records, slots = put(cache.read(host_rows[begin:end])), put(torch.arange(end - begin))
            rows = all_rows.rows[begin:end]
            for p, of_chunk in zip(packs, cache.of_packs(records), strict=True):
                starts = plan.packs[p].starts[begin : end + 1]
                part = replace(plan.packs[p], rows=rows, slots=slots, starts=starts)
                yield ChangingRows(p, of_chunk, part, slots, slice(begin, end))
            cache.write(host_rows[begin:end], records.cpu())


RowsOfPlan = InSlots | OnDevice | InChunks


class AllInMemory:
    """The rows of all packs in memory: every row that a plan reads has a slot, which is its row.

    groups: of packs; stores: of all packs; layouts: of the records of each; device: where these are.
    paused: within, no row moves between slots and store.
    """

    paused: Callable[[], AbstractContextManager[None]] = nullcontext

    def __init__(
        self,
        groups: Sequence[Group],
        stores: Sequence[MemoryStore],
        layouts: Sequence[list[int]],
        device: Device,
    ) -> None:
        self.groups, self._stores = tuple(groups), stores
        self._in_slots = InSlots(self.groups, layouts, device, lambda g, p: stores[p].records)

    def rows_of(self, plan: Plan, g: int) -> RowsOfPlan:
        """What has the plan's rows of group g."""
        return self._in_slots

    def copies(self, plan: Plan, g: int, p: int) -> tuple[Int64[Tensor, "U"], UInt8[Tensor, "U _"]]:
        """The rows that a plan reads of pack p, and copies of their present records."""
        rows, stored = plan.packs[p].rows, self._stores[p].records
        records = torch.empty(len(rows), stored.shape[1], dtype=torch.uint8, device=rows.device)
        ops.copy_rows(stored, rows.clamp(min=0), records, None)
        return rows, records

    def weights_of(self, p: int, rows: Int64[Tensor, "m"]) -> Tensor:
        """The present weights of `rows`, distinct and ascending, as stored, in host memory."""
        stored = self._stores[p]
        return stored.views.read(rows.to(stored.records.device)).cpu()

    def span(self, p: int, first: int, end: int) -> UInt8[Tensor, "m _"]:
        """The present records of adjacent rows in host memory: copies, or views of what is there."""
        return self._stores[p].copy_out(first, end)

    def opened(
        self, g: int, first: int, end: int
    ) -> tuple[dict[int, UInt8[Tensor, "m _"]], Callable[[Tensor], None]]:
        """The records of adjacent rows of group g by pack, to be changed in place, and what is then
        called with which of them were, [m] bool."""
        packs = self.groups[g].packs
        return {p: self._stores[p].records[first:end] for p in packs}, lambda changed: None


class BehindCache:
    """The rows of all packs behind caches; its verbs are those of `AllInMemory`.

    cached: the groups of all packs; layouts: of the records of each pack; device: where lookups are
    computed. dense_rows: `InChunks.unsplit`.
    """

    paused: Callable[[], AbstractContextManager[None]] = nullcontext

    def __init__(
        self,
        cached: Sequence[CachedGroup],
        layouts: Sequence[list[int]],
        device: Device,
        dense_rows: Container[int],
    ) -> None:
        self.groups, self._cached, self._layouts = tuple(c.group for c in cached), cached, layouts
        self._group_of = {p: c for c in cached for p in c.group.packs}
        self._in_slots = InSlots(self.groups, layouts, device, self._arena, self._changed)
        self._on_device = OnDevice(cached, layouts, device)
        self._in_chunks = InChunks(cached, layouts, device, dense_rows)
        self._most_held = -1 if device.on_host else _MOST_HELD  # the host holds none, not even 0 bytes

    def rows_of(self, plan: Plan, g: int) -> RowsOfPlan:
        if plan.moves and not plan.moves[g].bypasses_cache:
            return self._in_slots
        num_bytes = plan.packs[self.groups[g].packs[0]].num_rows * self.groups[g].stride
        return self._on_device if num_bytes <= self._most_held else self._in_chunks

    def copies(self, plan: Plan, g: int, p: int) -> tuple[Int64[Tensor, "U"], UInt8[Tensor, "U _"]]:
        rows = plan.host.packs[p].rows
        return rows, self._read(p, rows)

    def weights_of(self, p: int, rows: Int64[Tensor, "m"]) -> Tensor:
        with self.paused():
            return views(self._read(p, rows), self._layouts[p]).read()

    def span(self, p: int, first: int, end: int) -> UInt8[Tensor, "m _"]:
        with self.paused():
            return self._read(p, torch.arange(first, end))

    def opened(
        self, g: int, first: int, end: int
    ) -> tuple[dict[int, UInt8[Tensor, "m _"]], Callable[[Tensor], None]]:
        rows, cache = torch.arange(first, end), self._cached[g].cache
        records = cache.read(rows)

        def write(changed: Tensor) -> None:
            cache.write(rows[changed], records[changed])

        return dict(zip(self.groups[g].packs, cache.of_packs(records), strict=True)), write

    def _read(self, p: int, rows: Int64[Tensor, "m"]) -> UInt8[Tensor, "m _"]:
        return of_pack(self._group_of[p], self._group_of[p].cache.read(rows), p)

    def _arena(self, g: int, p: int) -> UInt8[Tensor, "C _"]:
        return self._cached[g].cache.arenas[self.groups[g].packs.index(p)]

    def _changed(self, g: int, slots: Int64[Tensor, "U"]) -> None:
        self._cached[g].cache.mark_changed(slots)


def of_pack(cached: CachedGroup, records: Tensor, p: int) -> Tensor:
    """The part of a group's records that pack p has."""
    return cached.cache.of_packs(records)[cached.group.packs.index(p)]


def _chunk_rows(cache: Cache) -> int:
    """How many rows that bypass a cache are held at once: as many as it has slots, about."""
    return min(max(cache.num_slots, _LEAST_CHUNK), CHUNK_ROWS)
