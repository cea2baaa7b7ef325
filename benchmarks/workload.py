"""What every arm trains on, and how a step is timed. numpy only: it runs in every environment.

Workload A is shaped like Criteo Kaggle: 13 dense features and 26 sparse fields, a few of them huge;
the dense layers take most of a step. Workload B has a thousand small tables and hardly any dense
layers; the cost per table decides. Ids follow Zipf's law, each field's in an order of its own.
Labels are random: losses say only whether an arm trains at all.
"""

import os
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from benchmarks.processes import cpu_seconds

T = TypeVar("T")
DATA = Path(__file__).parent / ".data"
DIM = 16
LEARNING_RATE = 0.01

DLRM_BOTTOM = (512, 256, 64, DIM)
DLRM_TOP = (512, 256, 1)
DEEPFM_DEEP = (400, 400, 400, 1)
CROSSES = 3  # layers of DCNv2's cross network, beside the deep part of DeepFM
MLP = (64, 1)

# fmt: off
CRITEO_KAGGLE = (
    1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194,
    27, 14992, 5461306, 10, 5652, 2173, 4, 7046547, 18, 15, 286181, 105, 142572,
)
CRITEO_X1 = (  # of BARS' Criteo_x1, reserved ids included: 2.09 million in all
    1462, 560, 413424, 248543, 307, 23, 12192, 635, 5, 54712, 5350, 409749, 3182,
    29, 12500, 365811, 12, 4934, 2096, 6, 397981, 20, 17, 88608, 98, 64073,
)
# fmt: on
CRITEO_TENTH = tuple(rows // 10 if rows > 10_000 else rows for rows in CRITEO_KAGGLE)
CRITEO_CUT = tuple(min(rows, 1000) for rows in CRITEO_KAGGLE)  # next to nothing but the dense part


@dataclass(frozen=True)
class Workload:
    num_rows: tuple[int, ...]  # of each sparse field's table
    num_dense: int
    batch_size: int
    num_batches: int  # are made, and cycled
    zipf: float = 1.05
    seed: int = 0


WORKLOADS = {
    "A": Workload(CRITEO_KAGGLE, num_dense=13, batch_size=8192, num_batches=32),
    "criteo": Workload(CRITEO_KAGGLE, num_dense=13, batch_size=8192, num_batches=128),
    "criteo-tenth": Workload(CRITEO_TENTH, num_dense=13, batch_size=8192, num_batches=128),
    "criteo-cut": Workload(CRITEO_CUT, num_dense=13, batch_size=8192, num_batches=128),
    "criteo-x1": Workload(CRITEO_X1, num_dense=13, batch_size=4096, num_batches=400),
    "B461": Workload((10_000,) * 461, num_dense=0, batch_size=2048, num_batches=16),
    "B461L": Workload((10_000,) * 461, num_dense=0, batch_size=8192, num_batches=8),
    "B": Workload((10_000,) * 1000, num_dense=0, batch_size=2048, num_batches=16),
}


class Batch(NamedTuple):
    dense: np.ndarray  # [B, num_dense] float32
    ids: np.ndarray  # [F, B] int64, numbered within each field
    labels: np.ndarray  # [B] float32


class Timing(NamedTuple):
    """Seconds of one step over several windows, and the cores that others used meanwhile."""

    median: float
    lowest: float
    highest: float
    other_cores: float


def batches(workload: Workload, batch_size: int) -> list[Batch]:
    """The workload's samples in batches of any size; made once, then read from a file."""
    path = DATA / f"{zlib.crc32(repr(workload).encode()):08x}.npz"
    if not path.exists():
        DATA.mkdir(exist_ok=True)
        aside = DATA / f"{path.stem}-{os.getpid()}.npz"
        np.savez(aside, **_samples(workload)._asdict())
        aside.replace(path)
    with np.load(path) as file:
        samples = Batch(**file)
    starts = range(0, len(samples.labels) - batch_size + 1, batch_size)
    return [_cut(samples, slice(start, start + batch_size)) for start in starts]


def measure(step: Callable[[int], Any], **options: Any) -> Timing:
    """Times `step(k)`, k = 0, 1, ...; options: those of `measure_runs`."""

    def run(first: int, num: int) -> None:
        for k in range(first, first + num):
            step(k)

    return measure_runs(run, **options)


def measure_runs(
    run: Callable[[int, int], Any],
    *,
    windows: int = 5,
    window_seconds: float = 0.5,
    warmup_seconds: float = 5.0,
    max_seconds: float = 60.0,
    max_other_cores: float = 0.12,
    pids: Sequence[int] = (),
) -> Timing:
    """Times `run(first, num)`, which takes num steps, in short windows, until enough were quiet.

    A window is quiet if other processes used next to no CPU in it: others than this one and `pids`.
    On a busy machine time runs out: then the quietest windows count, and `other_cores` says how
    quiet they were.
    """
    next_step, one_step = _warm_up(run, warmup_seconds)
    num_steps = max(1, round(window_seconds / one_step))
    seen = []  # (cores used by others, seconds per step)
    start = time.perf_counter()
    while sum(others <= max_other_cores for others, _ in seen) < windows:
        if seen and time.perf_counter() - start > max_seconds:
            break
        others_before, before = cpu_seconds_of_others(pids), time.perf_counter()
        run(next_step, num_steps)
        seconds = time.perf_counter() - before
        others = max(0.0, cpu_seconds_of_others(pids) - others_before) / seconds
        seen.append((others, seconds / num_steps))
        next_step += num_steps
    quietest = sorted(seen)[:windows]
    steps = sorted(seconds for _, seconds in quietest)
    return Timing(float(np.median(steps)), steps[0], steps[-1], quietest[-1][0])


def quietest(run: Callable[[], T], tries: int = 3, max_other_cores: float = 0.12) -> tuple[T, float]:
    """Runs until other processes used next to no CPU meanwhile, `tries` times at most; returns what the
    quietest run returned, and the cores that others used in it."""
    seen: list[tuple[float, T]] = []
    while not seen or (len(seen) < tries and seen[-1][0] > max_other_cores):
        others, begin = cpu_seconds_of_others(), time.perf_counter()
        result = run()
        others = max(0.0, cpu_seconds_of_others() - others)
        seen.append((others / (time.perf_counter() - begin), result))
    others, result = min(seen, key=lambda pair: pair[0])
    return result, others


def _samples(workload: Workload) -> Batch:
    rng = np.random.default_rng(workload.seed)
    num = workload.batch_size * workload.num_batches
    ids = np.empty((len(workload.num_rows), num), np.int32)
    for field, num_rows in enumerate(workload.num_rows):
        cumulated = np.cumsum(np.arange(1.0, num_rows + 1) ** -workload.zipf)
        ranks = np.searchsorted(cumulated, rng.random(num) * cumulated[-1])
        ids[field] = rng.permutation(num_rows)[np.minimum(ranks, num_rows - 1)]
    dense = np.log1p(rng.exponential(10.0, (num, workload.num_dense))).astype(np.float32)
    labels = (rng.random(num) < 0.25).astype(np.float32)
    return Batch(dense, ids, labels)


def _cut(samples: Batch, part: slice) -> Batch:
    ids = samples.ids[:, part].astype(np.int64)
    return Batch(samples.dense[part], np.ascontiguousarray(ids), samples.labels[part])


def _warm_up(run: Callable[[int, int], Any], seconds: float) -> tuple[int, float]:
    """Steps until time is over, at least twice; returns their number and the last one's seconds."""
    k, start, one_step = 0, time.perf_counter(), 0.0
    while k < 2 or time.perf_counter() - start < seconds:
        before = time.perf_counter()
        run(k, 1)
        one_step = time.perf_counter() - before
        k += 1
    return k, one_step


def cpu_seconds_of_others(pids: Sequence[int] = ()) -> float:
    """CPU time of all processes but this one and `pids`, and what the host stole; 0 without /proc."""
    if not Path("/proc/stat").exists():
        return 0.0
    ticks = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
    user, nice, system, _idle, _iowait, irq, softirq, steal = ticks[:8]
    busy = (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")
    own_times = os.times()
    return busy - own_times.user - own_times.system - cpu_seconds(pids)
