"""MLPs of equal shape as one: the experts, gates and towers of multi-task models."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from hotrows.models.nn.dropout import Dropout
from hotrows.models.nn.mlp import ACTIVATIONS, Activation, perceptron


class GroupedMLP(nn.Module):
    """G MLPs of the given sizes, each with weights of its own: [G, B, N].

    Takes [B, sizes[0]], which all groups read, or [G, B, sizes[0]]. activation, dropout and
    last_activation as in `MLP`, but for those with parameters.

    A layer is one operation for all groups: the first, where they share the input, one product with
    [K, G N] on its chosen path, every other a batched one. Against a loop over the groups that is as
    fast where each keeps all cores busy (4 experts of 256-192-128-64), and several times as fast
    where there are many small ones.
    """

    def __init__(
        self,
        num_groups: int,
        sizes: Sequence[int],
        activation: str = "relu",
        dropout: float = 0.0,
        last_activation: str = "none",
    ) -> None:
        super().__init__()
        if num_groups < 1 or len(sizes) < 2 or min(sizes) < 1:
            raise ValueError(
                f"GroupedMLP needs at least one group and two positive sizes, not "
                f"num_groups={num_groups}, sizes={tuple(sizes)}"
            )
        for name in (activation, last_activation):
            if name not in ACTIVATIONS:
                raise ValueError(f"activation must be one of {sorted(ACTIVATIONS)}, not {name!r}")
        self.num_groups = num_groups
        self.first = nn.Linear(sizes[0], num_groups * sizes[1])
        pairs = list(itertools.pairwise(sizes[1:]))
        self.weights = nn.ParameterList(torch.empty(num_groups, *pair) for pair in pairs)
        self.biases = nn.ParameterList(torch.zeros(num_groups, 1, num) for _, num in pairs)
        names = (activation,) * len(pairs) + (last_activation,)
        self.after = nn.ModuleList(map(Activation, names))
        self.dropout = Dropout(dropout)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Initializes each group's matrices as those of an MLP by itself."""
        for weight in (*self.first.weight.chunk(self.num_groups), *itertools.chain(*self.weights)):
            nn.init.xavier_normal_(weight)
        for bias in (self.first.bias, *self.biases):
            nn.init.zeros_(bias)

    def forward(self, x: Tensor) -> Tensor:
        groups, num = self.num_groups, self.first.out_features // self.num_groups
        if x.dim() == 2:
            first = perceptron(x, self.first, None, self.after[0])
            x = first.unflatten(1, (groups, num)).transpose(0, 1)
        else:
            weight = self.first.weight.unflatten(0, (groups, num)).transpose(1, 2)
            x = self.after[0](torch.baddbmm(self.first.bias.view(groups, 1, num), x, weight))
        for weight, bias, after in zip(self.weights, self.biases, self.after[1:], strict=True):
            x = after(torch.baddbmm(bias, self.dropout(x), weight))
        return x
