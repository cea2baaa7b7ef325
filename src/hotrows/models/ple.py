"""Progressive layered extraction (Tang et al. 2020): own experts of tasks and shared ones, in levels.

    level       task t reads its own experts and the shared ones, weighed by its gate
                the next level's shared experts read all experts, weighed by a gate of their own
    after the last level, a tower for each task

MMoE shares all experts, and tasks that disagree harm one another; here each keeps some for itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from hotrows.models import tables
from hotrows.models.dense_input import DenseInput
from hotrows.models.model import Model
from hotrows.models.nn import MLP, GroupedMLP
from hotrows.models.vectors import LookedUpVectors, joined
from hotrows.schema import Schema


class PLE(Model):
    """PLE (Tang et al. 2020): several labels from shared experts and experts of their own.

    labels: names of the labels to learn, a logit each; None: all that the schema has.

    num_levels: of experts and gates; 1 is CGC.
    task_experts, shared_experts: how many experts a level has for each task, and for all.
    expert_hidden: sizes of an expert's layers, the last is its output.
    tower_hidden: of a tower's.
    dropout: of all hidden layers.
    dims: dim of a vocabulary's vectors where it is not `dim`.

    >>> model = PLE(data.schema, dim=8)
    >>> sorted({table.name for table in model.tables})
    ['item', 'user']
    """

    labels: tuple[str, ...]

    def __init__(
        self,
        schema: Schema,
        dim: int = 16,
        labels: Sequence[str] | None = None,
        num_levels: int = 2,
        task_experts: int = 2,
        shared_experts: int = 2,
        expert_hidden: Sequence[int] = (256, 128, 64),
        tower_hidden: Sequence[int] = (128, 64),
        dropout: float = 0.0,
        dims: Mapping[str, int] | None = None,
    ) -> None:
        super().__init__()
        tables.check(schema, "PLE")
        if min(num_levels, task_experts, shared_experts) < 1 or not expert_hidden:
            raise ValueError(
                f"PLE needs at least one level, one expert of a task, one shared one, and one layer, not "
                f"num_levels={num_levels}, task_experts={task_experts}, shared_experts={shared_experts}, "
                f"expert_hidden={tuple(expert_hidden)}"
            )
        self.labels = tables.labels_of(schema, labels, "PLE")
        self.tables = tables.vector_tables(schema, dim, dims=dims)
        self.inputs = DenseInput(schema, dim)
        width = tables.width_of(self.tables) + self.inputs.width
        num_tasks, output = len(self.labels), expert_hidden[-1]
        counts = num_tasks, task_experts, shared_experts
        self.levels = nn.ModuleList(
            Level(output if n else width, counts, expert_hidden, dropout, n == num_levels - 1)
            for n in range(num_levels)
        )
        self.towers = GroupedMLP(num_tasks, (output, *tower_hidden, 1), dropout=dropout)

    def forward(self, vectors: LookedUpVectors, dense: Tensor) -> Tensor:
        x = joined(vectors, self.inputs(dense))
        for level in self.levels:
            x = level(x)
        return self.towers(x).squeeze(2).t().float()  # [B, T]


class Level(nn.Module):
    """Experts and gates: [B, K], or [T + 1, B, K] of a level before, to [T + 1, B, N]; the last level's
    outputs are those of the T tasks alone. What is shared comes behind the tasks."""

    def __init__(
        self,
        width: int,
        counts: tuple[int, int, int],
        hidden: Sequence[int],
        dropout: float,
        is_last: bool,
    ) -> None:
        super().__init__()
        num_tasks, task_experts, shared_experts = counts
        self.num_tasks, self.task_experts, self.shared_experts = counts
        num_experts = num_tasks * task_experts + shared_experts
        self.experts = GroupedMLP(num_experts, (width, *hidden), dropout=dropout, last_activation="relu")
        self.gates = GroupedMLP(num_tasks, (width, task_experts + shared_experts))
        self.shared_gate = None if is_last else MLP((width, num_experts))

    def forward(self, x: Tensor) -> Tensor:
        of_tasks = of_shared = x
        if x.dim() == 3:
            of_tasks, of_shared = x[:-1], x[-1]
            of_each = of_tasks.repeat_interleave(self.task_experts, 0)
            x = torch.cat([of_each, of_shared.expand(self.shared_experts, -1, -1)])
        outputs = self.experts(x)  # [E, B, N]
        special, shared = outputs.split([len(outputs) - self.shared_experts, self.shared_experts])
        special = special.unflatten(0, (self.num_tasks, self.task_experts))
        read = torch.cat([special, shared.expand(self.num_tasks, *shared.shape)], 1)
        mixed = torch.einsum("tbe,tebn->tbn", self.gates(of_tasks).softmax(2), read)
        if self.shared_gate is None:
            return mixed
        common = torch.einsum("be,ebn->bn", self.shared_gate(of_shared).softmax(1), outputs)
        return torch.cat([mixed, common[None]])
