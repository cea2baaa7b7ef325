"""GRUs over lists on the GPU: a program per tile of samples, whose states stay on chip.

    step      0 1 2 3 4 5
    sample p  x x x x x x      samples are of like length, in the order of `longest_first`
    sample q  x x x x          forward    products with the state h [BB, BH], gates, the next h
    sample r  x x x            backward   gradients of the gates, then that of h

Formulas: `ops.layers.recurrent`. Gradients of weights are products over all positions at once, of what
the way back leaves: the gradients of the products and the states that went in. Positions behind the
last list, of padding, get zeros.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from hotrows.ops.triton import launch
from hotrows.ops.triton.functions import tanh
from hotrows.ops.triton.lists import clear

_SAMPLES = 16  # of a tile: the fewest rows that tensor cores multiply


def recurrent(
    parts: Tensor, attention: Tensor | None, offsets: Tensor, weight: Tensor, bias: Tensor, kind: str,
    reset: str, lengths: None, order: Tensor,
) -> tuple[Tensor, Tensor, Tensor | None]:  # fmt: skip
    num, width, size = len(parts), weight.shape[1], len(offsets) - 1
    states, gates = parts.new_empty(num, width), torch.empty_like(parts)
    inner = torch.empty_like(states) if reset == "after" else None
    if num > 0:
        lists, results = (attention, offsets, order), (states, gates, inner)
        _forward[(launch.cdiv(size, _SAMPLES),)](
            parts, *lists, weight, bias, *results, size, num, KIND=kind, H=width, **_tile(width)
        )
    return states, gates, inner


def recurrent_backward(
    grad_states: Tensor, states: Tensor, gates: Tensor, inner: Tensor | None, attention: Tensor | None,
    offsets: Tensor, weight: Tensor, kind: str, reset: str, lengths: None, order: Tensor,
) -> tuple[Tensor, Tensor | None, Tensor, Tensor, Tensor]:  # fmt: skip
    num, width, size = len(states), weight.shape[1], len(offsets) - 1
    grad_parts, entered = torch.empty_like(gates), torch.empty_like(states)
    grad_attention = None if attention is None else torch.empty_like(attention)
    grad_products = None if inner is None else torch.empty_like(gates)
    reset_state = torch.empty_like(states) if inner is None else None
    if num > 0:
        _backward[(launch.cdiv(size, _SAMPLES),)](
            grad_states, states, gates, inner, attention, offsets, order, weight,
            grad_parts, grad_products, grad_attention, entered, reset_state,
            size, num, KIND=kind, H=width, **_tile(width),
        )  # fmt: skip
    by_ih = by_hh = grad_parts.sum(0)
    if grad_products is not None:
        grad_weight, by_hh = grad_products.t() @ entered, grad_products.sum(0)
    else:
        assert reset_state is not None
        grad_weight, of_gates = torch.empty_like(weight), 2 * width
        torch.mm(grad_parts[:, :of_gates].t(), entered, out=grad_weight[:of_gates])
        torch.mm(grad_parts[:, of_gates:].t(), reset_state, out=grad_weight[of_gates:])
    return grad_parts, grad_attention, grad_weight, by_ih, by_hh


@triton.jit(do_not_specialize=["num_samples", "num"])
def _forward(
    p_parts, p_attention, p_offsets, p_order, p_weight, p_bias, p_states, p_gates, p_inner,
    num_samples, num, KIND: tl.constexpr, H: tl.constexpr, BB: tl.constexpr, BH: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    b_begin, b_length = _lists_of(p_offsets, p_order, num_samples, BB)
    o_h = tl.arange(0, BH)
    b_c_r, b_c_z, b_c_n = _load_gates(p_bias + o_h, o_h < H, H)
    b_h = tl.zeros([BB, BH], tl.float32)
    for step in range(tl.max(b_length, axis=0)):
        b_n, m_n = b_begin + step, step < b_length
        m, o_gates, o_state = _places(b_n, m_n, o_h, H)
        # [BB, BH]
        b_x_r, b_x_z, b_x_n = _load_gates(p_parts + o_gates, m, H)
        b_r = tl.sigmoid(b_x_r + _product(b_h, p_weight, o_h, H, 0, PRECISION) + b_c_r[None, :])
        b_z = tl.zeros([BB, BH], tl.float32)
        if KIND != "agru":
            b_z = tl.sigmoid(b_x_z + _product(b_h, p_weight, o_h, H, 1, PRECISION) + b_c_z[None, :])
        if p_inner is not None:
            b_inner = _product(b_h, p_weight, o_h, H, 2, PRECISION) + b_c_n[None, :]
            tl.store(p_inner + o_state, b_inner, mask=m)
            b_candidate = tanh(b_x_n + b_r * b_inner)
        else:
            b_inner = _product(b_r * b_h, p_weight, o_h, H, 2, PRECISION) + b_c_n[None, :]
            b_candidate = tanh(b_x_n + b_inner)
        b_a = _load_attention(p_attention, b_n, m_n, BB)
        b_h += _share(b_z, b_a, KIND) * (b_candidate - b_h)
        tl.store(p_gates + o_gates, b_r, mask=m)
        tl.store(p_gates + o_gates + H, b_z, mask=m)
        tl.store(p_gates + o_gates + 2 * H, b_candidate, mask=m)
        tl.store(p_states + o_state, b_h, mask=m)
    if tl.program_id(0) == 0:
        clear(p_states, tl.load(p_offsets + num_samples) * H, num.to(tl.int64) * H, 128)


@triton.jit(do_not_specialize=["num_samples", "num"])
def _backward(
    p_grad_states, p_states, p_gates, p_inner, p_attention, p_offsets, p_order, p_weight,
    p_grad_parts, p_grad_products, p_grad_attention, p_entered, p_reset_state, num_samples, num,
    KIND: tl.constexpr, H: tl.constexpr, BB: tl.constexpr, BH: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    # The lists of this program, from their last positions to the first ones.
    b_begin, b_length = _lists_of(p_offsets, p_order, num_samples, BB)
    o_h = tl.arange(0, BH)
    b_carried = tl.zeros([BB, BH], tl.float32)  # what later states add to the gradient
    longest = tl.max(b_length, axis=0)
    for back in range(longest):
        step = longest - 1 - back
        b_n, m_n = b_begin + step, step < b_length
        m, o_gates, o_state = _places(b_n, m_n, o_h, H)
        # [BB, BH]
        b_r, b_z, b_candidate = _load_gates(p_gates + o_gates, m, H)
        b_h = tl.load(p_states + o_state - H, mask=m & (b_n > b_begin)[:, None], other=0.0)
        b_g = b_carried + tl.load(p_grad_states + o_state, mask=m, other=0.0)
        b_a = _load_attention(p_attention, b_n, m_n, BB)
        # Gradients of the share, of attention, and of the gates before their functions.
        b_share = _share(b_z, b_a, KIND)
        b_grad_share = b_g * (b_candidate - b_h)
        if p_attention is not None:
            b_by_a = b_grad_share
            if KIND != "agru":
                b_by_a = b_grad_share * b_z
            tl.store(p_grad_attention + b_n, tl.sum(b_by_a, axis=1), mask=m_n)
        b_dz = b_grad_share * _share_by_z(b_a, KIND) * b_z * (1.0 - b_z)
        b_dn = b_g * b_share * (1.0 - b_candidate * b_candidate)
        b_carried = b_g * (1.0 - b_share)
        # Back through the reset gate, and to the state before.
        if p_inner is not None:
            b_inner = tl.load(p_inner + o_state, mask=m, other=0.0)
            b_d_inner = b_dn * b_r
            b_dr = b_dn * b_inner * b_r * (1.0 - b_r)
            b_carried += _product_back(b_d_inner, p_weight, o_h, H, 2, PRECISION)
            _store_gates(p_grad_products + o_gates, b_dr, b_dz, b_d_inner, m, H)
        else:
            b_d_reset = _product_back(b_dn, p_weight, o_h, H, 2, PRECISION)
            b_dr = b_d_reset * b_h * b_r * (1.0 - b_r)
            b_carried += b_d_reset * b_r
            tl.store(p_reset_state + o_state, b_r * b_h, mask=m)
        b_carried += _product_back(b_dr, p_weight, o_h, H, 0, PRECISION)
        if KIND != "agru":
            b_carried += _product_back(b_dz, p_weight, o_h, H, 1, PRECISION)
        _store_gates(p_grad_parts + o_gates, b_dr, b_dz, b_dn, m, H)
        tl.store(p_entered + o_state, b_h, mask=m)
    if tl.program_id(0) == 0:
        first, end = tl.load(p_offsets + num_samples), num.to(tl.int64)  # positions of no sample
        clear(p_grad_parts, first * (3 * H), end * (3 * H), 128)
        clear(p_entered, first * H, end * H, 128)
        if p_attention is not None:
            clear(p_grad_attention, first, end, 128)
        if p_inner is not None:
            clear(p_grad_products, first * (3 * H), end * (3 * H), 128)
        else:
            clear(p_reset_state, first * H, end * H, 128)


@triton.jit
def _lists_of(p_offsets, p_order, num_samples, BB: tl.constexpr):
    """Where the lists of this tile's samples begin, and how long they are; 0 behind the last sample."""
    o_b = tl.program_id(0).to(tl.int64) * BB + tl.arange(0, BB)
    b_sample = tl.load(p_order + o_b, mask=o_b < num_samples, other=0)
    b_begin = tl.load(p_offsets + b_sample)
    return b_begin, tl.where(o_b < num_samples, tl.load(p_offsets + b_sample + 1) - b_begin, 0)


@triton.jit
def _places(b_n, m_n, o_h, H: tl.constexpr):
    """The mask of a step, and where the gates and the state of its positions are: [BB, BH]."""
    o_gates, o_state = b_n[:, None] * (3 * H) + o_h[None, :], b_n[:, None] * H + o_h[None, :]
    return m_n[:, None] & (o_h < H)[None, :], o_gates, o_state


@triton.jit
def _load_gates(p, m, H: tl.constexpr):
    b_r = tl.load(p, mask=m, other=0.0)
    return b_r, tl.load(p + H, mask=m, other=0.0), tl.load(p + 2 * H, mask=m, other=0.0)


@triton.jit
def _store_gates(p, b_r, b_z, b_n, m, H: tl.constexpr):
    tl.store(p, b_r, mask=m)
    tl.store(p + H, b_z, mask=m)
    tl.store(p + 2 * H, b_n, mask=m)


@triton.jit
def _load_attention(p_attention, b_n, m_n, BB: tl.constexpr):
    """[BB, 1]; zeros without attention."""
    b_a = tl.zeros([BB], tl.float32)
    if p_attention is not None:
        b_a = tl.load(p_attention + b_n, mask=m_n, other=0.0)
    return b_a[:, None]


@triton.jit
def _product(b_x, p_weight, o_h, H: tl.constexpr, GATE: tl.constexpr, PRECISION: tl.constexpr):
    """x U^T, U the weights of a gate, read where they are used: the closest cache has them."""
    m = (o_h < H)[:, None] & (o_h < H)[None, :]
    b_u = tl.load(p_weight + GATE * H * H + o_h[None, :] * H + o_h[:, None], mask=m, other=0.0)
    return tl.dot(b_x, b_u, input_precision=PRECISION)


@triton.jit
def _product_back(b_x, p_weight, o_h, H: tl.constexpr, GATE: tl.constexpr, PRECISION: tl.constexpr):
    """x U."""
    m = (o_h < H)[:, None] & (o_h < H)[None, :]
    b_u = tl.load(p_weight + GATE * H * H + o_h[:, None] * H + o_h[None, :], mask=m, other=0.0)
    return tl.dot(b_x, b_u, input_precision=PRECISION)


@triton.jit
def _share(b_z, b_a, KIND: tl.constexpr):
    """The weight of the candidate in the new state."""
    if KIND == "gru":
        b_share = 1.0 - b_z
    elif KIND == "augru":
        b_share = b_a * b_z
    elif KIND == "augru_code":
        b_share = 1.0 - (1.0 - b_a) * b_z
    else:
        tl.static_assert(KIND == "agru", "unknown kind of recurrence")
        b_share = tl.broadcast_to(b_a, b_z.shape)
    return b_share


@triton.jit
def _share_by_z(b_a, KIND: tl.constexpr):
    """Its derivative by z."""
    if KIND == "gru":
        b_a = tl.full(b_a.shape, -1.0, tl.float32)
    elif KIND == "augru_code":
        b_a = b_a - 1.0
    elif KIND == "agru":
        b_a = tl.zeros(b_a.shape, tl.float32)
    return b_a


def _tile(width: int) -> dict:
    columns = max(16, launch.next_power_of_2(width))
    warps = min(columns // 8, 8)  # each has 8 columns of a product, the fewest that tensor cores make
    return {
        "BB": _SAMPLES,
        "BH": columns,
        "PRECISION": launch.products(),
        "num_warps": warps,
        "num_stages": 1,
    }
