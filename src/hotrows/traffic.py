"""Traffic: the rows and gradients of one batch on their way between ranks.

Packs take turns, so that one is looked up while the rows of the one before travel; with several
slices, the rows of the next slice travel while the model learns from this one:

    lookup    pack 0 | pack 1 |
    ranks              rows 0 | rows 1 | slice 1: rows 0 | rows 1 |   gradients ...
    model                              | slice 0 forward, backward    | slice 1 ..

Only sums of a fixed order are made: answers and gradients stand slice by slice, rank by rank.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from hotrows.plan import Plan
from hotrows.ranks import Arrived, Arriving, Note, Ranks

Collect = Callable[
    [int], Tensor
]  # of a pack: [num_shared + R, d], what the places of its plan hold


class Traffic:
    """What moves for one plan.

    collect: looks the rows of a pack up. widths: by pack, how many columns of a row each rank holds.
    wire: of what travels; None: float32. note: told when what happened.
    """

    def __init__(
        self, plan: Plan, widths: Sequence[Sequence[int]], collect: Collect, ranks: Ranks,
        wire: torch.dtype | None = None, note: Note | None = None,
    ) -> None:  # fmt: skip
        self.plan = plan
        self._widths, self._collect, self._ranks, self._wire = widths, collect, ranks, wire
        self._note = note
        self._packs = range(len(widths))
        self._held: list[Tensor] = []
        self._arriving: dict[tuple[int, int], tuple[Arriving, float]] = {}
        self._gradients: list[Tensor] = []
        self._returning: dict[tuple[int, int], tuple[Arriving, float]] = {}
        self._summed: list[Arriving] = []
        self._given_back = 0

    def rows(self, s: int) -> list[Tensor]:
        """[A, D] per pack: the rows that slice s reads, in the order of its plan."""
        if not self._held:
            for p in self._packs:
                begin = time.perf_counter()
                self._held.append(self._collect(p))
                self._noted("lookup", "model", begin)
                self._send(s, p)
        arrived = [self._arrive(s, p) for p in self._packs]
        if s + 1 < len(self.plan.slices):
            for p in self._packs:
                self._send(s + 1, p)
        return arrived

    def give_back(self, s: int, gradients: Sequence[Tensor]) -> None:
        """Sends the gradients of what slice s has read: [A, D] per pack; slices in their order."""
        if not self._gradients:
            self._gradients = [
                _block(self.plan, p, self._own_width(p), gradients[p]) for p in self._packs
            ]
        assert s == self._given_back, "slices give back in order"
        self._given_back += 1
        for p in self._packs:
            answers, of = self.plan.answers[p], gradients[p]
            num_shared = len(answers.shared[s])
            if num_shared:
                self._gradients[p].index_add_(0, answers.shared[s], of[:num_shared])
            begin = time.perf_counter()
            self._returning[s, p] = self._send_back(s, p, of[num_shared:]), begin
        if self._given_back == len(self.plan.slices):
            for p in self._packs:
                shared = self._gradients[p][: self.plan.answers[p].num_shared]
                self._summed.append(
                    self._ranks.all_reduce(shared) if len(shared) else Arrived(shared)
                )

    @property
    def all_given_back(self) -> bool:
        return self._given_back == len(self.plan.slices)

    def gradients(self, p: int) -> Tensor:
        """[num_shared + R, d]: the gradients of every place of pack p's plan."""
        answers, block = self.plan.answers[p], self._gradients[p]
        self._summed[p].wait()
        first = answers.num_shared
        for s, given in enumerate(answers.given):
            arriving, begin = self._returning[s, p]
            found = arriving.wait()
            self._noted("gradients", "ranks", begin, arriving)
            end = first + sum(given)
            block[first:end] = found.view(end - first, block.shape[1])
            first = end
        return block

    def _own_width(self, p: int) -> int:
        return self._widths[p][self._ranks.rank]

    def _send(self, s: int, p: int) -> None:
        answers, held = self.plan.answers[p], self._held[p]
        first = answers.num_shared + sum(sum(given) for given in answers.given[:s])
        own = held[first : first + sum(answers.given[s])]
        begin = time.perf_counter()
        if not answers.travels[s]:
            self._arriving[s, p] = Arrived(own.reshape(-1)), begin
            return
        given = [n * held.shape[1] for n in answers.given[s]]
        asked = [n * w for n, w in zip(answers.asked[s], self._widths[p], strict=True)]
        arriving = self._ranks.all_to_all(self._on_wire(own).reshape(-1), given, asked)
        self._arriving[s, p] = arriving, begin

    def _arrive(self, s: int, p: int) -> Tensor:
        answers, held = self.plan.answers[p], self._held[p]
        arriving, begin = self._arriving.pop((s, p))
        found = arriving.wait().to(held.dtype)
        self._noted("rows", "ranks", begin, arriving)
        if answers.by_columns:
            found = torch.cat(_columns(found, answers.asked[s], self._widths[p]), 1)
        else:
            found = found.view(-1, held.shape[1])
        shared = answers.shared[s]
        return torch.cat([held[shared], found]) if len(shared) else found

    def _send_back(self, s: int, p: int, of: Tensor) -> Arriving:
        answers = self.plan.answers[p]
        if not answers.travels[s]:
            return Arrived(of)
        if answers.by_columns:
            of = torch.cat([part.reshape(-1) for part in of.split(list(self._widths[p]), 1)])
        asked = [n * w for n, w in zip(answers.asked[s], self._widths[p], strict=True)]
        given = [n * self._own_width(p) for n in answers.given[s]]
        return self._ranks.all_to_all(self._on_wire(of).reshape(-1), asked, given)

    def _on_wire(self, values: Tensor) -> Tensor:
        return values if self._wire is None else values.to(self._wire)

    def _noted(self, stage: str, lane: str, begin: float, arriving: Arriving | None = None) -> None:
        if self._note is not None:
            end = getattr(arriving, "arrived_at", None) or time.perf_counter()
            self._note(stage, lane, begin, end)


def _block(plan: Plan, p: int, width: int, like: Tensor) -> Tensor:
    """[num_shared + R, d]: zeros where gradients are summed, the rest to be filled."""
    block = torch.empty(plan.packs[p].num_bags, width, device=like.device)
    block[: plan.answers[p].num_shared].zero_()
    return block


def _columns(found: Tensor, asked: Sequence[int], widths: Sequence[int]) -> list[Tensor]:
    """What each rank holds of the same rows: [A, d] per rank."""
    ends = [0, *itertools.accumulate(n * w for n, w in zip(asked, widths, strict=True))]
    spans = zip(itertools.pairwise(ends), widths, strict=True)
    return [found[first:end].view(-1, width) for (first, end), width in spans]
