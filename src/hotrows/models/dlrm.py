"""DLRM (Naumov et al. 2019): dot products between sparse features and the dense ones as one vector.

    dense -> bottom MLP -> [B, D] -+-> dot products of all pairs -> top MLP -> logit
    ids   -> vectors    [B, F, D] -+

The bottom vector itself precedes the products.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from hotrows.models import tables
from hotrows.models.dense_input import DenseInput
from hotrows.models.model import Model
from hotrows.models.nn import MLP, DotInteraction
from hotrows.models.vectors import LookedUpVectors
from hotrows.schema import Schema


class DLRM(Model):
    """DLRM (Naumov et al. 2019): products of all pairs of vectors between two MLPs.

    bottom and top: sizes of the hidden layers; `dim` and 1 follow behind them.

    dropout: of the top's hidden layers.

    >>> model = DLRM(data.schema, dim=8)
    >>> sorted({table.name for table in model.tables})
    ['item', 'user']
    """

    def __init__(
        self,
        schema: Schema,
        dim: int = 16,
        bottom: Sequence[int] = (512, 256, 64),
        top: Sequence[int] = (512, 256),
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        tables.check(schema, "DLRM", ids=True)
        if not schema.num_dense:
            raise ValueError("DLRM needs dense features for its bottom layers; try DeepFM")
        self.tables = tables.vector_tables(schema, dim)
        num_pairs = DotInteraction.num_outputs(len(schema.id_features), dim)
        self.inputs = DenseInput(schema, dim)
        self.bottom = MLP((self.inputs.width, *bottom, dim), last_activation="relu")
        self.interaction = DotInteraction()
        self.top = MLP((num_pairs, *top, 1), dropout=dropout)

    def forward(self, vectors: LookedUpVectors, dense: Tensor) -> Tensor:
        pairs = self.interaction(self.bottom(self.inputs(dense)), vectors.stack())
        return self.top(pairs).squeeze(1).float()
