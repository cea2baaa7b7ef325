"""ReadThrough: rows without slots, read through the caches for a lookup and written back at the update.

A batch with more distinct rows than there are slots moves nothing, and neither does one that was not
planned for training. Its rows are read from their slots or from the store, some at a time; a device
holds them from the lookup to the update, where they fit there at once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Container, Sequence

import torch
from torch import Tensor

from hotrows import ops
from hotrows.engine.cached_tables import CachedGroup
from hotrows.plan import PackPlan, Plan
from hotrows.record import RecordLayout
from hotrows.runtime.device import Device
from hotrows.shapes import Float32, Int64, UInt8
from hotrows.storage.cache import CHUNK_ROWS, Cache, chunks

_LEAST_CHUNK = 256  # rows
_MOST_HELD = 4 << 30  # bytes of rows that a device holds at once

Update = Callable[[int, Tensor, PackPlan, Tensor, slice], None]


class ReadThrough:
    """Lookups and updates of rows that have no slots.

    groups: of all packs; layouts: of the records of each pack; device: where lookups are computed.
    unsplit: packs whose rows of a batch are updated at once, since what rows catch up together
        decides on their rounding.
    """

    def __init__(
        self,
        groups: Sequence[CachedGroup],
        layouts: Sequence[RecordLayout],
        device: Device,
        unsplit: Container[int] = (),
    ) -> None:
        self._groups, self._layouts, self._device, self._unsplit = groups, layouts, device, unsplit
        self._place = {  # of each pack: its group, and its place there
            p: (g, i) for g, cached in enumerate(groups) for i, p in enumerate(cached.group.packs)
        }
        self._held: dict[int, tuple[Plan, Tensor]] = {}  # by group: a plan's rows, on the device

    def lookup(
        self, p: int, plan: Plan
    ) -> tuple[UInt8[Tensor, "_ _"], list[int], Int64[Tensor, "{plan.packs[p].num_rows}"]]:
        """Returns what `ops.pool` reads for pack p: records, their layout, and the slots of the plan's
        rows in these.

        The bits are those of rows in the cache's slots.
        """
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

    def write(self, g: int, rows: Int64[Tensor, "m"], records: UInt8[Tensor, "m _"]) -> None:
        """Makes records in host memory the present ones of `rows` of a group."""
        self._cache(g).write(rows, records)

    def update(self, g: int, plan: Plan, update: Update) -> None:
        """Updates the rows that a plan reads of a group, and writes them back.

        update(p, records, part, slots, places): updates pack p, whose `part` of the plan has only the
        rows at `places` of all, and whose records are at `slots`.
        """
        if self._may_hold(plan, g):
            self._update_held(g, plan, update)
            return
        cache, put = self._cache(g), self._device.put
        first = self._groups[g].group.packs[0]
        all_rows, host_rows = plan.packs[first], plan.host.packs[first].rows
        splits = not any(p in self._unsplit for p in self._groups[g].group.packs)
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
        first, records = self._groups[g].group.packs[0], self._hold(plan, g)
        slots = torch.arange(plan.packs[first].num_rows, device=records.device)
        for p, pack_records in self._of_packs(g, records):
            update(p, pack_records, plan.packs[p], slots, slice(None))
        self._cache(g).write_on_device(*_rows_of(plan, first), records)
        self._held.pop(g, None)

    def _may_hold(self, plan: Plan, g: int) -> bool:
        """True if a device holds the plan's rows from the lookup to the update."""
        group = self._groups[g].group
        num_bytes = plan.packs[group.packs[0]].num_rows * group.stride
        return not self._device.on_host and num_bytes <= _MOST_HELD

    def _hold(self, plan: Plan, g: int) -> UInt8[Tensor, "U stride"]:
        """The records of a plan's rows on the device, read once for all packs."""
        held_plan, records = self._held.pop(g, (None, None))
        if records is None or held_plan is not plan:
            rows = _rows_of(plan, self._groups[g].group.packs[0])
            records = self._cache(g).read_on_device(*rows)
        if torch.is_grad_enabled():  # else there is no update to come
            self._held[g] = plan, records
        return records

    def _cache(self, g: int) -> Cache:
        return self._groups[g].cache

    def _of_packs(self, g: int, records: Tensor) -> list[tuple[int, Tensor]]:
        """Each pack of a group with its part of the group's records."""
        return list(zip(self._groups[g].group.packs, self._cache(g).of_packs(records), strict=True))


def _rows_of(plan: Plan, p: int) -> tuple[Int64[Tensor, "U"], Int64[Tensor, "U"]]:
    """The rows that a plan reads of a pack, without padding: in host memory, and on the device."""
    rows = plan.host.packs[p].rows
    return rows, plan.packs[p].rows[: len(rows)]


def _chunk_rows(cache: Cache) -> int:
    """How many rows that bypass a cache are held at once: as many as it has slots, about."""
    return min(max(cache.num_slots, _LEAST_CHUNK), CHUNK_ROWS)
