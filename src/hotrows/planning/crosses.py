"""Crossed features: an id in place of a combination of ids, so that it has a row of its own.

The bucket of a cross is a function of the ids, their order and the number of rows, for good: rows of
a checkpoint are found again by it. Ids follow one another through `random_bits`, a stream of random
numbers each, and the last one is taken modulo the rows.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor

from hotrows.batch import Batch
from hotrows.ops.reference_random import random_bits
from hotrows.schema import Cross


def append_crosses(batch: Batch, crosses: Sequence[Cross]) -> Batch:
    """The batch with the crosses as features behind its own: one id in each sample.

    Where ids have weights, that of a crossed id is the product of theirs.
    """
    if not crosses:
        return batch
    places = [_places(batch, cross) for cross in crosses]  # of each [K, B]
    ids = [bucket_of(batch.ids[at], of.rows) for at, of in zip(places, crosses, strict=True)]
    offsets, weights = batch.offsets, batch.weights
    if offsets is not None:
        more = torch.arange(1, len(crosses) * batch.size + 1)
        offsets = torch.cat([offsets, offsets[-1] + more])
    if weights is not None:
        weights = torch.cat([weights, *(weights[at].prod(0) for at in places)])
    return dataclasses.replace(
        batch,
        features=batch.features + tuple(cross.name for cross in crosses),
        ids=torch.cat([batch.ids, *ids]),
        offsets=offsets,
        weights=weights,
    )


def bucket_of(ids: Tensor, rows: int) -> Tensor:
    """[K, B] int64, the ids that each of B samples crosses, to a bucket of `rows`: [B].

    ids = [[3, 4], [4, 3]], rows = 1000  ->  [133, 418]
    """
    mixed = torch.zeros((), dtype=torch.int64)
    for of_one in ids:
        mixed = random_bits(mixed, of_one)
    return mixed % rows  # in PyTorch the remainder has the sign of the divisor


def _places(batch: Batch, cross: Cross) -> Tensor:
    """[K, B]: where in `batch.ids` the ids are that a cross is made of."""
    absent = [name for name in cross.of if name not in batch.features]
    if absent:
        raise ValueError(
            f"cross {cross.name!r} is made of feature {absent[0]!r}, but the batch has only "
            f"{list(batch.features)}"
        )
    samples = torch.arange(batch.size)
    firsts = [batch.features.index(name) * batch.size for name in cross.of]
    bags = torch.tensor(firsts)[:, None] + samples
    if batch.offsets is None:
        return bags
    lengths = batch.offsets[bags + 1] - batch.offsets[bags]
    if (lengths != 1).any():
        raise _not_one(batch, cross, lengths)
    return batch.offsets[bags]


def _not_one(batch: Batch, cross: Cross, lengths: Tensor) -> ValueError:
    k, sample = (lengths != 1).nonzero()[0].tolist()
    return ValueError(
        f"cross {cross.name!r} needs one id of feature {cross.of[k]!r} in each sample, but sample "
        f"{batch.first_sample + sample:,} has {int(lengths[k, sample])}: cross features that are no "
        f"lists"
    )
