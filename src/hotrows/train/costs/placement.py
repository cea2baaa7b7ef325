"""Sharding plan: how a run shards its tables over ranks and packs, by its data and its machine.

    plan = place(data, config, model, ranks, num_samples)     # collective; equal on all ranks
    Embedding.for_model(model, schema, ranks=ranks, sharding=plan.sharding, summed=plan.summed, ...)

This is the meaning of `auto` in a `TrainConfig`. The plan is written into the run, and read again when
the run is resumed on as many ranks, so that sums keep their order.
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from torch import Tensor

from hotrows.batch import Batch
from hotrows.data import EncodedData, Loader
from hotrows.engine.distributed.comm import Ranks, Seat
from hotrows.engine.planning import packing
from hotrows.engine.planning.planner import Planner
from hotrows.engine.planning.remote_pooling import summed_columns
from hotrows.engine.planning.sharding import MOST_RUNS, Placement, uniform
from hotrows.models import Model
from hotrows.runtime.machine import total_memory
from hotrows.schema import is_list, vocabulary_of
from hotrows.train.config import TrainConfig
from hotrows.train.costs import workload
from hotrows.train.costs.choose_sharding import choose_sharding
from hotrows.train.costs.machines import MACHINES
from hotrows.train.costs.measure_machine import kept_machine
from hotrows.train.costs.step_cost import Machine
from hotrows.train.costs.volumes import StepWork, TableLoad

_LONG = 20_000_000  # training samples of a run of minutes, which may spend seven seconds measuring
_STATED = "cpu-100g"  # machine of runs too short to measure
_MEASURED_BATCHES = 4
_OF_MEMORY = 0.7  # share of memory that tables may take
_FAR_ABOVE = 1.5  # ratio of a pack's volume to the mean above which it is split


@dataclass(frozen=True)
class ShardingPlan:
    """Placements of the tables of a run, and the reasons for them.

    sharding: placement of each table; empty on one rank.
    summed: list features whose vectors are summed on the ranks that own their rows.
    pack_parts: number of packs for the tables of each set of equal attributes, in order.
    reasons: a sentence on each choice.
    shares: of the ranks in every batch from step `shares_from` on, as measured on these `machines`, by
        rank; (): they were not.
    """

    sharding: Mapping[str, Placement] = field(default_factory=dict)
    summed: tuple[str, ...] = ()
    pack_parts: tuple[int, ...] = (1,)
    reasons: tuple[str, ...] = ()
    shares: tuple[int, ...] = ()
    shares_from: int = 0
    machines: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        sharding = {name: placement.to_json() for name, placement in self.sharding.items()}
        return {**dataclasses.asdict(self), "sharding": sharding}


def place(
    data: EncodedData,
    config: TrainConfig,
    model: Model,
    ranks: Ranks,
    num_samples: int,
    popular: Mapping[str, Tensor] | None = None,
) -> ShardingPlan:
    """Chooses the sharding of a run; collective.

    num_samples: number of samples that the run will train on. popular: ids by vocabulary whose rows every
    rank is to have, those that regrouped data calls hot.
    """
    parts: tuple[int, ...] = (config.pack_parts or 1,)
    choice = _Choice(data, config, model, ranks)
    if config.pack_parts == 0:
        parts = choice.balanced_parts()
    if ranks.num_ranks == 1:
        return ShardingPlan(pack_parts=parts, reasons=tuple(choice.reasons))
    # Several: the first one chooses, by what its machine was measured to do
    machine = choice.machine(num_samples)
    plan = None
    if ranks.rank == 0:
        sharding = choice.sharding(machine)
        if popular is not None:
            sharding = choice.with_popular(sharding, popular)
        plan = ShardingPlan(sharding, choice.summed(sharding), parts, tuple(choice.reasons))
    return ranks.gather_objects(plan)[0]


class _Choice:
    """Chooses the parts of a sharding plan, and notes the reasons."""

    def __init__(self, data: EncodedData, config: TrainConfig, model: Model, ranks: Ranks) -> None:
        self.data, self.config, self.model, self.ranks = data, config, model, ranks
        self.tables = workload.stored_tables(model, config.table_dtype, config.row_optimizer)
        self.reasons: list[str] = []
        self._is_counted = not data.schema.dynamic_vocabularies
        self._has_counts = data.source is None and bool(data.vocabularies) and self._is_counted

    def machine(self, num_samples: int) -> Machine:
        """The machine of a rank: measured where the run is long enough to gain from it; collective."""
        if num_samples < _LONG:
            self.reasons.append(f"a short run: as for a machine of the kind {_STATED}, not measured")
            return MACHINES[_STATED]
        machine = kept_machine(self.ranks)
        link = machine.inner or machine.outer
        assert link is not None, "several ranks have a link"
        self.reasons.append(
            f"measured: copies {machine.memory_bandwidth / 1e9:.1f} GB/s, a row "
            f"{machine.row_seconds * 1e9:.1f} ns + {machine.row_bandwidth / 1e9:.1f} GB/s, between ranks "
            f"{link.latency * 1e6:.0f} us + {link.bandwidth / 1e9:.1f} GB/s"
        )
        return machine

    def sharding(self, machine: Machine) -> dict[str, Placement]:
        """The placement of each table."""
        config, kind = self.config, "rows"
        if config.sharding != "auto":
            self.reasons.append(f"all tables: {config.sharding}, as asked")
            kind = config.sharding
        elif not self._has_counts:
            self.reasons.append("all tables: ids dealt over all ranks; the data has no counts of ids")
        elif config.fast_memory is not None:
            self.reasons.append("all tables: ids dealt over all ranks, so that each cache has its share")
        else:
            kind = ""
        return uniform(kind, self.tables, self.ranks.num_ranks) if kind else self._by_cost(machine)

    def _ranks_here(self) -> int:
        """How many ranks share this machine."""
        return int(os.environ.get("LOCAL_WORLD_SIZE", self.ranks.num_ranks))

    def _work(self) -> tuple[Sequence[TableLoad], StepWork]:
        config = self.config
        job = workload.of_data(self.data, config, self.model)
        wire = 4 if config.wire_dtype == "float32" else 2
        step = dataclasses.replace(job.step, wire_bytes=wire, micro_batches=config.micro_batches)
        return job.loads, step

    def _by_cost(self, machine: Machine) -> dict[str, Placement]:
        num_ranks, (loads, step) = self.ranks.num_ranks, self._work()
        memory = _OF_MEMORY * total_memory() / self._ranks_here()
        choice = choose_sharding(loads, machine, num_ranks, step, memory - step.dense_bytes)
        self.reasons += choice.reasons
        return {load.name: place for load, place in zip(loads, choice.placements, strict=True)}

    def with_popular(
        self, sharding: dict[str, Placement], popular: Mapping[str, Tensor]
    ) -> dict[str, Placement]:
        """Replicates the hot rows of regrouped data, so that all-hot batches exchange no row."""
        vocabularies = {feature.name: vocabulary_of(feature) for feature in self.data.schema.id_features}
        self.reasons.append("hot rows of regrouped data: on every rank")
        changed = dict(sharding)
        for table in self.tables:
            ids = popular.get(vocabularies.get(table.features[0], ""))
            place = sharding[table.name]
            if ids is not None and len(ids) and not place.columns:
                changed[table.name] = placed = place.with_hot(ids, table.rows)
                if placed.hot < len(ids):
                    self.reasons.append(
                        f"table {table.name}: {placed.hot:,} of {len(ids):,} hot rows on every rank, "
                        f"the longest {MOST_RUNS:,} runs of ids"
                    )
        return changed

    def balanced_parts(self) -> tuple[int, ...]:
        """Number of even parts of each pack, by the volumes that the first batches read."""
        packs = packing.pack_tables(self.tables, self.model.sequences)
        parts = balance(self._volumes(packs))
        for pack, num in zip(packs, parts, strict=True):
            if num > 1:
                self.reasons.append(f"{pack.name}: far more volume than the mean, in {num} parts")
        return parts

    def _volumes(self, packs: Sequence[packing.Pack]) -> list[float]:
        """Numbers that the first batches read of each pack."""
        reads = self._reads()
        tables = [[(t.dim, sum(reads[n] for n in t.features)) for t in pack.tables] for pack in packs]
        return [float(sum(dim * num for dim, num in of_pack)) for of_pack in tables]

    def _reads(self) -> Counter[str]:
        """Number of ids of each feature in the first batches."""
        num_ids: Counter[str] = Counter()
        for batch in self._first_batches():
            for f, name in enumerate(batch.features):
                first = f * batch.size
                num = batch.size
                if batch.offsets is not None:
                    num = int(batch.offsets[first + batch.size] - batch.offsets[first])
                num_ids[name] += num
        return num_ids

    def _first_batches(self, num_ranks: int = 1) -> list[Batch]:
        config = self.config
        assert config.batch_size is not None
        size = max(1, config.batch_size // num_ranks // config.micro_batches)
        loader = Loader(self.data.parts["train"], size, shuffle=config.shuffle, seed=config.seed)
        return [batch.expanded() for batch in islice(loader.batches(0), _MEASURED_BATCHES)]

    def summed(self, sharding: Mapping[str, Placement]) -> tuple[str, ...]:
        """List features of which a rank requests fewer sums than rows in the first batches."""
        features, sequences = self.data.schema.id_features, self.model.sequences
        lists = [f.name for f in features if is_list(f) and f.name not in sequences]
        if not (lists and self._is_counted):
            return ()
        packs = packing.pack_tables(self.tables, sequences, sharding)
        num_ranks = self.ranks.num_ranks
        planner = Planner(packs, self.data.schema.pooling, ranks=Seat(0, num_ranks))
        rows, sums = dict.fromkeys(lists, 0), dict.fromkeys(lists, 0)
        for batch in self._first_batches(num_ranks):
            for p, pack in enumerate(packs):
                for name in lists:
                    if summed_columns(pack, [name]):
                        num_rows, num_sums = planner.volumes(p, batch, name)
                        rows[name] += num_rows * pack.dim
                        sums[name] += num_sums * pack.dim
        chosen = tuple(name for name in lists if sums[name] < rows[name])
        for name in lists:
            batches = _MEASURED_BATCHES
            self.reasons.append(
                f"feature {name}: {'sums' if name in chosen else 'rows'} travel; a batch asks for "
                f"{rows[name] // batches:,} numbers of rows or {sums[name] // batches:,} of sums"
            )
        return chosen


def balance(volumes: Sequence[float]) -> tuple[int, ...]:
    """Number of even parts of each pack: ceil(volume / mean) for one far above the mean (PICASSO)."""
    if not volumes or sum(volumes) <= 0:
        return (1,) * len(volumes)
    mean = sum(volumes) / len(volumes)
    return tuple(math.ceil(v / mean) if v > _FAR_ABOVE * mean else 1 for v in volumes)
