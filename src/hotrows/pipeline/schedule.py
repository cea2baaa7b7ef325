"""Schedule: which stage of which batch may run when.

A batch goes through its stages in order, and every stage takes batches in order. Stages of one lane
run one at a time; lanes run side by side:

    cycle   0        1         2         3          4           5
    plan    plan 0   plan 1    plan 2    plan 3     plan 4      plan 5
    move             collect 0 insert 0  collect 1  insert 1    collect 2
    train                                train 0                train 1
    write                                           write back 0

A batch is in flight from its first stage that moves a row to its last stage. It enters when the
batch that it waits for has left: with k in flight, batch j waits for j - k, or for a later one where
its plan says so. Any order that `may_run` allows gives the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Work:
    """A batch on its way: its number, the batch that it waits for, and what its stages make.

    waits_for: known once it is planned. On a device: ready: what training waits for there; holds: the
    memory that it reads; trained: the mark behind it; check: raises what is only known afterwards.
    """

    number: int
    waits_for: int = -1
    batch: Any = None
    plan: Any = None
    transits: Any = None
    ready: list[Any] = field(default_factory=list)
    holds: list[Any] = field(default_factory=list)
    trained: Any = None
    check: Callable[[], None] | None = None


@dataclass(frozen=True)
class Stage:
    """One step of a batch's life.

    lane: stages of one lane run one at a time. enters: a row moves here for the first time.
    run: does it, on any thread. `train` has none: the caller does it; begin and end are called on the
    caller's thread, before a batch is handed out and once it is trained.
    """

    name: str
    lane: str
    enters: bool = False
    run: Callable[[Work], None] | None = None
    begin: Callable[[Work], None] | None = None
    end: Callable[[Work], None] | None = None


def may_run(
    stages: Sequence[Stage], s: int, batch: int, waits_for: int, done: Sequence[int]
) -> bool:
    """Whether stage s of `batch` may run once stage t has been run for the first done[t] batches."""
    if done[s] != batch or (s > 0 and done[s - 1] <= batch):
        return False
    return not stages[s].enters or done[-1] > waits_for


def cycles(stages: Sequence[Stage], waits: Sequence[int]) -> list[list[tuple[str, int]]]:
    """The schedule of a pipeline whose stages take one cycle each: what runs in each cycle.

    waits: which batch each batch waits for. In a lane the stage nearest to the end goes first.
    """
    done, table = [0] * len(stages), []
    while done[-1] < len(waits):
        cycle, lanes = [], set()
        for s in reversed(range(len(stages))):
            batch = done[s]
            free = stages[s].lane not in lanes
            if free and batch < len(waits) and may_run(stages, s, batch, waits[batch], done):
                cycle.append(s)
                lanes.add(stages[s].lane)
        table.append([(stages[s].name, done[s]) for s in reversed(cycle)])
        for s in cycle:
            done[s] += 1
    return table
