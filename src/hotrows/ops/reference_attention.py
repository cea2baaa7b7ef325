"""Attention over lists of vectors in plain PyTorch: the specification of `cpu_attention`.

A jagged batch is [N, D] vectors and [B + 1] offsets; `sample` is the sample of each vector.
"""

from __future__ import annotations

import torch
from torch import Tensor


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
    each_query = queries[_samples_of(offsets)]
    grad_queries = by_query + by_difference + by_product * keys
    return (
        _sum_by_sample(grad_queries, offsets),
        by_key - by_difference + by_product * each_query,
        grad.t() @ _pairs(queries, keys, offsets),
        grad.sum(0),
    )


def softmax_jagged(scores: Tensor, offsets: Tensor) -> Tensor:
    """The softmax over each sample's scores: [N] -> [N].

    scores = [0., 0., 5.], offsets = [0, 2, 2, 3]  ->  [0.5, 0.5, 1.]
    """
    sample = _samples_of(offsets)
    highest = scores.new_full((len(offsets) - 1,), -torch.inf)
    highest = highest.scatter_reduce(0, sample, scores, "amax")
    powers = (scores - highest[sample]).exp()
    return powers / _sum_by_sample(powers, offsets)[sample]


def softmax_jagged_backward(grad: Tensor, weights: Tensor, offsets: Tensor) -> Tensor:
    """The gradient of the scores, from the weights that the softmax returned."""
    mean = _sum_by_sample(grad * weights, offsets)
    return weights * (grad - mean[_samples_of(offsets)])


def weighted_sum(weights: Tensor, values: Tensor, offsets: Tensor) -> Tensor:
    """out[b] = sum of weights[n] values[n] over the sample's n: [N], [N, D] -> [B, D]."""
    return _sum_by_sample(weights[:, None] * values, offsets)


def jagged_dot(queries: Tensor, keys: Tensor, offsets: Tensor) -> Tensor:
    """out[n] = queries[b] . keys[n], b the sample of n: [B, D], [N, D] -> [N]."""
    return (queries[_samples_of(offsets)] * keys).sum(1)


def weighted_copies(weights: Tensor, queries: Tensor, offsets: Tensor) -> Tensor:
    """out[n] = weights[n] queries[b], b the sample of n: [N], [B, D] -> [N, D].

    With `weighted_sum` and `jagged_dot` the three gradients of sum over n of w_n (q_b . k_n).
    """
    return weights[:, None] * queries[_samples_of(offsets)]


def _samples_of(offsets: Tensor) -> Tensor:
    samples = torch.arange(len(offsets) - 1, device=offsets.device)
    return samples.repeat_interleave(offsets.diff())


def _pairs(queries: Tensor, keys: Tensor, offsets: Tensor) -> Tensor:
    q = queries[_samples_of(offsets)]
    return torch.cat([q, keys, q - keys, q * keys], dim=1)  # [N, 4D]


def _sum_by_sample(values: Tensor, offsets: Tensor) -> Tensor:
    total = values.new_zeros(len(offsets) - 1, *values.shape[1:])
    return total.index_add(0, _samples_of(offsets), values)
