"""DCN-V2 (Wang et al. 2021): explicit crosses of bounded degree beside, or below, a deep network.

    parallel    x = [vectors, dense] -+-> cross -+-> logit
                                      +-> deep  -+
    stacked     x -> cross -> deep -> logit

The last layer of either is a linear one. Where samples are few, training adds weights of single ids and
dense features to the logit (`linear`), which the paper does not have.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from hotrows.models import tables
from hotrows.models.dense_input import DenseInput
from hotrows.models.first_order import FirstOrder
from hotrows.models.model import Model
from hotrows.models.nn import MLP, CrossNetwork, CrossNetworkMixture
from hotrows.models.vectors import LookedUpVectors
from hotrows.schema import Schema


class DCNv2(Model):
    """DCN V2 (Wang et al. 2021): a cross network and an MLP on the vectors.

    num_crosses: layers of the cross network.
    rank: of their matrices, None for full ones.

    experts: how many low-rank experts each of these layers mixes; None: plain matrices.
    hidden: sizes of the deep network's layers.
    structure: `parallel` or `stacked`.
    linear: add a weight of each id and dense feature to the logit.

    >>> model = DCNv2(data.schema, dim=8)
    >>> sorted({table.name for table in model.tables})
    ['item', 'user']
    """

    small: ClassVar[dict[str, Any]] = {"linear": True, "hidden": [128, 64], "dropout": 0.2}

    def __init__(
        self,
        schema: Schema,
        dim: int = 16,
        num_crosses: int = 3,
        rank: int | None = None,
        hidden: Sequence[int] = (400, 400, 400),
        dropout: float = 0.0,
        structure: str = "parallel",
        experts: int | None = None,
        linear: bool = False,
    ) -> None:
        super().__init__()
        tables.check(schema, "DCNv2")
        if structure not in ("parallel", "stacked") or not hidden:
            raise ValueError(
                f"DCNv2 needs structure 'parallel' or 'stacked' and at least one hidden size, "
                f"not structure={structure!r}, hidden={tuple(hidden)}"
            )
        if experts is not None and rank is None:
            raise ValueError(f"DCNv2 needs a rank for its {experts} experts, such as rank=32")
        self.structure = structure
        self.tables = tables.vector_tables(schema, dim) + (tables.linear_tables(schema) if linear else ())
        self.linear = FirstOrder(schema.num_dense, bias=False) if linear else None
        self.inputs = DenseInput(schema, dim)
        width = len(schema.id_features) * dim + self.inputs.width
        self.cross: CrossNetwork | CrossNetworkMixture
        if experts is not None and rank is not None:
            self.cross = CrossNetworkMixture(width, num_crosses, rank, experts)
        else:
            self.cross = CrossNetwork(width, num_crosses, rank)
        self.deep = MLP((width, *hidden), dropout=dropout, last_activation="relu")
        self.last = MLP((hidden[-1] + (width if structure == "parallel" else 0), 1))

    def forward(self, vectors: LookedUpVectors, dense: Tensor) -> Tensor:
        x = torch.cat([vectors.stack().flatten(1), self.inputs(dense)], dim=1)
        crossed = self.cross(x)
        if self.structure == "stacked":
            logits = self.last(self.deep(crossed))
        else:
            deep = self.deep(x)
            logits = self.last(torch.cat([crossed.to(deep.dtype), deep], dim=1))
        logits = logits.squeeze(1).float()
        return (
            logits if self.linear is None else logits + self.linear(vectors.stack(tables.LINEAR), dense)
        )
