"""The co-action unit of CAN: a small network per sample, on powers of its list's vectors."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from ctypes import c_int64

import torch
from torch import Tensor

from hotrows.ops.layers.attention import checked_offsets
from hotrows.ops.layers.by_device import by_device, gpu_op
from hotrows.ops.layers.jagged import samples_of, sum_by_sample
from hotrows.runtime.native import call, takes


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
    offsets = checked_offsets(offsets, len(weights), len(inputs))
    weights, inputs = weights.contiguous(), inputs.contiguous()
    out = weights.new_empty(len(weights), orders * sum(sizes[1:]))
    call(
        "co_action", weights, inputs, offsets, len(weights),
        (c_int64 * len(sizes))(*sizes), len(sizes) - 1, orders, shared_orders, out,
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
    """Gradients of weights and inputs, from that of the result."""
    if not takes(grad, weights, inputs):
        return by_device(
            co_action_backward_reference, grad, weights, inputs, offsets, sizes, orders, shared_orders
        )
    grad, offsets = grad.contiguous(), offsets.contiguous()
    weights, inputs = weights.contiguous(), inputs.contiguous()
    grads = torch.empty_like(weights), torch.empty_like(inputs)
    call(
        "co_action_backward", grad, weights, inputs, offsets, len(weights),
        (c_int64 * len(sizes))(*sizes), len(sizes) - 1, orders, shared_orders, *grads,
    )  # fmt: skip
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
    sample = samples_of(offsets, len(inputs)).clamp(max=len(weights) - 1)  # [N]
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
    sample = samples_of(offsets, len(inputs)).clamp(max=len(weights) - 1)  # [N]
    copies = 1 if shared_orders else orders
    matrices = _matrices(weights, sizes, copies)
    grads = [[torch.zeros_like(matrix) for matrix in layers] for layers in matrices]
    grad_inputs, by_output = torch.zeros_like(inputs), list(grad[sample].split([*sizes[1:]] * orders, 1))
    for order in reversed(range(orders)):
        copy = 0 if shared_orders else order
        reads = [inputs ** (order + 1)]  # of each layer, [N, in]
        for matrix in matrices[copy][:-1]:
            reads.append(torch.tanh(torch.einsum("ni,nio->no", reads[-1], matrix[sample])))
        back = torch.zeros_like(by_output[-1])
        for place in reversed(range(len(reads))):
            back = back + by_output.pop()  # [N, out]
            if place < len(reads) - 1:
                back = back * (1 - reads[place + 1].square())
            products = reads[place][:, :, None] * back[:, None, :]  # [N, in, out]
            grads[copy][place] += sum_by_sample(products, offsets)
            back = torch.einsum("no,nio->ni", back, matrices[copy][place][sample])
        grad_inputs += back * (order + 1) * inputs**order
    return torch.cat([g.flatten(1) for layers in grads for g in layers], 1), grad_inputs


def _matrices(weights: Tensor, sizes: Sequence[int], copies: int) -> list[list[Tensor]]:
    """The [B, in, out] matrices of the layers, for each copy."""
    pairs = list(itertools.pairwise(sizes))
    parts = iter(weights.split([i * o for i, o in pairs] * copies, 1))
    return [[next(parts).unflatten(1, pair) for pair in pairs] for _ in range(copies)]
