"""Multi-gate mixture-of-experts (Ma et al. 2018): several labels trained together.

                                  +-> gate of task 1 -> mixture 1 -> tower 1 -> logit 1
    x = [vectors, dense] -> experts
                                  +-> gate of task 2 -> mixture 2 -> tower 2 -> logit 2

Tasks share the vectors and the experts; each weighs the experts by a gate of its own, sample by
sample. The sizes by default are those of DeepRec's model zoo.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from hotrows.models import tables
from hotrows.models.dense_input import DenseInput
from hotrows.models.model import Model
from hotrows.models.nn import ExpertMixture, GroupedMLP
from hotrows.models.vectors import LookedUpVectors, joined
from hotrows.schema import Schema


class MMoE(Model):
    """MMoE (Ma et al. 2018): several labels from shared experts.

    labels: names of the labels to learn, a logit each; None: all that the schema has.

    num_experts: how many.
    expert_hidden: sizes of their layers, the last is their output.
    gate_hidden: sizes of a gate's hidden layers, none by default.
    tower_hidden: of a tower's.
    dropout: of all hidden layers.
    dims: dim of a vocabulary's vectors where it is not `dim`.

    >>> model = MMoE(data.schema, dim=8)
    >>> sorted({table.name for table in model.tables})
    ['item', 'user']
    """

    labels: tuple[str, ...]

    def __init__(
        self,
        schema: Schema,
        dim: int = 16,
        labels: Sequence[str] | None = None,
        num_experts: int = 4,
        expert_hidden: Sequence[int] = (256, 192, 128, 64),
        gate_hidden: Sequence[int] = (),
        tower_hidden: Sequence[int] = (256, 192, 128, 64),
        dropout: float = 0.0,
        dims: Mapping[str, int] | None = None,
    ) -> None:
        super().__init__()
        tables.check(schema, "MMoE")
        if num_experts < 1 or not expert_hidden:
            raise ValueError(
                f"MMoE needs at least one expert with at least one layer, "
                f"not num_experts={num_experts}, expert_hidden={tuple(expert_hidden)}"
            )
        self.labels = tables.labels_of(schema, labels, "MMoE")
        self.tables = tables.vector_tables(schema, dim, dims=dims)
        self.inputs = DenseInput(schema, dim)
        width = tables.width_of(self.tables) + self.inputs.width
        self.mixture = ExpertMixture(
            width, len(self.labels), num_experts, expert_hidden, gate_hidden, dropout=dropout
        )
        self.towers = GroupedMLP(len(self.labels), (expert_hidden[-1], *tower_hidden, 1), dropout=dropout)

    def forward(self, vectors: LookedUpVectors, dense: Tensor) -> Tensor:
        x = joined(vectors, self.inputs(dense))
        assert isinstance(x, Tensor)
        return self.towers(self.mixture(x)).squeeze(2).t().float()  # [B, T]
