"""Pooling where the rows are: owners send one sum per sample of a list feature, in place of its rows.

A list of many ids per sample may have more distinct rows in a batch than there are samples. Then
each owner adds up the rows that it holds of a sample's list, and sends the sum: fewer, and the ids
themselves are exchanged in the planning stage. A vector is the sum of what its owners send.

    a sample's list         rows 3 | 9 4 | 8       rank 0 holds 0 .. 4, rank 1 the rows from 5 on
    requested of rank 0     the sum of 3 and 4     of rank 1   the sum of 9 and 8
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from hotrows import ops
from hotrows.engine.planning.packing import Pack
from hotrows.engine.planning.sharding import Sharding
from hotrows.ops.plan import PackPlan
from hotrows.runtime.shapes import Float32, Int64


@dataclass(frozen=True)
class Sums:
    """Sums that a micro-batch requests, by owner.

    owners: the rank of each sum, ascending; lengths: its number of rows;
    rows: of the pack, sum after sum; weights: the factor of each row.
    """

    owners: Int64[Tensor, "Q"]
    lengths: Int64[Tensor, "Q"]
    rows: Int64[Tensor, "E"]
    weights: Float32[Tensor, "E"]


RowsAndSums = tuple[PackPlan, Sums | None]  # what a micro-batch reads of a pack


def summed_columns(pack: Pack, features: Collection[str]) -> list[int]:
    """The columns of a pack (vectors of a sample) that come from these features."""
    return [k for k, (feature, _) in enumerate(pack.columns) if feature in features]


def with_sums(
    plan: PackPlan, sharding: Sharding, columns: Sequence[int], num_columns: int, batch_size: int
) -> RowsAndSums:
    """The plan of a micro-batch whose `columns` request sums: its places are then, owner by owner,
    distinct rows of the other columns, and behind them sums.

    Rows that every rank holds are read on this rank, whatever the column.
    """
    if plan.bags is None or not columns or sharding.columns:
        return plan, None
    rows, bags = plan.rows[plan.inverse.long()], plan.bags.long()  # [N]
    of_columns = torch.zeros(num_columns, dtype=torch.bool)
    of_columns[list(columns)] = True
    pooled = bags < num_columns * batch_size
    summed = pooled & of_columns[bags % num_columns] & (rows >= sharding.num_shared)  # [N]
    if not summed.any():
        return plan, None
    weights = torch.ones(len(rows)) if plan.weights is None else plan.weights  # [N]
    starts = torch.tensor(sharding.owner_starts)  # [P + 1]

    owners = torch.searchsorted(starts, rows[summed], right=True) - 1  # [E]
    keys, order = (owners * plan.num_bags + bags[summed]).sort(stable=True)
    keys, lengths = keys.unique_consecutive(return_counts=True)  # [Q]: one per owner and bag
    sums = Sums(
        owners=keys // plan.num_bags,
        lengths=lengths,
        rows=rows[summed][order],  # [E]
        weights=weights[summed][order],
    )
    # Rows of all other ids are requested as before.
    distinct, inverse, _, _ = ops.unique(rows[~summed])  # [A], [N - E]
    # Owner by owner, places of rows come first, then those of sums.
    row_owners = torch.searchsorted(starts, distinct, right=True) - 1  # [A]
    row_places, sum_places = _places(row_owners, sums.owners)  # [A], [Q]
    return _with_bags(
        plan,
        rows=distinct,
        bags=torch.cat([bags[~summed], keys % plan.num_bags]),  # [N - E + Q]
        places=torch.cat([row_places[inverse.long()], sum_places]),
        weights=torch.cat([weights[~summed], torch.ones(len(keys))]),
    ), sums


def _places(
    row_owners: Int64[Tensor, "A"], sum_owners: Int64[Tensor, "Q"]
) -> tuple[Int64[Tensor, "A"], Int64[Tensor, "Q"]]:
    """The places of rows and of sums, rank by rank, where a rank's sums follow its rows.

    row_owners = [0, 0, 1], sum_owners = [0, 1]  ->  [0, 1, 3], [2, 4]
    """
    sums_before = torch.searchsorted(sum_owners, row_owners)
    rows_before = torch.searchsorted(row_owners, sum_owners, right=True)
    row_places = torch.arange(len(row_owners)) + sums_before
    sum_places = torch.arange(len(sum_owners)) + rows_before
    return row_places, sum_places


def _with_bags(
    plan: PackPlan,
    rows: Int64[Tensor, "A"],
    bags: Int64[Tensor, "N"],
    places: Int64[Tensor, "N"],
    weights: Float32[Tensor, "N"],
) -> PackPlan:
    """The plan of distinct rows, with entries in the order of their bags: the bag, place and weight of
    each."""
    bags, order = bags.sort(stable=True)
    _, inverse, by_place, starts = ops.unique(places[order])
    bag_starts = torch.searchsorted(bags, torch.arange(plan.num_bags + 1))  # [M + 1]
    return replace(
        plan,
        rows=rows,
        slots=rows,
        inverse=inverse,
        order=by_place,
        starts=starts,
        bag_starts=bag_starts.int(),
        bags=bags.int(),
        weights=weights[order],
    )
