"""Attention over lists of vectors: first layer, softmax, weighted sums, dot products.

A jagged batch is [N, D] vectors and [B + 1] int64 offsets: sample b has
vectors[offsets[b] : offsets[b + 1]]. On the native core samples may share lists: those of list r,
starts[r] .. starts[r + 1] - 1, have vectors[offsets[r] : offsets[r + 1]], and what is made of every
sample's list, sample after sample, is [N'] long.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from ctypes import c_float
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hotrows.ops.layers.by_device import by_device, gpu_op
from hotrows.ops.layers.jagged import highest_by_sample, repetitions, samples_of, sum_by_sample
from hotrows.runtime.native import call, codes, takes

TARGET_ACTIVATIONS = codes("target_activation", "sigmoid", "prelu", "relu", "tanh", "none")


def target_projection(
    queries: Tensor,
    keys: Tensor,
    offsets: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    starts: Tensor | None = None,
) -> Tensor:
    """y_n = weight [q, k_n, q - k_n, q * k_n] + bias, q the query of n's sample: [N', H].

    queries: [B, D], keys: [N, D], weight: [H, 4D], bias: [H].
    """
    if not takes(queries, keys, weight, bias):
        return _elsewhere(target_projection_reference, starts, queries, keys, offsets, weight, bias)
    queries, keys, weight = queries.contiguous(), keys.contiguous(), weight.contiguous()
    bias = None if bias is None else bias.contiguous()
    num, lists = _lists(offsets, starts, len(queries), len(keys))
    out = torch.empty(num, len(weight))
    call(
        "target_projection", queries, keys, *lists, weight, bias,
        len(offsets) - 1, queries.shape[1], len(weight), out,
    )  # fmt: skip
    return out


def target_projection_backward(
    grad: Tensor,
    queries: Tensor,
    keys: Tensor,
    offsets: Tensor,
    weight: Tensor,
    more: Tensor | None = None,
    starts: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of queries, keys, weight and bias, from that of y, [N', H].

    more: [N, D], the gradient of the keys by what else reads them, which is added; None: 0.
    """
    if not takes(grad, queries, keys, weight, more):
        return _elsewhere(
            target_projection_backward_reference, starts, grad, queries, keys, offsets, weight, more
        )
    grad, queries, keys = grad.contiguous(), queries.contiguous(), keys.contiguous()
    weight, (_, lists) = weight.contiguous(), _lists(offsets, starts, len(queries), len(keys))
    grad_queries, grad_keys, grad_weight = (torch.empty_like(t) for t in (queries, keys, weight))
    grad_bias = torch.empty(len(weight))
    grads = grad_queries, grad_keys, grad_weight, grad_bias
    call(
        "target_projection_backward", grad, queries, keys, *lists, weight,
        len(offsets) - 1, queries.shape[1], len(weight), *grads,
    )  # fmt: skip
    if more is not None:
        grad_keys += more
    return grads


@dataclass(frozen=True)
class TargetNetwork:
    """How target attention scores a key: sizes of its hidden layers, one of `TARGET_ACTIVATIONS` behind
    each, what scores are multiplied with, and whether their softmax counts."""

    sizes: Tensor
    activation: str
    scale: float
    normalized: bool

    def inputs(self, parameters: Sequence[Tensor | None]) -> tuple[Any, ...]:
        """For the core. parameters: weight and bias of the first layer, those of the others end to end,
        and the slopes of PReLUs end to end."""
        layers = *parameters[:2], self.sizes, len(self.sizes), *parameters[2:]
        return *layers, TARGET_ACTIVATIONS[self.activation], c_float(self.scale), int(self.normalized)


def target_attention(
    network: TargetNetwork, parameters: Sequence[Tensor | None], queries: Tensor, keys: Tensor,
    offsets: Tensor, starts: Tensor | None, pooled: bool,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """Target attention on the native core: the weights of keys, [N'], and if pooled their sums, [B, D].

    `nn.TargetAttention` has the formula, layer by layer.
    """
    num, lists = _lists(offsets, starts, len(queries), len(keys))
    weights, out = torch.empty(num), torch.empty_like(queries) if pooled else None
    call(
        "target_attention",
        queries, keys, *lists, len(offsets) - 1, queries.shape[1], *network.inputs(parameters),
        weights, out,
    )  # fmt: skip
    return weights, out


def target_attention_backward(
    network: TargetNetwork, parameters: Sequence[Tensor | None], queries: Tensor, keys: Tensor,
    offsets: Tensor, starts: Tensor | None, grad: Tensor, weights: Tensor, out: Tensor | None,
) -> list[Tensor | None]:  # fmt: skip
    """Gradients of queries, keys and parameters; grad: of the sums or, where out is None, of weights."""
    if not len(weights):  # whose address is null, as that of what is not given
        return [None if t is None else torch.zeros_like(t) for t in (queries, keys, *parameters)]
    _, lists = _lists(offsets, starts, len(queries), len(keys))
    gradients = [None if t is None else torch.empty_like(t) for t in (queries, keys, *parameters)]
    by = (None, grad) if out is None else (grad, None)
    call(
        "target_attention_backward", *by, weights, out,
        queries, keys, *lists, len(offsets) - 1, queries.shape[1], *network.inputs(parameters),
        *gradients,
    )  # fmt: skip
    return gradients


def softmax_jagged(scores: Tensor, offsets: Tensor) -> Tensor:
    """The softmax over each sample's scores: [N] -> [N].

    scores = [0., 0., 5.], offsets = [0, 2, 2, 3]  ->  [0.5, 0.5, 1.]
    """
    if not takes(scores):
        return by_device(softmax_jagged_reference, scores, offsets)
    scores, size = scores.contiguous(), len(offsets) - 1
    offsets = checked_offsets(offsets, size, len(scores))
    out = torch.empty_like(scores)
    call("softmax_jagged", scores, offsets, size, out)
    return out


def softmax_jagged_backward(grad: Tensor, weights: Tensor, offsets: Tensor) -> Tensor:
    """The gradient of the scores, from the weights that the softmax returned: [N], [N] -> [N]."""
    if not takes(grad, weights):
        return by_device(softmax_jagged_backward_reference, grad, weights, offsets)
    grad, weights, size = grad.contiguous(), weights.contiguous(), len(offsets) - 1
    offsets = checked_offsets(offsets, size, len(weights))
    out = torch.empty_like(weights)
    call("softmax_jagged_backward", grad, weights, offsets, size, out)
    return out


def weighted_sum(
    weights: Tensor, values: Tensor, offsets: Tensor, starts: Tensor | None = None
) -> Tensor:
    """out[b] = sum of weights[n] values[n] over the sample's n: [N'], [N, D] -> [B, D]."""
    if not takes(weights, values):
        return _elsewhere(weighted_sum_reference, starts, weights, values, offsets)
    weights, values = weights.contiguous(), values.contiguous()
    num_lists, width = len(offsets) - 1, values.shape[1]
    size = num_lists if starts is None else int(starts[-1])
    _, lists = _lists(offsets, starts, size, len(values))
    out = torch.empty(size, width)
    call("weighted_sum", weights, values, *lists, num_lists, width, out)
    return out


def jagged_dot(queries: Tensor, keys: Tensor, offsets: Tensor, starts: Tensor | None = None) -> Tensor:
    """out[n] = queries[b] . keys[n], b the sample of n: [B, D], [N, D] -> [N']."""
    if not takes(queries, keys):
        return _elsewhere(jagged_dot_reference, starts, queries, keys, offsets)
    queries, keys = queries.contiguous(), keys.contiguous()
    num, lists = _lists(offsets, starts, len(queries), len(keys))
    out = torch.empty(num)
    call("jagged_dot", queries, keys, *lists, len(offsets) - 1, queries.shape[1], out)
    return out


def jagged_dot_backward(
    grad: Tensor, queries: Tensor, keys: Tensor, offsets: Tensor, starts: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Gradients of queries and keys from that of `jagged_dot`, [N']."""
    if takes(grad, queries, keys):
        lists = offsets, starts
        return weighted_sum(grad, keys, *lists), weighted_copies(grad, queries, *lists)
    return _elsewhere(jagged_dot_backward_reference, starts, grad, queries, keys, offsets)


def weighted_copies(
    weights: Tensor, queries: Tensor, offsets: Tensor, starts: Tensor | None = None
) -> Tensor:
    """out[n] = weights[n] queries[b], b the sample of n, summed over those that share it:
    [N'], [B, D] -> [N, D].

    With `weighted_sum` and `jagged_dot` the three gradients of sum over n of w_n (q_b . k_n).
    """
    if not takes(weights, queries):
        return _elsewhere(weighted_copies_reference, starts, weights, queries, offsets)
    weights, queries = weights.contiguous(), queries.contiguous()
    num = len(weights) if starts is None else int(offsets[-1])
    _, lists = _lists(offsets, starts, len(queries), num)
    out = torch.empty(num, queries.shape[1])
    call("weighted_copies", weights, queries, *lists, len(offsets) - 1, queries.shape[1], out)
    return out


def weighted_sum_backward(
    grad: Tensor, weights: Tensor, values: Tensor, offsets: Tensor, starts: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Gradients of weights and values from that of `weighted_sum`, [B, D]."""
    if takes(grad, weights, values):
        lists = offsets, starts
        return jagged_dot(grad, values, *lists), weighted_copies(weights, grad, *lists)
    return _elsewhere(weighted_sum_backward_reference, starts, grad, weights, values, offsets)


@gpu_op("attention")
def target_projection_reference(
    queries: Tensor, keys: Tensor, offsets: Tensor, weight: Tensor, bias: Tensor | None
) -> Tensor:
    out = _pairs(queries, keys, offsets) @ weight.t()  # [N, H]
    return out if bias is None else out + bias


@gpu_op("attention")
def target_projection_backward_reference(
    grad: Tensor, queries: Tensor, keys: Tensor, offsets: Tensor, weight: Tensor, more: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    by_query, by_key, by_difference, by_product = (grad @ weight).chunk(4, dim=1)  # [N, D]
    each_query = queries[samples_of(offsets, len(keys))]  # [N, D]
    grad_queries = by_query + by_difference + by_product * keys  # [N, D]
    grad_keys = by_key - by_difference + by_product * each_query  # [N, D]
    return (
        sum_by_sample(grad_queries, offsets),  # [B, D]
        grad_keys if more is None else grad_keys + more,
        grad.t() @ _pairs(queries, keys, offsets),  # [H, 4D]
        grad.sum(0),
    )


@gpu_op("softmax")
def softmax_jagged_reference(scores: Tensor, offsets: Tensor) -> Tensor:
    sample = samples_of(offsets, len(scores))
    powers = (scores - highest_by_sample(scores, offsets)[sample]).exp()
    return powers / sum_by_sample(powers, offsets)[sample]


@gpu_op("softmax")
def softmax_jagged_backward_reference(grad: Tensor, weights: Tensor, offsets: Tensor) -> Tensor:
    mean = sum_by_sample(grad * weights, offsets)  # [B]
    return weights * (grad - mean[samples_of(offsets, len(grad))])


@gpu_op("attention")
def weighted_sum_reference(weights: Tensor, values: Tensor, offsets: Tensor) -> Tensor:
    return sum_by_sample(weights[:, None] * values, offsets)


@gpu_op("attention")
def jagged_dot_reference(queries: Tensor, keys: Tensor, offsets: Tensor) -> Tensor:
    return (queries[samples_of(offsets, len(keys))] * keys).sum(1)


@gpu_op("attention")
def weighted_copies_reference(weights: Tensor, queries: Tensor, offsets: Tensor) -> Tensor:
    return weights[:, None] * queries[samples_of(offsets, len(weights))]


@gpu_op("attention")
def weighted_sum_backward_reference(
    grad: Tensor, weights: Tensor, values: Tensor, offsets: Tensor
) -> tuple[Tensor, Tensor]:
    return (
        jagged_dot_reference(grad, values, offsets),
        weighted_copies_reference(weights, grad, offsets),
    )


@gpu_op("attention")
def jagged_dot_backward_reference(
    grad: Tensor, queries: Tensor, keys: Tensor, offsets: Tensor
) -> tuple[Tensor, Tensor]:
    return (
        weighted_sum_reference(grad, keys, offsets),
        weighted_copies_reference(grad, queries, offsets),
    )


def _pairs(queries: Tensor, keys: Tensor, offsets: Tensor) -> Tensor:
    q = queries[samples_of(offsets, len(keys))]  # [N, D]
    return torch.cat([q, keys, q - keys, q * keys], dim=1)  # [N, 4D]


def _elsewhere(reference: Callable[..., Any], starts: Tensor | None, *inputs: Tensor | None) -> Any:
    if starts is not None:
        raise ValueError("samples share lists on the native core alone")
    return by_device(reference, *inputs)


def _lists(
    offsets: Tensor, starts: Tensor | None, num_samples: int, num_vectors: int
) -> tuple[int, tuple[Tensor, Tensor, Tensor | None]]:
    """N', and of the core's `SharedLists` ends, offsets and starts."""
    if starts is None:
        offsets = checked_offsets(offsets, num_samples, num_vectors)
        return num_vectors, (offsets, offsets, None)
    offsets = checked_offsets(offsets, len(offsets) - 1, num_vectors)
    lists = repetitions(offsets, checked_offsets(starts, len(offsets) - 1, num_samples))
    return int(lists[0][-1]), lists


def checked_offsets(offsets: Tensor, size: int, num_vectors: int) -> Tensor:
    """Offsets that the core can follow: nothing that it reads lies outside of the tensors."""
    fits = offsets.shape == (size + 1,) and offsets.dtype == torch.int64
    if fits and size > 0:
        fits = bool(offsets[0] == 0 and offsets[-1] == num_vectors and (offsets.diff() >= 0).all())
    if not fits or (size == 0 and num_vectors > 0):
        raise ValueError(
            f"offsets of {size} samples and {num_vectors} vectors must be {size + 1} int64 values "
            f"that rise from 0 to {num_vectors}, not {offsets}"
        )
    return offsets.contiguous()
