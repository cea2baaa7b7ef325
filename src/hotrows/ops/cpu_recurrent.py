"""The recurrence of GRUs on the native core: as in `reference_recurrent`."""

from __future__ import annotations

from ctypes import CDLL, c_int64

import torch
from torch import Tensor

from hotrows import native
from hotrows.native import pointer
from hotrows.ops.reference_recurrent import KINDS


def takes(*tensors: Tensor | None) -> bool:
    """Whether the core has a kernel for values of these devices and dtypes; not in a compiled graph."""
    on_core = all(
        t is None or (t.device.type == "cpu" and t.dtype == torch.float32) for t in tensors
    )
    return on_core and not torch.compiler.is_compiling() and native.load() is not None


def recurrent(
    parts: Tensor,
    attention: Tensor | None,
    offsets: Tensor,
    weight: Tensor,
    bias: Tensor,
    kind: str,
    reset: str,
) -> tuple[Tensor, Tensor, Tensor | None]:
    assert parts.is_contiguous(), "the gates are written over it"
    assert offsets.dtype == torch.int64 and int(offsets[-1]) == len(parts), "lists of other rows"
    attention, offsets = _contiguous(attention), offsets.contiguous()
    weight, bias = weight.contiguous(), bias.contiguous()
    states = parts.new_empty(len(parts), weight.shape[1])
    inner = torch.empty_like(states) if reset == "after" else None
    _core().hotrows_recurrent(
        pointer(parts), pointer(attention), pointer(offsets), c_int64(len(offsets) - 1),
        pointer(weight), pointer(bias), c_int64(weight.shape[1]),
        KINDS.index(kind), int(reset == "after"), pointer(inner), pointer(states),
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
) -> tuple[Tensor, Tensor | None, Tensor, Tensor, Tensor]:
    grad_states, attention = grad_states.contiguous(), _contiguous(attention)
    offsets, weight = offsets.contiguous(), weight.contiguous()
    grad_parts, grad_weight = torch.empty_like(gates), torch.empty_like(weight)
    grad_attention = None if attention is None else torch.empty_like(attention)
    grad_bias_ih, grad_bias_hh = weight.new_empty(len(weight)), weight.new_empty(len(weight))
    _core().hotrows_recurrent_backward(
        pointer(grad_states), pointer(states), pointer(gates), pointer(inner), pointer(attention),
        pointer(offsets), c_int64(len(offsets) - 1), pointer(weight), c_int64(weight.shape[1]),
        KINDS.index(kind), int(reset == "after"), pointer(grad_parts), pointer(grad_attention),
        pointer(grad_weight), pointer(grad_bias_ih), pointer(grad_bias_hh),
    )  # fmt: skip
    return grad_parts, grad_attention, grad_weight, grad_bias_ih, grad_bias_hh


def _core() -> CDLL:
    core = native.load()
    assert core is not None, "asked without `takes`"
    return core


def _contiguous(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.contiguous()
