"""StepHistory: the steps that tables have made together, and the numbers of each of them.

    step      0   1   2   3   4   5   6   7   now = 8
    recorded          2   3   4   5   6   7               first = 2
    row a             ^ has made 2 steps: 6 to catch up with

Tables that are always stepped with equal numbers share one history. A row that only decay can move is
behind from `first_decay` on.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hotrows.optim import Numbers

WIDTH = 8
MAX_DEFERRED_STEPS = 1 << 14  # that rows may be behind: a step's cost grows with their number


class StepHistory:
    """The numbers of steps `first` to `now` - 1: `steps` [K, 8] float64, K at least their number."""

    def __init__(self, now: int = 0) -> None:
        self.first = self.now = now
        self.steps = torch.empty(64, WIDTH, dtype=torch.float64)
        self.num_tables = 0
        self._first_decay: int | None = None

    @property
    def first_decay(self) -> int:
        """The first step that moves a row which no gradient has reached; `now` where none does."""
        return self.now if self._first_decay is None else self._first_decay

    @property
    def num_recorded(self) -> int:
        return self.now - self.first

    def record(self, numbers: Numbers) -> None:
        """Stores the numbers of step `now`; the caller advances `now` when the step has been made."""
        if self.num_recorded == len(self.steps):
            self.steps = torch.cat([self.steps, torch.empty_like(self.steps)])
        self.steps[self.num_recorded] = torch.tensor(numbers, dtype=torch.float64)
        if self._first_decay is None and _decays(numbers):
            self._first_decay = self.now

    @property
    def recorded(self) -> Tensor:
        """[n, 8] float64: the numbers of steps `first` to `now` - 1."""
        return self.steps[: self.num_recorded]

    @classmethod
    def from_numbers(cls, first: int, recorded: Tensor) -> StepHistory:
        """Returns the history whose steps from `first` on have these numbers, [n, 8] float64."""
        history = cls(first)
        for numbers in recorded.tolist():
            history.record(tuple(numbers))
            history.now += 1
        return history

    def forget(self) -> None:
        """Drops all recorded steps: every row has made them."""
        self.first, self._first_decay = self.now, None

    def fork(self) -> StepHistory:
        """Returns a copy for tables whose next steps differ from those of the sharing tables."""
        copy = StepHistory(self.now)
        copy.first, copy.steps = self.first, self.steps.clone()
        copy._first_decay = self._first_decay
        return copy


def _decays(numbers: Numbers) -> bool:
    """Whether a step with these numbers moves a row whose gradient is zero and that never moved."""
    return numbers[0] != 0 or numbers[1] != 1
