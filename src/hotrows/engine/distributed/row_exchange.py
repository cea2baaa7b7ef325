"""RowExchange: the all-to-all of the rows and gradients of one batch between ranks.

Packs take turns, so that one is looked up while the rows of the one before are sent; with several
micro-batches, the rows of the next are sent while the model trains on this one:

    lookup    pack 0 | pack 1 |
    ranks              rows 0 | rows 1 | micro-batch 1: rows 0 | rows 1 |   gradients ...
    model                              | micro-batch 0 forward, backward    | micro-batch 1 ..

Sums are made in a fixed order: answers and gradients are ordered by micro-batch, then by rank.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from hotrows.engine.distributed.comm import Arrived, Arriving, Note, Ranks
from hotrows.ops.plan import Plan

Lookup = Callable[[int], Tensor]  # of a pack: [num_shared + R, d], the places of its plan


class RowExchange:
    """The exchange of one plan.

    lookup: looks up the rows of a pack. widths: by pack, how many columns of a row each rank has.
    wire_dtype: of what is sent; None: float32. note: called with what happened, when.
    """

    def __init__(
        self,
        plan: Plan,
        widths: Sequence[Sequence[int]],
        lookup: Lookup,
        ranks: Ranks,
        wire_dtype: torch.dtype | None = None,
        note: Note | None = None,
    ) -> None:
        self.plan = plan
        self._widths, self._lookup, self._ranks = widths, lookup, ranks
        self._wire_dtype, self._note = wire_dtype, note
        self._packs = range(len(widths))
        self._rows: list[Tensor] = []  # by pack, once looked up
        self._arriving: dict[tuple[int, int], tuple[Arriving, float]] = {}
        self._gradients: list[Tensor] = []  # by pack, those that arrive and those of shared rows
        self._returning: dict[tuple[int, int], tuple[Arriving, float]] = {}
        self._reduced: list[Arriving] = []
        self._num_sent = 0  # micro-batches whose gradients were sent

    def rows(self, s: int) -> list[Tensor]:
        """[A, D] per pack: the rows that micro-batch s reads, in the order of its plan."""
        if not self._rows:
            for p in self._packs:
                begin = time.perf_counter()
                self._rows.append(self._lookup(p))
                self._noted("lookup", "model", begin)
                self._send(s, p)
        received = [self._receive(s, p) for p in self._packs]
        if s + 1 < len(self.plan.micro_batches):
            for p in self._packs:
                self._send(s + 1, p)
        return received

    def send_gradients(self, s: int, gradients: Sequence[Tensor]) -> None:
        """Sends the gradients of the rows that micro-batch s has read: [A, D] per pack, in order of s."""
        if not self._gradients:
            self._gradients = [self._block(p, gradients[p].device) for p in self._packs]
        assert s == self._num_sent, "gradients of micro-batches are sent in order"
        self._num_sent += 1
        for p in self._packs:
            exchange, grad = self.plan.row_exchanges[p], gradients[p]
            num_shared = len(exchange.shared_places[s])
            if num_shared:
                self._gradients[p].index_add_(0, exchange.shared_places[s], grad[:num_shared])
            begin = time.perf_counter()
            self._returning[s, p] = self._send_back(s, p, grad[num_shared:]), begin
        if self.all_sent:
            for p in self._packs:
                shared = self._gradients[p][: self.plan.row_exchanges[p].num_shared]
                self._reduced.append(self._ranks.all_reduce(shared) if len(shared) else Arrived(shared))

    @property
    def all_sent(self) -> bool:
        """True if the gradients of all micro-batches were sent."""
        return self._num_sent == len(self.plan.micro_batches)

    def gradients(self, p: int) -> Tensor:
        """[num_shared + R, d]: the gradients of every place of pack p's plan."""
        exchange, block = self.plan.row_exchanges[p], self._gradients[p]
        self._reduced[p].wait()
        first = exchange.num_shared
        for s, counts in enumerate(exchange.send_counts):
            returning, begin = self._returning[s, p]
            received = returning.wait()  # [R * d]
            self._noted("gradients", "ranks", begin, returning)
            end = first + sum(counts)
            block[first:end] = received.view(end - first, block.shape[1])
            first = end
        return block

    def _block(self, p: int, device: torch.device) -> Tensor:
        """[num_shared + R, d]: zeros for shared rows, whose gradients are summed; else uninitialized."""
        block = torch.empty(self.plan.packs[p].num_bags, self._own_width(p), device=device)
        block[: self.plan.row_exchanges[p].num_shared].zero_()
        return block

    def _own_width(self, p: int) -> int:
        return self._widths[p][self._ranks.rank]

    def _send(self, s: int, p: int) -> None:
        """Sends the answers of micro-batch s to the ranks that requested them."""
        exchange, rows = self.plan.row_exchanges[p], self._rows[p]
        first = exchange.num_shared + sum(map(sum, exchange.send_counts[:s]))
        answers = rows[first : first + sum(exchange.send_counts[s])]  # [R, d]
        begin = time.perf_counter()
        if not exchange.crosses_ranks[s]:
            self._arriving[s, p] = Arrived(answers.reshape(-1)), begin
            return
        sent = [n * rows.shape[1] for n in exchange.send_counts[s]]
        received = self._sizes(p, exchange.recv_counts[s])
        numbers = self._on_wire(answers).reshape(-1)
        arriving = self._ranks.all_to_all(numbers, sent, received)
        self._arriving[s, p] = arriving, begin

    def _receive(self, s: int, p: int) -> Tensor:
        """[A, D]: the rows of micro-batch s, shared ones first."""
        exchange, rows = self.plan.row_exchanges[p], self._rows[p]
        arriving, begin = self._arriving.pop((s, p))
        answers = arriving.wait().to(rows.dtype)  # flat, rank after rank
        self._noted("rows", "ranks", begin, arriving)
        if exchange.by_columns:
            answers = torch.cat(_columns(answers, exchange.recv_counts[s], self._widths[p]), 1)  # [A, D]
        else:
            answers = answers.view(-1, rows.shape[1])  # [A, D]
        places = exchange.shared_places[s]
        return torch.cat([rows[places], answers]) if len(places) else answers

    def _send_back(self, s: int, p: int, grad: Tensor) -> Arriving:
        exchange = self.plan.row_exchanges[p]
        if not exchange.crosses_ranks[s]:
            return Arrived(grad)
        if exchange.by_columns:
            grad = torch.cat([part.reshape(-1) for part in grad.split(list(self._widths[p]), 1)])
        sent = self._sizes(p, exchange.recv_counts[s])
        received = [n * self._own_width(p) for n in exchange.send_counts[s]]
        numbers = self._on_wire(grad).reshape(-1)
        return self._ranks.all_to_all(numbers, sent, received)

    def _sizes(self, p: int, counts: Sequence[int]) -> list[int]:
        """The numbers in so many answers of each rank."""
        return [n * width for n, width in zip(counts, self._widths[p], strict=True)]

    def _on_wire(self, values: Tensor) -> Tensor:
        return values if self._wire_dtype is None else values.to(self._wire_dtype)

    def _noted(self, stage: str, lane: str, begin: float, arriving: Arriving | None = None) -> None:
        if self._note is not None:
            end = (arriving and arriving.arrived_at) or time.perf_counter()
            self._note(stage, lane, begin, end)


def _columns(answers: Tensor, counts: Sequence[int], widths: Sequence[int]) -> list[Tensor]:
    """The columns that each rank has of the rows: [A, d] per rank."""
    ends = [0, *itertools.accumulate(n * w for n, w in zip(counts, widths, strict=True))]
    spans = zip(itertools.pairwise(ends), widths, strict=True)
    return [answers[first:end].view(-1, width) for (first, end), width in spans]
