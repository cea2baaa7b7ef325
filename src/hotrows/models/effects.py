"""Effects of ids and numbers, and of combinations, on the label: fitted before training, and not trained.

An effect is K + 1 numbers: that by models which were fitted without each of K folds of the training
samples, and by one of all samples. A sample in training gets the effects that were fitted without its
fold, so that its own label is in none of them. A hash of its ids and numbers tells the fold. Any other
sample gets those of the model of all.

Effects of ids are rows of tables. Effects of a number's bins, and of cells of two numbers' bins, are in
the dense part. Those of an id with a number are rows of a table, too, which have the effect in each bin.
In place of these, trees in the dense part may read numbers and effects of ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor, nn

from hotrows.engine.planning.crosses import bucket_of
from hotrows.models import tables
from hotrows.models.vectors import LookedUpVectors
from hotrows.optim import SGD
from hotrows.schema import Schema
from hotrows.table import Constant, Cross, Table

EFFECT, FOLD = "effect", "fold"  # roles of tables
FOLDS = 5
BINS, FEW_BINS = 128, 16  # of a number at most; beside an id
DEPTH = 5  # levels of a tree
_ROOM = 16  # buckets for each combination that there can be


class Trees(nn.Module):
    """Trees whose nodes of one level all compare one input with one threshold: [B, inputs] -> [B, 1].

    Of each of K + 1 models: `places` of the inputs and `thresholds`, level by level, and `values` of
    leaves, tree by tree. Zeros until they are fitted.
    """

    places: Tensor
    thresholds: Tensor
    values: Tensor
    powers: Tensor
    first_leaves: Tensor

    def __init__(self, num: int) -> None:
        super().__init__()
        self.num = num
        self.register_buffer("places", torch.zeros(FOLDS + 1, num * DEPTH, dtype=torch.int64))
        self.register_buffer("thresholds", torch.zeros(FOLDS + 1, num * DEPTH))
        self.register_buffer("values", torch.zeros(FOLDS + 1, num << DEPTH))
        powers = 1 << torch.arange(DEPTH - 1, -1, -1)
        self.register_buffer("powers", powers, persistent=False)
        self.register_buffer("first_leaves", torch.arange(num) << DEPTH, persistent=False)

    def forward(self, inputs: Tensor, fold: Tensor | None) -> Tensor:
        """fold: [B], of samples in training."""
        if fold is None:
            is_right = inputs.index_select(1, self.places[FOLDS]) >= self.thresholds[FOLDS]
            return self._sums(self.values[FOLDS], self._leaves(is_right))
        is_right = inputs.gather(1, self.places[fold]) >= self.thresholds[fold]
        first = (fold * self.values.shape[1])[:, None]
        return self._sums(self.values.view(-1), self._leaves(is_right) + first)

    def _leaves(self, is_right: Tensor) -> Tensor:
        bits = is_right.long().view(-1, self.num, DEPTH)
        return (bits * self.powers).sum(2) + self.first_leaves

    def _sums(self, values: Tensor, leaves: Tensor) -> Tensor:
        return values.index_select(0, leaves.view(-1)).view(-1, self.num).sum(1, keepdim=True)


class Effects(nn.Module):
    """Looks up the effects of samples; `weight` is that of their sum in the logit, 1 at first.

    effects: a list of features for each, such as [["user"], ["user", "item"], ["price", "age"]]: ids, or
    a number, alone, with another one or with an id. folds: features whose ids and numbers tell the fold
    of a sample. rows: buckets of each combination of ids, at most. trees: how many there are, of which
    the sum is one effect.
    """

    edges: Tensor
    few_bins: Tensor
    cells: Tensor

    def __init__(
        self,
        schema: Schema,
        effects: Sequence[Sequence[str]],
        folds: Sequence[str],
        rows: int,
        trees: int = 0,
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self._places = {dense.name: place for place, dense in enumerate(schema.dense)}
        self.folds, of_ids = tuple(folds), [names for names in effects if not self._numbers_of(names)]
        self.of_numbers = [list(names) for names in effects if names and not self._ids_of(names)]
        self.of_bins = [
            [*self._ids_of(names), *self._numbers_of(names)]
            for names in effects
            if self._ids_of(names) and self._numbers_of(names)
        ]
        self.numbers = list(dict.fromkeys(n for names in effects for n in self._numbers_of(names)))
        self._check(trees)
        single = [name for names in of_ids if len(names) == 1 for name in names]
        crosses = []
        for cross in tables.crosses_of(schema, [names for names in of_ids if len(names) > 1], rows):
            num = _ROOM * prod(schema.rows_of(name) for name in cross.features)
            crosses.append(Cross(cross.features, min(rows, num), f"{cross.name}.{EFFECT}"))
        self._ids = [*single, *(cross.name for cross in crosses)]
        self.of_ids = [*((name,) for name in single), *(cross.features for cross in crosses)]
        self.trees = Trees(trees) if trees else None
        self.num = len(self.of_ids) + len(self.of_numbers) + len(self.of_bins) + bool(trees)
        self.tables = (
            *(_table(f"{name}.{EFFECT}", schema.rows_of(name), name, EFFECT) for name in single),
            *(_table(cross.name, cross.rows, cross.name, EFFECT) for cross in crosses),
        )
        self._fold_numbers, fold_ids = self._numbers_of(folds), self._ids_of(folds)
        self.fold = fold_ids[0] if fold_ids else None
        if len(fold_ids) > 1:
            (fold,) = tables.crosses_of(schema, [fold_ids], FOLDS)
            self.fold = f"{fold.name}.{FOLD}"
            crosses.append(Cross(fold.features, FOLDS, self.fold))
        if self.fold is not None:
            num = FOLDS if len(fold_ids) > 1 else schema.rows_of(self.fold)
            name = f"{self.fold.removesuffix(f'.{FOLD}')}.{FOLD}"
            self.tables += (_table(name, num, self.fold, FOLD, FOLDS),)
        self.crosses = tuple(crosses)
        for names in self.of_bins:
            name, role = names[0], f"{EFFECT}.{names[1]}"
            dim = FEW_BINS * (FOLDS + 1)
            self.tables += (_table(f"{name}.{role}", schema.rows_of(name), name, role, dim),)
        if self.numbers:
            sizes = [BINS ** len(names) for names in self.of_numbers]
            self.register_buffer("edges", torch.full((len(self.numbers), BINS - 1), torch.inf))
            self.register_buffer("few_bins", torch.zeros(len(self.numbers), BINS, dtype=torch.int64))
            self.register_buffer("cells", torch.zeros(sum(sizes), FOLDS + 1))

    def _check(self, trees: int) -> None:
        for names in (*self.of_numbers, *self.of_bins):
            if len(names) != len(set(names)) or len(names) > 2:
                raise ValueError(f"{names}: effects are of a number, of two, or of an id and a number")
        if not self.folds:
            raise ValueError("effects need effect_folds, features whose values tell samples apart")
        if trees < 0:
            raise ValueError(f"effect_trees must be 0 or more, not {trees}")
        if trees and self.numbers:
            raise ValueError(f"effect_trees is in place of effects of {', '.join(self.numbers)}")

    def forward(self, vectors: LookedUpVectors, dense: Tensor) -> Tensor:
        """The effects of each sample, [B, num]."""
        fold = self._fold(vectors, dense) if self.training else None
        effects = dense[:, :0].float()
        if self._ids or self.numbers:
            parts = [vectors.stack(EFFECT, self._ids).float()] if self._ids else []  # [B, .., K + 1]
            together = torch.cat(parts + (self._of_numbers(vectors, dense) if self.numbers else []), 1)
            effects = together[:, :, FOLDS]
            if fold is not None:
                places = fold[:, None, None].expand(-1, together.shape[1], 1)
                effects = together.gather(2, places).squeeze(2)
        if self.trees is None:
            return effects
        inputs = torch.cat([dense[:, : len(self._places)].float(), effects], 1)
        return torch.cat([effects, self.trees(inputs, fold)], 1)

    def _fold(self, vectors: LookedUpVectors, dense: Tensor) -> Tensor:
        fold = torch.zeros(len(dense), dtype=torch.int64, device=dense.device)
        if self.fold is not None:
            fold = vectors[self.fold, FOLD].argmax(1)
        if self._fold_numbers:
            fold = (fold + fold_of_numbers(self._columns(dense, self._fold_numbers))) % FOLDS
        return fold

    def _of_numbers(self, vectors: LookedUpVectors, dense: Tensor) -> list[Tensor]:
        numbers = self._columns(dense, self.numbers).float()
        bins = (numbers[:, :, None] >= self.edges).sum(2)  # [B, numbers]
        index, first = [], 0
        for names in self.of_numbers:
            cell = torch.zeros_like(bins[:, 0])
            for name in names:
                cell = cell * BINS + bins[:, self.numbers.index(name)]
            index.append(cell + first)
            first += BINS ** len(names)
        effects = [self.cells[torch.stack(index, 1)]] if index else []
        for names in self.of_bins:
            place = self.numbers.index(names[1])
            of_id = vectors[names[0], f"{EFFECT}.{names[1]}"].float().view(-1, FEW_BINS, FOLDS + 1)
            few = self.few_bins[place][bins[:, place]][:, None, None]
            effects.append(of_id.gather(1, few.expand(-1, 1, FOLDS + 1)))
        return effects

    def _columns(self, dense: Tensor, names: Sequence[str]) -> Tensor:
        return torch.stack([dense[:, self._places[name]] for name in names], 1)

    def _numbers_of(self, names: Sequence[str]) -> list[str]:
        return [name for name in names if name in self._places]

    def _ids_of(self, names: Sequence[str]) -> list[str]:
        return [name for name in names if name not in self._places]


def fold_of_numbers(numbers: Tensor) -> Tensor:
    """The fold that numbers [B, N] of samples tell, by their bits: [B]."""
    return bucket_of(numbers.float().contiguous().view(torch.int32).long().T, FOLDS)


def _table(name: str, rows: int, feature: str, role: str, dim: int = FOLDS + 1) -> Table:
    """Rows that are not trained, and have no optimizer state."""
    return Table(name, rows, dim, (feature,), role, Constant(0.0), optimizer=SGD(lr=0.0))
