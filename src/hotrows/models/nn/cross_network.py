"""The cross network of DCN-V2 (Wang et al. 2021): polynomials of the input, one degree a layer."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class CrossNetwork(nn.Module):
    """A cross network (DCN V2): x_{l+1} = x_0 * (W_l x_l + b_l) + x_l by layer: [B, K] -> [B, K].

    rank: None has full matrices W; a number makes each a product of [K, rank] and [rank, K].

    >>> CrossNetwork(width=6, num_layers=2)(torch.zeros(4, 6)).shape
    torch.Size([4, 6])
    """

    def __init__(self, width: int, num_layers: int = 3, rank: int | None = None) -> None:
        super().__init__()
        if num_layers < 1 or (rank is not None and not 1 <= rank <= width):
            raise ValueError(
                f"CrossNetwork needs at least one layer and a rank from 1 to {width} or None, "
                f"not num_layers={num_layers}, rank={rank}"
            )
        self.narrow = nn.ModuleList(
            nn.Linear(width, rank, bias=False) for _ in range(num_layers) if rank is not None
        )
        self.layers = nn.ModuleList(nn.Linear(rank or width, width) for _ in range(num_layers))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for layer in (*self.narrow, *self.layers):
            assert isinstance(layer, nn.Linear)
            nn.init.xavier_normal_(layer.weight)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)

    def forward(self, x0: Tensor) -> Tensor:
        x = x0
        for place, layer in enumerate(self.layers):
            inner = self.narrow[place](x) if self.narrow else x
            x = torch.addcmul(x, x0, layer(inner).to(x.dtype))
        return x
