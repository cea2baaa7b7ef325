"""The co-action unit of CAN: a small network per sample, on powers of its list's vectors."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from ctypes import c_int64

import torch
from torch import Tensor

from hotrows.ops.layers.by_device import by_device, gpu_op
from hotrows.ops.layers.jagged import samples_of, sum_by_sample
from hotrows.runtime.native import call, core, takes


def co_action(
    weights: Tensor,
    inputs: Tensor,
    offsets: Tensor,
    sizes: Sequence[int],
    orders: int,
    shared_orders: bool,
) -> Tensor:
    """Each sample's own network over powers of its list's vectors, summed over the list.

    weights: [B, P] or, unless the orders share them, [B, orders * P]: the matrices of all layers,
    [sizes[l], sizes[l + 1]] each, end to end; inputs: [N, sizes[0]]. For order o = 1, 2, ... the
    network reads inputs^o; tanh follows every layer but the last. Returns the sums over the list of
    the outputs of all layers, order after order: [B, orders * (sizes[1] + ... + sizes[-1])].

    sizes = (1, 1), orders = 2, weights = [[2.]], inputs = [[3.], [1.]]  ->  [[8., 20.]]
    """
    if not takes(weights, inputs):
        return by_device(co_action_reference, weights, inputs, offsets, sizes, orders, shared_orders)
    assert offsets.dtype == torch.int64 and int(offsets[-1]) == len(inputs), "lists of other rows"
    weights, inputs, offsets = weights.contiguous(), inputs.contiguous(), offsets.contiguous()
    out = weights.new_empty(len(weights), orders * sum(sizes[1:]))
    network = (c_int64 * len(sizes))(*sizes), len(sizes) - 1, orders, shared_orders
    call(core(), "co_action", weights, inputs, offsets, len(weights), *network, out)
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
    """Gradients of weights and inputs, from that of the result."""
    if not takes(grad, weights, inputs):
        return by_device(
            co_action_backward_reference, grad, weights, inputs, offsets, sizes, orders, shared_orders
        )
    grad, offsets = grad.contiguous(), offsets.contiguous()
    weights, inputs = weights.contiguous(), inputs.contiguous()
    grads = torch.empty_like(weights), torch.empty_like(inputs)
    network = (c_int64 * len(sizes))(*sizes), len(sizes) - 1, orders, shared_orders
    arguments = grad, weights, inputs, offsets, len(weights), *network, *grads
    call(core(), "co_action_backward", *arguments)
    return grads


@gpu_op("co_action")
def co_action_reference(
    weights: Tensor,
    inputs: Tensor,
    offsets: Tensor,
    sizes: Sequence[int],
    orders: int,
    shared_orders: bool,
) -> Tensor:
    sample = samples_of(offsets, len(inputs))  # [N]
    matrices = _matrices(weights, sizes, 1 if shared_orders else orders)
    outputs = []
    for order in range(orders):
        x = inputs ** (order + 1)  # [N, sizes[0]]
        layers = matrices[0 if shared_orders else order]
        for place, matrix in enumerate(layers):
            x = torch.einsum("ni,nio->no", x, matrix[sample])  # [N, sizes[place + 1]]
            x = x if place == len(layers) - 1 else torch.tanh(x)
            outputs.append(x)
    return sum_by_sample(torch.cat(outputs, 1), offsets)


@gpu_op("co_action")
def co_action_backward_reference(
    grad: Tensor,
    weights: Tensor,
    inputs: Tensor,
    offsets: Tensor,
    sizes: Sequence[int],
    orders: int,
    shared_orders: bool,
) -> tuple[Tensor, Tensor]:
    """Gradients by PyTorch's own differentiation of the formula."""
    with torch.enable_grad():
        leaves = weights.detach().requires_grad_(), inputs.detach().requires_grad_()
        out = co_action_reference(*leaves, offsets, sizes, orders, shared_orders)
    grad_weights, grad_inputs = torch.autograd.grad(out, leaves, grad)
    return grad_weights, grad_inputs


def _matrices(weights: Tensor, sizes: Sequence[int], copies: int) -> list[list[Tensor]]:
    """The [B, in, out] matrices of the layers, for each copy."""
    pairs = list(itertools.pairwise(sizes))
    parts = iter(weights.split([i * o for i, o in pairs] * copies, 1))
    return [[next(parts).unflatten(1, pair) for pair in pairs] for _ in range(copies)]
