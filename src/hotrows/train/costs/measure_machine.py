"""Measures the speed of this machine in a few seconds.

    machine = measure_machine()              # one rank, with PyTorch's threads as they are set
    machine = measure_machine(ranks)         # the links of the ranks too: collective
    machine = kept_machine(ranks)            # as it was first measured for so many ranks: collective

Rates are the best of several windows, as where nothing disturbs the machine. Links are fitted to an
all-to-all and an all-reduce of several sizes: seconds = messages x latency + bytes / bandwidth, with
the least relative errors.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import time
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch.nn.functional import mse_loss

from hotrows import ops
from hotrows.batch import Batch
from hotrows.engine.distributed.comm import Ranks
from hotrows.engine.planning.packing import pack_tables
from hotrows.engine.planning.planner import Planner
from hotrows.models.nn import MLP, choose_linear_paths, use_linear_paths
from hotrows.optim import Adagrad
from hotrows.runtime.device import Device
from hotrows.runtime.machine import total_memory
from hotrows.runtime.measurements import Measurement
from hotrows.runtime.random_numbers import restored
from hotrows.table import Table
from hotrows.train.costs.step_cost import Link, Machine

_WINDOW = 0.15  # seconds of each measurement, three times
_COPIED = 1 << 27  # bytes of a copy, more than caches hold
_TABLE = 1 << 29  # bytes of a table of rows
_ROWS = 40_000  # rows read at a time, ascending, as a plan names them
_TABLE_ROWS = 400_000  # no multiple of 7,919
_SIZES = (1 << 10, 1 << 14, 1 << 17, 1 << 20, 1 << 22)  # bytes that a rank sends


def measure_machine(ranks: Ranks | None = None) -> Machine:
    """Measures this machine, in about seven seconds and 700 MB; links are None without other ranks.

    Every rank measures at the same time, so figures include the cores and memory that ranks share.
    All ranks count as those of one node. The bandwidth of disks is not measured.
    """
    row_seconds, row_bandwidth = rows()
    machine = Machine(
        name="measured",
        flops=flops(),
        memory_bandwidth=memory_bandwidth(),
        row_seconds=row_seconds,
        row_bandwidth=row_bandwidth,
        planning_rate=planning_rate(),
        memory=0.7 * total_memory(),
    )
    if ranks is None or ranks.num_ranks == 1:
        return machine
    link, reducing = links(ranks)
    return dataclasses.replace(machine, inner=link, reducing=reducing, ranks_per_node=ranks.num_ranks)


def kept_machine(ranks: Ranks) -> Machine:
    """The first rank's machine as it was first measured here for as many ranks; collective.

    What is chosen by it may change bits, and another run of the same job should have equal ones.
    """
    local = os.environ.get("LOCAL_WORLD_SIZE", ranks.num_ranks)
    measurement = Measurement("machine", {"ranks": ranks.num_ranks, "ranks_of_node": int(local)})
    is_first = ranks.rank == 0
    fields = ranks.gather_objects(measurement.read() if is_first else None)[0]
    if fields is None:
        measured = measure_machine(ranks).to_json()
        fields = ranks.gather_objects(measurement.write(measured) if is_first else None)[0]
    return Machine.from_json(fields)


def memory_bandwidth() -> float:
    """Bytes a second of a copy, counting each byte where it is read and where it is written."""
    source = torch.ones(_COPIED // 4)
    target = torch.empty_like(source)
    return 2 * _COPIED / _seconds(lambda: target.copy_(source))


def device_rates(device: Device, size: int = 1 << 30) -> dict[str, float]:
    """Bytes a second that a device moves: within its memory (each byte counted where it is read and
    where it is written), from and to page-locked host memory, and rows of 512 bytes that it reads
    directly from host memory."""
    staged = device.staging(size)
    resident, copied = (torch.zeros(size, dtype=torch.uint8, device=device.torch) for _ in range(2))
    records = staged.view(-1, 512)
    chosen = np.random.default_rng(0).permutation(len(records))[: len(records) // 4]
    rows_read = device.put(torch.from_numpy(np.sort(chosen)))
    out = resident.view(-1, 512)[: len(rows_read)]
    copies = {
        "copy in its memory": (2 * size, lambda: copied.copy_(resident)),
        "from host memory": (size, lambda: resident.copy_(staged, non_blocking=True)),
        "to host memory": (size, lambda: staged.copy_(resident, non_blocking=True)),
        "rows of 512 bytes, read directly": (
            out.numel(),
            lambda: ops.copy_rows(records, rows_read, out, None),
        ),
    }
    return {name: moved / _seconds_on(device, run) for name, (moved, run) in copies.items()}


def rows() -> tuple[float, float]:
    """Seconds of a row at a random place, and bytes a second of longer rows: of 64 and 256 bytes."""
    small, large = (_seconds_of_row(stride) for stride in (64, 256))
    bandwidth = (256 - 64) / max(large - small, 1e-12)
    return max(small - 64 / bandwidth, 0.0), bandwidth


def planning_rate() -> float:
    """Lookups planned in a second: 26 features, Zipf's law over 400 thousand rows each."""
    batch_size, names = 8192, [f"C{n}" for n in range(26)]
    cumulated = np.cumsum(np.arange(1.0, _TABLE_ROWS + 1) ** -1.05)
    random = np.random.default_rng(0).random(batch_size * len(names))
    drawn = np.searchsorted(cumulated, random * cumulated[-1]).clip(0, _TABLE_ROWS - 1)
    ids = torch.from_numpy(drawn.astype(np.int64)) * 7919 % _TABLE_ROWS
    tables = [Table(name, _TABLE_ROWS, 16, (name,), optimizer=Adagrad()) for name in names]
    planner = Planner(pack_tables(tables))
    batch = Batch(tuple(names), ids, torch.empty(batch_size, 0), torch.empty(batch_size))
    return len(ids) / _seconds(lambda: planner.plan(batch))


def flops() -> float:
    """Floating-point operations a second of perceptrons, forward and backward, as training does them.

    Six operations are counted for each weight and sample; activations and losses cost time alone.
    """
    batch_size, sizes = 4096, (512, 512, 256, 64, 1)
    with restored():
        model = MLP(sizes)
        x, y = torch.randn(batch_size, sizes[0]), torch.randn(batch_size, sizes[-1])
    use_linear_paths(model, choose_linear_paths(model))

    def step() -> None:
        model.zero_grad()
        mse_loss(model(x), y).backward()

    weights = sum(weight.numel() for weight in model.parameters() if weight.dim() == 2)
    return 6 * batch_size * weights / _seconds(step)


def links(ranks: Ranks) -> tuple[Link, Link]:
    """Measures the links of these ranks, for an all-to-all and for an all-reduce; collective.

    The number of repeats depends on the size alone, so all ranks make as many; a time is that of the
    slowest rank.
    """
    num, others = ranks.num_ranks, ranks.num_ranks - 1
    exchanged, reduced = [], []
    for size in _SIZES:
        count = size // 4 // num
        block = torch.ones(count * num)
        counts = [count] * num
        exchange = _bound(ranks.all_to_all, block, counts, counts)
        exchanged.append((4.0 * count * others, _slowest(ranks, exchange, size)))
        reduced.append((4.0 * block.numel(), _slowest(ranks, _bound(ranks.all_reduce, block), size)))
    link = fit(exchanged, others)
    in_ring = [(num_bytes * 2 * others / num, seconds) for num_bytes, seconds in reduced]
    return link, fit(in_ring, 2 * others)


def fit(points: Sequence[tuple[float, float]], messages: int) -> Link:
    """Fits messages x latency + bytes / bandwidth = seconds to points (bytes, seconds)."""
    num_bytes, seconds = (np.array(column) for column in zip(*points, strict=True))
    system = np.stack([np.full(len(points), float(messages)), num_bytes], 1) / seconds[:, None]
    (latency, per_byte), *_ = np.linalg.lstsq(system, np.ones(len(points)), rcond=None)
    return Link(max(float(latency), 0.0), 1 / max(float(per_byte), 1e-15))


def _bound(function: Callable, *arguments: object) -> Callable[[], object]:
    return lambda: function(*arguments).wait()


def _slowest(ranks: Ranks, run: Callable[[], object], size: int) -> float:
    """Median over repeats of the seconds that the slowest rank needs."""
    repeats = 30 if size <= 1 << 17 else 10
    run()
    times = torch.empty(repeats, dtype=torch.float64)
    for n in range(repeats):
        ranks.barrier()
        begin = time.perf_counter()
        run()
        times[n] = time.perf_counter() - begin
    by_rank = torch.zeros(ranks.num_ranks, repeats, dtype=torch.float64)
    by_rank[ranks.rank] = times
    return float(ranks.all_reduce(by_rank).wait().max(0).values.median())


def _seconds_of_row(stride: int) -> float:
    table = torch.zeros(_TABLE // stride, stride, dtype=torch.uint8)
    table[:, 0] = 1  # a page that was never written is none
    drawn = torch.from_numpy(np.random.default_rng(0).choice(len(table), (8, _ROWS), replace=True))
    chosen = itertools.cycle([rows.sort().values for rows in drawn])
    target = torch.zeros(_ROWS, stride, dtype=torch.uint8)
    return _seconds(lambda: ops.copy_rows(table, next(chosen), target, None)) / _ROWS


def _seconds_on(device: Device, run: Callable[[], object]) -> float:
    """Seconds of one run on a device: the best of five, each begun and ended with it idle."""
    run()
    best = float("inf")
    for _ in range(5):
        device.synchronize()
        begin = time.perf_counter()
        run()
        device.synchronize()
        best = min(best, time.perf_counter() - begin)
    return best


def _seconds(run: Callable[[], object]) -> float:
    """Seconds of one run: mean of the best of three windows."""
    run()
    best = float("inf")
    for _ in range(3):
        count, begin = 0, time.perf_counter()
        while time.perf_counter() - begin < _WINDOW or not count:
            run()
            count += 1
        best = min(best, (time.perf_counter() - begin) / count)
    return best
