"""The co-action unit on the GPU: a program per sample, and forward per power too, its network on chip.

All layers are [BW, BW] matrices, padded with zeros, and what differs between them is picked by masks:

    x [BN, BW], a block of the list -> its power -> layer 0 -> tanh -> layer 1 -> ..      sums [DEPTH, BW]

Formulas: `ops.layers.co_action`. Inputs may be padded: behind the last list they are of no sample.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from hotrows.ops.triton import launch
from hotrows.ops.triton.functions import tanh
from hotrows.ops.triton.lists import clear

_MOST_WIDTH = 64  # of a layer: gradients of all matrices of a sample stay in registers


def takes(*arguments) -> bool:
    """True if there is a kernel for networks of these sizes."""
    sizes = next(a for a in arguments if not isinstance(a, Tensor))
    return max(sizes) <= _MOST_WIDTH and len(sizes) <= 5


def co_action(
    weights: Tensor, inputs: Tensor, offsets: Tensor, sizes: Sequence[int], orders: int,
    shared_orders: bool,
) -> Tensor:  # fmt: skip
    out = weights.new_empty(len(weights), orders * sum(sizes[1:]))
    if len(weights) > 0:
        network = _network(sizes, orders, shared_orders)
        _forward[(len(weights), orders)](weights, inputs, offsets, out, **network)
    return out


def co_action_backward(
    grad: Tensor, weights: Tensor, inputs: Tensor, offsets: Tensor, sizes: Sequence[int], orders: int,
    shared_orders: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    grad_weights, grad_inputs = torch.empty_like(weights), torch.empty_like(inputs)
    if len(weights) > 0:
        network = _network(sizes, orders, shared_orders)
        grads, sizes = (grad_weights, grad_inputs), (len(weights), len(inputs))
        _backward[(len(weights),)](grad, weights, inputs, offsets, *grads, *sizes, **network)
    return grad_weights, grad_inputs


@triton.jit
def _forward(
    p_weights, p_inputs, p_offsets, p_out, LAYERS: tl.constexpr, NUM_LAYERS: tl.constexpr,
    DEPTH: tl.constexpr, ORDERS: tl.constexpr, SHARED: tl.constexpr, WEIGHTS: tl.constexpr,
    OUTPUTS: tl.constexpr, D: tl.constexpr, BN: tl.constexpr, BW: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    i_b, order = tl.program_id(0).to(tl.int64), tl.program_id(1)
    begin, end = tl.load(p_offsets + i_b), tl.load(p_offsets + i_b + 1)
    p_w = _network_of(p_weights, i_b, order, ORDERS, SHARED, WEIGHTS)
    o_l, o_w = tl.arange(0, DEPTH), tl.arange(0, BW)
    b_sums = tl.zeros([DEPTH, BW], tl.float32)
    for first in range(begin, end, BN):
        o_n = first + tl.arange(0, BN)
        m_x = (o_n < end)[:, None] & (o_w < D)[None, :]
        # [BN, BW]
        b_x = tl.load(p_inputs + o_n[:, None] * D + o_w[None, :], mask=m_x, other=0.0)
        b_y = b_x * _power(b_x, order)
        for layer in tl.static_range(NUM_LAYERS):
            b_matrix = _load_matrix(p_w, LAYERS[layer][0], LAYERS[layer][1], LAYERS[layer][2], o_w)
            b_y = tl.dot(b_y, b_matrix, input_precision=PRECISION)
            if layer < NUM_LAYERS - 1:
                b_y = tanh(b_y)
            b_sums += tl.where((o_l == layer)[:, None], tl.sum(b_y, axis=0)[None, :], 0.0)
    p_sample = p_out + (i_b * ORDERS + order) * OUTPUTS
    for layer in tl.static_range(NUM_LAYERS):
        b_sum = tl.sum(tl.where((o_l == layer)[:, None], b_sums, 0.0), axis=0)
        tl.store(p_sample + LAYERS[layer][3] + o_w, b_sum, mask=o_w < LAYERS[layer][1])


@triton.jit(do_not_specialize=["num_samples", "num"])
def _backward(
    p_grad, p_weights, p_inputs, p_offsets, p_grad_weights, p_grad_inputs, num_samples, num,
    LAYERS: tl.constexpr, NUM_LAYERS: tl.constexpr, DEPTH: tl.constexpr, ORDERS: tl.constexpr,
    SHARED: tl.constexpr, WEIGHTS: tl.constexpr, OUTPUTS: tl.constexpr, D: tl.constexpr,
    BN: tl.constexpr, BW: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    i_b = tl.program_id(0).to(tl.int64)
    begin, end = tl.load(p_offsets + i_b), tl.load(p_offsets + i_b + 1)
    o_l, o_w = tl.arange(0, DEPTH), tl.arange(0, BW)
    m_l = o_l[:, None, None]
    b_grads = tl.zeros([DEPTH, BW, BW], tl.float32)
    for order in range(ORDERS):
        p_w = _network_of(p_weights, i_b, order, ORDERS, SHARED, WEIGHTS)
        p_g = p_grad + (i_b * ORDERS + order) * OUTPUTS
        if not SHARED:
            b_grads = tl.zeros([DEPTH, BW, BW], tl.float32)
        for first in range(begin, end, BN):
            o_n = first + tl.arange(0, BN)
            m_n = o_n < end
            o_x, m_x = o_n[:, None] * D + o_w[None, :], m_n[:, None] & (o_w < D)[None, :]
            # [BN, BW]
            b_x = tl.load(p_inputs + o_x, mask=m_x, other=0.0)
            b_power = _power(b_x, order)
            b_y = b_x * b_power
            # Run the network again, and keep what each layer read.
            b_read = tl.zeros([DEPTH, BN, BW], tl.float32)  # by each layer
            for layer in tl.static_range(NUM_LAYERS - 1):
                b_read = tl.where(m_l == layer, b_y[None, :, :], b_read)
                b_matrix = _load_matrix(p_w, LAYERS[layer][0], LAYERS[layer][1], LAYERS[layer][2], o_w)
                b_y = tanh(tl.dot(b_y, b_matrix, input_precision=PRECISION))
            b_read = tl.where(m_l == NUM_LAYERS - 1, b_y[None, :, :], b_read)
            b_back = tl.zeros([BN, BW], tl.float32)
            for layer in tl.static_range(NUM_LAYERS - 1, -1, -1):
                m_g = m_n[:, None] & (o_w < LAYERS[layer][1])[None, :]
                p_layer = p_g + LAYERS[layer][3] + o_w[None, :] + o_n[:, None] * 0
                b_back += tl.load(p_layer, mask=m_g, other=0.0)
                if layer < NUM_LAYERS - 1:
                    b_back = b_back * (1.0 - b_y * b_y)
                b_y = tl.sum(tl.where(m_l == layer, b_read, 0.0), axis=0)
                b_grad = tl.dot(tl.trans(b_y), b_back, input_precision=PRECISION)
                b_grads += tl.where(m_l == layer, b_grad[None, :, :], 0.0)
                b_matrix = _load_matrix(p_w, LAYERS[layer][0], LAYERS[layer][1], LAYERS[layer][2], o_w)
                b_back = tl.dot(b_back, tl.trans(b_matrix), input_precision=PRECISION)
            b_back = b_back * b_power * (order + 1)
            b_back += tl.load(p_grad_inputs + o_x, mask=m_x & (order > 0), other=0.0)
            tl.store(p_grad_inputs + o_x, b_back, mask=m_x)
        if not SHARED or order == ORDERS - 1:
            p_out = _network_of(p_grad_weights, i_b, order, ORDERS, SHARED, WEIGHTS)
            for layer in tl.static_range(NUM_LAYERS):
                b_grad = tl.sum(tl.where(m_l == layer, b_grads, 0.0), axis=0)
                p_matrix, m_matrix = _places(
                    p_out, LAYERS[layer][0], LAYERS[layer][1], LAYERS[layer][2], o_w
                )
                tl.store(p_matrix, b_grad, mask=m_matrix)
        tl.debug_barrier()  # gradients of inputs are read by the next power as this one wrote them
    if i_b == num_samples - 1:
        clear(p_grad_inputs, end * D, num.to(tl.int64) * D, 128)


@triton.jit
def _power(b_x, order):
    """x^order."""
    b_power = tl.full(b_x.shape, 1.0, tl.float32)
    for _ in range(order):
        b_power = b_power * b_x
    return b_power


@triton.jit
def _network_of(p_weights, i_b, order, ORDERS: tl.constexpr, SHARED: tl.constexpr, WEIGHTS: tl.constexpr):
    place = i_b if SHARED else i_b * ORDERS + order
    return p_weights + place * WEIGHTS


@triton.jit
def _load_matrix(p_network, IN: tl.constexpr, OUT: tl.constexpr, FIRST: tl.constexpr, o_w):
    """The matrix of a layer, zeros around it: [BW, BW]."""
    p_matrix, m_matrix = _places(p_network, IN, OUT, FIRST, o_w)
    return tl.load(p_matrix, mask=m_matrix, other=0.0)


@triton.jit
def _places(p_network, IN: tl.constexpr, OUT: tl.constexpr, FIRST: tl.constexpr, o_w):
    p_matrix = p_network + FIRST + o_w[:, None] * OUT + o_w[None, :]
    return p_matrix, (o_w < IN)[:, None] & (o_w < OUT)[None, :]


def _network(sizes: Sequence[int], orders: int, shared: bool) -> dict:
    """LAYERS: of each its inputs, its outputs, and where its weights and its sums begin."""
    pairs = list(itertools.pairwise(sizes))
    weights = [0, *itertools.accumulate(i * o for i, o in pairs)]
    outputs = [0, *itertools.accumulate(o for _, o in pairs)]
    width = max(16, launch.next_power_of_2(max(sizes)))
    return {
        "LAYERS": tuple((*pair, weights[n], outputs[n]) for n, pair in enumerate(pairs)),
        "NUM_LAYERS": len(pairs),
        "DEPTH": launch.next_power_of_2(len(pairs)),
        "ORDERS": orders,
        "SHARED": shared,
        "WEIGHTS": weights[-1],
        "OUTPUTS": outputs[-1],
        "D": sizes[0],
        "BN": 16,
        "BW": width,
        "PRECISION": launch.products(),
        "num_warps": {16: 1, 32: 4, 64: 8}[width],
        "num_stages": 1,
    }
