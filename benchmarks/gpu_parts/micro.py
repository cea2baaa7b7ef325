"""What do micro-batches save in memory, and cost in time?

DLRM as in `cache`, all rows on the device, batch 65,536 learned from in 1, 2, 4 and 8 parts with one
update: an eighth of the batch has an eighth of the activations. `peak_mb` is what a step takes beyond
tables, parameters and the batches that wait. Steps in parts are launched kernel by kernel: where `ms` is
no more than `launch_ms`, what the host takes of each part, `over_one` is Python's and not the device's.
"""

import itertools
from collections.abc import Callable

import torch

from benchmarks.gpu_parts.part import Findings, Setting
from benchmarks.gpu_parts.timing import step_time, synchronize
from benchmarks.gpu_parts.workloads import (
    Training,
    batches_of,
    dlrm,
    embedding_of,
    ready,
    weights_in_place,
    zipf_stream,
)

PARTS = (1, 2, 4, 8)


def run(findings: Findings, setting: Setting) -> None:
    num_rows = [setting.pick(400_000, 200)] * 26
    batch_size = setting.pick(65_536, 64)
    stream = zipf_stream(num_rows, 4 * batch_size, setting.device)
    figures, first = {}, None
    for parts in PARTS:
        measured = findings.check_runs(
            f"{parts} micro-batches: runs",
            lambda parts=parts: _measure(setting, num_rows, stream, batch_size, parts),
        )
        if measured is None:
            continue
        change, figures[parts] = measured
        first = change if first is None else first
        # Row-wise Adagrad scales a first gradient to one length, and with it the rounding of bfloat16.
        error = ((change - first).abs().mean() / first.abs().mean()).item()
        name = f"{parts} micro-batches: the same update but for rounding"
        findings.check(name, error < 0.05, f"off by {error:.1%}")
    findings.demand_green()
    for parts, figure in figures.items():
        findings.add(f"{parts} micro-batches", figure)
    findings.compare("over_one", "ms", dict.fromkeys(findings.arms, "1 micro-batches"))


def _measure(setting: Setting, num_rows: list[int], stream, batch_size: int, parts: int) -> tuple:
    """What a first step adds to a table; a step's time and memory."""
    dim = setting.pick(128, 8)
    model = dlrm(num_rows, dim, setting.device, setting.small)
    embedding = embedding_of(model.tables, "rowwise", setting.device, micro_batches=parts)
    training = Training(model, embedding, setting.device)
    works = itertools.cycle(ready(embedding, batches_of(stream, batch_size)))

    def step() -> None:
        training.step(next(works))

    before = weights_in_place(embedding, "C0").clone()
    step()
    change = weights_in_place(embedding, "C0") - before
    peak, time = _peak(step, setting), step_time(step, setting)
    return change, {"peak_mb": peak, **time.to_json(), "is_of_the_host": time.is_of_the_host}


def _peak(step: Callable[[], None], setting: Setting) -> float | None:
    """MB that a step takes at most beyond what is there before."""
    if not setting.on_gpu:
        return None
    synchronize(setting)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    step()
    synchronize(setting)
    return (torch.cuda.max_memory_allocated() - before) / 1e6
