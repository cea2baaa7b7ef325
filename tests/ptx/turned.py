"""A kernel that the interpreter runs as one expects, and threads do not."""

import triton
import triton.language as tl


@triton.jit
def turned(p_x, p_y, BARRIER: tl.constexpr, BLOCK: tl.constexpr):
    """Reads what other threads have just stored, as the kernel of triton#11153 does."""
    o = tl.arange(0, BLOCK)
    tl.store(p_y + o, tl.load(p_x + o) + 1)
    if BARRIER:
        tl.debug_barrier()
    tl.store(p_x + o, tl.load(p_y + BLOCK - 1 - o))
