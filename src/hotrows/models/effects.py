"""Effects of ids, and of combinations of ids, on the label: fitted before training, and not trained.

A row of their tables has K + 1 numbers: the effect by models that were fitted without each of K folds of
the training samples, and by one of all samples. A sample in training gets the effects that were fitted
without its fold, so that its own label is in none of them. A hash of its ids tells the fold. Any other
sample gets those of the model of all.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor, nn

from hotrows.models import tables
from hotrows.models.vectors import LookedUpVectors
from hotrows.optim import SGD
from hotrows.schema import Schema
from hotrows.table import Constant, Cross, Table

EFFECT, FOLD = "effect", "fold"  # roles of tables
FOLDS = 5
_ROOM = 16  # buckets for each combination that there can be


class Effects(nn.Module):
    """Looks up the effects of samples; `weight` is that of their sum in the logit, 1 at first.

    effects: a list of features for each, such as [["user"], ["user", "item"]]. folds: features whose ids
    tell the fold of a sample. rows: buckets of each combination, at most.
    """

    def __init__(
        self, schema: Schema, effects: Sequence[Sequence[str]], folds: Sequence[str], rows: int
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        *combined, fold = tables.crosses_of(schema, [*(e for e in effects if len(e) > 1), folds], FOLDS)
        self._fold = f"{fold.name}.{FOLD}"
        crosses = []
        for cross in combined:
            num = _ROOM * prod(schema.rows_of(name) for name in cross.features)
            crosses.append(Cross(cross.features, min(rows, num), f"{cross.name}.{EFFECT}"))
        self.crosses = (*crosses, Cross(fold.features, FOLDS, self._fold))
        single = [name for names in effects if len(names) == 1 for name in names]
        self.num = len(single) + len(crosses)
        self.tables = (
            *(_table(f"{name}.{EFFECT}", schema.rows_of(name), name, EFFECT) for name in single),
            *(_table(cross.name, cross.rows, cross.name, EFFECT) for cross in crosses),
            _table(self._fold, FOLDS, self._fold, FOLD),
        )

    def forward(self, vectors: LookedUpVectors) -> Tensor:
        """The effects of each sample, [B, num]."""
        effects = vectors.stack(EFFECT).float()  # [B, num, K + 1]
        if not self.training:
            return effects[:, :, FOLDS]
        is_fold = vectors[self._fold, FOLD].float()  # [B, K + 1], a single 1
        return (effects * is_fold[:, None]).sum(2)


def _table(name: str, rows: int, feature: str, role: str) -> Table:
    """Rows that are not trained, and have no optimizer state."""
    return Table(name, rows, FOLDS + 1, (feature,), role, Constant(0.0), optimizer=SGD(lr=0.0))
