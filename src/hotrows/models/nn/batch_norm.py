"""Batch normalisation (Ioffe and Szegedy 2015), the same on any number of threads."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from hotrows.models.nn.statistics import OverRanks, moments, summed
from hotrows.ops.layers import batch_norm as ops
from hotrows.ops.layers.dice import moments_remembered, remember


class BatchNorm(OverRanks, nn.BatchNorm1d):
    """`nn.BatchNorm1d` of [M, width], but for three things.

    PyTorch's own sums in an order that depends on the number of threads; here it is fixed. And
    training takes batches of any size: fewer than two rows have no variance, where PyTorch's own
    raises; they are normalised by the running averages, and leave these as they are. And the rows
    may be dealt over ranks (`share_statistics`): then all of them count, wherever they are.
    """

    def __init__(self, width: int) -> None:
        super().__init__(width)

    def forward(self, input: Tensor, real: Tensor | None = None) -> Tensor:
        """real: as in `Dice`."""
        if not self.training:
            return self._by_averages(input)
        wide = input.to(self.weight.dtype)
        remembered = self._remembered(wide.detach(), real)
        if remembered is None:
            return self._by_averages(input)
        num_rows, mean, rstd = remembered
        normal = _BatchNorm.apply(wide, mean, rstd, self.weight, self.bias, num_rows, self.ranks, real)
        return normal.to(input.dtype)

    def _remembered(self, x: Tensor, real: Tensor | None) -> tuple[int, Tensor, Tensor] | None:
        """Number of rows, mean and 1 / sqrt(var + eps); running averages move. None: too few rows."""
        assert self.running_mean is not None and self.running_var is not None
        assert self.momentum is not None
        averages = self.running_mean, self.running_var, self.num_batches_tracked
        if self.ranks is None and len(x) > 1:
            return len(x), *moments_remembered(x, *averages, self.momentum, self.eps, real)
        seen = moments(x, self.ranks)
        if seen.num_rows < 2:
            return None
        rstd = remember(seen.mean, seen.var, *averages, seen.num_rows, self.momentum, self.eps)
        return seen.num_rows, seen.mean, rstd

    def _by_averages(self, input: Tensor) -> Tensor:
        return functional.batch_norm(
            input, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps
        )


class _BatchNorm(torch.autograd.Function):
    """(x - mean) rstd weight + bias, the gradient flowing through both statistics too.

    num_rows: of all ranks together, whose statistics mean and rstd are.
    """

    @staticmethod
    def forward(ctx, x, mean, rstd, weight, bias, num_rows, ranks, real):
        ctx.num_rows, ctx.ranks, ctx.real = num_rows, ranks, real if ranks is None else None
        ctx.save_for_backward(x, mean, rstd, weight)
        return ops.batch_norm(x, mean, rstd, weight, bias)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad):
        x, mean, rstd, weight = ctx.saved_tensors
        sums = ops.batch_norm_sums(grad, x, mean, rstd)
        of_all = summed(sums, ctx.ranks)
        grad_x = ops.batch_norm_to_x(grad, x, mean, rstd, weight, of_all, ctx.num_rows, ctx.real)
        return grad_x, None, None, sums[1], sums[0], None, None, None
