"""PackGradient: the gradient of one lookup of many tables; TableGradient: one table's part of it."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hotrows import ops
from hotrows.acceleration.moments import Moment, read_present
from hotrows.acceleration.rules import BY_OPTIMIZER
from hotrows.acceleration.table import RowTable
from hotrows.acceleration.table_plan import TablePlan
from hotrows.ops import deferred
from hotrows.ops.plan import PackPlan


class PackGradient:
    """The gradient of all vectors of a lookup: [M, D]. tables: the plan's; None: a plain weight."""

    def __init__(self, plan: TablePlan, grad: Tensor, tables: Sequence[RowTable | None]) -> None:
        self.plan, self.grad, self.tables = plan, grad, tables
        self._products: dict[int, tuple[Moment, float, float]] = {}

    @property
    def weights(self) -> Tensor | None:
        """[N]: factors of the gradients of the ids' vectors; None: 1."""
        plan = self.plan
        return plan.pack.weights if plan.grad_weights is None else plan.grad_weights

    @functools.cached_property
    def sums(self) -> Tensor:
        """[U, D]: the gradient of each distinct row."""
        return _sum_runs(self.grad, self.plan.pack, self.weights)

    @property
    def is_summed(self) -> bool:
        """True if the gradients of rows have been summed already."""
        return "sums" in self.__dict__

    @functools.cached_property
    def squares(self) -> list[float]:
        """By table, the sum of the squares of its rows' gradients."""
        return _by_table((self.sums.double() ** 2).sum(1), self.plan.bounds)

    def products(self, t: int) -> tuple[float, float]:
        """The sum of squares of table t's gradient, and of its products with the present weights.

        They are made for all tables of the lookup that have multiples of their weight, and hold as long
        as the present moment is the same: a norm of all gradients asks for one after the other.
        """
        table = self.tables[t]
        assert table is not None
        if t not in self._products or self._products[t][0] is not table.moments.open():
            plan, tables = self.plan, dict(enumerate(self.tables))
            wanted = {k: x for k, x in tables.items() if x is not None and (k == t or x.multiples)}
            moments = read_present([*wanted.values()])
            targets = [plan.targets[k] if x is None else x.target for k, x in tables.items()]
            squares, dots = deferred.products(targets, plan.pack.slots, plan.bounds, self.sums)
            for k, moment in zip(wanted, moments, strict=True):
                self._products[k] = moment, squares[k], dots[k]
        return self._products[t][1:]


@dataclass(frozen=True)
class TableGradient:
    """One table's rows in the gradient of a lookup, times a factor."""

    pack: PackGradient
    table: int
    factor: float = 1.0

    @property
    def span(self) -> tuple[int, int]:
        ends = self.pack.plan.ends
        return ends[self.table], ends[self.table + 1]

    @property
    def rows(self) -> Tensor:
        """[U']: numbers of the rows in the table, distinct and ascending."""
        begin, end = self.span
        return self.pack.plan.table_rows[begin:end]

    @property
    def sums(self) -> Tensor:
        """[U', D]: their gradients."""
        begin, end = self.span
        sums = self.pack.sums[begin:end]
        return sums if self.factor == 1 else sums * self.factor

    @property
    def squares(self) -> float:
        """The sum of squared gradients."""
        return self.factor**2 * self.pack.squares[self.table]

    @property
    def is_in_memory(self) -> bool:
        """True if the rows of its lookup are steps of a rule, and none is behind a cache."""
        table = self.pack.tables[self.table]
        return table is not None and table.group is None and table.rule.kind != BY_OPTIMIZER

    @property
    def products(self) -> tuple[float, float]:
        """The sum of squared gradients, and of their products with the present weights."""
        squares, with_weights = self.pack.products(self.table)
        return self.factor**2 * squares, self.factor * with_weights


def _sum_runs(grad: Tensor, pack: PackPlan, weights: Tensor | None) -> Tensor:
    """[U, D]: gradients [M, D] summed along the runs of equal rows."""
    if grad.dtype == torch.float32 or grad.is_cuda:
        return ops.sum_gradients(grad, pack.order, pack.starts, pack.bags, weights)
    order = pack.order.long()
    terms = grad[order if pack.bags is None else pack.bags.long()[order]]  # [N, D]
    if weights is not None:
        terms = terms * weights[order, None]
    lengths = pack.starts.long().diff()  # [U]
    runs = torch.arange(lengths.numel()).repeat_interleave(lengths)
    return grad.new_zeros(lengths.numel(), grad.shape[1]).index_add_(0, runs, terms)


def _by_table(values: Tensor, bounds: Tensor) -> list[float]:
    """Sums values [U] of rows by table."""
    total = torch.cat([values.new_zeros(1), values.cumsum(0)])
    return total[bounds].diff().cpu().tolist()
