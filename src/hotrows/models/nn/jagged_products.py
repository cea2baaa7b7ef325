"""Attention's sums over lists of vectors: a softmax of scores, weighted sums, dot products.

A jagged batch is [N, D] vectors and [B + 1] int64 offsets: sample b has
vectors[offsets[b] : offsets[b + 1]]. Nothing is padded, and samples do not touch each other. Narrow
values, as under autocast, are computed in float32. Offsets that do not fit their vectors are a
ValueError on the native core. Where samples share lists, `SharedLists` are in place of offsets.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hotrows.engine.shared_lists import SharedLists
from hotrows.ops.layers import attention, padded
from hotrows.ops.layers.padded import PaddedLists
from hotrows.runtime.native import takes

Lists = Tensor | PaddedLists  # offsets, or in an exported program how lists are padded
_NARROW = (torch.bfloat16, torch.float16)


def softmax_jagged(scores: Tensor, offsets: Lists | SharedLists) -> Tensor:
    """The softmax over each sample's scores: [N] -> [N].

    >>> softmax_jagged(torch.tensor([0.0, 0.0, 5.0]), torch.tensor([0, 2, 2, 3]))
    tensor([0.5000, 0.5000, 1.0000])
    """
    if isinstance(offsets, PaddedLists):
        return padded.softmax(widened(scores), offsets)
    if isinstance(offsets, SharedLists):
        offsets = offsets.sample_offsets
    return _SoftmaxJagged.apply(widened(scores), offsets)


def weighted_sum(weights: Tensor, values: Tensor, offsets: Lists | SharedLists) -> Tensor:
    """Each sample's sum of weights[n] values[n]: [N], [N, D] -> [B, D]; zeros for an empty list.

    >>> values = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    >>> weighted_sum(torch.tensor([2.0, 3.0]), values, torch.tensor([0, 2, 2]))
    tensor([[2., 3.],
            [0., 0.]])
    """
    num = int(offsets.sample_offsets[-1]) if isinstance(offsets, SharedLists) else values.shape[0]
    if weights.shape != (num,):
        raise ValueError(
            "weighted_sum needs one weight for each vector, "
            f"not {list(weights.shape)} for {list(values.shape)}"
        )
    values, offsets, starts = read_by_samples(values, offsets)
    if isinstance(offsets, PaddedLists):
        return padded.weighted_sum(widened(weights), widened(values), offsets)
    return _WeightedSum.apply(widened(weights), widened(values), offsets, starts)


def jagged_dot(queries: Tensor, keys: Tensor, offsets: Lists | SharedLists) -> Tensor:
    """The product of each key with its sample's query: [B, D], [N, D] -> [N].

    >>> keys = torch.tensor([[3.0, 4.0], [5.0, 6.0]])
    >>> jagged_dot(torch.tensor([[1.0, 2.0]]), keys, torch.tensor([0, 2]))
    tensor([11., 17.])
    """
    if queries.shape[1:] != keys.shape[1:]:
        raise ValueError(
            "jagged_dot needs queries and keys of one width, "
            f"not {list(queries.shape)} and {list(keys.shape)}"
        )
    keys, offsets, starts = read_by_samples(keys, offsets)
    if isinstance(offsets, PaddedLists):
        return padded.dot(widened(queries), widened(keys), offsets)
    return _JaggedDot.apply(widened(queries), widened(keys), offsets, starts)


def read_by_samples(values: Tensor, lists: Lists | SharedLists) -> tuple[Tensor, Lists, Tensor | None]:
    """Values, offsets and starts for the core; elsewhere, without starts, a list for each sample."""
    if not isinstance(lists, SharedLists):
        return values, lists, None
    if takes(values) and not lists.one_sample_each:
        return values, lists.offsets, lists.starts
    return lists.repeated(values), lists.sample_offsets, None


def num_real(offsets: Lists | SharedLists) -> Tensor | None:
    """[1] on a GPU: how many vectors are of a sample, which padding may follow there; None: all."""
    return offsets[-1:] if isinstance(offsets, Tensor) and offsets.is_cuda else None


def widened(values: Tensor) -> Tensor:
    return values.float() if values.dtype in _NARROW else values


class _SoftmaxJagged(torch.autograd.Function):
    @staticmethod
    def forward(ctx, scores, offsets):
        weights = attention.softmax_jagged(scores, offsets)
        ctx.save_for_backward(weights, offsets)
        return weights

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad):
        return attention.softmax_jagged_backward(grad, *ctx.saved_tensors), None


class _WeightedSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, weights, values, offsets, starts):
        ctx.save_for_backward(weights, values, offsets, starts)
        return attention.weighted_sum(weights, values, offsets, starts)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad):
        weights, values, *lists = ctx.saved_tensors
        wanted = ctx.needs_input_grad
        if wanted[0] and wanted[1]:
            return *attention.weighted_sum_backward(grad, weights, values, *lists), None, None
        grad_weights = attention.jagged_dot(grad, values, *lists) if wanted[0] else None
        grad_values = attention.weighted_copies(weights, grad, *lists) if wanted[1] else None
        return grad_weights, grad_values, None, None


class _JaggedDot(torch.autograd.Function):
    @staticmethod
    def forward(ctx, queries, keys, offsets, starts):
        ctx.save_for_backward(queries, keys, offsets, starts)
        return attention.jagged_dot(queries, keys, offsets, starts)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad):
        queries, keys, *lists = ctx.saved_tensors
        wanted = ctx.needs_input_grad
        if wanted[0] and wanted[1]:
            return *attention.jagged_dot_backward(grad, queries, keys, *lists), None, None
        grad_queries = attention.weighted_sum(grad, keys, *lists) if wanted[0] else None
        grad_keys = attention.weighted_copies(grad, queries, *lists) if wanted[1] else None
        return grad_queries, grad_keys, None, None
