"""Copies rows by a kernel with a grid of fixed size, to see how many programs the link needs.

`ops.copy_rows` has a program for every few rows, which together fill the device while each waits for
the link. Here `programs` of them take turns over the rows as one list of vectors of 16 bytes.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

VECTOR = 16  # bytes
_BLOCK = 1024  # vectors at once by one program: 8 by each of its threads


def move(
    source: Tensor, source_rows: Tensor | None, target: Tensor, target_rows: Tensor | None, programs: int
) -> None:
    """Copies rows [m, stride] uint8 by their places (None: all, in order); programs: of the grid."""
    strides = [rows.stride(0) for rows in (source, target)]
    if any(size % VECTOR for size in (source.shape[1], *strides)):
        raise ValueError(f"rows and strides must be multiples of {VECTOR} bytes: {strides}")
    num_rows = next(len(t) for t in (source_rows, target_rows, source) if t is not None)
    _move[(programs,)](
        source.view(torch.int64), source_rows, target.view(torch.int64), target_rows, num_rows,
        VECTORS=source.shape[1] // VECTOR, FROM=strides[0] // VECTOR, TO=strides[1] // VECTOR,
        BLOCK=_BLOCK, num_warps=4,
    )  # fmt: skip


@triton.jit(do_not_specialize=["num_rows"])
def _move(
    p_source, p_source_rows, p_target, p_target_rows, num_rows,
    VECTORS: tl.constexpr, FROM: tl.constexpr, TO: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    num_vectors = num_rows.to(tl.int64) * VECTORS
    o_half = tl.arange(0, 2)[None, :]
    begin = tl.program_id(0).to(tl.int64) * BLOCK
    for first in range(begin, num_vectors, tl.num_programs(0) * BLOCK):
        o_all = first + tl.arange(0, BLOCK)
        m_all = o_all < num_vectors
        o_row = o_all // VECTORS
        o_vector = o_all - o_row * VECTORS
        b_from, b_to = o_row, o_row
        if p_source_rows is not None:
            b_from = tl.load(p_source_rows + o_row, mask=m_all, other=0)
        if p_target_rows is not None:
            b_to = tl.load(p_target_rows + o_row, mask=m_all, other=0)
        m = m_all[:, None] & (o_half < 2)
        p_from = p_source + (b_from * FROM + o_vector)[:, None] * 2 + o_half  # [BLOCK, 2]
        p_to = p_target + (b_to * TO + o_vector)[:, None] * 2 + o_half
        tl.store(p_to, tl.load(p_from, mask=m), mask=m)
