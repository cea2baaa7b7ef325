"""Planner: a batch's ids to its Plan, through packing alone; never reads a row's value.

Packs whose tables have the same sizes and readers (the vectors and the linear weights of the same
features, say) ask for the same row numbers, so one PackPlan serves them all.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from hotrows import ops
from hotrows.batch import Batch, split
from hotrows.plan import PackPlan, Plan
from hotrows.planning.crosses import append_crosses
from hotrows.planning.packing import Pack
from hotrows.planning.routing import route
from hotrows.planning.summing import Sums, summed_columns, with_sums
from hotrows.planning.threads import Threads
from hotrows.ranks import OneRank, Ranks
from hotrows.schema import Cross


class Planner:
    """Makes plans for one packing.

    packs: the packing. pooling: `sum` or `mean` by feature; `sum` where a feature is not named.
    crosses: features that tables read beside those of a batch, made of its ids.
    ranks: those that plan together, on a channel of their own; num_slices: in how many parts a batch
        is learned from. summed: list features whose vectors are summed where their rows are, rank by
        rank, in place of rows that travel. With several of either, `plan` and `rows` are collective.
    threads: those that plan packs side by side; None: the caller alone.
    """

    def __init__(
        self,
        packs: Sequence[Pack],
        pooling: Mapping[str, str] | None = None,
        crosses: Sequence[Cross] = (),
        ranks: Ranks | None = None,
        num_slices: int = 1,
        summed: Collection[str] = (),
        threads: Threads | None = None,
    ) -> None:
        self._threads = threads or Threads()
        self.summed = frozenset(summed)
        self.packs = tuple(packs)
        self.pooling = dict(pooling or {})
        self.crosses = tuple(crosses)
        self.num_slices = num_slices
        self.ranks = ranks or OneRank()
        self._reads: dict[tuple[str, ...], list[Reads]] = {}

    @property
    def routes(self) -> bool:
        """Whether rows travel: between ranks, or slice by slice."""
        return self.ranks.num_ranks > 1 or self.num_slices > 1

    def plan(self, batch: Batch, step: int = 0, wishes: int = 0) -> Plan:
        """The plan of a batch; ValueError names the feature, value and sample of an id outside.

        wishes: what this rank asks of all, bits; the plan has those of all ranks.
        """
        if self.routes:
            return self._plan_routed(batch, step, wishes)
        batch = append_crosses(batch, self.crosses)
        plans = self._plan_packs(batch)
        return Plan(packs=plans, step=step, batch_size=batch.size, wishes=wishes)

    def rows(self, batch: Batch) -> list[Tensor]:
        """The rows that a batch reads, [N] int64 with repeats, for each group of packs: a look ahead.

        Groups come in the order of `packing.group_packs`. Ids are checked as `plan` checks them.
        """
        assert not self.routes, "between ranks, rows are those of a plan: see `rows_of`"
        batch = append_crosses(batch, self.crosses)
        reads = leaders_of(self.reads_of(batch.features))
        return self._threads.map(lambda of: self._resolve(of, batch)[0], list(reads.values()))

    def rows_of(self, plan: Plan) -> list[Tensor]:
        """The distinct rows that a plan reads, for each group of packs."""
        return [part.rows for part in {id(part): part for part in plan.packs}.values()]

    def _plan_packs(self, batch: Batch) -> tuple[PackPlan, ...]:
        """One for each pack; packs that read the same rows have the same one."""
        every = self.reads_of(batch.features)
        leaders = leaders_of(every)
        plans = self._threads.map(lambda of: self._plan_pack(of, batch), list(leaders.values()))
        made = dict(zip(leaders, plans, strict=True))
        return tuple(made[reads.signature] for reads in every)

    def _plan_routed(self, batch: Batch, step: int, wishes: int) -> Plan:
        batch = append_crosses(batch, self.crosses)
        parts = split(batch, self.num_slices)
        signatures = [reads.signature for reads in self.reads_of(batch.features)]
        leaders = [signatures.index(signature) for signature in dict.fromkeys(signatures)]
        group_of = [leaders.index(signatures.index(signature)) for signature in signatures]
        shardings = [self.packs[p].sharding(self.ranks.num_ranks) for p in leaders]
        asked = [self._threads.map(partial(self._asked, batch=of), leaders) for of in parts]
        routed = route(asked, shardings, self.ranks, batch.size, step, wishes)
        slices = [
            Plan(
                tuple(found[g][0] for g in group_of), routed.step, of.size, global_size=routed.size
            )
            for found, of in zip(asked, parts, strict=True)
        ]
        return Plan(
            packs=tuple(routed.served[g] for g in group_of),
            step=routed.step,
            batch_size=batch.size,
            slices=tuple(slices),
            answers=tuple(routed.answers[g] for g in group_of),
            global_size=routed.size,
            wishes=routed.wishes,
        )

    def volumes(self, p: int, batch: Batch, feature: str) -> tuple[int, int]:
        """What samples ask of a pack for a list feature: how many distinct rows, or else sums."""
        part = self._plan_pack(self.reads_of(batch.features)[p], batch)
        pack, sharding = self.packs[p], self.packs[p].sharding(self.ranks.num_ranks)
        columns = summed_columns(pack, [feature])
        _, sums = with_sums(part, sharding, columns, len(pack.columns), batch.size)
        return (0, 0) if sums is None else (len(sums.rows.unique()), len(sums.lengths))

    def _asked(self, p: int, batch: Batch) -> tuple[PackPlan, Sums | None]:
        """What samples read of a pack: distinct rows, and sums where features ask for these."""
        part = self._plan_pack(self.reads_of(batch.features)[p], batch)
        pack, sharding = self.packs[p], self.packs[p].sharding(self.ranks.num_ranks)
        columns = summed_columns(pack, self.summed)
        return with_sums(part, sharding, columns, len(pack.columns), batch.size)

    def reads_of(self, features: tuple[str, ...]) -> list[Reads]:
        """Where each pack finds its features in a batch: the same for every batch of a run."""
        if features not in self._reads:
            num_ranks = self.ranks.num_ranks
            self._reads[features] = [_reads(pack, features, num_ranks) for pack in self.packs]
        return self._reads[features]

    def _resolve(self, reads: Reads, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        rows, source, bag_starts, bad = ops.resolve(
            batch.ids, batch.offsets, batch.size, reads.features, reads.first_rows,
            reads.num_rows, reads.num_columns, reads.routes,
        )  # fmt: skip
        if int(bad) >= 0:
            raise outside(int(bad), reads, batch, source)
        return rows, source, bag_starts

    def _plan_pack(self, reads: Reads, batch: Batch) -> PackPlan:
        rows, source, bag_starts = self._resolve(reads, batch)
        distinct, inverse, order, starts = ops.unique(rows)
        single = batch.offsets is None
        bags = None if single else ops.reference.bags_of(bag_starts).int()
        return PackPlan(
            rows=distinct,
            slots=distinct,  # every row is resident: its slot is its row
            inverse=inverse,
            order=order,
            starts=starts,
            num_bags=rows.numel() if single else bag_starts.numel() - 1,
            bag_starts=None if single else bag_starts,
            bags=bags,
            weights=self._weights(reads, batch, source, bag_starts, bags),
            sequence_starts=_sequence_starts(reads, batch),
        )

    def _weights(
        self, reads: Reads, batch: Batch, source: Tensor, bag_starts: Tensor, bags: Tensor | None
    ) -> Tensor | None:
        """[N] float32: the user's weights, times 1 / length in the bags that are averaged."""
        given = batch.weights
        if bags is None:
            return None if given is None else _by_bag(given, reads, batch.size)
        weights = None if given is None else given[source]
        means = [self.pooling.get(name) == "mean" for name in reads.names[: reads.num_columns]]
        if any(means):
            lengths = bag_starts.diff().clamp(min=1).float()
            scale = torch.ones_like(lengths)
            pooled = len(means) * batch.size
            averaged = torch.tensor(means).repeat(batch.size)
            scale[:pooled] = torch.where(averaged, 1 / lengths[:pooled], 1.0)
            mean_weights = scale[bags.long()]
            weights = mean_weights if weights is None else weights * mean_weights
        return weights


@dataclass(frozen=True)
class Reads:
    """What a pack reads of a batch: for each column, then each sequence, its feature and table.

    routes: [K, 4 + P], where the rows of that table are among ranks; None: all of them here.
    """

    names: tuple[str, ...]
    features: Tensor  # [K] position in the batch
    first_rows: Tensor  # [K]
    num_rows: Tensor  # [K]
    num_columns: int
    signature: tuple
    routes: Tensor | None = None


def leaders_of(every: Sequence[Reads]) -> dict[tuple, Reads]:
    """By signature, one of those that read the same rows, in order of appearance."""
    return {of.signature: of for of in every}


def _reads(pack: Pack, features: tuple[str, ...], num_ranks: int) -> Reads:
    reads = pack.columns + pack.sequences
    names = tuple(feature for feature, _ in reads)
    absent = sorted(set(names) - set(features))
    if absent:
        raise ValueError(
            f"the model reads features {absent}, but the batch has only {list(features)}"
        )
    positions = [features.index(name) for name in names]
    first_rows = [pack.first_rows[table] for _, table in reads]
    num_rows = [pack.tables[table].rows for _, table in reads]
    sharding = pack.sharding(num_ranks)
    routed = num_ranks > 1 and not sharding.columns
    routes = sharding.routes()[[table for _, table in reads]] if routed else None
    return Reads(
        names=names,
        features=torch.tensor(positions, dtype=torch.int64),
        first_rows=torch.tensor(first_rows, dtype=torch.int64),
        num_rows=torch.tensor(num_rows, dtype=torch.int64),
        num_columns=len(pack.columns),
        signature=(
            tuple(positions),
            tuple(first_rows),
            tuple(num_rows),
            len(pack.columns),
            pack.placements,
        ),
        routes=routes,
    )


def _sequence_starts(reads: Reads, batch: Batch) -> dict[str, Tensor] | None:
    """The first bag of each sample's elements, by sequence feature: [B + 1]."""
    if reads.num_columns == len(reads.names):
        return None
    found, first = {}, reads.num_columns * batch.size
    for k in range(reads.num_columns, len(reads.names)):
        if batch.offsets is None:
            starts = torch.arange(batch.size + 1)
        else:
            at = int(reads.features[k]) * batch.size
            starts = batch.offsets[at : at + batch.size + 1] - batch.offsets[at]
        found[reads.names[k]] = starts + first
        first += int(starts[-1])
    return found


def _by_bag(per_id: Tensor, reads: Reads, batch_size: int) -> Tensor:
    picked = per_id.view(-1, batch_size)[reads.features]
    columns, sequences = picked[: reads.num_columns], picked[reads.num_columns :]
    return torch.cat([columns.t().reshape(-1), sequences.reshape(-1)])


def outside(n: int, reads: Reads, batch: Batch, source: Tensor | None = None) -> ValueError:
    """The message for an id that its table does not hold. n, source: as `ops.resolve` gives them."""
    if batch.offsets is None:
        pooled = reads.num_columns * batch.size
        k, sample = (
            (n % reads.num_columns, n // reads.num_columns)
            if n < pooled
            else (reads.num_columns + (n - pooled) // batch.size, (n - pooled) % batch.size)
        )
        value = batch.ids[int(reads.features[k]) * batch.size + sample]
    else:
        assert source is not None
        at = int(source[n])
        bag = int(torch.searchsorted(batch.offsets, at, right=True)) - 1
        feature, sample = divmod(bag, batch.size)
        k = reads.features.tolist().index(feature)
        value = batch.ids[at]
    return ValueError(
        f"feature {reads.names[k]!r} has id {int(value):,} in sample "
        f"{batch.first_sample + sample:,}, but its table holds ids 0 to {int(reads.num_rows[k]) - 1:,}; "
        f"map unseen values to an unknown id when preparing the data, or declare more rows"
    )
