"""The co-action unit of CAN (Bian et al. 2022): one feature's row is an MLP, another's its input."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from hotrows.ops import co_action as ops


class CoAction(nn.Module):
    """weights [B, num_parameters], inputs [N, sizes[0]], offsets [B + 1] -> [B, num_outputs].

    Each sample's weights are the matrices of an MLP without biases, [sizes[l], sizes[l + 1]] end to
    end. It reads each element of the sample's list, and its powers up to `orders`; tanh follows all
    layers but the last. The outputs of all layers are summed over the list, side by side by order and
    layer: zeros where it is empty. All numbers are float32, under autocast too.

    shared_orders: every power goes through the same weights (authors' code, order_indep=False), or
    through weights of its own.

    Source: section 3.3, and github.com/CAN-Paper/Co-Action-Network, script/model.py.
    """

    def __init__(
        self, sizes: Sequence[int] = (16, 8, 4), orders: int = 3, *, shared_orders: bool = True
    ) -> None:
        super().__init__()
        if len(sizes) < 2 or min(sizes) < 1 or orders < 1:
            raise ValueError(
                f"CoAction needs at least two positive sizes and one order, not sizes={tuple(sizes)}, "
                f"orders={orders}"
            )
        self.sizes, self.orders, self.shared_orders = tuple(sizes), orders, shared_orders

    @property
    def num_parameters(self) -> int:
        """P, how many numbers a sample's weights are."""
        each = sum(a * b for a, b in itertools.pairwise(self.sizes))
        return each * (1 if self.shared_orders else self.orders)

    @property
    def num_outputs(self) -> int:
        return self.orders * sum(self.sizes[1:])

    def forward(self, weights: Tensor, inputs: Tensor, offsets: Tensor) -> Tensor:
        if weights.shape[1] != self.num_parameters or inputs.shape[1] != self.sizes[0]:
            raise ValueError(
                f"CoAction of sizes {self.sizes} needs weights [B, {self.num_parameters}] and inputs "
                f"[N, {self.sizes[0]}], not {list(weights.shape)} and {list(inputs.shape)}"
            )
        unit = (self.sizes, self.orders, self.shared_orders)
        return _CoAction.apply(weights, inputs, offsets, unit)


class _CoAction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, weights, inputs, offsets, unit):
        ctx.save_for_backward(weights, inputs, offsets)
        ctx.unit = unit
        return ops.co_action(weights, inputs, offsets, *unit)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad):
        return *ops.co_action_backward(grad, *ctx.saved_tensors, *ctx.unit), None, None
