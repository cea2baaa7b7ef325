"""The ops of `reference` as Triton kernels, one file per op.

`ops.cuda` imports this at the first call on a CUDA tensor; nothing else may, since Triton is not
everywhere. The functions take CPU tensors too, where Triton's interpreter runs the kernels.

Kernels speak one dialect: `i_` program index, `o_` offsets, `m_` mask, `p_` pointer, `b_` block; sizes
in capitals are compile-time constants; addresses are int64. No result depends on timing: each
element is written by one program, in one order of sums.
"""

from hotrows.ops.triton.copy_rows import copy_rows
from hotrows.ops.triton.pool import pool
from hotrows.ops.triton.resolve import resolve
from hotrows.ops.triton.slots import feed_rows, rank_slots, take_slots, touch_slots
from hotrows.ops.triton.sum_gradients import sum_gradients
from hotrows.ops.triton.unique_padded import unique_padded
from hotrows.ops.triton.update import update

__all__ = [
    "copy_rows",
    "feed_rows",
    "pool",
    "rank_slots",
    "resolve",
    "sum_gradients",
    "take_slots",
    "touch_slots",
    "unique_padded",
    "update",
]
