"""Measurements of `hotrows simulate --store file --disk measured`: training in memory, and the disk.

speed, slow = measured_speed(data, config, Path("."))      # samples a second in memory; FileSpeed
advise(simulation, samples_per_second=speed, slow=slow)
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from hotrows.data import EncodedData
from hotrows.engine.planning.packing import Group, group_packs, pack_tables
from hotrows.runtime.machine import available_memory, num_cores
from hotrows.runtime.units import format_bytes
from hotrows.tools.tuning.benchmark import PairedBenchmark, TimedSteps, TimedTraining
from hotrows.tools.tuning.file_speed import CacheCost, FileSpeed
from hotrows.train.config import TrainConfig
from hotrows.train.costs.measure_disk import DiskRates, measure_disk
from hotrows.train.loop.recommender import model_and_tables
from hotrows.train.start.defaults import settle

_WARM_UP, _WINDOW, _PAIRS = 2.0, 0.5, 5  # seconds of training; windows of each
_CACHED = (0.02, 0.2)  # shares of the tables in fast memory, while a cache is measured
_BESIDE = 1.5  # seconds of training beside reads
_NEW_ROWS = 20_000


def measured_speed(
    data: EncodedData, config: TrainConfig, folder: Path, samples_per_second: float | None = None
) -> tuple[float, FileSpeed]:
    """Measures samples a second with all rows in memory, and a file store in `folder`.

    samples_per_second: where it is known, or the tables do not fit into memory; then nothing is known of
    what a cache takes beside training but what reads and writes do.
    """
    # Where the speed is given, measure the disk alone.
    config = settle(config, data)
    assert config.batch_size is not None
    groups = _groups(data, config)
    stride = max(groups, key=lambda g: g.rows * g.stride).stride
    cores = num_cores()
    if samples_per_second is not None:
        busy = cores * config.batch_size / samples_per_second
        disk = measure_disk(folder, stride)
        return samples_per_second, FileSpeed(disk, cores, busy, in_flight=config.in_flight)
    table_bytes, free = sum(g.rows * g.stride for g in groups), available_memory()
    if free is not None and 2 * (1 + max(_CACHED)) * table_bytes > free:
        raise ValueError(
            f"the tables take {format_bytes(table_bytes)}, and {format_bytes(free)} of memory are "
            f"free: too little to measure training in memory; say how fast it is "
            f"(--samples-per-second)"
        )
    in_memory = dataclasses.replace(config, store="memory", fast_memory=None)
    measured = []
    for share in _CACHED:
        cached = dataclasses.replace(config, store="memory", fast_memory=int(share * table_bytes))
        with PairedBenchmark(data, window_seconds=_WINDOW, warm_up_seconds=_WARM_UP) as benchmark:
            measured.append(_measured(benchmark, in_memory, cached, folder, stride))
    plain = [window for one in measured for window in one.plain]
    step = statistics.median(window.seconds / window.steps for window in plain)
    in_all = sum(plain, TimedSteps())
    speed = FileSpeed(
        disk=measured[0].disk.mean(measured[1].disk),  # it is now faster, now slower
        cores=cores,
        busy_seconds=in_all.processor_seconds / in_all.seconds * step,
        costs=tuple(_cache_cost(one, step) for one in reversed(measured)),
        request_hinders=statistics.mean(_request_hinders(one) for one in measured),
        new_row_seconds=measured[0].new_row_seconds,
        flush_seconds=measured[0].flush_seconds,
        in_flight=config.in_flight,
    )
    return config.batch_size / step, speed


@dataclass(frozen=True)
class _Measured:
    """A measurement with a cache of one size.

    plain: windows of training in memory; behind: of a cache, in turn with them; beside: of training in
    memory while rows are read from the disk.
    """

    plain: Sequence[TimedSteps]
    behind: Sequence[TimedSteps]
    beside: TimedSteps
    disk: DiskRates
    new_row_seconds: float
    flush_seconds: float


def _measured(
    benchmark: PairedBenchmark, in_memory: TrainConfig, cached: TrainConfig, folder: Path, stride: int
) -> _Measured:
    windows = [  # in turn: a machine is now faster, now slower
        (_window(benchmark.opened(in_memory)), _window(benchmark.opened(cached)))
        for _ in range(1 + _PAIRS)
    ]
    plain, behind = zip(*windows[1:], strict=True)
    training = benchmark.opened(in_memory)
    disk = measure_disk(folder, stride, train=lambda: training.window(_BESIDE))
    beside, of_rows = training.last, _row_seconds(benchmark.opened(cached))
    return _Measured(plain, behind, beside, disk, *of_rows)


def _window(training: TimedTraining) -> TimedSteps:
    training.window(_WINDOW)
    return training.last


def _cache_cost(measured: _Measured, step: float) -> CacheCost:
    """By how much steps are longer behind a cache. step: seconds of one in memory."""
    pairs = zip(measured.plain, measured.behind, strict=True)
    ratio = statistics.median(p.samples / p.seconds / (b.samples / b.seconds) for p, b in pairs)
    rows = sum(b.rows_in for b in measured.behind) / sum(b.steps for b in measured.behind)
    return CacheCost(max(ratio - 1, 0.0) * step, max(rows, 1.0))


def _request_hinders(measured: _Measured) -> float:
    """By how many seconds training takes longer for a request that is read beside it."""
    disk, beside = measured.disk, measured.beside
    alone = statistics.median(window.seconds / window.steps for window in measured.plain)
    longer = max(1 - alone / (beside.seconds / beside.steps), 0.0)  # share of the time
    return longer / (disk.reads_per_second / disk.beside)


def _groups(data: EncodedData, config: TrainConfig) -> tuple[Group, ...]:
    model, tables = model_and_tables(config, data.schema)
    return group_packs(pack_tables(tables, model.sequences))


def _row_seconds(training: TimedTraining) -> tuple[float, float]:
    """Seconds of a processor to draw the first values of a row, and seconds to flush one of the cache."""
    tables = training.steps.cached_tables
    g, cached = max(enumerate(tables.groups), key=lambda pair: pair[1].group.rows)
    rows = torch.randint(0, cached.group.rows, (_NEW_ROWS,), generator=torch.Generator().manual_seed(0))
    records = torch.empty(_NEW_ROWS, cached.group.stride, dtype=torch.uint8)
    fill, begin = tables.initial_values(g), time.process_time()
    fill(rows.sort().values, records)
    new, begin = time.process_time() - begin, time.perf_counter()
    tables.flush()
    flush = time.perf_counter() - begin
    num_rows = sum(len(group.cache.rows) for group in tables.groups)  # none where all bypass the cache
    return new / _NEW_ROWS, flush / max(num_rows, 1)
