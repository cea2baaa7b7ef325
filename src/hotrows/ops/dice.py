"""Dice, forward and backward: in two passes where the native core is there."""

from __future__ import annotations

from ctypes import CDLL, c_int64

import torch
from torch import Tensor

from hotrows import native
from hotrows.native import pointer


def moments(x: Tensor) -> tuple[Tensor, Tensor]:
    """The mean and the biased variance of each feature over the rows, M >= 1: [M, H] -> [H], [H].

    x = [[1., 5.], [3., 5.]]  ->  [2., 5.], [1., 0.]
    """
    core = _core(x)
    if core is None:
        return moments_reference(x)
    x = x.contiguous()
    mean, var = torch.empty(x.shape[1]), torch.empty(x.shape[1])
    core.hotrows_moments(pointer(x), *_sizes(x), pointer(mean), pointer(var))
    return mean, var


def dice(x: Tensor, mean: Tensor, rstd: Tensor, alpha: Tensor) -> Tensor:
    """x (p + alpha (1 - p)) with p = sigmoid((x - mean) rstd): [M, H] and [H] each -> [M, H]."""
    core = _core(x, mean, rstd, alpha)
    if core is None:
        return dice_reference(x, mean, rstd, alpha)
    x, alpha = x.contiguous(), alpha.contiguous()
    out = torch.empty_like(x)
    core.hotrows_dice(
        pointer(x), pointer(mean), pointer(rstd), pointer(alpha), *_sizes(x), pointer(out)
    )
    return out


def dice_backward(
    grad: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, alpha: Tensor, by_statistics: bool
) -> tuple[Tensor, Tensor]:
    """Gradients of x and alpha.

    by_statistics: whether mean and rstd were made from x, so that the gradient flows through them.
    """
    core = _core(grad, x, mean, rstd, alpha)
    if core is None:
        return dice_backward_reference(grad, x, mean, rstd, alpha, by_statistics)
    grad, x, alpha = grad.contiguous(), x.contiguous(), alpha.contiguous()
    grad_x, grad_alpha = torch.empty_like(x), torch.empty_like(alpha)
    core.hotrows_dice_backward(
        pointer(grad), pointer(x), pointer(mean), pointer(rstd), pointer(alpha), *_sizes(x),
        int(by_statistics), pointer(grad_x), pointer(grad_alpha),
    )  # fmt: skip
    return grad_x, grad_alpha


def moments_reference(x: Tensor) -> tuple[Tensor, Tensor]:
    var, mean = torch.var_mean(x, dim=0, correction=0)
    return mean, var


def dice_reference(x: Tensor, mean: Tensor, rstd: Tensor, alpha: Tensor) -> Tensor:
    p = torch.sigmoid((x - mean) * rstd)
    return x * (p + alpha * (1 - p))


def dice_backward_reference(
    grad: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, alpha: Tensor, by_statistics: bool
) -> tuple[Tensor, Tensor]:
    z = (x - mean) * rstd
    p = torch.sigmoid(z)
    by_z = grad * x * (1 - alpha) * p * (1 - p)
    grad_alpha = (grad * x * (1 - p)).sum(0)
    if by_statistics and len(x) > 0:
        by_z = by_z - by_z.mean(0) - z * (by_z * z).mean(0)
    return grad * (p + alpha * (1 - p)) + rstd * by_z, grad_alpha


def _core(*tensors: Tensor) -> CDLL | None:
    on_core = all(t.device.type == "cpu" and t.dtype == torch.float32 for t in tensors)
    return native.load() if on_core else None


def _sizes(x: Tensor) -> list[c_int64]:
    return [c_int64(n) for n in x.shape]
