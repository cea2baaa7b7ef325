"""Batch normalisation on statistics that are known: forward, sums over the rows, and backward."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from hotrows.ops.layers.by_device import by_device, gpu_op


def batch_norm(x: Tensor, mean: Tensor, rstd: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """(x - mean) rstd weight + bias: [M, H] and [H] each -> [M, H]."""
    return by_device(batch_norm_reference, x, mean, rstd, weight, bias)


def batch_norm_sums(grad: Tensor, x: Tensor, mean: Tensor, rstd: Tensor) -> Tensor:
    """The first pass of the way back: gradients of bias and weight by the rows at hand, [2, H]."""
    return by_device(batch_norm_sums_reference, grad, x, mean, rstd)


def batch_norm_to_x(
    grad: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, weight: Tensor, sums: Tensor, num_rows: int,
    real: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """The second pass: the gradient of x, [M, H].

    sums: the first pass's, over the num_rows rows whose statistics mean and rstd are: those of x, and
    maybe of other ranks. real: as in `dice.dice_to_x`.
    """
    return by_device(batch_norm_to_x_reference, grad, x, mean, rstd, weight, sums, num_rows, real)


@gpu_op("statistics")
def batch_norm_reference(x: Tensor, mean: Tensor, rstd: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    scale = rstd * weight
    return torch.addcmul(bias - mean * scale, x, scale)


@gpu_op("statistics")
def batch_norm_sums_reference(grad: Tensor, x: Tensor, mean: Tensor, rstd: Tensor) -> Tensor:
    return torch.stack([grad.sum(0), (grad * (x - mean)).sum(0) * rstd])


@gpu_op("statistics")
def batch_norm_to_x_reference(
    grad: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, weight: Tensor, sums: Tensor, num_rows: int,
    real: Tensor | None = None,
) -> Tensor:  # fmt: skip
    if real is not None:
        num = int(real)
        by_real = batch_norm_to_x_reference(grad[:num], x[:num], mean, rstd, weight, sums, num)
        return functional.pad(by_real, (0, 0, 0, len(x) - num))
    by_bias, by_weight = sums
    scale = rstd * weight
    grad_x = (x - mean).mul_(-scale * rstd * by_weight / num_rows)
    return grad_x.addcmul_(grad, scale).sub_(scale * by_bias / num_rows)
