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


def dice_sums(grad: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, alpha: Tensor) -> Tensor:
    """The first pass of the way back: sums over the rows of dz, of dz z, and alpha's gradient: [3, H].

    z = (x - mean) rstd, and dz is what the loss changes by with z.
    """
    core = _core(grad, x, mean, rstd, alpha)
    if core is None:
        return dice_sums_reference(grad, x, mean, rstd, alpha)
    grad, x, alpha = grad.contiguous(), x.contiguous(), alpha.contiguous()
    sums = x.new_empty(3, x.shape[1])
    core.hotrows_dice_sums(
        pointer(grad), pointer(x), pointer(mean), pointer(rstd), pointer(alpha), *_sizes(x),
        pointer(sums),
    )  # fmt: skip
    return sums


def dice_to_x(
    grad: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, alpha: Tensor, sums: Tensor, num_rows: int
) -> Tensor:
    """The second pass: the gradient of x, [M, H].

    sums: [2, H], of dz and of dz z over the num_rows rows whose statistics mean and rstd are: those of
    x, and maybe of other ranks. num_rows = 0: they are none of theirs, and nothing flows through them.
    """
    core = _core(grad, x, mean, rstd, alpha, sums)
    if core is None:
        return dice_to_x_reference(grad, x, mean, rstd, alpha, sums, num_rows)
    grad, x, alpha, sums = (t.contiguous() for t in (grad, x, alpha, sums))
    grad_x = torch.empty_like(x)
    core.hotrows_dice_to_x(
        pointer(grad), pointer(x), pointer(mean), pointer(rstd), pointer(alpha), pointer(sums),
        *_sizes(x), c_int64(num_rows), pointer(grad_x),
    )  # fmt: skip
    return grad_x


def moments_reference(x: Tensor) -> tuple[Tensor, Tensor]:
    var, mean = torch.var_mean(x, dim=0, correction=0)
    return mean, var


def dice_reference(x: Tensor, mean: Tensor, rstd: Tensor, alpha: Tensor) -> Tensor:
    p = torch.sigmoid((x - mean) * rstd)
    return x * (p + alpha * (1 - p))


def dice_sums_reference(
    grad: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, alpha: Tensor
) -> Tensor:
    z = (x - mean) * rstd
    p = torch.sigmoid(z)
    by_z = grad * x * (1 - alpha) * p * (1 - p)
    by_alpha = grad * x * (1 - p)
    return torch.stack([by_z.sum(0), (by_z * z).sum(0), by_alpha.sum(0)])


def dice_to_x_reference(
    grad: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, alpha: Tensor, sums: Tensor, num_rows: int
) -> Tensor:
    z = (x - mean) * rstd
    p = torch.sigmoid(z)
    by_z = grad * x * (1 - alpha) * p * (1 - p)
    if num_rows > 0:
        by_z = by_z - sums[0] / num_rows - z * (sums[1] / num_rows)
    return grad * (p + alpha * (1 - p)) + rstd * by_z


def _core(*tensors: Tensor) -> CDLL | None:
    on_core = all(t.device.type == "cpu" and t.dtype == torch.float32 for t in tensors)
    return native.load() if on_core and not torch.compiler.is_compiling() else None


def _sizes(x: Tensor) -> list[c_int64]:
    return [c_int64(n) for n in x.shape]
