"""Wide & Deep (Cheng et al. 2016): a linear model that memorizes and a deep one that generalizes.

    logit = weights of ids, crosses and dense features + MLP([vectors, dense])

The weights of ids and crosses train under FTRL, which keeps rare ones at 0 where l1 is given, and
the vectors under the row optimizer of the run. The paper's deep part trains under Adagrad throughout:
`--optimizer adagrad --dense-optimizer adagrad`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from hotrows.models import tables
from hotrows.models.dense_input import DenseInput
from hotrows.models.model import Model
from hotrows.models.nn import MLP, linear_from_zero
from hotrows.models.vectors import LookedUpVectors, joined
from hotrows.optim import FTRL
from hotrows.schema import Schema


class WideDeep(Model):
    """Wide & Deep (Cheng et al. 2016): weights of ids and crosses under FTRL, and an MLP on vectors.

    hidden: sizes of the deep part's hidden layers.

    crosses: features whose combinations have weights of their own in the wide part, such as
        [["user", "item"]].
        cross_rows: buckets that the combinations of each are hashed to.
    l1, l2, wide_lr: of the wide part's FTRL.
    dims: dim of a vocabulary's vectors where it is not `dim`.

    >>> model = WideDeep(data.schema, dim=8)
    >>> sorted({table.name for table in model.tables})
    ['item', 'item.linear', 'user', 'user.linear']
    """

    first_layer_roles = (tables.VECTOR,)

    def __init__(
        self,
        schema: Schema,
        dim: int = 16,
        hidden: Sequence[int] = (256, 128, 64),
        dropout: float = 0.0,
        crosses: Sequence[Sequence[str]] = (),
        cross_rows: int = 100_000,
        l1: float = 0.0,
        l2: float = 0.0,
        wide_lr: float = 0.05,
        dims: Mapping[str, int] | None = None,
    ) -> None:
        super().__init__()
        tables.check(schema, "WideDeep")
        if min(l1, l2) < 0 or wide_lr <= 0:
            raise ValueError(
                f"WideDeep needs l1 and l2 of at least 0 and wide_lr above 0, "
                f"not l1={l1}, l2={l2}, wide_lr={wide_lr}"
            )
        ftrl = FTRL(lr=wide_lr, l1=l1, l2=l2)
        self.crosses = tables.crosses_of(schema, crosses, cross_rows)
        vectors = tables.vector_tables(schema, dim, dims=dims)
        self.tables = (
            *vectors,
            *tables.linear_tables(schema, ftrl),
            *tables.cross_tables(self.crosses, optimizer=ftrl),
        )
        self.inputs = DenseInput(schema, dim)
        width = tables.width_of(vectors) + self.inputs.width
        self.wide = linear_from_zero(schema.num_dense) if schema.num_dense else None
        self.deep = MLP((width, *hidden, 1), dropout=dropout)

    def forward(self, vectors: LookedUpVectors, dense: Tensor) -> Tensor:
        deep = self.deep(joined(vectors, self.inputs(dense)))
        wide = vectors.stack(tables.LINEAR).sum((1, 2))
        if self.wide is not None:
            wide = wide + self.wide(dense).squeeze(1)
        return deep.squeeze(1).float() + wide
