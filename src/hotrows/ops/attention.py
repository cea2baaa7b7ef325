"""Attention over lists of vectors: the native core where it takes the tensors, else PyTorch."""

from __future__ import annotations

from torch import Tensor

from hotrows.ops import cpu_attention, reference_attention


def target_projection(
    queries: Tensor, keys: Tensor, offsets: Tensor, weight: Tensor, bias: Tensor | None
) -> Tensor:
    given = (queries, keys, weight) if bias is None else (queries, keys, weight, bias)
    return _ops(*given).target_projection(queries, keys, offsets, weight, bias)


def target_projection_backward(
    grad: Tensor, queries: Tensor, keys: Tensor, offsets: Tensor, weight: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    ops = _ops(grad, queries, keys, weight)
    return ops.target_projection_backward(grad, queries, keys, offsets, weight)


def softmax_jagged(scores: Tensor, offsets: Tensor) -> Tensor:
    return _ops(scores).softmax_jagged(scores, offsets)


def softmax_jagged_backward(grad: Tensor, weights: Tensor, offsets: Tensor) -> Tensor:
    return _ops(grad, weights).softmax_jagged_backward(grad, weights, offsets)


def weighted_sum(weights: Tensor, values: Tensor, offsets: Tensor) -> Tensor:
    return _ops(weights, values).weighted_sum(weights, values, offsets)


def jagged_dot(queries: Tensor, keys: Tensor, offsets: Tensor) -> Tensor:
    return _ops(queries, keys).jagged_dot(queries, keys, offsets)


def weighted_copies(weights: Tensor, queries: Tensor, offsets: Tensor) -> Tensor:
    return _ops(weights, queries).weighted_copies(weights, queries, offsets)


def _ops(*tensors: Tensor):
    return cpu_attention if cpu_attention.takes(*tensors) else reference_attention
