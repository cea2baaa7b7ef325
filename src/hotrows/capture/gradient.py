"""RowGradient: the gradient of a table, as what it is made of.

    gradient = sum of gradients of rows  +  decay * weight  +  dense

The first comes from lookups, the second from terms of the loss like the sum of all squared weights,
the third from plain code that read the whole weight, and is rare. It has the weight's shape and goes
through autograd, hooks, accumulation, `.grad` and clipping like any tensor; what is not understood of
it here is done on the dense tensor that it stands for, which is right, and slow.

    PackGradient, of one lookup of many tables       RowGradient, of one table
      plan   rows, runs of equal rows                  parts   (pack gradient, table, factor)
      grad   [M, D] of all vectors                     decay   a number
                                                       dense   [R, D] or None
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from hotrows import ops
from hotrows.ops import deferred
from hotrows.ops.deferred import Target

if TYPE_CHECKING:
    from hotrows.capture.kept import Place
    from hotrows.capture.table import Table

aten = torch.ops.aten


@dataclass(frozen=True)
class TablePlan:
    """Which rows a lookup of several tables reads.

    targets: where the rows of T tables are. rows: [U] int64, distinct rows, ascending, table after
    table; those of table t are rows[bounds[t] : bounds[t + 1]], each its number in the table.
    slots: [U] int64, where in its target each of them is.
    inverse, order, starts, bag_starts, bags, weights: as in `PackPlan`.
    grad_weights: [N], what the gradient of each id's vector is multiplied with; None: `weights`.
    place: of tables that are kept behind a cache, where the rows were when they were looked up.
    """

    targets: tuple[Target, ...]
    rows: Tensor
    slots: Tensor
    bounds: Tensor
    inverse: Tensor
    order: Tensor
    starts: Tensor
    bag_starts: Tensor | None = None
    bags: Tensor | None = None
    weights: Tensor | None = None
    grad_weights: Tensor | None = None
    place: Place | None = None

    @functools.cached_property
    def ends(self) -> list[int]:
        """`bounds` as numbers."""
        return self.bounds.tolist()


class PackGradient:
    """The gradient of all vectors of a lookup: [M, D]."""

    def __init__(self, plan: TablePlan, grad: Tensor) -> None:
        self.plan, self.grad = plan, grad

    @property
    def weights(self) -> Tensor | None:
        plan = self.plan
        return plan.weights if plan.grad_weights is None else plan.grad_weights

    @functools.cached_property
    def sums(self) -> Tensor:
        """[U, D]: the gradient of each distinct row."""
        return sum_runs(self.grad, self.plan, self.weights)

    @property
    def is_summed(self) -> bool:
        """Whether the gradients of rows have been summed already."""
        return "sums" in self.__dict__

    @functools.cached_property
    def squares(self) -> list[float]:
        """By table, the sum of the squares of its rows' gradients."""
        return _by_table((self.sums.double() ** 2).sum(1), self.plan.bounds)

    @functools.cached_property
    def with_weights(self) -> list[tuple[float, float]]:
        """By table, over the rows read: the sum of gradient times weight, and of squared weights."""
        plan = self.plan
        if plan.place is not None:
            weights = plan.place.weights().double()
        else:
            each = torch.arange(plan.rows.numel(), dtype=torch.int32)
            read = deferred.look_up(plan.targets, plan.slots, plan.bounds, each, None, None)
            weights = read.double()
        dots = _by_table((self.sums * weights).sum(1), self.plan.bounds)
        return list(zip(dots, _by_table((weights**2).sum(1), self.plan.bounds), strict=True))


@dataclass(frozen=True)
class Part:
    """The share of one table in the gradient of a lookup, times a factor."""

    of: PackGradient
    table: int
    factor: float = 1.0

    @property
    def span(self) -> tuple[int, int]:
        ends = self.of.plan.ends
        return ends[self.table], ends[self.table + 1]

    @property
    def rows(self) -> Tensor:
        begin, end = self.span
        return self.of.plan.rows[begin:end]

    @property
    def sums(self) -> Tensor:
        begin, end = self.span
        sums = self.of.sums[begin:end]
        return sums if self.factor == 1 else sums * self.factor


@dataclass(eq=False)
class Content:
    """What a gradient is made of. Gradients that are one memory in PyTorch, as `grad` and `grad.data`,
    share it.

    is_spent: the weight has been stepped since, so its multiple is no longer known.
    """

    parts: tuple[Part, ...] = ()
    decay: float = 0.0
    dense: Tensor | None = None
    is_spent: bool = False


class RowGradient(torch.Tensor):
    """The gradient of one table; see above. table: whose."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]
    table: Table
    content: Content

    @staticmethod
    def __new__(
        cls,
        table: Table,
        parts: tuple[Part, ...] = (),
        decay: float = 0.0,
        dense: Tensor | None = None,
    ) -> RowGradient:
        like = table.values
        self = torch.Tensor._make_wrapper_subclass(
            cls, like.shape, dtype=like.dtype, device=like.device
        )
        self.table = table
        self._hold(Content(parts, decay, dense))
        return self

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def _hold(self, content: Content) -> None:
        self.content = content
        if content.decay:
            self.table.multiples.add(content)

    @property
    def parts(self) -> tuple[Part, ...]:
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
        return self.shared()

    @data.setter
    def data(self, new: Tensor) -> None:
        _copy(self, new)

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
            empty = torch.empty(0, dtype=torch.int64)
            return empty, self.table.values.new_empty(0, self.shape[1])
        rows = torch.cat([part.rows for part in self.parts])
        distinct, inverse, _, _ = ops.unique(rows)
        sums = self.table.values.new_zeros(distinct.numel(), self.shape[1])
        return distinct, sums.index_add_(0, inverse.long(), torch.cat([p.sums for p in self.parts]))

    def norm_squared(self) -> float:
        """The sum of all its squares."""
        self.check_unspent()
        if self.dense is not None:
            return float((self.to_dense().double() ** 2).sum())
        if not self.decay and len(self.parts) == 1:
            part = self.parts[0]
            return part.factor**2 * part.of.squares[part.table]
        total = 0.0
        if len(self.parts) == 1:
            part = self.parts[0]
            dot, _ = part.of.with_weights[part.table]
            total = part.factor * (part.factor * part.of.squares[part.table] + 2 * self.decay * dot)
        elif self.parts:
            rows, sums = self.coalesced()
            read = self.table.read_rows(rows).double()
            total = float((sums.double() ** 2).sum() + 2 * self.decay * (sums * read).sum())
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
        both = [of.dense for of in (self, other) if of.dense is not None]
        dense = sum(both[1:], both[0]) if both else None
        return RowGradient(self.table, self.parts + other.parts, self.decay + other.decay, dense)

    def become(self, other: RowGradient) -> RowGradient:
        """Takes the value of another, in place."""
        mine, new = self.content, other.content
        mine.parts, mine.decay, mine.dense = new.parts, new.decay, new.dense
        mine.is_spent = new.is_spent
        self._hold(mine)
        return self

    def shared(self) -> RowGradient:
        """Another tensor over the same content."""
        other = RowGradient(self.table)
        other._hold(self.content)
        return other

    def as_dense(self) -> Tensor:
        """[R, D]: its numbers, which it consists of from here on."""
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
        """Every number of it clamped; zero stays zero."""
        if self.decay or self.dense is not None or (low or 0) > 0 or (high or 0) < 0:
            return RowGradient(self.table, dense=self.to_dense().clamp(low, high))
        rows, sums = self.coalesced()
        return of_rows(self.table, rows, sums.clamp(low, high))

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):  # type: ignore[override]
        kwargs = kwargs or {}
        handler = _HANDLERS.get(func)
        if handler is not None:
            result = handler(*args, **kwargs)
            if result is not NotImplemented:
                return result
        return _densely(func, args, kwargs)


def of_rows(table: Table, rows: Tensor, sums: Tensor, decay: float = 0.0) -> RowGradient:
    """The gradient with these rows, distinct and ascending, [U], and their gradients [U, D]."""
    each = torch.arange(rows.numel() + 1, dtype=torch.int32)
    bounds = torch.tensor([0, rows.numel()])
    plan = TablePlan(
        (table.target,), rows, rows, bounds, each[:-1], each[:-1], each, place=table.place_of(rows)
    )
    return RowGradient(table, (Part(PackGradient(plan, sums), 0),), decay)


def settle(contents: weakref.WeakSet[Content], table: Table, but: Tensor | None = None) -> None:
    """Writes out the multiples of a weight that is about to change; not `but`, which steps it."""
    for content in list(contents):
        if isinstance(but, RowGradient) and but.content is content:
            continue
        if content.decay and not content.is_spent:
            of = RowGradient(table)
            of._hold(content)
            of.as_dense()
        contents.discard(content)


def sum_runs(grad: Tensor, plan: TablePlan, weights: Tensor | None) -> Tensor:
    """[U, D]: gradients [M, D] summed along the runs of equal rows."""
    if grad.dtype == torch.float32:
        return ops.sum_gradients(grad, plan.order, plan.starts, plan.bags, weights)
    order = plan.order.long()
    terms = grad[order if plan.bags is None else plan.bags.long()[order]]
    if weights is not None:
        terms = terms * weights[order, None]
    lengths = plan.starts.long().diff()
    runs = torch.arange(lengths.numel()).repeat_interleave(lengths)
    return grad.new_zeros(lengths.numel(), grad.shape[1]).index_add_(0, runs, terms)


def _by_table(of_rows: Tensor, bounds: Tensor) -> list[float]:
    total = torch.cat([of_rows.new_zeros(1), of_rows.cumsum(0)])
    return total[bounds].diff().tolist()


# ---- what PyTorch asks of a gradient


def _densely(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Any other operation: on the dense tensors; one that is changed in place keeps what it became.

    One that something is a view of consists of its numbers from then on, as the view may be written.
    """
    changed: list[tuple[RowGradient, Tensor]] = []
    views = any(of.alias_info and not of.alias_info.is_write for of in func._schema.arguments)

    def dense(of: Any) -> Any:
        if isinstance(of, RowGradient):
            found = of.as_dense() if views else of.to_dense()
            changed.append((of, found))
            return found
        if isinstance(of, list | tuple):
            return type(of)(dense(each) for each in of)
        return of

    args, kwargs = dense(tuple(args)), {name: dense(of) for name, of in kwargs.items()}
    result = func(*args, **kwargs)
    if func._schema.is_mutable:
        for of, became in changed:
            of.become(RowGradient(of.table, dense=became))
            if result is became:
                result = of
    return result


def _number(of: Any) -> float | None:
    """A number, from a number or a tensor of one; None where it is no number."""
    if isinstance(of, Tensor):
        return float(of) if of.numel() == 1 and not isinstance(of, RowGradient) else None
    return float(of)


def _detach(of: RowGradient, *args: Any, **kwargs: Any) -> RowGradient:
    return of.shared()


def _clone(of: RowGradient, *args: Any, **kwargs: Any) -> RowGradient:
    dense = None if of.dense is None else of.dense.clone()
    result = RowGradient(of.table, of.parts, of.decay, dense)
    result.is_spent = of.is_spent
    return result


def _empty(of: RowGradient, *args: Any, **kwargs: Any) -> Any:
    if args and list(args[0]) != list(of.shape):
        return NotImplemented
    return RowGradient(of.table)


def _add(one: Any, other: Any, *, alpha: float = 1) -> Any:
    if not isinstance(one, RowGradient):  # addition commutes
        one, other, alpha = other.times(alpha), one, 1
    if not isinstance(other, Tensor) or other.shape != one.shape:
        return NotImplemented
    if alpha != 1:
        other = other.times(alpha) if isinstance(other, RowGradient) else other * alpha
    return one.plus(other)


def _add_in_place(one: Any, other: Any, *, alpha: float = 1) -> Any:
    if not isinstance(one, RowGradient):
        return one.add_(other.to_dense(), alpha=alpha)
    result = _add(one, other, alpha=alpha)
    return NotImplemented if result is NotImplemented else one.become(result)


def _mul(one: Any, other: Any) -> Any:
    if not isinstance(one, RowGradient):
        one, other = other, one
    factor = _number(other)
    return NotImplemented if factor is None else one.times(factor)


def _mul_in_place(one: Any, other: Any) -> Any:
    if not isinstance(one, RowGradient):
        return NotImplemented
    result = _mul(one, other)
    return NotImplemented if result is NotImplemented else one.become(result)


def _div(one: Any, other: Any) -> Any:
    factor = _number(other) if isinstance(one, RowGradient) else None
    return NotImplemented if factor is None else one.times(1 / factor)


def _div_in_place(one: Any, other: Any) -> Any:
    result = _div(one, other)
    return NotImplemented if result is NotImplemented else one.become(result)


def _zero(of: RowGradient) -> RowGradient:
    return of.become(RowGradient(of.table))


def _copy(of: Any, other: Tensor, *args: Any) -> Any:
    if not isinstance(of, RowGradient):
        return of.copy_(other.to_dense())
    if not isinstance(other, RowGradient):
        return of.become(RowGradient(of.table, dense=other.clone()))
    return of.become(other)


def _vector_norm(of: RowGradient, ord: Any = 2, dim: Any = None, *args: Any, **kwargs: Any) -> Any:
    if float(ord) != 2 or dim is not None or args or kwargs.get("dtype") is not None:
        return NotImplemented
    return torch.tensor(of.norm_squared() ** 0.5, dtype=of.dtype)


def _clamp(of: RowGradient, low: Any = None, high: Any = None) -> Any:
    return of.clamped(low, high)


def _clamp_in_place(of: RowGradient, low: Any = None, high: Any = None) -> RowGradient:
    return of.become(of.clamped(low, high))


def _each(single: Callable, foreach: Callable) -> Callable:
    """An operation on lists: ours one by one, the others together as before."""
    in_place = foreach.__name__.endswith("_")

    def run(gradients: Sequence[Tensor], *args: Any, **kwargs: Any) -> Any:
        ours = [isinstance(of, RowGradient) for of in gradients]
        lists = [isinstance(arg, list | tuple) for arg in args]
        plain = [of for of, own in zip(gradients, ours, strict=True) if not own]
        kept = [
            [a for a, own in zip(arg, ours, strict=True) if not own] if is_list else arg
            for arg, is_list in zip(args, lists, strict=True)
        ]
        found = foreach(plain, *kept, **kwargs) if plain else []
        others = iter(found if found is not None else plain)
        results = []
        for i, of in enumerate(gradients):
            if not ours[i]:
                results.append(next(others))
                continue
            own = [arg[i] if is_list else arg for arg, is_list in zip(args, lists, strict=True)]
            result = single(of, *own, **kwargs)
            if result is NotImplemented:
                raise NotImplementedError(f"{foreach} of a row gradient with {args}")
            results.append(result)
        return None if in_place else results

    return run


def _unscale(gradients: Sequence[Tensor], found_inf: Tensor, inv_scale: Tensor) -> None:
    """Of `torch.amp.GradScaler`."""
    plain = [of for of in gradients if not isinstance(of, RowGradient)]
    if plain:
        aten._amp_foreach_non_finite_check_and_unscale_(plain, found_inf, inv_scale)
    for of in gradients:
        if isinstance(of, RowGradient):
            if not torch.isfinite(torch.tensor(of.norm_squared())):
                found_inf.fill_(1.0)
            of.become(of.times(float(inv_scale)))


_HANDLERS: dict[Any, Callable] = {
    aten.detach.default: _detach,
    aten.alias.default: _detach,
    aten.clone.default: _clone,
    aten.new_empty_strided.default: _empty,
    aten.empty_like.default: _empty,
    aten.add.Tensor: _add,
    aten.add_.Tensor: _add_in_place,
    aten.mul.Tensor: _mul,
    aten.mul.Scalar: _mul,
    aten.mul_.Tensor: _mul_in_place,
    aten.mul_.Scalar: _mul_in_place,
    aten.div.Tensor: _div,
    aten.div.Scalar: _div,
    aten.div_.Tensor: _div_in_place,
    aten.div_.Scalar: _div_in_place,
    aten.neg.default: lambda of: of.times(-1.0),
    aten.zero_.default: _zero,
    aten.zeros_like.default: _empty,
    aten.copy_.default: _copy,
    aten.linalg_vector_norm.default: _vector_norm,
    aten.norm.Scalar: _vector_norm,
    aten.clamp.default: _clamp,
    aten.clamp_.default: _clamp_in_place,
    aten.clamp_min_.default: lambda of, low: _clamp_in_place(of, low, None),
    aten.clamp_max_.default: lambda of, high: _clamp_in_place(of, None, high),
    aten._foreach_norm.Scalar: _each(_vector_norm, torch._foreach_norm),
    aten._foreach_mul.Scalar: _each(_mul, torch._foreach_mul),
    aten._foreach_mul.Tensor: _each(_mul, torch._foreach_mul),
    aten._foreach_mul_.Scalar: _each(_mul_in_place, torch._foreach_mul_),
    aten._foreach_mul_.Tensor: _each(_mul_in_place, torch._foreach_mul_),
    aten._foreach_div_.Scalar: _each(_div_in_place, torch._foreach_div_),
    aten._foreach_div_.Tensor: _each(_div_in_place, torch._foreach_div_),
    aten._foreach_zero_.default: _each(_zero, torch._foreach_zero_),
    aten._foreach_clamp_min_.Scalar: _each(
        lambda of, low: _clamp_in_place(of, low, None), torch._foreach_clamp_min_
    ),
    aten._foreach_clamp_max_.Scalar: _each(
        lambda of, high: _clamp_in_place(of, None, high), torch._foreach_clamp_max_
    ),
    aten._amp_foreach_non_finite_check_and_unscale_.default: _unscale,
}
