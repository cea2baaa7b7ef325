"""The first order of LR, FM and DCNv2: all that the weights of single features say."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class FirstOrder(nn.Module):
    """bias + sum of the ids' weights [B, F, 1] + linear of dense [B, num_dense]: [B] float32.

    Its own parameters are 0 at first. bias: whether it has one.
    """

    def __init__(self, num_dense: int, bias: bool = True) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(())) if bias else None
        self.dense = nn.Linear(num_dense, 1, bias=False) if num_dense else None
        if self.dense is not None:
            nn.init.zeros_(self.dense.weight)

    def forward(self, weights: Tensor, dense: Tensor) -> Tensor:
        first = weights.sum((1, 2))
        first = first if self.bias is None else self.bias + first
        return first if self.dense is None else first + self.dense(dense).squeeze(1)
