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
from dataclasses import dataclass
from typing import Any


@dataclass
class Work:
    """A batch on its way: its number, the number of the batch that it waits for, and what stages make.

    waits_for: -1: none; known once the batch is planned.
    """

    number: int
    waits_for: int = -1
    item: Any = None


@dataclass(frozen=True)
class Stage:
    """One step of a batch's life.

    lane: stages of one lane run one at a time. enters: the batch moves rows from this stage on.
    run: runs the stage, on any thread; None for `train`, which the caller runs. begin, end: of `train`;
    called on the caller's thread, before a batch is handed out and once it is trained.
    has_input: of the first stage, whether there is a next batch, or none will come: a stream may have
        none yet; None: always.
    """

    name: str
    lane: str
    enters: bool = False
    run: Callable[[Work], None] | None = None
    begin: Callable[[Work], None] | None = None
    end: Callable[[Work], None] | None = None
    has_input: Callable[[], bool] | None = None


def may_run(stages: Sequence[Stage], s: int, batch: int, waits_for: int, done: Sequence[int]) -> bool:
    """True if stage s of `batch` may run once stage t has been run for the first done[t] batches."""
    if done[s] != batch or (s > 0 and done[s - 1] <= batch):
        return False
    return not stages[s].enters or done[-1] > waits_for
