"""Table: one embedding weight of the user's model, and how far behind its rows are.

The weight stays where it is, and so do the states in `optimizer.state`. A row that a batch does not
touch is not written: `last` says how many steps it has been through, and before anyone reads it, it
goes through those it missed.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from hotrows.capture.gradient import Content, RowGradient, settle
from hotrows.capture.history import History
from hotrows.capture.rules import BY_OPTIMIZER, Rule, Step, stepped
from hotrows.ops import deferred
from hotrows.ops.deferred import Target

if TYPE_CHECKING:
    from hotrows.capture.kept import Keeper, Place

_NUMPY = {torch.float32: np.float32, torch.float64: np.float64}
EXACT = 1 << 12
"""Weights of a table up to which a sum over all of it brings every row up to date first."""


class Table:
    """One table.

    names: the weight's, in the model. weight: the parameter. values: [R, D], its data, as a plain
    tensor. rule: how its rows are updated. optimizer: whose.
    last: [R] int32, how many steps each row has been through; -1: no gradient has touched it.
    keeper: what keeps its rows behind a cache (`kept`); None: they are in memory.
    """

    keeper: Keeper | None = None
    first_row = 0

    def __init__(
        self, names: tuple[str, ...], weight: nn.Parameter, rule: Rule, optimizer: Optimizer
    ) -> None:
        self.names, self.weight, self.rule, self.optimizer = names, weight, rule, optimizer
        self.states: dict[str, Tensor] = {}
        self._shared: dict[str, Any] = {}
        self._squares: Tensor | None = None  # [1] float64, as the rows are stored
        self._by_optimizer: list[Step] = []
        self.multiples: weakref.WeakSet[Content] = weakref.WeakSet()  # gradients with a decay
        self.history = History()
        self.adopt_weight()
        self.adopt_states()

    # ---- what it stands on

    def adopt_weight(self) -> None:
        """Takes the parameter's data as it is now; rows had been caught up."""
        with torch._C.DisableTorchFunctionSubclass():
            self.values = (
                self.weight.data
            )  # writing it is not the user's doing: no version of theirs
        self._squares = None
        self.states = {name: of.to(self.values.dtype) for name, of in self.states.items()}
        if self.states:
            self.publish()

    def adopt_states(self) -> None:
        """Takes the optimizer's states as they are now: every row has been through all steps."""
        state: Mapping[str, Any] = self.optimizer.state.get(self.weight, {})
        of_rows = {n: of for n, of in state.items() if isinstance(of, Tensor) and of.dim() == 2}
        now = int(state["step"]) if "step" in state else int(bool(of_rows))
        self.history = History(now)
        self.history.num_tables = 1
        self._by_optimizer = []
        if self.rule.kind == BY_OPTIMIZER:
            self.states = of_rows
            self._shared = {n: of for n, of in state.items() if n not in of_rows}
        else:
            self.states = {n: of_rows[n] for n in self.rule.states if n in of_rows}
        fresh = not any(bool(of.any()) for of in self.states.values()) and not now
        self.last = torch.full((len(self.values),), -1 if fresh else now, dtype=torch.int32)

    def make_states(self) -> None:
        """The states of the first step, where they are in `optimizer.state`."""
        if len(self.states) < len(self.rule.states):
            self.states = {name: _zeros(self.values) for name in self.rule.states}

    def publish(self) -> None:
        """Shows the optimizer what it would have itself after these steps; rows are caught up."""
        if self.history.now == 0:
            return
        if self.rule.kind in ("sgd", BY_OPTIMIZER) and not (self.states or self._shared):
            return
        state = self.optimizer.state[self.weight]
        state.update(self.states)
        if self.rule.kind == BY_OPTIMIZER:
            state.update(self._shared)
        elif self.rule.kind != "sgd":
            step = state.get("step")
            if isinstance(step, Tensor):
                step.fill_(self.history.now)
            else:
                counts = isinstance(self.optimizer, torch.optim.SparseAdam)
                now = self.history.now
                state["step"] = now if counts else torch.tensor(float(now))

    def hide(self) -> None:
        """What `publish` showed has been seen."""

    def move_out(self) -> None:
        """The weight and the optimizer's states become plain; rows are caught up."""
        self.publish()

    # ---- reading

    @property
    def target(self) -> Target:
        """The table as the kernels take it."""
        history = self.history
        return Target(
            self.values, tuple(self.states.values()), self.last, history.steps, history.first,
            history.now, history.first_decay,
        )  # fmt: skip

    @property
    def is_behind(self) -> bool:
        """Whether some row may have steps to catch up with."""
        return self.history.num_kept > 0 and not self.rule.lazy

    def catch_up(self) -> None:
        """Brings every row up to date."""
        if self.is_behind:
            if self.rule.kind == BY_OPTIMIZER:
                self._replay(torch.arange(len(self.values)))
                self._by_optimizer = []
            elif self.states or not self.rule.states:
                deferred.catch_up_all(self.rule.kind, self.target, self.squares_out)
            self._split_off()
            self.history.forget()

    def catch_up_rows(self, rows: Tensor) -> None:
        """Brings some rows up to date: [U] int64, distinct."""
        if not self.is_behind:
            return
        if self.rule.kind == BY_OPTIMIZER:
            self._replay(rows)
        else:
            bounds = torch.tensor([0, rows.numel()])
            deferred.catch_up(self.rule.kind, [self.target], rows, bounds, self.squares_out)

    def caught_up(self) -> Tensor:
        """[R, D]: the weight as it is, to be read."""
        self.catch_up()
        return self.values

    def read_rows(self, rows: Tensor) -> Tensor:
        """[U, D]: the weights of some rows, up to date."""
        self.catch_up_rows(rows)
        return self.values[rows]

    def write_whole(self, values: Tensor) -> None:
        """Makes these its weights, [R, D]."""
        self.catch_up()
        self.values.copy_(values)
        self.written()

    def lend(self, copy: Tensor, seen: Sequence[Tensor]) -> None:
        """Of a kept table: users see a copy of it through these tensors, and may write them."""

    def place_of(self, rows: Tensor) -> Place | None:
        """What steps of kept rows, [U], need to know of where they are."""
        return None

    @contextmanager
    def held(self, rows: Tensor) -> Iterator[tuple[Target, Tensor]]:
        """Rows [U] to be written: where they are, and in which places of that."""
        yield self.target, rows

    @property
    def squares_out(self) -> Tensor | None:
        """Where kernels add the change of the sum of squared weights, if anybody asked for it."""
        return self._squares

    def sum_of_squares(self) -> float:
        """Of all weights. Of a large table, rows behind count as they were when last touched."""
        if self._is_summed_exactly:
            self.catch_up()
            return float(self.values.double().square().sum())
        if self._squares is None:
            self.catch_up()
            norm = torch.linalg.vector_norm(self.values, dtype=torch.float64)
            self._squares = norm.square().reshape(1)
        return self._sum_as_stored()

    @property
    def _is_summed_exactly(self) -> bool:
        return self.values.numel() <= EXACT

    def _sum_as_stored(self) -> float:
        assert self._squares is not None
        if self.is_behind and self.history.first_decay < self.history.now:
            _say_stale()
        return float(self._squares)

    def to_be_written(self) -> None:
        """Somebody may write the weight; every row is up to date."""
        settle(self.multiples, self)
        self.written()

    def written(self) -> None:
        """Somebody may have written the weight."""
        self._squares = None

    # ---- stepping

    def step(self, gradient: RowGradient, group: Mapping[str, Any]) -> None:
        """One step of this table alone."""
        if self.rule.kind == BY_OPTIMIZER:
            self._step_by_optimizer(gradient, group)
            return
        assert self.rule.numbers is not None
        self.make_states()
        rows, sums = gradient.coalesced()
        self._split_off()
        self.history.prepare(self.rule.numbers(group, self.history.now + 1, gradient.decay))
        each = torch.arange(rows.numel() + 1, dtype=torch.int32)
        with self.held(rows) as (target, slots):
            deferred.update(
                self.rule.kind, [target], slots, torch.tensor([0, rows.numel()]), each[:-1], each,
                None, None, sums, torch.ones(1, dtype=torch.float64), self.squares_out,
            )  # fmt: skip
        self.history.taken()
        if self.rule.lazy:
            self.history.forget()

    def join(self, history: History) -> None:
        """Goes on with another history, equal to its own."""
        self.history.num_tables -= 1
        history.num_tables += 1
        self.history = history

    def _split_off(self) -> None:
        if self.history.num_tables > 1:
            self.join(self.history.fork())

    def stepped_densely(self) -> None:
        """The optimizer itself has stepped the whole table; every row had been caught up."""
        self.adopt_states()
        self.written()

    # ---- stepping and catching up by the optimizer itself

    def _step_by_optimizer(self, gradient: RowGradient, group: Mapping[str, Any]) -> None:
        rows, sums = gradient.coalesced()
        self._replay(rows)
        settings = {
            name: of.clone() if isinstance(of, Tensor) else of  # schedulers write into them
            for name, of in group.items()
            if name != "params"
        }
        begun = bool(self.states) or bool(self._shared)
        step = Step(settings, begun, self._shared, gradient.decay)
        shared = self._go(step, rows, sums)
        if not rows.numel():  # what rows share goes on without any
            shared = self._go(step, rows, self.values.new_zeros(1, self.values.shape[1]), dry=True)
        self._by_optimizer.append(step)
        moves = gradient.decay != 0 or group.get("weight_decay", 0.0) != 0
        moves |= isinstance(self.optimizer, torch.optim.Adamax)  # whose exp_inf takes in eps
        self._split_off()
        self.history.prepare((float(moves), 1.0, *(0.0,) * 6))
        self.history.taken()
        self.last[rows] = self.history.now
        self._shared = shared
        self.written()

    def _replay(self, rows: Tensor) -> None:
        """Runs the optimizer on rows for the steps that they missed."""
        history, last = self.history, self.last[rows].clone()
        last[last < 0] = history.first_decay
        for k in range(history.first, history.now):
            behind = rows[last <= k]
            if behind.numel():
                step = self._by_optimizer[k - history.first]
                self._go(step, behind, self.values.new_zeros(behind.numel(), self.values.shape[1]))
        never = (self.last[rows] < 0) & (history.first_decay >= history.now)
        self.last[rows[~never]] = history.now
        self.written()

    def _go(self, step: Step, rows: Tensor, grad: Tensor, dry: bool = False) -> dict[str, Any]:
        """One step of some rows; returns what all rows share after it. dry: of none of them."""
        if not grad.numel():
            return step.shared
        weights = torch.zeros_like(grad) if dry else self.values[rows]
        states = {n: torch.zeros_like(grad) if dry else of[rows] for n, of in self.states.items()}
        weights, states, shared = stepped(type(self.optimizer), step, weights, states, grad)
        for name, of in states.items():
            if name not in self.states:
                self.states[name] = _zeros(self.values)
            if not dry:
                self.states[name][rows] = of
        if not dry:
            self.values[rows] = weights
        return shared


@contextmanager
def counted_squares(tables: Sequence[Table | None]) -> Iterator[Tensor | None]:
    """[T] zeros, where kernels add the changes of the tables' sums of squares; None: nobody asks."""
    counted = [None if table is None else table.squares_out for table in tables]
    if all(of is None for of in counted):
        yield None
        return
    squares = torch.zeros(len(tables), dtype=torch.float64)
    yield squares
    for of, change in zip(counted, squares, strict=True):
        if of is not None:
            of += change


def _zeros(like: Tensor) -> Tensor:
    """Zeros of a shape and dtype; pages that nobody writes take no memory."""
    if like.dtype not in (torch.float32, torch.float64):
        return torch.zeros_like(like)
    return torch.from_numpy(np.zeros(like.shape, _NUMPY[like.dtype]))


def _say_stale() -> None:
    import warnings

    warnings.warn(
        "the value of a term of the loss over a whole table counts rows that no batch has touched "
        "since as they were then; gradients and weights are exact. Read the table (weight.detach()) "
        "to bring all of its rows up to date",
        stacklevel=2,
    )
