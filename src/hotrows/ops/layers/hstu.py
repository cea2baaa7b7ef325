"""Pointwise attention of HSTU (Zhai et al. 2024): elements of a list that read others, without a softmax.

A jagged batch is [N, ..] elements and [R + 1] int64 offsets: list r has
elements[offsets[r] : offsets[r + 1]]. Queries are the elements themselves (`starts` is None), each of
which reads those up to its own place; or others, queries[starts[r] : starts[r + 1]] of list r, which
stand behind the list and read all of it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hotrows.ops.layers.attention import checked_offsets
from hotrows.ops.layers.by_device import by_device, gpu_op
from hotrows.ops.layers.jagged import samples_of
from hotrows.runtime.native import call, takes

INTERVALS = 64
"""Of time, two for each power of two of seconds: from 0 s, 1.5 s, 2 s, 3 s, 4 s, .."""


def pointwise_attention(
    queries: Tensor,
    keys: Tensor,
    starts: Tensor | None,
    offsets: Tensor,
    bias: Tensor,
    query_times: Tensor | None = None,
    times: Tensor | None = None,
    time_bias: Tensor | None = None,
) -> Tensor:
    """out_m = sum over n of silu(q_m . k_n + bias[d] + time_bias[i]) v_n / P, by head: [M, W].

    queries: [M, W]; keys: [N, 2W], keys and behind them values; bias: [H, P], by the distance d < P of an
    element from the query, beyond which it is not read. query_times, times: [M] and [N] int64 in seconds;
    time_bias: [H, INTERVALS], by the interval i of their difference; all three or none.
    """
    inputs = queries, keys, starts, offsets, bias, query_times, times, time_bias
    if not takes(queries, keys, bias, time_bias):
        return by_device(pointwise_attention_reference, *inputs)
    out = queries.new_empty(queries.shape)
    call("pointwise_attention", *_native(*inputs), out)
    return out


def pointwise_attention_backward(
    grad: Tensor, *inputs: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Gradients of queries, keys, bias and time_bias; grad: of `pointwise_attention(*inputs)`."""
    queries, keys, _, _, bias, _, _, time_bias = inputs
    if not takes(grad, queries, keys, bias, time_bias):
        return by_device(pointwise_attention_backward_reference, grad, *inputs)
    grad_time_bias = None if time_bias is None else torch.zeros_like(time_bias)
    grads = queries.new_empty(queries.shape), keys.new_empty(keys.shape), torch.zeros_like(bias)
    call("pointwise_attention_backward", grad.contiguous(), *_native(*inputs), *grads, grad_time_bias)
    return *grads, grad_time_bias


def _native(queries, keys, starts, offsets, bias, *of_time):
    """The arguments of the core: rows of queries and keys may be apart."""
    queries, keys = (t if t.stride(1) == 1 else t.contiguous() for t in (queries, keys))
    heads, places = bias.shape
    num_lists = len(offsets) - 1
    offsets = checked_offsets(offsets, num_lists, len(keys))
    starts = None if starts is None else checked_offsets(starts, num_lists, len(queries))
    if starts is None and len(queries) != len(keys):
        raise ValueError(f"expected as many queries as keys, not {len(queries):,} and {len(keys):,}")
    others = (None if t is None else t.contiguous() for t in (bias, *of_time))
    sizes = num_lists, heads, queries.shape[1] // heads, places
    return queries, queries.stride(0), keys, keys.stride(0), starts, offsets, *others, *sizes


@gpu_op("hstu")
def pointwise_attention_reference(
    queries: Tensor, keys: Tensor, starts: Tensor | None, offsets: Tensor, bias: Tensor,
    query_times: Tensor | None, times: Tensor | None, time_bias: Tensor | None,
) -> Tensor:  # fmt: skip
    _, is_read, _, values, _, scores = _pairs(
        queries, keys, starts, offsets, bias, query_times, times, time_bias
    )
    weights = (torch.nn.functional.silu(scores) / bias.shape[1]).masked_fill(~is_read, 0)
    return torch.einsum("mph,mphd->mhd", weights, values).flatten(1)


@gpu_op("hstu")
def pointwise_attention_backward_reference(
    grad: Tensor, queries: Tensor, keys: Tensor, starts: Tensor | None, offsets: Tensor, bias: Tensor,
    query_times: Tensor | None, times: Tensor | None, time_bias: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:  # fmt: skip
    place, is_read, k, v, interval, scores = _pairs(
        queries, keys, starts, offsets, bias, query_times, times, time_bias
    )
    heads, num_places = bias.shape
    g, q = (t.unflatten(1, (heads, -1)) for t in (grad, queries))  # [M, H, D]
    share = scores.sigmoid()
    weights = (scores * share / num_places).masked_fill(~is_read, 0)
    slopes = share * (1 + scores * (1 - share)) / num_places
    by_score = (torch.einsum("mhd,mphd->mph", g, v) * slopes).masked_fill(~is_read, 0)  # [M, P, H]
    by_pair = torch.cat([by_score[..., None] * q[:, None], weights[..., None] * g[:, None]], 2)
    grad_keys = keys.new_zeros(max(len(keys), 1), 2 * heads, q.shape[2])
    grad_keys.index_add_(0, place.flatten(), by_pair.flatten(0, 1))
    by_time = None
    if interval is not None:
        by_time = bias.new_zeros(INTERVALS, heads).index_add_(
            0, interval.flatten(), by_score.flatten(0, 1)
        )
    grad_queries = torch.einsum("mph,mphd->mhd", by_score, k).flatten(1)
    return (
        grad_queries,
        grad_keys[: len(keys)].flatten(1),
        by_score.sum(0).t(),
        None if by_time is None else by_time.t(),
    )


def _pairs(queries, keys, starts, offsets, bias, query_times, times, time_bias):
    """Of each query and distance: the element's place [M, P], whether it is read [M, P, 1], its key and
    value [M, P, H, D], the interval of time [M, P] or None, and the score [M, P, H]."""
    heads, num_places = bias.shape
    numbers = torch.arange(len(queries), device=queries.device)
    bounds = offsets if starts is None else starts
    lists = samples_of(bounds, len(queries)).clamp(max=len(offsets) - 2)
    ends = offsets[lists + 1]
    stands_at = numbers if starts is None else ends
    place = stands_at[:, None] - torch.arange(num_places, device=queries.device)
    is_read = (place >= offsets[lists][:, None]) & (place < ends[:, None])
    is_read &= (numbers < bounds[-1])[:, None]  # behind are no lists
    place = place.masked_fill(~is_read, 0)
    if len(keys) == 0:  # so that there is one to index
        keys, times = (None if t is None else t.new_zeros(1, *t.shape[1:]) for t in (keys, times))
    pairs = keys[place].unflatten(2, (2 * heads, -1))  # [M, P, 2H, D]
    k, v = pairs.masked_fill(~is_read[..., None, None], 0).split(heads, 2)
    scores = torch.einsum("mhd,mphd->mph", queries.unflatten(1, (heads, -1)), k) + bias.t()
    interval = None
    if times is not None:
        seconds = (query_times[:, None] - times[place]).clamp(min=1)
        interval = ((seconds.float().view(torch.int32) >> 22) - 254).clamp(max=INTERVALS - 1).long()
        scores = scores + time_bias.t()[interval]
    return place, is_read[..., None], k, v, interval, scores
