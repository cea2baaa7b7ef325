"""DIEN's auxiliary loss on the GPU, in one kernel each way. Formulas: `ops.layers.next_element`."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from hotrows.ops.triton import launch
from hotrows.ops.triton.functions import log_one_more
from hotrows.ops.triton.lists import samples_of, search_of
from hotrows.ops.triton.turns import counts, is_last

_PARTS = 1024  # of programs, added up at once by the last one


def takes(*arguments) -> bool:
    """True if the kernels can hold a vector whole: [N, D]."""
    return next(a for a in arguments if a.dim() == 2).shape[1] <= launch.BAG_ELEMENTS


def next_element_loss(
    states: Tensor, past: Tensor, offsets: Tensor, others: Tensor, num_samples: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    states, past, num = states.contiguous(), past.contiguous(), len(others)
    slopes, back = states.new_empty(2, num), torch.empty_like(others)
    loss, total = states.new_empty(()), states.new_empty(())
    positions, tile = _tile(states)
    programs = max(launch.cdiv(num, positions), 1)
    parts, count = states.new_empty(programs, 2), counts(1, states.device)
    _loss[(programs,)](
        states, past, *search_of(offsets), others, num_samples, slopes, back, parts, loss, total, count,
        num, **tile, LANES=_PARTS,
    )  # fmt: skip
    return loss, total, slopes, back


def next_element_loss_backward(
    grad: Tensor,
    states: Tensor,
    past: Tensor,
    others: Tensor,
    total: Tensor,
    slopes: Tensor,
    back: Tensor,
) -> tuple[Tensor, Tensor]:
    states, past = states.contiguous(), past.contiguous()
    grad_states, grad_past = torch.empty_like(states), torch.empty_like(past)
    if len(states) > 0:
        positions, tile = _tile(states)
        _loss_back[(launch.cdiv(len(states), positions),)](
            grad, states, past, others, total, slopes, back, grad_states, grad_past, len(others), **tile
        )
    return grad_states, grad_past


def _tile(states: Tensor) -> tuple[int, dict]:
    dim = states.shape[1]
    positions, columns = launch.tile(dim, launch.BAG_ELEMENTS, launch.BAG_ELEMENTS)
    return positions, {"D": dim, "BN": positions, "BD": columns}


@triton.jit(do_not_specialize=["num_samples", "num_steps", "num"])
def _loss(
    p_states, p_past, p_offsets, num_samples, num_steps, p_others, p_weights, p_slopes, p_back, p_parts,
    p_loss, p_total, p_count, num, D: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr,
    LANES: tl.constexpr,
):  # fmt: skip
    o_n = tl.program_id(0).to(tl.int64) * BN + tl.arange(0, BN)
    m_n, o_d = o_n < num, tl.arange(0, BD)
    b_sample, m_list = samples_of(p_offsets, num_samples, num_steps, o_n, num)
    m_next = m_list & (o_n + 1 < tl.load(p_offsets + b_sample + 1, mask=m_list, other=0))
    b_weight = m_next.to(tl.float32)
    if p_weights is not None:
        b_weight = b_weight * tl.load(p_weights + b_sample, mask=m_list, other=0).to(tl.float32)
    b_other = tl.load(p_others + o_n, mask=m_n, other=0)
    b_state = _vectors(p_states, o_n, m_n, o_d, D)
    b_positive = tl.sum(b_state * _vectors(p_past, o_n + 1, m_n, o_d, D), axis=1)
    b_negative = tl.sum(b_state * _vectors(p_past, b_other + 1, m_n, o_d, D), axis=1)
    tl.store(p_slopes + o_n, -b_weight * tl.sigmoid(-b_positive), mask=m_n)
    tl.store(p_slopes + num + o_n, b_weight * tl.sigmoid(b_negative), mask=m_n)
    tl.store(p_back + b_other, o_n, mask=m_n)
    b_loss = tl.maximum(-b_positive, 0.0) + log_one_more(tl.exp(-tl.abs(b_positive)))
    b_loss += tl.maximum(b_negative, 0.0) + log_one_more(tl.exp(-tl.abs(b_negative)))
    p_part = p_parts + 2 * tl.program_id(0)
    tl.store(p_part, tl.sum(b_loss * b_weight, axis=0))
    tl.store(p_part + 1, tl.sum(b_weight, axis=0))
    if is_last(p_count, tl.num_programs(0)):
        b_sum, b_total = tl.zeros([LANES], tl.float32), tl.zeros([LANES], tl.float32)
        for first in range(0, tl.num_programs(0), LANES):
            o_part = first + tl.arange(0, LANES)
            m_part = o_part < tl.num_programs(0)
            b_sum += tl.load(p_parts + 2 * o_part, mask=m_part, other=0.0)
            b_total += tl.load(p_parts + 2 * o_part + 1, mask=m_part, other=0.0)
        total = tl.maximum(tl.sum(b_total, axis=0), 1.0)
        tl.store(p_total, total)
        tl.store(p_loss, tl.sum(b_sum, axis=0) / total)


@triton.jit(do_not_specialize=["num"])
def _loss_back(
    p_grad, p_states, p_past, p_others, p_total, p_slopes, p_back, p_grad_states, p_grad_past, num,
    D: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """num: of states that have one behind them, in their list or in the next."""
    o_n = tl.program_id(0).to(tl.int64) * BN + tl.arange(0, BN)
    m_n, o_d = o_n < num, tl.arange(0, BD)
    scale = tl.load(p_grad) / tl.load(p_total)
    b_other = tl.load(p_others + o_n, mask=m_n, other=0)
    b_g = _slopes(p_slopes, o_n, m_n) * _vectors(p_past, o_n + 1, m_n, o_d, D)
    b_g += _slopes(p_slopes + num, o_n, m_n) * _vectors(p_past, b_other + 1, m_n, o_d, D)
    o_out, m_out = o_n[:, None] * D + o_d[None, :], (o_n <= num)[:, None] & (o_d < D)[None, :]
    tl.store(p_grad_states + o_out, b_g * scale, mask=m_out)

    o_before, m_before = o_n - 1, (o_n >= 1) & (o_n <= num)
    b_told = tl.load(p_back + o_before, mask=m_before, other=0)  # the state that it is the other one of
    b_g = _slopes(p_slopes, o_before, m_before) * _vectors(p_states, o_before, m_before, o_d, D)
    b_g += _slopes(p_slopes + num, b_told, m_before) * _vectors(p_states, b_told, m_before, o_d, D)
    tl.store(p_grad_past + o_out, b_g * scale, mask=m_out)


@triton.jit
def _vectors(p, o_n, m_n, o_d, D: tl.constexpr):
    p_vector = p + o_n[:, None] * D + o_d[None, :]
    return tl.load(p_vector, mask=m_n[:, None] & (o_d < D)[None, :], other=0.0)


@triton.jit
def _slopes(p_slopes, o_n, m_n):
    return tl.load(p_slopes + o_n, mask=m_n, other=0.0)[:, None]
