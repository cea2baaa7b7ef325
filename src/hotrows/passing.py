"""Passing: rows without slots, read through the caches for a lookup and written back at the update.

A batch with more distinct rows than there are slots moves nothing, and neither does one that was not
planned for training. Its rows are read where they are, in a slot or in the store, some at a time; a
device holds them from the lookup to the update, where they fit there at once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from hotrows import ops
from hotrows.device import Device
from hotrows.plan import PackPlan, Plan
from hotrows.planning.packing import Group
from hotrows.record import RecordLayout
from hotrows.storage.cache import CHUNK_ROWS, Cache, chunks
from hotrows.storage.device_cache import DeviceCache

_LEAST_CHUNK = 256  # rows
_MOST_HELD = 4 << 30  # bytes of rows that a device holds at once

Update = Callable[[int, Tensor, PackPlan, Tensor, slice], None]


class Passing:
    """caches, groups: in front of what, by group; layouts: of the records of each pack."""

    def __init__(
        self,
        caches: Sequence[Cache],
        groups: Sequence[Group],
        layouts: Sequence[RecordLayout],
        device: Device,
    ) -> None:
        self._caches, self._groups, self._layouts = caches, groups, layouts
        self._device = device
        self._held: dict[int, tuple[Plan, Tensor]] = {}  # by group: a plan's rows, on the device

    def looked_up(self, p: int, plan: Plan) -> tuple[Tensor, list[int], Tensor]:
        """What `ops.pool` reads for pack p: records, their layout, and the places of the plan's rows.

        The bits are those of rows in slots.
        """
        g, i = self._place(p)
        if self._is_held(plan, g):
            records = self._hold(plan, g).split(list(self._groups[g].strides), 1)[i]
            layout = self._layouts[p].as_ints()
        else:  # distinct rows, chunk by chunk; bags are made from the whole block
            block = self._device.put(self.weights(p, plan.host.packs[p].rows))
            records, layout = block.view(torch.uint8), RecordLayout(block.shape[1]).as_ints()
        return records, layout, torch.arange(plan.packs[p].num_rows, device=records.device)

    def weights(self, p: int, rows: Tensor) -> Tensor:
        """[m, D] float32 in host memory: the present weights of `rows`, distinct and ascending."""
        layout = self._layouts[p].as_ints()
        block = torch.empty(rows.numel(), layout[0])
        for begin, end in chunks(rows.numel(), _chunk_rows(self._caches[self._place(p)[0]])):
            own, each = self.own(p, rows[begin:end]), torch.arange(end - begin)
            block[begin:end] = ops.pool(own, layout, each, each.int(), None, None)
        return block

    def own(self, p: int, rows: Tensor) -> Tensor:
        """[m, stride] in host memory: the present records of `rows` in a pack."""
        g, i = self._place(p)
        return self._caches[g].read(rows).split(list(self._groups[g].strides), 1)[i]

    def update(self, g: int, plan: Plan, update: Update) -> None:
        """Updates the rows that a plan reads of a group, and writes them back: each row as ever.

        update(p, records, part, slots, rows): of pack p, whose `part` of the plan has only those rows,
        places `rows` of all, and whose records stand at `slots`.
        """
        if self._is_held(plan, g):
            self._update_held(g, plan, update)
            return
        group, cache, put = self._groups[g], self._caches[g], self._device.put
        first = group.packs[0]
        whole, on_host = plan.packs[first], plan.host.packs[first]
        for begin, end in chunks(whole.num_rows, _chunk_rows(cache)):
            records, slots = (
                put(cache.read(on_host.rows[begin:end])),
                put(torch.arange(end - begin)),
            )
            rows, starts = whole.rows[begin:end], whole.starts[begin : end + 1]
            for p, own in self._of_packs(g, records):
                part = dataclasses.replace(plan.packs[p], rows=rows, starts=starts)
                update(p, own, part, slots, slice(begin, end))
            cache.write(on_host.rows[begin:end], records.cpu())

    def _update_held(self, g: int, plan: Plan, update: Update) -> None:
        """The same on the device, with the records that the lookup has read."""
        first, records = self._groups[g].packs[0], self._hold(plan, g)
        slots = torch.arange(plan.packs[first].num_rows, device=records.device)
        for p, own in self._of_packs(g, records):
            update(p, own, plan.packs[p], slots, slice(None))
        self._device_cache(g).write_here(*_rows_of(plan, first), records)
        self._held.pop(g, None)

    def _is_held(self, plan: Plan, g: int) -> bool:
        num_bytes = plan.packs[self._groups[g].packs[0]].num_rows * self._groups[g].stride
        return isinstance(self._caches[g], DeviceCache) and num_bytes <= _MOST_HELD

    def _hold(self, plan: Plan, g: int) -> Tensor:
        """[U, stride]: the records of a plan's rows on the device, read once for all packs."""
        held, records = self._held.pop(g, (None, None))
        if records is None or held is not plan:
            rows = _rows_of(plan, self._groups[g].packs[0])
            records = self._device_cache(g).read_here(*rows)
        if torch.is_grad_enabled():  # else there is no update to come
            self._held[g] = plan, records
        return records

    def _device_cache(self, g: int) -> DeviceCache:
        cache = self._caches[g]
        assert isinstance(cache, DeviceCache)
        return cache

    def _of_packs(self, g: int, records: Tensor) -> list[tuple[int, Tensor]]:
        """Each pack of a group with its part of the group's records."""
        group = self._groups[g]
        return list(zip(group.packs, records.split(list(group.strides), 1), strict=True))

    def _place(self, p: int) -> tuple[int, int]:
        """The group of a pack, and its place there."""
        return next((g, of.packs.index(p)) for g, of in enumerate(self._groups) if p in of.packs)


def _rows_of(plan: Plan, p: int) -> tuple[Tensor, Tensor]:
    """The rows that a plan reads of a pack, without padding: in host memory, and on the device."""
    rows = plan.host.packs[p].rows
    return rows, plan.packs[p].rows[: len(rows)]


def _chunk_rows(cache: Cache) -> int:
    """How many rows that pass through are held at once: as many as there are slots, about."""
    return min(max(cache.num_slots, _LEAST_CHUNK), CHUNK_ROWS)
