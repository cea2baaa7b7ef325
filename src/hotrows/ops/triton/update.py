"""Gradients summed along the runs and the row optimizer applied, in one pass over the records."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from hotrows.ops.record import MAX_KERNEL_DIM, views
from hotrows.ops.rows import reference
from hotrows.ops.triton import launch
from hotrows.ops.triton.integers import read_weights, scale_of, to_integers, write_pairs
from hotrows.ops.triton.optimizers import adagrad, adam, ftrl, rowwise_adagrad
from hotrows.ops.triton.random import rounding_bits, to_bfloat16, to_float16
from hotrows.ops.triton.runs import sum_runs, sum_windows
from hotrows.ops.triton.sum_gradients import sum_gradients


def update(
    records: Tensor,
    layout: list[int],
    slots: Tensor,
    rows: Tensor,
    order: Tensor,
    starts: Tensor,
    bags: Tensor | None,
    weights: Tensor | None,
    grad: Tensor,
    kind: str,
    hyper: Tensor,
    first_rows: Tensor,
    pieces: Tensor,
    decay: Tensor | None = None,
    mean_squares: Tensor | None = None,
) -> None:
    dim, num_rows, num_pieces = layout[0], rows.numel(), len(pieces)
    if dim > MAX_KERNEL_DIM:
        summed = sum_gradients(grad, order, starts, bags, weights)
        bounds = torch.arange(num_rows + 1, dtype=torch.int32, device=grad.device)
        runs, rule = (bounds[:-1], bounds, None, None), (kind, hyper, first_rows, pieces)
        reference.update(records, layout, slots, rows, *runs, summed, *rule, decay, mean_squares)
        return
    stored, grad = views(records, layout), grad.contiguous()
    heads, tails = sum_windows(grad, order, starts, bags, weights)
    tile_rows, columns = launch.tile(dim, launch.BAG_ELEMENTS, MAX_KERNEL_DIM)
    row = {"KIND": kind, "D": dim, "BITS": stored.bits}
    strides = {"WEIGHTS_STRIDE": stored.weights.stride(0), "STATE_STRIDE": stored.state.stride(0)}
    tile = {"ROWS": tile_rows, "COLUMNS": columns, "WINDOW": launch.WINDOW, "UNROLL": launch.UNROLL}
    _update[(launch.cdiv(num_rows, tile_rows),)](
        stored.weights, stored.scale, stored.state, stored.step, slots, rows,
        grad, order, starts, bags, weights, heads, tails,
        hyper, first_rows, pieces, decay, mean_squares,
        num_rows, num_pieces, (num_pieces + 1).bit_length(), **row, **strides, **tile, **launch.OPTIONS,
    )  # fmt: skip


@triton.jit(do_not_specialize=["num_rows", "num_pieces", "num_steps"])
def _update(
    p_stored, p_scale, p_state, p_step, p_slots, p_rows, p_grad, p_order, p_starts, p_bags, p_weights,
    p_heads, p_tails, p_hyper, p_first_rows, p_pieces, p_decay, p_mean_squares, num_rows, num_pieces,
    num_steps, KIND: tl.constexpr, D: tl.constexpr, BITS: tl.constexpr, WEIGHTS_STRIDE: tl.constexpr,
    STATE_STRIDE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, WINDOW: tl.constexpr,
    UNROLL: tl.constexpr,
):  # fmt: skip
    o_row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    o_d = tl.arange(0, COLUMNS)
    m_d = (o_d < D)[None, :]
    b_row = tl.load(p_rows + o_row, mask=o_row < num_rows, other=-1)
    m_row = b_row >= 0
    m = m_row[:, None] & m_d
    b_slot = tl.load(p_slots + o_row, mask=m_row, other=0)
    b_w = read_weights(p_stored, b_slot, o_d, m_row, m_d, WEIGHTS_STRIDE, "")  # [ROWS, COLUMNS]
    if p_scale is not None:
        p_row_scale = p_scale + b_slot * STATE_STRIDE
        b_before = tl.load(p_row_scale, mask=m_row, other=1.0)
        b_w = b_w * b_before[:, None]
    b_g = sum_runs(
        p_grad, p_order, p_starts, p_bags, p_weights, p_heads, p_tails, o_row, m_row, o_d, m_d,
        D, WINDOW, UNROLL,
    )  # fmt: skip

    # Add what weight decay asks for.
    step, p_numbers = tl.load(p_hyper).to(tl.int64), p_hyper + 1
    lr = tl.load(p_numbers).to(tl.float32)
    if KIND != "ftrl":
        weight_decay = tl.load(p_numbers + 1).to(tl.float32)
        if p_decay is None:
            b_decayed = b_g + weight_decay * b_w
        else:
            b_decay = tl.load(p_decay + o_row, mask=m_row, other=0.0)
            b_decayed = b_g + (weight_decay * b_decay)[:, None] * b_w
        b_g = tl.where(weight_decay != 0, b_decayed, b_g)

    p_state_row = p_state + b_slot * STATE_STRIDE
    p_states = p_state_row[:, None] + o_d[None, :]
    if KIND == "sgd":
        b_w = b_w - lr * b_g
    elif KIND == "adagrad":
        b_w = adagrad(b_w, b_g, p_states, m, lr, p_numbers)
    elif KIND == "rowwise_adagrad":
        p_mean = None
        if p_mean_squares is not None:
            p_mean = p_mean_squares + o_row
        b_w = rowwise_adagrad(b_w, b_g, p_state_row, m_row, lr, p_numbers, p_mean, D)
    elif KIND == "adam":
        p_row_step = None
        if p_step is not None:
            p_row_step = p_step + b_slot * STATE_STRIDE
        b_w = adam(b_w, b_g, p_states, m, p_row_step, m_row, p_numbers, D)
    else:
        tl.static_assert(KIND == "ftrl", "unknown row optimizer")
        b_w = ftrl(b_w, b_g, p_states, m, lr, p_numbers, D)

    # Round where weights are narrower, and store.
    if p_stored.dtype.element_ty != tl.float32:
        b_bits = rounding_bits(p_first_rows, p_pieces, num_pieces, num_steps, b_row, m_row, o_d, step)
        if p_scale is not None:
            b_scale = scale_of(tl.where(m, b_w, 0.0), b_before, b_bits, BITS)
            tl.debug_barrier()  # a row's scale and pairs are read by several threads and written by one
            tl.store(p_row_scale, b_scale, mask=m_row)
            b_w = to_integers(b_w, b_scale, b_bits)
        elif p_stored.dtype.element_ty == tl.bfloat16:
            b_w = to_bfloat16(b_w, b_bits)
        else:
            b_w = to_float16(b_w, b_bits)
    if BITS == 4:
        write_pairs(p_stored, b_slot, b_w, m_row, D, WEIGHTS_STRIDE)
    else:
        tl.store(p_stored + b_slot[:, None] * WEIGHTS_STRIDE + o_d[None, :], b_w, mask=m)
