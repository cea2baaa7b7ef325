"""The interaction of DLRM: dot products of all pairs of a sample's vectors (Naumov et al. 2019)."""

from __future__ import annotations

from torch import Tensor, nn

from hotrows.models.nn.mlp import padding_of
from hotrows.ops.layers import interaction


class DotInteraction(nn.Module):
    """The products of all pairs of vectors.

    bottom [B, D] and vectors [B, F, D] -> [B, D + (F + 1) F / 2], of bottom's dtype.

    The bottom vector, then the products of all pairs of the F + 1 vectors. Vectors may be float32
    where bottom is bfloat16, as under autocast: each gradient has the dtype of what it belongs to.

    On a GPU, 16-bit results have columns of zeros behind, for an `MLP` to read: whole rows of what
    tensor cores read at once.

    >>> DotInteraction()(torch.zeros(4, 8), torch.zeros(4, 3, 8)).shape
    torch.Size([4, 14])
    """

    def forward(self, bottom: Tensor, vectors: Tensor) -> Tensor:
        width = self.num_outputs(vectors.shape[1], vectors.shape[2])
        return interaction.dot_interaction(bottom, vectors, padding_of(bottom, width))

    @staticmethod
    def num_outputs(num_vectors: int, dim: int) -> int:
        return dim + num_vectors * (num_vectors + 1) // 2
