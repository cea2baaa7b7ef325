"""Sums along runs of equal rows, long ones apart, with grids that sizes alone decide.

    order    | window 0     | window 1     | window 2     |
    runs     | a  a  b  c  c  c  c  c  c  c  c  c  c  d  d |
                       |head |     tail     |tail |

A run within one window is summed id by id. Of one that crosses from window to window, a first kernel
sums the part in each window: `heads` of the run that goes on after a window, `tails` of the run that came
in from before it. A second adds them in order. So a hot row is summed by many programs, the sum is
the same every time, and no number has to reach the host.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from hotrows.ops.triton import launch
from hotrows.ops.triton.search import last_of_two, num_wide_steps


def sum_windows(
    grad: Tensor, order: Tensor, starts: Tensor, bags: Tensor | None, weights: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Heads and tails, each [windows, D]; of windows that no run crosses they are not set."""
    (num_ids,), dim, num_runs = order.shape, grad.shape[1], starts.numel() - 1
    num_windows = launch.cdiv(num_ids, launch.WINDOW)
    dtype = torch.float64 if grad.dtype == torch.float64 else torch.float32
    heads, tails = (grad.new_empty(num_windows, dim, dtype=dtype) for _ in range(2))
    columns = min(launch.next_power_of_2(dim), launch.WINDOW_COLUMNS)
    tile = {"D": dim, "WINDOW": launch.WINDOW, "COLUMNS": columns, "SEARCHED": launch.SEARCHED}
    _sum_windows[(num_windows, launch.cdiv(dim, columns))](
        grad, order, starts, bags, weights, heads, tails,
        num_ids, num_runs, num_wide_steps(num_runs + 1, launch.SEARCHED), **tile, **launch.OPTIONS,
    )  # fmt: skip
    return heads, tails


@triton.jit(do_not_specialize=["num_ids", "num_runs", "num_steps"])
def _sum_windows(
    p_grad, p_order, p_starts, p_bags, p_weights, p_heads, p_tails, num_ids, num_runs, num_steps,
    D: tl.constexpr, WINDOW: tl.constexpr, COLUMNS: tl.constexpr, SEARCHED: tl.constexpr,
):  # fmt: skip
    i_window = tl.program_id(0).to(tl.int64)
    begin = i_window * WINDOW
    end = tl.minimum(begin + WINDOW, num_ids)
    first, last = last_of_two(p_starts, num_runs + 1, num_steps, begin, end - 1, SEARCHED)
    m_run = (first >= 0) & (first < num_runs)
    m_tail = m_run & (tl.load(p_starts + first, mask=m_run, other=0) < begin)
    tail_end = tl.load(p_starts + first + 1, mask=m_tail, other=0)
    m_run = (last >= 0) & (last < num_runs)
    head_begin = tl.load(p_starts + last, mask=m_run, other=0)
    m_head = m_run & (head_begin >= begin)
    m_head = m_head & (tl.load(p_starts + last + 1, mask=m_head, other=0) > end)
    if m_tail | m_head:
        o_id = begin + tl.arange(0, WINDOW)
        o_d = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
        # Bounds, not `m_tail & ..`: the interpreter of Triton 3.9 takes no mask of a scalar and a block.
        m_in_tail = o_id < tl.where(m_tail, tl.minimum(tail_end, end), begin)
        m_in_head = (o_id >= tl.where(m_head, head_begin, end)) & (o_id < end)
        m_d = o_d < D
        b_term = terms(
            p_grad, p_order, p_bags, p_weights, o_id, m_in_tail | m_in_head, o_d, m_d[None, :], D
        )
        o_out = i_window * D + o_d
        tl.store(p_heads + o_out, tl.sum(tl.where(m_in_head[:, None], b_term, 0.0), 0), mask=m_d)
        tl.store(p_tails + o_out, tl.sum(tl.where(m_in_tail[:, None], b_term, 0.0), 0), mask=m_d)


@triton.jit
def sum_runs(
    p_grad, p_order, p_starts, p_bags, p_weights, p_heads, p_tails, o_run, m_run, o_d, m_d,
    D: tl.constexpr, WINDOW: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    """[runs, columns]: the sum over each run of weights[n] * grad[bag of n]."""
    b_begin = tl.load(p_starts + o_run, mask=m_run, other=0).to(tl.int64)
    b_end = tl.load(p_starts + o_run + 1, mask=m_run, other=0).to(tl.int64)
    b_first, b_last = b_begin // WINDOW, (b_end - 1) // WINDOW
    m_crosses = (b_end > b_begin) & (b_last > b_first)

    b_length = tl.where(m_crosses, 0, b_end - b_begin)
    b_sum = tl.zeros([o_run.shape[0], o_d.shape[0]], dtype=p_heads.dtype.element_ty)
    for i in range(0, tl.max(b_length, axis=0), UNROLL):
        for j in tl.static_range(UNROLL):
            o_id, m_id = b_begin + i + j, i + j < b_length
            b_sum += terms(p_grad, p_order, p_bags, p_weights, o_id, m_id, o_d, m_d, D)

    o_window = b_first[:, None] * D + o_d[None, :]
    b_sum += tl.load(p_heads + o_window, mask=m_crosses[:, None] & m_d, other=0.0)
    b_tails = tl.where(m_crosses, b_last - b_first, 0)
    for i in range(0, tl.max(b_tails, axis=0), UNROLL):
        for j in tl.static_range(UNROLL):
            m_tail = (i + j < b_tails)[:, None] & m_d
            b_sum += tl.load(p_tails + o_window + (i + j + 1) * D, mask=m_tail, other=0.0)
    return b_sum


@triton.jit
def terms(p_grad, p_order, p_bags, p_weights, o_id, m_id, o_d, m_d, D: tl.constexpr):
    """weights[n] * grad[bag of n] of the ids at these places of the order, in float32 where narrower."""
    FLOAT: tl.constexpr = tl.float64 if p_grad.dtype.element_ty == tl.float64 else tl.float32
    b_id = tl.load(p_order + o_id, mask=m_id, other=0).to(tl.int64)
    b_bag = b_id
    if p_bags is not None:
        b_bag = tl.load(p_bags + b_id, mask=m_id, other=0).to(tl.int64)
    p_term = p_grad + b_bag[:, None] * D + o_d[None, :]
    b_term = tl.load(p_term, mask=m_id[:, None] & m_d, other=0.0, eviction_policy="evict_first")
    b_term = b_term.to(FLOAT)
    if p_weights is not None:
        b_term = b_term * tl.load(p_weights + b_id, mask=m_id, other=0.0)[:, None]
    return b_term
