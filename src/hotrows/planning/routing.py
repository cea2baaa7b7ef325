"""Routing: who asks whom for which rows; row numbers travel here, ahead of the rows themselves.

Every rank sorts what its samples read by owner, and tells each owner; an owner then knows the rows
of its store that are read anywhere, and what to answer to whom. Two messages to each rank per batch,
for all packs and slices together: how many, and which.

    rank 0 reads   rows 1 1 3 | 7 8          rank 0 is asked  1 3 by itself, 1 2 by rank 1
    rank 1 reads   rows 1 2 | 8 9 9          and looks up     1 2 3, once

Rows that every rank holds are told to all, so that all update the same ones.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hotrows import ops
from hotrows.plan import Answers, PackPlan
from hotrows.planning.sharding import Sharding
from hotrows.ranks import Ranks

# Wishes: what a rank may ask of all when a batch is planned; all learn of it with that batch.
STOP, CHECKPOINT, NO_MORE = 1, 2, 4


@dataclass(frozen=True)
class Routed:
    """What ranks have agreed on for a batch.

    served: a plan per group of packs for the rows of this rank's store; answers: how they travel.
    size: samples on all ranks; step: the batch's number, by the ranks that have one.
    wishes: of any rank; NO_MORE: of all.
    """

    served: tuple[PackPlan, ...]
    answers: tuple[Answers, ...]
    size: int
    step: int
    wishes: int


def route(
    asked: Sequence[Sequence[PackPlan]],
    shardings: Sequence[Sharding],
    ranks: Ranks,
    size: int,
    step: int = 0,
    wishes: int = 0,
) -> Routed:
    """Collective. asked: what this rank's samples read, by slice and group; size: how many they are."""
    shares = [
        [_shares(part.rows, sharding, ranks) for part, sharding in zip(of, shardings, strict=True)]
        for of in asked
    ]
    told = _tell(shares, ranks, (size, step, wishes))
    groups = range(len(shardings))
    found = [
        _serve([of[g] for of in shares], [of[g] for of in told.lists], shardings[g], ranks.rank)
        for g in groups
    ]
    answers = tuple(
        Answers(
            num_shared=num_shared,
            shared=tuple(places),
            asked=tuple(tuple(map(len, of[g].owned)) for of in shares),
            given=tuple(tuple(map(len, owned)) for _, owned in (of[g] for of in told.lists)),
            travels=tuple(told.travels[s][g] for s in range(len(asked))),
            by_columns=shardings[g].columns,
        )
        for g, (_, num_shared, places) in zip(groups, found, strict=True)
    )
    return Routed(tuple(part for part, _, _ in found), answers, told.size, told.step, told.wishes)


@dataclass(frozen=True)
class _Shares:
    """What a slice reads of a group: shared rows, and for each rank the rows of its store."""

    shared: Tensor
    owned: tuple[Tensor, ...]


@dataclass(frozen=True)
class _Told:
    """What all ranks have told this one: by slice and group the shared rows of each rank, and the
    rows that it asks for."""

    lists: list[list[tuple[list[Tensor], list[Tensor]]]]
    travels: list[list[bool]]
    size: int
    step: int
    wishes: int


def _shares(rows: Tensor, sharding: Sharding, ranks: Ranks) -> _Shares:
    """rows: [A] int64, ascending."""
    rows32 = rows.int()
    if sharding.columns:
        return _Shares(rows32[:0], (rows32,) * ranks.num_ranks)
    starts = torch.tensor(sharding.owner_starts)
    bounds = torch.searchsorted(rows, starts).tolist()
    shifts = [sharding.num_shared - start for start in sharding.owner_starts]
    spans = zip(itertools.pairwise(bounds), shifts, strict=False)
    owned = tuple(rows32[first:end] + shift for (first, end), shift in spans)
    return _Shares(rows32[: bounds[0]], owned)


def _tell(
    shares: Sequence[Sequence[_Shares]], ranks: Ranks, standing: tuple[int, int, int]
) -> _Told:
    """Sends every rank what it has to know; what each has sent here comes back.

    standing: of this rank: samples, step, wishes.
    """
    flat = [share for of in shares for share in of]
    # To each rank: what concerns all, then of each slice and group the shared rows, those of its own
    # that are asked of it, and those that are asked of anyone else.
    header = len(standing)
    counts = torch.empty(ranks.num_ranks, header + 3 * len(flat), dtype=torch.int64)
    for p in range(ranks.num_ranks):
        of_others = [sum(map(len, share.owned)) - len(share.owned[ranks.rank]) for share in flat]
        each = [(len(s.shared), len(s.owned[p]), n) for s, n in zip(flat, of_others, strict=True)]
        counts[p] = torch.tensor([*standing, *(number for three in each for number in three)])
    ones = [1] * ranks.num_ranks
    told = ranks.all_to_all(counts, ones, ones).wait()
    parts = [part for p in range(ranks.num_ranks) for s in flat for part in (s.shared, s.owned[p])]
    sent = [sum(len(s.shared) + len(s.owned[p]) for s in flat) for p in range(ranks.num_ranks)]
    per_part = told[:, header:].view(ranks.num_ranks, len(flat), 3)
    received = per_part[:, :, :2].sum((1, 2)).tolist()
    rows = ranks.all_to_all(torch.cat(parts), sent, received).wait()
    pieces = iter(rows.split(per_part[:, :, :2].reshape(-1).tolist()))
    by_rank = [[(next(pieces), next(pieces)) for _ in flat] for _ in range(ranks.num_ranks)]
    travels = (per_part[:, :, 2].sum(0) > 0).tolist()
    num_groups = len(shares[0])
    at = [range(s * num_groups, (s + 1) * num_groups) for s in range(len(shares))]
    lists = [
        [([of[k][0] for of in by_rank], [of[k][1] for of in by_rank]) for k in of_slice]
        for of_slice in at
    ]
    size, steps, wishes = int(told[:, 0].sum()), told[:, 1], told[:, 2].tolist()
    return _Told(
        lists, [[travels[k] for k in of] for of in at], size, int(steps.max()), _agreed(wishes)
    )


def _agreed(wishes: Sequence[int]) -> int:
    """Any rank's wish is a wish of all; there is no more once all ranks say so."""
    found, ended = 0, NO_MORE
    for of in wishes:
        found |= of & ~NO_MORE
        ended &= of
    return found | ended


def _serve(
    mine: Sequence[_Shares],
    told: Sequence[tuple[list[Tensor], list[Tensor]]],
    sharding: Sharding,
    rank: int,
) -> tuple[PackPlan, int, list[Tensor]]:
    """The plan for the rows of this rank's store that are read anywhere, how many of them are shared,
    and per slice the places of the shared ones that its own samples read."""
    shared, inverse, _, _ = ops.unique(torch.cat([of for lists, _ in told for of in lists]).long())
    sizes = [len(of) for lists, _ in told for of in lists]
    num_ranks = len(told[0][0])
    places = [inverse.split(sizes)[s * num_ranks + rank].long() for s in range(len(mine))]
    rows = torch.cat([shared, *(of.long() for _, lists in told for of in lists)])
    distinct, inverse, order, starts = ops.unique(rows)
    part = PackPlan(
        rows=distinct, slots=distinct, inverse=inverse, order=order, starts=starts,
        num_bags=len(rows),
    )  # fmt: skip
    return part, len(shared), places
