"""Plans of batches whose samples share features with the others of their request.

Of a pack, some columns are of samples and some of requests. Both are resolved as batches of their own,
and planned as one, so that a row that both read is looked up and updated once:

    bags of a pack     those of B samples, as in any plan | those of R requests, in the same order
    rows, order, ..    of all ids together
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from hotrows import ops
from hotrows.batch import Batch
from hotrows.ops.plan import PackPlan, Plan, RequestPlan
from hotrows.runtime.shapes import Float, Int32, Int64


@dataclass(frozen=True)
class Bags:
    """The ids that a pack reads, bag by bag. rows: of each id; see `PackPlan` for the other fields."""

    rows: Int64[Tensor, "N"]
    num_bags: int
    bag_starts: Int32[Tensor, "{num_bags}+1"] | None = None
    bags: Int32[Tensor, "N"] | None = None
    weights: Float[Tensor, "N"] | None = None
    sequence_starts: dict[str, Int64[Tensor, "_"]] | None = None


@dataclass(frozen=True)
class Half:
    """The features of samples, or of requests, as a batch.

    others: the features of the other half; starts: of requests, the first sample of each, [R + 1].
    """

    batch: Batch
    others: tuple[str, ...] = ()
    starts: Int64[Tensor, "_"] | None = None


def halves(batch: Batch) -> tuple[Half, ...]:
    """The features of samples, and where these share some those of requests."""
    if batch.requests is None:
        return (Half(batch),)
    samples, shared = replace(batch, requests=None), batch.requests.shared
    return Half(samples, shared.features), Half(shared, samples.features, batch.requests.starts)


def plan_of(bags: Sequence[Bags]) -> PackPlan:
    """The plan of a pack that reads these bags, those of samples and perhaps those of requests."""
    joined = bags[0] if len(bags) == 1 else _joined(*bags)
    distinct, inverse, order, starts = ops.unique(joined.rows)  # [U], [N], [N], [U + 1]
    return PackPlan(
        rows=distinct,
        slots=distinct,  # every row is resident: its slot is its row
        inverse=inverse,
        order=order,
        starts=starts,
        num_bags=joined.num_bags,
        bag_starts=joined.bag_starts,
        bags=joined.bags,
        weights=joined.weights,
        sequence_starts=joined.sequence_starts,
    )


def with_requests(plan: Plan, batch: Batch, bags: Sequence[Sequence[Bags]]) -> Plan:
    """The plan of a batch, which says what bags are of requests. bags: of each pack, as planned."""
    if batch.requests is None:
        return plan

    def of_half(half: int, size: int) -> Plan:
        pairs = zip(plan.packs, bags, strict=True)
        return Plan(tuple(_restricted(pack, mine[half]) for pack, mine in pairs), plan.step, size)

    starts, shared = batch.requests.starts, batch.requests.shared
    of_requests = RequestPlan(shared.features, starts, of_half(0, batch.size), of_half(1, shared.size))
    return replace(plan, requests=of_requests)


def _restricted(pack: PackPlan, mine: Bags) -> PackPlan:
    return replace(pack, num_bags=mine.num_bags, bag_starts=None, sequence_starts=mine.sequence_starts)


def _joined(samples: Bags, shared: Bags) -> Bags:
    """The bags of samples, followed by those of requests."""
    both = samples, shared
    rows, num_bags = torch.cat([half.rows for half in both]), samples.num_bags + shared.num_bags
    weights = None
    if any(half.weights is not None for half in both):
        ones = [torch.ones(len(half.rows)) for half in both]
        weights = torch.cat(
            [one if h.weights is None else h.weights for h, one in zip(both, ones, strict=True)]
        )
    if all(half.bag_starts is None for half in both):
        return Bags(rows, num_bags, weights=weights)
    starts, bags = [_bag_starts(half) for half in both], [_bags(half) for half in both]
    return Bags(
        rows,
        num_bags,
        bag_starts=torch.cat([starts[0], starts[1][1:] + starts[0][-1]]),
        bags=torch.cat([bags[0], bags[1] + samples.num_bags]),
        weights=weights,
    )


def _bag_starts(half: Bags) -> Int32[Tensor, "{half.num_bags}+1"]:
    if half.bag_starts is not None:
        return half.bag_starts
    return torch.arange(half.num_bags + 1, dtype=torch.int32)


def _bags(half: Bags) -> Int32[Tensor, "N"]:
    return torch.arange(half.num_bags, dtype=torch.int32) if half.bags is None else half.bags
