"""Is a batch planned faster by threads of the host or by the device?

A batch of 65,536 samples and 26 fields, 1.7 M lookups. `host`: resolve and sort on native threads, a
batch each, and the upload of the plan; `device`: the upload of the ids, then both there. What a cache's
slots cost on top is on the host in either case (`slots`): a map that is asked by one thread.
"""

import time
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from benchmarks.gpu_parts.part import Findings, Setting
from benchmarks.gpu_parts.timing import seconds_of, timed
from benchmarks.gpu_parts.workloads import batches_of, embedding_of, tables_of, zipf_stream
from hotrows import ops
from hotrows.planning.policy import Lookahead
from hotrows.planning.slots import SlotMap

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
    for threads in THREADS:
        with ThreadPoolExecutor(threads) as pool:
            seconds = seconds_of(lambda pool=pool: list(pool.map(embedding.plan, batches)), setting)
        findings.add(f"host-{threads}", {"ms_per_batch": 1e3 * seconds / num_batches})
    findings.add("device", device.times(batches[0]))
    share = setting.pick(0.1, 0.5)
    findings.add("slots", _slots(embedding, batches, int(share * sum(num_rows))))


class _OnDevice:
    """Ids to distinct rows and their runs by ops on the device."""

    def __init__(self, num_rows: list[int], batch_size: int, setting: Setting) -> None:
        self._setting, self._batch_size = setting, batch_size
        of = torch.tensor(num_rows, device=setting.device)
        self._of_tables = (torch.arange(len(of), device=setting.device), of.cumsum(0) - of, of)

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


def _compare(device: _OnDevice, batch, planned) -> None:
    distinct, inverse, order, starts = (
        found.cpu() for found in device.plan(batch.ids.to(device._setting.device))
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
    size = sum(of.numel() * of.element_size() for of in tensors)
    near = torch.zeros(size, dtype=torch.uint8, pin_memory=setting.on_gpu)
    far = torch.empty(size, dtype=torch.uint8, device=setting.device)
    return {"bytes": size, "ms": timed(lambda: far.copy_(near, non_blocking=True), setting).ms}


def _slots(embedding, batches: list, num_slots: int) -> dict:
    """Milliseconds a batch of the one thread that maps rows to slots, looking ahead."""
    slots = SlotMap(num_slots, Lookahead("auto"), 4)
    rows = [embedding.rows(batch)[0].cpu() for batch in batches]
    distinct = [embedding.plan(batch).packs[0].rows.cpu() for batch in batches]
    coming = iter(rows)
    begin = time.thread_time()
    for of in distinct:
        while slots.wants():
            more = next(coming, None)
            slots.end() if more is None else slots.feed(more)
        slots.take(of)
    ms = 1e3 * (time.thread_time() - begin) / len(batches)
    return {"ms_per_batch": ms, "ns_per_lookup": 1e6 * ms / len(rows[0])}
