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
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional

from hotrows import ops
from hotrows.plan import Answers, PackPlan
from hotrows.planning.sharding import Sharding
from hotrows.planning.summing import Sums
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
    asked: Sequence[Sequence[tuple[PackPlan, Sums | None]]],
    shardings: Sequence[Sharding],
    ranks: Ranks,
    size: int,
    step: int = 0,
    wishes: int = 0,
) -> Routed:
    """Collective. asked: what this rank's samples read, by slice and group; size: how many they are."""
    shares = [
        [
            _shares(part.rows, sums, sharding, ranks)
            for (part, sums), sharding in zip(of, shardings, strict=True)
        ]
        for of in asked
    ]
    told = _tell(shares, ranks, (size, step, wishes))
    groups = range(len(shardings))
    found = [_serve([of[g] for of in told.asks], ranks.rank) for g in groups]
    answers = tuple(
        Answers(
            num_shared=num_shared,
            shared=tuple(places),
            asked=tuple(tuple(ask.num_answers for ask in of[g]) for of in shares),
            given=tuple(tuple(ask.num_answers for ask in of[g]) for of in told.asks),
            travels=tuple(of[g] for of in told.travels),
            by_columns=shardings[g].columns,
        )
        for g, (_, num_shared, places) in zip(groups, found, strict=True)
    )
    return Routed(tuple(part for part, _, _ in found), answers, told.size, told.step, told.wishes)


@dataclass(frozen=True)
class _Ask:
    """What one rank asks of another, of a group and for a slice; int32, rows of the other's store.

    shared: rows that every rank holds; rows: one answer each; lengths, terms, weights: sums, each an
    answer, with the bits of its float32 weights.
    """

    shared: Tensor
    rows: Tensor
    lengths: Tensor
    terms: Tensor
    weights: Tensor

    @property
    def num_answers(self) -> int:
        return len(self.rows) + len(self.lengths)

    @property
    def parts(self) -> tuple[Tensor, ...]:
        return self.shared, self.rows, self.lengths, self.terms, self.weights


@dataclass(frozen=True)
class _Told:
    """What all ranks have told this one.

    asks: by slice and group, what each rank asks; travels: by slice and group.
    """

    asks: list[list[list[_Ask]]]
    travels: list[list[bool]]
    size: int
    step: int
    wishes: int


_NUM_PARTS = 5  # of an ask


def _shares(rows: Tensor, sums: Sums | None, sharding: Sharding, ranks: Ranks) -> tuple[_Ask, ...]:
    """What a slice asks of every rank; rows: [A] int64, ascending."""
    rows32 = rows.int()
    none = rows32[:0]
    if sharding.columns:
        return (_Ask(none, rows32, none, none, none),) * ranks.num_ranks
    starts = torch.tensor(sharding.owner_starts)
    bounds = torch.searchsorted(rows, starts).tolist()
    shared, asks = rows32[: bounds[0]], []
    for p, (first, end) in enumerate(itertools.pairwise(bounds)):
        shift = sharding.num_shared - sharding.owner_starts[p]
        terms = (none, none, none) if sums is None else _terms(sums, p, shift)
        asks.append(_Ask(shared, rows32[first:end] + shift, *terms))
    return tuple(asks)


def _terms(sums: Sums, owner: int, shift: int) -> tuple[Tensor, Tensor, Tensor]:
    """The sums asked of one rank: lengths, rows of its store, weights."""
    first, end = torch.searchsorted(sums.owners, torch.tensor([owner, owner + 1])).tolist()
    lengths = sums.lengths[first:end]
    begin = int(sums.lengths[:first].sum())
    span = slice(begin, begin + int(lengths.sum()))
    return lengths.int(), sums.rows[span].int() + shift, sums.weights[span].view(torch.int32)


def _tell(
    shares: Sequence[Sequence[tuple[_Ask, ...]]], ranks: Ranks, standing: tuple[int, int, int]
) -> _Told:
    """Sends every rank what it has to know; what each has sent here comes back.

    standing: of this rank: samples, step, wishes.
    """
    flat = [share for of in shares for share in of]
    # To each rank: what concerns all; then of each slice and group how long the parts of the ask are,
    # and how many answers this rank asks of any other.
    header, width = len(standing), _NUM_PARTS + 1
    counts = torch.empty(ranks.num_ranks, header + width * len(flat), dtype=torch.int64)
    of_others = [
        sum(ask.num_answers for p, ask in enumerate(share) if p != ranks.rank) for share in flat
    ]
    for p in range(ranks.num_ranks):
        numbers = [
            number
            for share, others in zip(flat, of_others, strict=True)
            for number in (*map(len, share[p].parts), others)
        ]
        counts[p] = torch.tensor([*standing, *numbers])
    ones = [1] * ranks.num_ranks
    told = ranks.all_to_all(counts, ones, ones).wait()
    parts = [part for p in range(ranks.num_ranks) for share in flat for part in share[p].parts]
    sent = [sum(map(len, itertools.chain(*(s[p].parts for s in flat)))) for p in range(len(ones))]
    each = told[:, header:].view(ranks.num_ranks, len(flat), width)
    sizes = each[:, :, :_NUM_PARTS]
    arrived = ranks.all_to_all(torch.cat(parts), sent, sizes.sum((1, 2)).tolist()).wait()
    pieces = iter(arrived.split(sizes.reshape(-1).tolist()))
    by_rank = [
        [_Ask(*itertools.islice(pieces, _NUM_PARTS)) for _ in flat] for _ in range(ranks.num_ranks)
    ]
    travels = (each[:, :, _NUM_PARTS].sum(0) > 0).tolist()
    num_groups = len(shares[0])
    places = [range(s * num_groups, (s + 1) * num_groups) for s in range(len(shares))]
    return _Told(
        asks=[[[of[k] for of in by_rank] for k in of_slice] for of_slice in places],
        travels=[[travels[k] for k in of_slice] for of_slice in places],
        size=int(told[:, 0].sum()),
        step=int(told[:, 1].max()),
        wishes=_agreed(told[:, 2].tolist()),
    )


def _agreed(wishes: Sequence[int]) -> int:
    """Any rank's wish is a wish of all; there is no more once all ranks say so."""
    found, ended = 0, NO_MORE
    for of in wishes:
        found |= of & ~NO_MORE
        ended &= of
    return found | ended


def _serve(asks: Sequence[Sequence[_Ask]], rank: int) -> tuple[PackPlan, int, list[Tensor]]:
    """The plan for the rows of this rank's store that are read anywhere, how many of them are shared,
    and per slice the places of the shared ones that its own samples read.

    asks: by slice, of each rank.
    """
    flat = [ask for of in asks for ask in of]
    shared, inverse, _, _ = ops.unique(torch.cat([ask.shared for ask in flat]).long())
    places = inverse.split([len(ask.shared) for ask in flat])
    mine = [places[s * len(of) + rank].long() for s, of in enumerate(asks)]
    entries = torch.cat([shared, *(torch.cat([ask.rows, ask.terms]).long() for ask in flat)])
    distinct, inverse, order, starts = ops.unique(entries)
    num_answers = len(shared) + sum(ask.num_answers for ask in flat)
    part = PackPlan(
        rows=distinct, slots=distinct, inverse=inverse, order=order, starts=starts,
        num_bags=num_answers,
    )  # fmt: skip
    if any(len(ask.lengths) for ask in flat):
        part = _with_bags(part, len(shared), flat)
    return part, len(shared), mine


def _with_bags(part: PackPlan, num_shared: int, asks: Sequence[_Ask]) -> PackPlan:
    """The plan where some places hold sums and the others a row each."""
    lengths, weights = [torch.ones(num_shared, dtype=torch.int32)], [torch.ones(num_shared)]
    for ask in asks:
        lengths += [torch.ones_like(ask.rows), ask.lengths]
        weights += [torch.ones(len(ask.rows)), ask.weights.view(torch.float32)]
    bag_starts = functional.pad(torch.cat(lengths).cumsum(0), (1, 0)).int()
    bags = ops.reference.bags_of(bag_starts).int()
    return replace(part, bag_starts=bag_starts, bags=bags, weights=torch.cat(weights))
