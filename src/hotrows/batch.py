"""The tensors of one step.

Letters of shapes, the same everywhere: B samples, F features, N ids, M bags (the vectors a lookup
returns), U unique rows, D width of a vector, W width of a stored row, S width of its state, C slots,
P ranks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

OF_SAMPLES = ("dense", "labels", "sample_weights", "groups", "times")  # fields


@dataclass(frozen=True)
class NewIds:
    """Ids of one key table that stand for other keys from a batch on: their rows begin anew.

    features: those that read the table; ids: [b] int64, distinct and ascending; keys: [b] int64.
    """

    features: tuple[str, ...]
    ids: Tensor
    keys: Tensor


@dataclass(frozen=True)
class RequestFeatures:
    """The features that samples of one request share, once for each of R requests.

    shared: a batch whose samples are the requests, of the features that are shared: their ids, and no
        dense values or labels. starts: [R + 1] int64 from 0 to B; request r has the samples starts[r] ..
        starts[r + 1] - 1, one at least.
    """

    shared: Batch
    starts: Tensor

    @property
    def of_samples(self) -> Tensor:
        """The request of each sample: [B] int64."""
        return torch.arange(self.shared.size).repeat_interleave(self.starts.diff())

    def among(self, first: int, end: int) -> RequestFeatures:
        """Selects the features of samples `first` to `end` - 1; requests that are cut are in both."""
        low = int(torch.searchsorted(self.starts, first, right=True)) - 1
        high = max(int(torch.searchsorted(self.starts, end)), low) if first < end else low
        return RequestFeatures(
            samples(self.shared, low, high), self.starts[low : high + 1].clamp(first, end) - first
        )


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
    groups: [B] int64, equal for samples of one group (a user's), for metrics within groups;
        `losses.NO_GROUP`: the group is missing.
    times: [B] int64, event times in seconds, of which the least int64 is a missing one, for keys that
        expire by time; None: no key does.
    first_sample: the number of the first sample in its part of the data, for messages.
    new_ids: of dynamic features whose keys have become ids, what is new with this batch; None: ids are
        as they were read, those of dynamic features keys.

    >>> ids = torch.tensor([3, 4, 2, 2])  # of "user", then of "item"
    >>> batch = Batch(("user", "item"), ids, dense=torch.zeros(2, 0), labels=torch.tensor([1.0, 0.0]))
    >>> batch.size
    2
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
    requests: RequestFeatures | None = None

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
        if self.offsets is not None and self.offsets.dtype != torch.int64:
            raise ValueError(f"offsets must be int64, not {self.offsets.dtype}: use offsets.long()")
        if self.offsets is not None and self.offsets.numel() != num_bags + 1:
            raise ValueError(
                f"offsets must have F * B + 1 = {num_bags + 1} entries, not {self.offsets.numel()}"
            )
        if self.requests is not None:
            starts = self.requests.starts
            if int(starts[-1]) != self.size:
                raise ValueError(
                    f"starts of requests must end with the {self.size} samples of the batch, not with "
                    f"{int(starts[-1])}"
                )
            if len(empty := (starts.diff() < 1).nonzero()):
                raise ValueError(
                    f"every request needs a sample, but request {int(empty[0])} has none; leave it out "
                    f"of shared and starts"
                )

    @property
    def size(self) -> int:
        """B, the number of samples."""
        return self.dense.shape[0]

    @property
    def all_features(self) -> tuple[str, ...]:
        """The features that carry ids, those that samples of a request share last."""
        return self.features + (() if self.requests is None else self.requests.shared.features)

    @property
    def num_ids(self) -> int:
        """The number of ids of all samples, those that a request shares counted in each of them."""
        if self.requests is None:
            return len(self.ids)
        shared, num_samples = self.requests.shared, self.requests.starts.diff()
        if shared.offsets is None:
            return len(self.ids) + len(shared.features) * self.size
        of_requests = shared.offsets.diff().reshape(len(shared.features), shared.size).sum(0)
        return len(self.ids) + int((of_requests * num_samples).sum())

    def expanded(self, features: Sequence[str] | None = None) -> Batch:
        """The batch with all its features in every sample, whatever a request shares.

        features: their order; None: that of `all_features`.
        """
        if self.requests is None:
            return self
        repeated = {
            **vars(self.requests.shared),
            **_ids_of(self.requests.shared, self.requests.of_samples),
        }
        pieces = {**by_feature(vars(self)), **by_feature(repeated)}
        ordered = {name: pieces[name] for name in features or self.all_features}
        has_lists = self.offsets is not None or self.requests.shared.offsets is not None
        has_weights = self.weights is not None or self.requests.shared.weights is not None
        return replace(self, requests=None, **of_features(ordered, has_lists, has_weights))

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
    if batch.requests is not None:
        changes["requests"] = batch.requests.among(first, end)
    number = batch.first_sample + first
    return replace(batch, first_sample=number, **_chosen(batch, slice(first, end)), **changes)


def taken(batch: Batch, order: Tensor) -> Batch:
    """The samples of these numbers [n], in this order, of a batch whose requests share nothing."""
    return replace(batch, **_chosen(batch, order))


def _chosen(batch: Batch, chosen: slice | Tensor) -> dict[str, Any]:
    """The fields of chosen samples."""
    values = {name: getattr(batch, name) for name in OF_SAMPLES}
    of_samples = {name: value[chosen] for name, value in values.items() if value is not None}
    return {**_ids_of(batch, chosen), **of_samples}


def _ids_of(batch: Batch, chosen: slice | Tensor) -> dict[str, Any]:
    """The ids, offsets and weights of chosen samples."""

    def of_bags(values: Tensor) -> Tensor:  # [F * B] -> [F * chosen]
        return values.view(len(batch.features), batch.size)[:, chosen].reshape(-1)

    if batch.offsets is None:
        weights = None if batch.weights is None else of_bags(batch.weights)
        return {"ids": of_bags(batch.ids), "offsets": None, "weights": weights}
    lengths, starts = of_bags(batch.offsets.diff()), of_bags(batch.offsets[:-1])
    offsets = functional.pad(lengths.cumsum(0), (1, 0))
    places = torch.arange(int(offsets[-1])) + (starts - offsets[:-1]).repeat_interleave(lengths)
    weights = None if batch.weights is None else batch.weights[places]
    return {"ids": batch.ids[places], "offsets": offsets, "weights": weights}


def by_feature(fields: Mapping[str, Any]) -> dict[str, tuple[Tensor, Tensor, Tensor]]:
    """By feature, the ids of all samples, how many each has, and their weights."""
    features, ids, offsets, weights = (fields[name] for name in ("features", "ids", "offsets", "weights"))
    if not features:
        return {}
    if offsets is None:
        offsets = torch.arange(len(ids) + 1)
    weights = torch.ones(len(ids)) if weights is None else weights
    lengths = offsets.diff().view(len(features), -1)  # [F, B]
    sizes = lengths.sum(1).tolist()
    pieces = zip(ids.split(sizes), lengths, weights.split(sizes), strict=True)
    return dict(zip(features, pieces, strict=True))


def of_features(
    pieces: Mapping[str, tuple[Tensor, ...]], has_lists: bool, has_weights: bool
) -> dict[str, Any]:
    """The fields of a batch with these features. pieces: see `by_feature`; has_lists, has_weights:
    whether it has offsets, and weights."""
    ids, lengths, weights = (torch.cat(values) for values in zip(*pieces.values(), strict=True))
    fields = {"features": tuple(pieces), "ids": ids, "weights": weights if has_weights else None}
    return {**fields, "offsets": functional.pad(lengths.cumsum(0), (1, 0)) if has_lists else None}
