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
) -> tuple[Tensor, Tensor, Tensor | None]:
    ops = cpu_recurrent if cpu_recurrent.takes(parts, attention, weight) else reference_recurrent
    return ops.recurrent(parts, attention, offsets, weight, bias, kind, reset)


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
    ops = cpu_recurrent if cpu_recurrent.takes(gates, attention, weight) else reference_recurrent
    return ops.recurrent_backward(
        grad_states, states, gates, inner, attention, offsets, weight, kind, reset
    )
