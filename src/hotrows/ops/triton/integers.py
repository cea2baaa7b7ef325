"""Weights that are integers in units of a scale of their row: `record.scale_of` in kernels, bit for bit.

Those of 4 bits lie in pairs, as uint8: two columns read one byte, and one of them writes it.
"""

from __future__ import annotations

import triton
import triton.language as tl

from hotrows.ops.triton.random import unit


@triton.jit
def read_weights(p_stored, b_slot, o_d, m_row, m_d, STRIDE: tl.constexpr, EVICTION: tl.constexpr):
    """[rows, columns] float32: as they are stored, integers without their scale; 0 beyond the masks."""
    # Addresses stand before the masks: in the other order Triton 3.6 fails to compile the loads of bags.
    if p_stored.dtype.element_ty == tl.uint8:
        p_pair = p_stored + b_slot[:, None] * STRIDE + (o_d // 2)[None, :]
        b_pair = tl.load(p_pair, mask=m_row[:, None] & m_d, other=0, eviction_policy=EVICTION)
        b_four = (b_pair.to(tl.int32) >> (o_d % 2 * 4)[None, :]) & 15
        b_w = ((b_four ^ 8) - 8).to(tl.float32)
    else:
        p_w = p_stored + b_slot[:, None] * STRIDE + o_d[None, :]
        b_w = tl.load(p_w, mask=m_row[:, None] & m_d, other=0.0, eviction_policy=EVICTION).to(tl.float32)
    return b_w


@triton.jit
def write_pairs(p_stored, b_slot, b_integers, m_row, D: tl.constexpr, STRIDE: tl.constexpr):
    """Stores [rows, columns] integers of 4 bits."""
    ROWS: tl.constexpr = b_integers.shape[0]
    PAIRS: tl.constexpr = b_integers.shape[1] // 2
    b_low, b_high = tl.split(tl.reshape(b_integers & 15, [ROWS, PAIRS, 2]))
    o_pair = tl.arange(0, PAIRS)
    p_pair = p_stored + b_slot[:, None] * STRIDE + o_pair[None, :]
    tl.store(p_pair, (b_low | b_high << 4).to(tl.uint8), mask=m_row[:, None] & (o_pair < D // 2)[None, :])


@triton.jit
def scale_of(b_w, b_before, b_bits, BITS: tl.constexpr):
    """[rows]: `ops.record.scale_of` of [rows, columns], zeros beyond a row's."""
    DIGITS: tl.constexpr = BITS - 2
    MOST: tl.constexpr = 2.0 ** (BITS - 1) - 1
    b_magnitude = tl.abs(b_w)
    b_most = tl.max(b_magnitude.to(tl.int32, bitcast=True), axis=1)
    b_largest = b_most.to(tl.float32, bitcast=True)
    b_exponent = tl.maximum(((b_most + ((1 << (23 - DIGITS)) - 1)) >> 23) - DIGITS, 27)
    b_scale = (b_exponent << 23).to(tl.float32, bitcast=True)
    m_fits = b_largest <= MOST * b_before
    if BITS == 4:
        m_stays = b_magnitude - (MOST * b_before)[:, None] <= unit(b_bits) * b_before[:, None]
        m_fits = tl.min(m_stays.to(tl.int32), axis=1) > 0
    m_keeps = m_fits & (BITS // 2 * b_largest >= MOST * b_before)
    b_scale = tl.where(m_keeps, b_before, b_scale)
    return tl.where(b_largest <= MOST * 2.0**121, b_scale, float("nan"))


@triton.jit
def to_integers(b_w, b_scale, b_bits):
    """[rows, columns] int32: rounded away from 0 with the probability of the part cut off."""
    b_inverse = ((254 << 23) - b_scale.to(tl.int32, bitcast=True)).to(tl.float32, bitcast=True)  # of 2^n
    b_x = tl.where((b_scale == b_scale)[:, None], b_w * b_inverse[:, None], 0.0)
    b_magnitude = tl.abs(b_x)
    b_whole = tl.floor(b_magnitude)
    b_rounded = b_whole + (unit(b_bits) < b_magnitude - b_whole).to(tl.float32)
    return tl.where(b_x < 0, -b_rounded, b_rounded).to(tl.int32)
