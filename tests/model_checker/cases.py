"""Cases: batches as sets of rows, settings, and the plans that the real slot map makes of them."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from hotrows.planning.policy import Lookahead, Newest, Policy
from hotrows.planning.slots import SlotMap, slot_map

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


@dataclass(frozen=True)
class Case:
    """A training.

    batches: by rank, the rows of its store that each batch reads. pauses: by number of batches trained,
    EVALUATE, SAVE and BEST. crashes: at any moment, so many at most. warm: rows in slots at the beginning.
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

    def plans(self, rank: int, start: int) -> list[PlannedBatch]:
        """The plans of the batches of a rank from `start` on, as the real slot map makes them."""
        slots = slot_map(
            self.num_slots, self.policy, self.in_flight, past_pins=self.past_pins,
            future_pins=self.future_pins,
        )  # fmt: skip
        if self.drains:
            remove_drains(slots, self.drains)
        if self.warm:
            slots.warm(torch.tensor(self.warm))
        coming = iter([torch.tensor(rows, dtype=torch.int64) for rows in self.batches[rank][start:]])
        return [self._plan(slots, coming, rows, start) for rows in self.batches[rank][start:]]

    def _plan(self, slots: SlotMap, coming: Iterator, used: Rows, start: int) -> PlannedBatch:
        while slots.wants():
            rows = next(coming, None)
            slots.end() if rows is None else slots.feed(rows)
        taken = slots.allocate(torch.tensor(used, dtype=torch.int64))
        moves = taken.moves
        return PlannedBatch(
            used,
            dict(zip(used, taken.slots.tolist(), strict=True)),
            tuple(moves.rows_in.tolist()),
            dict(zip(moves.rows_out.tolist(), moves.slots_out.tolist(), strict=True)),
            moves.bypasses_cache,
            taken.waits_for + start if taken.waits_for >= 0 else -1,
        )

    def warm_slots(self) -> list[int]:
        """By slot, the row that is in it before the first batch; -1: none."""
        rows = sorted(self.warm[: self.num_slots])
        return [*rows, *[-1] * (SLOTS - len(rows))]


def remove_drains(slots: SlotMap, side: str) -> None:
    """Lets a drained batch not wait for those before it (`before`), or the next not for it (`after`)."""
    wait, last = slots._wait, -1

    def without(batch: int, drained: bool) -> int:
        nonlocal last
        if side == "before":
            waits_for = max(last, batch - slots.in_flight)
            last = batch if drained else waits_for
            return waits_for
        return max(-1, batch - (1 if drained else slots.in_flight))

    assert callable(wait)
    slots._wait = without  # type: ignore[method-assign]


# ---- families of cases


def canonical(batches: Sequence[Rows]) -> bool:
    """Whether rows come for the first time in ascending order: of batches that are equal up to the
    names of rows, one is so. (The slot map breaks ties by row, so that a few plans are left out.)"""
    met = list(dict.fromkeys(row for rows in batches for row in rows))
    return met == sorted(met) and met == list(range(len(met)))


def all_batches(num_batches: int, num_rows: int) -> Iterator[tuple[Rows, ...]]:
    """Every sequence of so many batches of rows, up to the names of rows."""
    sets = [
        rows for n in range(num_rows + 1) for rows in itertools.combinations(range(num_rows), n)
    ]
    return (batches for batches in itertools.product(sets, repeat=num_batches) if canonical(batches))


def small_cases(num_batches: int, num_rows: int) -> Iterator[Case]:
    """Every training in memory of so many batches of so many rows at most, on one rank, with an
    evaluation after each batch or none at all."""
    for batches in all_batches(num_batches, num_rows):
        for num_slots, in_flight in itertools.product(range(1, num_rows + 1), range(1, num_batches + 1)):
            for policy in POLICIES:
                for evaluates in (False, True):
                    pauses = [(step, EVALUATE) for step in range(1, num_batches + 1) if evaluates]
                    yield Case(
                        (batches,), min(num_slots, SLOTS), min(in_flight, IN_FLIGHT), policy, 1,
                        pauses=tuple(pauses),
                    )  # fmt: skip


def some_batches(chance: random.Random, num_batches: int, num_rows: int) -> tuple[Rows, ...]:
    """Batches at random: mostly small ones, since large ones drain the pipeline."""
    likely = chance.choice([0.2, 0.3, 0.5])
    return tuple(
        tuple(row for row in range(num_rows) if chance.random() < likely) for _ in range(num_batches)
    )


def some_pauses(chance: random.Random, num_batches: int, kinds: Sequence[int], most: int) -> tuple:
    steps = chance.sample(range(1, num_batches + 1), chance.randint(0, min(most, num_batches)))
    return tuple((step, chance.choice(kinds)) for step in sorted(steps))


def random_case(family: str, seed: int, small: bool = False) -> Case:
    """A case of a family, up to the bounds of the model: `memory`, `file`, `ranks` or `ranks file`."""
    chance = random.Random(f"{family} {seed}")
    in_file, num_ranks = "file" in family, 2 if "ranks" in family else 1
    most = (4 if in_file else 5) - num_ranks + 1 if small or num_ranks > 1 else BATCHES
    num_batches = chance.randint(2, most)
    num_rows = chance.randint(2, 3 if num_ranks > 1 else ROWS)
    kinds = [SAVE, SAVE | BEST, EVALUATE | SAVE] if in_file else [EVALUATE, SAVE, EVALUATE | SAVE]
    pauses = some_pauses(chance, num_batches, kinds, 2 if in_file else num_batches)
    crashes = chance.choice([1, 1, 2]) if in_file else int(chance.random() < 0.3)
    return Case(
        tuple(some_batches(chance, num_batches, num_rows) for _ in range(num_ranks)),
        chance.randint(1, SLOTS),
        chance.randint(1, min(IN_FLIGHT, 2 if num_ranks > 1 else IN_FLIGHT)),
        chance.choice(POLICIES),
        chance.randint(1, 2) if num_ranks == 1 else 1,
        in_file=in_file,
        pauses=pauses,
        crashes=min(crashes, 1) if len(pauses) > 1 or num_ranks > 1 else crashes,
        keep_last=chance.choice([1, 2]) if in_file else 1,
        warm=tuple(chance.sample(range(num_rows), num_rows)) if chance.random() < 0.3 else (),
    )


FAMILIES = ("memory", "file", "ranks", "ranks file")


def without(case: Case, *rules: str) -> Case:
    return replace(case, removed=case.removed | set(rules))
