"""What `hotrows simulate --store file --disk measured` measures: training in memory, and the disk.

speed, slow = measured_speed(data, config, Path("."))      # samples a second in memory; SlowMemory
advise(simulation, samples_per_second=speed, slow=slow)
"""

from __future__ import annotations

import dataclasses
import gc
import os
from pathlib import Path

import torch

from hotrows import models
from hotrows.config import TrainConfig
from hotrows.costs.measure_disk import measure_disk
from hotrows.costs.workload import stored_tables
from hotrows.data import EncodedData
from hotrows.distributed.comm import OneRank
from hotrows.planning.packing import group_packs, pack_tables
from hotrows.runtime.machine import available_memory
from hotrows.runtime.units import format_bytes
from hotrows.storage.disk_io import BLOCK
from hotrows.train.defaults import settle
from hotrows.tuning.advice import SlowMemory
from hotrows.tuning.benchmark import TimedTraining

_WARM_UP, _WINDOW = 2.0, 4.0  # seconds of training


def measured_speed(
    data: EncodedData, config: TrainConfig, folder: Path, samples_per_second: float | None = None
) -> tuple[float, SlowMemory]:
    """Measures samples a second with all rows in memory, and a file store in `folder`.

    samples_per_second: where it is known, or the tables do not fit into memory.
    """
    config = settle(config, data)
    table_bytes, stride = _tables(data, config)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    idle = 0.0
    if samples_per_second is None:
        free = available_memory()
        if free is not None and table_bytes > free / 2:
            raise ValueError(
                f"the tables take {format_bytes(table_bytes)}, and {format_bytes(free)} of memory are "
                f"free: too little to measure training in memory; say how fast it is "
                f"(--samples-per-second)"
            )
        samples_per_second, busy = _in_memory(data, config)
        idle = max(1 - busy, 0.0) * cores
    disk = measure_disk(folder, stride)
    return samples_per_second, SlowMemory(
        reads_per_second=disk.reads_per_second,
        bytes_per_second=disk.bytes_per_second,
        read_seconds=disk.read_seconds,
        write_seconds=disk.write_seconds,
        cores=cores,
        idle_cores=idle,
        merged=BLOCK,  # a log holds a row for each block of the table
        merged_per_second=disk.merged_per_second,
    )


def _tables(data: EncodedData, config: TrainConfig) -> tuple[int, int]:
    """Bytes of all tables, and of the record that most rows have."""
    assert config.model is not None
    with torch.random.fork_rng(devices=[]):
        model = models.build(config.model, data.schema, **config.model_options)
    tables = stored_tables(model, config.table_dtype, config.row_optimizer)
    groups = group_packs(pack_tables(tables, model.sequences))
    return sum(g.rows * g.stride for g in groups), max(groups, key=lambda g: g.rows * g.stride).stride


def _in_memory(data: EncodedData, config: TrainConfig) -> tuple[float, float]:
    """Samples a second with all rows in memory, and the share of the cores that is busy."""
    config = dataclasses.replace(config, fast_memory=None, store="memory")
    training = TimedTraining(data, config, OneRank(), {})
    try:
        training.warm_up(_WARM_UP)
        return training.window(_WINDOW), training.cores_busy
    finally:
        training.close()
        gc.collect()
