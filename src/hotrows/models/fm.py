"""A factorization machine (Rendle 2010): weights of features, and of their pairs by dot products.

    logit = bias + weights of the ids and dense features + dot products of all pairs of vectors

Ids have vectors; dense features take part in the first order alone.
"""

from __future__ import annotations

from torch import Tensor

from hotrows.models import tables
from hotrows.models.first_order import FirstOrder
from hotrows.models.model import Model
from hotrows.models.nn import FactorizationMachine
from hotrows.models.vectors import LookedUpVectors
from hotrows.schema import Schema


class FM(Model):
    """Factorization machine (Rendle 2010): weights of ids, and products of all pairs of vectors.

    dim: of the vectors whose dot products weigh the pairs.

    >>> model = FM(data.schema, dim=8)
    >>> sorted({table.name for table in model.tables})
    ['item', 'item.linear', 'user', 'user.linear']
    """

    rates = "products"

    def __init__(self, schema: Schema, dim: int = 16) -> None:
        super().__init__()
        tables.check(schema, "FM")
        self.tables = tables.vector_tables(schema, dim) + tables.linear_tables(schema)
        self.first = FirstOrder(schema.num_dense)
        self.pairs = FactorizationMachine()

    def forward(self, vectors: LookedUpVectors, dense: Tensor) -> Tensor:
        return self.first(vectors.stack(tables.LINEAR), dense) + self.pairs(vectors.stack())
