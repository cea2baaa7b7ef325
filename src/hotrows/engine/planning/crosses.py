"""Crossed features: an id in place of a combination of ids, so that it has a row of its own.

The bucket of a cross is a function of the ids, their order and the number of rows, for good: rows of
a checkpoint are identified by it. Ids go through `random_bits` one after the other, each with the bits
of the one before as its key, and the last bits are taken modulo the rows.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor

from hotrows.batch import Batch
from hotrows.ops.rows.reference_random import random_bits
from hotrows.runtime.shapes import Int64
from hotrows.table import Cross


def append_crosses(batch: Batch, crosses: Sequence[Cross]) -> Batch:
    """Appends those crosses to the features of a batch that it lacks: one id in each sample.

    Where ids have weights, the weight of a crossed id is the product of theirs.
    """
    crosses = [cross for cross in crosses if cross.name not in batch.features]
    if not crosses:
        return batch
    places = [_places(batch, cross) for cross in crosses]  # per cross, [K, B]
    ids = [bucket_of(batch.ids[p], cross.rows) for p, cross in zip(places, crosses, strict=True)]
    offsets, weights = batch.offsets, batch.weights
    if offsets is not None:
        more = torch.arange(1, len(crosses) * batch.size + 1)
        offsets = torch.cat([offsets, offsets[-1] + more])
    if weights is not None:
        weights = torch.cat([weights, *(weights[p].prod(0) for p in places)])
    return dataclasses.replace(
        batch,
        features=batch.features + tuple(cross.name for cross in crosses),
        ids=torch.cat([batch.ids, *ids]),
        offsets=offsets,
        weights=weights,
    )


def bucket_of(ids: Int64[Tensor, "K B"], rows: int) -> Int64[Tensor, "B"]:
    """The buckets below `rows`: each of B samples crosses K ids.

    >>> bucket_of(torch.tensor([[3, 4], [4, 3]]), rows=1000)
    tensor([133, 418])
    """
    bits = torch.zeros((), dtype=torch.int64)
    for feature_ids in ids:
        bits = random_bits(bits, feature_ids)
    return bits % rows  # in PyTorch the remainder has the sign of the divisor


def _places(batch: Batch, cross: Cross) -> Int64[Tensor, "{len(cross.features)} {batch.size}"]:
    """The places in `batch.ids` of the ids that a cross is made of."""
    absent = [name for name in cross.features if name not in batch.features]
    if absent:
        raise ValueError(
            f"cross {cross.name!r} is made of feature {absent[0]!r}, but the batch has only "
            f"{list(batch.features)}"
        )
    samples = torch.arange(batch.size)
    firsts = [batch.features.index(name) * batch.size for name in cross.features]
    bags = torch.tensor(firsts)[:, None] + samples  # [K, B]
    if batch.offsets is None:
        return bags
    lengths = batch.offsets[bags + 1] - batch.offsets[bags]
    if (lengths != 1).any():
        raise _not_one(batch, cross, lengths)
    return batch.offsets[bags]


def _not_one(batch: Batch, cross: Cross, lengths: Int64[Tensor, "K B"]) -> ValueError:
    k, sample = (lengths != 1).nonzero()[0].tolist()
    return ValueError(
        f"cross {cross.name!r} needs one id of feature {cross.features[k]!r} in each sample, but sample "
        f"{batch.first_sample + sample:,} has {int(lengths[k, sample])}: cross features that are no "
        f"lists"
    )
