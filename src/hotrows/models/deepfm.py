"""DeepFM (Guo et al. 2017): a factorization machine and a deep network on the same vectors.

    logit = linear weights + second order of the vectors + MLP([vectors, dense])

The dense features take part in the linear and in the deep part. Effects of ids and numbers that were
fitted before training, where there are any, are added to the logit, and read by the deep part.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from hotrows.models import tables
from hotrows.models.dense_input import DenseInput
from hotrows.models.effects import Effects
from hotrows.models.model import Model
from hotrows.models.nn import MLP, FactorizationMachine, linear_from_zero
from hotrows.models.vectors import LookedUpVectors
from hotrows.schema import Schema


class DeepFM(Model):
    """DeepFM (Guo et al. 2017): a factorization machine and an MLP on the same vectors.

    hidden: sizes of the deep network's hidden layers.
    crosses: features whose combinations are ids of their own, such as [["user", "item"]].
        cross_rows: buckets that the combinations of each are hashed to.
    effects: id features, and combinations of them, whose effects on the label are fitted before
        training and added to the logit, such as [["user"], ["user", "item"]].
        effect_folds: features whose ids and numbers part the training samples into folds, each left
        out of the effects of its own samples. effect_rows: buckets of a combination of ids, at most.
        effect_trees: trees of numbers and effects that are fitted and added as well.

    >>> model = DeepFM(data.schema, dim=8)
    >>> sorted({table.name for table in model.tables})
    ['item', 'item.linear', 'user', 'user.linear']
    """

    small: ClassVar[dict[str, Any]] = {"hidden": [128, 64], "dropout": 0.2}

    def __init__(
        self,
        schema: Schema,
        dim: int = 16,
        hidden: Sequence[int] = (400, 400, 400),
        dropout: float = 0.0,
        batch_norm: bool = False,
        crosses: Sequence[Sequence[str]] = (),
        cross_rows: int = 100_000,
        effects: Sequence[Sequence[str]] = (),
        effect_folds: Sequence[str] = (),
        effect_rows: int = 100_000,
        effect_trees: int = 0,
    ) -> None:
        super().__init__()
        tables.check(schema, "DeepFM")
        self.crosses = tables.crosses_of(schema, crosses, cross_rows)
        self.tables = (
            *tables.vector_tables(schema, dim),
            *tables.linear_tables(schema),
            *tables.cross_tables(self.crosses, dim),
        )
        self.inputs = DenseInput(schema, dim)
        width = (len(schema.id_features) + len(self.crosses)) * dim + self.inputs.width
        self.effects = None
        if effects or effect_trees:
            self.effects = Effects(schema, effects, effect_folds, effect_rows, effect_trees)
            self.tables += self.effects.tables
            self.crosses += self.effects.crosses
            width += self.effects.num
        self.linear = linear_from_zero(schema.num_dense) if schema.num_dense else None
        self.pairs = FactorizationMachine()
        self.deep = MLP((width, *hidden, 1), dropout=dropout, batch_norm=batch_norm)

    def forward(self, vectors: LookedUpVectors, dense: Tensor) -> Tensor:
        stacked, first = vectors.stack(), vectors.stack(tables.LINEAR).sum((1, 2))
        inputs = [stacked.flatten(1), self.inputs(dense)]
        if self.effects is not None:
            effects = self.effects(vectors, dense)
            inputs.append(effects)
            first = first + self.effects.weight * effects.sum(1)
        deep = self.deep(torch.cat(inputs, dim=1))
        if self.linear is not None:
            first = first + self.linear(dense).squeeze(1)
        return deep.squeeze(1).float() + first + self.pairs(stacked)
