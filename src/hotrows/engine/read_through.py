"""Where the rows of plans are: all in memory, or in slots in front of a store.

Behind a cache, a batch with more distinct rows than there are slots moves nothing, and neither does one
that was not planned for training. Its rows are read through the cache, from their slots or from the
store, some at a time, and written back at the update; a device holds them from one to the other, where
they fit there at once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Container, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial

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
from hotrows.runtime.shapes import Float32, Int64, UInt8

_LEAST_CHUNK = 256  # rows
_MOST_HELD = 4 << 30  # bytes of rows that a device holds at once

Update = Callable[[int, Tensor, PackPlan, Tensor, slice], None]


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
        layouts: Sequence[RecordLayout],
        device: Device,
    ) -> None:
        self.groups, self._packs = tuple(groups), [group.packs for group in groups]
        self._stores, self._layouts, self._device = stores, layouts, device
        self._place = {  # of each pack: its group, and its place there
            p: (g, i) for g, packs in enumerate(self._packs) for i, p in enumerate(packs)
        }

    def is_resident(self, plan: Plan, p: int) -> bool:
        """True if every row of the plan's batch has a slot in the group of pack p."""
        return True

    def in_slots(self, p: int) -> UInt8[Tensor, "C _"]:
        """The records of pack p that slots of plans number."""
        return self._stores[p].records

    def lookup(
        self, p: int, plan: Plan
    ) -> tuple[UInt8[Tensor, "_ _"], list[int], Int64[Tensor, "{plan.packs[p].num_rows}"]]:
        """Returns what `ops.pool` reads for pack p: records, their layout, and the slots of the plan's
        rows in these."""
        return self.in_slots(p), self._layouts[p].as_ints(), plan.packs[p].slots

    def rows_of(self, p: int, plan: Plan) -> Int64[Tensor, "U"]:
        """The rows that a plan reads of pack p, where `records` takes them."""
        return plan.packs[p].rows

    def records(self, p: int, rows: Int64[Tensor, "m"]) -> UInt8[Tensor, "m _"]:
        """Copies of the present records of `rows`, distinct and ascending, where these are."""
        records = torch.empty(
            rows.numel(), self._layouts[p].stride, dtype=torch.uint8, device=rows.device
        )
        ops.copy_rows(self._stores[p].records, rows.clamp(min=0), records, None)
        return records

    def weights_of(self, p: int, rows: Int64[Tensor, "m"]) -> Tensor:
        """The present weights of `rows`, as stored, in host memory."""
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
        return {p: self._stores[p].records[first:end] for p in self._packs[g]}, lambda changed: None

    def begin(self, plan: Plan, g: int, records: Sequence[Tensor]) -> None:
        """Makes records in host memory, of each pack, those of a plan's new rows of group g."""
        for p, of_pack in zip(self._packs[g], records, strict=True):
            ops.copy_rows(self._device.put(of_pack), None, self.in_slots(p), plan.new_rows[g].slots)

    def updates(self, plan: Plan, g: int, update: Update) -> list[partial[None]]:
        """Returns what updates the rows that a plan reads of group g: each pack where it is.

        update(p, records, part, slots, places): updates pack p, whose `part` of the plan has only the
        rows at `places` of all, and whose records are at `slots`.
        """
        parts = [(p, plan.packs[p]) for p in self._packs[g]]
        return [partial(update, p, self.in_slots(p), part, part.slots, slice(None)) for p, part in parts]

    def note_update(self, plan: Plan, g: int) -> None:
        """Notes that slots of a plan change, for who writes them back."""

    def catch_up(self, p: int, rows: Int64[Tensor, "U"], dense_rows: DenseRows) -> None:
        """Lets rows of pack p that are trained without slots make the steps that they missed."""


class BehindCache(AllInMemory):
    """Rows behind caches: in slots, or without any.

    cached: the groups of all packs; layouts: of the records of each pack; device: where lookups are
    computed. dense_rows: packs whose rows of a batch are updated at once, since what rows catch up
        together decides on their rounding.
    """

    def __init__(
        self,
        cached: Sequence[CachedGroup],
        layouts: Sequence[RecordLayout],
        device: Device,
        dense_rows: Container[int] = (),
    ) -> None:
        super().__init__([of_group.group for of_group in cached], (), layouts, device)
        self._cached, self._unsplit = cached, dense_rows
        self._held: dict[int, tuple[Plan, Tensor]] = {}  # by group: a plan's rows, on the device

    def lookup(
        self, p: int, plan: Plan
    ) -> tuple[UInt8[Tensor, "_ _"], list[int], Int64[Tensor, "{plan.packs[p].num_rows}"]]:
        """As of rows in memory; the bits of rows without slots are those of rows in slots."""
        if self.is_resident(plan, p):
            return super().lookup(p, plan)
        g, i = self._place[p]
        if self._may_hold(plan, g):
            records = self._of_packs(g, self._hold(plan, g))[i][1]
            layout = self._layouts[p].as_ints()
        else:  # distinct rows, chunk by chunk; bags are made from the block of all
            block = self._device.put(self.weights(p, plan.host.packs[p].rows))
            records, layout = block.view(torch.uint8), RecordLayout(block.shape[1]).as_ints()
        return records, layout, torch.arange(plan.packs[p].num_rows, device=records.device)

    def weights(self, p: int, rows: Int64[Tensor, "m"]) -> Float32[Tensor, "m D"]:
        """The present weights of `rows`, distinct and ascending, in host memory."""
        layout = self._layouts[p].as_ints()
        block = torch.empty(rows.numel(), layout[0])
        for begin, end in chunks(rows.numel(), _chunk_rows(self._cache(self._place[p][0]))):
            records, places = self.records(p, rows[begin:end]), torch.arange(end - begin)
            block[begin:end] = ops.pool(records, layout, places, places.int(), None, None)
        return block

    def records(self, p: int, rows: Int64[Tensor, "m"]) -> UInt8[Tensor, "m _"]:
        """The present records of `rows` in a pack, in host memory."""
        g, i = self._place[p]
        return self._of_packs(g, self._cache(g).read(rows))[i][1]

    def rows_of(self, p: int, plan: Plan) -> Int64[Tensor, "U"]:
        return plan.host.packs[p].rows

    def weights_of(self, p: int, rows: Int64[Tensor, "m"]) -> Tensor:
        with self.paused():
            return views(self.records(p, rows), self._layouts[p].as_ints()).read()

    def span(self, p: int, first: int, end: int) -> UInt8[Tensor, "m _"]:
        with self.paused():
            return self.records(p, torch.arange(first, end))

    def opened(
        self, g: int, first: int, end: int
    ) -> tuple[dict[int, UInt8[Tensor, "m _"]], Callable[[Tensor], None]]:
        rows = torch.arange(first, end)
        records = self._cache(g).read(rows)

        def write(changed: Tensor) -> None:
            self._cache(g).write(rows[changed], records[changed])

        return dict(self._of_packs(g, records)), write

    def is_resident(self, plan: Plan, p: int) -> bool:
        return bool(plan.moves) and not plan.moves[self._place[p][0]].bypasses_cache

    def in_slots(self, p: int) -> UInt8[Tensor, "C _"]:
        g, i = self._place[p]
        return self._cache(g).arenas[i]

    def begin(self, plan: Plan, g: int, records: Sequence[Tensor]) -> None:
        if self.is_resident(plan, self._packs[g][0]):
            super().begin(plan, g, records)
            self._cache(g).mark_changed(plan.new_rows[g].slots)
        else:
            cache, rows = self._cache(g), plan.host.new_rows[g].rows
            spaced = torch.zeros(len(rows), cache.store.stride, dtype=torch.uint8)  # gaps, too
            for part, of_pack in zip(cache.of_packs(spaced), records, strict=True):
                part.copy_(of_pack)
            cache.write(rows, spaced)

    def catch_up(self, p: int, rows: Int64[Tensor, "U"], dense_rows: DenseRows) -> None:
        dense_rows.catch_up_stored(self._cached[self._place[p][0]], rows)

    def note_update(self, plan: Plan, g: int) -> None:
        first = self._packs[g][0]
        if self.is_resident(plan, first):
            self._cache(g).mark_changed(plan.packs[first].slots)

    def updates(self, plan: Plan, g: int, update: Update) -> list[partial[None]]:
        """As of rows in memory; rows without slots are updated and written back at once."""
        if self.is_resident(plan, self._packs[g][0]):
            return super().updates(plan, g, update)
        self._update(plan, g, update)
        return []

    def _update(self, plan: Plan, g: int, update: Update) -> None:
        if self._may_hold(plan, g):
            self._update_held(g, plan, update)
            return
        cache, put = self._cache(g), self._device.put
        first = self.groups[g].packs[0]
        all_rows, host_rows = plan.packs[first], plan.host.packs[first].rows
        splits = not any(p in self._unsplit for p in self.groups[g].packs)
        size = _chunk_rows(cache) if splits else max(all_rows.num_rows, 1)
        for begin, end in chunks(all_rows.num_rows, size):
            records = put(cache.read(host_rows[begin:end]))
            slots = put(torch.arange(end - begin))
            rows = all_rows.rows[begin:end]
            for p, pack_records in self._of_packs(g, records):
                starts = plan.packs[p].starts[begin : end + 1]
                part = dataclasses.replace(plan.packs[p], rows=rows, slots=slots, starts=starts)
                update(p, pack_records, part, slots, slice(begin, end))
            cache.write(host_rows[begin:end], records.cpu())

    def _update_held(self, g: int, plan: Plan, update: Update) -> None:
        """Updates records that the lookup has read to the device."""
        first, records = self.groups[g].packs[0], self._hold(plan, g)
        slots = torch.arange(plan.packs[first].num_rows, device=records.device)
        for p, pack_records in self._of_packs(g, records):
            update(p, pack_records, plan.packs[p], slots, slice(None))
        self._cache(g).write_on_device(*_rows_of(plan, first), records)
        self._held.pop(g, None)

    def _may_hold(self, plan: Plan, g: int) -> bool:
        """True if a device holds the plan's rows from the lookup to the update."""
        group = self.groups[g]
        num_bytes = plan.packs[group.packs[0]].num_rows * group.stride
        return not self._device.on_host and num_bytes <= _MOST_HELD

    def _hold(self, plan: Plan, g: int) -> UInt8[Tensor, "U stride"]:
        """The records of a plan's rows on the device, read once for all packs."""
        held_plan, records = self._held.pop(g, (None, None))
        if records is None or held_plan is not plan:
            rows = _rows_of(plan, self.groups[g].packs[0])
            records = self._cache(g).read_on_device(*rows)
        if torch.is_grad_enabled():  # else there is no update to come
            self._held[g] = plan, records
        return records

    def _cache(self, g: int) -> Cache:
        return self._cached[g].cache

    def _of_packs(self, g: int, records: Tensor) -> list[tuple[int, Tensor]]:
        """Each pack of a group with its part of the group's records."""
        return list(zip(self.groups[g].packs, self._cache(g).of_packs(records), strict=True))


def _rows_of(plan: Plan, p: int) -> tuple[Int64[Tensor, "U"], Int64[Tensor, "U"]]:
    """The rows that a plan reads of a pack, without padding: in host memory, and on the device."""
    rows = plan.host.packs[p].rows
    return rows, plan.packs[p].rows[: len(rows)]


def _chunk_rows(cache: Cache) -> int:
    """How many rows that bypass a cache are held at once: as many as it has slots, about."""
    return min(max(cache.num_slots, _LEAST_CHUNK), CHUNK_ROWS)
