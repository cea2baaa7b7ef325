"""RowGradient: the gradient of a table, as the terms that it is made of.

    gradient = sum of gradients of rows  +  decay * weight  +  dense

The first comes from lookups, the second from terms of the loss like the sum of all squared weights,
the third from plain code that read the whole weight, and is rare. It has the weight's shape and goes
through autograd, hooks, accumulation, `.grad` and clipping like any tensor. `gradient_ops` handles the
operations that need no dense tensor; any other is done on the dense tensor, which is right, and slow.

    PackGradient, of one lookup of many tables       RowGradient, of one table
      plan   rows, runs of equal rows                  parts   (pack gradient, table, factor)
      grad   [M, D] of all vectors                     decay   a number
                                                       dense   [R, D] or None
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from hotrows import ops
from hotrows.acceleration.table import RowTable
from hotrows.acceleration.table_plan import TablePlan
from hotrows.ops import deferred
from hotrows.plan import PackPlan

HANDLERS: dict[Any, Callable] = {}  # of aten operations; `gradient_ops` fills it


class PackGradient:
    """The gradient of all vectors of a lookup: [M, D]."""

    def __init__(self, plan: TablePlan, grad: Tensor) -> None:
        self.plan, self.grad = plan, grad

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
        """Whether the gradients of rows have been summed already."""
        return "sums" in self.__dict__

    @functools.cached_property
    def squares(self) -> list[float]:
        """By table, the sum of the squares of its rows' gradients."""
        return _by_table((self.sums.double() ** 2).sum(1), self.plan.bounds)

    @functools.cached_property
    def dots_and_squares(self) -> list[tuple[float, float]]:
        """By table, over the rows read: the sum of gradient times weight, and of squared weights."""
        plan = self.plan
        if plan.locations is not None:
            weights = plan.locations.weights().double()  # [U, D]
        else:
            order = torch.arange(plan.pack.num_rows, dtype=torch.int32, device=plan.bounds.device)
            rows = deferred.lookup(plan.targets, plan.pack.slots, plan.bounds, order, None, None)
            weights = rows.double()
        dots = _by_table((self.sums * weights).sum(1), plan.bounds)
        return list(zip(dots, _by_table((weights**2).sum(1), plan.bounds), strict=True))


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


@dataclass(eq=False)
class GradientContent:
    """The terms of a gradient, shared by tensors that share memory in PyTorch, as `grad` and `grad.data`.

    is_spent: the weight has been stepped since, so its multiple is no longer known.
    """

    table: RowTable
    parts: tuple[TableGradient, ...] = ()
    decay: float = 0.0
    dense: Tensor | None = None
    is_spent: bool = False

    def materialize(self) -> None:
        """Turns the multiple of the weight, and everything else, into dense numbers."""
        if self.decay and not self.is_spent:
            RowGradient(self.table).share(self).as_dense()


class RowGradient(torch.Tensor):
    """The gradient of one table, as terms: see the module."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]
    content: GradientContent

    @staticmethod
    def __new__(
        cls,
        table: RowTable,
        parts: tuple[TableGradient, ...] = (),
        decay: float = 0.0,
        dense: Tensor | None = None,
    ) -> RowGradient:
        like = table.values
        self = torch.Tensor._make_wrapper_subclass(cls, like.shape, dtype=like.dtype, device=like.device)
        return self.share(GradientContent(table, parts, decay, dense))

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def share(self, content: GradientContent) -> RowGradient:
        """Takes over `content`, as a tensor over the same memory."""
        self.content = content
        if content.decay:
            content.table.multiples.add(content)
        return self

    @property
    def table(self) -> RowTable:
        return self.content.table

    @property
    def parts(self) -> tuple[TableGradient, ...]:
        return self.content.parts

    @property
    def decay(self) -> float:
        return self.content.decay

    @property
    def dense(self) -> Tensor | None:
        return self.content.dense

    @property
    def is_spent(self) -> bool:
        return self.content.is_spent

    @is_spent.setter
    def is_spent(self, spent: bool) -> None:
        self.content.is_spent = spent

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return (
            f"RowGradient({list(self.shape)}, {sum(part.rows.numel() for part in self.parts)} rows"
            f"{f', {self.decay:g} * weight' if self.decay else ''}"
            f"{', dense' if self.dense is not None else ''})"
        )

    @property
    def data(self) -> RowGradient:
        return self.alias()

    @data.setter
    def data(self, new: Tensor) -> None:
        self.become(new)

    def to_dense(self, *args: Any, **kwargs: Any) -> Tensor:
        """[R, D], as PyTorch would have it."""
        self.check_unspent()
        dense = self.table.values.new_zeros(self.shape, dtype=self.dtype)
        if self.dense is not None:
            dense += self.dense
        for part in self.parts:
            dense.index_add_(0, part.rows, part.sums.to(self.dtype))
        if self.decay:
            dense += self.decay * self.table.caught_up()
        return dense

    def coalesced(self) -> tuple[Tensor, Tensor]:
        """Distinct rows [U] and the gradient of each, [U, D], of all parts."""
        if len(self.parts) == 1:
            return self.parts[0].rows, self.parts[0].sums
        if not self.parts:
            empty = self.table.values.new_empty(0, dtype=torch.int64)
            return empty, self.table.values.new_empty(0, self.shape[1])
        rows = torch.cat([part.rows for part in self.parts])
        return summed_by_row(rows, torch.cat([part.sums for part in self.parts]))

    def norm_squared(self) -> float:
        """The sum of all squares."""
        self.check_unspent()
        if self.dense is not None:
            return float((self.to_dense().double() ** 2).sum())
        if not self.decay and len(self.parts) == 1:
            return self.parts[0].squares
        total = 0.0
        if len(self.parts) == 1:
            part = self.parts[0]
            dot, _ = part.pack.dots_and_squares[part.table]
            squares = part.pack.squares[part.table]
            total = part.factor * (part.factor * squares + 2 * self.decay * dot)
        elif self.parts:
            rows, sums = self.coalesced()
            weights = self.table.read_rows(rows).double()
            total = float((sums.double() ** 2).sum() + 2 * self.decay * (sums * weights).sum())
        if self.decay:
            total += self.decay**2 * self.table.sum_of_squares()
        return max(total, 0.0)

    def times(self, factor: float) -> RowGradient:
        dense = None if self.dense is None else self.dense * factor
        parts = tuple(replace(part, factor=part.factor * factor) for part in self.parts)
        result = RowGradient(self.table, parts, self.decay * factor, dense)
        result.is_spent = self.is_spent
        return result

    def plus(self, other: Tensor) -> RowGradient:
        self.check_unspent()
        if not isinstance(other, RowGradient):
            other = RowGradient(self.table, dense=other)
        both = [x.dense for x in (self, other) if x.dense is not None]
        dense = sum(both[1:], both[0]) if both else None
        return RowGradient(self.table, self.parts + other.parts, self.decay + other.decay, dense)

    def become(self, other: Tensor) -> RowGradient:
        """Takes over the value of another gradient, or of dense numbers, in place."""
        if not isinstance(other, RowGradient):
            other = RowGradient(self.table, dense=other.clone())
        mine, new = self.content, other.content
        mine.parts, mine.decay, mine.dense = new.parts, new.decay, new.dense
        mine.is_spent = new.is_spent
        return self.share(mine)

    def alias(self) -> RowGradient:
        """Another tensor over the same content."""
        return RowGradient(self.table).share(self.content)

    def as_dense(self) -> Tensor:
        """[R, D]: its numbers, which are its only term from now on."""
        if self.dense is None or self.parts or self.decay:
            self.become(RowGradient(self.table, dense=self.to_dense()))
        assert self.dense is not None
        return self.dense

    def check_unspent(self) -> None:
        if self.is_spent and self.decay:
            raise RuntimeError(
                f"the gradient of {self.table.names[0]} holds {self.decay:g} times the weight as it "
                f"was before optimizer.step(), which is no more: read it before the step, and call "
                f"zero_grad before the next backward"
            )

    def clamped(self, low: float | None, high: float | None) -> RowGradient:
        """With every number clamped; zero stays zero."""
        if self.decay or self.dense is not None or (low or 0) > 0 or (high or 0) < 0:
            return RowGradient(self.table, dense=self.to_dense().clamp(low, high))
        rows, sums = self.coalesced()
        return gradient_of_rows(self.table, rows, sums.clamp(low, high))

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):  # type: ignore[override]
        kwargs, handler = kwargs or {}, HANDLERS.get(func)
        result = NotImplemented if handler is None else handler(*args, **kwargs)
        return _densely(func, args, kwargs) if result is NotImplemented else result


def gradient_of_rows(table: RowTable, rows: Tensor, sums: Tensor, decay: float = 0.0) -> RowGradient:
    """The gradient with rows [U], distinct and ascending, and their gradients sums [U, D]."""
    order = torch.arange(rows.numel() + 1, dtype=torch.int32, device=rows.device)
    pack = PackPlan(rows, rows, order[:-1], order[:-1], order, rows.numel())
    bounds = torch.tensor([0, rows.numel()]).to(rows.device)
    plan = TablePlan(pack, rows, bounds, (table.target,), locations=table.locate(rows))
    return RowGradient(table, (TableGradient(PackGradient(plan, sums), 0),), decay)


def summed_by_row(rows: Tensor, grads: Tensor) -> tuple[Tensor, Tensor]:
    """Distinct rows [U], ascending, and the sums [U, D] of their gradients [N, D], in their order."""
    distinct, inverse, order, starts = ops.unique(rows)
    if rows.is_cuda:  # where `index_add_` has no one order
        return distinct, ops.sum_gradients(grads, order, starts, None, None)
    sums = grads.new_zeros(distinct.numel(), grads.shape[1])
    return distinct, sums.index_add_(0, inverse.long(), grads)


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


def _densely(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Runs any operation on dense tensors; a gradient that it changes in place takes over the result.

    A gradient of which it makes a view becomes dense numbers, as the view may be written.
    """
    changed: list[tuple[RowGradient, Tensor]] = []
    views = any(x.alias_info and not x.alias_info.is_write for x in func._schema.arguments)

    def dense(value: Any) -> Any:
        if isinstance(value, RowGradient):
            numbers = value.as_dense() if views else value.to_dense()
            changed.append((value, numbers))
            return numbers
        if isinstance(value, list | tuple):
            return type(value)(dense(x) for x in value)
        return value

    args, kwargs = dense(tuple(args)), {name: dense(value) for name, value in kwargs.items()}
    result = func(*args, **kwargs)
    if func._schema.is_mutable:
        for gradient, numbers in changed:
            gradient.become(RowGradient(gradient.table, dense=numbers))
            if result is numbers:
                result = gradient
    return result
