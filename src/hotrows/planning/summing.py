"""Sums where the rows are: what a list feature asks for is one vector per sample and owner, not rows.

A list of many ids per sample may have more distinct rows in a batch than there are samples. Then
each owner adds up the rows that it holds of a sample's list, and sends the sum: fewer, and the ids
themselves travel in the planning stage. A vector is the sum of what its owners send.

    a sample's list   rows 3 | 9 4 | 8       rank 0 holds 0 .. 4, rank 1 the others
    asked of rank 0   the sum of 3 and 4     of rank 1   the sum of 9 and 8
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from hotrows import ops
from hotrows.plan import PackPlan
from hotrows.planning.packing import Pack
from hotrows.planning.sharding import Sharding


@dataclass(frozen=True)
class Sums:
    """Sums that a slice asks for, by owner.

    owners: [Q] the rank of each, ascending; lengths: [Q] how many rows it has; rows: [E] of the pack,
    weights: [E] float32, what each is multiplied with.
    """

    owners: Tensor
    lengths: Tensor
    rows: Tensor
    weights: Tensor


def summed_columns(pack: Pack, features: Collection[str]) -> list[int]:
    """Which of a sample's vectors come from these features."""
    return [k for k, (feature, _) in enumerate(pack.columns) if feature in features]


def with_sums(
    part: PackPlan, sharding: Sharding, columns: Sequence[int], num_columns: int, batch_size: int
) -> tuple[PackPlan, Sums | None]:
    """The plan of a slice whose `columns` ask for sums: in its places stand, owner by owner, distinct
    rows of the other columns, then sums.

    Rows that every rank holds are read here, whatever the column.
    """
    if part.bags is None or not columns or sharding.columns:
        return part, None
    assert part.bag_starts is not None
    rows, bags = part.rows[part.inverse.long()], part.bags.long()
    summed = torch.zeros(num_columns, dtype=torch.bool)
    summed[list(columns)] = True
    pooled = bags < num_columns * batch_size
    apart = pooled & summed[bags % num_columns] & (rows >= sharding.num_shared)
    if not apart.any():
        return part, None
    starts = torch.tensor(sharding.owner_starts)
    ones = torch.ones(len(rows)) if part.weights is None else part.weights

    owners = torch.searchsorted(starts, rows[apart], right=True) - 1
    keys = owners * part.num_bags + bags[apart]
    keys, order = keys.sort(stable=True)
    found, lengths = keys.unique_consecutive(return_counts=True)
    sums = Sums(
        owners=found // part.num_bags, lengths=lengths, rows=rows[apart][order],
        weights=ones[apart][order],
    )  # fmt: skip

    distinct, inverse, _, _ = ops.unique(rows[~apart])
    # The place of each answer among all of its owner: sums stand behind rows.
    row_owners = torch.searchsorted(starts, distinct, right=True) - 1
    num_before = torch.searchsorted(sums.owners, row_owners)
    row_places = torch.arange(len(distinct)) + num_before
    num_before = torch.searchsorted(row_owners, sums.owners, right=True)
    sum_places = torch.arange(len(found)) + num_before

    entry_bags = torch.cat([bags[~apart], found % part.num_bags])
    entries = torch.cat([row_places[inverse.long()], sum_places])
    weights = torch.cat([ones[~apart], torch.ones(len(found))])
    entry_bags, order = entry_bags.sort(stable=True)
    entries, weights = entries[order], weights[order]
    _, places, order, starts = ops.unique(entries)
    every = torch.arange(part.num_bags + 1)
    return (
        replace(
            part,
            rows=distinct, slots=distinct, inverse=places, order=order, starts=starts,
            bag_starts=torch.searchsorted(entry_bags, every).int(), bags=entry_bags.int(),
            weights=weights,
        ),
        sums,
    )  # fmt: skip
