"""The second-order term of a factorization machine (Rendle 2010)."""

from __future__ import annotations

from torch import Tensor, nn

from hotrows.ops.layers import interaction


class FactorizationMachine(nn.Module):
    """The sum of the dot products of all pairs of a sample's vectors: [B, F, D] -> [B], float32.

    Computed in F D steps as 0.5 * sum over d of (sum of v)^2 - sum of v^2.

    >>> FactorizationMachine()(torch.ones(4, 3, 8))
    tensor([24., 24., 24., 24.])
    """

    def forward(self, vectors: Tensor) -> Tensor:
        return interaction.second_order(vectors)
