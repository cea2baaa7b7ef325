"""Wide & Deep (Cheng et al. 2016): a linear model that memorizes and a deep one that generalizes.

    logit = weights of the ids and of the dense features + MLP([vectors, dense])

The weights of the ids train under FTRL, which keeps rare ones at 0 where l1 is given; the vectors
under the optimizer of the embedding.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from hotrows.models import tables
from hotrows.models.model import Model
from hotrows.models.vectors import Vectors
from hotrows.nn import MLP, linear_from_zero
from hotrows.optim import FTRL, RowOptimizer
from hotrows.schema import Schema

_FTRL = FTRL()


class WideDeep(Model):
    """hidden: sizes of the deep part's hidden layers; wide: the row optimizer of the wide part."""

    def __init__(
        self,
        schema: Schema,
        dim: int = 16,
        hidden: Sequence[int] = (256, 128, 64),
        dropout: float = 0.0,
        wide: RowOptimizer = _FTRL,
    ) -> None:
        super().__init__()
        tables.check(schema, "WideDeep")
        self.tables = tables.vector_tables(schema, dim) + tables.linear_tables(schema, wide)
        width = len(schema.id_features) * dim + len(schema.dense)
        self.wide = linear_from_zero(len(schema.dense)) if schema.dense else None
        self.deep = MLP((width, *hidden, 1), dropout=dropout)

    def forward(self, vectors: Vectors, dense: Tensor) -> Tensor:
        deep = self.deep(torch.cat([vectors.stack().flatten(1), dense], dim=1))
        wide = vectors.stack(tables.LINEAR).sum((1, 2))
        if self.wide is not None:
            wide = wide + self.wide(dense).squeeze(1)
        return deep.squeeze(1).float() + wide
