"""Search in ascending numbers: by each element of a block, or by a whole program for two numbers."""

from __future__ import annotations

import triton
import triton.language as tl

from hotrows.ops.triton import launch


@triton.jit
def last_at_most(p_sorted, size, num_steps, b_x):
    """The last i with sorted[i] <= x, or -1; num_steps: bits of `size`."""
    b_low = b_x.to(tl.int64) * 0 - 1
    b_high = b_low + 1 + size
    for _ in range(num_steps):  # sorted[low] <= x < sorted[high]
        b_middle = b_low + ((b_high - b_low) >> 1)
        m_open = b_high - b_low > 1
        m_right = tl.load(p_sorted + b_middle, mask=m_open, other=0) <= b_x
        b_low = tl.where(m_open & m_right, b_middle, b_low)
        b_high = tl.where(m_open & (m_right == 0), b_middle, b_high)
    return b_low


def num_wide_steps(size: int, width: int) -> int:
    """How often `last_of_two` looks: three times for 2 million numbers at a width of 128."""
    steps, candidates = 0, size + 1
    while candidates > 1:
        steps, candidates = steps + 1, launch.cdiv(candidates, width)
    return steps


@triton.jit
def last_of_two(p_sorted, size, num_steps, x, y, WIDTH: tl.constexpr):
    """`last_at_most` of x and of y, by a program that reads WIDTH numbers at once.

    Each load waits for the one before it, and a binary search has twenty of them where this has three.
    num_steps: `num_wide_steps`.
    """
    low_x = x.to(tl.int64) * 0 - 1
    low_y = low_x
    stride = low_x + 2 + size  # sorted[low] <= x, and the last such place is below low + stride
    for _ in range(num_steps):
        stride = (stride + WIDTH - 1) // WIDTH
        o_step = stride * (1 + tl.arange(0, WIDTH))
        m_x, m_y = low_x + o_step < size, low_y + o_step < size
        b_x = tl.load(p_sorted + low_x + o_step, mask=m_x, other=0)
        b_y = tl.load(p_sorted + low_y + o_step, mask=m_y, other=0)
        low_x += stride * tl.sum((m_x & (b_x <= x)).to(tl.int64), axis=0)
        low_y += stride * tl.sum((m_y & (b_y <= y)).to(tl.int64), axis=0)
    return low_x, low_y
