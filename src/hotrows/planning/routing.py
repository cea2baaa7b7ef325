"""Routing: which rank requests which rows of which; row numbers are exchanged ahead of the rows.

Every rank sorts what its samples read by owner, and sends each owner the row numbers; an owner then
knows the rows of its store that are read anywhere, and which to send to which rank. Two messages to
each rank per batch, for all packs and micro-batches together: how many numbers, and the numbers.

    rank 0 reads   rows 1 1 3 | 7 8      requested of rank 0   1 3 by itself, 1 2 by rank 1
    rank 1 reads   rows 1 2 | 8 9 9      looked up there       1 2 3, once

Rows that every rank holds are sent to all ranks, so that all update equal ones.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntFlag

import torch
from torch import Tensor
from torch.nn import functional

from hotrows import ops
from hotrows.distributed.comm import Ranks
from hotrows.plan import PackPlan, Plan, RowExchangePlan
from hotrows.planning.remote_pooling import RowsAndSums, Sums
from hotrows.planning.sharding import Sharding
from hotrows.shapes import Int32, Int64


class RankSignals(IntFlag):
    """Requests of a rank to all ranks, sent when a batch is planned; every plan has those of all.

    STOP: stop training before this batch, to go on later; FINISH: end it before this batch; CHECKPOINT:
    write a checkpoint; NO_MORE: this rank has no more batches, which holds once all ranks signal it.
    """

    STOP = 1
    CHECKPOINT = 2
    NO_MORE = 4
    FINISH = 8


@dataclass(frozen=True)
class IdRequest:
    """The rows that one rank requests of another, for a group of packs and a micro-batch.

    Rows are numbers in the other rank's store. shared: rows that every rank holds; rows: those to
    send, one answer each; lengths: number of rows of each sum, one answer each; terms: their rows,
    weights: the bits of their float32 weights.
    """

    shared: Int32[Tensor, "A"]
    rows: Int32[Tensor, "R"]
    lengths: Int32[Tensor, "Q"]
    terms: Int32[Tensor, "E"]
    weights: Int32[Tensor, "E"]

    @property
    def num_answers(self) -> int:
        return len(self.rows) + len(self.lengths)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return self.shared, self.rows, self.lengths, self.terms, self.weights


_NUM_TENSORS = 5  # of an IdRequest


@dataclass(frozen=True)
class ExchangedIds:
    """Requests of all ranks to this one, and what ranks agree on for a batch.

    requests: by micro-batch and group, the request of each rank.
    crosses_ranks: by micro-batch and group, whether any rank requests a row of another.
    size: samples on all ranks; step: the batch's number, by the ranks that have one.
    signals: `RankSignals` of any rank; NO_MORE: of all.
    """

    requests: list[list[list[IdRequest]]]
    crosses_ranks: list[list[bool]]
    size: int
    step: int
    signals: int


def route(
    micro_batches: Sequence[Sequence[RowsAndSums]],
    sizes: Sequence[int],
    shardings: Sequence[Sharding],
    group_of_pack: Sequence[int],
    ranks: Ranks,
    step: int = 0,
    signals: int = 0,
) -> Plan:
    """Collective: the plan of a batch whose rows are exchanged between ranks, or in micro-batches.

    micro_batches: what this rank's samples read, by micro-batch and group of packs; sizes: samples of
    each micro-batch. shardings: by group. group_of_pack: the group of each pack.
    """
    requests = [  # micro-batches x groups x ranks
        [_requests(*read, sharding, ranks) for read, sharding in zip(reads, shardings, strict=True)]
        for reads in micro_batches
    ]
    received = exchange_ids(requests, ranks, (sum(sizes), step, signals))
    served = [
        serve_plan(
            [of_groups[g] for of_groups in received.requests],
            [of_groups[g] for of_groups in requests],
            [of_groups[g] for of_groups in received.crosses_ranks],
            ranks.rank,
            sharding.columns,
        )
        for g, sharding in enumerate(shardings)
    ]
    plans = [
        Plan(
            packs=tuple(reads[g][0] for g in group_of_pack),
            step=received.step,
            batch_size=size,
            global_size=received.size,
        )
        for reads, size in zip(micro_batches, sizes, strict=True)
    ]
    return Plan(
        packs=tuple(served[g][0] for g in group_of_pack),
        step=received.step,
        batch_size=sum(sizes),
        micro_batches=tuple(plans),
        row_exchanges=tuple(served[g][1] for g in group_of_pack),
        global_size=received.size,
        signals=received.signals,
    )


def _requests(
    plan: PackPlan, sums: Sums | None, sharding: Sharding, ranks: Ranks
) -> tuple[IdRequest, ...]:
    """The requests of a micro-batch to every rank."""
    rows = plan.rows.int()  # [A], ascending
    none = rows[:0]
    if sharding.columns:
        return (IdRequest(none, rows, none, none, none),) * ranks.num_ranks
    starts = torch.tensor(sharding.owner_starts)  # [P + 1]
    bounds = torch.searchsorted(plan.rows, starts).tolist()
    shared, requests = rows[: bounds[0]], []
    for p, (first, end) in enumerate(itertools.pairwise(bounds)):
        shift = sharding.num_shared - sharding.owner_starts[p]  # to row numbers of rank p's store
        terms = (none, none, none) if sums is None else _terms(sums, p, shift)
        requests.append(IdRequest(shared, rows[first:end] + shift, *terms))
    return tuple(requests)


def _terms(
    sums: Sums, owner: int, shift: int
) -> tuple[Int32[Tensor, "Q"], Int32[Tensor, "E"], Int32[Tensor, "E"]]:
    """The sums requested of one rank: lengths, rows of its store, weights."""
    first, end = torch.searchsorted(sums.owners, torch.tensor([owner, owner + 1])).tolist()
    lengths = sums.lengths[first:end]
    begin = int(sums.lengths[:first].sum())
    span = slice(begin, begin + int(lengths.sum()))
    return lengths.int(), sums.rows[span].int() + shift, sums.weights[span].view(torch.int32)


def exchange_ids(
    requests: Sequence[Sequence[tuple[IdRequest, ...]]], ranks: Ranks, header: tuple[int, int, int]
) -> ExchangedIds:
    """Collective: sends every rank the requests to it, and receives those to this one.

    requests: by micro-batch and group, to each rank. header: samples, step and signals of this rank.
    """
    num_ranks, num_groups = ranks.num_ranks, len(requests[0])
    flat = [to_ranks for of_groups in requests for to_ranks in of_groups]  # micro-batches x groups
    ones = [1] * num_ranks
    counts = ranks.all_to_all(_counts(flat, ranks, header), ones, ones).wait()  # [P, 3 + 6 K]
    headers, sizes = counts[:, : len(header)], counts[:, len(header) :]
    sizes = sizes.view(num_ranks, len(flat), _NUM_TENSORS + 1)  # [P, K, 6]
    lengths, num_crossing = (sizes[:, :, :_NUM_TENSORS], sizes[:, :, _NUM_TENSORS])  # [P, K, 5], [P, K]

    tensors = [[t for to_ranks in flat for t in to_ranks[p].tensors] for p in range(num_ranks)]
    entries = ranks.all_to_all(
        torch.cat(list(itertools.chain(*tensors))),  # to rank 0, to rank 1, ..
        [sum(map(len, to_rank)) for to_rank in tensors],
        lengths.sum((1, 2)).tolist(),
    ).wait()
    pieces = iter(entries.split(lengths.reshape(-1).tolist()))
    received = [
        [IdRequest(*itertools.islice(pieces, _NUM_TENSORS)) for _ in flat] for _ in range(num_ranks)
    ]  # by rank
    crosses_ranks = (num_crossing.sum(0) > 0).tolist()
    places = [range(first, first + num_groups) for first in range(0, len(flat), num_groups)]
    return ExchangedIds(
        requests=[[[of_rank[k] for of_rank in received] for k in groups] for groups in places],
        crosses_ranks=[[crosses_ranks[k] for k in groups] for groups in places],
        size=int(headers[:, 0].sum()),
        step=int(headers[:, 1].max()),
        signals=_agreed(headers[:, 2].tolist()),
    )


def _counts(
    requests: Sequence[tuple[IdRequest, ...]], ranks: Ranks, header: tuple[int, int, int]
) -> Int64[Tensor, "P 3+6*{len(requests)}"]:
    """A message to each rank: the header; then for each of K requests the lengths of its tensors, and
    the number of answers that this rank requests of all other ranks."""
    num_crossing = [
        sum(request.num_answers for p, request in enumerate(to_ranks) if p != ranks.rank)
        for to_ranks in requests
    ]
    messages = []
    for p in range(ranks.num_ranks):
        message = list(header)
        for to_ranks, crossing in zip(requests, num_crossing, strict=True):
            message += [*map(len, to_ranks[p].tensors), crossing]
        messages.append(message)
    return torch.tensor(messages, dtype=torch.int64)


def _agreed(signals: Sequence[int]) -> int:
    """The signals of any rank; NO_MORE once all ranks have it."""
    no_more = int(RankSignals.NO_MORE)
    of_any, of_all = 0, no_more
    for of_rank in signals:
        of_any |= of_rank & ~no_more
        of_all &= of_rank
    return of_any | of_all


def serve_plan(
    received: Sequence[Sequence[IdRequest]],
    sent: Sequence[Sequence[IdRequest]],
    crosses_ranks: Sequence[bool],
    rank: int,
    by_columns: bool,
) -> tuple[PackPlan, RowExchangePlan]:
    """The plan for the rows of this rank's store that are read anywhere, and how they are exchanged.

    received, sent: by micro-batch, the requests of each rank and to each rank.
    """
    flat = [request for of_ranks in received for request in of_ranks]  # micro-batches x ranks
    shared_rows = torch.cat([request.shared for request in flat]).long()
    shared, inverse, _, _ = ops.unique(shared_rows)  # [H']
    places = inverse.split([len(request.shared) for request in flat])  # [A'] each
    answers = [torch.cat([request.rows, request.terms]).long() for request in flat]  # [R + E] each
    distinct, inverse, order, starts = ops.unique(torch.cat([shared, *answers]))  # [U], [N]
    plan = PackPlan(
        rows=distinct,
        slots=distinct,
        inverse=inverse,
        order=order,
        starts=starts,
        num_bags=len(shared) + sum(request.num_answers for request in flat),
    )
    if any(len(request.lengths) for request in flat):
        plan = _with_bags(plan, len(shared), flat)
    return plan, RowExchangePlan(
        num_shared=len(shared),
        shared_places=tuple(p.long() for p in places[rank :: len(received[0])]),
        send_counts=_num_answers(received),
        recv_counts=_num_answers(sent),
        crosses_ranks=tuple(crosses_ranks),
        by_columns=by_columns,
    )


def _num_answers(requests: Sequence[Sequence[IdRequest]]) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(request.num_answers for request in of_ranks) for of_ranks in requests)


def _with_bags(plan: PackPlan, num_shared: int, requests: Sequence[IdRequest]) -> PackPlan:
    """The plan where some places are sums and the others are one row each."""
    lengths, weights = [torch.ones(num_shared, dtype=torch.int32)], [torch.ones(num_shared)]
    for request in requests:
        lengths += [torch.ones_like(request.rows), request.lengths]
        weights += [torch.ones(len(request.rows)), request.weights.view(torch.float32)]
    bag_starts = functional.pad(torch.cat(lengths).cumsum(0), (1, 0)).int()  # [M + 1]
    bags = ops.reference.bags_of(bag_starts).int()  # [N]
    return replace(plan, bag_starts=bag_starts, bags=bags, weights=torch.cat(weights))
