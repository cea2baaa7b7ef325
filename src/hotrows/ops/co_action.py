"""The co-action unit of CAN: the native core where it takes the tensors, else PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import CDLL, c_int, c_int64

import torch
from torch import Tensor

from hotrows import native
from hotrows.native import pointer
from hotrows.ops import reference_co_action

_MOST_LAYERS = 8


def co_action(
    weights: Tensor,
    inputs: Tensor,
    offsets: Tensor,
    sizes: Sequence[int],
    orders: int,
    shared: bool,
) -> Tensor:
    """As `reference_co_action` has it."""
    core = _core(sizes, weights, inputs)
    if core is None:
        return reference_co_action.co_action(weights, inputs, offsets, sizes, orders, shared)
    weights, inputs, offsets = weights.contiguous(), inputs.contiguous(), offsets.contiguous()
    out = weights.new_empty(len(weights), orders * sum(sizes[1:]))
    core.hotrows_co_action(
        pointer(weights), pointer(inputs), pointer(offsets), c_int64(len(weights)),
        *_unit(sizes, orders, shared), pointer(out),
    )  # fmt: skip
    return out


def co_action_backward(
    grad: Tensor,
    weights: Tensor,
    inputs: Tensor,
    offsets: Tensor,
    sizes: Sequence[int],
    orders: int,
    shared: bool,
) -> tuple[Tensor, Tensor]:
    core = _core(sizes, grad, weights, inputs)
    if core is None:
        return reference_co_action.co_action_backward(
            grad, weights, inputs, offsets, sizes, orders, shared
        )
    grad, weights, inputs = grad.contiguous(), weights.contiguous(), inputs.contiguous()
    offsets = offsets.contiguous()
    grad_weights, grad_inputs = torch.empty_like(weights), torch.empty_like(inputs)
    core.hotrows_co_action_backward(
        pointer(grad), pointer(weights), pointer(inputs), pointer(offsets), c_int64(len(weights)),
        *_unit(sizes, orders, shared), pointer(grad_weights), pointer(grad_inputs),
    )  # fmt: skip
    return grad_weights, grad_inputs


def _core(sizes: Sequence[int], *tensors: Tensor) -> CDLL | None:
    fits = all(t.device.type == "cpu" and t.dtype == torch.float32 for t in tensors)
    return native.load() if fits and len(sizes) <= _MOST_LAYERS + 1 else None


def _unit(sizes: Sequence[int], orders: int, shared: bool) -> list:
    return [(c_int64 * len(sizes))(*sizes), c_int(len(sizes) - 1), c_int(orders), c_int(shared)]
