"""Cases: batches as sets of rows, settings, and the plans that the real slot map makes of them."""

from __future__ import annotations

import functools
import hashlib
import itertools
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch

from hotrows.engine.planning.policy import Lookahead, Newest, Policy
from hotrows.engine.planning.slots import SlotMap

ROWS, SLOTS, BATCHES, IN_FLIGHT = 5, 4, 6, 4  # the most that the model has
POLICIES: tuple[Policy, ...] = (Lookahead(None), Lookahead(0), Lookahead(1), Newest())
EVALUATE, SAVE, BEST = 1, 2, 4  # what a pause does

Rows = tuple[int, ...]


@dataclass(frozen=True)
class PlannedBatch:
    """Rows by slot: those that a batch uses (None where it bypasses the cache), brings in and evicts."""

    used: Rows
    slots: dict[int, int]
    rows_in: Rows
    rows_out: dict[int, int]
    bypasses: bool
    waits_for: int

    def of_row(self, row: int) -> tuple[int, bool, int]:
        """A row in the plan: its slot (-2: not used), whether it comes in, the slot that it leaves."""
        return self.slots.get(row, -2), row in self.rows_in, self.rows_out.get(row, -1)


@dataclass(frozen=True)
class Case:
    """A training.

    batches: by rank, the rows of its store that each batch reads. pauses: by number of batches trained,
    EVALUATE, SAVE and BEST. crashes: at any moment, so many at most. warm: rows in slots at first.
    past_pins, future_pins, drains: rules of the planner; see `rules`. removed: rules of the model.
    """

    batches: tuple[tuple[Rows, ...], ...]
    num_slots: int
    in_flight: int
    policy: Policy = POLICIES[0]
    run_ahead: int = 2
    in_file: bool = False
    pauses: tuple[tuple[int, int], ...] = ()
    crashes: int = 0
    keep_last: int = 1
    warm: Rows = ()
    past_pins: int | None = None
    future_pins: int | None = None
    drains: str = ""
    removed: frozenset[str] = frozenset()

    @property
    def num_ranks(self) -> int:
        return len(self.batches)

    @property
    def num_batches(self) -> int:
        return len(self.batches[0])

    @property
    def num_rows(self) -> int:
        used = (row for rank in self.batches for rows in rank for row in rows)
        return 1 + max((*used, *self.warm), default=0)

    @property
    def starts(self) -> list[int]:
        """The numbers of batches after which planning may begin: at a checkpoint, after a crash."""
        saved = [step for step, kind in self.pauses if kind & SAVE] if self.crashes else []
        if "saves_trained" in self.removed and saved:
            return list(range(self.num_batches + 1))
        return sorted({0, *saved})

    @property
    def removes_planner_rule(self) -> bool:
        return bool(self.drains) or (self.past_pins, self.future_pins) != (None, None)

    def slot_map(self) -> SlotMap:
        """The real slot map, without the rules of the planner that this case removes."""
        slots = SlotMap(
            self.num_slots, self.policy, self.in_flight, past_pins=self.past_pins,
            future_pins=self.future_pins,
        )  # fmt: skip
        if self.drains:
            _remove_drains(slots, self.drains)
        return slots

    def plans(self, rank: int, start: int) -> tuple[PlannedBatch, ...]:
        """The plans of the batches of a rank from `start` on, as the real slot map makes them."""
        return _plans(self, rank, start)

    def warm_slots(self) -> list[int]:
        """By slot, the row that is in it before the first batch; -1: none."""
        rows = sorted(self.warm[: self.num_slots])
        return [*rows, *[-1] * (SLOTS - len(rows))]


@functools.lru_cache(maxsize=256)
def _plans(case: Case, rank: int, start: int) -> tuple[PlannedBatch, ...]:
    """Feeds and allocates as `engine.stages` does."""
    slots = case.slot_map()
    if case.warm:
        slots.warm(torch.tensor(case.warm))
    batches = [torch.tensor(rows, dtype=torch.int64) for rows in case.batches[rank][start:]]
    coming, plans = iter(batches), []
    for rows in batches:
        while slots.wants():
            ahead = next(coming, None)
            slots.end() if ahead is None else slots.feed(ahead)
        taken, used = slots.allocate(rows), tuple(rows.tolist())
        moves = taken.moves
        plan = PlannedBatch(
            used,
            dict(zip(used, taken.slots.tolist(), strict=True)),
            tuple(moves.rows_in.tolist()),
            dict(zip(moves.rows_out.tolist(), moves.slots_out.tolist(), strict=True)),
            moves.bypasses_cache,
            taken.waits_for + start if taken.waits_for >= 0 else -1,
        )
        plans.append(plan)
    return tuple(plans)


def _remove_drains(slots: SlotMap, side: str) -> None:
    """Lets a drained batch not wait for those before it (`before`), or the next not for it (`after`)."""
    last = -1

    def wait(batch: int, drained: bool) -> int:
        nonlocal last
        if side == "after":
            return max(-1, batch - (1 if drained else slots.in_flight))
        waits_for = max(last, batch - slots.in_flight)
        last = batch if drained else waits_for
        return waits_for

    slots._wait = wait  # type: ignore[method-assign]


def signature(case: Case) -> tuple:
    """Equal for cases that are one up to the names of rows: the model knows rows by their plans alone.

    What each row goes through, for all rows of a rank in some order; and what batches and pauses do. The
    number of slots, the policy and the batches in flight are in the plans.
    """
    ranks = []
    for rank in range(case.num_ranks):
        plans = [plan for start in case.starts for plan in case.plans(rank, start)]
        warm = case.warm_slots()
        rows = [
            (warm.index(row) if row in warm else -1, *(plan.of_row(row) for plan in plans))
            for row in range(case.num_rows)
        ]
        ranks.append((tuple(sorted(rows)), tuple((plan.bypasses, plan.waits_for) for plan in plans)))
    run_ahead = case.run_ahead + (case.in_flight if case.num_ranks > 1 else 0)
    return (*ranks, run_ahead, case.in_file, case.pauses, case.crashes, case.keep_last, case.removed)


# ---- families of cases


def small_cases(num_batches: int, num_rows: int) -> Iterator[Case]:
    """Every training in memory of so many batches of so many rows at most, on one rank, under every
    policy, with an evaluation after each batch or none at all."""
    sets = [rows for n in range(num_rows + 1) for rows in itertools.combinations(range(num_rows), n)]
    every = tuple((step, EVALUATE) for step in range(1, num_batches + 1))
    in_flights = range(1, min(num_batches, IN_FLIGHT) + 1)
    for num_slots, in_flight, policy in itertools.product(range(1, num_rows + 1), in_flights, POLICIES):
        for batches in itertools.product(sets, repeat=num_batches):
            for pauses in ((), every):
                yield Case((batches,), num_slots, in_flight, policy, 1, pauses=pauses)


def distinct(cases: Iterable[Case]) -> Iterator[Case]:
    """The cases without those that are equal to an earlier one up to the names of rows."""
    met: set[bytes] = set()
    for case in cases:
        key = hashlib.blake2b(repr(signature(case)).encode(), digest_size=16).digest()
        if key not in met:
            met.add(key)
            yield case


def some_batches(chance: random.Random, num_batches: int, num_rows: int) -> tuple[Rows, ...]:
    """Batches at random: mostly small ones, since large ones drain the pipeline."""
    likely = chance.choice([0.2, 0.3, 0.5])
    return tuple(
        tuple(row for row in range(num_rows) if chance.random() < likely) for _ in range(num_batches)
    )


def some_pauses(chance: random.Random, num_batches: int, kinds: Sequence[int], most: int) -> tuple:
    steps = chance.sample(range(1, num_batches + 1), chance.randint(0, min(most, num_batches)))
    return tuple((step, chance.choice(kinds)) for step in sorted(steps))


def random_case(family: str, seed: int) -> Case:
    """A case of a family: `memory` and `file` up to the bounds of the model, `ranks` and `ranks file`
    with fewer batches and rows, since the states of two ranks multiply."""
    chance = random.Random(f"{family} {seed}")
    in_file, num_ranks = "file" in family, 2 if "ranks" in family else 1
    num_batches = chance.randint(2, BATCHES if num_ranks == 1 else 3 if in_file else 4)
    num_rows = chance.randint(2, ROWS if num_ranks == 1 else 3)
    kinds = [SAVE, SAVE | BEST, EVALUATE | SAVE] if in_file else [EVALUATE, SAVE, EVALUATE | SAVE]
    pauses = some_pauses(chance, num_batches, kinds, 3 - num_ranks if in_file else num_batches)
    crashes = chance.choice([1, 1, 2]) if in_file else int(chance.random() < 0.3)
    return Case(
        tuple(some_batches(chance, num_batches, num_rows) for _ in range(num_ranks)),
        chance.randint(1, SLOTS),
        chance.randint(1, IN_FLIGHT if num_ranks == 1 else 2),
        chance.choice(POLICIES),
        chance.randint(1, 2) if num_ranks == 1 else 1,
        in_file=in_file,
        pauses=pauses,
        crashes=min(crashes, 1) if len(pauses) > 1 or num_ranks > 1 else crashes,
        keep_last=chance.choice([1, 2]) if in_file else 1,
        warm=tuple(chance.sample(range(num_rows), num_rows)) if chance.random() < 0.3 else (),
    )


FAMILIES = ("memory", "file", "ranks", "ranks file")
