"""The co-action unit in plain PyTorch: the specification."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor

from hotrows.ops.reference import bags_of


def co_action(
    weights: Tensor,
    inputs: Tensor,
    offsets: Tensor,
    sizes: Sequence[int],
    orders: int,
    shared: bool,
) -> Tensor:
    """[B, orders * sum(sizes[1:])]: a sample's own MLP reads each of its elements; outputs are summed.

    weights: [B, P], the matrices [sizes[l], sizes[l + 1]] of the layers, end to end, and unless
    `shared` those of the next order behind; inputs: [N, sizes[0]]; offsets: [B + 1]. For each order o
    the MLP reads inputs^o, with tanh after all layers but the last; all layers' outputs count.
    """
    sample = bags_of(offsets)
    own = weights[sample]  # [N, P]: what the native core never makes
    outputs, at = [], 0
    for order in range(1, orders + 1):
        at = 0 if shared else at
        h = inputs**order
        for layer, (num_in, num_out) in enumerate(itertools.pairwise(sizes)):
            matrix = own[:, at : at + num_in * num_out].view(-1, num_in, num_out)
            at += num_in * num_out
            h = torch.einsum("ni,nij->nj", h, matrix)
            h = h.tanh() if layer < len(sizes) - 2 else h
            outputs.append(h)
    together = torch.cat(outputs, 1)
    return together.new_zeros(len(weights), together.shape[1]).index_add(0, sample, together)


def co_action_backward(
    grad: Tensor,
    weights: Tensor,
    inputs: Tensor,
    offsets: Tensor,
    sizes: Sequence[int],
    orders: int,
    shared: bool,
) -> tuple[Tensor, Tensor]:
    """The gradients of weights and inputs."""
    with torch.enable_grad():
        leaves = weights.detach().requires_grad_(), inputs.detach().requires_grad_()
        out = co_action(*leaves, offsets, sizes, orders, shared)
        grad_weights, grad_inputs = torch.autograd.grad(out, leaves, grad)
    return grad_weights, grad_inputs
