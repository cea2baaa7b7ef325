"""The recurrence of GRUs: the native core where it takes the tensors, else PyTorch."""

from __future__ import annotations

from torch import Tensor

from hotrows.ops import cpu_recurrent, reference_recurrent


def recurrent(
    parts: Tensor,
    attention: Tensor | None,
    offsets: Tensor,
    weight: Tensor,
    bias: Tensor,
    kind: str,
    reset: str,
    lengths: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor | None]:
    given = parts, attention, offsets, weight, bias, kind, reset
    if cpu_recurrent.takes(parts, attention, weight):
        return cpu_recurrent.recurrent(*given)
    return reference_recurrent.recurrent(*given, lengths)


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
) -> tuple[Tensor, Tensor | None, Tensor, Tensor, Tensor]:
    given = grad_states, states, gates, inner, attention, offsets, weight, kind, reset
    if cpu_recurrent.takes(gates, attention, weight):
        return cpu_recurrent.recurrent_backward(*given)
    return reference_recurrent.recurrent_backward(*given, lengths)
