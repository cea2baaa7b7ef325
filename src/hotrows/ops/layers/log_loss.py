"""The mean cross-entropy of logits with labels from 0 to 1, each times a weight."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from hotrows.ops.layers.by_device import by_device, gpu_op


def log_loss(logits: Tensor, labels: Tensor, weights: Tensor | None) -> Tensor:
    """[]: the mean over all logits; tensors of one shape, but weights may be of its last dimensions
    alone."""
    return by_device(log_loss_reference, logits, labels, weights)


def log_loss_backward(grad: Tensor, logits: Tensor, labels: Tensor, weights: Tensor | None) -> Tensor:
    """The gradient of the logits, from that of the mean."""
    return by_device(log_loss_backward_reference, grad, logits, labels, weights)


@gpu_op("log_loss")
def log_loss_reference(logits: Tensor, labels: Tensor, weights: Tensor | None) -> Tensor:
    return functional.binary_cross_entropy_with_logits(logits, labels, weights)


@gpu_op("log_loss")
def log_loss_backward_reference(
    grad: Tensor, logits: Tensor, labels: Tensor, weights: Tensor | None
) -> Tensor:
    grad_logits = (torch.sigmoid(logits) - labels) * (grad / max(logits.numel(), 1))
    return grad_logits if weights is None else grad_logits * weights
