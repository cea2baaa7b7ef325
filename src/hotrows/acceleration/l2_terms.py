"""L2 terms: terms of a loss over whole tables, as the CTR libraries have them.

    l2 * torch.square(weight)  .sum()      torch.sum(weight * weight)      weight.pow(2).sum()
    torch.norm(weight, 2) ** 2             weight.norm()

are all functions of one number, the sum of the squared weights. Its gradient is a multiple of the
weight, which a `RowGradient` carries as `decay`; so nothing of the table's size is made. Any other use
of the squares computes all of them in plain PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from hotrows.acceleration.gradient import RowGradient
from hotrows.acceleration.parameter import TableParameter, handles, mapped, read_whole


class _SumOfSquares(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: TableParameter) -> Tensor:
        ctx.weight, ctx.table = weight, weight.table
        return _number(ctx.table.sum_of_squares(), ctx.table.values)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        if torch.is_grad_enabled():  # create_graph: it depends on the weight, too
            return read_whole(torch.mul, (ctx.weight, 2 * grad), {})
        return RowGradient(ctx.table, decay=2 * float(grad))


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


class Squares(torch.Tensor):
    """factor * weight ** 2, [R, D], as long as only its sum is used."""

    weight: TableParameter
    factor: float

    @staticmethod
    def __new__(cls, weight: TableParameter, factor: float = 1.0) -> Squares:
        like = weight.table.values
        self = torch.Tensor._make_wrapper_subclass(cls, like.shape, dtype=like.dtype, device=like.device)
        self.weight, self.factor = weight, factor
        return self

    def __init__(self, *args: Any) -> None:
        pass

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"Squares({list(self.shape)}, factor={self.factor:g})"

    @classmethod
    @torch.compiler.disable
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        kwargs, handler = kwargs or {}, _HANDLERS.get(func)
        result = NotImplemented if handler is None else handler(*args, **kwargs)
        if result is not NotImplemented:
            return result
        return func(*mapped(_plain, args), **mapped(_plain, kwargs))

    def all(self) -> Tensor:  # type: ignore[override]
        """[R, D], with the gradient of plain PyTorch."""
        return read_whole(torch.square, (self.weight,), {}) * self.factor

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):  # type: ignore[override]
        raise RuntimeError(
            f"{func} got the squares of a whole table where plain PyTorch would have [R, D] numbers; "
            f"write torch.square(weight).clone(), or leave this table out of hotrows.accelerate"
        )


def _plain(value: Any) -> Any:
    return value.all() if isinstance(value, Squares) else value


def _is_number(value: Any) -> bool:
    if isinstance(value, Tensor):
        return value.dim() == 0 and not value.requires_grad
    return isinstance(value, int | float) and not isinstance(value, bool)


def _times(one: Any, other: Any) -> Any:
    squares, factor = (one, other) if isinstance(one, Squares) else (other, one)
    if not _is_number(factor):
        return NotImplemented
    return Squares(squares.weight, squares.factor * float(factor))


def _divided(squares: Any, by: Any) -> Any:
    if not isinstance(squares, Squares) or not _is_number(by):
        return NotImplemented
    return Squares(squares.weight, squares.factor / float(by))


def _sum(squares: Squares, *args: Any, **kwargs: Any) -> Any:
    if args or kwargs:
        return NotImplemented
    return squares.factor * _SumOfSquares.apply(squares.weight)


def _mean(squares: Squares, *args: Any, **kwargs: Any) -> Any:
    return _sum(_divided(squares, squares.weight.table.values.numel()), *args, **kwargs)


_HANDLERS: dict[Any, Callable] = {
    torch.mul: _times,
    torch.multiply: _times,
    torch.Tensor.mul: _times,
    torch.Tensor.multiply: _times,
    torch.Tensor.__mul__: _times,
    torch.Tensor.__rmul__: _times,
    torch.div: _divided,
    torch.Tensor.div: _divided,
    torch.Tensor.__truediv__: _divided,
    torch.sum: _sum,
    torch.Tensor.sum: _sum,
    torch.mean: _mean,
    torch.Tensor.mean: _mean,
}
for _name in ("shape", "dtype", "device", "ndim", "layout"):
    _get = getattr(torch.Tensor, _name).__get__
    _HANDLERS[_get] = lambda squares, *_, _get=_get: _get(squares.weight.table.values)


@handles(torch.square, torch.Tensor.square)
def _square(weight: TableParameter) -> Any:
    return Squares(weight)


@handles(torch.pow, torch.Tensor.pow, torch.Tensor.__pow__)
def _pow(weight: Any, exponent: Any) -> Any:
    if not isinstance(weight, TableParameter) or not _is_number(exponent) or float(exponent) != 2:
        return NotImplemented
    return Squares(weight)


@handles(torch.mul, torch.Tensor.mul, torch.Tensor.__mul__, torch.Tensor.__rmul__, torch.multiply)
def _mul(one: Any, other: Any, **options: Any) -> Any:
    return Squares(one) if one is other and not options else NotImplemented


@handles(torch.norm, torch.Tensor.norm, torch.linalg.vector_norm)
def _norm(weight: Any, p: Any = None, *args: Any, **kwargs: Any) -> Any:
    p = kwargs.pop("ord", p)
    is_two = p in (None, "fro") or (_is_number(p) and float(p) == 2)
    others = [value for value in (*args, *kwargs.values()) if value not in (None, False)]
    records = not torch.is_inference_mode_enabled()
    if not isinstance(weight, TableParameter) or not is_two or others or not records:
        return NotImplemented
    return _Norm.apply(weight)
