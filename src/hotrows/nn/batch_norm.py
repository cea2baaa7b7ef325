"""Batch normalisation (Ioffe and Szegedy 2015), the same on any number of threads."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from hotrows.ops.dice import moments


class BatchNorm(nn.BatchNorm1d):
    """`nn.BatchNorm1d` of [M, width], but for two things.

    PyTorch's own sums in an order that depends on the number of threads; here it is fixed. And
    training takes batches of any size: fewer than two rows have no variance, where PyTorch's own
    raises; they are normalised by the running averages, and leave these as they are.
    """

    def __init__(self, width: int) -> None:
        super().__init__(width)

    def forward(self, input: Tensor) -> Tensor:
        if not self.training or len(input) < 2:
            return functional.batch_norm(
                input, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps
            )
        wide = input.to(self.weight.dtype)
        mean, var = moments(wide.detach())
        self._remember(mean, var, len(wide))
        rstd = (var + self.eps).rsqrt()
        return _BatchNorm.apply(wide, mean, rstd, self.weight, self.bias).to(input.dtype)

    @torch.no_grad()
    def _remember(self, mean: Tensor, var: Tensor, num_rows: int) -> None:
        assert self.running_mean is not None and self.running_var is not None
        assert self.momentum is not None and self.num_batches_tracked is not None
        self.running_mean.lerp_(mean, self.momentum)
        self.running_var.lerp_(var * (num_rows / (num_rows - 1)), self.momentum)
        self.num_batches_tracked += 1


class _BatchNorm(torch.autograd.Function):
    """(x - mean) rstd weight + bias, the gradient flowing through both statistics too."""

    @staticmethod
    def forward(ctx, x, mean, rstd, weight, bias):
        ctx.save_for_backward(x, mean, rstd, weight)
        scale = rstd * weight
        return torch.addcmul(bias - mean * scale, x, scale)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad):
        x, mean, rstd, weight = ctx.saved_tensors
        scale, num_rows = rstd * weight, len(x)
        centered = x - mean
        grad_bias, grad_weight = grad.sum(0), (grad * centered).sum(0) * rstd
        grad_x = centered.mul_(-scale * rstd * grad_weight / num_rows)
        grad_x.addcmul_(grad, scale).sub_(scale * grad_bias / num_rows)
        return grad_x, None, None, grad_weight, grad_bias
