"""Dice, forward and backward: in two passes on the native core."""

from __future__ import annotations

import torch
from torch import Tensor

from hotrows.runtime.native import call, takes


def moments(x: Tensor) -> tuple[Tensor, Tensor]:
    """The mean and the biased variance of each feature over the rows, M >= 1: [M, H] -> [H], [H].

    x = [[1., 5.], [3., 5.]]  ->  [2., 5.], [1., 0.]
    """
    if not takes(x):
        return moments_reference(x)
    x = x.contiguous()
    mean, var = torch.empty(x.shape[1]), torch.empty(x.shape[1])
    call("moments", x, *x.shape, mean, var)
    return mean, var


def remember(
    mean: Tensor, var: Tensor, running_mean: Tensor, running_var: Tensor, num_batches: Tensor | None,
    num_rows: int, momentum: float, eps: float,
) -> Tensor:  # fmt: skip
    """Moves running averages towards the statistics of num_rows > 1 rows, the variance unbiased, and
    counts the batch; returns 1 / sqrt(var + eps): all [H], but for num_batches, a number."""
    running_mean.lerp_(mean, momentum)
    running_var.lerp_(var * (num_rows / (num_rows - 1)), momentum)
    if num_batches is not None:
        num_batches += 1
    return (var + eps).rsqrt()


def moments_remembered(
    x: Tensor, running_mean: Tensor, running_var: Tensor, num_batches: Tensor | None, momentum: float,
    eps: float, real: Tensor | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The mean of each feature over M > 1 rows and 1 / sqrt(var + eps), [H] both; moves running averages
    as `remember` does. real: on a GPU, [1] int64, the number of rows that count, the first; None: M."""
    averages = running_mean, running_var, num_batches
    if real is not None:
        return _of_the_first(real, x, *averages, momentum, eps)
    mean, var = moments(x)
    return mean, remember(mean, var, *averages, len(x), momentum, eps)


def zero_behind(real: Tensor, values: Tensor) -> Tensor:
    """values [M, H], zeros in place of the rows that do not count."""
    counts = torch.arange(len(values), device=values.device) < real
    return torch.where(counts[:, None], values, 0)


def dice(x: Tensor, mean: Tensor, rstd: Tensor, alpha: Tensor, weight: Tensor | None = None) -> Tensor:
    """x (p + alpha (1 - p)) with p = sigmoid((x - mean) rstd): [M, H] and [H] each -> [M, H].

    weight: [H], contiguous, of a layer of one output behind it, which is returned then: [M].
    """
    if not takes(x, mean, rstd, alpha, weight):
        return dice_reference(x, mean, rstd, alpha, weight)
    x, alpha = x.contiguous(), alpha.contiguous()
    out = torch.empty_like(x) if weight is None else x.new_empty(len(x))
    call("dice", x, mean, rstd, alpha, weight, *x.shape, out)
    return out


def dice_sums(
    grad: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, alpha: Tensor, weight: Tensor | None = None
) -> Tensor:
    """The first pass of the way back: sums over the rows of dz, of dz z, and alpha's gradient: [3, H].

    z = (x - mean) rstd, and dz is what the loss changes by with z. weight: as in `dice`; its gradient is
    the fourth row then, and grad [M].
    """
    if not takes(grad, x, mean, rstd, alpha, weight):
        return dice_sums_reference(grad, x, mean, rstd, alpha, weight)
    grad, x, alpha = grad.contiguous(), x.contiguous(), alpha.contiguous()
    sums = x.new_empty(3 if weight is None else 4, x.shape[1])
    call("dice_sums", grad, x, mean, rstd, alpha, weight, *x.shape, sums)
    return sums


def dice_to_x(
    grad: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, alpha: Tensor, sums: Tensor, num_rows: int,
    real: Tensor | None = None, weight: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """The second pass: the gradient of x, [M, H].

    sums: [2, H], of dz and of dz z over the num_rows rows whose statistics mean and rstd are: those of
    x, and maybe of other ranks. num_rows = 0: they are none of theirs, and nothing flows through them.
    real: as in `moments_remembered`; it then stands for num_rows, and rows that do not count get 0.
    weight: as in `dice_sums`.
    """
    if not takes(grad, x, mean, rstd, alpha, sums, weight):
        return dice_to_x_reference(grad, x, mean, rstd, alpha, sums, num_rows, real, weight)
    grad, x, alpha, sums = (t.contiguous() for t in (grad, x, alpha, sums))
    grad_x = torch.empty_like(x)
    call("dice_to_x", grad, x, mean, rstd, alpha, weight, sums, *x.shape, num_rows, grad_x)
    return grad_x


def moments_reference(x: Tensor) -> tuple[Tensor, Tensor]:
    var, mean = torch.var_mean(x, dim=0, correction=0)
    return mean, var


def _of_the_first(
    real: Tensor, x: Tensor, running_mean: Tensor, running_var: Tensor, num_batches: Tensor | None,
    momentum: float, eps: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """`moments_remembered` of as many rows as `real` holds, which the host does not wait for."""
    num, is_several = real.clamp(min=1), real > 1
    mean = zero_behind(real, x).sum(0) / num
    var = zero_behind(real, x - mean).square_().sum(0) / num
    share = is_several.to(x.dtype) * momentum
    running_mean.lerp_(mean, share)
    running_var.lerp_(var * (num / (num - 1).clamp(min=1)), share)
    if num_batches is not None:
        num_batches += is_several[0]
    return mean, (var + eps).rsqrt()


def dice_reference(
    x: Tensor, mean: Tensor, rstd: Tensor, alpha: Tensor, weight: Tensor | None = None
) -> Tensor:
    p = torch.sigmoid((x - mean) * rstd)
    y = x * (p + alpha * (1 - p))
    return y if weight is None else y @ weight


def dice_sums_reference(
    grad: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, alpha: Tensor, weight: Tensor | None = None
) -> Tensor:
    by_weight = [] if weight is None else [grad @ dice_reference(x, mean, rstd, alpha)]
    grad = grad if weight is None else grad.outer(weight)
    z = (x - mean) * rstd  # [M, H]
    p = torch.sigmoid(z)
    by_z = grad * x * (1 - alpha) * p * (1 - p)
    by_alpha = grad * x * (1 - p)
    return torch.stack([by_z.sum(0), (by_z * z).sum(0), by_alpha.sum(0), *by_weight])


def dice_to_x_reference(
    grad: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, alpha: Tensor, sums: Tensor, num_rows: int,
    real: Tensor | None = None, weight: Tensor | None = None,
) -> Tensor:  # fmt: skip
    grad = grad if weight is None else grad.outer(weight)
    z = (x - mean) * rstd  # [M, H]
    p = torch.sigmoid(z)
    by_z = grad * x * (1 - alpha) * p * (1 - p)
    if num_rows > 0:
        num = num_rows if real is None else real.clamp(min=1)
        by_z = by_z - sums[0] / num - z * (sums[1] / num)
    grad_x = grad * (p + alpha * (1 - p)) + rstd * by_z
    return grad_x if real is None else zero_behind(real, grad_x)
