"""Logistic regression: a weight for every id and for every dense feature.

    logit = bias + weights of the ids + weights of the dense features

It shows what single features say, before any model crosses them.
"""

from __future__ import annotations

from torch import Tensor

from hotrows.models import tables
from hotrows.models.first_order import FirstOrder
from hotrows.models.model import Model
from hotrows.models.vectors import LookedUpVectors
from hotrows.schema import Schema


class LR(Model):
    """Logistic regression: a weight of each id and dense feature.

    Has no options; says 0.5 of every sample before it is trained.

    >>> model = LR(data.schema)
    >>> sorted({table.name for table in model.tables})
    ['item.linear', 'user.linear']
    """

    rates = "weights"

    def __init__(self, schema: Schema) -> None:
        super().__init__()
        tables.check(schema, "LR")
        self.tables = tables.linear_tables(schema)
        self.first = FirstOrder(schema.num_dense)

    def forward(self, vectors: LookedUpVectors, dense: Tensor) -> Tensor:
        return self.first(vectors.stack(tables.LINEAR), dense)
