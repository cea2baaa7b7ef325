"""Random bits from counters, and rounding by them: `reference_random` in kernels, bit for bit."""

from __future__ import annotations

import triton
import triton.language as tl

from hotrows.ops.rows import reference_random
from hotrows.ops.triton.search import last_at_most

_GOLDEN = tl.constexpr(0x9E3779B97F4A7C15)
_MIX_1 = tl.constexpr(0xBF58476D1CE4E5B9)
_MIX_2 = tl.constexpr(0x94D049BB133111EB)
_ROUNDING_STREAM = tl.constexpr(reference_random.ROUNDING_STREAM)
_FLOAT16_MAX = tl.constexpr(reference_random.FLOAT16_MAX)


@triton.jit
def mix64(b_x):
    b_x = (b_x ^ (b_x >> 30)) * _MIX_1
    b_x = (b_x ^ (b_x >> 27)) * _MIX_2
    return b_x ^ (b_x >> 31)


@triton.jit
def rounding_bits(p_first_rows, p_pieces, num_pieces, num_steps, b_row, m_row, o_d, step):
    """[rows, columns] uint64: of the weights of rows at this step."""
    o_piece = last_at_most(p_first_rows, num_pieces + 1, num_steps, b_row)
    p_piece = p_pieces + o_piece * 5
    b_key = tl.load(p_piece, mask=m_row, other=0)
    b_first_id = tl.load(p_piece + 1, mask=m_row, other=0)
    b_id_step = tl.load(p_piece + 2, mask=m_row, other=0)
    b_column = tl.load(p_piece + 3, mask=m_row, other=0)
    b_width = tl.load(p_piece + 4, mask=m_row, other=0)
    b_first_row = tl.load(p_first_rows + o_piece, mask=m_row, other=0)
    b_id = b_first_id + (b_row - b_first_row) * b_id_step
    b_key = mix64(b_key.to(tl.uint64) ^ mix64(b_id.to(tl.uint64))) ^ _ROUNDING_STREAM
    b_index = (step * b_width + b_column)[:, None] + o_d[None, :] + 1
    return mix64(b_key[:, None] + b_index.to(tl.uint64) * _GOLDEN)


@triton.jit
def unit(b_bits):
    """`reference_random.unit` in float32."""
    return (b_bits >> 40).to(tl.float32) * 5.9604644775390625e-08


@triton.jit
def to_bfloat16(b_x, b_bits):
    b_whole = b_x.to(tl.uint32, bitcast=True)
    m_finite = (b_whole & 0x7F800000) != 0x7F800000
    b_noise = tl.where(m_finite, (b_bits >> 48).to(tl.uint32), 0)
    b_rounded = ((b_whole + b_noise) & 0xFFFF0000).to(tl.float32, bitcast=True)
    return b_rounded.to(tl.bfloat16)


@triton.jit
def to_float16(b_x, b_bits):
    b_whole = b_x.to(tl.uint32, bitcast=True)
    b_magnitude = tl.abs(b_x)
    b_noise = (b_bits >> 51).to(tl.uint32)
    b_normal = (((b_whole & 0x7FFFFFFF) + b_noise) & 0xFFFFE000).to(tl.float32, bitcast=True)
    # Below 2^-14, whole steps of 2^-24.
    b_steps = b_magnitude * 16777216.0
    b_floor = tl.floor(b_steps)
    m_up = unit(b_bits) < b_steps - b_floor
    b_subnormal = (b_floor + m_up.to(tl.float32)) * 5.9604644775390625e-08
    b_rounded = tl.where(b_magnitude < 6.103515625e-05, b_subnormal, b_normal)
    b_rounded = tl.minimum(b_rounded, _FLOAT16_MAX)
    b_signed = b_rounded.to(tl.uint32, bitcast=True) | (b_whole & 0x80000000)
    m_finite = (b_whole & 0x7F800000) != 0x7F800000
    return tl.where(m_finite, b_signed.to(tl.float32, bitcast=True), b_x).to(tl.float16)
