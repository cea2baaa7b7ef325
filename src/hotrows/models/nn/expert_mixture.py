"""Mixtures of shared experts, one for each task (multi-gate mixture-of-experts, Ma et al. 2018)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from hotrows.models.nn.grouped_mlp import GroupedMLP


class ExpertMixture(nn.Module):
    """A mixture of experts with a gate for each task.

    out[t] = sum over experts e of softmax(gate_t(x))[e] * expert_e(x): [B, K] -> [T, B, N].

    expert_hidden: sizes of every expert's layers, the last one being N; each ends in `activation`.
    gate_hidden: sizes of a gate's hidden layers. None of them, as in the paper, makes it one linear
        layer; FuxiCTR has (128, 64), and no activation behind an expert's last layer.
    dropout: of hidden layers, of experts and gates.

    Gates have biases, which the paper's do not; they are 0 at first.

    >>> ExpertMixture(width=6, num_tasks=2, expert_hidden=(8,))(torch.zeros(4, 6)).shape
    torch.Size([2, 4, 8])
    """

    def __init__(
        self,
        width: int,
        num_tasks: int,
        num_experts: int = 4,
        expert_hidden: Sequence[int] = (256, 192, 128, 64),
        gate_hidden: Sequence[int] = (),
        activation: str = "relu",
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.experts = GroupedMLP(
            num_experts, (width, *expert_hidden), activation, dropout, last_activation=activation
        )
        self.gates = GroupedMLP(num_tasks, (width, *gate_hidden, num_experts), activation, dropout)

    def forward(self, x: Tensor) -> Tensor:
        gates = self.gates(x).softmax(2)  # [T, B, E]
        return torch.einsum("tbe,ebn->tbn", gates, self.experts(x))
