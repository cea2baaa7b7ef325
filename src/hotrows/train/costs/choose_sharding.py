"""Choice of sharding: a placement for each table, and a sentence on why.

    choice = choose_sharding(loads, machine, num_ranks=8, step=step, memory=64 << 30)
    choice.placements, choice.reasons

In four steps:

    hot      every rank holds an id where reading it locally and all-reducing its gradient costs a
             rank less than exchanging it; a table of such ids alone is replicated
    order    tables by cost, the dearest first
    place    all rows over all ranks; or, where that makes the step 2 % faster: whole tables on one
             rank each, giant ones over as many as they are shares; or everything on every rank, or
             rows that are not hot over all ranks; or those of each table on one rank or all, or on
             1, 2, 4, ... or all, from the rank with the least work on: the cheapest way that leaves
             no rank with more than its fair share of all work, else the one after which the busiest
             rank has the least
    packs    a pack (tables of equal dim and record) goes by columns, or is replicated, where the
             step is faster then

The choice depends on the arguments alone, so all ranks make the same one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hotrows.engine.planning.sharding import BY_COLUMNS, Placement, num_shares
from hotrows.runtime.units import format_bytes
from hotrows.train.costs.step_cost import Machine, reduce_seconds, step_cost, wire_seconds, work_seconds
from hotrows.train.costs.volumes import StepWork, TableLoad, volumes_of

KINDS = ("auto", "rows", "tables", "columns", "replicated")
_PLAIN = ("rows", "tables", "replicated")  # ways of placing all tables, the simplest first
_WITH_HOT = ("hot or rows", "one or rows", "auto")
_LEAST_COLUMNS = 64  # least bytes of a row on each rank, by columns: a cache line
_EQUAL = 1.02  # ratio of two amounts of work up to which they count as equal
_FOR_HOT = 0.5  # share for hot rows of the memory that sharded tables leave


@dataclass(frozen=True)
class ChosenSharding:
    """Placements of the tables, in their order, and a sentence on each."""

    placements: tuple[Placement, ...]
    reasons: tuple[str, ...]


@dataclass(frozen=True)
class _PlacedTable:
    """A way to place a table: seconds of work [P], and bytes held [P]."""

    placement: Placement
    seconds: np.ndarray
    held: np.ndarray

    @property
    def cost(self) -> float:
        return float(self.seconds.mean())


def choose_sharding(
    loads: Sequence[TableLoad],
    machine: Machine,
    num_ranks: int,
    step: StepWork,
    memory: float | None = None,
    kind: str = "auto",
) -> ChosenSharding:
    """Places tables on ranks.

    memory: bytes that tables may take on a rank; None: memory of the machine beside dense layers.
    kind: `auto`, or one way for all: `rows`, `tables`, `columns`, `replicated`.
    """
    # One rank, or one way for all tables, leaves nothing to choose.
    if kind not in KINDS:
        raise ValueError(f"sharding must be one of {', '.join(KINDS)}, not {kind!r}")
    if memory is None:
        memory = machine.memory + machine.far_memory - step.dense_bytes
    problem = _Problem(tuple(loads), machine, num_ranks, step, memory)
    if num_ranks == 1:
        problem.check_memory(sum(load.bytes for load in loads))
        reasons = tuple(f"table {load.name}: the only rank holds it" for load in loads)
        return ChosenSharding((Placement(),) * len(loads), reasons)
    if kind != "auto":
        return _place(problem, [kind] * len(loads))
    # Try each way for all tables together.
    kinds = ["rows"] * len(loads)
    best = _place(problem, kinds)
    for way in (*_PLAIN[1:], *_WITH_HOT):
        best, kinds = _better(problem, best, kinds, [way] * len(loads))
    width = min(load.weight_bytes for load in loads)
    for pack in dict.fromkeys(map(_pack_of, loads)):
        for way in ("columns", "replicated"):
            if way == "replicated" or pack[0] // num_ranks * width >= _LEAST_COLUMNS:
                pairs = zip(loads, kinds, strict=True)
                others = [way if _pack_of(load) == pack else before for load, before in pairs]
                best, kinds = _better(problem, best, kinds, others)
    return best


@dataclass(frozen=True)
class _Problem:
    """Tables, machine and memory that a sharding is chosen for."""

    loads: tuple[TableLoad, ...]
    machine: Machine
    num_ranks: int
    step: StepWork
    memory: float

    def placed(self, load: TableLoad, place: Placement) -> _PlacedTable:
        volumes = volumes_of(load, place, self.num_ranks, self.step)
        return _PlacedTable(place, work_seconds(self.machine, volumes, self.num_ranks), volumes.held)

    def seconds(self, choice: ChosenSharding) -> float:
        """Seconds of the step, or of planning or moving beside it where these are slower."""
        cost = step_cost(self.machine, self.loads, choice.placements, self.num_ranks, self.step)
        return max(cost.critical, cost.planning, cost.moving)

    def check_memory(self, held: float) -> None:
        if held > self.memory:
            total = sum(load.bytes for load in self.loads)
            raise ValueError(
                f"{self.num_ranks} ranks would hold up to {format_bytes(int(held))} of tables each, "
                f"but {format_bytes(int(max(self.memory, 0)))} are free for them on a rank; all tables "
                f"take {format_bytes(int(total))}: use more ranks, or a cache in front of a file"
            )


def _pack_of(load: TableLoad) -> tuple[int, int]:
    return load.dim, load.record_bytes


def _better(
    problem: _Problem, best: ChosenSharding, kinds: list[str], others: list[str]
) -> tuple[ChosenSharding, list[str]]:
    """Returns the choice by other kinds, where the step is 2 % faster and all fits, else `best`."""
    try:
        choice = _place(problem, others)
    except ValueError:  # does not fit
        return best, kinds
    faster = problem.seconds(choice) * _EQUAL < problem.seconds(best)
    return (choice, others) if faster else (best, kinds)


def _place(problem: _Problem, kinds: Sequence[str]) -> ChosenSharding:
    """Places each table in a way of its kind, the dearest first."""
    loads, num_ranks = problem.loads, problem.num_ranks
    hot = _hot_ids(problem, kinds)

    sizes = [load.rows * load.dim for load in loads]

    def options_of(t: int, work: np.ndarray) -> list[_PlacedTable]:
        shares = num_shares(sizes[t], sizes, num_ranks)
        placements = _placements(loads[t], hot[t], kinds[t], work, num_ranks, shares)
        return [problem.placed(loads[t], place) for place in placements]

    work, held = np.zeros(num_ranks), np.zeros(num_ranks)
    costs = [min(option.cost for option in options_of(t, work)) for t in range(len(loads))]
    chosen: dict[int, tuple[_PlacedTable, list[_PlacedTable]]] = {}
    for t in sorted(range(len(loads)), key=lambda t: (-costs[t], t)):
        options = options_of(t, work)
        best = _best(options, work, held, sum(costs), problem.memory)
        work, held = work + best.seconds, held + best.held
        chosen[t] = best, options
    problem.check_memory(float(held.max()))
    return ChosenSharding(
        tuple(chosen[t][0].placement for t in range(len(loads))),
        tuple(_reason(loads[t], *chosen[t], problem) for t in range(len(loads))),
    )


def _best(
    options: Sequence[_PlacedTable], work: np.ndarray, held: np.ndarray, fair: float, memory: float
) -> _PlacedTable:
    """Returns the cheapest option that fits and leaves no rank more than its fair share; where there
    is none, the one that adds least to the busiest rank. Within 2 % the first, the simplest, wins.
    """
    fitting = [option for option in options if (held + option.held).max() <= memory]
    fitting = fitting or list(options[-1:])
    tops = [float((work + option.seconds).max()) for option in fitting]
    within = [option for option, top in zip(fitting, tops, strict=True) if top <= fair * _EQUAL]
    if within:
        return _first(within, [option.cost for option in within])
    return _first(fitting, tops)


def _first(options: Sequence[_PlacedTable], values: Sequence[float]) -> _PlacedTable:
    """Returns the first option whose value equals the least one, within 2 %."""
    least = min(values) * _EQUAL
    return next(option for option, value in zip(options, values, strict=True) if value <= least)


def _placements(
    load: TableLoad, hot: int, kind: str, work: np.ndarray, num_ranks: int, shares: int
) -> list[Placement]:
    """Lists ways to place a table, the simplest first: on 1, 2, 4, ... ranks, and on all.

    work: seconds that each rank works so far, [P]. shares: number of ranks' shares of all tables that
    it is, which a giant one is dealt over.
    """
    if hot == load.rows:
        return [Placement(hot=hot)]
    if kind == "columns" and load.weight_bytes > 1:
        return [BY_COLUMNS]
    most = max(1, min(num_ranks, load.rows - hot))  # or as many as it has rows
    if kind in ("rows", "hot or rows", "columns"):  # integers have one scale a row
        nums = [most]
    elif kind == "tables":
        nums = [min(shares, most)]
    else:
        nums = [1 << n for n in range(most.bit_length() if kind == "auto" else 1)]
        nums = [*(num for num in nums if num < most), most]
    return [Placement(hot, num, _first_rank(work, num, (load.rows - hot) % num)) for num in nums]


def _first_rank(work: np.ndarray, num: int, longer: int) -> int:
    """Returns the first of `num` ranks in turn whose busiest is the least busy.

    longer: how many of them, from the first on, have a row more than the others. Of equals, that is
    returned whose longer ones' busiest is the least busy, then that which is itself: it has the rows
    that are read most.
    """
    return int(np.lexsort((work, _busiest(work, longer or 1), _busiest(work, num)))[0])


def _busiest(work: np.ndarray, num: int) -> np.ndarray:
    """[P]: the most work of a rank and the `num` - 1 that follow it in a circle."""
    most, width = work, 1
    while width < num:
        step = min(width, num - width)
        most, width = np.maximum(most, np.roll(most, -step)), width + step
    return most


def _hot_ids(problem: _Problem, kinds: Sequence[str]) -> list[int]:
    """Number of ids of each table that every rank holds.

    An id that a rank reads with chance q, and any rank with chance Q, costs a rank in seconds:
        exchanged   q (2 wire + copies) + Q / P (read + update)
        held        q read + Q (update + copies + all-reduce)
    The first is larger where the id is read often enough; ids are in order of falling chance, so
    there is one place to cut. Tables share the memory for it, the most gain per byte first.
    """
    loads, num_ranks, step = problem.loads, problem.num_ranks, problem.step
    spare = problem.memory - sum(load.bytes for load in loads) / num_ranks
    left = max(spare, 0.0) * _FOR_HOT
    hot = [load.rows * (kind == "replicated") for load, kind in zip(loads, kinds, strict=True)]
    gains = []
    for t, load in enumerate(loads):
        n = load.lookups * step.batch_size / num_ranks
        q, union = load.ids.read(n), load.ids.read(n * num_ranks)
        gain = _exchanged(problem, load, q, union) - _held(problem, load, q, union)
        wins = gain > 0
        num = len(wins) if wins.all() else int(wins.argmin())
        ids = load.ids.ids[:num]
        if num and kinds[t] in _WITH_HOT:
            per_byte = float(gain[:num] @ ids / ids.sum()) / load.record_bytes
            gains.append((-per_byte, t, round(float(ids.sum()))))
    for _, t, num in sorted(gains):
        hot[t] = min(num, loads[t].rows, int(left // loads[t].record_bytes))
        left -= hot[t] * loads[t].record_bytes
    return hot


def _exchanged(problem: _Problem, load: TableLoad, q: np.ndarray, union: np.ndarray) -> np.ndarray:
    """[K]: seconds that an id costs each rank where one rank owns it."""
    machine, num_ranks = problem.machine, problem.num_ranks
    wire, row = load.dim * problem.step.wire_bytes, load.dim * load.weight_bytes
    on_wire = 2 * wire_seconds(machine, wire * (num_ranks - 1) / num_ranks, num_ranks)
    copies = 2 * (row + wire) / machine.memory_bandwidth
    touched = 2 * machine.row_seconds + (row + 2 * load.record_bytes) / machine.row_bandwidth
    return q * (on_wire + copies) + union / num_ranks * touched


def _held(problem: _Problem, load: TableLoad, q: np.ndarray, union: np.ndarray) -> np.ndarray:
    """[K]: seconds that an id costs each rank where every rank holds it."""
    machine = problem.machine
    wire = load.dim * problem.step.wire_bytes
    read = machine.row_seconds + load.dim * load.weight_bytes / machine.row_bandwidth
    update = machine.row_seconds + 2 * load.record_bytes / machine.row_bandwidth
    summed = reduce_seconds(machine, wire, problem.num_ranks, messages=0)
    return q * read + union * (update + 2 * wire / machine.memory_bandwidth + summed)


def _reason(
    load: TableLoad, best: _PlacedTable, options: Sequence[_PlacedTable], problem: _Problem
) -> str:
    num_ranks = problem.num_ranks
    distinct = load.ids.distinct(load.lookups * problem.step.batch_size)
    head = f"table {load.name}: {load.rows:,} rows, {distinct:,.0f} distinct a batch"
    place = best.placement
    if place.hot == load.rows:
        return f"{head}: on every rank, {_ms(best.cost)} on each"
    way = f"{_words(place, num_ranks)}, {_ms(float(best.seconds.max()))} on its busiest rank"
    others = [option for option in (options[0], options[-1]) if option is not best]
    against = ", ".join(
        f"{_ms(float(option.seconds.max()))} {_words(option.placement, num_ranks)}" for option in others
    )
    hot = f"the {place.hot:,} most read rows on every rank, the others " if place.hot else ""
    return f"{head}: {hot}{way}" + (f" against {against}" if others else "")


def _words(place: Placement, num_ranks: int) -> str:
    if place.columns:
        return "by columns, with its pack"
    if place.num_ranks == 1:
        return f"on rank {place.first_rank}"
    return "dealt over all ranks" if place.num_ranks == num_ranks else f"over {place.num_ranks} ranks"


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms"
