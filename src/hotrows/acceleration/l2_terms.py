"""L2 terms: terms of a loss over whole tables, as the CTR libraries have them.

    l2 * torch.square(weight)  .sum()      torch.sum(weight * weight)      weight.pow(2).sum()
    torch.norm(weight, 2) ** 2

are all functions of one number, the sum of the squared weights. Its gradient is a multiple of the
weight, which a `RowGradient` carries as `decay`; so nothing of the table's size is made. The number
itself needs every row as it is now, and is computed when somebody reads it:

    Squares, Norm    as long as only a sum is made of them; any other use computes them in plain PyTorch
    PendingSum       a loss with such terms: added, scaled and differentiated without its value
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from hotrows.acceleration.gradient import RowGradient
from hotrows.acceleration.moments import Moment
from hotrows.acceleration.nodes import tensors_in
from hotrows.acceleration.parameter import NO_TORCH_FUNCTION, TableParameter, handles, mapped, read_whole

_DTYPES = (torch.float32, torch.float64)


def _getters(*names: str) -> set[Any]:
    return {getattr(Tensor, name).__get__ for name in names}


_DESCRIBING = {
    Tensor.dim, Tensor.size, Tensor.numel, *_getters("shape", "dtype", "device", "ndim", "layout")
}  # fmt: skip
_UNREAD = {Tensor.register_hook, Tensor.retain_grad, *_getters("requires_grad", "grad_fn", "is_leaf")}


class _SumOfSquares(torch.autograd.Function):
    """factor * the sum of squares. value: of that; not a number where `PendingSum` computes it."""

    @staticmethod
    def forward(ctx: Any, weight: TableParameter, factor: float, value: float) -> Tensor:
        ctx.weight, ctx.table, ctx.factor = weight, weight.table, factor
        return _number(value, ctx.table.values)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        if torch.is_grad_enabled():  # create_graph: it depends on the weight, too
            return read_whole(torch.mul, (ctx.weight, 2 * ctx.factor * grad), {}), None, None
        return RowGradient(ctx.table, decay=2 * ctx.factor * float(grad)), None, None


def _number(number: float, like: Tensor) -> Tensor:
    return torch.tensor(number, dtype=like.dtype).to(like.device)


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: TableParameter) -> Tensor:
        ctx.weight, ctx.table = weight, weight.table
        ctx.norm = ctx.table.sum_of_squares() ** 0.5
        return _number(ctx.norm, ctx.table.values)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        if torch.is_grad_enabled() and ctx.norm:
            return read_whole(torch.mul, (ctx.weight, grad / _Norm.apply(ctx.weight)), {})
        return RowGradient(ctx.table, decay=float(grad) / ctx.norm if ctx.norm else 0.0)


class _Value:
    """Something computed of the weight as it is now: when it is read, or before the weight changes."""

    def __init__(self, weight: TableParameter, compute: Callable[[], Any]) -> None:
        self._compute: Callable[[], Any] | None = compute
        self._result: Any = None
        weight.table.multiples.add(self)

    @property
    def is_made(self) -> bool:
        return self._compute is None

    def get(self) -> Any:
        return self._result if self._compute is None else self._compute()

    def materialize(self) -> None:
        compute, self._compute = self._compute, None
        if compute is not None:
            with torch._C._EnableTorchFunction(), torch.enable_grad():
                self._result = compute()


# ---- a loss with terms over whole tables


class PendingSum(Tensor):
    """A sum of one number with terms over whole tables; not a number in memory until it is read.

    known: the sum of all other terms. terms: the tables' sums of squares, each with its factor.
    """

    known: Any
    terms: tuple[tuple[Moment, float], ...]

    @classmethod
    @torch.compiler.disable
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func in _UNREAD or func in _DESCRIBING:
            with NO_TORCH_FUNCTION():
                return func(*args, **kwargs)
        if (differentiate := _DIFFERENTIATING.get(func)) is not None:
            return differentiate(*mapped(_twin, args), **mapped(_twin, kwargs))
        linear = None if kwargs or not torch.is_grad_enabled() else _LINEAR.get(func)
        result = NotImplemented if linear is None else linear(*args)
        if result is not NotImplemented:
            return result
        for tensor in tensors_in((args, kwargs)):
            if isinstance(tensor, PendingSum):
                tensor.settle()
        return func(*args, **kwargs)

    def settle(self) -> None:
        """Computes the value, and becomes a plain tensor."""
        with NO_TORCH_FUNCTION(), torch.no_grad():
            self.__class__ = Tensor  # type: ignore[assignment]
            total = self.known.double()
            for moment, factor in self.terms:
                total = total + factor * moment.get()
            self.data.copy_(total)  # `data`, for nobody has seen the number before
            del self.known, self.terms


def _twin(value: Any) -> Any:
    """The place of a pending sum in the graph of autograd, as a plain tensor without a value."""
    if not isinstance(value, PendingSum):
        return value
    with NO_TORCH_FUNCTION(), torch.enable_grad():
        return value.view_as(value)


def _pending(sum_: Any, known: Any, terms: tuple[tuple[Moment, float], ...]) -> Any:
    sum_.__class__ = PendingSum
    sum_.known, sum_.terms = known, terms
    return sum_


def _is_number(value: Any) -> bool:
    if isinstance(value, Tensor):
        return type(value) is Tensor and value.dim() == 0 and not value.requires_grad
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_summand(value: Any) -> bool:
    if type(value) in (Tensor, PendingSum):
        with NO_TORCH_FUNCTION():
            return value.numel() == 1 and value.dtype in _DTYPES
    return _is_number(value)


def _known(value: Any) -> Any:
    if isinstance(value, PendingSum):
        return value.known
    return value.detach() if isinstance(value, Tensor) else value


def _terms(value: Any, factor: float = 1.0) -> tuple[tuple[Moment, float], ...]:
    terms = value.terms if isinstance(value, PendingSum) else ()
    return terms if factor == 1 else tuple((moment, factor * times) for moment, times in terms)


def _sum_of(operation: Callable, one: Any, other: Any) -> Any:
    """one + other, or one - other."""
    if not (_is_summand(one) and _is_summand(other)):
        return NotImplemented
    terms = _terms(one) + _terms(other, -1.0 if operation is operator.sub else 1.0)
    with NO_TORCH_FUNCTION():
        return _pending(operation(one, other), operation(_known(one), _known(other)), terms)


def _sum_in_place(one: Any, other: Any) -> Any:
    """one += other; a plain tensor becomes pending where nobody else has its memory."""
    if not (_is_summand(one) and _is_summand(other)):
        return NotImplemented
    with NO_TORCH_FUNCTION():
        num_users = torch._C._storage_Use_Count(one.untyped_storage()._cdata)
        if num_users > 2 and not isinstance(one, PendingSum):  # itself, and its storage in Python
            return NotImplemented
        known, terms = _known(one) + _known(other), _terms(one) + _terms(other)
        return _pending(one.add_(other), known, terms)


def _multiple(operation: Callable, one: Any, other: Any) -> Any:
    """one * other, or one / other, of a number."""
    if operation is operator.mul and not isinstance(one, PendingSum):
        one, other = other, one
    if not isinstance(one, PendingSum) or not _is_number(other) or not math.isfinite(float(other)):
        return NotImplemented
    if operation is operator.truediv and not float(other):
        return NotImplemented
    terms = _terms(one, operation(1.0, float(other)))
    with NO_TORCH_FUNCTION():
        return _pending(operation(one, other), operation(one.known, other), terms)


def _backward(loss: Any, *args: Any, gradient: Any = None, **options: Any) -> None:
    names = ("gradient", "retain_graph", "create_graph", "inputs")
    options |= dict(zip(names, args, strict=False))
    torch.autograd.backward(loss, options.pop("gradient", gradient), **options)


def _names(function: Callable, *names: str) -> dict[Any, Callable]:
    """A function by what PyTorch calls it: those of `torch`, and the methods of a tensor."""
    of_torch = {getattr(torch, name) for name in names if hasattr(torch, name)}
    return dict.fromkeys(of_torch | {getattr(Tensor, n) for n in names if hasattr(Tensor, n)}, function)


_LINEAR: dict[Any, Callable] = {
    **_names(partial(_sum_of, operator.add), "add", "__add__", "__radd__"),
    **_names(partial(_sum_of, operator.sub), "sub", "__sub__"),
    **_names(lambda one, other: _sum_of(operator.sub, other, one), "__rsub__"),
    **_names(_sum_in_place, "add_", "__iadd__"),
    **_names(partial(_multiple, operator.mul), "mul", "multiply", "__mul__", "__rmul__"),
    **_names(partial(_multiple, operator.truediv), "div", "__truediv__"),
    **_names(lambda one: _multiple(operator.mul, one, -1.0), "neg", "__neg__"),
}
_DIFFERENTIATING: dict[Any, Callable] = {
    Tensor.backward: _backward,
    torch.autograd.backward: torch.autograd.backward,
    torch.autograd.grad: torch.autograd.grad,
}


# ---- squares and norms


class _OfTable(Tensor):
    """A function of a table's weight, times a factor, as long as only a sum of squares is made of it."""

    _shape: tuple[int, ...] | None = None  # None: the table's
    _handlers: dict[Any, Callable]
    weight: TableParameter
    factor: float
    value: _Value

    @staticmethod
    def _plain_of(weight: TableParameter) -> Tensor:
        """What plain PyTorch computes, with its gradient."""
        raise NotImplementedError

    @staticmethod
    def __new__(cls, weight: TableParameter, factor: float = 1.0, value: _Value | None = None) -> Any:
        like = weight.table.values
        shape = like.shape if cls._shape is None else cls._shape
        self = Tensor._make_wrapper_subclass(cls, shape, dtype=like.dtype, device=like.device)
        self.weight, self.factor = weight, factor
        self.value = value or _Value(weight, lambda: cls._plain_of(weight))
        return self

    def __init__(self, *args: Any) -> None:
        pass

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return repr(self.plain())

    @classmethod
    @torch.compiler.disable
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func in _DESCRIBING:
            with NO_TORCH_FUNCTION():
                return func(*args, **kwargs)
        handler = cls._handlers.get(func)
        result = NotImplemented if handler is None else handler(*args, **kwargs)
        if result is not NotImplemented:
            return result
        return func(*mapped(_plain, args), **mapped(_plain, kwargs))

    def plain(self) -> Tensor:
        return self.value.get() * self.factor

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):  # type: ignore[override]
        raise RuntimeError(
            f"{func} got the squares of a whole table where plain PyTorch would have [R, D] numbers; "
            f"write torch.square(weight).clone(), or leave this table out of hotrows.accelerate"
        )


class Squares(_OfTable):
    """factor * weight ** 2, [R, D]."""

    @staticmethod
    def _plain_of(weight: TableParameter) -> Tensor:
        return read_whole(torch.square, (weight,), {})


class Norm(_OfTable):
    """The square root of the sum of squares."""

    _shape = ()

    @staticmethod
    def _plain_of(weight: TableParameter) -> Tensor:
        return _Norm.apply(weight)


def _plain(value: Any) -> Any:
    return value.plain() if isinstance(value, _OfTable) else value


def _sum_of_squares(of_table: _OfTable, factor: float) -> Any:
    """factor * the sum of squares: pending where a gradient is recorded, else a number."""
    weight = of_table.weight
    if of_table.value.is_made:
        return NotImplemented
    if not _records(weight):
        return _number(factor * weight.table.sum_of_squares(), weight.table.values)
    pending = _SumOfSquares.apply(weight, factor, math.nan)
    if type(pending) is not Tensor:  # of a class with its own meaning, which must stay
        return _SumOfSquares.apply(weight, factor, factor * weight.table.sum_of_squares())
    return _pending(pending, _number(0.0, pending), ((weight.table.moments.open(), factor),))


def _records(weight: Tensor) -> bool:
    return torch.is_grad_enabled() and not torch.is_inference_mode_enabled() and weight.requires_grad


def _times(one: Any, other: Any) -> Any:
    squares, factor = (one, other) if isinstance(one, Squares) else (other, one)
    if not _is_number(factor):
        return NotImplemented
    return Squares(squares.weight, squares.factor * float(factor), squares.value)


def _divided(squares: Any, by: Any) -> Any:
    if not isinstance(squares, Squares) or not _is_number(by) or not float(by):
        return NotImplemented
    return Squares(squares.weight, squares.factor / float(by), squares.value)


def _sum(squares: Squares, *args: Any, **kwargs: Any) -> Any:
    return NotImplemented if args or kwargs else _sum_of_squares(squares, squares.factor)


def _mean(squares: Squares, *args: Any, **kwargs: Any) -> Any:
    return _sum(_divided(squares, squares.numel()), *args, **kwargs)


def _norm_squared(norm: Any, exponent: Any = 2) -> Any:
    is_two = isinstance(norm, Norm) and _is_number(exponent) and float(exponent) == 2
    return _sum_of_squares(norm, 1.0) if is_two else NotImplemented


Squares._handlers = {
    **_names(_times, "mul", "multiply", "__mul__", "__rmul__"),
    **_names(_divided, "div", "__truediv__"),
    **_names(_sum, "sum"),
    **_names(_mean, "mean"),
}
Norm._handlers = _names(_norm_squared, "pow", "__pow__", "square")


@handles(torch.square, Tensor.square)
def _square(weight: TableParameter) -> Any:
    return Squares(weight)


@handles(torch.pow, Tensor.pow, Tensor.__pow__)
def _pow(weight: Any, exponent: Any) -> Any:
    if not isinstance(weight, TableParameter) or not _is_number(exponent) or float(exponent) != 2:
        return NotImplemented
    return Squares(weight)


@handles(torch.mul, Tensor.mul, Tensor.__mul__, Tensor.__rmul__, torch.multiply)
def _mul(one: Any, other: Any, **options: Any) -> Any:
    return Squares(one) if one is other and not options else NotImplemented


@handles(torch.norm, Tensor.norm, torch.linalg.vector_norm)
def _norm(weight: Any, p: Any = None, *args: Any, **kwargs: Any) -> Any:
    p = kwargs.pop("ord", p)
    is_two = p in (None, "fro") or (_is_number(p) and float(p) == 2)
    others = [value for value in (*args, *kwargs.values()) if value not in (None, False)]
    if not isinstance(weight, TableParameter) or not is_two or others:
        return NotImplemented
    if not _records(weight):
        return _number(weight.table.sum_of_squares() ** 0.5, weight.table.values)
    return Norm(weight)
