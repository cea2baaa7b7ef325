"""Choice of sharding: for each table, where its rows go, and why, in words.

    choice = choose(loads, machine, num_ranks=8, step=step, memory=64 << 30)
    choice.placements, choice.reasons

In four steps, each of which can be told in a sentence:

    hot      an id is held by every rank where reading it there and all-reducing its gradient costs a
             rank less than exchanging it; a table of such ids alone is replicated
    order    tables by what they cost, the dearest first
    place    all rows go over all ranks; or, where that makes the step 2 % faster, whole tables to one
             rank each, or everything everywhere, or what is not hot over all ranks; or each table's
             to one rank or all, or to 1, 2, 4, ... or all, from the rank on that has the least to
             do: the cheapest way that leaves no rank with more than its fair share of all work, else
             the one after which the busiest has the least
    packs    a pack (tables of equal dim and record) as a whole goes by columns, or is replicated,
             where the step takes less time then

A function of its arguments alone, and so the same on every rank.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hotrows.planning.budget import format_bytes
from hotrows.planning.cost import (
    Machine,
    Step,
    TableLoad,
    reduce_seconds,
    step_cost,
    volumes_of,
    wire_seconds,
    work_seconds,
)
from hotrows.planning.sharding import BY_COLUMNS, Placement

KINDS = ("auto", "rows", "tables", "columns", "replicated")
_PLAIN = ("rows", "tables", "replicated")  # ways of placing all tables, the simplest first
_WITH_HOT = ("hot or rows", "one or rows", "auto")
_LEAST_COLUMNS = 64  # bytes of a row that a rank holds at least, by columns: a cache line
_EQUAL = 1.02  # up to so many times, work counts as equal
_FOR_HOT = 0.5  # of the memory that dealt tables leave


@dataclass(frozen=True)
class Choice:
    """Placements of the tables, in their order, and a sentence on each."""

    placements: tuple[Placement, ...]
    reasons: tuple[str, ...]


@dataclass(frozen=True)
class _Option:
    """A way to place a table: seconds of work [P], and bytes held [P]."""

    placement: Placement
    seconds: np.ndarray
    held: np.ndarray

    @property
    def cost(self) -> float:
        return float(self.seconds.mean())


def choose(
    loads: Sequence[TableLoad],
    machine: Machine,
    num_ranks: int,
    step: Step,
    memory: float | None = None,
    kind: str = "auto",
) -> Choice:
    """Places tables on ranks.

    memory: bytes that tables may take on a rank; None: what the machine has, beside dense layers.
    kind: `auto`, or one way for all: `rows`, `tables`, `columns`, `replicated`.
    """
    if kind not in KINDS:
        raise ValueError(f"sharding must be one of {', '.join(KINDS)}, not {kind!r}")
    if memory is None:
        memory = machine.memory + machine.far_memory - step.dense_bytes
    setting = _Setting(tuple(loads), machine, num_ranks, step, memory)
    if num_ranks == 1:
        setting.check_memory(sum(load.bytes for load in loads))
        alone = tuple(f"table {load.name}: the only rank holds it" for load in loads)
        return Choice((Placement(),) * len(loads), alone)
    if kind != "auto":
        return _place(setting, [kind] * len(loads))
    kinds = ["rows"] * len(loads)
    best = _place(setting, kinds)
    for way in (*_PLAIN[1:], *_WITH_HOT):
        best, kinds = _better(setting, best, kinds, [way] * len(loads))
    width = min(load.weight_bytes for load in loads)
    for pack in dict.fromkeys(map(_pack_of, loads)):
        for way in ("columns", "replicated"):
            if way == "replicated" or pack[0] // num_ranks * width >= _LEAST_COLUMNS:
                own = [
                    way if _pack_of(of) == pack else k for of, k in zip(loads, kinds, strict=True)
                ]
                best, kinds = _better(setting, best, kinds, own)
    return best


@dataclass(frozen=True)
class _Setting:
    """What the choice is made for."""

    loads: tuple[TableLoad, ...]
    machine: Machine
    num_ranks: int
    step: Step
    memory: float

    def option(self, load: TableLoad, place: Placement) -> _Option:
        of = volumes_of(load, place, self.num_ranks, self.step)
        return _Option(place, work_seconds(self.machine, of, self.num_ranks), of.held)

    def seconds(self, choice: Choice) -> float:
        """Of the step, or of a lane beside it that placements bear on, if it is slower."""
        placed = (self.machine, self.loads, choice.placements, self.num_ranks, self.step)
        cost = step_cost(*placed)
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
    setting: _Setting, best: Choice, kinds: list[str], other: list[str]
) -> tuple[Choice, list[str]]:
    """What comes of other ways to place tables, where the step is 2 % faster and all fits."""
    try:
        found = _place(setting, other)
    except ValueError:  # does not fit
        return best, kinds
    faster = setting.seconds(found) * _EQUAL < setting.seconds(best)
    return (found, other) if faster else (best, kinds)


def _place(setting: _Setting, kinds: Sequence[str]) -> Choice:
    """Places each table in a way of its kind, the dearest first."""
    loads, num_ranks = setting.loads, setting.num_ranks
    hot = _hot_ids(setting, kinds)

    def options_of(t: int, first: int) -> list[_Option]:
        places = _places(loads[t], hot[t], kinds[t], first, num_ranks)
        return [setting.option(loads[t], place) for place in places]

    costs = [min(of.cost for of in options_of(t, 0)) for t in range(len(loads))]
    work, held = np.zeros(num_ranks), np.zeros(num_ranks)
    chosen: dict[int, tuple[_Option, list[_Option]]] = {}
    for t in sorted(range(len(loads)), key=lambda t: (-costs[t], t)):
        options = options_of(t, int(work.argmin()))
        best = _best(options, work, held, sum(costs), setting.memory)
        work, held = work + best.seconds, held + best.held
        chosen[t] = best, options
    setting.check_memory(float(held.max()))
    return Choice(
        tuple(chosen[t][0].placement for t in range(len(loads))),
        tuple(_reason(loads[t], *chosen[t], setting) for t in range(len(loads))),
    )


def _best(
    options: Sequence[_Option], work: np.ndarray, held: np.ndarray, fair: float, memory: float
) -> _Option:
    """Of what fits and leaves no rank more than its fair share, the cheapest; else what adds least
    to the busiest. Within 2 % of that the first, which is the simplest.
    """
    fitting = [of for of in options if (held + of.held).max() <= memory] or options[-1:]
    tops = [float((work + of.seconds).max()) for of in fitting]
    within = [of for of, top in zip(fitting, tops, strict=True) if top <= fair * _EQUAL]
    if within:
        return _first(within, [of.cost for of in within])
    return _first(fitting, tops)


def _first(options: Sequence[_Option], values: Sequence[float]) -> _Option:
    least = min(values) * _EQUAL
    return next(of for of, value in zip(options, values, strict=True) if value <= least)


def _places(load: TableLoad, hot: int, kind: str, first: int, num_ranks: int) -> list[Placement]:
    """Ways to place a table, the simplest first: on 1, 2, 4, ... ranks, and on all."""
    if hot == load.rows:
        return [Placement(hot=hot)]
    if kind == "columns":
        return [BY_COLUMNS]
    over = dataclasses.replace(_over_all(load, hot, num_ranks), first_rank=first)
    if kind in ("rows", "hot or rows"):
        return [over]
    if kind == "tables":
        return [Placement(hot, 1, first)]
    nums = [1 << n for n in range(over.num_ranks.bit_length() if kind == "auto" else 1)]
    return [*(Placement(hot, num, first) for num in nums if num < over.num_ranks), over]


def _over_all(load: TableLoad, hot: int, num_ranks: int) -> Placement:
    """All that is not hot dealt over all ranks, or over as many as there are ids."""
    return Placement(hot, max(1, min(num_ranks, load.rows - hot)))


def _hot_ids(setting: _Setting, kinds: Sequence[str]) -> list[int]:
    """How many ids of each table every rank holds.

    Of an id that a rank reads with chance q, and any rank with chance Q, in seconds of a rank:
        exchanged   q (2 wire + copies) + Q / P (read + update)
        held        q read + Q (update + copies + all-reduce)
    The first is the larger one where the id is read often enough; ids stand by falling chance, so
    there is one place to cut. Tables share the memory for it, the most gain per byte first.
    """
    loads, num_ranks, step = setting.loads, setting.num_ranks, setting.step
    spare = setting.memory - sum(load.bytes for load in loads) / num_ranks
    left = max(spare, 0.0) * _FOR_HOT
    hot = [load.rows * (kind == "replicated") for load, kind in zip(loads, kinds, strict=True)]
    gains = []
    for t, load in enumerate(loads):
        n = load.lookups * step.batch_size / num_ranks
        q, union = load.ids.read(n), load.ids.read(n * num_ranks)
        gain = _exchanged(setting, load, q, union) - _held(setting, load, q, union)
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


def _exchanged(setting: _Setting, load: TableLoad, q: np.ndarray, union: np.ndarray) -> np.ndarray:
    """[K]: seconds that an id costs each rank, where it is dealt."""
    machine, num_ranks = setting.machine, setting.num_ranks
    wire, row = load.dim * setting.step.wire_bytes, load.dim * load.weight_bytes
    there = 2 * wire_seconds(machine, wire * (num_ranks - 1) / num_ranks, num_ranks)
    copies = 2 * (row + wire) / machine.memory_bandwidth
    touched = 2 * machine.row_seconds + (row + 2 * load.record_bytes) / machine.row_bandwidth
    return q * (there + copies) + union / num_ranks * touched


def _held(setting: _Setting, load: TableLoad, q: np.ndarray, union: np.ndarray) -> np.ndarray:
    """[K]: seconds that an id costs each rank, where every rank holds it."""
    machine = setting.machine
    wire = load.dim * setting.step.wire_bytes
    read = machine.row_seconds + load.dim * load.weight_bytes / machine.row_bandwidth
    update = machine.row_seconds + 2 * load.record_bytes / machine.row_bandwidth
    summed = reduce_seconds(machine, wire, setting.num_ranks, messages=0)
    return q * read + union * (update + 2 * wire / machine.memory_bandwidth + summed)


def _reason(load: TableLoad, best: _Option, options: Sequence[_Option], setting: _Setting) -> str:
    num_ranks = setting.num_ranks
    distinct = load.ids.distinct(load.lookups * setting.step.batch_size)
    head = f"table {load.name}: {load.rows:,} rows, {distinct:,.0f} distinct a batch"
    place = best.placement
    if place.hot == load.rows:
        return f"{head}: on every rank, {_ms(best.cost)} on each"
    said = f"{_words(place, num_ranks)}, {_ms(float(best.seconds.max()))} on its busiest rank"
    others = [of for of in (options[0], options[-1]) if of is not best]
    against = ", ".join(
        f"{_ms(float(of.seconds.max()))} {_words(of.placement, num_ranks)}" for of in others
    )
    hot = f"the {place.hot:,} most read rows on every rank, the others " if place.hot else ""
    return f"{head}: {hot}{said}" + (f" against {against}" if others else "")


def _words(place: Placement, num_ranks: int) -> str:
    if place.columns:
        return "by columns, with its pack"
    if place.num_ranks == 1:
        return f"on rank {place.first_rank}"
    return (
        "dealt over all ranks" if place.num_ranks == num_ranks else f"over {place.num_ranks} ranks"
    )


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms"
