"""Routing: which rank requests which rows of which; row numbers are exchanged ahead of the rows.

Every rank sorts what its samples read by owner, and sends each owner the row numbers; an owner then
knows the rows of its store that are read anywhere, and which to send to which rank. Two messages to
each rank per batch, for all packs and micro-batches together: how many numbers, and the numbers. What
is done for each of P ranks is a split of a tensor and a join of the parts; nothing is computed there.

    rank 0 reads   rows 1 1 3 | 7 8      requested of rank 0   1 3 by itself, 1 2 by rank 1
    rank 1 reads   rows 1 2 | 8 9 9      looked up there       1 2 3, once

Rows that every rank holds are sent to all ranks, so that all update equal ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntFlag

import torch
from torch import Tensor
from torch.nn import functional

from hotrows import ops
from hotrows.engine.distributed.comm import Ranks
from hotrows.engine.planning.remote_pooling import RowsAndSums, Sums
from hotrows.engine.planning.sharding import Sharding
from hotrows.ops.plan import PackPlan, Plan, RowExchangePlan
from hotrows.runtime.shapes import Int32, Int64


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
class IdRequests:
    """The rows that a rank requests of all ranks, for a group of packs and a micro-batch.

    Rows are numbers in the store of the rank that has them. shared: rows that every rank holds; rows:
    those to send, one answer each; lengths: number of rows of each sum, one answer each; terms: their
    rows, weights: the bits of their float32 weights. Each is what is sent to rank 0, to rank 1, ..
    sizes: how many numbers of each of the five every rank is sent.
    """

    shared: Sequence[Int32[Tensor, "_"]]
    rows: Sequence[Int32[Tensor, "_"]]
    terms: Sequence[Int32[Tensor, "_"]]
    lengths: Sequence[Int32[Tensor, "_"]]
    weights: Sequence[Int32[Tensor, "_"]]
    sizes: Int64[Tensor, "P 5"]

    @property
    def tensors(self) -> tuple[Sequence[Tensor], ...]:
        return self.shared, self.rows, self.terms, self.lengths, self.weights


SHARED, ROWS, TERMS, LENGTHS = range(4)  # columns of sizes


def num_answers(sizes: Int64[Tensor, "P 5"]) -> Int64[Tensor, "P"]:
    """How many rows and sums are requested of, or by, each rank."""
    return sizes[:, ROWS] + sizes[:, LENGTHS]


@dataclass(frozen=True)
class ReceivedIds:
    """The rows that all ranks request of this one, for a group of packs and a micro-batch, end to end
    from rank 0 on: as `IdRequests`, but rows and then terms of each rank are in `looked_up`."""

    shared: Int32[Tensor, "_"]
    looked_up: Int32[Tensor, "_"]
    lengths: Int32[Tensor, "Q"]
    weights: Int32[Tensor, "E"]
    sizes: Int64[Tensor, "P 5"]


@dataclass(frozen=True)
class ExchangedIds:
    """Requests of all ranks to this one, and what ranks agree on for a batch.

    requests: by micro-batch and group.
    crosses_ranks: by micro-batch and group, whether any rank requests a row of another.
    size: samples on all ranks; step: the batch's number, by the ranks that have one.
    signals: `RankSignals` of any rank; NO_MORE: of all.
    """

    requests: list[list[ReceivedIds]]
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
    requests = [  # micro-batches x groups
        [_requests(*read, sharding) for read, sharding in zip(reads, shardings, strict=True)]
        for reads in micro_batches
    ]
    received = exchange_ids(requests, ranks, (sum(sizes), step, signals))
    # Plan what this rank reads for all ranks.
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
    # Put it together, with a plan for each micro-batch.
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


def _requests(plan: PackPlan, sums: Sums | None, sharding: Sharding) -> IdRequests:
    """The requests of a micro-batch to every rank."""
    num_ranks, none = sharding.num_ranks, [plan.rows[:0].int()] * sharding.num_ranks
    sizes = torch.zeros(num_ranks, 5, dtype=torch.int64)
    if sharding.columns:
        sizes[:, ROWS] = len(plan.rows)
        return IdRequests(none, [plan.rows.int()] * num_ranks, none, none, none, sizes)
    starts = torch.tensor(sharding.owner_starts)  # [P + 1]
    shift = starts[:-1] - sharding.num_shared  # from row numbers of each rank's store
    bounds = torch.searchsorted(plan.rows, starts)
    first = int(bounds[0])
    sizes[:, SHARED], sizes[:, ROWS] = first, bounds.diff()
    rows = _split(plan.rows[first:], sizes[:, ROWS], shift)
    shared = [plan.rows[:first].int()] * num_ranks
    if sums is None:
        return IdRequests(shared, rows, none, none, none, sizes)
    sizes[:, LENGTHS] = torch.bincount(sums.owners, minlength=num_ranks)
    sizes[:, TERMS].index_add_(0, sums.owners, sums.lengths)
    sizes[:, 4] = sizes[:, TERMS]
    terms, lengths = _split(sums.rows, sizes[:, TERMS], shift), _split(sums.lengths, sizes[:, LENGTHS])
    weights = _split(sums.weights.view(torch.int32), sizes[:, TERMS])
    return IdRequests(shared, rows, terms, lengths, weights, sizes)


def _split(
    values: Tensor, sizes: Int64[Tensor, "P"], shift: Int64[Tensor, "P"] | None = None
) -> Sequence[Tensor]:
    """So many of the values for each rank, less its shift."""
    if shift is not None:
        values = values - shift.repeat_interleave(sizes, output_size=len(values))
    return values.int().split(sizes.tolist())


def exchange_ids(
    requests: Sequence[Sequence[IdRequests]], ranks: Ranks, header: tuple[int, int, int]
) -> ExchangedIds:
    """Collective: sends every rank the requests to it, and receives those to this one.

    requests: by micro-batch and group. header: samples, step and signals of this rank.
    """
    num_ranks, num_groups = ranks.num_ranks, len(requests[0])
    flat = [of_group for of_groups in requests for of_group in of_groups]  # K = micro-batches x groups
    sent, ones = torch.stack([of_group.sizes for of_group in flat], 1), [1] * num_ranks  # [P, K, 5]
    counts = ranks.all_to_all(_counts(sent, ranks.rank, header), ones, ones).wait()  # [P, 3 + 6 K]
    headers, of_requests = counts[:, : len(header)], counts[:, len(header) :].view(num_ranks, -1, 6)
    received, num_crossing = of_requests[:, :, :5], of_requests[:, :, 5]  # [P, K, 5], [P, K]

    entries = ranks.all_to_all(
        torch.cat(_messages(flat, sent)), sent.sum((1, 2)).tolist(), received.sum((1, 2)).tolist()
    ).wait()
    # Take micro-batches and groups apart again.
    crosses_ranks = (num_crossing.sum(0) > 0).tolist()
    places = [slice(first, first + num_groups) for first in range(0, len(flat), num_groups)]
    requested = _received(entries, received)
    return ExchangedIds(
        requests=[requested[groups] for groups in places],
        crosses_ranks=[crosses_ranks[groups] for groups in places],
        size=int(headers[:, 0].sum()),
        step=int(headers[:, 1].max()),
        signals=_agreed(headers[:, 2].tolist()),
    )


def _counts(
    sizes: Int64[Tensor, "P K 5"], rank: int, header: tuple[int, int, int]
) -> Int64[Tensor, "P 3+6*K"]:
    """A message to each rank: the header; then of each of K requests its sizes, and the number of answers
    that this rank requests of all other ranks."""
    answers = sizes[:, :, ROWS] + sizes[:, :, LENGTHS]  # [P, K]
    crossing = answers.sum(0) - answers[rank]  # [K]
    of_requests = torch.cat([sizes, crossing.expand_as(answers)[:, :, None]], 2)  # [P, K, 6]
    return torch.cat([torch.tensor(header).expand(len(sizes), 3), of_requests.flatten(1)], 1)


def _messages(requests: Sequence[IdRequests], sizes: Int64[Tensor, "P K 5"]) -> list[Tensor]:
    """The tensors for rank 0, for rank 1, ..: its part of each tensor of each request."""
    is_sent = sizes.sum(0).tolist()  # [K][5]
    tensors = [
        tensor
        for request, of_request in zip(requests, is_sent, strict=True)
        for tensor, num in zip(request.tensors, of_request, strict=True)
        if num
    ]
    if not tensors:
        return [requests[0].shared[0]]
    return [part for parts in zip(*tensors, strict=True) for part in parts]


def _received(entries: Int32[Tensor, "_"], sizes: Int64[Tensor, "P K 5"]) -> list[ReceivedIds]:
    """The K requests in what all ranks have sent, message after message."""
    lengths = torch.stack(  # [P, K, 4]: what is looked up stands together
        [sizes[:, :, SHARED], sizes[:, :, ROWS] + sizes[:, :, TERMS], *sizes[:, :, LENGTHS:].unbind(2)], 2
    )
    is_sent = (lengths.sum(0) > 0).flatten()  # [4 K]
    kept = lengths.flatten(1)[:, is_sent]  # [P, _]
    num = kept.shape[1]
    parts = entries.split(kept.flatten().tolist()) if num > 1 else ()
    tensors = iter([torch.cat(parts[n::num]) for n in range(num)] if num > 1 else [entries])
    by_kind = [next(tensors) if of_kind else entries[:0] for of_kind in is_sent.tolist()]
    requests = []
    for k, of_request in enumerate(sizes.unbind(1)):
        shared, looked_up, num_rows, weights = by_kind[4 * k : 4 * k + 4]
        requests.append(ReceivedIds(shared, looked_up, num_rows, weights, of_request))
    return requests


def _agreed(signals: Sequence[int]) -> int:
    """The signals of any rank; NO_MORE once all ranks have it."""
    no_more = int(RankSignals.NO_MORE)
    of_any, of_all = 0, no_more
    for of_rank in signals:
        of_any |= of_rank & ~no_more
        of_all &= of_rank
    return of_any | of_all


def serve_plan(
    received: Sequence[ReceivedIds],
    sent: Sequence[IdRequests],
    crosses_ranks: Sequence[bool],
    rank: int,
    by_columns: bool,
) -> tuple[PackPlan, RowExchangePlan]:
    """The plan for the rows of this rank's store that are read anywhere, and how they are exchanged.

    received, sent: the requests to this rank, and by it, by micro-batch as all else.
    """
    # Rows that every rank holds: each reads what all have asked for.
    shared_rows = torch.cat([request.shared for request in received]).long()
    shared, places, _, _ = ops.unique(shared_rows)  # [H'], [A' of all ranks and micro-batches]
    ends = torch.stack([request.sizes[:, SHARED] for request in received]).flatten().cumsum(0).tolist()
    num_ranks = len(ends) // len(received)
    of_rank = [s * num_ranks + rank for s in range(len(received))]
    looked_up = [request.looked_up for request in received]  # [R + E] each
    distinct, inverse, order, starts = ops.unique(torch.cat([shared, *looked_up]))  # [U], [N]
    send_counts = torch.stack([num_answers(request.sizes) for request in received])  # [S, P]
    plan = PackPlan(
        rows=distinct,
        slots=distinct,
        inverse=inverse,
        order=order,
        starts=starts,
        num_bags=len(shared) + int(send_counts.sum()),
    )
    if any(len(request.lengths) for request in received):
        plan = _with_bags(plan, len(shared), received)
    return plan, RowExchangePlan(
        num_shared=len(shared),
        shared_places=tuple(places[ends[n - 1] if n else 0 : ends[n]].long() for n in of_rank),
        send_counts=_nested(send_counts),
        recv_counts=_nested(torch.stack([num_answers(request.sizes) for request in sent])),
        crosses_ranks=tuple(crosses_ranks),
        by_columns=by_columns,
    )


def _nested(counts: Int64[Tensor, "S P"]) -> tuple[tuple[int, ...], ...]:
    return tuple(map(tuple, counts.tolist()))


def _with_bags(plan: PackPlan, num_shared: int, requests: Sequence[ReceivedIds]) -> PackPlan:
    """The plan where some places are sums and the others are one row each."""
    lengths, weights = [torch.ones(num_shared, dtype=torch.int32)], [torch.ones(num_shared)]
    for request in requests:
        of_rank = request.sizes.unbind(1)
        lengths.append(_among_ones(request.lengths, of_rank[ROWS], of_rank[LENGTHS]))
        of_sums = request.weights.view(torch.float32)
        weights.append(_among_ones(of_sums, of_rank[ROWS], of_rank[TERMS]))
    bag_starts = functional.pad(torch.cat(lengths).cumsum(0), (1, 0)).int()  # [M + 1]
    bags = ops.reference.bags_of(bag_starts).int()  # [N]
    return replace(plan, bag_starts=bag_starts, bags=bags, weights=torch.cat(weights))


def _among_ones(values: Tensor, num_ones: Int64[Tensor, "P"], num_values: Int64[Tensor, "P"]) -> Tensor:
    """Joins, for each rank in turn, its number of ones and its number of the values.

    values = [7, 8, 9], num_ones = [2, 1], num_values = [1, 2]  ->  1 1 7 1 8 9
    """
    is_value = torch.tensor([False, True]).repeat(len(num_ones))
    is_value = is_value.repeat_interleave(torch.stack([num_ones, num_values], 1).flatten())
    among = torch.ones(len(is_value), dtype=values.dtype)
    among[is_value] = values
    return among
