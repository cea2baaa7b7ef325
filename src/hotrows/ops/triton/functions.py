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
