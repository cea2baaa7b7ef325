"""MLPs of equal shape side by side: the experts, gates and towers of multi-task models."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from hotrows.nn.mlp import MLP


class GroupedMLP(nn.Module):
    """G MLPs of the given sizes, each with weights of its own: [G, B, N].

    Takes [B, sizes[0]], which all groups read, or [G, B, sizes[0]]. The rest is as in `MLP`.

    Groups are computed in turn, each on the chosen paths of its layers: one group's product keeps all
    cores busy. `baddbmm` for each layer, and one product for the first where groups share the input,
    took 1.05 to 1.15 times as long; the same products written side by side into one [B, G N] as long
    as this (4 groups of 416-256-192-128-64, 2,048 and 8,192 samples, two cores).
    """

    def __init__(
        self,
        num_groups: int,
        sizes: Sequence[int],
        activation: str = "relu",
        dropout: float = 0.0,
        batch_norm: bool = False,
        last_activation: str = "none",
    ) -> None:
        super().__init__()
        if num_groups < 1:
            raise ValueError(f"GroupedMLP needs at least one group, not num_groups={num_groups}")
        self.groups = nn.ModuleList(
            MLP(sizes, activation, dropout, batch_norm, last_activation) for _ in range(num_groups)
        )

    def forward(self, x: Tensor) -> Tensor:
        own = x if x.dim() == 3 else [x] * len(self.groups)
        return torch.stack([group(of) for group, of in zip(self.groups, own, strict=True)])
