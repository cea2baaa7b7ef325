"""The first order of LR and FM: all that the weights of single features say."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class FirstOrder(nn.Module):
    """bias + sum of the ids' weights [B, F, 1] + linear of dense [B, num_dense]: [B] float32.

    Its own parameters are 0 at first.
    """

    def __init__(self, num_dense: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(()))
        self.dense = nn.Linear(num_dense, 1, bias=False) if num_dense else None
        if self.dense is not None:
            nn.init.zeros_(self.dense.weight)

    def forward(self, weights: Tensor, dense: Tensor) -> Tensor:
        first = self.bias + weights.sum((1, 2))
        return first if self.dense is None else first + self.dense(dense).squeeze(1)
