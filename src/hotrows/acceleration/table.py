"""RowTable: one embedding weight of the user's model, and how far behind its rows are.

The weight stays in the parameter; `optimizer.state` shows the states to whoever reads it (`TableState`).
A row that a batch does not touch is not written: `last` counts the steps that it has made, and before it
is read, it makes the steps that it has missed.

This class stores the rows in memory. `cached_tables.CachedTable` stores them behind a cache; it replaces
the methods under "memory of the rows".
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from hotrows.acceleration import errors
from hotrows.acceleration.exclusive import exclusive
from hotrows.acceleration.moments import Moments, catch_up, update
from hotrows.acceleration.rules import BY_OPTIMIZER, DeferredStep, Rule, divided, is_known, stepped
from hotrows.acceleration.table_plan import RowLocations
from hotrows.acceleration.table_state import TableState, Values, counted
from hotrows.ops import deferred
from hotrows.ops.deferred import Target
from hotrows.ops.deferred.history import StepHistory

_NUMPY = {torch.float32: np.float32, torch.float64: np.float64}


class WeightMultiple(Protocol):
    """A gradient that holds a multiple of a table's weight, which is about to change."""

    def materialize(self) -> None:
        """Computes the multiple from the present weight."""


class TableArguments(NamedTuple):
    """The arguments of a `RowTable`."""

    names: tuple[str, ...]
    weight: nn.Parameter
    rule: Rule
    optimizer: Optimizer


class RowTable:
    """One table.

    names: of the weight in the model. weight: the parameter. values: [R, D], its data as a plain
    tensor. rule: how its rows are updated. optimizer: the one that holds the weight.
    last: [R] int32, number of steps that each row has made; -1: no gradient has reached it.
    multiples: gradients that hold a multiple of the weight. moments: whose sum of squares is unread.
    entry: its entry in `optimizer.state`; None: it has none, as before a first step.
    is_left_plain: the optimizer has settings or states without a rule, and must step the table itself.
    group: the `CachedTableGroup` that has the rows of a table behind a cache; None: memory has them.
    """

    group: Any = None
    first_row = 0

    def __init__(
        self, names: tuple[str, ...], weight: nn.Parameter, rule: Rule, optimizer: Optimizer
    ) -> None:
        self.names, self.weight, self.rule, self.optimizer = names, weight, rule, optimizer
        self.states: dict[str, Tensor] = {}
        self._shared: dict[str, Any] = {}
        self._by_optimizer: list[DeferredStep] = []
        self.multiples: weakref.WeakSet[WeightMultiple] = weakref.WeakSet()
        self.moments = Moments(self)
        self.history = StepHistory()
        self.entry: TableState | None = None
        self.is_left_plain = False
        self.adopt_weight()
        self.last = torch.full_like(self.values[:, 0], -1, dtype=torch.int32)
        self.adopt_states()

    # ---- the parameter and the optimizer's state

    @exclusive
    def adopt_weight(self) -> None:
        """Takes over the parameter's present data; rows were up to date before it was set."""
        with torch._C.DisableTorchFunctionSubclass():
            self.values = self.weight.data  # so that updates do not count as versions of the user's
        self.states = {name: state.to(self.values.dtype) for name, state in self.states.items()}

    @exclusive
    def refresh(self, rule: Rule | str) -> bool:
        """Takes over what others have done to `optimizer.state` and to the settings since the last step.

        rule: of the present settings, or why there is none. Returns whether anything was taken over.
        """
        self.store_writes()
        entry = self.optimizer.state.get(self.weight)
        is_own = entry is self.entry
        has_rule = isinstance(rule, str) or (rule.kind, rule.states) == (self.rule.kind, self.rule.states)
        if self.entry is not None and is_own and not has_rule:
            self.entry.lend()
        is_changed = not (is_own and has_rule) or (self.entry is not None and self.entry.is_lent)
        if is_changed:
            self.catch_up()
            self.moments.settle()
            if isinstance(rule, Rule) and not has_rule:
                self.change_rule(rule)
            self.adopt_states()
        self.is_left_plain |= isinstance(rule, str)
        return is_changed

    def change_rule(self, rule: Rule) -> None:
        """Goes on by another rule; every row is up to date, and the caller adopts states."""
        self.rule = replace(rule, lazy=rule.lazy or self.rule.lazy)

    @exclusive
    def adopt_states(self) -> None:
        """Takes over the optimizer's present states: every row has made all steps."""
        state = self.optimizer.state.get(self.weight)
        values = {} if state is None else dict(state)
        self.states, self._shared, now = divided(values, self.rule)
        self.join(StepHistory(now))
        self._by_optimizer = []
        untouched = self.last < 0 if now else torch.ones_like(self.last, dtype=torch.bool)
        for state_of_rows in self.states.values():
            untouched &= ~state_of_rows.any(1)
        self.last = torch.where(untouched, -1, now).to(torch.int32)
        self.is_left_plain = not is_known(values, self.states, self.rule, self.optimizer, self.values)
        if state is None:
            self.entry = None
        elif state is not self.entry:
            self.enter(values)
        if self.entry is not None:
            self.entry.is_lent = self.is_left_plain

    def enter(self, values: Values) -> None:
        """Makes its entry in `optimizer.state`; values: what PyTorch has there by now."""
        self.entry = self.optimizer.state[self.weight] = TableState(values, self._present_states)

    def make_states(self) -> None:
        """Creates the states of the first step where `optimizer.state` has none."""
        if len(self.states) < len(self.rule.states):
            self.states = {name: _zeros(self.values) for name in self.rule.states}

    @property
    def has_states(self) -> bool:
        """True if the rows have states now, or share some."""
        return bool(self.states or self._shared)

    @exclusive
    def _present_states(self, before: Values) -> Values:
        """Returns what the optimizer itself would have now. before: what the last reader has got."""
        self.catch_up()
        if not self.has_states:
            return {}
        shared, now = dict(self._shared), self.history.now
        if self.rule.kind not in ("sgd", BY_OPTIMIZER):
            shared["step"] = counted(now, self.optimizer, self.weight)
        for name, value in shared.items():  # PyTorch, too, counts in place
            if isinstance(before.get(name), Tensor) and isinstance(value, Tensor):
                shared[name] = before[name].copy_(value)
        return {**self.states, **shared}

    # ---- memory of the rows

    @property
    def target(self) -> Target:
        """The table as the kernels take it."""
        return self.target_at(self.values, tuple(self.states.values()), self.last)

    def target_at(self, weights: Tensor, states: tuple[Tensor, ...], last: Tensor) -> Target:
        """The table with its rows in these tensors, as the kernels take it."""
        history = self.history
        steps = history.steps_for(self.rule.kind, weights.device)
        return Target(weights, states, last, steps, history.first, history.now, history.first_decay)

    def locate(self, rows: Tensor) -> RowLocations | None:
        """Returns the locations of rows [U] that no lookup has read; None: always in the target."""
        return None

    @contextmanager
    def writing(self, rows: Tensor) -> Iterator[tuple[Target, Tensor]]:
        """Within: the target of rows [U], and the slot of each in it; writes to them are stored."""
        yield self.target, rows

    def release_states(self) -> None:
        """Frees copies of the weight and the states that were made for a reader."""

    @exclusive
    def catch_up(self) -> None:
        """Brings every row up to date."""
        errors.check_all()
        self.moments.settle(before=self.history.now)
        if self.is_behind:
            if self.rule.kind == BY_OPTIMIZER:
                self._replay(torch.arange(len(self.values), device=self.values.device))
                self._by_optimizer = []
            else:
                self.bring_all(self.history.now)
            self._split_off()
            self.history.forget()

    def bring_all(self, step: int) -> None:
        """Lets all rows that have made fewer steps make those up to `step`."""
        if self.rule.kind == BY_OPTIMIZER:  # whose moments are read before the next step
            self.catch_up()
        elif self.can_be_behind:
            self._bring_all(step)

    @property
    def can_be_behind(self) -> bool:
        """True if some row may have steps to make, and the states to make them with."""
        return self.is_behind and (self.has_states or not self.rule.states)

    def _bring_all(self, step: int) -> None:
        """A cached table has its own: also rows of its store are behind."""
        deferred.catch_up_all(self.rule.kind, [self.target.until(step)])

    @exclusive
    def catch_up_rows(self, rows: Tensor) -> None:
        """Brings some rows up to date: [U] int64, distinct."""
        if not self.is_behind:
            return
        if self.rule.kind == BY_OPTIMIZER:
            self._replay(rows)
            return
        with self.writing(rows) as (target, slots):
            bounds = torch.tensor([0, rows.numel()]).to(rows.device)
            catch_up(self.rule.kind, [self], [target], slots, bounds)

    @exclusive
    def caught_up(self) -> Tensor:
        """[R, D]: the present weight, for reading."""
        self.catch_up()
        return self.values

    @exclusive
    def read_rows(self, rows: Tensor) -> Tensor:
        """[U, D]: the present weights of some rows."""
        self.catch_up_rows(rows)
        return self.values[rows]

    @exclusive
    def write_weights(self, values: Tensor) -> None:
        """Replaces all weights, [R, D]."""
        self.catch_up()
        self.moments.settle()
        self.values.copy_(values)

    def show(self, copy: Tensor) -> None:
        """Remembers the copy of a cached weight that users see, and may write."""

    def store_writes(self, forget: bool = False) -> None:
        """Stores what users have written to the copy that they see. forget: they see it no longer."""

    def make_plain(self) -> None:
        """Puts the weight and its states into plain tensors and dictionaries; rows are up to date."""
        if isinstance(entry := self.optimizer.state.get(self.weight), TableState) and entry is self.entry:
            self.optimizer.state[self.weight] = entry.copy()

    # ---- reading

    @property
    def is_behind(self) -> bool:
        """True if some row may have steps to catch up with."""
        return self.history.num_recorded > 0 and not self.rule.lazy

    @exclusive
    def sum_of_squares(self) -> float:
        """Sums the squares of all weights, of every row as it is now."""
        return self.moments.open().get()

    def present_squares(self) -> float:
        """The sum of all squares, of rows as they are stored."""
        return deferred.sums_of_squares([self.target])[0]

    @exclusive
    def before_write(self) -> None:
        """Prepares for a write of the weight by others; every row is up to date."""
        self.materialize_multiples()
        self.moments.settle()

    def materialize_multiples(self, but: WeightMultiple | None = None) -> None:
        """Computes the multiples of the weight before it changes; not `but`, which steps it."""
        for multiple in list(self.multiples):
            if multiple is not but:
                multiple.materialize()
                self.multiples.discard(multiple)

    # ---- stepping

    def step(self, rows: Tensor, sums: Tensor, decay: float, group: Mapping[str, Any]) -> None:
        """Makes one step of this table alone.

        rows: [U], distinct, with gradients sums [U, D], to which decay * weight is added; group: the
        optimizer's settings.
        """
        if (kind := self.rule.kind) == BY_OPTIMIZER:
            self.moments.settle()
            self._step_by_optimizer(rows, sums, decay, group)
            return
        assert self.rule.numbers is not None
        self.make_states()
        self._split_off()
        self.history.record(self.rule.numbers(group, self.history.now + 1, decay))
        order = torch.arange(len(rows) + 1, dtype=torch.int32, device=rows.device)
        bounds = torch.tensor([0, len(rows)]).to(rows.device)
        scales = torch.ones(1, dtype=torch.float64, device=rows.device)
        with self.writing(rows) as (target, slots):
            update(kind, [self], [target], slots, bounds, order[:-1], order, None, None, sums, scales)
        self.history.now += 1
        if self.rule.lazy:
            self.history.forget()

    def join(self, history: StepHistory) -> None:
        """Shares another history, equal to its own."""
        self.history.num_tables -= 1
        history.num_tables += 1
        self.history = history

    def _split_off(self) -> None:
        if self.history.num_tables > 1:
            self.join(self.history.fork())

    @exclusive
    def stepped_densely(self) -> None:
        """Takes over the result of a step that the optimizer made itself on all rows."""
        self.adopt_states()

    # ---- stepping and catching up by the optimizer itself

    def _step_by_optimizer(
        self, rows: Tensor, sums: Tensor, decay: float, group: Mapping[str, Any]
    ) -> None:
        self._replay(rows)
        step = DeferredStep.with_settings(group, self.has_states, self._shared, decay)
        shared = self._run(step, rows, sums)
        if not rows.numel():  # the states that rows share advance without any row
            shared = self._run(step, rows, self.values.new_zeros(1, self.values.shape[1]), dry=True)
        self._by_optimizer.append(step)
        moves = decay != 0 or group.get("weight_decay", 0.0) != 0
        moves |= isinstance(self.optimizer, torch.optim.Adamax)  # whose exp_inf takes in eps
        self._split_off()
        self.history.record((float(moves), 1.0, *(0.0,) * 6))
        self.history.now += 1
        self.last[rows] = self.history.now
        self._shared = shared

    def _replay(self, rows: Tensor) -> None:
        """Runs the optimizer on rows for the steps that they missed."""
        history, last = self.history, self.last[rows].clone()
        last[last < 0] = history.first_decay
        for k in range(history.first, history.now):
            behind = rows[last <= k]
            if behind.numel():
                step = self._by_optimizer[k - history.first]
                self._run(step, behind, self.values.new_zeros(behind.numel(), self.values.shape[1]))
        never = (self.last[rows] < 0) & (history.first_decay >= history.now)
        self.last[rows[~never]] = history.now

    def _run(self, step: DeferredStep, rows: Tensor, grad: Tensor, dry: bool = False) -> dict[str, Any]:
        """Makes a step of some rows; returns what all rows share after it. dry: writes no row."""
        if not grad.numel():
            return step.shared
        weights = torch.zeros_like(grad) if dry else self.values[rows]
        states = {n: torch.zeros_like(grad) if dry else x[rows] for n, x in self.states.items()}
        weights, states, shared = stepped(type(self.optimizer), step, weights, states, grad)
        for name, state in states.items():
            if name not in self.states:
                self.states[name] = _zeros(self.values)
            if not dry:
                self.states[name][rows] = state
        if not dry:
            self.values[rows] = weights
        return shared


def _zeros(like: Tensor) -> Tensor:
    """Zeros of a shape and dtype; pages that are never written take no memory."""
    if like.dtype not in (torch.float32, torch.float64) or like.device.type != "cpu":
        return torch.zeros_like(like)
    return torch.from_numpy(np.zeros(like.shape, _NUMPY[like.dtype]))
