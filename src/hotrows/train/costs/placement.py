"""Sharding plan: how a run shards its tables over ranks and packs, by its data and its machine.

    plan = place(data, config, model, ranks, num_samples)     # collective; equal on all ranks
    Embedding.for_model(model, schema, ranks=ranks, sharding=plan.sharding, summed=plan.summed, ...)

This is the meaning of `auto` in a `TrainConfig`. The plan is written into the run, and read again when
the run is resumed on as many ranks, so that sums keep their order.
"""

from __future__ import annotations

import dataclasses
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from torch import Tensor

from hotrows.batch import Batch
from hotrows.data import EncodedData, Loader
from hotrows.dynamic import any_dynamic
from hotrows.engine.distributed.comm import Ranks, Seat
from hotrows.engine.planning import packing
from hotrows.engine.planning.planner import Planner
from hotrows.engine.planning.remote_pooling import summed_columns
from hotrows.engine.planning.sharding import MOST_RUNS, Placement, uniform
from hotrows.models import Model
from hotrows.models.nn.statistics import OverRanks
from hotrows.runtime.machine import total_memory
from hotrows.schema import is_list, vocabulary_of
from hotrows.train.config import TrainConfig
from hotrows.train.costs import workload
from hotrows.train.costs.choose_sharding import choose_sharding
from hotrows.train.costs.interleaving import OF_MEMORY, choose_micro_batches, choose_pack_parts
from hotrows.train.costs.machines import MACHINES
from hotrows.train.costs.measure_machine import kept_machine
from hotrows.train.costs.pack_sizes import balance, volume
from hotrows.train.costs.step_cost import Machine
from hotrows.train.costs.volumes import StepWork, TableLoad

_LONG = 20_000_000  # training samples of a run of minutes, which may spend seven seconds measuring
_STATED = "cpu-100g"  # machine of runs too short to measure
_MEASURED_BATCHES = 4


@dataclass(frozen=True)
class ShardingPlan:
    """Placements of the tables of a run, and the reasons for them.

    sharding: placement of each table; empty on one rank.
    summed: list features whose vectors are summed on the ranks that own their rows.
    pack_parts: number of packs for the tables of each set of equal attributes, in order.
    micro_batches: number of micro-batches where the config leaves it open; None: the config's.
    reasons: a sentence on each choice.
    shares: of the ranks in every batch from step `shares_from` on, as measured on these `machines`, by
        rank; (): they were not.
    """

    sharding: Mapping[str, Placement] = field(default_factory=dict)
    summed: tuple[str, ...] = ()
    pack_parts: tuple[int, ...] = (1,)
    reasons: tuple[str, ...] = ()
    micro_batches: int | None = None
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
        num = None if config.micro_batches else choice.micro_batches(sharding, machine)
        if config.pack_parts is None:
            parts = choice.pack_parts(sharding, machine, num or config.micro_batches)
        summed = choice.summed(sharding)
        plan = ShardingPlan(sharding, summed, parts, tuple(choice.reasons), num)
    return ranks.gather_objects(plan)[0]


class _Choice:
    """Chooses the parts of a sharding plan, and notes the reasons."""

    def __init__(self, data: EncodedData, config: TrainConfig, model: Model, ranks: Ranks) -> None:
        self.data, self.config, self.model, self.ranks = data, config, model, ranks
        self.tables = workload.stored_tables(model, config.table_dtype, config.row_optimizer)
        self.reasons: list[str] = []
        self._is_dynamic = any_dynamic(data.schema.id_features)
        self._has_counts = data.source is None and bool(data.vocabularies) and not self._is_dynamic

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

    def micro_batches(self, sharding: Mapping[str, Placement], machine: Machine) -> int:
        """How many micro-batches gain, as far as it can be predicted."""
        reason = self._nothing_to_hide()
        if any(isinstance(layer, OverRanks) for layer in self.model.modules()):
            reason = reason or "layers learn from statistics of the batch at hand"
        if reason:
            self.reasons.append(f"1 micro-batch: {reason}")
            return 1
        loads, step = self._work()
        placements = [sharding[load.name] for load in loads]
        memory = (1 - OF_MEMORY) / 2 * total_memory() / self._ranks_here()
        num, why = choose_micro_batches(machine, loads, placements, self.ranks.num_ranks, step, memory)
        self.reasons.append(why)
        return num

    def pack_parts(
        self, sharding: Mapping[str, Placement], machine: Machine, num_micro_batches: int
    ) -> tuple[int, ...]:
        """Into how many packs tables of equal attributes are dealt, as far as it can be predicted."""
        if reason := self._nothing_to_hide():
            self.reasons.append(f"one pack of tables of equal attributes: {reason}")
            return (1,)
        loads, step = self._work()
        step = dataclasses.replace(step, micro_batches=num_micro_batches)
        packs = packing.pack_tables(self.tables, self.model.sequences, sharding)
        volumes, tables = self._volumes(packs), [len(pack.tables) for pack in packs]
        parts, why = choose_pack_parts(
            machine, loads, [sharding[load.name] for load in loads], self.ranks.num_ranks, step,
            volumes, tables,
        )  # fmt: skip
        self.reasons.append(why)
        return parts

    def _nothing_to_hide(self) -> str:
        """Why exchanges need not, or cannot, be hidden behind work; empty: the cost model decides."""
        if self._ranks_here() == self.ranks.num_ranks:
            return "ranks of one machine exchange on the cores that they would hide behind"
        if self.config.device != "cpu":
            return "what a step costs on this device is not measured"
        return "" if self._has_counts else "the data has no counts of ids"

    def _ranks_here(self) -> int:
        """How many ranks share this machine."""
        return int(os.environ.get("LOCAL_WORLD_SIZE", self.ranks.num_ranks))

    def _work(self) -> tuple[Sequence[TableLoad], StepWork]:
        config = self.config
        assert config.batch_size is not None
        job = workload.of_data(
            self.data,
            self.model,
            row_optimizer=config.row_optimizer,
            table_dtype=config.table_dtype,
            batch_size=config.batch_size,
        )
        wire = 4 if config.wire_dtype == "float32" else 2
        num = max(config.micro_batches, 1)
        return job.loads, dataclasses.replace(job.step, wire_bytes=wire, micro_batches=num)

    def _by_cost(self, machine: Machine) -> dict[str, Placement]:
        num_ranks, (loads, step) = self.ranks.num_ranks, self._work()
        memory = OF_MEMORY * total_memory() / self._ranks_here()
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
        by_pack = [[(t.dim, float(sum(reads[n] for n in t.features))) for t in p.tables] for p in packs]
        return [volume(1.0, sizes) for sizes in by_pack]

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
        size = max(1, config.batch_size // num_ranks // max(config.micro_batches, 1))
        loader = Loader(self.data.parts["train"], size, shuffle=config.shuffle, seed=config.seed)
        return [batch.expanded() for batch in islice(loader.batches(0), _MEASURED_BATCHES)]

    def summed(self, sharding: Mapping[str, Placement]) -> tuple[str, ...]:
        """List features of which a rank requests fewer sums than rows in the first batches."""
        features, sequences = self.data.schema.id_features, self.model.sequences
        lists = [f.name for f in features if is_list(f) and f.name not in sequences]
        if not lists or self._is_dynamic:
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
