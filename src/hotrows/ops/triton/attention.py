"""Attention over lists on the GPU: positions in tiles, each of which finds its sample.

Position n is one of sample b where offsets[b] <= n < offsets[b + 1]. The vectors may be padded: positions
from offsets[B] on are of no sample, get zeros, and add nothing, so that a captured graph may read a
batch of fewer. Formulas: `ops.layers.attention`. Neither [q, k, q - k, q * k] nor the query of each
position is ever in memory: with weight = [Q, K, S, P] the first layer is

    y_n = (Q + S) q + (K - S) k_n + P (q * k_n) + bias
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from hotrows.ops.triton import launch
from hotrows.ops.triton.lists import clear, samples_of, search_of

_POSITIONS = 64  # of a tile of positions whose vectors are multiplied
_WIDTH = 32  # of such a tile, of vectors and of hidden units
_SUMMED = 16  # of the side that a product sums over: more would not fit the registers
_MOST_CHUNKS = 128  # of positions, each summed by itself into gradients of weights


def target_projection(
    queries: Tensor, keys: Tensor, offsets: Tensor, weight: Tensor, bias: Tensor | None
) -> Tensor:
    (num, dim), hidden = keys.shape, len(weight)
    out = keys.new_empty(num, hidden)
    if out.numel() > 0:
        sizes = {"H": hidden, "D": dim, **_tile(BD=_SUMMED)}
        _project[(launch.cdiv(num, _POSITIONS), launch.cdiv(hidden, _WIDTH))](
            queries, keys, *search_of(offsets), weight, bias, out, num, **sizes
        )
    return out


def target_projection_backward(
    grad: Tensor, queries: Tensor, keys: Tensor, offsets: Tensor, weight: Tensor, more: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    (num, dim), hidden = keys.shape, len(weight)
    num_tiles = launch.cdiv(num, _POSITIONS)
    if grad.numel() == 0 or dim == 0:
        grad_queries, grad_weight = torch.zeros_like(queries), torch.zeros_like(weight)
        grad_keys = torch.zeros_like(keys) if more is None else more
        return grad_queries, grad_keys, grad_weight, weight.new_zeros(hidden)
    grad_keys, by_position = torch.empty_like(keys), torch.empty_like(keys)
    vectors = grad, queries, keys, *search_of(offsets)
    _project_back[(num_tiles, launch.cdiv(dim, _WIDTH))](
        *vectors, weight, more, grad_keys, by_position, num, H=hidden, D=dim, **_tile(BH=_SUMMED)
    )
    num_tiles = launch.cdiv(num, _SUMMED)
    num_chunks = min(num_tiles, _MOST_CHUNKS)
    tiles = launch.cdiv(num_tiles, num_chunks)
    chunks = weight.new_empty(num_chunks, weight.numel() + hidden)
    _project_weights[(num_chunks, launch.cdiv(hidden, _WIDTH), launch.cdiv(dim, _WIDTH))](
        *vectors, chunks, num, tiles, H=hidden, D=dim, **_tile(BN=_SUMMED)
    )
    grad_queries, sums = _sums_of_both(by_position, offsets, chunks)
    grad_weight, grad_bias = sums.split([weight.numel(), hidden])
    return grad_queries, grad_keys, grad_weight.view(hidden, -1), grad_bias


def weighted_sum(weights: Tensor, values: Tensor, offsets: Tensor) -> Tensor:
    return _sums(weights, values, offsets)


def jagged_dot(queries: Tensor, keys: Tensor, offsets: Tensor) -> Tensor:
    num, dim = keys.shape
    out = keys.new_empty(num)
    if num > 0:
        rows, columns = launch.tile(max(dim, 1), launch.BAG_ELEMENTS, launch.GATHER_COLUMNS)
        _dot[(launch.cdiv(num, rows),)](
            queries, keys, *search_of(offsets), out, num, D=dim, BN=rows, BD=columns, **launch.OPTIONS
        )
    return out


def jagged_dot_backward(
    grad: Tensor, queries: Tensor, keys: Tensor, offsets: Tensor
) -> tuple[Tensor, Tensor]:
    (size, dim), grads = queries.shape, (torch.empty_like(queries), torch.empty_like(keys))
    if queries.numel() > 0:
        samples, columns = launch.tile(dim, launch.BAG_ELEMENTS, launch.GATHER_COLUMNS)
        _dot_back[(launch.cdiv(size, samples), launch.cdiv(dim, columns))](
            grad, queries, keys, offsets, *grads, size, len(keys), D=dim, BB=samples,
            BD=columns, UNROLL=launch.UNROLL,
        )  # fmt: skip
    return grads


def weighted_copies(weights: Tensor, queries: Tensor, offsets: Tensor) -> Tensor:
    num, dim = len(weights), queries.shape[1]
    out = queries.new_empty(num, dim)
    if out.numel() > 0:
        rows, columns = launch.tile(dim, launch.GATHER_ELEMENTS, launch.GATHER_COLUMNS)
        _copies[(launch.cdiv(num, rows), launch.cdiv(dim, columns))](
            weights, queries, *search_of(offsets), out, num, D=dim, BN=rows, BD=columns
        )
    return out


def weighted_sum_backward(
    grad: Tensor, weights: Tensor, values: Tensor, offsets: Tensor
) -> tuple[Tensor, Tensor]:
    (num, dim), (by_weights, by_values) = values.shape, map(torch.empty_like, (weights, values))
    if num > 0:
        rows, columns = launch.tile(max(dim, 1), launch.BAG_ELEMENTS, launch.GATHER_COLUMNS)
        _weighted_back[(launch.cdiv(num, rows),)](
            grad, weights, values, *search_of(offsets), by_weights, by_values, num, D=dim, BN=rows,
            BD=columns, **launch.OPTIONS,
        )  # fmt: skip
    return by_weights, by_values


def _sums(weights: Tensor | None, values: Tensor, offsets: Tensor) -> Tensor:
    """The sum of each sample's values, weighted where there are weights."""
    size, dim = len(offsets) - 1, values.shape[1]
    out = values.new_empty(size, dim)
    if out.numel() > 0:
        samples, columns = launch.tile(dim, launch.BAG_ELEMENTS, launch.GATHER_COLUMNS)
        sizes = {"D": dim, "BB": samples, "BD": columns, "UNROLL": launch.UNROLL}
        _sum[(launch.cdiv(size, samples), launch.cdiv(dim, columns))](
            weights, values, offsets, out, size, **sizes
        )
    return out


def _sums_of_both(values: Tensor, offsets: Tensor, chunks: Tensor) -> tuple[Tensor, Tensor]:
    """The sum of each sample's values, and that of all chunks, in one launch."""
    (num_chunks, size), (num_samples, dim) = chunks.shape, (len(offsets) - 1, values.shape[1])
    out, sums = values.new_empty(num_samples, dim), chunks.new_empty(size)
    samples, columns = launch.tile(dim, launch.BAG_ELEMENTS, launch.GATHER_COLUMNS)
    num_lists = launch.cdiv(num_samples, samples) * launch.cdiv(dim, columns)
    tile = {"D": dim, "BB": samples, "BD": columns, "UNROLL": launch.UNROLL, "BC": 16, "BW": 64}
    _sum_both[(num_lists + launch.cdiv(size, tile["BW"]),)](
        values, offsets, out, num_samples, num_lists, chunks, sums, num_chunks, size, **tile
    )
    return out, sums


@triton.jit(do_not_specialize=["num_samples", "num_steps", "num"])
def _project(
    p_queries, p_keys, p_offsets, num_samples, num_steps, p_weight, p_bias, p_out, num,
    H: tl.constexpr, D: tl.constexpr, BN: tl.constexpr, BH: tl.constexpr, BD: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    o_n = tl.program_id(0).to(tl.int64) * BN + tl.arange(0, BN)
    o_h = tl.program_id(1) * BH + tl.arange(0, BH)
    b_sample, m_n = samples_of(p_offsets, num_samples, num_steps, o_n, num)
    b_out = tl.zeros([BN, BH], tl.float32)
    for first in range(0, D, BD):
        o_d = first + tl.arange(0, BD)
        # [BN, BD]
        b_q, b_k = _load_pair(p_queries, p_keys, b_sample, o_n, m_n, o_d, D)
        m_w = (o_d < D)[:, None] & (o_h < H)[None, :]
        p_w = p_weight + o_h[None, :] * (4 * D) + o_d[:, None]
        # [BD, BH]
        b_of_query, b_of_key, b_of_product = _load_weights(p_w, m_w, D)
        b_out = tl.dot(b_q, b_of_query, b_out, input_precision=PRECISION)
        b_out = tl.dot(b_k, b_of_key, b_out, input_precision=PRECISION)
        b_out = tl.dot(b_q * b_k, b_of_product, b_out, input_precision=PRECISION)
    if p_bias is not None:
        b_out += tl.load(p_bias + o_h, mask=o_h < H, other=0.0)[None, :]
    m_out = (o_n < num)[:, None] & (o_h < H)[None, :]
    tl.store(p_out + o_n[:, None] * H + o_h[None, :], tl.where(m_n[:, None], b_out, 0.0), mask=m_out)


@triton.jit(do_not_specialize=["num_samples", "num_steps", "num"])
def _project_back(
    p_grad, p_queries, p_keys, p_offsets, num_samples, num_steps, p_weight, p_more, p_grad_keys,
    p_by_position, num, H: tl.constexpr, D: tl.constexpr, BN: tl.constexpr, BH: tl.constexpr,
    BD: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The gradient of each key, and what each position adds to that of its query."""
    o_n = tl.program_id(0).to(tl.int64) * BN + tl.arange(0, BN)
    o_d = tl.program_id(1) * BD + tl.arange(0, BD)
    b_sample, m_n = samples_of(p_offsets, num_samples, num_steps, o_n, num)
    b_to_query, b_to_key = tl.zeros([BN, BD], tl.float32), tl.zeros([BN, BD], tl.float32)
    b_to_product = tl.zeros([BN, BD], tl.float32)
    for first in range(0, H, BH):
        o_h = first + tl.arange(0, BH)
        m_g = m_n[:, None] & (o_h < H)[None, :]
        # [BN, BH]
        b_g = tl.load(p_grad + o_n[:, None] * H + o_h[None, :], mask=m_g, other=0.0)
        m_w = (o_h < H)[:, None] & (o_d < D)[None, :]
        p_w = p_weight + o_h[:, None] * (4 * D) + o_d[None, :]
        # [BH, BD]
        b_of_query, b_of_key, b_of_product = _load_weights(p_w, m_w, D)
        b_to_query = tl.dot(b_g, b_of_query, b_to_query, input_precision=PRECISION)
        b_to_key = tl.dot(b_g, b_of_key, b_to_key, input_precision=PRECISION)
        b_to_product = tl.dot(b_g, b_of_product, b_to_product, input_precision=PRECISION)
    b_q, b_k = _load_pair(p_queries, p_keys, b_sample, o_n, m_n, o_d, D)
    o_out, m_out = o_n[:, None] * D + o_d[None, :], (o_n < num)[:, None] & (o_d < D)[None, :]
    b_to_key += b_to_product * b_q
    if p_more is not None:
        b_to_key += tl.load(p_more + o_out, mask=m_out & m_n[:, None], other=0.0)
    tl.store(p_grad_keys + o_out, b_to_key, mask=m_out)
    tl.store(p_by_position + o_out, b_to_query + b_to_product * b_k, mask=m_out)


@triton.jit(do_not_specialize=["num_samples", "num_steps", "num", "num_tiles"])
def _project_weights(
    p_grad, p_queries, p_keys, p_offsets, num_samples, num_steps, p_chunks, num, num_tiles,
    H: tl.constexpr, D: tl.constexpr, BN: tl.constexpr, BH: tl.constexpr, BD: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """The gradients of weight and bias by the positions of one chunk: [H, 4D], then [H]."""
    i_chunk = tl.program_id(0).to(tl.int64)
    o_h = tl.program_id(1) * BH + tl.arange(0, BH)
    o_d = tl.program_id(2) * BD + tl.arange(0, BD)
    b_of_query, b_of_key = tl.zeros([BH, BD], tl.float32), tl.zeros([BH, BD], tl.float32)
    b_of_product, b_bias = tl.zeros([BH, BD], tl.float32), tl.zeros([BH], tl.float32)
    for tile in range(num_tiles):
        o_n = (i_chunk * num_tiles + tile) * BN + tl.arange(0, BN)
        b_sample, m_n = samples_of(p_offsets, num_samples, num_steps, o_n, num)
        b_q, b_k = _load_pair(p_queries, p_keys, b_sample, o_n, m_n, o_d, D)
        m_g = (o_h < H)[:, None] & m_n[None, :]
        # [BH, BN]
        b_g = tl.load(p_grad + o_n[None, :] * H + o_h[:, None], mask=m_g, other=0.0)
        b_of_query = tl.dot(b_g, b_q, b_of_query, input_precision=PRECISION)
        b_of_key = tl.dot(b_g, b_k, b_of_key, input_precision=PRECISION)
        b_of_product = tl.dot(b_g, b_q * b_k, b_of_product, input_precision=PRECISION)
        b_bias += tl.sum(b_g, axis=1)
    p_chunk = p_chunks + i_chunk * (4 * H * D + H)
    p_w = p_chunk + o_h[:, None] * (4 * D) + o_d[None, :]
    m_w = (o_h < H)[:, None] & (o_d < D)[None, :]
    tl.store(p_w, b_of_query, mask=m_w)
    tl.store(p_w + D, b_of_key, mask=m_w)
    tl.store(p_w + 2 * D, b_of_query - b_of_key, mask=m_w)
    tl.store(p_w + 3 * D, b_of_product, mask=m_w)
    if tl.program_id(2) == 0:
        tl.store(p_chunk + 4 * H * D + o_h, b_bias, mask=o_h < H)


@triton.jit
def _load_pair(p_queries, p_keys, b_sample, o_n, m_n, o_d, D: tl.constexpr):
    """Columns o_d of the query and the key of each position, zeros outside: [BN, BD] both."""
    m = m_n[:, None] & (o_d < D)[None, :]
    b_q = tl.load(p_queries + b_sample[:, None] * D + o_d[None, :], mask=m, other=0.0)
    return b_q, tl.load(p_keys + o_n[:, None] * D + o_d[None, :], mask=m, other=0.0)


@triton.jit
def _load_weights(p_w, m_w, D: tl.constexpr):
    """The factors of q, k and q * k: Q + S, K - S and P."""
    b_difference = tl.load(p_w + 2 * D, mask=m_w, other=0.0)
    b_of_query = tl.load(p_w, mask=m_w, other=0.0) + b_difference
    b_of_key = tl.load(p_w + D, mask=m_w, other=0.0) - b_difference
    return b_of_query, b_of_key, tl.load(p_w + 3 * D, mask=m_w, other=0.0)


@triton.jit(do_not_specialize=["num_samples"])
def _sum(
    p_weights, p_values, p_offsets, p_out, num_samples,
    D: tl.constexpr, BB: tl.constexpr, BD: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    o_b = tl.program_id(0).to(tl.int64) * BB + tl.arange(0, BB)
    o_d = tl.program_id(1) * BD + tl.arange(0, BD)
    _sum_lists(p_weights, p_values, p_offsets, p_out, num_samples, o_b, o_d, D, BB, BD, UNROLL)


@triton.jit(do_not_specialize=["num_samples", "num_lists", "num_chunks", "size"])
def _sum_both(
    p_values, p_offsets, p_out, num_samples, num_lists, p_chunks, p_sums, num_chunks, size,
    D: tl.constexpr, BB: tl.constexpr, BD: tl.constexpr, UNROLL: tl.constexpr, BC: tl.constexpr,
    BW: tl.constexpr,
):  # fmt: skip
    """The first `num_lists` programs sum lists, all others chunks of one size."""
    i = tl.program_id(0)
    if i < num_lists:
        num_columns = (D + BD - 1) // BD
        o_b = (i // num_columns).to(tl.int64) * BB + tl.arange(0, BB)
        o_d = (i % num_columns) * BD + tl.arange(0, BD)
        _sum_lists(None, p_values, p_offsets, p_out, num_samples, o_b, o_d, D, BB, BD, UNROLL)
    else:
        o_w = (i - num_lists) * BW + tl.arange(0, BW)
        b_sum = tl.zeros([BW], tl.float32)
        for first in range(0, num_chunks, BC):
            o_c = first + tl.arange(0, BC)
            m = (o_c < num_chunks)[:, None] & (o_w < size)[None, :]
            b_sum += tl.sum(tl.load(p_chunks + o_c[:, None] * size + o_w[None, :], mask=m, other=0.0), 0)
        tl.store(p_sums + o_w, b_sum, mask=o_w < size)


@triton.jit
def _sum_lists(
    p_weights, p_values, p_offsets, p_out, num_samples, o_b, o_d,
    D: tl.constexpr, BB: tl.constexpr, BD: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    m_b, m_d = o_b < num_samples, (o_d < D)[None, :]
    b_begin = tl.load(p_offsets + o_b, mask=m_b, other=0)
    b_length = tl.load(p_offsets + o_b + 1, mask=m_b, other=0) - b_begin
    b_sum = tl.zeros([BB, BD], tl.float32)
    for i in range(0, tl.max(b_length, axis=0), UNROLL):
        for j in tl.static_range(UNROLL):
            o_n, m_n = b_begin + i + j, i + j < b_length
            p_value = p_values + o_n[:, None] * D + o_d[None, :]
            b_value = tl.load(p_value, mask=m_n[:, None] & m_d, other=0.0)
            if p_weights is not None:
                b_value = b_value * tl.load(p_weights + o_n, mask=m_n, other=0.0)[:, None]
            b_sum += b_value
    tl.store(p_out + o_b[:, None] * D + o_d[None, :], b_sum, mask=m_b[:, None] & m_d)


@triton.jit(do_not_specialize=["num_samples", "num_steps", "num"])
def _dot(
    p_queries, p_keys, p_offsets, num_samples, num_steps, p_out, num,
    D: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    o_n = tl.program_id(0).to(tl.int64) * BN + tl.arange(0, BN)
    b_sample, m_n = samples_of(p_offsets, num_samples, num_steps, o_n, num)
    b_sum = tl.zeros([BN], tl.float32)
    for first in range(0, D, BD):
        o_d = first + tl.arange(0, BD)
        b_q, b_k = _load_pair(p_queries, p_keys, b_sample, o_n, m_n, o_d, D)
        b_sum += tl.sum(b_q * b_k, axis=1)
    tl.store(p_out + o_n, b_sum, mask=o_n < num)


@triton.jit(do_not_specialize=["num_samples", "num"])
def _dot_back(
    p_grad, p_queries, p_keys, p_offsets, p_by_queries, p_by_keys, num_samples, num, D: tl.constexpr,
    BB: tl.constexpr, BD: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    o_b = tl.program_id(0).to(tl.int64) * BB + tl.arange(0, BB)
    o_d = tl.program_id(1) * BD + tl.arange(0, BD)
    m_b, m_d = o_b < num_samples, (o_d < D)[None, :]
    b_begin = tl.load(p_offsets + o_b, mask=m_b, other=0)
    b_length = tl.load(p_offsets + o_b + 1, mask=m_b, other=0) - b_begin
    o_query = o_b[:, None] * D + o_d[None, :]
    b_query = tl.load(p_queries + o_query, mask=m_b[:, None] & m_d, other=0.0)
    b_sum = tl.zeros([BB, BD], tl.float32)
    for i in range(0, tl.max(b_length, axis=0), UNROLL):
        for j in tl.static_range(UNROLL):
            o_n, m_n = b_begin + i + j, i + j < b_length
            o_key, m = o_n[:, None] * D + o_d[None, :], m_n[:, None] & m_d
            b_g = tl.load(p_grad + o_n, mask=m_n, other=0.0)[:, None]
            b_sum += b_g * tl.load(p_keys + o_key, mask=m, other=0.0)
            tl.store(p_by_keys + o_key, b_g * b_query, mask=m)
    tl.store(p_by_queries + o_query, b_sum, mask=m_b[:, None] & m_d)
    if (tl.program_id(0) == 0) & (tl.program_id(1) == 0):  # positions of no sample
        clear(p_by_keys, tl.load(p_offsets + num_samples) * D, num.to(tl.int64) * D, 128)


@triton.jit(do_not_specialize=["num_samples", "num_steps", "num"])
def _copies(
    p_weights, p_queries, p_offsets, num_samples, num_steps, p_out, num,
    D: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    o_n = tl.program_id(0).to(tl.int64) * BN + tl.arange(0, BN)
    o_d = tl.program_id(1) * BD + tl.arange(0, BD)
    b_sample, m_in = samples_of(p_offsets, num_samples, num_steps, o_n, num)
    m_n, m_d = o_n < num, (o_d < D)[None, :]
    b_weight = tl.load(p_weights + o_n, mask=m_in, other=0.0)
    p_q = p_queries + b_sample[:, None] * D + o_d[None, :]
    b_q = tl.load(p_q, mask=m_in[:, None] & m_d, other=0.0)
    tl.store(p_out + o_n[:, None] * D + o_d[None, :], b_weight[:, None] * b_q, mask=m_n[:, None] & m_d)


@triton.jit(do_not_specialize=["num_samples", "num_steps", "num"])
def _weighted_back(
    p_grad, p_weights, p_values, p_offsets, num_samples, num_steps, p_by_weights, p_by_values, num,
    D: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    o_n = tl.program_id(0).to(tl.int64) * BN + tl.arange(0, BN)
    b_sample, m_in = samples_of(p_offsets, num_samples, num_steps, o_n, num)
    b_weight = tl.load(p_weights + o_n, mask=m_in, other=0.0)[:, None]
    b_sum = tl.zeros([BN], tl.float32)
    for first in range(0, D, BD):
        o_d = first + tl.arange(0, BD)
        b_g, b_value = _load_pair(p_grad, p_values, b_sample, o_n, m_in, o_d, D)
        b_sum += tl.sum(b_g * b_value, axis=1)
        m_out = (o_n < num)[:, None] & (o_d < D)[None, :]
        tl.store(p_by_values + o_n[:, None] * D + o_d[None, :], b_weight * b_g, mask=m_out)
    tl.store(p_by_weights + o_n, b_sum, mask=o_n < num)


def _tile(**sizes: int) -> dict:
    """Sizes of a tile of [BN, BH] or [BN, BD], one of them another one."""
    tile = {"BN": _POSITIONS, "BH": _WIDTH, "BD": _WIDTH, **sizes}
    return {**tile, "PRECISION": launch.products()}
