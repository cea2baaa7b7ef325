"""Is a batch planned faster by threads of the host or by the device?

A batch of 65,536 samples and 26 fields, 1.7 M lookups. `host-N`: resolve and sort on N native threads,
in as many packs; `device`: the upload of the ids, then both there. With a cache's slots on top, for a
tenth of the rows: `cached-N` on the host, in as many maps as packs; `device-slots` on the device, where
`launches_ms` is what launching the slots takes of a thread.
"""

import time
from statistics import median

import torch
from torch import Tensor

from benchmarks.gpu_parts.part import Findings, Setting
from benchmarks.gpu_parts.timing import page_locked, seconds_of, timed
from benchmarks.gpu_parts.workloads import batches_of, embedding_of, tables_of, zipf_stream
from hotrows import ops
from hotrows.engine.planning import packing
from hotrows.engine.planning.device_slots import DeviceSlots
from hotrows.engine.planning.planner import Planner
from hotrows.engine.planning.policy import Lookahead
from hotrows.engine.planning.slots import SlotMap
from hotrows.engine.planning.threads import Threads
from hotrows.runtime.device import find

THREADS = (1, 2, 4, 8, 16)


def run(findings: Findings, setting: Setting) -> None:
    num_rows = [setting.pick(1_000_000, 200)] * 26
    batch_size = setting.pick(65_536, 64)
    num_batches = setting.pick(48, 4)
    stream = zipf_stream(num_rows, num_batches * batch_size, setting.device)
    batches = list(batches_of(stream, batch_size))
    embedding = embedding_of(tables_of(num_rows, 4), "sgd", setting.device)
    device = _OnDevice(num_rows, batch_size, setting)
    planned = embedding.plan(batches[0])
    findings.check_runs("the device plans the same", lambda: _compare(device, batches[0], planned))
    findings.demand_green()
    findings.add("upload", _upload(planned, setting))
    findings.add("device", device.times(batches[0]))
    findings.add("device-slots", device.slot_times(batches))
    for num in THREADS:
        host = _OnHost(embedding.tables, num)
        for name, work in {"host": host.plan, "cached": host.plan_cached}.items():
            seconds = seconds_of(lambda work=work: work(batches), setting)
            ms = 1e3 * seconds / num_batches
            figures = {"ms_per_batch": ms, "ns_per_lookup": 1e6 * ms / batches[0].ids.numel()}
            findings.add(f"{name}-{num}", figures)


class _OnHost:
    """Plans with so many threads and packs."""

    def __init__(self, tables, num: int) -> None:
        self._threads = Threads(num)
        self._packs = packing.pack_tables(tables, parts=num)
        self._planner = Planner(self._packs, threads=self._threads)

    def plan(self, batches: list) -> None:
        for batch in batches:
            self._planner.plan(batch)

    def plan_cached(self, batches: list) -> None:
        """With slots for a tenth of the rows, looking ahead."""
        maps = [SlotMap(max(pack.rows // 10, 1), Lookahead(), 4) for pack in self._packs]
        coming = iter(batches)
        for batch in batches:
            while any(slots.wants() for slots in maps):
                more = next(coming, None)
                rows = [None] * len(maps) if more is None else self._planner.rows(more)
                self._threads.map(lambda both: _feed(*both), list(zip(maps, rows, strict=True)))
            parts = self._planner.plan(batch).packs
            both = list(zip(maps, parts, strict=True))
            self._threads.map(lambda both: both[0].allocate(both[1].rows), both)


def _feed(slots: SlotMap, rows: Tensor | None) -> None:
    slots.end() if rows is None else slots.feed(rows)


class _OnDevice:
    """Ids to distinct rows and their runs by ops on the device."""

    def __init__(self, num_rows: list[int], batch_size: int, setting: Setting) -> None:
        self._setting, self._batch_size = setting, batch_size
        sizes = torch.tensor(num_rows, device=setting.device)
        self._of_tables = (
            torch.arange(len(sizes), device=setting.device),
            sizes.cumsum(0) - sizes,
            sizes,
        )

    def plan(self, ids: Tensor) -> tuple[Tensor, ...]:
        features, firsts, sizes = self._of_tables
        rows, *_ = ops.resolve(ids, None, self._batch_size, features, firsts, sizes, len(features))
        # Sizes known beforehand: on a device, `unique` would wait for the number of rows.
        padded = getattr(torch.ops.hotrows, "unique_padded", None)
        return ops.unique(rows) if padded is None else padded(rows)

    def times(self, batch) -> dict:
        ids = batch.ids.to(self._setting.device)
        near = batch.ids.pin_memory() if self._setting.on_gpu else batch.ids
        moved = timed(lambda: ids.copy_(near, non_blocking=True), self._setting)
        return {"ids_ms": moved.ms, "plan_ms": timed(lambda: self.plan(ids), self._setting).ms}

    def slot_times(self, batches: list) -> dict:
        """Of planning a batch with its slots, a window of them looked ahead; the ids are there."""
        num_rows, there = int(self._of_tables[2].sum()), find(self._setting.device)
        slots = DeviceSlots(num_rows, num_rows // 10, Lookahead(), 4, there)
        there.synchronize()
        ids = [batch.ids.to(self._setting.device) for batch in batches]
        seconds, number = [], 0

        def plan() -> None:
            nonlocal number
            rows = self.plan(ids[number % len(ids)])[0]
            slots.feed(lambda: rows)  # of another batch, in training
            slots.touch(rows)
            begin = time.perf_counter()
            memory = slots.memory(len(rows))
            slots.take(rows, memory)
            there.wait(None, [memory.slots, memory.moves])  # it is in the memory of another lane
            seconds.append(time.perf_counter() - begin)
            number += 1

        timing = timed(plan, self._setting, repeats=self._setting.pick(64, 4))
        return {"ms": timing.ms, "highest_ms": timing.highest, "launches_ms": 1e3 * median(seconds)}


def _compare(device: _OnDevice, batch, planned) -> None:
    distinct, inverse, order, starts = (
        tensor.cpu() for tensor in device.plan(batch.ids.to(device._setting.device))
    )
    part = planned.packs[0]
    num = part.num_rows
    assert torch.equal(distinct[:num], part.rows.cpu()), "other rows"
    assert bool((distinct[num:] == -1).all()), "no padding behind the rows"
    assert torch.equal(inverse.int(), part.inverse.cpu()), "other places"
    assert torch.equal(order.int(), part.order.cpu()), "another order"
    assert torch.equal(starts[: num + 1].int(), part.starts.cpu()), "other runs"


def _upload(plan, setting: Setting) -> dict:
    """The tensors of a plan, as one copy from page-locked memory."""
    part = plan.packs[0]
    tensors = (part.rows, part.slots, part.inverse, part.order, part.starts)
    size = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    near = page_locked(size, setting)
    far = torch.empty(size, dtype=torch.uint8, device=setting.device)
    return {"bytes": size, "ms": timed(lambda: far.copy_(near, non_blocking=True), setting).ms}
