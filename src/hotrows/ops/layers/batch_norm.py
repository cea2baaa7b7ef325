"""Batch normalisation on statistics that are known: forward, sums over the rows, and backward."""

from __future__ import annotations

import torch
from torch import Tensor

from hotrows.ops.layers.dice import zero_behind


def batch_norm(x: Tensor, mean: Tensor, rstd: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """(x - mean) rstd weight + bias: [M, H] and [H] each -> [M, H]."""
    scale = rstd * weight
    return torch.addcmul(bias - mean * scale, x, scale)


def batch_norm_sums(grad: Tensor, x: Tensor, mean: Tensor, rstd: Tensor) -> Tensor:
    """The first pass of the way back: gradients of bias and weight by the rows at hand, [2, H]."""
    return torch.stack([grad.sum(0), (grad * (x - mean)).sum(0) * rstd])


def batch_norm_to_x(
    grad: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, weight: Tensor, sums: Tensor, num_rows: int,
    real: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """The second pass: the gradient of x, [M, H].

    sums: the first pass's, over the num_rows rows whose statistics mean and rstd are: those of x, and
    maybe of other ranks. real: as in `dice.dice_to_x`.
    """
    by_bias, by_weight = sums
    scale, num = rstd * weight, num_rows if real is None else real.clamp(min=1)
    grad_x = (x - mean).mul_(-scale * rstd * by_weight / num)
    grad_x = grad_x.addcmul_(grad, scale).sub_(scale * by_bias / num)
    return grad_x if real is None else zero_behind(real, grad_x)
