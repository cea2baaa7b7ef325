"""Attention over lists of vectors in plain PyTorch: the specification of `cpu_attention`.

A jagged batch is [N, D] vectors and [B + 1] offsets; `sample` is the sample of each vector.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hotrows.ops.reference_jagged import highest_by_sample, samples_of, sum_by_sample


def target_projection(
    queries: Tensor, keys: Tensor, offsets: Tensor, weight: Tensor, bias: Tensor | None
) -> Tensor:
    """y_n = weight [q, k_n, q - k_n, q * k_n] + bias, q the query of n's sample: [N, H].

    queries: [B, D], keys: [N, D], weight: [H, 4D], bias: [H].
    """
    out = _pairs(queries, keys, offsets) @ weight.t()
    return out if bias is None else out + bias


def target_projection_backward(
    grad: Tensor, queries: Tensor, keys: Tensor, offsets: Tensor, weight: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of queries, keys, weight and bias."""
    by_query, by_key, by_difference, by_product = (grad @ weight).chunk(4, dim=1)  # [N, D]
    each_query = queries[samples_of(offsets, len(keys))]
    grad_queries = by_query + by_difference + by_product * keys
    return (
        sum_by_sample(grad_queries, offsets),
        by_key - by_difference + by_product * each_query,
        grad.t() @ _pairs(queries, keys, offsets),
        grad.sum(0),
    )


def softmax_jagged(scores: Tensor, offsets: Tensor) -> Tensor:
    """The softmax over each sample's scores: [N] -> [N].

    scores = [0., 0., 5.], offsets = [0, 2, 2, 3]  ->  [0.5, 0.5, 1.]
    """
    sample = samples_of(offsets, len(scores))
    powers = (scores - highest_by_sample(scores, offsets)[sample]).exp()
    return powers / sum_by_sample(powers, offsets)[sample]


def softmax_jagged_backward(grad: Tensor, weights: Tensor, offsets: Tensor) -> Tensor:
    """The gradient of the scores, from the weights that the softmax returned."""
    mean = sum_by_sample(grad * weights, offsets)
    return weights * (grad - mean[samples_of(offsets, len(grad))])


def weighted_sum(weights: Tensor, values: Tensor, offsets: Tensor) -> Tensor:
    """out[b] = sum of weights[n] values[n] over the sample's n: [N], [N, D] -> [B, D]."""
    return sum_by_sample(weights[:, None] * values, offsets)


def jagged_dot(queries: Tensor, keys: Tensor, offsets: Tensor) -> Tensor:
    """out[n] = queries[b] . keys[n], b the sample of n: [B, D], [N, D] -> [N]."""
    return (queries[samples_of(offsets, len(keys))] * keys).sum(1)


def weighted_copies(weights: Tensor, queries: Tensor, offsets: Tensor) -> Tensor:
    """out[n] = weights[n] queries[b], b the sample of n: [N], [B, D] -> [N, D].

    With `weighted_sum` and `jagged_dot` the three gradients of sum over n of w_n (q_b . k_n).
    """
    return weights[:, None] * queries[samples_of(offsets, len(weights))]


def _pairs(queries: Tensor, keys: Tensor, offsets: Tensor) -> Tensor:
    q = queries[samples_of(offsets, len(keys))]
    return torch.cat([q, keys, q - keys, q * keys], dim=1)  # [N, 4D]
