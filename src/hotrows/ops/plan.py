"""All that ids alone decide about a batch: which rows it needs, who owns them, where they are.

Made ahead of time, frozen, and obeyed by everything that touches a row. Within a pack, a lookup
returns M vectors, one per bag of ids:

    bag  0 .. B*F-1   the sparse features, sample after sample: bag b*F + f
         B*F ..       the sequence features, one bag per element, feature after feature

Equal rows are in runs: `order` lists the ids by row, and those of rows[u] are
order[starts[u] : starts[u + 1]], in the order of the batch. Gradients are summed along the runs.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional

from hotrows.runtime.pages import notebook
from hotrows.runtime.shapes import Float, Int32, Int64


@dataclass(frozen=True)
class PackPlan:
    """One pack's share of a plan.

    rows: the distinct rows of the pack that the batch reads, ascending.
    slots: the place of each row in fast memory.
    inverse: rows[inverse[n]] is the row of id n.
    order, starts: the runs of equal rows, [U + 1]; where ranks send sums, of rows and sums.
    num_bags: M.
    bag_starts: the first id of each bag and the end; None: one id per bag, N = M.
    bags: the bag of each id; None: one id per bag.
    weights: the factor of each id's vector, float32 in the engine; None: 1.
    sequence_starts: by sequence feature, the first element of each sample among all, and the end.
    sequence_sizes: of each sequence, in the pack's order, its bags with padding; None: there is none.
    """

    rows: Int64[Tensor, "U"]
    slots: Int64[Tensor, "U"]
    inverse: Int32[Tensor, "N"]
    order: Int32[Tensor, "N"]
    starts: Int32[Tensor, "_"]
    num_bags: int
    bag_starts: Int32[Tensor, "{num_bags}+1"] | None = None
    bags: Int32[Tensor, "N"] | None = None
    weights: Float[Tensor, "N"] | None = None
    sequence_starts: dict[str, Int64[Tensor, "_"]] | None = None
    sequence_sizes: tuple[int, ...] | None = None

    @property
    def num_rows(self) -> int:
        """U, the number of distinct rows."""
        return self.rows.numel()

    def padded(self, sequences: Sequence[str] = ()) -> PackPlan:
        """With as many rows as ids: row -1 is padding, has slot 0 and an empty run.

        Lists are padded first. sequences: the feature of each sequence of the pack, in order.

        rows [3, 7], starts [0, 1, 3]  ->  rows [3, 7, -1], starts [0, 1, 3, 3]
        """
        plan = self if self.bag_starts is None else self._with_padded_lists(sequences, self.bag_starts)
        num_ids, missing = self.inverse.numel(), plan.inverse.numel() - self.num_rows
        return replace(
            plan,
            rows=functional.pad(self.rows, (0, missing), value=-1),
            slots=functional.pad(self.slots, (0, missing)),
            starts=functional.pad(self.starts, (0, missing), value=num_ids),
        )

    def _with_padded_lists(
        self, sequences: Sequence[str], bag_starts: Int32[Tensor, "{self.num_bags}+1"]
    ) -> PackPlan:
        """With empty bags behind those of each sequence, and behind all ids some that no bag has, up to
        the next of the sizes of lists."""
        starts = self.sequence_starts or {}
        lengths = [int(starts[name][-1]) for name in sequences]
        pooled = self.num_bags - sum(lengths)
        sizes = [padded_size(length) for length in lengths]
        assert self.bags is not None, "where bags begin is known with whose each id is"
        first, shift = int(bag_starts[pooled]), 0
        parts, bags = [bag_starts[:pooled]], [self.bags[:first]]
        missing = padded_size(first) + sum(sizes) - self.inverse.numel()
        ends = itertools.accumulate(lengths, initial=pooled)
        for (begin, end), size in zip(itertools.pairwise(ends), sizes, strict=True):
            parts += [bag_starts[begin:end], bag_starts[end].expand(size - (end - begin))]
            bags.append(self.bags[int(bag_starts[begin]) : int(bag_starts[end])] + shift)
            shift += size - (end - begin)
        return replace(
            self,
            inverse=functional.pad(self.inverse, (0, missing)),
            order=functional.pad(self.order, (0, missing)),
            num_bags=pooled + sum(sizes),
            bag_starts=torch.cat([*parts, bag_starts[-1:]]),
            bags=functional.pad(torch.cat(bags), (0, missing)),
            weights=None if self.weights is None else functional.pad(self.weights, (0, missing)),
            sequence_sizes=tuple(sizes),
        )

    def narrowed(self, num_rows: int) -> PackPlan:
        """Without the padding: the first `num_rows` rows."""
        if num_rows == self.num_rows:
            return self
        rows, slots = self.rows[:num_rows], self.slots[:num_rows]
        return replace(self, rows=rows, slots=slots, starts=self.starts[: num_rows + 1])


@dataclass(frozen=True)
class Moves:
    """The rows that a batch brings into fast memory and those that leave to make room, of one group of
    packs.

    rows_in: ascending; slots_in: the slot that each of them gets.
    rows_out: ascending; slots_out: the slot that each of them has until then.
    bypasses_cache: the batch has more rows than there are slots and moves none: rows without a slot
        (-1 in `PackPlan.slots`) are read from the store, and written back after the update.
    """

    rows_in: Int64[Tensor, "m"]
    slots_in: Int64[Tensor, "m"]
    rows_out: Int64[Tensor, "e"]
    slots_out: Int64[Tensor, "e"]
    bypasses_cache: bool = False


@dataclass(frozen=True)
class NewRows:
    """The rows of a group of packs that stand for new keys: first values of the keys replace them
    before the batch is looked up.

    rows: distinct, ascending; keys: of each; slots: of each, -1 where the batch bypasses the cache.
    """

    rows: Int64[Tensor, "b"]
    keys: Int64[Tensor, "b"]
    slots: Int64[Tensor, "b"]


@dataclass(frozen=True)
class RowExchangePlan:
    """The all-to-all of a group's rows between ranks, micro-batch by micro-batch.

    A rank looks up its rows once and sends each rank the answers to its requests; gradients are sent
    back in the same layout. The plan's own `inverse`, `order` and `starts` number these places:

        place  0 .. num_shared - 1     the rows that every rank holds and some rank's samples read
               num_shared ..           answers: of micro-batch 0 to rank 0, to rank 1, .., of 1 ..

    shared_places: per micro-batch, [A'] int64: the places of the shared rows that its samples read.
    send_counts: per micro-batch, the number of answers sent to each rank, P ints.
    recv_counts: per micro-batch, the number of answers received from each rank, P ints.
    crosses_ranks: per micro-batch, whether any rank requests a row of another.
    by_columns: every rank holds some columns of all rows, and requests equal rows of all ranks.
    """

    num_shared: int
    shared_places: tuple[Tensor, ...]
    send_counts: tuple[tuple[int, ...], ...]
    recv_counts: tuple[tuple[int, ...], ...]
    crosses_ranks: tuple[bool, ...]
    by_columns: bool = False


@dataclass(frozen=True)
class RequestPlan:
    """Which bags of a plan are of samples, and which of the requests that these belong to.

    features: those that requests have; starts: [R + 1], request r has the samples starts[r] ..
        starts[r + 1] - 1.
    samples, shared: plans of B samples and of R requests whose packs are those of the whole plan, with
        their own bags alone: pack p has first those of samples.packs[p], then those of shared.packs[p],
        each in the order that bags of a batch have.
    """

    features: tuple[str, ...]
    starts: Int64[Tensor, "_"]
    samples: Plan
    shared: Plan


@dataclass(frozen=True)
class Plan:
    """The plan of one batch on one rank. Empty tuples mean: none.

    packs: one PackPlan per pack, in the order of the packing.
    step: the number of the update this batch will make, from 0; batch_size: B, of this rank.
    moves: one per group of packs that read the same rows; empty: no row moves.
    waits_for: the number of the batch, in the order of planning, that must have left the pipeline
        before a row of this one moves; -1: none.
    new_rows: one per group of packs, where a key of a dynamic feature is new.

    Between ranks, and where a batch is trained in micro-batches, `packs` are of the rows in this
    rank's store that any rank's samples read, and there are:
    micro_batches: plans of consecutive samples of the batch, whose rows are the answers of all ranks;
    row_exchanges: per pack, how these answers are exchanged.
    global_size: samples of the batch on all ranks; 0: batch_size.
    signals: those of all ranks when this batch was planned: `engine.planning.routing.RankSignals`.
    on_device: the packs are planned on the device, when the batch is copied there; none until then.
    requests: where samples of a request share features, which bags are of requests.
    on_host: what the host knows of a plan on a device without waiting for it: the sizes, and where the
        plan is a copy of one made there, or rows are copied by the host, the values. None for a plan
        that was made where it is.
    """

    packs: tuple[PackPlan, ...]
    step: int
    batch_size: int
    moves: tuple[Moves, ...] = ()
    waits_for: int = -1
    new_rows: tuple[NewRows, ...] = ()
    micro_batches: tuple[Plan, ...] = ()
    row_exchanges: tuple[RowExchangePlan, ...] = ()
    global_size: int = 0
    signals: int = 0
    on_device: bool = False
    requests: RequestPlan | None = None
    on_host: Plan | None = None

    _repr_html_ = notebook.plan

    def padded(self, sequences: Sequence[Sequence[str]]) -> Plan:
        """With padded packs; micro-batches are not padded. sequences: by pack, the features of those."""
        if self.micro_batches:
            return self
        pairs = zip(self.packs, sequences, strict=True)
        packs = {id(pack): pack.padded(names) for pack, names in pairs}
        return replace(self, packs=tuple(packs[id(pack)] for pack in self.packs))

    @property
    def host(self) -> Plan:
        """The plan in host memory."""
        return self.on_host or self

    @property
    def share(self) -> float:
        """This rank's fraction of all samples: the factor of its mean loss, so that gradients summed
        over ranks are those of the mean over all samples."""
        return self.batch_size / self.global_size if self.global_size else 1.0


def padded_size(num: int) -> int:
    """The next of the sizes that lists are padded to, four of them from each power of two to the next:
    4, 5, 6, 7, 8, 10, 12, 14, 16, 20, .. Full batches of lists then have few sizes."""
    step = 1 << max(num.bit_length() - 3, 0)
    return -(-num // step) * step
