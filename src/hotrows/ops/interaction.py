"""Interactions of a sample's vectors: the native core where it takes the tensors, else PyTorch."""

from __future__ import annotations

from torch import Tensor

from hotrows.ops import cpu_interaction, reference_interaction


def dot_interaction(bottom: Tensor, vectors: Tensor) -> Tensor:
    return _ops(bottom, vectors).dot_interaction(bottom, vectors)


def dot_interaction_backward(
    grad: Tensor, bottom: Tensor, vectors: Tensor
) -> tuple[Tensor, Tensor]:
    return _ops(grad, bottom, vectors).dot_interaction_backward(grad, bottom, vectors)


def second_order(vectors: Tensor) -> Tensor:
    return _ops(vectors).second_order(vectors)


def second_order_backward(grad: Tensor, vectors: Tensor) -> Tensor:
    return _ops(vectors).second_order_backward(grad, vectors)


def _ops(*tensors: Tensor):
    return cpu_interaction if cpu_interaction.takes(*tensors) else reference_interaction
