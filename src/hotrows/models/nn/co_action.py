"""The co-action unit of CAN (Bian et al. 2022): one id's row as a network over another's vectors."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from hotrows.models.nn.jagged_products import Lists, widened
from hotrows.ops.layers import co_action, padded
from hotrows.ops.layers.padded import PaddedLists


class CoAction(nn.Module):
    """weights [B, P], inputs [N, sizes[0]] and offsets [B + 1] -> [B, orders * sum(sizes[1:])].

    weights: each sample's own small network, looked up by its target: the matrices of all layers,
    [sizes[l], sizes[l + 1]] each, end to end, without biases. inputs: the vectors of its history.
    For order o from 1 to `orders` the network reads inputs^o, with tanh after every layer but the
    last; the outputs of all layers, order after order, are summed over the history. A sample
    without one has zeros.

    shared_orders: whether one network serves all orders, as in the authors' published runs, or
    each has its own, end to end in a row `orders` times as long (their `order_indep`).

    There are no parameters here: those are rows of an embedding table, `num_parameters` wide.
    """

    def __init__(
        self, sizes: Sequence[int] = (16, 8, 4), orders: int = 3, shared_orders: bool = True
    ) -> None:
        super().__init__()
        if len(sizes) < 2 or min(sizes) < 1 or orders < 1:
            raise ValueError(
                "CoAction needs at least two positive sizes and one order, "
                f"not sizes={tuple(sizes)}, orders={orders}"
            )
        self.sizes, self.orders, self.shared_orders = tuple(sizes), orders, shared_orders

    def forward(self, weights: Tensor, inputs: Tensor, offsets: Lists) -> Tensor:
        network = self.sizes, self.orders, self.shared_orders
        if isinstance(offsets, PaddedLists):
            return padded.co_action(widened(weights), widened(inputs), offsets, *network)
        width = self.num_parameters(self.sizes, self.orders, self.shared_orders)
        if weights.shape != (len(offsets) - 1, width):
            raise ValueError(
                f"weights must be [{len(offsets) - 1}, {width}], a network for each sample, "
                f"not {list(weights.shape)}"
            )
        if inputs.ndim != 2 or inputs.shape[1] != self.sizes[0]:
            raise ValueError(f"inputs must be [N, {self.sizes[0]}], not {list(inputs.shape)}")
        with torch.autocast(inputs.device.type, enabled=False):
            return _CoAction.apply(widened(weights), widened(inputs), offsets, *network)

    def extra_repr(self) -> str:
        return f"sizes={self.sizes}, orders={self.orders}, shared_orders={self.shared_orders}"

    @staticmethod
    def num_parameters(
        sizes: Sequence[int] = (16, 8, 4), orders: int = 3, shared_orders: bool = True
    ) -> int:
        """P, the width of `weights`."""
        per_order = sum(before * after for before, after in itertools.pairwise(sizes))
        return per_order * (1 if shared_orders else orders)

    @staticmethod
    def num_outputs(sizes: Sequence[int] = (16, 8, 4), orders: int = 3) -> int:
        return orders * sum(sizes[1:])


class _CoAction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, weights, inputs, offsets, sizes, orders, shared_orders):
        ctx.save_for_backward(weights, inputs, offsets)
        ctx.network = sizes, orders, shared_orders
        return co_action.co_action(weights, inputs, offsets, *ctx.network)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad):
        with torch.autocast(grad.device.type, enabled=False):
            gradients = co_action.co_action_backward(grad, *ctx.saved_tensors, *ctx.network)
        return *gradients, None, None, None, None
