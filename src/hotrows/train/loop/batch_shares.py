"""Shares of the ranks in every batch: equal, as given, or by the measured speed of each.

    steps s .. s + 49    equal shares; every rank notes the seconds of its samples, without waits
    step s + 50          ranks compare them: the batches begin anew, with shares by speed

These stay, from that step on, in the run's placing.json, by number of ranks. A run that is resumed on as
many ranks of the same processors has them, and the bits of one that never stopped: where its checkpoint
is older than that step, shares are equal up to it once more. Others are measured again.

What is measured are forward and backward, whose work grows with a rank's samples; looking up rows and
updating them is work for the samples of all. Where that is the most, shares gain little.
"""

from __future__ import annotations

import dataclasses
import logging
import sys
from collections.abc import Callable, Sequence
from statistics import median

from hotrows.data.stored.order import parse_shares
from hotrows.runtime.machine import num_cores, processor
from hotrows.train.costs.placement import ShardingPlan
from hotrows.train.loop.step_trainer import StepTrainer

_STEPS = 50  # that are measured
_NEAR = 1.1  # times as slow is as fast
_WHOLE = 1000  # which measured shares add up to, nearly
log = logging.getLogger("hotrows")


class BatchShares:
    """The shares of the batches that `steps` trains on.

    begun: whether the run is resumed, where given shares of another number of ranks are no error.
    keep: called on rank 0 with what is to be read again by the next process.
    """

    def __init__(self, steps: StepTrainer, begun: bool, keep: Callable[[ShardingPlan], None]) -> None:
        self._steps, self._ranks, self._keep = steps, steps.ranks, keep
        shares, num_ranks = steps.config.shares, steps.ranks.num_ranks
        self._given = parse_shares(shares)
        if self._given and len(self._given) != num_ranks:
            problem = f"shares={shares} are of {len(self._given)} ranks, and there are {num_ranks}"
            if not begun:
                raise ValueError(f"{problem}: give one number for each rank, or auto")
            self._given = ()
            self._say(f"{problem}: shares are equal")
        machine = f"{processor()}, {num_cores()} cores"
        self._machines = tuple(self._ranks.gather_objects(machine) if shares == "auto" else ())
        self._measures = len(self._machines) > 1
        if self._measures and steps.config.device != "cpu":
            raise ValueError("shares=auto measures processors: give shares such as 1,2 on a GPU")

    def begin(self) -> None:
        """Sets the shares of the next batches, and the step up to which they hold."""
        shares, until, placing = self._given, sys.maxsize, self._steps.placing
        if self._measures:
            step, first = self._steps.state.step, placing.shares_from
            if not self._is_known:
                first = step + _STEPS
                num = self._ranks.num_ranks
                self._say(f"shares: the speed of {num} ranks is measured in {_STEPS} steps")
            shares, until = (placing.shares, until) if step >= first else ((), first)
        if shares or until < sys.maxsize:
            self._steps.batches.share(shares, until)
            self._steps.recommender.shares = shares

    def change(self) -> None:
        """Collective, at the step up to which shares held: sets the next ones."""
        if not self._is_known:
            self._choose()
        self.begin()

    def _choose(self) -> None:
        paces = self._ranks.gather_objects(median(self._steps.paces or (0.0,)))
        shares = by_speed(paces)
        micros = ", ".join(f"{pace * 1e6:.1f}" for pace in paces)
        parts = ", ".join(f"{share / sum(shares):.1%}" for share in shares)
        step = self._steps.state.step
        reason = f"shares of ranks from step {step:,} on: {parts}; a sample takes them {micros} us"
        self._say(reason)
        placing = self._steps.placing
        self._steps.placing = placing = dataclasses.replace(
            placing,
            shares=shares,
            shares_from=step,
            machines=self._machines,
            reasons=(*(r for r in placing.reasons if not r.startswith("shares of")), reason),
        )
        if self._ranks.rank == 0:
            self._keep(placing)

    @property
    def _is_known(self) -> bool:
        placing = self._steps.placing
        return bool(placing.shares) and placing.machines == self._machines

    def _say(self, words: str) -> None:
        if self._ranks.rank == 0:
            log.info(words)


def by_speed(paces: Sequence[float]) -> tuple[int, ...]:
    """Returns the shares of ranks that take so many seconds for a sample; 0: not measured.

    >>> by_speed([2e-6, 1e-6]), by_speed([1.05e-6, 1e-6]), by_speed([1e-6, 0.0])
    ((333, 667), (1, 1), (1, 1))
    """
    if min(paces) <= 0 or max(paces) < _NEAR * min(paces):
        return (1,) * len(paces)
    speeds = [1 / pace for pace in paces]
    return tuple(max(1, round(_WHOLE * speed / sum(speeds))) for speed in speeds)
