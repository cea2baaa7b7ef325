"""History: the steps that tables have taken together, and what each of them did.

    step      0   1   2   3   4   5   6   7   now = 8
    kept              2   3   4   5   6   7               first = 2
    row a             ^ has been through 2 steps: 6 to catch up with

Tables that are always stepped with the same numbers share one history. A row that nothing but decay
can move is behind only from `first_decay` on.
"""

from __future__ import annotations

import torch

from hotrows.capture.rules import Numbers, decays

WIDTH = 8


class History:
    """The numbers of steps `first` to `now` - 1: `steps` [K, 8] float64, K at least their number."""

    def __init__(self, now: int = 0) -> None:
        self.first = self.now = now
        self.steps = torch.empty(64, WIDTH, dtype=torch.float64)
        self.num_tables = 0
        self._first_decay: int | None = None

    @property
    def first_decay(self) -> int:
        """The first step that moves a row which no gradient has touched; `now` where none does."""
        return self.now if self._first_decay is None else self._first_decay

    @property
    def num_kept(self) -> int:
        return self.now - self.first

    def prepare(self, numbers: Numbers) -> None:
        """Writes down the step that comes next; `taken` says that it is over."""
        if self.num_kept == len(self.steps):
            self.steps = torch.cat([self.steps, torch.empty_like(self.steps)])
        self.steps[self.num_kept] = torch.tensor(numbers, dtype=torch.float64)
        if self._first_decay is None and decays(numbers):
            self._first_decay = self.now

    def taken(self) -> None:
        self.now += 1

    def forget(self) -> None:
        """Every row has been through all steps: what they were is needed no more."""
        self.first, self._first_decay = self.now, None

    def fork(self) -> History:
        """The same history, for tables that go on by themselves."""
        other = History(self.now)
        other.first, other.steps = self.first, self.steps.clone()
        other._first_decay = self._first_decay
        return other
