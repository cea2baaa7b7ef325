"""The tensors of one step.

Letters of shapes, the same everywhere: B samples, F features, N ids, M bags (the vectors a lookup
returns), U unique rows, D width of a vector, W width of a stored row, S width of its state, C slots,
P ranks.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional


@dataclass(frozen=True)
class NewIds:
    """Ids of one key table that stand for other keys from a batch on: their rows begin anew.

    features: those that read the table; ids: [b] int64, distinct and ascending; keys: [b] int64.
    """

    features: tuple[str, ...]
    ids: Tensor
    keys: Tensor


@dataclass(frozen=True)
class Batch:
    """Dense values, ids and labels of B samples.

    features: names of the features that carry ids, in the order of `ids`.
    ids: [N] int64, feature after feature, each with its samples in order.
    offsets: [F * B + 1] int64; the ids of feature f and sample b are
        ids[offsets[f * B + b] : offsets[f * B + b + 1]]. None: every sample has one id per feature,
        so ids are [F * B].
    dense: [B, num_dense] float32.
    labels: [B] float32, of several tasks [B, T]; nan where the label of a task is missing, None where
        labels are unknown.
    weights: [N] float32, the factor of each id's vector in its pool; None: 1.
    sample_weights: [B] float32, the weight of each sample in the loss and in metrics; None: 1.
    groups: [B] int64, equal for samples of one group (a user's), for grouped AUC.
    times: [B] int64, event times in seconds, of which the least int64 is a missing one, for keys that
        expire by time; None: no key does.
    first_sample: the number of the first sample in its part of the data, for messages.
    new_ids: of dynamic features whose keys have become ids, what is new with this batch; None: ids are
        as they were read, those of dynamic features keys.
    """

    features: tuple[str, ...]
    ids: Tensor
    dense: Tensor
    labels: Tensor | None = None
    offsets: Tensor | None = None
    weights: Tensor | None = None
    first_sample: int = 0
    sample_weights: Tensor | None = None
    groups: Tensor | None = None
    times: Tensor | None = None
    new_ids: tuple[NewIds, ...] | None = None

    def __post_init__(self) -> None:
        if self.ids.dtype != torch.int64:
            raise ValueError(f"ids must be int64, not {self.ids.dtype}: convert with ids.long()")
        if self.dense.dtype != torch.float32 or self.dense.dim() != 2:
            raise ValueError(
                f"dense must be [B, num_dense] float32, not {list(self.dense.shape)} {self.dense.dtype}"
            )
        num_bags = len(self.features) * self.size
        if self.offsets is None and self.ids.numel() != num_bags:
            raise ValueError(
                f"{len(self.features)} features of {self.size} samples need {num_bags} ids, "
                f"not {self.ids.numel()}; pass offsets where samples have several ids or none"
            )
        if self.offsets is not None and self.offsets.numel() != num_bags + 1:
            raise ValueError(
                f"offsets must have F * B + 1 = {num_bags + 1} entries, not {self.offsets.numel()}"
            )

    @property
    def size(self) -> int:
        """B, the number of samples."""
        return self.dense.shape[0]

    def pin_memory(self) -> Batch:
        """A copy in page-locked memory, for copies to a device that need not wait."""
        tensors = {name: value for name, value in vars(self).items() if isinstance(value, Tensor)}
        changes: dict[str, Any] = {name: tensor.pin_memory() for name, tensor in tensors.items()}
        return replace(self, **changes)


def split(batch: Batch, num_parts: int) -> list[Batch]:
    """Divides a batch into parts of consecutive samples, near even: 10 samples in 4 are 2, 3, 2 and 3."""
    ends = [batch.size * part // num_parts for part in range(num_parts + 1)]
    return [samples(batch, ends[part], ends[part + 1]) for part in range(num_parts)]


def samples(batch: Batch, first: int, end: int) -> Batch:
    """Samples `first` to `end` - 1 of a batch."""
    if (first, end) == (0, batch.size):
        return batch
    changes: dict[str, Any] = {} if batch.new_ids is None else {"new_ids": ()}
    changes |= {
        name: value[first:end]
        for name in ("dense", "labels", "sample_weights", "groups", "times")
        if (value := getattr(batch, name)) is not None
    }

    def of_bags(values: Tensor) -> Tensor:  # [F * B] -> [F * (end - first)]
        return values.view(len(batch.features), -1)[:, first:end].reshape(-1)

    if batch.offsets is None:
        ids, weights = of_bags(batch.ids), None if batch.weights is None else of_bags(batch.weights)
    else:
        lengths, starts = of_bags(batch.offsets.diff()), of_bags(batch.offsets[:-1])
        changes["offsets"] = offsets = functional.pad(lengths.cumsum(0), (1, 0))
        places = torch.arange(int(offsets[-1])) + (starts - offsets[:-1]).repeat_interleave(lengths)
        ids, weights = batch.ids[places], None if batch.weights is None else batch.weights[places]
    number = batch.first_sample + first
    return replace(batch, ids=ids, weights=weights, first_sample=number, **changes)
