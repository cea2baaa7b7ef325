"""Dense values as networks read them: single numbers unchanged, each vector through a linear layer."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from hotrows.models.nn import MLP
from hotrows.schema import Schema


class DenseInput(nn.Module):
    """Narrows the vectors among dense values to the model's dim: [B, num_dense] -> [B, width].

    >>> schema = hotrows.Schema((hotrows.Dense("price"), hotrows.Dense("image", width=512)))
    >>> DenseInput(schema, dim=16)(torch.zeros(4, 513)).shape
    torch.Size([4, 17])
    """

    def __init__(self, schema: Schema, dim: int) -> None:
        super().__init__()
        widths = [feature.width or 0 for feature in schema.vectors]
        self.sizes = [len(schema.dense), *widths]
        self.layers = nn.ModuleList(MLP((width, min(width, dim))) for width in widths)
        self.widths = [1] * len(schema.dense) + [min(width, dim) for width in widths]  # by feature
        self.width = sum(self.widths)

    def forward(self, dense: Tensor) -> Tensor:
        if not self.layers:
            return dense
        numbers, *vectors = dense.split(self.sizes, 1)
        narrow = (layer(vector) for layer, vector in zip(self.layers, vectors, strict=True))
        return torch.cat([numbers, *(vector.to(dense.dtype) for vector in narrow)], 1)
