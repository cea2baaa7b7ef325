"""Functions of single numbers that Triton has no form of for the interpreter, too."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def tanh(b_x):
    """Within 1e-7 of the true value; by powers below 1, which never overflow."""
    b_power = tl.exp(-2.0 * tl.abs(b_x))
    b_y = (1.0 - b_power) / (1.0 + b_power)
    return tl.where(b_x < 0, -b_y, b_y)


@triton.jit
def log_one_more(b_x):
    """log(1 + x) of x >= 0 to the last bits, also where x is small."""
    b_sum = 1.0 + b_x
    b_rounded = tl.where(b_sum == 1.0, 1.0, b_sum - 1.0)
    return tl.where(b_sum == 1.0, b_x, tl.log(b_sum) * (b_x / b_rounded))
