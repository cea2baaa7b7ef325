"""RowSample: rows of a part by feature, to predict, to cut into slices, and to permute."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from hotrows.batch import OF_SAMPLES, Batch, by_feature, of_features, samples, taken
from hotrows.data import Loader, Part
from hotrows.losses import Loss
from hotrows.train.loop.evaluate import EVALUATION_BATCH
from hotrows.train.loop.predictor import Predictor

Ids = tuple[Tensor, Tensor, Tensor]  # of a feature: ids of all rows, how many each has, their weights


@dataclass(frozen=True)
class RowSample:
    """Rows of a part: all, or a sample, in one batch. total: number of rows of the part."""

    rows: Batch
    total: int

    def __len__(self) -> int:
        return self.rows.size

    @cached_property
    def ids(self) -> dict[str, Ids]:
        """The ids of each feature."""
        return by_feature(vars(self.rows))

    def drawn(self, num_rows: int, seed: int = 0) -> RowSample:
        """Draws rows, of all groups alike, which may follow one another here; all of a small sample."""
        order = torch.randperm(len(self), generator=torch.Generator().manual_seed(seed))
        return self.taken(order[:num_rows])

    def taken(self, order: Tensor) -> RowSample:
        """The rows of these numbers [N], in this order."""
        return replace(self, rows=taken(self.rows, order))

    def with_ids(self, names: Sequence[str], others: RowSample) -> RowSample:
        """The rows with the values of other rows, equally many, of the features of these names."""
        ids = {name: others.ids[name] if name in names else one for name, one in self.ids.items()}
        return replace(self, rows=replace(self.rows, **_fields(ids)))

    def with_numbers(self, place: slice, others: RowSample) -> RowSample:
        """The rows with the values of other rows of a dense feature by its place."""
        dense = self.rows.dense.clone()
        dense[:, place] = others.rows.dense[:, place]
        return replace(self, rows=replace(self.rows, dense=dense))

    def batches(self) -> Iterator[Batch]:
        """Yields the rows in batches of an evaluation."""
        for first in range(0, len(self), EVALUATION_BATCH):
            yield samples(self.rows, first, min(first + EVALUATION_BATCH, len(self)))


@dataclass(frozen=True)
class ScoredRows:
    """The samples that have a label and a weight above 0, with the outputs of a model: all of [M].

    rows: their numbers in the sample; groups: None where the schema has none.
    """

    label: str
    loss: Loss
    outputs: Tensor
    labels: Tensor
    weights: Tensor | None
    groups: Tensor | None
    rows: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def predictions(self) -> Tensor:
        return self.loss.predictions(self.outputs).double()

    def among(self, rows: Tensor) -> ScoredRows:
        """Selects the rows that have these numbers."""
        chosen = torch.isin(self.rows, rows, assume_unique=True)
        tensors: dict[str, Any] = {
            name: None if value is None else value[chosen]
            for name in ("outputs", "labels", "weights", "groups", "rows")
            for value in (getattr(self, name),)
        }
        return replace(self, **tensors)


def sample_of(part: Part, num_rows: int, seed: int, by_groups: bool = True) -> RowSample:
    """Reads rows of a part in random order, whole groups one after the other; all of a small one."""
    keep_groups = by_groups and part.schema.grouping is not None
    loader = Loader(part, EVALUATION_BATCH, shuffle=True, seed=seed, keep_groups=keep_groups)
    names, pieces, count = [feature.name for feature in part.schema.id_features], [], 0
    for batch in loader.batches(0):
        pieces.append(batch.expanded(names))
        count += batch.size
        if count >= num_rows:
            break
    sample = rows_of(pieces, names, part.rows)
    return replace(sample, rows=samples(sample.rows, 0, min(num_rows, len(sample))))


def rows_of(pieces: Sequence[Batch], names: Sequence[str], total: int) -> RowSample:
    """The rows of batches, expanded, by the names of features with ids."""
    by_batch = [by_feature(vars(batch)) for batch in pieces]
    ids = {name: tuple(map(torch.cat, zip(*(b[name] for b in by_batch), strict=True))) for name in names}
    tensors: dict[str, Any] = {
        name: None if getattr(pieces[0], name) is None else torch.cat([getattr(b, name) for b in pieces])
        for name in OF_SAMPLES
    }
    return RowSample(Batch(**_fields(ids), **tensors), total)


def _fields(ids: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a batch with these ids; offsets and weights where one is not 1."""
    if not ids:
        return {"features": (), "ids": torch.zeros(0, dtype=torch.int64)}
    has_lists, has_weights = (
        any(bool((of_feature[i] != 1).any()) for of_feature in ids.values()) for i in (1, 2)
    )
    return of_features(ids, has_lists, has_weights)


def score(predictor: Predictor, sample: RowSample) -> dict[str, ScoredRows]:
    """By label, the samples that have it with the outputs of a model."""
    logits = torch.cat([logits for _, logits in predictor.logits(sample.batches())]).view(len(sample), -1)
    targets = predictor.targets(sample.rows)
    labels = targets.labels.view(len(sample), -1)
    scored = {}
    for t, (label, loss) in enumerate(zip(predictor.labels, predictor.losses, strict=True)):
        weights = targets.weights
        weights = weights[:, t] if weights is not None and weights.dim() == 2 else weights
        rows = torch.arange(len(sample)) if weights is None else (weights > 0).nonzero()[:, 0]
        outputs = logits[rows, t]
        if not len(rows) or not outputs.isfinite().all():
            raise ValueError(
                f"{predictor.run}: no sample has the label {label!r}, or predictions are no finite "
                f"numbers; name another --part, or train with lower learning rates"
            )
        groups = sample.rows.groups
        scored[label] = ScoredRows(
            label=label,
            loss=loss,
            outputs=outputs.double(),
            labels=labels[rows, t].double(),
            weights=None
            if weights is None or bool((weights[rows] == 1).all())
            else weights[rows].double(),
            groups=None if groups is None else groups[rows],
            rows=rows,
        )
    return scored
