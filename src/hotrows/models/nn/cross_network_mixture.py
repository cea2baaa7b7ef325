"""The cross network of DCN-V2 as a mixture of low-rank experts (Wang et al. 2021, eq. 3 and 4)."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class CrossNetworkMixture(nn.Module):
    """x_{l+1} = sum over experts e of G_e(x_l) E_e(x_l) + x_l for each layer: [B, K] -> [B, K].

        E_e(x_l) = x_0 * (U_e tanh(C_e tanh(V_e^T x_l)) + b)        U_e, V_e: [K, rank]
        G(x_l)   = softmax, or with gate="sigmoid" sigmoid, of a linear layer: [E]

    The weights of E belong to a layer, the bias b to all of its experts. The gates G, which have no
    bias, belong to all layers: the paper gives them no layer's index, and FuxiCTR and TorchRec share
    them too. Both offer softmax alone; TorchRec's activation is by default a ReLU.

    All experts are computed together: V as one product with [K, E rank], C as E small ones. The
    gates weigh what goes into U, so that U and the sum over experts are one product as well.
    """

    def __init__(
        self, width: int, num_layers: int = 3, rank: int = 32, num_experts: int = 4, gate: str = "softmax"
    ) -> None:
        super().__init__()
        if num_layers < 1 or num_experts < 1 or not 1 <= rank <= width:
            raise ValueError(
                f"CrossNetworkMixture needs at least one layer and one expert, and a rank from 1 to "
                f"{width}, not num_layers={num_layers}, num_experts={num_experts}, rank={rank}"
            )
        if gate not in ("softmax", "sigmoid"):
            raise ValueError(f"gate must be 'softmax' or 'sigmoid', not {gate!r}")
        self.num_experts, self.gate = num_experts, gate
        inner = num_experts * rank
        self.gates = nn.Linear(width, num_experts, bias=False)
        self.down = nn.ModuleList(nn.Linear(width, inner, bias=False) for _ in range(num_layers))
        self.within = nn.ParameterList(torch.empty(num_experts, rank, rank) for _ in range(num_layers))
        self.up = nn.ModuleList(nn.Linear(inner, width) for _ in range(num_layers))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Initializes each expert's matrices as those of a layer by itself; biases at 0."""
        nn.init.xavier_normal_(self.gates.weight)
        for down, within, up in zip(self.down, self.within, self.up, strict=True):
            assert isinstance(down, nn.Linear) and isinstance(up, nn.Linear)
            inner = (*down.weight.chunk(self.num_experts), *within)
            for weight in (*inner, *up.weight.chunk(self.num_experts, dim=1)):
                nn.init.xavier_normal_(weight)
            nn.init.zeros_(up.bias)

    def forward(self, x0: Tensor) -> Tensor:
        x = x0
        for down, within, up in zip(self.down, self.within, self.up, strict=True):
            gates = self.gates(x).unsqueeze(2)  # [B, E, 1]
            gates = gates.softmax(1) if self.gate == "softmax" else gates.sigmoid()
            inner = down(x).unflatten(1, within.shape[:2]).tanh()  # [B, E, rank]
            inner = torch.bmm(inner.transpose(0, 1), within.transpose(1, 2)).tanh()
            mixed = up((gates * inner.transpose(0, 1)).flatten(1))
            if self.gate == "sigmoid":  # every expert adds its gate's share of b, together not 1
                mixed = mixed + (gates.sum(1) - 1) * up.bias
            x = torch.addcmul(x, x0, mixed.to(x.dtype))
        return x
