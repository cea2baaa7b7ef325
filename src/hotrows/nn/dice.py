"""Dice, the activation of DIN (Zhou et al., KDD 2018): a PReLU whose bend follows the data."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from hotrows.ops import dice as ops

STATISTICS = ("running", "batch")


class Dice(nn.Module):
    """p x + alpha (1 - p) x with p = sigmoid((x - mean) / sqrt(var + eps)): [M, H] -> [M, H].

    Mean and biased variance are of each feature over all M rows: the positions of a jagged batch,
    never padding. alpha, one per feature, starts at 0. In training the statistics are those of the
    batch, and the gradient flows through them.

    statistics: what evaluation takes: "running" averages, kept as by `nn.BatchNorm1d` with `momentum`
    (the variance unbiased), or those of the "batch" at hand, as the code of DIEN's authors does; its
    predictions then depend on which samples are asked together. Fewer than two rows leave the running
    averages as they are; with one row p is 1/2. Narrow values are computed in float32. (Code of DIN's
    authors published later multiplies what the sigmoid takes with one more learned number; this is
    the paper's.)
    """

    running_mean: Tensor
    running_var: Tensor

    def __init__(
        self, width: int, eps: float = 1e-9, momentum: float = 0.1, statistics: str = "running"
    ) -> None:
        super().__init__()
        if statistics not in STATISTICS:
            raise ValueError(f"statistics must be one of {STATISTICS}, not {statistics!r}")
        self.eps, self.momentum, self.statistics = eps, momentum, statistics
        self.alpha = nn.Parameter(torch.zeros(width))
        self.register_buffer("running_mean", torch.zeros(width))
        self.register_buffer("running_var", torch.ones(width))

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.alpha)
        self.running_mean.zero_()
        self.running_var.fill_(1)

    def forward(self, x: Tensor) -> Tensor:
        if x.dim() != 2 or x.shape[1] != len(self.alpha):
            raise ValueError(f"Dice needs [M, {len(self.alpha)}] values, not {list(x.shape)}")
        wide = x.to(self.alpha.dtype)
        of_batch = (self.training or self.statistics == "batch") and len(x) > 0
        if of_batch:
            mean, var = ops.moments(wide.detach())
            if self.training:
                self._remember(mean, var, len(x))
        else:
            mean, var = self.running_mean, self.running_var
        rstd = (var + self.eps).rsqrt()
        return _Dice.apply(wide, mean, rstd, self.alpha, of_batch).to(x.dtype)

    @torch.no_grad()
    def _remember(self, mean: Tensor, var: Tensor, num_rows: int) -> None:
        if num_rows > 1:
            self.running_mean.lerp_(mean, self.momentum)
            self.running_var.lerp_(var * (num_rows / (num_rows - 1)), self.momentum)


class _Dice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, mean, rstd, alpha, of_batch):
        ctx.of_batch = of_batch
        # Running averages change in place before the way back: what was used is kept.
        ctx.save_for_backward(x, mean if of_batch else mean.clone(), rstd, alpha)
        return ops.dice(x, mean, rstd, alpha)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad):
        x, mean, rstd, alpha = ctx.saved_tensors
        grad_x, grad_alpha = ops.dice_backward(grad, x, mean, rstd, alpha, ctx.of_batch)
        return grad_x, None, None, grad_alpha, None
