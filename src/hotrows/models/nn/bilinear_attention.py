"""The attention of DIEN's paper (Zhou et al., AAAI 2019): a bilinear form of state and target."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from hotrows.engine.shared_lists import SharedLists
from hotrows.models.nn.jagged_products import Lists, jagged_dot, softmax_jagged, weighted_sum


class BilinearAttention(nn.Module):
    """queries [B, query_dim], keys [N, key_dim] and offsets [B + 1] -> [B, key_dim].

    A key's score is k_n . (W q), q the query of its sample; the result is the weighted sum of each
    sample's keys, zeros for an empty list. normalize: True takes the softmax of the scores as weights,
    as the paper does; False the scores themselves. (The authors' code has DIN's unit here instead,
    `TargetAttention`.)
    """

    def __init__(self, query_dim: int, key_dim: int, normalize: bool = True) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(key_dim, query_dim))
        self.normalize = normalize
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.xavier_normal_(self.weight)

    def forward(self, queries: Tensor, keys: Tensor, offsets: Lists | SharedLists) -> Tensor:
        return weighted_sum(self.scores(queries, keys, offsets), keys, offsets)

    def scores(self, queries: Tensor, keys: Tensor, offsets: Lists | SharedLists) -> Tensor:
        """The weight of each key, after normalisation: [N]."""
        scores = jagged_dot(nn.functional.linear(queries, self.weight), keys, offsets)
        return softmax_jagged(scores, offsets) if self.normalize else scores
