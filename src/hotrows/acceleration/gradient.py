"""RowGradient: the gradient of a table, as the terms that it is made of.

    gradient = sum of gradients of rows  +  decay * weight  +  dense

The first comes from lookups, the second from terms of the loss like the sum of all squared weights,
the third from plain code that read the whole weight, and is rare. It has the weight's shape and goes
through autograd, hooks, accumulation, `.grad` and clipping like any tensor. `gradient_ops` handles the
operations that need no dense tensor; any other is done on the dense tensor, which is right, and slow.
What reads or writes memory (numpy, views, operations in place ..) gets memory made for it, which the
gradient keeps. As long as nobody changes the numbers in it, the terms remain.

    PackGradient, of one lookup of many tables       RowGradient, of one table
      plan   rows, runs of equal rows                  parts   (pack gradient, table, factor)
      grad   [M, D] of all vectors                     decay   a number
                                                       dense   [R, D] or None
                                                       memory  [R, D] or None: their sum
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from hotrows import ops
from hotrows.acceleration.exclusive import LOCK
from hotrows.acceleration.pack_gradient import PackGradient, TableGradient
from hotrows.acceleration.table import RowTable
from hotrows.acceleration.table_plan import TablePlan
from hotrows.ops.plan import PackPlan

HANDLERS: dict[Any, Callable] = {}  # of aten operations; `gradient_ops` fills it


@dataclass(eq=False)
class GradientContent:
    """The terms of a gradient, shared by tensors that share memory in PyTorch, as `grad` and `grad.data`.

    memory: the numbers, where others may read and write them. is_spent: the weight has been stepped
    since, so its multiple is no longer known.
    """

    table: RowTable
    parts: tuple[TableGradient, ...] = ()
    decay: float = 0.0
    dense: Tensor | None = None
    is_spent: bool = False
    memory: Tensor | None = None

    @property
    def is_lost(self) -> bool:
        """True if some of its numbers are not known any more."""
        return self.is_spent and self.decay != 0

    def numbers(self) -> Tensor:
        """[R, D]: the sum of all terms, in new memory."""
        values = self.table.values
        numbers = values.new_zeros(values.shape)
        if self.dense is not None:
            numbers += self.dense
        for part in self.parts:
            numbers.index_add_(0, part.rows, part.sums.to(numbers.dtype))
        if self.decay:
            numbers += self.decay * self.table.caught_up()
        return numbers

    def lend(self) -> Tensor:
        """[R, D]: its memory; what others write there counts."""
        if self.memory is None:
            self.memory = self.numbers()
        return self.memory

    def settled(self) -> GradientContent:
        """Itself, with the numbers in its memory as its only term if others have changed them."""
        if self.memory is None or self.dense is self.memory:
            return self
        if self.is_lost or not _equal_bits(self.memory, self.numbers()):
            self._keep_memory_alone()
        return self

    def materialize(self) -> None:
        """Turns the multiple of the weight, and everything else, into dense numbers."""
        if self.settled().decay and not self.is_spent:
            self.lend()
            self._keep_memory_alone()

    def _keep_memory_alone(self) -> None:
        self.parts, self.decay, self.dense = (), 0.0, self.memory

    def take_over(self, new: GradientContent) -> None:
        """Takes the value of another, in the memory that others have of this one."""
        self.parts, self.decay, self.is_spent = new.parts, new.decay, new.is_spent
        self.dense = new.dense if new.memory is None or new.dense is None else new.dense.clone()
        if self.memory is not None:
            self.memory.copy_(self.numbers())
            if self.dense is not None:
                self._keep_memory_alone()


class RowGradient(torch.Tensor):
    """The gradient of one table, as terms: see the module."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]
    _content: GradientContent

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
        torch._C._set_throw_on_mutable_data_ptr(self)  # in place of a crash where C++ reads memory
        return self.share(GradientContent(table, parts, decay, dense))

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def share(self, content: GradientContent) -> RowGradient:
        """Takes over `content`, as a tensor over the same memory."""
        self._content = content
        if content.decay:
            content.table.multiples.add(content)
        return self

    @property
    def content(self) -> GradientContent:
        return self._content.settled()

    @property
    def table(self) -> RowTable:
        return self._content.table

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
        self._content.is_spent = spent

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
        numbers = self.content.numbers()
        return numbers.to_dense(*args, **kwargs) if args or kwargs else numbers

    def lend(self) -> Tensor:
        """[R, D]: its memory, which it keeps; what is written there counts."""
        self.check_unspent()
        return self.content.lend()

    def coalesced(self) -> tuple[Tensor, Tensor]:
        """Distinct rows [U] and the gradient of each, [U, D], of all parts."""
        parts = self.parts
        if len(parts) == 1:
            return parts[0].rows, parts[0].sums
        if not parts:
            empty = self.table.values.new_empty(0, dtype=torch.int64)
            return empty, self.table.values.new_empty(0, self.shape[1])
        rows = torch.cat([part.rows for part in parts])
        return summed_by_row(rows, torch.cat([part.sums for part in parts]))

    def norm_squared(self) -> float:
        """The sum of all squares."""
        self.check_unspent()
        if self.dense is not None:
            return float((self.to_dense().double() ** 2).sum())
        if not self.decay and len(self.parts) == 1:
            return self.parts[0].squares
        if len(self.parts) == 1 and self.parts[0].is_in_memory:
            # Before the sum of squares of this table: it reads those of all tables of the lookup at once.
            squares, with_weights = self.parts[0].products
            total = squares + 2 * self.decay * with_weights
            return max(total + self.decay**2 * self.table.sum_of_squares(), 0.0)
        rows, sums = self.coalesced()
        total = float((sums.double() ** 2).sum())
        if self.decay:
            weights = self.table.read_rows(rows).double()
            total += 2 * self.decay * float((sums * weights).sum())
            total += self.decay**2 * self.table.sum_of_squares()
        return max(total, 0.0)

    def is_finite(self) -> bool:
        """True if all terms are finite; multiples of the weight are as long as the weight is."""
        numbers = [self.decay, *(part.squares for part in self.parts)]
        dense = self.dense
        return all(map(math.isfinite, numbers)) and (dense is None or bool(dense.isfinite().all()))

    def times(self, factor: float) -> RowGradient:
        content = self.content
        dense = None if content.dense is None else content.dense * factor
        parts = tuple(replace(part, factor=part.factor * factor) for part in content.parts)
        result = RowGradient(self.table, parts, content.decay * factor, dense)
        result.is_spent = content.is_spent
        return result

    def plus(self, other: Tensor) -> RowGradient:
        self.check_unspent()
        if not isinstance(other, RowGradient):
            other = RowGradient(self.table, dense=other)
        other.check_unspent()
        one, two = self.content, other.content
        both = [x.dense for x in (one, two) if x.dense is not None]
        dense = (both[0].clone() if len(both) == 1 else both[0] + both[1]) if both else None
        return RowGradient(self.table, one.parts + two.parts, one.decay + two.decay, dense)

    def become(self, other: Tensor) -> RowGradient:
        """Takes over the value of another gradient, or of dense numbers, in place."""
        if not isinstance(other, RowGradient):
            other = RowGradient(self.table, dense=other.clone())
        if self._content.memory is not None:
            other.check_unspent()
        self._content.take_over(other.content)
        return self.share(self._content)

    def alias(self) -> RowGradient:
        """Another tensor over the same content."""
        return RowGradient(self.table).share(self._content)

    def check_unspent(self) -> None:
        if self.content.is_lost:
            raise RuntimeError(
                f"the gradient of {self.table.names[0]} holds {self.decay:g} times the weight as it "
                f"was before optimizer.step(), which is no more: read it before the step, and call "
                f"zero_grad before the next backward"
            )

    def clamped(self, low: float | None = None, high: float | None = None) -> RowGradient:
        """With every number clamped; zero stays zero."""
        moves_zero = not (low or 0) <= 0 <= (high or 0)
        if self.decay or self.dense is not None or moves_zero:
            return RowGradient(self.table, dense=self.to_dense().clamp(low, high))
        rows, sums = self.coalesced()
        return gradient_of_rows(self.table, rows, sums.clamp(low, high))

    def __deepcopy__(self, memo: dict[int, Any]) -> RowGradient:
        return memo.setdefault(id(self), self.times(1.0))

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):  # type: ignore[override]
        kwargs, handler = kwargs or {}, HANDLERS.get(func)
        with LOCK:
            result = NotImplemented if handler is None else handler(*args, **kwargs)
            return _densely(func, args, kwargs) if result is NotImplemented else result


def gradient_of_rows(table: RowTable, rows: Tensor, sums: Tensor, decay: float = 0.0) -> RowGradient:
    """The gradient with rows [U], distinct and ascending, and their gradients sums [U, D]."""
    order = torch.arange(rows.numel() + 1, dtype=torch.int32, device=rows.device)
    pack = PackPlan(rows, rows, order[:-1], order[:-1], order, rows.numel())
    bounds = torch.tensor([0, rows.numel()]).to(rows.device)
    plan = TablePlan(pack, rows, bounds, (table.target,), locations=table.locate(rows))
    return RowGradient(table, (TableGradient(PackGradient(plan, sums, [table]), 0),), decay)


def summed_by_row(rows: Tensor, grads: Tensor) -> tuple[Tensor, Tensor]:
    """Distinct rows [U], ascending, and the sums [U, D] of their gradients [N, D], in their order."""
    distinct, inverse, order, starts = ops.unique(rows)
    if rows.is_cuda:  # where `index_add_` has no one order
        return distinct, ops.sum_gradients(grads, order, starts, None, None)
    sums = grads.new_zeros(distinct.numel(), grads.shape[1])
    return distinct, sums.index_add_(0, inverse.long(), grads)


def _equal_bits(one: Tensor, other: Tensor) -> bool:
    return torch.equal(one.reshape(-1).view(torch.uint8), other.reshape(-1).view(torch.uint8))


def _densely(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Runs any operation on dense tensors: on the memory of gradients that it may write or view."""
    reads_alone = func.namespace in ("aten", "prims")  # where the schema names no alias
    lent: dict[int, RowGradient] = {}

    def dense(value: Any, alias: Any) -> Any:
        if isinstance(value, RowGradient):
            is_written = id(value.content.memory) in lent
            if alias is None and reads_alone and not is_written:
                return value.to_dense()
            memory = value.lend()
            lent[id(memory)] = value
            return memory
        if isinstance(value, list | tuple):
            return type(value)(dense(x, alias) for x in value)
        return value

    schema = func._schema.arguments
    aliases = {argument.name: argument.alias_info for argument in schema}
    args = [dense(value, argument.alias_info) for value, argument in zip(args, schema, strict=False)]
    result = func(*args, **{name: dense(value, aliases[name]) for name, value in kwargs.items()})
    if isinstance(result, list | tuple):
        return type(result)(lent.get(id(x), x) for x in result)
    return lent.get(id(result), result)


def _method_of_memory(name: str) -> Callable[..., Any]:
    method = getattr(Tensor, name)

    @functools.wraps(method)
    def call(self: RowGradient, *args: Any, **kwargs: Any) -> Any:
        memory = self.lend()
        result = method(memory, *args, **kwargs)
        return self if result is memory else result

    return call


# What PyTorch does without dispatching an operation.
for _name in (
    "numpy", "tolist", "__array__", "__dlpack__", "__reduce_ex__", "data_ptr", "storage",
    "_typed_storage", "untyped_storage", "share_memory_", "is_shared", "apply_", "map_", "map2_",
):  # fmt: skip
    setattr(RowGradient, _name, _method_of_memory(_name))
