"""The recurrence of GRUs over jagged sequences."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from hotrows.ops.layers.attention import checked_offsets
from hotrows.ops.layers.by_device import by_device, gpu_op
from hotrows.runtime import native
from hotrows.runtime.native import call, takes

KINDS = native.codes("recurrent_kind", "gru", "augru", "augru_code", "agru")
RESETS = ("before", "after")
MOST_STATES = 128
"""The widest state that the kernel for a GPU takes."""


def recurrent(
    parts: Tensor,
    attention: Tensor | None,
    offsets: Tensor,
    weight: Tensor,
    bias: Tensor,
    kind: str,
    reset: str,
    lengths: Tensor | None = None,
    order: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """The state of each position, from zeros in front of each sample's first.

    parts: [N, 3H], the inputs' share x_r, x_z, x_n of the gates; attention: [N], None for "gru".
    weight: [3H, H] of U_r, U_z, U_n; bias: [3H] of c_r, c_z, c_n. lengths: [B] int64 in host memory, how
    long each sample is; without it the reference waits for a GPU. order: `longest_first`, which kernels
    for a GPU read. With h the state before:

        r = sigmoid(x_r + U_r h + c_r)      z = sigmoid(x_z + U_z h + c_z)
        n = tanh(x_n + r * (U_n h + c_n))   reset "after" the product
        n = tanh(x_n + U_n (r * h) + c_n)   reset "before" it
        h' = h + share * (n - h)            share: 1 - z in "gru", a z in "augru",
                                            1 - (1 - a) z in "augru_code", a in "agru"

    Returns states [N, H], and for the way back gates [N, 3H] (r, z, n; z is 0 in "agru") and, where
    reset is "after", U_n h + c_n [N, H]. The native core writes the gates over `parts`.
    """
    if not takes(parts, attention, weight, bias):
        inputs = parts, attention, offsets, weight, bias, kind, reset
        return _by_device(recurrent_reference, inputs, weight, lengths, order)
    if attention is not None and attention.shape != (len(parts),):
        raise ValueError(f"expected {len(parts):,} attentions, one of each, not {list(attention.shape)}")
    offsets = checked_offsets(offsets, len(offsets) - 1, len(parts))
    attention, parts = _contiguous(attention), parts.contiguous()
    weight, bias = weight.contiguous(), bias.contiguous()
    states = parts.new_empty(len(parts), weight.shape[1])
    inner = torch.empty_like(states) if reset == "after" else None
    call(
        "recurrent", parts, attention, offsets, len(offsets) - 1,
        weight, bias, weight.shape[1], KINDS[kind], reset == "after", inner, states,
    )  # fmt: skip
    return states, parts, inner


def recurrent_backward(
    grad_states: Tensor,
    states: Tensor,
    gates: Tensor,
    inner: Tensor | None,
    attention: Tensor | None,
    offsets: Tensor,
    weight: Tensor,
    kind: str,
    reset: str,
    lengths: Tensor | None = None,
    order: Tensor | None = None,
) -> tuple[Tensor, Tensor | None, Tensor, Tensor, Tensor]:
    """Gradients of parts, attention, weight, a bias added to parts, and bias.

    grad_states: [N, H], of every state as a result, without what later states add to it.
    """
    if not takes(grad_states, gates, attention, weight):
        inputs = grad_states, states, gates, inner, attention, offsets, weight, kind, reset
        return _by_device(recurrent_backward_reference, inputs, weight, lengths, order)
    grad_states, attention = grad_states.contiguous(), _contiguous(attention)
    offsets, weight = offsets.contiguous(), weight.contiguous()
    grad_parts, grad_weight = torch.empty_like(gates), torch.empty_like(weight)
    grad_attention = None if attention is None else torch.empty_like(attention)
    grad_bias_ih, grad_bias_hh = weight.new_empty(len(weight)), weight.new_empty(len(weight))
    grads = grad_parts, grad_attention, grad_weight, grad_bias_ih, grad_bias_hh
    call(
        "recurrent_backward", grad_states, states, gates, inner,
        attention, offsets, len(offsets) - 1,
        weight, weight.shape[1], KINDS[kind], reset == "after", *grads,
    )  # fmt: skip
    return grads


@gpu_op("recurrent")
def recurrent_reference(
    parts: Tensor,
    attention: Tensor | None,
    offsets: Tensor,
    weight: Tensor,
    bias: Tensor,
    kind: str,
    reset: str,
    lengths: Tensor | None = None,
    order: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor | None]:
    size = weight.shape[1]
    states, gates = parts.new_zeros(len(parts), size), parts.new_zeros(parts.shape)
    inner = parts.new_zeros(len(parts), size) if reset == "after" else None
    u, c = weight.chunk(3), bias.chunk(3)  # [H, H] and [H] of r, z, n
    for places, is_first in _steps(offsets, lengths):  # [S], S samples that long
        h = states.new_zeros(len(places), size) if is_first else states[places - 1]  # [S, H]
        a = None if attention is None else attention[places, None]  # [S, 1]
        x = parts[places].chunk(3, 1)  # [S, H] of r, z, n
        r = torch.sigmoid(x[0] + h @ u[0].t() + c[0])
        z = torch.zeros_like(r) if kind == "agru" else torch.sigmoid(x[1] + h @ u[1].t() + c[1])
        if inner is not None:
            inner[places] = h @ u[2].t() + c[2]
            n = torch.tanh(x[2] + r * inner[places])
        else:
            n = torch.tanh(x[2] + (r * h) @ u[2].t() + c[2])
        gates[places] = torch.cat([r, z, n], 1)  # [S, 3H]
        states[places] = h + share_of(kind, z, a) * (n - h)
    return states, gates, inner


@gpu_op("recurrent")
def recurrent_backward_reference(
    grad_states: Tensor,
    states: Tensor,
    gates: Tensor,
    inner: Tensor | None,
    attention: Tensor | None,
    offsets: Tensor,
    weight: Tensor,
    kind: str,
    reset: str,
    lengths: Tensor | None = None,
    order: Tensor | None = None,
) -> tuple[Tensor, Tensor | None, Tensor, Tensor, Tensor]:
    size = weight.shape[1]
    u = weight.chunk(3)  # [H, H] of r, z, n
    carried = torch.zeros_like(states)  # [N, H]: what later states add to the gradient
    grad_parts = torch.zeros_like(gates)  # [N, 3H]
    grad_products = torch.zeros_like(gates)
    grad_attention = None if attention is None else torch.zeros_like(attention)
    old, reset_old = torch.zeros_like(states), torch.zeros_like(states)
    for places, is_first in reversed(list(_steps(offsets, lengths))):
        r, z, n = gates[places].chunk(3, 1)  # [S, H]
        h = torch.zeros_like(r) if is_first else states[places - 1]
        a = None if attention is None else attention[places, None]
        g = carried[places] + grad_states[places]
        share = share_of(kind, z, a)
        share_z, share_a = _share_derivatives(kind, z, a)
        grad_share = g * (n - h)
        if grad_attention is not None:
            grad_attention[places] = (grad_share * share_a).sum(1)
        dz = grad_share * share_z * z * (1 - z)
        dn = g * share * (1 - n * n)
        before = g * (1 - share)
        # Through the candidate, whose reset is after or before the product.
        if inner is not None:
            d_inner, dr = dn * r, dn * inner[places] * r * (1 - r)
            before = before + d_inner @ u[2]
        else:
            d_reset = dn @ u[2]
            d_inner, dr = dn, d_reset * h * r * (1 - r)
            before = before + d_reset * r
        grad_parts[places] = torch.cat([dr, dz, dn], 1)  # [S, 3H]
        grad_products[places] = torch.cat([dr, dz, d_inner], 1)
        old[places], reset_old[places] = h, h if reset == "after" else r * h
        if not is_first:
            carried[places - 1] = before + dr @ u[0] + dz @ u[1]
    into_gates, into_candidate = grad_products.split([2 * size, size], 1)  # [N, 2H], [N, H]
    grad_weight = torch.cat([into_gates.t() @ old, into_candidate.t() @ reset_old])  # [3H, H]
    return grad_parts, grad_attention, grad_weight, grad_parts.sum(0), grad_products.sum(0)


def longest_first(offsets: Tensor, width: int) -> Tensor | None:
    """The samples by falling length, [B], for kernels of a GPU that take states of that width, else None.

    Sorted once for all layers that read these `offsets`.
    """
    if not offsets.is_cuda or width > MOST_STATES or torch.compiler.is_compiling():
        return None
    notes = vars(offsets)
    if "longest_first" not in notes:
        notes["longest_first"] = offsets.diff().argsort(descending=True, stable=True)
    return notes["longest_first"]


def _by_device(
    reference: Callable[..., Any],
    inputs: tuple[Any, ...],
    weight: Tensor,
    lengths: Tensor | None,
    order: Tensor | None,
) -> tuple[Any, ...]:
    """The kernel for a GPU reads lengths there, and has room on chip for states of a limited width."""
    if weight.is_cuda and weight.shape[1] <= MOST_STATES:
        return by_device(reference, *inputs, None, order)
    if weight.is_cuda and torch.cuda.is_current_stream_capturing():
        raise RuntimeError(f"states wider than {MOST_STATES} follow lengths that the host reads")
    return reference(*inputs, lengths)


def _contiguous(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.contiguous()


def _steps(offsets: Tensor, lengths: Tensor | None) -> Iterator[tuple[Tensor, bool]]:
    """Yields the positions of all samples that long, step by step, and whether it is the first step.

    Samples are sorted by length, the longest first, so a step takes the first ones of them.
    """
    lengths = offsets.diff().cpu() if lengths is None else lengths
    starts = offsets[:-1][offsets.diff().argsort(descending=True, stable=True)]
    ended = lengths.bincount().cumsum(0)[:-1]  # samples no longer than each step
    for step, count in enumerate((len(lengths) - ended).tolist()):
        yield starts[:count] + step, step == 0


def share_of(kind: str, z: Tensor, a: Tensor | None) -> Tensor:
    """The weight of the candidate in the new state, [S, H]; that of the old state is 1 minus it."""
    if a is None:
        return 1 - z
    if kind == "augru":
        return a * z
    return 1 - (1 - a) * z if kind == "augru_code" else a.expand_as(z)


def _share_derivatives(kind: str, z: Tensor, a: Tensor | None) -> tuple[Tensor, Tensor]:
    """Derivatives of the share by z and by the attention."""
    if a is None:
        return -torch.ones_like(z), torch.zeros_like(z)
    if kind == "agru":
        return torch.zeros_like(z), torch.ones_like(z)
    return (a if kind == "augru" else a - 1).expand_as(z), z
