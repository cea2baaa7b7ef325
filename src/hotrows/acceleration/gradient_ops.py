"""Operations of PyTorch on a `RowGradient` without a dense tensor: sums, multiples, norms, clipping."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from hotrows.acceleration.gradient import HANDLERS, RowGradient

aten = torch.ops.aten


def _number(value: Any) -> float | None:
    """A number, from a number or a tensor of one; None for any other tensor."""
    if isinstance(value, Tensor):
        is_one = value.numel() == 1 and not isinstance(value, RowGradient)
        return float(value) if is_one else None
    return float(value)


def _clone(gradient: RowGradient, *args: Any, **kwargs: Any) -> RowGradient:
    return gradient.times(1.0)


def _empty(gradient: RowGradient, *args: Any, **kwargs: Any) -> Any:
    if args and list(args[0]) != list(gradient.shape):
        return NotImplemented
    return RowGradient(gradient.table)


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
    return _in_place(_add)(one, other, alpha=alpha)


def _mul(one: Any, other: Any) -> Any:
    if not isinstance(one, RowGradient):
        one, other = other, one
    factor = _number(other)
    return NotImplemented if factor is None else one.times(factor)


def _div(one: Any, other: Any) -> Any:
    factor = _number(other) if isinstance(one, RowGradient) else None
    return NotImplemented if factor is None else one.times(1 / factor)


def _in_place(operation: Callable) -> Callable:
    """An operation whose result the row gradient takes over that is its first argument."""

    def run(gradient: Any, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(gradient, RowGradient):
            return NotImplemented
        result = operation(gradient, *args, **kwargs)
        return NotImplemented if result is NotImplemented else gradient.become(result)

    return run


def _zero(gradient: RowGradient) -> RowGradient:
    return gradient.become(RowGradient(gradient.table))


def _copy(target: Any, source: Tensor, *args: Any) -> Any:
    if not isinstance(target, RowGradient):
        return target.copy_(source.to_dense())
    return target.become(source)


def _vector_norm(gradient: RowGradient, ord: Any = 2, dim: Any = None, *args: Any, **kwargs: Any) -> Any:
    if float(ord) != 2 or dim is not None or args or kwargs.get("dtype") is not None:
        return NotImplemented
    return torch.tensor(gradient.norm_squared() ** 0.5, dtype=gradient.dtype).to(
        gradient.table.values.device
    )


def _clamp_max(gradient: RowGradient, high: Any) -> RowGradient:
    return gradient.clamped(None, high)


def _one_by_one(single: Callable, foreach: Callable) -> Callable:
    """An operation on lists: row gradients one by one, all other tensors together by `foreach`."""
    in_place = foreach.__name__.endswith("_")

    def run(gradients: Sequence[Tensor], *args: Any, **kwargs: Any) -> Any:
        results: dict[int, Any] = {}
        for i, gradient in enumerate(gradients):
            if isinstance(gradient, RowGradient):
                own_args = [arg[i] if isinstance(arg, list | tuple) else arg for arg in args]
                results[i] = single(gradient, *own_args, **kwargs)
                if results[i] is NotImplemented:
                    raise NotImplementedError(f"{foreach} of a row gradient with {args}")
        dense = [i for i in range(len(gradients)) if i not in results]
        if dense:
            tensors = [gradients[i] for i in dense]
            dense_args = [
                [arg[i] for i in dense] if isinstance(arg, list | tuple) else arg for arg in args
            ]
            results.update(zip(dense, foreach(tensors, *dense_args, **kwargs) or tensors, strict=True))
        return None if in_place else [results[i] for i in range(len(gradients))]

    return run


def _unscale(gradients: Sequence[Tensor], found_inf: Tensor, inv_scale: Tensor) -> None:
    """Divides by the scale of `torch.amp.GradScaler`, and notes infinities."""
    dense = [gradient for gradient in gradients if not isinstance(gradient, RowGradient)]
    if dense:
        aten._amp_foreach_non_finite_check_and_unscale_(dense, found_inf, inv_scale)
    for gradient in gradients:
        if isinstance(gradient, RowGradient):
            if not torch.isfinite(torch.tensor(gradient.norm_squared())):
                found_inf.fill_(1.0)
            gradient.become(gradient.times(float(inv_scale)))


_mul_in_place, _div_in_place = _in_place(_mul), _in_place(_div)
_clamp_in_place, _clamp_max_in_place = _in_place(RowGradient.clamped), _in_place(_clamp_max)
HANDLERS.update(
    {
        aten.detach.default: RowGradient.alias,
        aten.alias.default: RowGradient.alias,
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
        aten.neg.default: lambda gradient: gradient.times(-1.0),
        aten.zero_.default: _zero,
        aten.zeros_like.default: _empty,
        aten.copy_.default: _copy,
        aten.linalg_vector_norm.default: _vector_norm,
        aten.norm.Scalar: _vector_norm,
        aten.clamp.default: RowGradient.clamped,
        aten.clamp_.default: _clamp_in_place,
        aten.clamp_min_.default: _clamp_in_place,
        aten.clamp_max_.default: _clamp_max_in_place,
        aten._foreach_norm.Scalar: _one_by_one(_vector_norm, torch._foreach_norm),
        aten._foreach_mul.Scalar: _one_by_one(_mul, torch._foreach_mul),
        aten._foreach_mul.Tensor: _one_by_one(_mul, torch._foreach_mul),
        aten._foreach_mul_.Scalar: _one_by_one(_mul_in_place, torch._foreach_mul_),
        aten._foreach_mul_.Tensor: _one_by_one(_mul_in_place, torch._foreach_mul_),
        aten._foreach_div_.Scalar: _one_by_one(_div_in_place, torch._foreach_div_),
        aten._foreach_div_.Tensor: _one_by_one(_div_in_place, torch._foreach_div_),
        aten._foreach_zero_.default: _one_by_one(_zero, torch._foreach_zero_),
        aten._foreach_clamp_min_.Scalar: _one_by_one(_clamp_in_place, torch._foreach_clamp_min_),
        aten._foreach_clamp_max_.Scalar: _one_by_one(_clamp_max_in_place, torch._foreach_clamp_max_),
        aten._amp_foreach_non_finite_check_and_unscale_.default: _unscale,
    }
)
