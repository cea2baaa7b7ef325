"""A deep network on the vectors and the dense features, with nothing beside it.

    logit = MLP([vectors, dense])

With a history among the features, pooled by its mean, this is the ranking network of YouTube
(Covington et al. 2016), and the baseline of models that attend to what the history holds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from hotrows.models import tables
from hotrows.models.dense_input import DenseInput
from hotrows.models.model import Model
from hotrows.models.nn import MLP
from hotrows.models.vectors import LookedUpVectors, joined
from hotrows.schema import Schema


class DNN(Model):
    """Deep network: an MLP on the vectors and dense features.

    hidden: sizes of the hidden layers.
    dims: dim of a vocabulary's vectors where it is not `dim`.

    >>> model = DNN(data.schema, dim=8)
    >>> sorted({table.name for table in model.tables})
    ['item', 'user']
    """

    first_layer_roles = (tables.VECTOR,)

    def __init__(
        self,
        schema: Schema,
        dim: int = 16,
        hidden: Sequence[int] = (400, 400, 400),
        dropout: float = 0.0,
        batch_norm: bool = False,
        dims: Mapping[str, int] | None = None,
    ) -> None:
        super().__init__()
        tables.check(schema, "DNN")
        self.tables = tables.vector_tables(schema, dim, dims=dims)
        self.inputs = DenseInput(schema, dim)
        width = tables.width_of(self.tables) + self.inputs.width
        self.deep = MLP((width, *hidden, 1), dropout=dropout, batch_norm=batch_norm)

    def forward(self, vectors: LookedUpVectors, dense: Tensor) -> Tensor:
        return self.deep(joined(vectors, self.inputs(dense))).squeeze(1).float()
