"""How kernels are launched: the numbers a benchmark may set and sweep, and why each is what it is.

All kernels are bound by memory, most of them by its latency: they read rows at random places.
"""

from __future__ import annotations

import torch

GATHER_ELEMENTS = 2048
"""Of a tile of rows gathered for single ids: 4 float32 loads of 16 bytes in flight per thread."""

GATHER_COLUMNS = 256
"""At most, of a tile of rows, bags or runs; wider rows are cut."""

BAG_ELEMENTS = 1024
"""Of a tile of bags or runs. They go as far as their longest one, so tiles are kept small. Not fewer
than threads: an update in place must read each element by one thread alone."""

UNROLL = 4
"""Ids of a bag or run whose rows are in flight at once, for each row of the tile."""

WINDOW = 64
"""Ids summed by one program where a run of equal rows crosses from window to window. A longer one
makes the last sum of a hot row shorter, and the longest run that one program sums id by id longer."""

WINDOW_COLUMNS = 64
"""At most, of such a window: [64, 64] float32 are 32 registers of each of 128 threads."""

SEARCHED = 128
"""Starts of runs read at once where a window looks for its own: one by each thread."""

COPY_BYTES = 8192
"""Of a tile of rows copied: 4 loads of 16 bytes in flight per thread, which host memory needs more
than the device's own."""

MOVERS = 24
"""Programs that move rows, at most: 75 kB in flight are all that a link of 50 GB/s and 1.5 us needs, and
more would only hold registers that the step could use."""

MOVED = 1024
"""Vectors of 16 bytes at once by such a program: 8 by each of its threads."""

LANES = 256
"""Elements per program where each is one number."""

OPTIONS = {"num_warps": 4, "enable_fp_fusion": False}
"""Few warps, since programs are many and small. Without fused multiply-add, so that sums and formulas
round as the reference does; kernels that wait for memory lose nothing by it."""


def cdiv(number: int, size: int) -> int:
    """number / size, rounded up: Triton's own takes 10 us, some twenty times in a step."""
    return -(-number // size)


def next_power_of_2(number: int) -> int:
    return 1 << max(number - 1, 0).bit_length()


def tile(dim: int, elements: int, most_columns: int) -> tuple[int, int]:
    """Rows and columns of a tile, powers of two: columns for `dim`, about `elements` in all."""
    columns = min(next_power_of_2(dim), most_columns)
    return max(elements // columns, 1), columns


def products() -> str:
    """How matrix products of float32 are computed: as PyTorch's own where these may be in TF32, else in
    three products of TF32 each, which are exact but for the last bits and run on tensor cores, too."""
    return "tf32" if torch.backends.cuda.matmul.fp32_precision == "tf32" else "tf32x3"
