"""Binary search, by each element of a block."""

from __future__ import annotations

import triton
import triton.language as tl


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
