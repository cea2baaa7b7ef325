"""Operations of PyTorch on a `RowGradient` without a dense tensor: sums, multiples, norms, clipping."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from hotrows.acceleration.gradient import HANDLERS, RowGradient

aten = torch.ops.aten


def _number(value: Any, dtype: torch.dtype) -> float | None:
    """A factor that keeps zeros and the dtype, from a number or a tensor of one; None for any other."""
    if isinstance(value, Tensor):
        is_one = value.numel() == 1 and value.dim() <= 2 and not isinstance(value, RowGradient)
        if not is_one or value.is_complex() or (value.dim() and value.dtype != dtype):
            return None
        value = value.item()
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def _clone(gradient: RowGradient, *, memory_format: Any = None) -> RowGradient:
    return gradient.times(1.0)


def _empty(gradient: RowGradient, *, memory_format: Any = None, **kwargs: Any) -> Any:
    like = {"dtype": gradient.dtype, "device": gradient.device, "layout": gradient.layout}
    if any(value and value != like.get(name) for name, value in kwargs.items()):
        return NotImplemented
    return RowGradient(gradient.table)


def _new_empty(gradient: RowGradient, size: Sequence[int], stride: Any, **kwargs: Any) -> Any:
    return _empty(gradient, **kwargs) if list(size) == list(gradient.shape) else NotImplemented


def _add(one: Any, other: Any, *, alpha: float = 1) -> Any:
    if not isinstance(one, RowGradient):  # addition commutes
        one, other, alpha = other.times(alpha), one, 1
    if not isinstance(other, Tensor) or other.shape != one.shape or other.dtype != one.dtype:
        return NotImplemented
    if alpha != 1:
        other = other.times(alpha) if isinstance(other, RowGradient) else other * alpha
    return one.plus(other)


def _mul(one: Any, other: Any) -> Any:
    if not isinstance(one, RowGradient):
        one, other = other, one
    factor = _number(other, one.dtype)
    return NotImplemented if factor is None else one.times(factor)


def _div(one: Any, other: Any) -> Any:
    factor = _number(other, one.dtype) if isinstance(one, RowGradient) else None
    return one.times(1 / factor) if factor else NotImplemented


def _in_place(operation: Callable) -> Callable:
    """An operation whose result the row gradient takes over that is its first argument."""

    def run(gradient: Any, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(gradient, RowGradient):
            return NotImplemented
        result = operation(gradient, *args, **kwargs)
        return NotImplemented if result is NotImplemented else gradient.become(result)

    return functools.wraps(operation)(run)


def _zero(gradient: RowGradient) -> RowGradient:
    return RowGradient(gradient.table)


def _copy(target: Any, source: Tensor, non_blocking: bool = False) -> Any:
    return target.become(source) if isinstance(target, RowGradient) else NotImplemented


def _norm(gradient: RowGradient, ord: Any = 2, dtype: torch.dtype | None = None) -> Any:
    if float(ord) != 2 or dtype is not None:
        return NotImplemented
    return torch.tensor(gradient.norm_squared() ** 0.5, dtype=gradient.dtype).to(
        gradient.table.values.device
    )


def _vector_norm(
    gradient: RowGradient, ord: Any = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> Any:
    return NotImplemented if dim is not None or keepdim else _norm(gradient, ord, dtype)


def _clamp_max(gradient: RowGradient, high: Any) -> RowGradient:
    return gradient.clamped(None, high)


def _one_by_one(single: Callable, foreach: Callable) -> Callable:
    """An operation on lists: row gradients one by one, all other tensors together by `foreach`."""

    def run(gradients: Sequence[Tensor], *args: Any) -> Any:
        results: dict[int, Any] = {}
        for i, gradient in enumerate(gradients):
            if isinstance(gradient, RowGradient):
                results[i] = single(gradient, *args)
                if results[i] is NotImplemented:
                    return NotImplemented
        dense = [i for i in range(len(gradients)) if i not in results]
        others = foreach([gradients[i] for i in dense], *args) if dense else []
        if foreach.__name__.endswith("_"):
            for i, result in results.items():
                gradients[i].become(result)  # type: ignore[attr-defined]
            return None
        results.update(zip(dense, others, strict=True))
        return [results[i] for i in range(len(gradients))]

    return functools.wraps(single)(run)


def _unscale(gradients: Sequence[Tensor], found_inf: Tensor, inv_scale: Tensor) -> None:
    """Divides by the scale of `torch.amp.GradScaler`, and notes infinities."""
    dense = [gradient for gradient in gradients if not isinstance(gradient, RowGradient)]
    if dense:
        aten._amp_foreach_non_finite_check_and_unscale_(dense, found_inf, inv_scale)
    for gradient in gradients:
        if isinstance(gradient, RowGradient):
            if not gradient.is_finite():
                found_inf.fill_(1.0)
            gradient.become(gradient.times(float(inv_scale)))


_clamp = RowGradient.clamped
HANDLERS.update(
    {
        aten.detach.default: RowGradient.alias,
        aten.alias.default: RowGradient.alias,
        aten.clone.default: _clone,
        aten.new_empty_strided.default: _new_empty,
        aten.empty_like.default: _empty,
        aten.add.Tensor: _add,
        aten.add_.Tensor: _in_place(_add),
        aten.mul.Tensor: _mul,
        aten.mul.Scalar: _mul,
        aten.mul_.Tensor: _in_place(_mul),
        aten.mul_.Scalar: _in_place(_mul),
        aten.div.Tensor: _div,
        aten.div.Scalar: _div,
        aten.div_.Tensor: _in_place(_div),
        aten.div_.Scalar: _in_place(_div),
        aten.neg.default: lambda gradient: gradient.times(-1.0),
        aten.zero_.default: _in_place(_zero),
        aten.zeros_like.default: _empty,
        aten.copy_.default: _copy,
        aten.linalg_vector_norm.default: _vector_norm,
        aten.norm.Scalar: _norm,
        aten.clamp.default: _clamp,
        aten.clamp_.default: _in_place(_clamp),
        aten.clamp_min_.default: _in_place(_clamp),
        aten.clamp_max_.default: _in_place(_clamp_max),
        aten._foreach_norm.Scalar: _one_by_one(_norm, torch._foreach_norm),
        aten._foreach_mul.Scalar: _one_by_one(_mul, torch._foreach_mul),
        aten._foreach_mul.Tensor: _one_by_one(_mul, torch._foreach_mul),
        aten._foreach_mul_.Scalar: _one_by_one(_mul, torch._foreach_mul_),
        aten._foreach_mul_.Tensor: _one_by_one(_mul, torch._foreach_mul_),
        aten._foreach_div_.Scalar: _one_by_one(_div, torch._foreach_div_),
        aten._foreach_div_.Tensor: _one_by_one(_div, torch._foreach_div_),
        aten._foreach_zero_.default: _one_by_one(_zero, torch._foreach_zero_),
        aten._foreach_clamp_min_.Scalar: _one_by_one(_clamp, torch._foreach_clamp_min_),
        aten._foreach_clamp_max_.Scalar: _one_by_one(_clamp_max, torch._foreach_clamp_max_),
        aten._amp_foreach_non_finite_check_and_unscale_.default: _unscale,
    }
)
