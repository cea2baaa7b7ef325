"""The gradient of each distinct row."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from hotrows.ops.triton import launch
from hotrows.ops.triton.runs import sum_runs, sum_windows


def sum_gradients(
    grad: Tensor, order: Tensor, starts: Tensor, bags: Tensor | None, weights: Tensor | None
) -> Tensor:
    grad, num_runs, dim = grad.contiguous(), starts.numel() - 1, grad.shape[1]
    heads, tails = sum_windows(grad, order, starts, bags, weights)
    out = heads.new_empty(num_runs, dim)
    runs, columns = launch.tile(dim, launch.BAG_ELEMENTS, launch.GATHER_COLUMNS)
    tile = {"D": dim, "RUNS": runs, "COLUMNS": columns, "WINDOW": launch.WINDOW, "UNROLL": launch.UNROLL}
    _sum_gradients[(launch.cdiv(num_runs, runs), launch.cdiv(dim, columns))](
        grad, order, starts, bags, weights, heads, tails, out, num_runs, **tile, **launch.OPTIONS
    )
    return out


@triton.jit(do_not_specialize=["num_runs"])
def _sum_gradients(
    p_grad, p_order, p_starts, p_bags, p_weights, p_heads, p_tails, p_out, num_runs,
    D: tl.constexpr, RUNS: tl.constexpr, COLUMNS: tl.constexpr, WINDOW: tl.constexpr,
    UNROLL: tl.constexpr,
):  # fmt: skip
    o_run = tl.program_id(0).to(tl.int64) * RUNS + tl.arange(0, RUNS)
    o_d = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    m_run, m_d = o_run < num_runs, (o_d < D)[None, :]
    b_sum = sum_runs(
        p_grad, p_order, p_starts, p_bags, p_weights, p_heads, p_tails, o_run, m_run, o_d, m_d,
        D, WINDOW, UNROLL,
    )  # fmt: skip
    tl.store(p_out + o_run[:, None] * D + o_d[None, :], b_sum, mask=m_run[:, None] & m_d)
