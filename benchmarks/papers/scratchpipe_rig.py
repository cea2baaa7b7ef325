"""The rig of ScratchPipe's evidence: large tables of wide rows, many lookups, a small dense part.

8 tables, dim 128, 20 lookups in each by every sample; ids by a bounded Zipf law whose exponent is the
locality. Batches have 512 samples and tables 625,000 rows: both a quarter of 2,048 and 2.5 M, so that a
batch is the same share of a table, and of a cache. All arms of a part train in one process, in turn, on
the same stream and in the same memory of rows; each begins with the most popular rows in its cache.
"""

import contextlib
import itertools
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from unittest import mock

import numpy as np
import torch
from hotrows.planning.policy import LRU, Hot, Lookahead, Policy
from hotrows.storage import store as stores
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

import hotrows
from benchmarks.gpu_parts.workloads import scattered
from benchmarks.link import pace
from benchmarks.papers.part import Setting
from hotrows.engine.caching import Caching
from hotrows.engine.embedding import Embedding
from hotrows.engine.stages import start

LOCALITIES = {"uniform": 0.0, "low": 0.6, "medium": 0.9, "high": 1.2}
RATIO = 12  # fast memory over slow memory: 900 GB/s of a V100 over 77 GB/s of four channels of DDR4-2400
TURNOVERS = 3


@dataclass(frozen=True)
class Rig:
    rows: int  # of a table
    tables: int = 8
    dim: int = 128
    lookups: int = 20  # of a sample in a table
    batch: int = 512
    seconds: float = 10.0  # of an arm at most, without its beginning
    steps: int = 400  # of the stream

    @property
    def stride(self) -> int:
        return 4 * self.dim

    @property
    def features(self) -> tuple[str, ...]:
        return tuple(f"T{t}" for t in range(self.tables))


def rig_of(setting: Setting) -> Rig:
    if setting.small:
        return Rig(rows=2000, tables=2, dim=8, lookups=3, batch=64, seconds=0.1, steps=40)
    return Rig(rows=625_000)


@dataclass(frozen=True)
class Arm:
    """in_flight, overlapped: how the cache is driven; policy None: static, the most popular rows."""

    what: str
    policy: Policy | None = LRU
    in_flight: int = 1
    overlapped: bool = True
    cached: bool = True


ARMS = {
    "all rows in fast memory": Arm("no cache at all", cached=False),
    "no cache": Arm("every row of a batch crosses the link, there and back, within the step", LRU),
    "static cache": Arm("misses cross the link within the step", None, overlapped=False),
    "straw man": Arm("a window of two batches; every stage in turn", Lookahead(2), overlapped=False),
    "as published": Arm("a window of two batches; stages overlap", Lookahead(2), 3),
    "ours": Arm("looks ahead as far as pays; stages overlap", Lookahead(), 4),
}


def draw(rig: Rig, exponent: float, step: int) -> Tensor:
    """[tables, batch * lookups] int64: the ids of a batch; the same in every run."""
    points = np.random.default_rng([round(100 * exponent), step]).random(
        (rig.tables, rig.batch * rig.lookups)
    )
    if exponent:
        power = 1 - exponent  # the inverse of the continuous law's distribution
        points = (((rig.rows + 1.0) ** power - 1) * points + 1) ** (1 / power) - 1
    else:
        points = points * rig.rows
    ranks = torch.from_numpy(np.minimum(points.astype(np.int64), rig.rows - 1))
    return scattered(ranks, rig.rows)


def stream(rig: Rig, exponent: float, folder: Path) -> np.ndarray:
    """[steps, tables, batch * lookups] int32, in a file."""
    path = folder / f"scratchpipe-{rig.rows}-{rig.batch}-{rig.steps}-{exponent}.npy"
    if not path.exists():
        ids = np.stack([draw(rig, exponent, step).numpy().astype(np.int32) for step in range(rig.steps)])
        np.save(path, ids)
    return np.load(path, mmap_mode="r")


def batches(rig: Rig, ids: np.ndarray) -> Iterator[hotrows.Batch]:
    offsets = torch.arange(rig.tables * rig.batch + 1) * rig.lookups
    labels = torch.rand(rig.batch, generator=torch.Generator().manual_seed(0)).round()
    dense = torch.zeros(rig.batch, 0)
    for of_batch in ids:
        flat = torch.from_numpy(of_batch.reshape(-1).astype(np.int64))
        yield hotrows.Batch(rig.features, flat, dense, labels, offsets=offsets)


class Memory:
    """The rows of all tables, made once and trained on by every arm in turn."""

    def __init__(self, rig: Rig) -> None:
        self.records = stores.empty_records(rig.rows * rig.tables, rig.stride)
        self.records.view(torch.float32).fill_(0.01)

    @contextlib.contextmanager
    def in_place_of_tables(self) -> Iterator[None]:
        make = stores.empty_records

        def records(num_rows: int, stride: int, *device: object) -> Tensor:
            shared = (num_rows, stride) == tuple(self.records.shape)
            return self.records if shared else make(num_rows, stride, *device)

        with (
            mock.patch.object(stores, "empty_records", records),
            mock.patch.object(stores.InitialValues, "fill", lambda *_: None),
        ):
            yield


def in_flight_that_fits(slots: int, rows_of_batch: int, most: int) -> int:
    """The most batches in flight whose pins, of 2 k - 1 batches, the slots hold; 1 at least."""
    return max(1, *(k for k in range(1, most + 1) if (2 * k - 1) * rows_of_batch <= slots), 1)


def distinct(rig: Rig, ids: np.ndarray) -> int:
    """Distinct rows of the first batch, of all tables."""
    return sum(len(np.unique(of_table)) for of_table in ids[0])


def measure(
    rig: Rig,
    arm: Arm,
    share: float,
    ids: np.ndarray,
    memory: Memory,
    rate: float,
    file: Path | None = None,
) -> dict:
    """Trains one arm; figures of its steady state."""
    slots = 1 if arm.what == ARMS["no cache"].what else int(share * rig.rows * rig.tables)
    in_flight = arm.in_flight
    if arm is ARMS["ours"]:
        in_flight = in_flight_that_fits(slots, distinct(rig, ids), in_flight)
    caching = None
    if arm.cached:
        popular = scattered(torch.arange(-(-slots // rig.tables)), rig.rows)
        caching = Caching(
            slots * rig.stride,
            "memory" if file is None else f"file:{file}",
            arm.policy or Hot(torch.empty(0, dtype=torch.int64)),
            in_flight=in_flight,
            hot_ids=dict.fromkeys(rig.features, popular) if slots > 1 else None,
        )
    tables = [hotrows.Table(n, rig.rows, rig.dim, (n,)) for n in rig.features]
    with contextlib.ExitStack() as stack:
        with memory.in_place_of_tables():
            embedding = Embedding(tables, optimizer=hotrows.SGD(0.01), caching=caching)
        stack.callback(embedding.close)
        link = pace(embedding, rate) if caching and file is None else None
        if slots == 1:  # as without a cache: its rows in large pieces
            stack.enter_context(mock.patch("hotrows.engine.read_through._LEAST_CHUNK", 1 << 16))
        if embedding.cached_tables and slots > 1:
            embedding.cached_tables.warm()
        figures = _train(rig, arm, embedding, ids, slots)
    if link is not None:
        figures["link_seconds_per_step"] = figures["bytes_per_step"] / rate
    return {"what": arm.what, "slots": slots, "in_flight": in_flight, **figures}


def _train(rig: Rig, arm: Arm, embedding: Embedding, ids: np.ndarray, slots: int) -> dict:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(rig.tables * rig.dim, 64), nn.ReLU(), nn.Linear(64, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    cached = embedding.cached_tables
    future = batches(rig, ids) if cached else None
    near = enumerate(batches(rig, ids))
    depth = 2 if arm.overlapped else 0
    seconds, rows_in, bytes_moved, absent, bypassed = [], [], [], 0, 0
    with contextlib.closing(start(embedding, near, future, plan_depth=depth, trace=True)) as runner:
        begin = last = time.perf_counter()
        for work in runner:
            plan = work.item.plan
            if cached:
                absent += _absent(embedding, plan)
                bypassed += any(moves.bypasses_cache for moves in plan.moves)
                moved = cached.traffic(plan)
                rows_in.append(moved.rows_in)
                bytes_moved.append(moved.bytes_in + moved.bytes_out)
            _step(rig, model, optimizer, embedding, work)
            now = time.perf_counter()
            seconds.append(now - last)
            last = now
            turned = sum(rows_in) / slots
            if now - begin > rig.seconds or (len(seconds) >= 24 and turned >= TURNOVERS):
                break
        counted = slice(len(seconds) // 2, None)  # pipeline and window are full, the cache has turned
        stages = _stage_seconds(runner.events)
        stalled = dict(runner.stalled)
    return {
        "samples_per_s": rig.batch / (sum(seconds[counted]) / len(seconds[counted])),
        "samples_per_s_median": rig.batch / median(seconds[counted]),
        "step_ms": 1e3 * sum(seconds[counted]) / len(seconds[counted]),
        "steps": len(seconds),
        "turnovers": sum(rows_in) / slots if cached and slots > 1 else None,
        "misses_per_step": sum(rows_in[counted]) / len(seconds[counted]) if cached else 0.0,
        "bytes_per_step": sum(bytes_moved[counted]) / len(seconds[counted]) if cached else 0.0,
        "rows_absent_at_training": absent,
        "steps_past_the_cache": bypassed,
        "waited_share": sum(stalled.values()) / sum(seconds),
        "stage_ms": stages,
    }


def _absent(embedding: Embedding, plan) -> int:
    """Rows of a batch that are not in their slots when its training begins."""
    num = 0
    for group, rows in zip(embedding.cached_tables.groups, embedding.planner.rows_of(plan), strict=True):
        slots = plan.packs[group.group.packs[0]].slots
        if (slots < 0).any() or not group.cache.holds(slots, rows):
            held = group.cache._row_of[slots.clamp(min=0)]
            num += int(((slots < 0) | (held != rows)).sum())
    return num


def _step(rig: Rig, model: nn.Module, optimizer, embedding: Embedding, work) -> None:
    vectors = embedding.lookup(work.item.plan)
    logits = model(torch.cat([vectors[name, "vector"] for name in rig.features], 1))[:, 0]
    binary_cross_entropy_with_logits(logits, work.item.batch.labels).backward()
    embedding.update(work.item.plan, vectors)
    optimizer.step()
    optimizer.zero_grad()


def _stage_seconds(events) -> dict[str, float]:
    """Median milliseconds of each stage."""
    by_stage: dict[str, list[float]] = {}
    for event in itertools.islice(events, 12, None):
        by_stage.setdefault(event.stage, []).append(1e3 * (event.end - event.begin))
    return {stage: median(times) for stage, times in by_stage.items() if math.isfinite(median(times))}
