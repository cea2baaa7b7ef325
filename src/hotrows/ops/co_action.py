"""The co-action unit: the native core where it takes the tensors, else PyTorch."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from hotrows.ops import cpu_co_action, reference_co_action


def co_action(
    weights: Tensor,
    inputs: Tensor,
    offsets: Tensor,
    sizes: Sequence[int],
    orders: int,
    shared_orders: bool,
) -> Tensor:
    ops = _ops(weights, inputs)
    return ops.co_action(weights, inputs, offsets, sizes, orders, shared_orders)


def co_action_backward(
    grad: Tensor,
    weights: Tensor,
    inputs: Tensor,
    offsets: Tensor,
    sizes: Sequence[int],
    orders: int,
    shared_orders: bool,
) -> tuple[Tensor, Tensor]:
    ops = _ops(weights, inputs)
    return ops.co_action_backward(grad, weights, inputs, offsets, sizes, orders, shared_orders)


def _ops(weights: Tensor, inputs: Tensor):
    return cpu_co_action if cpu_co_action.takes(weights, inputs) else reference_co_action
