"""The co-action unit on the native core: as in `reference_co_action`."""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import CDLL, Array, c_int64

import torch
from torch import Tensor

from hotrows import native
from hotrows.native import pointer


def takes(weights: Tensor, inputs: Tensor) -> bool:
    """Whether the core has a kernel for tensors of these devices and dtypes; not in a compiled graph."""
    on_core = all(t.device.type == "cpu" and t.dtype == torch.float32 for t in (weights, inputs))
    return on_core and not torch.compiler.is_compiling() and native.load() is not None


def co_action(
    weights: Tensor,
    inputs: Tensor,
    offsets: Tensor,
    sizes: Sequence[int],
    orders: int,
    shared_orders: bool,
) -> Tensor:
    assert offsets.dtype == torch.int64 and int(offsets[-1]) == len(inputs), "lists of other rows"
    weights, inputs, offsets = weights.contiguous(), inputs.contiguous(), offsets.contiguous()
    out = weights.new_empty(len(weights), orders * sum(sizes[1:]))
    _core().hotrows_co_action(
        pointer(weights), pointer(inputs), pointer(offsets), c_int64(len(weights)),
        _numbers(sizes), c_int64(len(sizes) - 1), c_int64(orders), int(shared_orders), pointer(out),
    )  # fmt: skip
    return out


def co_action_backward(
    grad: Tensor,
    weights: Tensor,
    inputs: Tensor,
    offsets: Tensor,
    sizes: Sequence[int],
    orders: int,
    shared_orders: bool,
) -> tuple[Tensor, Tensor]:
    grad, offsets = grad.contiguous(), offsets.contiguous()
    weights, inputs = weights.contiguous(), inputs.contiguous()
    grad_weights, grad_inputs = torch.empty_like(weights), torch.empty_like(inputs)
    _core().hotrows_co_action_backward(
        pointer(grad), pointer(weights), pointer(inputs), pointer(offsets), c_int64(len(weights)),
        _numbers(sizes), c_int64(len(sizes) - 1), c_int64(orders), int(shared_orders),
        pointer(grad_weights), pointer(grad_inputs),
    )  # fmt: skip
    return grad_weights, grad_inputs


def _core() -> CDLL:
    core = native.load()
    assert core is not None, "asked without `takes`"
    return core


def _numbers(sizes: Sequence[int]) -> Array[c_int64]:
    return (c_int64 * len(sizes))(*sizes)
