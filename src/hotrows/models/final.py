"""FINAL (Zhu et al. 2023): layers that multiply halves of their outputs, in two streams.

    layer    a, b = halves of W x + c           x' = norm([a, a * b])
    x = [vectors, dense] -+-> layers, linear -> logit 1 -+
                          +-> layers, linear -> logit 2 -+-> logit = their mean

Each layer doubles the degree of the polynomial. In training each stream also learns the prediction of
both together, as its authors' code does: that is the loss that the model returns.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from hotrows.models import tables
from hotrows.models.dense_input import DenseInput
from hotrows.models.model import Model
from hotrows.models.vectors import LookedUpVectors
from hotrows.nn import MLP, BatchNorm, Dropout
from hotrows.nn.log_loss import log_loss
from hotrows.schema import Schema


class FINAL(Model):
    """FINAL (Zhu et al. 2023): two streams of factorized interactions, which learn from each other.

    hidden: sizes of both streams' layers, even numbers.
    gating: whether the first stream also reads the vectors times a gate of all features, dimension by
        dimension.
    dropout, batch_norm: behind each layer.

    >>> model = FINAL(data.schema, dim=8)
    >>> sorted({table.name for table in model.tables})
    ['item', 'user']
    """

    def __init__(
        self,
        schema: Schema,
        dim: int = 16,
        hidden: Sequence[int] = (400, 400),
        gating: bool = False,
        dropout: float = 0.0,
        batch_norm: bool = True,
    ) -> None:
        super().__init__()
        tables.check(schema, "FINAL")
        if not hidden or any(size < 2 or size % 2 for size in hidden):
            raise ValueError(f"FINAL needs hidden sizes that are even numbers, not {tuple(hidden)}")
        self.tables = tables.vector_tables(schema, dim)
        num_fields = len(schema.id_features)
        self.gate = nn.Linear(num_fields, num_fields) if gating and num_fields else None
        if self.gate is not None:
            nn.init.zeros_(self.gate.weight)
            nn.init.ones_(self.gate.bias)
        self.inputs = DenseInput(schema, dim)
        width = num_fields * dim + self.inputs.width
        more = num_fields * dim if self.gate is not None else 0
        self.streams = nn.ModuleList(
            FactorizedInteractions((size, *hidden), dropout, batch_norm) for size in (width + more, width)
        )
        self.last = nn.ModuleList(MLP((hidden[-1], 1)) for _ in self.streams)

    def forward(self, vectors: LookedUpVectors, dense: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        stacked = vectors.stack()
        x = torch.cat([stacked.flatten(1), self.inputs(dense)], 1)
        gated = x
        if self.gate is not None:
            gates = self.gate(stacked.transpose(1, 2)).transpose(1, 2)
            gated = torch.cat([x, (stacked * gates).flatten(1)], 1)
        first, second = (
            last(stream(read)).squeeze(1).float()
            for last, stream, read in zip(self.last, self.streams, (gated, x), strict=True)
        )
        logits = (first + second) / 2
        if not self.training or not len(logits):
            return logits
        both = logits.detach().sigmoid()
        return logits, log_loss(first, both) + log_loss(second, both)

    @torch.no_grad()
    def begin_at(self, logits: Tensor) -> None:
        """See `Model`; both streams begin there."""
        for bias in (p for p in self.last.parameters() if p.dim() == 1):
            bias.copy_(logits)


class FactorizedInteractions(nn.Module):
    """Layers whose outputs are [a, a * b] of the halves a, b of a linear layer's: [B, K] -> [B, N].

    sizes: K, then each layer's outputs, even numbers. dropout, batch_norm: behind each layer.
    """

    def __init__(self, sizes: Sequence[int], dropout: float = 0.0, batch_norm: bool = True) -> None:
        super().__init__()
        self.layers = nn.ModuleList(MLP(pair) for pair in pairwise(sizes))
        self.norms = nn.ModuleList(BatchNorm(size) if batch_norm else nn.Identity() for size in sizes[1:])
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        for layer, norm in zip(self.layers, self.norms, strict=True):
            half, factor = layer(x).chunk(2, 1)
            x = self.dropout(norm(torch.cat([half, half * factor], 1)))
        return x
