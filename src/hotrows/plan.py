"""All that ids alone decide about a batch: which rows it needs, who owns them, where they sit.

Made ahead of time, frozen, and obeyed by everything that touches a row. Within a pack, a lookup
returns M vectors, one per bag of ids:

    bag  0 .. B*F-1   the sparse features, sample after sample: bag b*F + f
         B*F ..       the sequence features, one bag per element, feature after feature

Equal rows stand in runs: `order` lists the ids by row, and those of rows[u] are
order[starts[u] : starts[u + 1]], in the order of the batch. Gradients are summed along the runs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor
from torch.nn import functional


@dataclass(frozen=True)
class PackPlan:
    """One pack's share of a plan.

    rows: [U] int64, the distinct rows of the pack that the batch reads, ascending.
    slots: [U] int64, the place of each of them in fast memory.
    inverse: [N] int32, rows[inverse[n]] is the row of id n.
    order: [N] int32, starts: [U + 1] int32, the runs of equal rows.
    bag_starts: [M + 1] int32, the ids of each bag; None: one id per bag, N = M.
    bags: [N] int32, the bag of each id; None likewise.
    weights: [N] float32, what each vector is multiplied with; None: 1.
    sequence_starts: first bag of each sequence feature and the end, per sample: {name: [B + 1] int64}.
    """

    rows: Tensor
    slots: Tensor
    inverse: Tensor
    order: Tensor
    starts: Tensor
    num_bags: int
    bag_starts: Tensor | None = None
    bags: Tensor | None = None
    weights: Tensor | None = None
    sequence_starts: dict[str, Tensor] | None = None

    @property
    def num_rows(self) -> int:
        """U, the number of distinct rows."""
        return self.rows.numel()

    def padded(self) -> PackPlan:
        """With as many rows as ids: row -1 is none, has slot 0 and an empty run.

        rows [3, 7], starts [0, 1, 3]  ->  rows [3, 7, -1], starts [0, 1, 3, 3]
        """
        num_ids, missing = self.inverse.numel(), self.inverse.numel() - self.num_rows
        return replace(
            self,
            rows=functional.pad(self.rows, (0, missing), value=-1),
            slots=functional.pad(self.slots, (0, missing)),
            starts=functional.pad(self.starts, (0, missing), value=num_ids),
        )


@dataclass(frozen=True)
class Moves:
    """What a batch brings into fast memory, and what leaves to make room: one group of packs' share.

    rows_in: [m] int64, ascending; slots_in: [m] int64, where each of them goes.
    rows_out: [e] int64, ascending; slots_out: [e] int64, where each of them is until then.
    passes_through: the batch has more rows than there are slots: it moves nothing, and rows without
        a slot (-1 in `PackPlan.slots`) are read from the store and written back around the update.
    """

    rows_in: Tensor
    slots_in: Tensor
    rows_out: Tensor
    slots_out: Tensor
    passes_through: bool = False


@dataclass(frozen=True)
class Answers:
    """How the rows of a group of packs travel between ranks, slice by slice.

    A rank looks up its rows once and sends each rank what it asked for; gradients take the same way
    back. The plan's own `inverse`, `order` and `starts` speak of these places:

        place  0 .. num_shared - 1     the rows that every rank holds and some rank's samples read
               num_shared ..           answers: of slice 0 to rank 0, to rank 1, .., of slice 1 ..

    shared: per slice, [A'] int64: the places of the shared rows that its samples read here.
    asked: per slice, how many rows each rank is asked for, P ints.
    given: per slice, how many answers each rank is given, P ints.
    travels: per slice, whether any rank asks another for anything.
    by_columns: every rank holds some columns of all rows: each asks all others for the same rows.
    """

    num_shared: int
    shared: tuple[Tensor, ...]
    asked: tuple[tuple[int, ...], ...]
    given: tuple[tuple[int, ...], ...]
    travels: tuple[bool, ...]
    by_columns: bool = False


@dataclass(frozen=True)
class Plan:
    """The plan of one batch on one rank.

    packs: one PackPlan per pack, in the order of the packing.
    step: the number of the update this batch will make, from 0; batch_size: B, of this rank.
    moves: one per group of packs that read the same rows; None: every row is resident.
    waits_for: the number of the batch, in the order of planning, that must have left the pipeline
        before a row of this one moves; -1: none.

    Between ranks, and where a batch is learned from in slices, `packs` speak of the rows in this
    rank's store that any rank's samples read, and there are:
    slices: plans of consecutive samples of the batch, whose rows are, in order, the answers of all
        ranks; answers: per pack, how these come about.
    global_size: samples of the batch on all ranks; 0: as many as here.
    wishes: what some rank asked for when this batch was planned; see `planning.routing`.
    on_host: the same plan in host memory, where this one is its copy on a device: the one to ask for
        sizes, which the device would have to be waited for. None for one made on the device.
    """

    packs: tuple[PackPlan, ...]
    step: int
    batch_size: int
    moves: tuple[Moves, ...] | None = None
    waits_for: int = -1
    slices: tuple[Plan, ...] = ()
    answers: tuple[Answers, ...] = ()
    global_size: int = 0
    wishes: int = 0
    on_host: Plan | None = None

    def padded(self) -> Plan:
        """With the packs padded, where every bag has one id; slices and lists stay as they are."""
        if self.slices:
            return self
        made = {id(of): of if of.bag_starts is not None else of.padded() for of in self.packs}
        return replace(self, packs=tuple(made[id(of)] for of in self.packs))

    @property
    def host(self) -> Plan:
        """The plan in host memory."""
        return self.on_host or self

    @property
    def share(self) -> float:
        """This rank's part of all samples: what its mean loss is multiplied with, so that gradients
        summed over ranks are those of the mean over all samples."""
        return self.batch_size / self.global_size if self.global_size else 1.0
