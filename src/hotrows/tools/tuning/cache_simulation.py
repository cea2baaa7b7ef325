"""Cache simulation: counts the misses of a cache, by policy and size of fast memory.

    simulation = simulate(data, TrainConfig(), fast_memory=[64 << 20, 256 << 20], batches=1000)
    simulation.results("lookahead")[0].misses        # distinct rows that a batch has to fetch
    advise(simulation, samples_per_second=300_000)   # `hotrows.tools.tuning.advice`: speeds, and the knee

Replays the ids of the training part, shuffled as training does, through planning alone: no table is
allocated and no row moves. Figures are of the steady state: the first quarter of the batches fills
the caches and is left out.
"""

from __future__ import annotations

import dataclasses
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, count, islice
from typing import Any

import torch
from torch import Tensor

from hotrows import ops
from hotrows.batch import Batch
from hotrows.data import EncodedData, Loader
from hotrows.data.stored.order import parse_order
from hotrows.dynamic import Dynamic
from hotrows.engine.caching import Caching
from hotrows.engine.dynamic_ids import DynamicIds
from hotrows.engine.pipeline.prefetch import prefetch
from hotrows.engine.planning.packing import Group, group_packs, pack_tables
from hotrows.engine.planning.planner import Planner
from hotrows.engine.planning.policy import BELADY, SIMULATED, Hot, Lookahead, Policy
from hotrows.engine.planning.slot_budget import divide
from hotrows.engine.planning.slots import Allocation, SlotMap
from hotrows.tools.tuning.file_replay import FileCounts, FileReplay
from hotrows.tools.tuning.owned_rows import SHARES, Owned, with_rows
from hotrows.train.config import TrainConfig
from hotrows.train.loop.recommender import model_and_tables
from hotrows.train.start.defaults import settle

BOUNDS = ("lru", "belady")


@dataclass(frozen=True)
class PolicyResult:
    """Figures of one policy with so much fast memory: means per batch of the steady state.

    slots: number of slots of each group of tables; share: share of all rows that have one.
    lookups_hit: share of lookups whose row has a slot; rows_hit: share of a batch's distinct rows.
    misses: distinct rows without a slot.
    untouched: misses of rows that no batch has read before, which need no read.
    reads: other misses, read from slow memory; writes: rows written back to slow memory.
    window: batches that were looked ahead at the end, in the first group; None: all.
    planning_seconds: of a processor, that it took to read a batch ahead and plan its slots.
    drained: share of batches that wait for all before them, since fast memory has too few slots.
    in_file: what a file store has to do, where that was counted.
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
    planning_seconds: float = field(default=0.0, compare=False)
    drained: float = 0.0
    in_file: FileCounts | None = None


@dataclass(frozen=True)
class Simulation:
    """Results of each policy and size.

    lookups, rows: lookups and distinct rows of a batch.
    untouched: rows of a batch that no batch has read before.
    pinned_rows: bound of the rows that batches in flight pin: with as many slots none is drained;
    pinned_bytes: of their records.
    batches: number of batches replayed; skipped: batches of these that no figure counts.
    measured: results, by policy and size.
    owned: how many lookups own a row if there are fewer rows; None: the data has no counts.
    capacities: what dynamic features are to declare for `rows_budget`, by vocabulary.
    order: of the samples; shuffled: where it is another, what a plain shuffle gives, of LRU and Bélády.
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
    pinned_rows: int
    pinned_bytes: int
    table_rows: int
    table_bytes: int
    measured: tuple[PolicyResult, ...]
    order: str = "shuffle"
    shuffled: Simulation | None = None
    owned: Owned | None = None
    rows_budget: int | None = None
    capacities: dict[str, Dynamic] = field(default_factory=dict)

    @property
    def distinct_rows(self) -> float:
        """Distinct rows of a batch, relative to one of a plain shuffle: how alike its samples are."""
        return 1.0 if self.shuffled is None else self.rows / max(self.shuffled.rows, 1)

    @property
    def policies(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(result.policy for result in self.measured))

    def results(self, policy: str) -> tuple[PolicyResult, ...]:
        """The results of a policy, by size."""
        return tuple(result for result in self.measured if result.policy == policy)

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def simulate(
    data: EncodedData,
    config: TrainConfig,
    *,
    fast_memory: Sequence[int] = (),
    policies: Mapping[str, Policy] = SIMULATED,
    batches: int | None = None,
    rows_budget: int | None = None,
    in_file: bool = False,
    progress: Callable[[str, int, int], None] | None = None,
) -> Simulation:
    """Replays the training part for every policy and size; LRU and Bélády come with any others.

    The trace is held in memory, about 12 bytes for each distinct row of each batch.

    config: of the training; of its cache, what is not looked at here counts: `in_flight`.
    fast_memory: sizes in bytes, such as 64MiB (default: 1, 2, 5, 10, 20 and 50 % of the tables).
    policies: policies by name; a `Hot` gets the most frequent rows of the first tenth of the batches.
    batches: the number of batches, of as many epochs as they take (default: those of the first epoch).
    rows_budget: bytes of all rows, for which dynamic features are given capacities (default: the fewest
        that lose less than 1 % of lookups).
    in_file: also count what a file store has to do, which takes eleven bytes of memory for each row.
    progress: called with the stage, the number done and their total.

    >>> simulate(data, hotrows.TrainConfig(model="fm", batch_size=16)).policies[0]
    'lookahead'
    """
    report, config = progress or (lambda stage, done, total: None), settle(config, data)
    data, rows_of = with_rows(data, config, rows_budget)
    replayed = partial(
        _simulate, data, batches=batches, fast_memory=fast_memory, in_file=in_file, report=report
    )
    chosen = {**policies, **{name: SIMULATED[name] for name in BOUNDS if name not in policies}}
    simulation = replace(replayed(config, chosen), **rows_of)
    if parse_order(config.order)[0] == 1:
        return simulation
    plain, bounds = (replace(config, order="shuffle"), {name: SIMULATED[name] for name in BOUNDS})
    return replace(simulation, shuffled=replayed(plain, bounds))


def _simulate(
    data: EncodedData,
    config: TrainConfig,
    policies: Mapping[str, Policy],
    batches: int | None,
    fast_memory: Sequence[int],
    in_file: bool,
    report: Callable[[str, int, int], None],
) -> Simulation:
    """Replays one order of samples."""
    groups, trace = _read_trace(data, config, batches, report)
    table_bytes = sum(group.rows * group.stride for group in groups)
    sizes = sorted(set(fast_memory or _shares_of(table_bytes, groups)))
    in_flight = config.in_flight
    pinned = [(2 * in_flight - 1) * rows for rows in trace.most_rows]
    # Replay them for each policy and size.
    results = []
    for n, (name, size) in enumerate((name, size) for name in policies for size in sizes):
        report("simulating", n, len(policies) * len(sizes))
        results.append(_replay(name, policies[name], size, groups, trace, in_flight, in_file))
    report("simulating", len(results), len(results))
    return Simulation(
        model=str(config.model),
        batch_size=trace.batch_size,
        in_flight=in_flight,
        seed=config.seed,
        batches=len(trace.batches),
        skipped=trace.skipped,
        lookups=trace.mean(lambda read: read.num_lookups),
        rows=trace.mean(lambda read: read.rows.numel()),
        untouched=trace.mean(lambda read: read.num_untouched),
        pinned_rows=sum(pinned),
        pinned_bytes=sum(rows * group.stride for rows, group in zip(pinned, groups, strict=True)),
        table_rows=sum(group.rows for group in groups),
        table_bytes=table_bytes,
        measured=tuple(results),
        order=config.order,
    )


def _shares_of(table_bytes: int, groups: Sequence[Group]) -> list[int]:
    """Sizes in bytes, none of which holds less than a row of each group."""
    least = sum(group.stride for group in groups)
    return [max(int(share * table_bytes), least) for share in SHARES]


@dataclass
class _Read:
    """Rows that a batch reads of a group: distinct, ascending, and the number of lookups of each."""

    rows: Tensor  # [U] int64
    lookups: Tensor  # [U] int32
    num_untouched: int

    @property
    def num_lookups(self) -> int:
        return int(self.lookups.sum())


@dataclass
class _Trace:
    """Reads of each batch, by group. seconds: of a processor, to read a batch and find its rows."""

    batch_size: int
    seconds: float = 0.0
    batches: list[list[_Read]] = field(default_factory=list)

    @property
    def skipped(self) -> int:
        return len(self.batches) // 4

    @property
    def most_rows(self) -> list[int]:
        """The most distinct rows that a batch reads, by group."""
        by_group = zip(*self.batches, strict=True)
        return [max(read.rows.numel() for read in reads) for reads in by_group]

    def mean(self, count: Callable[[_Read], int]) -> float:
        """Mean of a count per batch, all groups together, over the batches that are not skipped."""
        counted = self.batches[self.skipped :]
        return sum(count(read) for batch in counted for read in batch) / max(len(counted), 1)


def _read_trace(
    data: EncodedData, config: TrainConfig, batches: int | None, report: Callable[[str, int, int], None]
) -> tuple[tuple[Group, ...], _Trace]:
    """Groups the tables of the model, and reads the batches.

    One thread reads batches and resolves ids, the calling one finds distinct rows.
    """
    assert config.batch_size is not None and config.model is not None
    if not data.parts["train"].rows:
        raise ValueError(f"the training part of {data.path} has no samples: nothing can be replayed")
    model, tables = model_and_tables(config, data.schema)
    packs = pack_tables(tables, model.sequences)
    groups = group_packs(packs)
    planner = Planner(packs, crosses=model.crosses)
    # Read batches in the order of training, with rows for dynamic ids.
    loader = Loader(
        data.parts["train"], config.batch_size, shuffle=True, seed=config.seed, order=config.order
    )
    total = (batches or len(loader)) if len(loader) else 0
    trace = _Trace(config.batch_size)
    dynamic = DynamicIds.of_schema(data.schema, tables)
    dynamic.begin(planner.ranks, model.crosses)
    # Note the distinct rows of each batch, and which of them were never read before.
    touched = [torch.zeros(group.rows, dtype=torch.bool) for group in groups]
    epochs = chain.from_iterable(map(loader.batches, count()))
    batches_read = _with_ids(islice(epochs, total), dynamic)
    resolved = prefetch(_timed(map(planner.rows, batches_read), trace), depth=4)
    with closing(resolved):
        for rows_by_group in resolved:
            pairs = zip(rows_by_group, touched, strict=True)
            trace.batches.append([_read(rows, is_touched) for rows, is_touched in pairs])
            report("reading", len(trace.batches), total)
    return groups, trace


def _timed(rows: Iterator[list[Tensor]], trace: _Trace) -> Iterator[list[Tensor]]:
    """Notes what the calling thread takes for a batch."""
    begin = time.thread_time()
    for num, of_batch in enumerate(rows, 1):
        trace.seconds = (time.thread_time() - begin) / num
        yield of_batch


def _with_ids(batches: Iterator[Batch], dynamic: DynamicIds) -> Iterator[Batch]:
    """Batches in which keys have become ids, as if each were trained at once."""
    for _, batch in dynamic.resolved(enumerate(batches)):
        dynamic.trained()
        yield replace(batch, new_ids=())  # they are among the rows that the batch reads


def _read(rows: Tensor, touched: Tensor) -> _Read:
    """Finds the distinct rows of a batch, and marks them as touched."""
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
    in_file: bool,
) -> PolicyResult:
    """Plans all batches with a policy, group by group, and counts misses and moves."""
    policy = BELADY if in_file and policy == Lookahead() else policy  # next uses are read from files
    slots = divide(fast_memory, groups)
    sums: Counter[str] = Counter()
    window: int | None = None
    seconds, files, drained = 0.0, FileCounts(), 0
    for g, group in enumerate(groups):
        delay = in_flight + TrainConfig.plan_depth
        file = FileReplay(group.rows, group.stride, delay) if in_file else None
        reads, drained_before = [batch[g] for batch in trace.batches], 0
        group_policy = Hot(_hottest(reads, group)) if isinstance(policy, Hot) else policy
        bound = Caching(fast_memory).lookahead_bytes // len(groups)
        is_bounded = isinstance(policy, Lookahead) and policy.window == "auto"  # as in training
        most = bound if is_bounded else None
        allocator = SlotMap(slots[g], group_policy, in_flight, lookahead_bytes=most, num_rows=group.rows)
        # Plan batch by batch; those before `skipped` fill the cache and do not count.
        for j, read in enumerate(reads):
            if j == trace.skipped:
                drained_before = allocator.num_drained
            begin = time.thread_time()
            allocation = _allocate(allocator, reads, read)
            seconds += time.thread_time() - begin
            missing, leaving = _moved(read, allocation)
            if j >= trace.skipped:
                sums.update(_counts(read, missing, leaving, group.stride))
            if file is not None:
                if j == trace.skipped:
                    file.begin()
                file.add(read.rows, missing, leaving)
        drained = max(drained, allocator.num_drained - drained_before)
        if file is not None:
            files += file.per_batch()
        window = allocator.window if g == 0 else window
    num_batches = max(len(trace.batches) - trace.skipped, 1)
    mean = {field: total / num_batches for field, total in sums.items()}
    lookups, rows, missed = mean.pop("lookups"), mean.pop("rows"), mean.pop("lookups_missed")
    return PolicyResult(
        policy=name,
        fast_memory=fast_memory,
        slots=tuple(slots),
        share=sum(slots) / sum(group.rows for group in groups),
        lookups_hit=1 - missed / lookups,
        rows_hit=1 - mean["misses"] / rows,
        window=window,
        planning_seconds=trace.seconds + seconds / len(trace.batches),
        drained=drained / num_batches,
        in_file=files if in_file else None,
        **mean,
    )


def _allocate(allocator: SlotMap, reads: Sequence[_Read], read: _Read) -> Allocation:
    """Plans a batch, those that come being fed as far as the map wants them."""
    while allocator.num_fed < len(reads) and allocator.wants():
        allocator.feed(reads[allocator.num_fed].rows)
    if allocator.num_fed == len(reads):
        allocator.end()
    return allocator.allocate(read.rows)


def _moved(read: _Read, allocation: Allocation) -> tuple[Tensor, Tensor]:
    """Rows of a batch that are not in slots, and those that are written back."""
    moves = allocation.moves
    if not moves.bypasses_cache:
        return moves.rows_in, moves.rows_out
    missing = read.rows[allocation.slots < 0]
    return missing, missing


def _counts(read: _Read, missing: Tensor, leaving: Tensor, stride: int) -> dict[str, int]:
    """Counts what a batch reads and misses of a group, and what its moves take."""
    missed = torch.searchsorted(read.rows, missing)
    reads, writes = missing.numel() - read.num_untouched, leaving.numel()
    return {
        "lookups": read.num_lookups,
        "rows": read.rows.numel(),
        "lookups_missed": int(read.lookups[missed].sum()),
        "misses": missing.numel(),
        "untouched": read.num_untouched,
        "reads": reads,
        "writes": writes,
        "bytes_read": reads * stride,
        "bytes_written": writes * stride,
    }


def _hottest(reads: Sequence[_Read], group: Group) -> Tensor:
    """Sorts the rows that the first tenth of the batches read by falling number of lookups."""
    lookups = torch.zeros(group.rows, dtype=torch.int32)
    for read in reads[: max(len(reads) // 10, 1)]:
        lookups[read.rows] += read.lookups
    rows = lookups.nonzero().squeeze(1)
    return rows[lookups[rows].argsort(descending=True, stable=True)]
