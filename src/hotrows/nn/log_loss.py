"""The mean cross-entropy of logits with labels."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from hotrows.ops.layers import log_loss as ops


def log_loss(logits: Tensor, labels: Tensor, weights: Tensor | None = None) -> Tensor:
    """The mean over all logits of weight times cross-entropy; labels are 0, 1 or between.

    PyTorch's own on the CPU; on a GPU a kernel each way, where PyTorch has one for each operation.
    """
    if not logits.is_cuda:
        return functional.binary_cross_entropy_with_logits(logits, labels, weights)
    return _LogLoss.apply(logits, labels, weights)


class _LogLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits, labels, weights):
        ctx.save_for_backward(logits, labels, weights)
        return ops.log_loss(logits, labels, weights)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad):
        return ops.log_loss_backward(grad, *ctx.saved_tensors), None, None
