"""Statistics of a batch that several ranks have in shares: `BatchNorm` and `Dice` on ranks.

    share_statistics(model, ranks)      # collective, before training

Then, in training, the statistics are those of the batch of all ranks, and one rank equals many:

    forward   each layer, in order:     [count, mean, variance] of all shares -> those of the batch
    backward  each layer, in reverse:   sums over this share -> sums over the batch

Every layer takes part on every rank, whether its share has rows or none, so ranks stay in step. A
model must call its layers in the same order on all ranks, for an empty share too. In evaluation
nothing is exchanged.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from hotrows.engine.distributed.comm import Ranks
from hotrows.ops.layers import dice as ops

CHANNEL = "statistics"


class OverRanks:
    """A layer whose statistics in training are those of all `ranks`; None: of the rows at hand.

    Ranks are this process's own affair: they are in no state_dict, and copies (also pickled ones)
    are layers of one rank until `share_statistics` is called for them.
    """

    ranks: Ranks | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "ranks"}


@dataclass(frozen=True)
class BatchMoments:
    """Mean and biased variance of each feature over the rows: [H] both; zeros where there are no rows."""

    num_rows: int
    mean: Tensor
    var: Tensor


def share_statistics(model: nn.Module, ranks: Ranks | None) -> None:
    """From now on, statistics in training are those of all ranks in each `BatchNorm` and `Dice`.

    Collective: all ranks call it, and then the same layers. None or one rank: of the rows at hand.
    Gradients are taken as shares that sum over ranks to that of the whole batch: a loss that is a
    mean is multiplied by the rank's share of samples. Gradients of parameters stay those of this
    rank's rows, to be summed as all others. Of a batch in slices, each slice has its statistics.
    """
    several = None if ranks is None or ranks.num_ranks == 1 else ranks.channel(CHANNEL)
    for layer in model.modules():
        if isinstance(layer, OverRanks):
            layer.ranks = several


def moments(x: Tensor, ranks: Ranks | None) -> BatchMoments:
    """Statistics of x [M, H], M >= 0; with ranks, over the rows of all, equal bits on every rank."""
    num_rows, width = x.shape
    mean, var = ops.moments(x) if num_rows else (x.new_zeros(width), x.new_zeros(width))
    if ranks is None:
        return BatchMoments(num_rows, mean, var)
    count = torch.tensor([num_rows], dtype=torch.float64, device=x.device)
    shares = ranks.all_gather(torch.cat([count, mean.double(), var.double()])).wait()
    num_rows, mean, var = _combined(shares)
    return BatchMoments(num_rows, mean.to(x.dtype), var.to(x.dtype))


def summed(sums: Tensor, ranks: Ranks | None) -> Tensor:
    """Sums over this rank's rows -> over those of all ranks."""
    return sums if ranks is None else ranks.all_reduce(sums.clone()).wait()


def _combined(shares: Tensor) -> tuple[int, Tensor, Tensor]:
    """[P, 1 + 2 H] of counts, means and variances -> those of all rows (Chan, Golub, LeVeque 1979).

    One share after the other, in float64.
    """
    width = shares.shape[1] // 2
    mean, squares = shares.new_zeros(width), shares.new_zeros(width)
    num_rows = 0
    for share in shares:
        count = int(share[0])
        if count == 0:
            continue
        of_mean, of_var = share[1:].split(width)
        weight, difference = count / (num_rows + count), of_mean - mean
        mean = mean + difference * weight
        squares = squares + of_var * count + difference * difference * (num_rows * weight)
        num_rows += count
    return num_rows, mean, squares / max(num_rows, 1)
