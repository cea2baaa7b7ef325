"""StepHistory: the steps that tables have made together, and the numbers of each of them.

    step      0   1   2   3   4   5   6   7   now = 8
    recorded          2   3   4   5   6   7               first = 2
    row a             ^ has made 2 steps: 6 to catch up with

Tables that are always stepped with equal numbers share one history. A row that only decay can move is
behind from `first_decay` on.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from hotrows.optim import Numbers
from hotrows.runtime import device as devices
from hotrows.runtime.transfer import copied

WIDTH = 8
DEVICE_WIDTH = 16
MAX_DEFERRED_STEPS = 1 << 14  # that rows may be behind: a step's cost grows with their number


class StepHistory:
    """The numbers of steps `first` to `now` - 1: `steps` [K, 8] float64, K at least their number."""

    def __init__(self, now: int = 0) -> None:
        self.first = self.now = now
        self.steps = torch.empty(64, WIDTH, dtype=torch.float64)
        self.num_tables = 0
        self._first_decay: int | None = None
        self._num_written = self._num_records = 0  # steps in `steps`; calls of `record` so far
        self._on_device: DeviceSteps | None = None

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
        self._num_written, self._num_records = self.num_recorded + 1, self._num_records + 1
        if self._first_decay is None and (numbers[0] != 0 or numbers[1] != 1):
            self._first_decay = self.now

    def steps_for(self, kind: str, device: torch.device) -> Tensor:
        """The numbers of the steps, as kernels on the device read them: `steps`, or `DeviceSteps`.

        kind: of the optimizer, equal for all tables that share the history.
        """
        if device.type == "cpu":
            return self.steps
        if self._on_device is None or self._on_device.first != self.first:
            self._on_device = DeviceSteps(kind, device, self.first)
        return self._on_device.follow(self.steps, self._num_written, self._num_records)

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
        self.first, self._first_decay, self._num_written = self.now, None, 0

    def fork(self) -> StepHistory:
        """Returns a copy for tables whose next steps differ from those of the sharing tables."""
        copy = StepHistory(self.now)
        copy.first, copy.steps = self.first, self.steps.clone()
        copy._first_decay, copy._num_written = self._first_decay, self._num_written
        return copy


class DeviceSteps:
    """The steps of a history in the memory of a device, [K, 16] float64, which follow those on the host.

    Behind the eight numbers of step k, for steps without decay (c = 0), which kernels need not make each:
      8, 9, 10   logarithm of what the first state, the second one and the weights shrink by in steps
                 `first` to k
      11         the first step from which on none decays
      12         how far the moves of all these can reach, as a multiple of the one before, without its
                 rate; not a number: rows must make them one by one
    """

    def __init__(self, kind: str, device: torch.device, first: int) -> None:
        self.first, self._kind, self._device = first, kind, devices.device_of(device)
        self._steps = torch.zeros(64, DEVICE_WIDTH, dtype=torch.float64, device=device)
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._count = self._num_records = 0
        self._before: list[float] | None = None
        self._logs, self._fades_from = [0.0, 0.0, 0.0], self.first
        self._rate = self._ratio = 0.0

    def follow(self, steps: Tensor, count: int, num_records: int) -> Tensor:
        """Returns the numbers with all that were recorded; num_records: how often a step was."""
        if num_records == self._num_records and count == self._count:
            return self._steps
        if num_records - self._num_records != count - self._count:
            self._begin_anew()  # a step that failed was recorded again
        begin = self._count
        lines = [self._line(numbers) for numbers in steps[begin:count].tolist()]
        self._num_records = num_records
        if not lines:
            return self._steps
        if count > len(self._steps):
            more = self._steps.new_zeros(max(count, 2 * len(self._steps)), DEVICE_WIDTH)
            more[:begin] = self._steps[:begin]
            self._steps = more
        self._steps[begin:count] = copied(self._device, torch.tensor(lines, dtype=torch.float64))
        return self._steps

    def _line(self, numbers: list[float]) -> list[float]:
        """The next step with the numbers behind it."""
        c, shrink, rate, third, fourth = numbers[:5]
        if c:
            self._fades_from = self.first + self._count + 1
            self._rate = self._ratio = 0.0
        else:
            first = third if self._kind in ("sgd", "rmsprop", "adam") else 1.0
            for which, factor in enumerate((first, fourth if self._kind == "adam" else 1.0, shrink)):
                self._logs[which] += math.log(max(factor, 1e-300))
            self._rate = max(self._rate, abs(rate))
            self._ratio = max(self._ratio, self._ratio_of(numbers))
        self._before = numbers
        self._count += 1
        reach = math.nan if self._ratio == math.inf else 1e300
        if self._ratio < 1:
            reach = self._rate * self._ratio / (1 - self._ratio)
        return [*numbers, *self._logs, float(self._fades_from), reach, 0.0, 0.0, 0.0]

    def _ratio_of(self, numbers: list[float]) -> float:
        """The most that a move can be of the one before, relative to the weights, without the rates."""
        shrink, third, before = numbers[1], numbers[3], self._before
        if shrink <= 0:
            return math.inf
        if self._kind == "sgd":
            return third / shrink
        if self._kind != "adam" or before is None:
            return 0.0
        eps = 1.0 if before[5] == 0 else numbers[5] / before[5]
        # What divides moves shrinks by; the kernel has corrections.
        least = min(math.sqrt(numbers[4]), eps)
        return third / (least * shrink) if least > 0 else math.inf
