"""Targets: what a model is to predict of a batch: one label, one of several, or several together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hotrows import losses
from hotrows.batch import Batch
from hotrows.losses import Loss
from hotrows.runtime.suggestions import did_you_mean
from hotrows.schema import Schema

# Which of a schema's labels are trained: None, its only one; a number, one of several; or several.
Tasks = None | int | tuple[int, ...]


@dataclass(frozen=True)
class Targets:
    """Labels of a batch, and how much each counts.

    labels: float32, [B] or of several tasks [B, T]; weights: of their shape or [B],
    0 where a label is missing; None: all 1.
    """

    labels: Tensor
    weights: Tensor | None = None


def tasks_of(schema: Schema, labels: Sequence[str] | None, label: str | None) -> Tasks:
    """Finds the labels that a model learns among those of the schema.

    labels: those of a model of several. label: of a model of one; None: the first.
    """
    names = [known.name for known in schema.labels]
    unknown = [name for name in (*(labels or ()), *([label] if label else [])) if name not in names]
    if unknown:
        hint = did_you_mean(unknown[0], names)
        raise ValueError(f"label must be one of {', '.join(names)}, not {unknown[0]!r}{hint}")
    if labels is not None:
        if label is not None:
            raise ValueError(
                f"the model learns {', '.join(labels)} together, so label={label!r} says nothing; "
                f"leave it out, or give the model option labels"
            )
        return tuple(map(names.index, labels))
    return None if len(names) == 1 else names.index(label or names[0])


def task_numbers(tasks: Tasks) -> tuple[int, ...]:
    """The numbers of the labels that are trained, in the schema."""
    return tasks if isinstance(tasks, tuple) else (tasks or 0,)


def task_weights(weights: Mapping[str, float], labels: Sequence[str]) -> Tensor | None:
    """The weights of the labels in the loss, [T], 1 where not named; None: all 1."""
    unknown = [name for name in weights if name not in labels]
    if unknown:
        raise ValueError(
            f"label_weights are of the labels that the model learns ({', '.join(labels)}), "
            f"not of {unknown[0]!r}"
        )
    return torch.tensor([weights.get(name, 1.0) for name in labels]) if weights else None


def losses_of(schema: Schema, tasks: Tasks, text: str | None) -> tuple[Loss, ...]:
    """The losses of the labels that are trained: what the text says, else the schema.

    text: as `losses.parse_by_label` reads it; None: it says nothing.
    """
    labels = [schema.labels[task] for task in task_numbers(tasks)]
    said = {} if text is None else losses.parse_by_label(text)
    unknown = [name for name in said if name and name not in [label.name for label in labels]]
    if unknown:
        names = ", ".join(label.name for label in labels)
        raise ValueError(
            f"losses are of the labels that the model learns ({names}), not of {unknown[0]!r}"
        )
    of_all = said.get("")
    chosen = tuple(
        said.get(label.name) or of_all or losses.parse(label.loss or Loss.name) for label in labels
    )
    for label, loss in zip(labels, chosen, strict=True):
        if loss.is_order and schema.grouping is None:
            raise ValueError(
                f"the loss {loss.name} of label {label.name!r} compares samples of a group, and schema "
                f"{schema.name!r} has none: say which column that is, group=COLUMN, and prepare again"
            )
    return chosen


def ranking_of(schema: Schema, text: str | None) -> tuple[str, ...]:
    """The metrics within groups that a text names, such as ndcg@10,mrr; None: there are none."""
    names = () if text is None else losses.parse_ranking(text)
    if names and schema.grouping is None:
        raise ValueError(
            f"the metric {names[0]} is one within groups, and schema {schema.name!r} has none: say which "
            f"column that is, group=COLUMN, and prepare again"
        )
    return names


def targets_of(batch: Batch, tasks: Tasks) -> Targets:
    """The labels of a batch and their weights, for the tasks that are trained."""
    assert batch.labels is not None
    if tasks is None:
        return Targets(batch.labels, batch.sample_weights)
    labels = batch.labels if batch.labels.dim() == 2 else batch.labels[:, None]  # [B, L]
    if isinstance(tasks, int):
        labels = labels[:, tasks]
    else:  # labels[:, tasks], without an index that a device would wait for
        labels = torch.stack([labels[:, task] for task in tasks], 1)
    present = (~labels.isnan()).float()  # [B] or [B, T]
    if batch.sample_weights is not None:
        present *= batch.sample_weights if isinstance(tasks, int) else batch.sample_weights[:, None]
    return Targets(labels.nan_to_num(), present)
