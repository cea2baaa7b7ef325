"""ESMM (Ma et al. 2018): clicks, and conversions after a click, learned from all impressions.

    x = [vectors, dense] -+-> tower -> logit of a click, a
                          +-> tower -> logit of a conversion after a click, b
    conversion of an impression: p = sigmoid(a) sigmoid(b)

A model of conversions that learns from clicks alone meets other samples where it is used. Here both
labels are known of every impression, and the second tower learns through the product.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from hotrows.models import tables
from hotrows.models.dense_input import DenseInput
from hotrows.models.model import Model
from hotrows.models.nn import GroupedMLP
from hotrows.models.vectors import LookedUpVectors, joined
from hotrows.schema import Schema


class ESMM(Model):
    """ESMM (Ma et al. 2018): clicks, and conversions of all impressions by their product.

    labels: the label of clicks, then that of conversions, which is 1 only where both happened; None: the
        two that the schema has. Predictions are those of a click, and of a conversion of the impression.

    hidden: sizes of the hidden layers of both towers.
    dims: dim of a vocabulary's vectors where it is not `dim`.

    >>> data = hotrows.Schema((hotrows.Sparse("user", rows=9),), label=("click", "buy"))
    >>> ESMM(data, dim=8).labels
    ('click', 'buy')
    """

    labels: tuple[str, ...]

    def __init__(
        self,
        schema: Schema,
        dim: int = 16,
        labels: Sequence[str] | None = None,
        hidden: Sequence[int] = (360, 200, 80),
        dropout: float = 0.0,
        dims: Mapping[str, int] | None = None,
    ) -> None:
        super().__init__()
        tables.check(schema, "ESMM")
        self.labels = tables.labels_of(schema, labels, "ESMM")
        if len(self.labels) != 2:
            raise ValueError(
                f"ESMM needs two labels, of clicks and of conversions, not {', '.join(self.labels)}: "
                f'name them, such as labels=["click", "buy"]'
            )
        self.tables = tables.vector_tables(schema, dim, dims=dims)
        self.inputs = DenseInput(schema, dim)
        width = tables.width_of(self.tables) + self.inputs.width
        self.towers = GroupedMLP(2, (width, *hidden, 1), dropout=dropout)

    def forward(self, vectors: LookedUpVectors, dense: Tensor) -> Tensor:
        x = joined(vectors, self.inputs(dense))
        assert isinstance(x, Tensor)
        click, after = self.towers(x).squeeze(2).float()
        # 1 / p - 1 = e^-a + e^-b + e^-(a + b)
        both = -torch.stack([-click, -after, -click - after]).logsumexp(0)
        return torch.stack([click, both], 1)

    @torch.no_grad()
    def begin_at(self, logits: Tensor) -> None:
        """See `Model`; the second tower begins at the share of clicks that convert."""
        click, both = logits.double().sigmoid()
        after = (both / click).clamp(1e-6, 0.99).logit().to(logits.dtype)
        super().begin_at(torch.stack([logits[0], after]))
