"""Copies whole rows by their places; either side may be pinned host memory, read by the kernel itself.

Rows of whole vectors of 16 bytes are copied by a grid of fixed size, whose programs take turns over the
vectors of all rows: while they wait for the link they leave most of the device to others. All other rows
have a program for every few.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from hotrows.ops.triton import launch

VECTOR = 16  # bytes
_WORDS = ((VECTOR, torch.int64), (8, torch.int64), (4, torch.int32), (1, torch.uint8))


def copy_rows(
    source: Tensor, source_rows: Tensor | None, target: Tensor, target_rows: Tensor | None
) -> None:
    num_rows = next(len(t) for t in (source_rows, target_rows, source) if t is not None)
    size, word = _widest(source, target)
    if size == VECTOR:
        programs = min(launch.MOVERS, launch.cdiv(num_rows * source.shape[1] // VECTOR, launch.MOVED))
        move(source, source_rows, target, target_rows, max(programs, 1))
        return
    source, target, num_words = source.view(word), target.view(word), source.shape[1] // size
    rows, words = launch.tile(num_words, launch.COPY_BYTES // size, launch.GATHER_COLUMNS)
    strides = {"SOURCE_STRIDE": source.stride(0), "TARGET_STRIDE": target.stride(0)}
    sizes = {"NUM_WORDS": num_words, "ROWS": rows, "WORDS": words}
    _copy_rows[(launch.cdiv(num_rows, rows), launch.cdiv(num_words, words))](
        source, source_rows, target, target_rows, num_rows, **strides, **sizes, **launch.OPTIONS
    )


def move(
    source: Tensor, source_rows: Tensor | None, target: Tensor, target_rows: Tensor | None, programs: int
) -> None:
    """Copies rows whose addresses and sizes are multiples of 16 bytes; programs: of the grid."""
    num_rows = next(len(t) for t in (source_rows, target_rows, source) if t is not None)
    strides = [rows.stride(0) // VECTOR for rows in (source, target)]
    _move[(programs,)](
        source.view(torch.int64), source_rows, target.view(torch.int64), target_rows, num_rows,
        VECTORS=source.shape[1] // VECTOR, FROM=strides[0], TO=strides[1], BLOCK=launch.MOVED,
        **launch.OPTIONS,
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


@triton.jit(do_not_specialize=["num_rows"])
def _copy_rows(
    p_source, p_source_rows, p_target, p_target_rows, num_rows, NUM_WORDS: tl.constexpr,
    SOURCE_STRIDE: tl.constexpr, TARGET_STRIDE: tl.constexpr, ROWS: tl.constexpr,
    WORDS: tl.constexpr,
):  # fmt: skip
    o_row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    o_word = tl.program_id(1) * WORDS + tl.arange(0, WORDS)
    m_row = o_row < num_rows
    m = m_row[:, None] & (o_word < NUM_WORDS)[None, :]
    b_from, b_to = o_row, o_row
    if p_source_rows is not None:
        b_from = tl.load(p_source_rows + o_row, mask=m_row, other=0)
    if p_target_rows is not None:
        b_to = tl.load(p_target_rows + o_row, mask=m_row, other=0)
    # Neighbouring words of 8 bytes become accesses of 16 where base and strides are multiples of it.
    b_word = tl.load(p_source + b_from[:, None] * SOURCE_STRIDE + o_word[None, :], mask=m)
    tl.store(p_target + b_to[:, None] * TARGET_STRIDE + o_word[None, :], b_word, mask=m)


def _widest(source: Tensor, target: Tensor) -> tuple[int, torch.dtype]:
    """The widest word that every address and size is a multiple of."""
    multiples = [source.shape[1]]
    for rows in (source, target):
        multiples += [rows.stride(0), rows.data_ptr()]
    return next((size, word) for size, word in _WORDS if all(n % size == 0 for n in multiples))
