"""Positions of lists that lie end to end: whose they are, which are last, which are behind all lists."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from hotrows.ops.triton import launch
from hotrows.ops.triton.search import last_at_most


def last_of(states: Tensor, offsets: Tensor) -> Tensor:
    size, width = len(offsets) - 1, states.shape[1]
    out = states.new_empty(size, width)
    if out.numel() > 0:
        rows, columns = launch.tile(width, launch.GATHER_ELEMENTS, launch.GATHER_COLUMNS)
        grid = launch.cdiv(size, rows), launch.cdiv(width, columns)
        _last[grid](states, offsets, out, size, H=width, BB=rows, BH=columns)
    return out


def last_of_backward(grad: Tensor, offsets: Tensor, num: int) -> Tensor:
    width = grad.shape[1]
    out = grad.new_empty(num, width)
    if out.numel() > 0:
        rows, columns = launch.tile(width, launch.GATHER_ELEMENTS, launch.GATHER_COLUMNS)
        grid = launch.cdiv(num, rows), launch.cdiv(width, columns)
        _last_back[grid](grad, *search_of(offsets), out, num, H=width, BN=rows, BH=columns)
    return out


@triton.jit(do_not_specialize=["num_samples"])
def _last(p_states, p_offsets, p_out, num_samples, H: tl.constexpr, BB: tl.constexpr, BH: tl.constexpr):
    o_b = tl.program_id(0).to(tl.int64) * BB + tl.arange(0, BB)
    o_h = tl.program_id(1) * BH + tl.arange(0, BH)
    m_b, m_h = o_b < num_samples, (o_h < H)[None, :]
    b_begin = tl.load(p_offsets + o_b, mask=m_b, other=0)
    b_end = tl.load(p_offsets + o_b + 1, mask=m_b, other=0)
    p_last = p_states + (b_end - 1)[:, None] * H + o_h[None, :]
    b_last = tl.load(p_last, mask=(b_end > b_begin)[:, None] & m_h, other=0.0)
    tl.store(p_out + o_b[:, None] * H + o_h[None, :], b_last, mask=m_b[:, None] & m_h)


@triton.jit(do_not_specialize=["num_samples", "num_steps", "num"])
def _last_back(
    p_grad, p_offsets, num_samples, num_steps, p_out, num,
    H: tl.constexpr, BN: tl.constexpr, BH: tl.constexpr,
):  # fmt: skip
    o_n = tl.program_id(0).to(tl.int64) * BN + tl.arange(0, BN)
    o_h = tl.program_id(1) * BH + tl.arange(0, BH)
    b_sample, m_n = samples_of(p_offsets, num_samples, num_steps, o_n, num)
    m_last = m_n & (tl.load(p_offsets + b_sample + 1, mask=m_n, other=0) == o_n + 1)
    m_h = (o_h < H)[None, :]
    p_g = p_grad + b_sample[:, None] * H + o_h[None, :]
    b_g = tl.load(p_g, mask=m_last[:, None] & m_h, other=0.0)
    tl.store(p_out + o_n[:, None] * H + o_h[None, :], b_g, mask=(o_n < num)[:, None] & m_h)


@triton.jit
def samples_of(p_offsets, num_samples, num_steps, o_n, num):
    """The sample of each position n < num, and whether it has one; num_steps: of a search."""
    b_sample = last_at_most(p_offsets, num_samples + 1, num_steps, o_n)
    return b_sample, (o_n < num) & (b_sample < num_samples)


@triton.jit
def clear(p_out, begin, end, BLOCK: tl.constexpr):
    """Zeros to out[begin : end]."""
    for first in range(begin, end, BLOCK):
        o = first + tl.arange(0, BLOCK)
        tl.store(p_out + o, tl.zeros([BLOCK], tl.float32), mask=o < end)


def search_of(offsets: Tensor) -> tuple[Tensor, int, int]:
    """The arguments of `samples_of`: offsets, the number of samples, and the steps."""
    return offsets, len(offsets) - 1, len(offsets).bit_length()
