"""What do many fields cost at the same number of lookups, and what does packing save?

26 to 1,000 fields of dim 16, 426 k lookups a step and 10 M rows in all, their vectors side by side into
64-1: the same bytes and nearly the same operations, so that a step should take as long. `packed` has
one pack for all tables, `apart` a pack and so an op for each. `modules` adds a projection for every
field, in a Python loop.

Launches are counted by the profiler (on the host: operators). Its intervals give the share of time in
which the device had a kernel to run (gpu-busy.png), the profiler's own cost in it, and `gpu_ms`, the time
that it had one. A step launched kernel by kernel takes the host a millisecond whatever it does; so what
is compared is `captured_ms`, the same step as one CUDA graph.
"""

import itertools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

import hotrows
from benchmarks.gpu_parts.part import Findings, Setting
from benchmarks.gpu_parts.timing import step_time
from benchmarks.gpu_parts.workloads import (
    Training,
    batches_of,
    embedding_of,
    ready,
    tables_of,
    weights_in_place,
    zipf_stream,
)
from hotrows.engine.embedding import Embedding

FIELDS = (26, 100, 461, 1000)
LOOKUPS, ROWS, DIM = 26 * 16_384, 10_000_000, 16
_PROFILED = 5  # steps

Intervals = list[tuple[float, float]]  # begin and end in microseconds


class SideBySide(nn.Module):
    """All vectors side by side into 64-1; with `projected`, each through a layer of its own first."""

    def __init__(self, num_fields: int, projected: bool = False) -> None:
        super().__init__()
        layers = range(num_fields if projected else 0)
        self.projections = nn.ModuleList([nn.Linear(DIM, DIM) for _ in layers])
        self.layers = nn.Sequential(nn.Linear(num_fields * DIM, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, vectors: hotrows.Vectors, dense: Tensor) -> Tensor:
        return self.mix(vectors.stack())

    def mix(self, stacked: Tensor) -> Tensor:
        """stacked: [B, F, D]. Returns [B]."""
        if len(self.projections):
            parts = [
                layer(x).relu() for layer, x in zip(self.projections, stacked.unbind(1), strict=True)
            ]
            stacked = torch.stack(parts, 1)
        return self.layers(stacked.flatten(1)).squeeze(1)


def run(findings: Findings, setting: Setting) -> None:
    steps: dict[str, tuple[Callable[[], Tensor], Embedding]] = {}
    fields = setting.pick(FIELDS, (2, 5))
    busy: dict[str, Intervals] = {}
    for num in fields:
        one_pack, many = (_tables(setting, num, parts) for parts in (1, num))
        for table in one_pack.tables:
            weights_in_place(many, table.name).copy_(weights_in_place(one_pack, table.name))
        packed, apart = (_step(setting, num, tables) for tables in (one_pack, many))
        one, other = packed().item(), apart().item()
        findings.check(f"{num} fields: packed equals apart", abs(one - other) < 1e-5, f"{one}, {other}")
        steps |= {f"packed-{num}": (packed, one_pack), f"apart-{num}": (apart, many)}
    findings.demand_green()
    for name, (step, tables) in steps.items():
        intervals = _profiled(step, setting)
        kind, num = name.split("-")
        captured = step_time(_step(setting, int(num), tables, graph=True), setting)
        figures = _figures(step, intervals, setting)
        findings.add(name, {**figures, "captured_ms": captured.ms})
        if int(num) == fields[-1]:
            busy[f"{num} tables, {kind}"] = intervals
    fewest = {name: f"{name.split('-')[0]}-{fields[0]}" for name in steps}
    findings.compare("over_fewest_fields", "captured_ms", fewest)
    _modules(findings, setting, fields[-2])
    if setting.pictures is not None:
        _draw(busy, setting.pictures / "gpu-busy.png")


def _tables(setting: Setting, num_fields: int, num_packs: int) -> Embedding:
    num_rows = [setting.pick(ROWS, 1000) // num_fields] * num_fields
    tables = tables_of(num_rows, DIM)
    return embedding_of(tables, "rowwise", setting.device, pack_parts=num_packs)


def _step(
    setting: Setting, num_fields: int, embedding: Embedding, graph: bool = False
) -> Callable[[], Tensor]:
    """A training step, on the same batches in turn; graph: as one CUDA graph."""
    batch_size = setting.pick(LOOKUPS, 256) // num_fields
    torch.manual_seed(0)
    model = SideBySide(num_fields).to(setting.device)
    training = Training(model, embedding, setting.device, graph=graph)
    num_rows = [table.rows for table in embedding.tables]
    stream = zipf_stream(num_rows, 4 * batch_size, setting.device)
    works = itertools.cycle(ready(embedding, batches_of(stream, batch_size), padded=graph))
    return lambda: training.step(next(works))


def _figures(step: Callable[[], object], intervals: Intervals, setting: Setting) -> dict:
    busy = float(_busy_shares(intervals, 1)[0])
    span = max(end for _, end in intervals) - intervals[0][0]
    return {
        **step_time(step, setting).to_json(),
        "launches": len(intervals) / _PROFILED,
        "busy": busy,
        "gpu_ms": busy * span / 1e3 / _PROFILED,
    }


def _profiled(step: Callable[[], object], setting: Setting) -> Intervals:
    """When the device ran a kernel or a copy, over some steps; on the host: an operator."""
    activity = ProfilerActivity.CUDA if setting.on_gpu else ProfilerActivity.CPU
    step()
    with profile(activities=[activity]) as profiled:
        for _ in range(_PROFILED):
            step()
        torch.cuda.synchronize() if setting.on_gpu else None
    kind = DeviceType.CUDA if setting.on_gpu else DeviceType.CPU
    events = [
        event for event in profiled.events() if event.device_type == kind and event.cpu_parent is None
    ]
    return sorted((event.time_range.start, event.time_range.end) for event in events)


def _busy_shares(intervals: Intervals, num_bins: int) -> np.ndarray:
    """[num_bins]: the share of each bin of time in which at least one interval runs."""
    begins, ends = np.array(intervals).T
    reached = np.maximum.accumulate(ends)
    begins = np.maximum(begins, np.append(begins[:1], reached[:-1]))  # without what is covered
    times = np.stack([begins, reached], 1).reshape(-1)
    busy = np.cumsum(np.diff(times, prepend=times[0]) * (np.arange(len(times)) % 2))
    edges = np.linspace(times[0], times[-1], num_bins + 1)
    return np.diff(np.interp(edges, times, busy)) / np.diff(edges)


def _modules(findings: Findings, setting: Setting, num_fields: int) -> None:
    """A layer for each field, in a loop; forward and backward of the dense part alone."""
    torch.manual_seed(0)
    model = SideBySide(num_fields, projected=True).to(setting.device)
    batch_size = setting.pick(LOOKUPS, 256) // num_fields
    stacked = torch.randn(batch_size, num_fields, DIM, device=setting.device)

    def step() -> None:
        model.zero_grad()
        model.mix(stacked).sum().backward()

    step()
    findings.add(f"modules-loop-{num_fields}", _figures(step, _profiled(step, setting), setting))


def _draw(busy: dict[str, Intervals], picture: Path) -> None:
    """How busy the device is over some steps, tables packed and apart."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        print("  no picture: matplotlib is not installed")
        return
    from benchmarks.figures import BLUE, GRAY

    figure = Figure(figsize=(8, 4.2), layout="constrained")
    for axes, (name, intervals), color in zip(
        figure.subplots(len(busy), 1), busy.items(), (BLUE, GRAY), strict=False
    ):
        shares = _busy_shares(intervals, 200)
        span = (max(end for _, end in intervals) - intervals[0][0]) / 1e3
        times = span * (np.arange(len(shares)) + 0.5) / len(shares)
        axes.fill_between(times, shares, step="mid", color=color)
        axes.set(ylim=(0, 1), xlim=(0, span), ylabel="busy", xlabel=f"ms, {_PROFILED} steps")
        launches = f"{len(intervals) / _PROFILED:,.0f} launches a step"
        axes.set_title(f"{name}: {launches}, busy {shares.mean():.0%}")
    figure.savefig(picture, dpi=110)
