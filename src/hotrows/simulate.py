"""Simulation: how often a cache of so much fast memory would miss, and what that would cost.

    found = simulate(data, fast_memory=[64 << 20, 256 << 20], batches=1000)
    found.of("lookahead")[0].misses                  # distinct rows a batch has to fetch
    advise(found, samples_per_second=300_000)        # the share of in-memory speed, and the knee

Replays the ids of the training part, shuffled as training would, through planning alone: no table is
allocated and no row moves. Everything is counted in the steady state: the first quarter of the
batches fills the caches and is left out.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from hotrows import models, ops
from hotrows.config import TrainConfig, settle
from hotrows.data import EncodedData, Loader
from hotrows.optim import RowOptimizer
from hotrows.pipeline.stream import ahead
from hotrows.planning.budget import divide, format_bytes
from hotrows.planning.packing import Group, group_packs, pack_tables
from hotrows.planning.planner import Planner
from hotrows.planning.policy import BELADY, LRU, Frequency, Hot, Lookahead, Policy
from hotrows.planning.slots import SlotMap, Taken
from hotrows.schema import Table
from hotrows.tiers import Caching

SHARES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5)
POLICIES: dict[str, Policy] = {
    "lookahead": Lookahead(),
    "frequency": Frequency(),
    "hot": Hot(torch.empty(0, dtype=torch.int64)),
    "two batches": Lookahead(2),  # what was published: ScratchPipe's window
    "lru": LRU,
    "belady": BELADY,
}
BOUNDS = ("lru", "belady")
_GAIN = 0.05
_PER_OCTAVE = 32


@dataclass(frozen=True)
class Measured:
    """One policy with so much fast memory: means per batch of the steady state.

    slots: of each group of tables; share: of all rows that have one.
    lookups_hit, rows_hit: the share of lookups, and of a batch's distinct rows, found in a slot.
    misses: distinct rows without a slot; untouched: those of them that no batch has read before,
        which need no read. reads: misses but for these; writes: rows that go back to slow memory.
    window: batches that were looked ahead at the end, in the first group; None: all.
    """

    policy: str
    fast_memory: int
    slots: tuple[int, ...]
    share: float
    lookups_hit: float
    rows_hit: float
    misses: float
    untouched: float
    reads: float
    writes: float
    bytes_read: float
    bytes_written: float
    window: int | None


@dataclass(frozen=True)
class Simulation:
    """What came of each policy and size.

    lookups, rows: of a batch; untouched: of its rows, how many no batch has read before.
    batches: how many were replayed; skipped: of these, how many no figure counts.
    """

    model: str
    batch_size: int
    in_flight: int
    seed: int
    batches: int
    skipped: int
    lookups: float
    rows: float
    untouched: float
    table_rows: int
    table_bytes: int
    measured: tuple[Measured, ...]

    @property
    def policies(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(of.policy for of in self.measured))

    def of(self, policy: str) -> tuple[Measured, ...]:
        """What came of a policy, by size."""
        return tuple(of for of in self.measured if of.policy == policy)

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


@dataclass(frozen=True)
class SlowMemory:
    """What slow memory does: random reads; writes appended in sequence, or at random where given."""

    reads_per_second: float = 60_000
    bytes_per_second: float = 500e6
    writes_per_second: float | None = None

    def seconds(self, measured: Measured) -> float:
        """What the moves of a batch take, reads beside writes."""
        reads = measured.reads / self.reads_per_second
        if self.writes_per_second is not None:
            return max(reads, measured.writes / self.writes_per_second)
        return max(reads, measured.bytes_written / self.bytes_per_second)


@dataclass(frozen=True)
class Advice:
    """What to expect of a policy.

    speeds: by size, the share of the speed in memory; None where that speed is not known.
    knee: the smallest size after which doubling it gains less than 5 % of speed, or, where speed is
        not known, saves fewer misses than 5 % of a batch's rows; None: not within the sizes.
    fast_memory: the size the sentence speaks of: the first one at the knee or behind it, or the last.
    """

    policy: str
    speeds: dict[int, float] | None
    knee: int | None
    fast_memory: int
    sentence: str


def simulate(
    data: EncodedData,
    *,
    model: str = "dlrm",
    model_options: Mapping[str, Any] | None = None,
    row_optimizer: RowOptimizer | None = None,
    table_dtype: str = "float32",
    batch_size: int | None = None,
    fast_memory: Sequence[int] = (),
    policies: Mapping[str, Policy] = POLICIES,
    batches: int | None = None,
    in_flight: int = 1,
    seed: int = 0,
    progress: Callable[[str, int, int], None] | None = None,
) -> Simulation:
    """Replays the training part for every policy and size; LRU and Bélády stand beside any others.

    model to batch_size: as for training. fast_memory: bytes; 1, 2, 5, 10, 20 and 50 % of the tables
    by default. batches: how many of the first epoch; None: all. The trace is held in memory, about
    12 bytes for each distinct row of each batch.
    policies: by name; a Hot is given the most frequent rows of the first tenth of the batches.
    progress: stage, done and total.
    """
    if not data.parts["train"].rows:
        raise ValueError(f"the training part of {data.path} has no rows: nothing can be replayed")
    config = settle(
        TrainConfig(
            model=model, model_options=dict(model_options or {}), row_optimizer=row_optimizer,
            table_dtype=table_dtype, batch_size=batch_size, seed=seed,
        ),
        data.parts["train"].rows,
    )  # fmt: skip
    note = progress or (lambda stage, done, total: None)
    built = _model(config, data)
    packs = pack_tables(_tables(built, config), built.sequences)
    groups = group_packs(packs)
    planner = Planner(packs, crosses=built.crosses)
    trace = _trace(data, config, planner, groups, batches, note)
    table_bytes = sum(group.rows * group.stride for group in groups)
    least = sum(group.stride for group in groups)
    sizes = sorted(set(fast_memory or (max(int(s * table_bytes), least) for s in SHARES)))
    chosen = {**policies, **{name: POLICIES[name] for name in BOUNDS if name not in policies}}
    measured = []
    for n, (name, size) in enumerate((name, size) for name in chosen for size in sizes):
        note("simulating", n, len(chosen) * len(sizes))
        measured.append(_replay(name, chosen[name], size, groups, trace, in_flight))
    note("simulating", len(measured), len(measured))
    return Simulation(
        model=model,
        batch_size=trace.batch_size,
        in_flight=in_flight,
        seed=seed,
        batches=len(trace.batches),
        skipped=trace.skipped,
        lookups=trace.mean(lambda read: read.num_lookups),
        rows=trace.mean(lambda read: read.rows.numel()),
        untouched=trace.mean(lambda read: read.num_untouched),
        table_rows=sum(group.rows for group in groups),
        table_bytes=table_bytes,
        measured=tuple(measured),
    )


def advise(
    found: Simulation,
    policy: str = "lookahead",
    *,
    samples_per_second: float | None = None,
    slow: SlowMemory = SlowMemory(),
) -> Advice:
    """Expected speed by size, and where more memory stops to pay.

    samples_per_second: of training with all rows in memory. A step takes as long as the slowest of
    its parts, since they overlap: the step in memory, the reads or the writes of slow memory.
    """
    rows = found.of(policy)
    assert rows, f"no policy {policy!r} was simulated"
    points = {of.fast_memory: 1 - of.misses / found.rows for of in rows}
    end = 1 - found.untouched / found.rows
    speeds = None
    if samples_per_second is not None:
        step = found.batch_size / samples_per_second
        points = speeds = {of.fast_memory: step / max(step, slow.seconds(of)) for of in rows}
        end = 1.0
    curve = {size: at for size, at in points.items() if size < found.table_bytes}
    curve[found.table_bytes] = end
    knee = _knee(curve, relative=speeds is not None)
    sizes = sorted(points)
    size = next((size for size in sizes if size >= (knee or 0)), sizes[-1])
    at = next(of for of in rows if of.fast_memory == size)
    if speeds is not None:
        expect = f"expect {speeds[size]:.0%} of in-memory speed".replace("%", " %")
    else:
        expect = (
            f"expect {at.misses:,.0f} of the {found.rows:,.0f} rows of a batch to come from "
            f"slow memory"
        )
    place = f"is at {format_bytes(knee)}" if knee else f"is below {format_bytes(sizes[0])}"
    sentence = f"with {format_bytes(size)} of fast memory {expect}; the knee {place}"
    return Advice(policy, speeds, knee, size, sentence)


@dataclass
class _Read:
    """What a batch reads of a group: distinct rows, ascending, and the lookups of each."""

    rows: Tensor  # [U] int64
    lookups: Tensor  # [U] int32
    num_untouched: int

    @property
    def num_lookups(self) -> int:
        return int(self.lookups.sum())


@dataclass
class _Trace:
    """What each batch reads, by group."""

    batch_size: int
    batches: list[list[_Read]] = field(default_factory=list)

    @property
    def skipped(self) -> int:
        return len(self.batches) // 4

    def mean(self, of: Callable[[_Read], int]) -> float:
        """The mean per batch, all groups together, of the batches that are counted."""
        counted = self.batches[self.skipped :]
        return sum(of(read) for batch in counted for read in batch) / max(len(counted), 1)


def _model(config: TrainConfig, data: EncodedData) -> models.Model:
    with torch.random.fork_rng(devices=[]):
        return models.build(config.model, data.schema, **config.model_options)


def _tables(model: models.Model, config: TrainConfig) -> list[Table]:
    return [
        dataclasses.replace(
            table, dtype=config.table_dtype, optimizer=table.optimizer or config.row_optimizer
        )
        for table in model.tables
    ]


def _trace(
    data: EncodedData,
    config: TrainConfig,
    planner: Planner,
    groups: Sequence[Group],
    batches: int | None,
    note: Callable[[str, int, int], None],
) -> _Trace:
    """Reads the batches of the first epoch: one thread reads and resolves, this one dedupes."""
    assert config.batch_size is not None
    loader = Loader(data.parts["train"], config.batch_size, shuffle=True, seed=config.seed)
    total = min(len(loader), batches or len(loader))
    trace = _Trace(config.batch_size)
    touched = [torch.zeros(group.rows, dtype=torch.bool) for group in groups]
    resolved = ahead(islice(loader.batches(0), total), planner.rows, depth=4)
    with closing(resolved):  # type: ignore[type-var]
        for read in resolved:
            trace.batches.append([_read(*of) for of in zip(read, touched, strict=True)])
            note("reading", len(trace.batches), total)
    return trace


def _read(rows: Tensor, touched: Tensor) -> _Read:
    distinct, _, _, starts = ops.unique(rows)
    num_untouched = distinct.numel() - int(touched[distinct].sum())
    touched[distinct] = True
    return _Read(distinct, starts.diff(), num_untouched)


def _replay(
    name: str,
    policy: Policy,
    fast_memory: int,
    groups: Sequence[Group],
    trace: _Trace,
    in_flight: int,
) -> Measured:
    slots = divide(fast_memory, groups)
    sums = _Sums()
    window: int | None = None
    for g, group in enumerate(groups):
        reads = [batch[g] for batch in trace.batches]
        own = Hot(_hottest(reads, group)) if isinstance(policy, Hot) else policy
        bound = Caching(fast_memory).lookahead_bytes // len(groups)
        bounded = isinstance(policy, Lookahead) and policy.window == "auto"  # as in training
        places = SlotMap(slots[g], own, in_flight, lookahead_bytes=bound if bounded else None)
        for j, read in enumerate(reads):
            while places.fed < len(reads) and places.wants():
                places.feed(reads[places.fed].rows)
            if places.fed == len(reads):
                places.end()
            taken = places.take(read.rows)
            if j >= trace.skipped:
                sums.add(read, taken, group.stride)
        window = places.window if g == 0 else window
    num_batches = max(len(trace.batches) - trace.skipped, 1)
    mean = {of.name: getattr(sums, of.name) / num_batches for of in dataclasses.fields(sums)}
    lookups, rows, missed = mean.pop("lookups"), mean.pop("rows"), mean.pop("lookups_missed")
    return Measured(
        policy=name,
        fast_memory=fast_memory,
        slots=tuple(slots),
        share=sum(slots) / sum(group.rows for group in groups),
        lookups_hit=1 - missed / lookups,
        rows_hit=1 - mean["misses"] / rows,
        window=window,
        **mean,
    )


@dataclass
class _Sums:
    """What the batches counted come to."""

    lookups: int = 0
    rows: int = 0
    lookups_missed: int = 0
    misses: int = 0
    untouched: int = 0
    reads: int = 0
    writes: int = 0
    bytes_read: int = 0
    bytes_written: int = 0

    def add(self, read: _Read, taken: Taken, stride: int) -> None:
        passing = taken.moves.passes_through
        missing = read.rows[taken.slots < 0] if passing else taken.moves.rows_in
        missed = torch.searchsorted(read.rows, missing)
        misses = missing.numel()
        reads = misses - read.num_untouched
        writes = misses if passing else taken.moves.rows_out.numel()
        self.lookups += read.num_lookups
        self.rows += read.rows.numel()
        self.lookups_missed += int(read.lookups[missed].sum())
        self.misses += misses
        self.untouched += read.num_untouched
        self.reads += reads
        self.writes += writes
        self.bytes_read += reads * stride
        self.bytes_written += writes * stride


def _hottest(reads: Sequence[_Read], group: Group) -> Tensor:
    """The rows of the first tenth of the batches, most lookups first."""
    lookups = torch.zeros(group.rows, dtype=torch.int32)
    for read in reads[: max(len(reads) // 10, 1)]:
        lookups[read.rows] += read.lookups
    rows = lookups.nonzero().squeeze(1)
    return rows[lookups[rows].argsort(descending=True, stable=True)]


def _knee(curve: Mapping[int, float], relative: bool) -> int | None:
    """The smallest size from which no doubling gains 5 %, between sizes on a straight line over log2.

    None where this holds from the first size on.
    """
    sizes = sorted(curve)
    logs = [math.log2(size) for size in sizes]
    steps = [logs[0] + n / _PER_OCTAVE for n in range(int((logs[-1] - logs[0]) * _PER_OCTAVE) + 1)]

    def value(at: float) -> float:
        right = next((n for n, log in enumerate(logs) if log >= at), len(logs) - 1)
        left = max(right - 1, 0)
        span = logs[right] - logs[left]
        part = min((at - logs[left]) / span, 1.0) if span else 0.0
        return curve[sizes[left]] * (1 - part) + curve[sizes[right]] * part

    def pays(at: float) -> bool:
        gain = value(min(at + 1, logs[-1])) - value(at)
        return gain >= _GAIN * (value(at) if relative else 1)

    paying = [at for at in steps if pays(at)]
    return round(2 ** (paying[-1] + 1 / _PER_OCTAVE)) if paying else None
