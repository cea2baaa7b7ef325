"""Planner: a batch's ids to its Plan, through packing alone; never reads a row's value.

Packs whose tables have equal sizes and readers (the vectors and the linear weights of the same
features, say) read equal row numbers, so one PackPlan serves them all.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from hotrows import ops
from hotrows.batch import Batch, NewIds, split
from hotrows.engine.distributed.comm import OneRank, Ranks
from hotrows.engine.planning import shared_features
from hotrows.engine.planning.crosses import append_crosses
from hotrows.engine.planning.packing import Pack
from hotrows.engine.planning.remote_pooling import RowsAndSums, summed_columns, with_sums
from hotrows.engine.planning.routing import route
from hotrows.engine.planning.sharding import Sharding
from hotrows.engine.planning.shared_features import Bags
from hotrows.engine.planning.threads import Threads
from hotrows.ops.plan import NewRows, PackPlan, Plan
from hotrows.runtime.shapes import Float32, Int32, Int64
from hotrows.table import Cross


class Planner:
    """Makes plans for one packing.

    packs: the packing. pooling: `sum` or `mean` by feature; `sum` where a feature is not named.
    crosses: features that are made of a batch's ids and read by tables like its own features.
    ranks: the ranks that plan together, on a channel of their own. micro_batches: number of
        micro-batches in which a batch is trained. With several of either, `plan` is collective.
    summed: list features whose vectors are summed on the ranks that own the rows (`remote_pooling`).
    threads: plan groups of packs in parallel; None: the caller's thread alone.
    shares: whether what samples of a request share is looked up once, where no features are crossed; else
        batches are expanded.
    """

    def __init__(
        self,
        packs: Sequence[Pack],
        pooling: Mapping[str, str] | None = None,
        crosses: Sequence[Cross] = (),
        ranks: Ranks | None = None,
        micro_batches: int = 1,
        summed: Collection[str] = (),
        threads: Threads | None = None,
        shares: bool = True,
    ) -> None:
        self.packs = tuple(packs)
        self.pooling = dict(pooling or {})
        self.crosses = tuple(crosses)
        self.ranks = ranks or OneRank()
        self.micro_batches = micro_batches
        self.summed = frozenset(summed)
        self._threads = threads or Threads()
        self._shares = shares and not self.crosses
        self._reads: dict[tuple[tuple[str, ...], frozenset[str]], list[Reads]] = {}
        self._shardings = [pack.sharding(self.ranks.num_ranks) for pack in self.packs]
        if self.routes:
            _check_numbers(self.packs, self.ranks)

    @property
    def routes(self) -> bool:
        """True if rows are exchanged: between ranks, or micro-batch by micro-batch."""
        return self.ranks.num_ranks > 1 or self.micro_batches > 1

    def plan(self, batch: Batch, step: int = 0, signals: int = 0) -> Plan:
        """The plan of a batch; ValueError names the feature, value and sample of an id outside.

        signals: `RankSignals` of this rank; the plan has those of all ranks.
        """
        batch = self._taken(batch)
        plan = self._plan(batch, step, signals)
        return replace(plan, new_rows=self._new_rows(batch)) if batch.new_ids else plan

    def _taken(self, batch: Batch) -> Batch:
        """The batch as it is planned, with its crosses."""
        return append_crosses(batch if self._shares else batch.expanded(), self.crosses)

    def _plan(self, batch: Batch, step: int, signals: int) -> Plan:
        reads = self._reads_of_halves(batch)
        groups = list(dict.fromkeys(map(_signature, reads)))
        group_of_pack = [groups.index(_signature(pack_reads)) for pack_reads in reads]
        leaders = [group_of_pack.index(g) for g in range(len(groups))]
        micro_batches = split(batch, self.micro_batches)
        planned = [
            self._threads.map(partial(self._plan_pack, reads, part), leaders) for part in micro_batches
        ]
        bags = [[of_groups[g][1] for g in group_of_pack] for of_groups in planned]
        if not self.routes:
            packs = tuple(planned[0][g][0] for g in group_of_pack)
            plan = Plan(packs, step, batch.size, signals=signals)
            return shared_features.with_requests(plan, batch, bags[0])
        read = [
            [
                self._with_sums(self.summed, part, p, pack)
                for p, (pack, _) in zip(leaders, packs, strict=True)
            ]
            for part, packs in zip(micro_batches, planned, strict=True)
        ]
        sizes = [part.size for part in micro_batches]
        shardings = [self._shardings[p] for p in leaders]
        plan = route(read, sizes, shardings, group_of_pack, self.ranks, step, signals)
        parts = zip(plan.micro_batches, micro_batches, bags, strict=True)
        return replace(plan, micro_batches=tuple(shared_features.with_requests(*part) for part in parts))

    def rows(self, batch: Batch) -> list[Tensor]:
        """The rows that a batch needs, [N] int64 with repeats, for each group of packs: a look ahead.

        Groups come in the order of `packing.group_packs`. Ids are checked as by `plan`.
        """
        assert not self.routes, "between ranks, rows are those of a plan: see `rows_of`"
        batch = self._taken(batch)
        leaders = {_signature(pack_reads): pack_reads for pack_reads in self._reads_of_halves(batch)}
        halves = shared_features.halves(batch)

        def of_group(reads: tuple[Reads, ...]) -> Tensor:
            pairs = zip(reads, halves, strict=True)
            rows = [_resolve(r, half.batch, half.starts)[0] for r, half in pairs]
            return rows[0] if len(rows) == 1 else torch.cat(rows)

        rows = self._threads.map(of_group, list(leaders.values()))
        return with_new(rows, self._new_rows(batch) if batch.new_ids else ())

    def rows_of(self, plan: Plan) -> list[Tensor]:
        """The rows that a plan needs, for each group of packs."""
        rows = [pack.rows for pack in {id(pack): pack for pack in plan.packs}.values()]
        return with_new(rows, plan.new_rows)

    def _new_rows(self, batch: Batch) -> tuple[NewRows, ...]:
        """The rows of every group's tables that stand for new keys, whichever features read them."""
        reads = self.reads_of(batch.features)
        leaders = {r.signature: pack for r, pack in zip(reads, self.packs, strict=True)}
        return tuple(_new_rows_of(pack, batch.new_ids or (), self.ranks) for pack in leaders.values())

    def volumes(self, p: int, batch: Batch, feature: str) -> tuple[int, int]:
        """The distinct rows that a list feature reads of pack p, and the sums that would replace them."""
        plan, _ = self._plan_pack(self._reads_of_halves(batch), batch, p)
        _, sums = self._with_sums([feature], batch, p, plan)
        return (0, 0) if sums is None else (len(sums.rows.unique()), len(sums.lengths))

    def reads_of(self, features: tuple[str, ...], others: Collection[str] = ()) -> list[Reads]:
        """The reads of each pack of a batch with these features; computed once for a run.

        others: features that packs read of another batch.
        """
        key = features, frozenset(others)
        if key not in self._reads:
            num_ranks = self.ranks.num_ranks
            self._reads[key] = [_reads(pack, *key, num_ranks) for pack in self.packs]
        return self._reads[key]

    def _reads_of_halves(self, batch: Batch) -> list[tuple[Reads, ...]]:
        """The ids that each pack reads of samples and, where these share features, of requests."""
        reads = [
            self.reads_of(half.batch.features, half.others) for half in shared_features.halves(batch)
        ]
        return list(zip(*reads, strict=True))

    def _with_sums(self, summed: Collection[str], batch: Batch, p: int, plan: PackPlan) -> RowsAndSums:
        """The distinct rows that samples read of pack p, and the sums that features `summed` request."""
        if batch.requests is not None:
            return plan, None
        pack, sharding = self.packs[p], self._shardings[p]
        columns = summed_columns(pack, summed)
        return with_sums(plan, sharding, columns, len(pack.columns), batch.size)

    def _plan_pack(
        self, reads: Sequence[tuple[Reads, ...]], batch: Batch, p: int
    ) -> tuple[PackPlan, tuple[Bags, ...]]:
        """The plan of pack p, and its bags: of samples, and of requests where these share features."""
        if len(reads[p]) == 1 and batch.offsets is None and reads[p][0].has_columns_alone:
            return self._plan_columns(reads[p][0], batch), ()
        pairs = zip(reads[p], shared_features.halves(batch), strict=True)
        bags = tuple(self._bags(of_half, half.batch, half.starts) for of_half, half in pairs)
        return shared_features.plan_of(bags), bags

    def _plan_columns(self, reads: Reads, batch: Batch) -> PackPlan:
        """The plan of a pack that reads one id of each sample and column."""
        *runs, bad = ops.unique_of_columns(
            batch.ids, batch.size, reads.features, reads.first_rows, reads.num_rows
        )
        if bad >= 0:
            raise outside(bad, reads, batch)
        weights = None if batch.weights is None else _by_bag(batch.weights, reads, batch.size)
        distinct, inverse, order, starts = runs  # [U], [N], [N], [U + 1]
        return PackPlan(distinct, distinct, inverse, order, starts, inverse.numel(), weights=weights)

    def _bags(self, reads: Reads, batch: Batch, starts: Tensor | None = None) -> Bags:
        """The bags that a pack has of a batch. starts: first samples of requests, where it is of them."""
        rows, source, bag_starts = _resolve(reads, batch, starts)  # [N], [N], [M + 1]
        single = batch.offsets is None
        bags = None if single else ops.reference.bags_of(bag_starts).int()  # [N]
        return Bags(
            rows=rows,
            num_bags=rows.numel() if single else bag_starts.numel() - 1,
            bag_starts=None if single else bag_starts,
            bags=bags,
            weights=self._weights(reads, batch, source, bag_starts, bags),
            sequence_starts=_sequence_starts(reads, batch),
        )

    def _weights(
        self,
        reads: Reads,
        batch: Batch,
        source: Int64[Tensor, "_"],
        bag_starts: Int32[Tensor, "_"],
        bags: Int32[Tensor, "N"] | None,
    ) -> Float32[Tensor, "N"] | None:
        """The user's weights, times 1 / length in the bags that are averaged."""
        if bags is None:
            return None if batch.weights is None else _by_bag(batch.weights, reads, batch.size)
        weights = None if batch.weights is None else batch.weights[source]  # [N]
        means = [self.pooling.get(name) == "mean" for name in reads.names[: reads.num_columns]]
        if any(means):
            lengths = bag_starts.diff().clamp(min=1).float()  # [M]
            scale = torch.ones_like(lengths)  # [M]
            pooled = len(means) * batch.size
            averaged = torch.tensor(means).repeat(batch.size)  # [B * F]
            scale[:pooled] = torch.where(averaged, 1 / lengths[:pooled], 1.0)
            mean_weights = scale[bags.long()]  # [N]
            weights = mean_weights if weights is None else weights * mean_weights
        return weights


@dataclass(frozen=True)
class Reads:
    """The ids that a pack reads of a batch: K columns and sequences, each of a feature and a table.

    signature: equal for packs that read equal row numbers.
    features: positions in the batch; first_rows, num_rows: of the table that each reads.
    routes: [K, 4 + P], where the rows of each table are among ranks; None: all in this process.
    scattered: numbers the rows among ranks instead of routes, where hot ids are not the first ones.
    """

    names: tuple[str, ...]
    features: Int64[Tensor, "K"]
    first_rows: Int64[Tensor, "K"]
    num_rows: Int64[Tensor, "K"]
    num_columns: int
    signature: tuple[Any, ...]
    routes: Int64[Tensor, "K _"] | None = None
    scattered: Sharding | None = None

    @property
    def has_columns_alone(self) -> bool:
        """True if all it reads are columns of tables in this process, of 2^32 rows at most."""
        alone = self.num_columns == len(self.names) > 0 and self.routes is None and self.scattered is None
        return alone and int(self.num_rows.max()) <= 2**32


def _signature(reads: tuple[Reads, ...]) -> tuple[Any, ...]:
    """Equal for packs that read equal row numbers, of samples and of requests."""
    return tuple(of_half.signature for of_half in reads)


def leaders_of(reads: Sequence[Reads]) -> dict[tuple[Any, ...], Reads]:
    """By signature, one of the packs that read equal rows, in order of appearance."""
    return {pack_reads.signature: pack_reads for pack_reads in reads}


def with_new(rows: Sequence[Tensor], new_rows: Sequence[NewRows]) -> list[Tensor]:
    """The rows of each group, followed by those that stand for new keys."""
    if not new_rows:
        return list(rows)
    return [torch.cat([read, new.rows]) for read, new in zip(rows, new_rows, strict=True)]


def _check_numbers(packs: Sequence[Pack], ranks: Ranks) -> None:
    """Raises ValueError where the rows of a rank are too many for the numbers that ranks exchange."""
    for pack in packs:
        if pack.shard(ranks.rank, ranks.num_ranks).rows >= 2**31:
            names = ", ".join(table.name for table in pack.tables)
            raise ValueError(
                f"tables {names} may have 2^31 rows and more on a rank, which are not exchanged between "
                f"ranks or micro-batches; give dynamic features a capacity, or start more ranks"
            )


def _new_rows_of(pack: Pack, new_ids: Sequence[NewIds], ranks: Ranks) -> NewRows:
    """Selects the new ids whose rows this rank stores, as its store numbers them."""
    none = torch.empty(0, dtype=torch.int64)
    rows, keys = [none], [none]
    of_features = {feature: new for new in new_ids for feature in new.features}
    for table, first_row in zip(pack.tables, pack.first_rows, strict=False):
        new = of_features.get(table.features[0])
        if new is not None:
            rows.append(new.ids + first_row)
            keys.append(new.keys)
    all_rows, all_keys = torch.cat(rows), torch.cat(keys)
    if ranks.num_ranks > 1:
        all_rows, places = pack.sharding(ranks.num_ranks).local_rows(all_rows, ranks.rank)
        all_keys = all_keys[places]
    return NewRows(all_rows, all_keys, all_rows)


def _reads(pack: Pack, features: tuple[str, ...], others: Collection[str], num_ranks: int) -> Reads:
    columns = [read for read in pack.columns if read[0] not in others]
    reads = columns + [read for read in pack.sequences if read[0] not in others]
    names = tuple(feature for feature, _ in reads)
    absent = sorted(set(names) - set(features))
    if absent:
        raise ValueError(f"the model reads features {absent}, but the batch has only {list(features)}")
    place = {name: position for position, name in enumerate(features)}
    positions = [place[name] for name in names]
    first_rows = [pack.first_rows[table] for _, table in reads]
    num_rows = [pack.tables[table].rows for _, table in reads]
    sharding = pack.sharding(num_ranks)
    routed = num_ranks > 1 and not sharding.columns
    scattered = routed and sharding.has_runs
    return Reads(
        names=names,
        features=torch.tensor(positions, dtype=torch.int64),
        first_rows=torch.tensor(first_rows, dtype=torch.int64),
        num_rows=torch.tensor(num_rows, dtype=torch.int64),
        num_columns=len(columns),
        signature=(*map(tuple, (positions, first_rows, num_rows)), len(columns), pack.placements),
        routes=sharding.routes()[[table for _, table in reads]] if routed and not scattered else None,
        scattered=sharding if scattered else None,
    )


def _resolve(
    reads: Reads, batch: Batch, starts: Tensor | None = None
) -> tuple[Int64[Tensor, "N"], Int64[Tensor, "_"], Int32[Tensor, "_"]]:
    """Rows, their places in `batch.ids` and bags [M + 1]; ValueError for an id outside.

    Places and bags are empty where every bag has one id.
    """
    rows, source, bag_starts, bad = ops.resolve(
        batch.ids, batch.offsets, batch.size,
        reads.features, reads.first_rows, reads.num_rows, reads.num_columns, reads.routes,
    )  # fmt: skip
    if int(bad) >= 0:
        raise outside(int(bad), reads, batch, source, starts)
    if reads.scattered is not None:
        rows = reads.scattered.rows_among_ranks(rows)
    return rows, source, bag_starts


def _sequence_starts(reads: Reads, batch: Batch) -> dict[str, Tensor] | None:
    """The first of each sample's elements among all, by sequence feature: [B + 1]."""
    if reads.num_columns == len(reads.names):
        return None
    starts_by_name = {}
    for k in range(reads.num_columns, len(reads.names)):
        if batch.offsets is None:
            starts = torch.arange(batch.size + 1)
        else:
            begin = int(reads.features[k]) * batch.size
            starts = batch.offsets[begin : begin + batch.size + 1] - batch.offsets[begin]
        starts_by_name[reads.names[k]] = starts
    return starts_by_name


def _by_bag(
    per_id: Float32[Tensor, "_"], reads: Reads, batch_size: int
) -> Float32[Tensor, "{len(reads.names)}*{batch_size}"]:
    picked = per_id.view(-1, batch_size)[reads.features]  # [K, B]
    columns, sequences = picked[: reads.num_columns], picked[reads.num_columns :]
    return torch.cat([columns.t().reshape(-1), sequences.reshape(-1)])  # [N]


def outside(
    n: int, reads: Reads, batch: Batch, source: Tensor | None = None, starts: Tensor | None = None
) -> ValueError:
    """The error for an id that its table does not hold. n, source: the results of `ops.resolve`; starts:
    the first sample of each request, where the batch is of requests."""
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
        place = int(source[n])
        bag = int(torch.searchsorted(batch.offsets, place, right=True)) - 1
        feature, sample = divmod(bag, batch.size)
        k = reads.features.tolist().index(feature)
        value = batch.ids[place]
    sample = sample if starts is None else int(starts[sample])
    return ValueError(
        f"feature {reads.names[k]!r} has id {int(value):,} in sample "
        f"{batch.first_sample + sample:,}, but its table holds ids 0 to {int(reads.num_rows[k]) - 1:,}; "
        f"map unseen values to an unknown id when preparing the data, or declare more rows"
    )
