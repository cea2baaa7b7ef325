"""HSTU's pointwise attention on the GPU: queries, or elements, in tiles that may be of several lists.

A tile goes over all that any of its positions reads; pairs of different lists, or too far apart, add
nothing. Positions behind the last list get zeros. A query's `place` is its own among the elements, or the
end of its list. Formulas: `ops.layers.hstu`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from hotrows.ops.triton import launch
from hotrows.ops.triton.lists import samples_of, search_of

_TILE = 32  # of queries, of elements, and of distances
_MOST_WIDTH = 128  # of a head
_MOST_CHUNKS = 128  # of queries, each summed by itself into the gradient of the bias


def takes(*arguments: Tensor | None) -> bool:
    """Bias of distances alone, heads that fit a tile."""
    *_, queries, _, _, _, bias, _, _, time_bias = arguments
    assert queries is not None and bias is not None
    return time_bias is None and queries.shape[1] <= _MOST_WIDTH * len(bias)


def pointwise_attention(
    queries: Tensor, keys: Tensor, starts: Tensor | None, offsets: Tensor, bias: Tensor, *_: None
) -> Tensor:
    out = queries.new_empty(queries.shape)
    if out.numel() > 0:
        lists, sizes = _lists(starts, offsets), _sizes(queries, starts, bias)
        grid = launch.cdiv(len(queries), _TILE), len(bias)
        _attend[grid](queries, keys, *lists, bias, out, len(queries), **sizes)
    return out


def pointwise_attention_backward(
    grad: Tensor, queries: Tensor, keys: Tensor, starts: Tensor | None, offsets: Tensor, bias: Tensor,
    *_: None,
) -> tuple[Tensor, Tensor, Tensor, None]:  # fmt: skip
    if queries.numel() == 0:
        return torch.empty_like(queries), torch.zeros_like(keys), torch.zeros_like(bias), None
    grad_queries, grad_keys = queries.new_empty(queries.shape), keys.new_empty(keys.shape)
    lists, sizes = _lists(starts, offsets), _sizes(queries, starts, bias)
    num, num_tiles, heads = len(queries), launch.cdiv(len(queries), _TILE), len(bias)
    _attend_back[num_tiles, heads](grad, queries, keys, *lists, bias, grad_queries, num, **sizes)
    if len(keys) > 0:
        _keys_back[launch.cdiv(len(keys), _TILE), heads](
            grad, queries, keys, *lists, bias, grad_keys, len(keys), **sizes
        )
    num_chunks = min(num_tiles, _MOST_CHUNKS)
    chunks = bias.new_empty(num_chunks, *bias.shape)
    _bias_back[num_chunks, heads, launch.cdiv(bias.shape[1], _TILE)](
        grad, queries, keys, *lists, bias, chunks, num, launch.cdiv(num_tiles, num_chunks), **sizes
    )
    return grad_queries, grad_keys, chunks.sum(0), None


def _lists(starts: Tensor | None, offsets: Tensor) -> tuple:
    """Where queries of lists begin, where elements do, the number of lists, and the steps of a search."""
    first, num_lists, num_steps = search_of(offsets if starts is None else starts)
    return first, offsets, num_lists, num_steps


def _sizes(queries: Tensor, starts: Tensor | None, bias: Tensor) -> dict:
    heads, places = bias.shape
    width = queries.shape[1] // heads
    tile = {"B": _TILE, "BD": max(launch.next_power_of_2(width), 16), "PRECISION": launch.products()}
    return {"H": heads, "D": width, "P": places, "CAUSAL": starts is None, **tile}


@triton.jit(do_not_specialize=["num_lists", "num_steps", "num"])
def _attend(
    p_queries, p_keys, p_starts, p_offsets, num_lists, num_steps, p_bias, p_out, num,
    H: tl.constexpr, D: tl.constexpr, P: tl.constexpr, CAUSAL: tl.constexpr, B: tl.constexpr,
    BD: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    i_h = tl.program_id(1)
    o_m, o_d = tl.program_id(0).to(tl.int64) * B + tl.arange(0, B), tl.arange(0, BD)
    b_place, b_low, b_high = _reach(p_starts, p_offsets, num_lists, num_steps, o_m, num, P, CAUSAL)
    # [B, BD]
    b_q = _load(p_queries + i_h * D, o_m, o_m < num, H * D, o_d, D)
    b_out = tl.zeros([B, BD], tl.float32)
    for first in range(tl.min(b_low, axis=0), tl.max(b_high, axis=0), B):
        m_pair, _, b_v, b_score = _read(
            p_keys, p_bias, b_q, b_place, b_low, b_high, first + tl.arange(0, B), o_d, i_h, H, D, P,
            PRECISION,
        )  # fmt: skip
        b_weight = tl.where(m_pair, b_score * tl.sigmoid(b_score) / P, 0.0)
        b_out = tl.dot(b_weight, b_v, b_out, input_precision=PRECISION)
    _store(p_out + i_h * D, o_m, o_m < num, H * D, o_d, D, b_out)


@triton.jit(do_not_specialize=["num_lists", "num_steps", "num"])
def _attend_back(
    p_grad, p_queries, p_keys, p_starts, p_offsets, num_lists, num_steps, p_bias, p_grad_queries, num,
    H: tl.constexpr, D: tl.constexpr, P: tl.constexpr, CAUSAL: tl.constexpr, B: tl.constexpr,
    BD: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    i_h = tl.program_id(1)
    o_m, o_d = tl.program_id(0).to(tl.int64) * B + tl.arange(0, B), tl.arange(0, BD)
    b_place, b_low, b_high = _reach(p_starts, p_offsets, num_lists, num_steps, o_m, num, P, CAUSAL)
    b_q = _load(p_queries + i_h * D, o_m, o_m < num, H * D, o_d, D)
    b_g = _load(p_grad + i_h * D, o_m, o_m < num, H * D, o_d, D)
    b_grad = tl.zeros([B, BD], tl.float32)
    for first in range(tl.min(b_low, axis=0), tl.max(b_high, axis=0), B):
        m_pair, b_k, b_v, b_score = _read(
            p_keys, p_bias, b_q, b_place, b_low, b_high, first + tl.arange(0, B), o_d, i_h, H, D, P,
            PRECISION,
        )  # fmt: skip
        b_by_weight = tl.dot(b_g, tl.trans(b_v), input_precision=PRECISION)
        b_by_score = tl.where(m_pair, b_by_weight * _slope(b_score) / P, 0.0)
        b_grad = tl.dot(b_by_score, b_k, b_grad, input_precision=PRECISION)
    _store(p_grad_queries + i_h * D, o_m, o_m < num, H * D, o_d, D, b_grad)


@triton.jit(do_not_specialize=["num_lists", "num_steps", "num"])
def _keys_back(
    p_grad, p_queries, p_keys, p_starts, p_offsets, num_lists, num_steps, p_bias, p_grad_keys, num,
    H: tl.constexpr, D: tl.constexpr, P: tl.constexpr, CAUSAL: tl.constexpr, B: tl.constexpr,
    BD: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The gradients of keys and values, over the queries from `b_first` to `b_last` that read each."""
    i_h = tl.program_id(1)
    o_n, o_d = tl.program_id(0).to(tl.int64) * B + tl.arange(0, B), tl.arange(0, BD)
    b_list, m_n = samples_of(p_offsets, num_lists, num_steps, o_n, num)
    b_end = tl.load(p_offsets + b_list + 1, mask=m_n, other=0)
    if CAUSAL:
        b_first, b_last = o_n, tl.minimum(b_end, o_n + P)
    else:
        b_first = tl.load(p_starts + b_list, mask=m_n, other=0)
        b_last = tl.load(p_starts + b_list + 1, mask=m_n & (b_end - o_n < P), other=0)
    b_first = tl.where(m_n & (b_first < b_last), b_first, tl.max(b_last, axis=0))
    b_k = _load(p_keys + i_h * D, o_n, m_n, 2 * H * D, o_d, D)
    b_v = _load(p_keys + (H + i_h) * D, o_n, m_n, 2 * H * D, o_d, D)
    b_by_key, b_by_value = tl.zeros([B, BD], tl.float32), tl.zeros([B, BD], tl.float32)
    for first in range(tl.min(b_first, axis=0), tl.max(b_last, axis=0), B):
        o_m = first + tl.arange(0, B)
        m_pair = (o_m[None, :] >= b_first[:, None]) & (o_m[None, :] < b_last[:, None])
        m_m = o_m < tl.max(b_last, axis=0)
        b_q = _load(p_queries + i_h * D, o_m, m_m, H * D, o_d, D)
        b_g = _load(p_grad + i_h * D, o_m, m_m, H * D, o_d, D)
        # Scores again, [B, B], elements by queries.
        b_distance = (o_m[None, :] if CAUSAL else b_end[:, None]) - o_n[:, None]
        b_score = _scores(b_k, b_q, p_bias + i_h * P, b_distance, m_pair, PRECISION)
        b_weight = tl.where(m_pair, b_score * tl.sigmoid(b_score) / P, 0.0)
        b_by_weight = tl.dot(b_v, tl.trans(b_g), input_precision=PRECISION)
        b_by_score = tl.where(m_pair, b_by_weight * _slope(b_score) / P, 0.0)
        b_by_key = tl.dot(b_by_score, b_q, b_by_key, input_precision=PRECISION)
        b_by_value = tl.dot(b_weight, b_g, b_by_value, input_precision=PRECISION)
    # Store both; zeros where no list is.
    _store(p_grad_keys + i_h * D, o_n, o_n < num, 2 * H * D, o_d, D, b_by_key)
    _store(p_grad_keys + (H + i_h) * D, o_n, o_n < num, 2 * H * D, o_d, D, b_by_value)


@triton.jit(do_not_specialize=["num_lists", "num_steps", "num", "num_tiles"])
def _bias_back(
    p_grad, p_queries, p_keys, p_starts, p_offsets, num_lists, num_steps, p_bias, p_chunks, num,
    num_tiles, H: tl.constexpr, D: tl.constexpr, P: tl.constexpr, CAUSAL: tl.constexpr, B: tl.constexpr,
    BD: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The gradient of the bias at a tile of distances, by the queries of one chunk."""
    i_chunk, i_h = tl.program_id(0).to(tl.int64), tl.program_id(1)
    o_p = tl.program_id(2) * B + tl.arange(0, B)
    b_bias = tl.load(p_bias + i_h * P + o_p, mask=o_p < P, other=0.0)
    b_sum = tl.zeros([B, B], tl.float32)  # summed over queries once, in the end
    for tile in range(num_tiles):
        o_m = (i_chunk * num_tiles + tile) * B + tl.arange(0, B)
        b_place, b_low, b_high = _reach(p_starts, p_offsets, num_lists, num_steps, o_m, num, P, CAUSAL)
        # [B, B], queries by distances
        o_n = b_place[:, None] - o_p[None, :]
        m_pair = (o_n >= b_low[:, None]) & (o_n < b_high[:, None])
        b_score, b_by_weight = (
            tl.zeros([B, B], tl.float32) + b_bias[None, :],
            tl.zeros([B, B], tl.float32),
        )
        for d in range(D):
            p_row = p_keys + o_n * (2 * H * D) + i_h * D + d
            o_q = o_m * (H * D) + i_h * D + d
            b_q = tl.load(p_queries + o_q, mask=o_m < num, other=0.0)
            b_g = tl.load(p_grad + o_q, mask=o_m < num, other=0.0)
            b_score += b_q[:, None] * tl.load(p_row, mask=m_pair, other=0.0)
            b_by_weight += b_g[:, None] * tl.load(p_row + H * D, mask=m_pair, other=0.0)
        b_sum += tl.where(m_pair, b_by_weight * _slope(b_score) / P, 0.0)
    tl.store(p_chunks + (i_chunk * H + i_h) * P + o_p, tl.sum(b_sum, axis=0), mask=o_p < P)


@triton.jit
def _reach(p_starts, p_offsets, num_lists, num_steps, o_m, num, P: tl.constexpr, CAUSAL: tl.constexpr):
    """Of each query its place, and the elements from `low` to `high` that it reads: none behind lists."""
    b_list, m = samples_of(p_starts, num_lists, num_steps, o_m, num)
    b_begin = tl.load(p_offsets + b_list, mask=m, other=0)
    if CAUSAL:
        b_place, b_high = o_m, tl.where(m, o_m + 1, 0)
    else:
        b_place = tl.load(p_offsets + b_list + 1, mask=m, other=0)
        b_high = b_place
    b_low = tl.maximum(b_begin, b_place - P + 1)
    return b_place, tl.where(m & (b_low < b_high), b_low, tl.max(b_high, axis=0)), b_high


@triton.jit
def _read(
    p_keys, p_bias, b_q, b_place, b_low, b_high, o_n, o_d, i_h, H: tl.constexpr, D: tl.constexpr,
    P: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Which elements of `o_n` each query reads, [B, B], their keys and values, [B, BD], and scores."""
    m_pair = (o_n[None, :] >= b_low[:, None]) & (o_n[None, :] < b_high[:, None])
    m_n = o_n < tl.max(b_high, axis=0)
    b_k = _load(p_keys + i_h * D, o_n, m_n, 2 * H * D, o_d, D)
    b_v = _load(p_keys + (H + i_h) * D, o_n, m_n, 2 * H * D, o_d, D)
    b_distance = b_place[:, None] - o_n[None, :]
    b_score = _scores(b_q, b_k, p_bias + i_h * P, b_distance, m_pair, PRECISION)
    return m_pair, b_k, b_v, b_score


@triton.jit
def _scores(b_one, b_other, p_bias, b_distance, m_pair, PRECISION: tl.constexpr):
    b_score = tl.dot(b_one, tl.trans(b_other), input_precision=PRECISION)
    return b_score + tl.load(p_bias + b_distance, mask=m_pair, other=0.0)


@triton.jit
def _slope(b_score):
    """The derivative of silu."""
    b_share = tl.sigmoid(b_score)
    return b_share * (1.0 + b_score * (1.0 - b_share))


@triton.jit
def _load(p, o_row, m_row, STRIDE: tl.constexpr, o_d, D: tl.constexpr):
    m = m_row[:, None] & (o_d < D)[None, :]
    return tl.load(p + o_row[:, None] * STRIDE + o_d[None, :], mask=m, other=0.0)


@triton.jit
def _store(p, o_row, m_row, STRIDE: tl.constexpr, o_d, D: tl.constexpr, b):
    tl.store(p + o_row[:, None] * STRIDE + o_d[None, :], b, mask=m_row[:, None] & (o_d < D)[None, :])
