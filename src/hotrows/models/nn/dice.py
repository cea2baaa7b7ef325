"""Dice, the activation of DIN (Zhou et al., KDD 2018): a PReLU whose bend follows the data."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from hotrows.models.nn.statistics import BatchMoments, OverRanks, moments, summed
from hotrows.ops.layers import dice as ops

STATISTICS = ("running", "batch")


class Dice(OverRanks, nn.Module):
    """p x + alpha (1 - p) x with p = sigmoid((x - mean) / sqrt(var + eps)): [M, H] -> [M, H].

    Mean and biased variance are of each feature over all M rows: the positions of a jagged batch,
    never padding. alpha, one per feature, starts at 0. In training the statistics are those of the
    batch, of all ranks' rows where `share_statistics` says so, and the gradient flows through them.

    statistics: what evaluation takes: "running" averages, kept as by `nn.BatchNorm1d` with `momentum`
    (the variance unbiased), or those of the "batch" at hand, as the code of DIEN's authors does; its
    predictions then depend on which samples are in one batch: this rank's, where there are
    several. Fewer than two rows leave the running
    averages as they are; with one row p is 1/2. Narrow values are computed in float32. (Code of DIN's
    authors published later multiplies what the sigmoid takes with one more trained number; this is
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

    def forward(self, x: Tensor, real: Tensor | None = None, weight: Tensor | None = None) -> Tensor:
        """real: [1] int64 on a GPU, how many of the rows count in training, the first ones; None: all.
        weight: [H], of a layer of one output behind it: returns its product with the values, [M]."""
        if x.dim() != 2 or x.shape[1] != len(self.alpha):
            raise ValueError(f"Dice needs [M, {len(self.alpha)}] values, not {list(x.shape)}")
        wide = x.to(self.alpha.dtype)
        num_rows, mean, rstd = self._remembered(wide.detach(), real)
        ranks = self.ranks if self.training else None
        return _Dice.apply(wide, mean, rstd, self.alpha, num_rows, ranks, real, weight).to(x.dtype)

    def _remembered(self, x: Tensor, real: Tensor | None) -> tuple[int, Tensor, Tensor]:
        """Number of rows, mean and 1 / sqrt(var + eps); running averages move in training."""
        averages, how = (self.running_mean, self.running_var, None), (self.momentum, self.eps)
        if self.training and self.ranks is None and len(x) > 1:
            return len(x), *ops.moments_remembered(x, *averages, *how, real)
        seen = self._statistics(x)
        if self.training and seen.num_rows > 1:
            rstd = ops.remember(seen.mean, seen.var, *averages, seen.num_rows, *how)
        else:
            rstd = (seen.var + self.eps).rsqrt()
        return seen.num_rows, seen.mean, rstd

    def _statistics(self, x: Tensor) -> BatchMoments:
        """Statistics of the batch in training or if statistics="batch"; else averages: of no rows."""
        if self.training or self.statistics == "batch":
            seen = moments(x, self.ranks if self.training else None)
            if seen.num_rows > 0:
                return seen
        return BatchMoments(0, self.running_mean, self.running_var)


class _Dice(torch.autograd.Function):
    """num_rows: those of all ranks whose statistics mean and rstd are; 0: they are averages."""

    @staticmethod
    def forward(ctx, x, mean, rstd, alpha, num_rows, ranks, real, weight):
        ctx.num_rows, ctx.ranks, ctx.real = num_rows, ranks, real if ranks is None else None
        # Running averages change in place before the way back: what was used is kept.
        ctx.save_for_backward(x, mean if num_rows else mean.clone(), rstd, alpha, weight)
        return ops.dice(x, mean, rstd, alpha, weight)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad):
        x, mean, rstd, alpha, weight = ctx.saved_tensors
        grad = grad.contiguous()
        sums = ops.dice_sums(grad, x, mean, rstd, alpha, weight)
        of_all = summed(sums[:2], ctx.ranks) if ctx.num_rows else sums[:2]
        grad_x = ops.dice_to_x(grad, x, mean, rstd, alpha, of_all, ctx.num_rows, ctx.real, weight)
        return grad_x, None, None, sums[2], None, None, None, None if weight is None else sums[3]
