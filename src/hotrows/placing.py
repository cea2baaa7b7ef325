"""Placing: how a run deals its tables over ranks and packs, chosen from its data and its machine.

    placing = place(data, config, model, ranks, num_samples)     # collective; the same on all ranks
    Embedding.of(model, schema, ranks=ranks, sharding=placing.sharding, summed=placing.summed, ...)

What `auto` means in a `TrainConfig`. The choice is written into the run, and read again when the run
goes on with as many ranks: sums then keep their order.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from hotrows import shapes
from hotrows.batch import Batch
from hotrows.config import TrainConfig
from hotrows.data import EncodedData, Loader
from hotrows.data.profile import Profile
from hotrows.measure import measure
from hotrows.models import Model
from hotrows.planning import packing
from hotrows.planning.balance import balance, volume
from hotrows.planning.cost import Machine
from hotrows.planning.machines import MACHINES
from hotrows.planning.planner import Planner
from hotrows.planning.sharding import Placement, uniform
from hotrows.planning.sharding_choice import choose
from hotrows.planning.summing import summed_columns
from hotrows.ranks import OneRank, Ranks
from hotrows.schema import Table, is_list, vocabulary_of

_LONG = 20_000_000  # training samples: some minutes, of which seven seconds may go to measurements
_OF_MEMORY = 0.7  # what tables may take
_STATED = "cpu-100g"  # where a run is too short to measure in
_MEASURED_BATCHES = 4


@dataclass(frozen=True)
class Placing:
    """What was chosen, and why.

    sharding: by table; empty on one rank. summed: list features whose vectors are summed where their
    rows are. pack_parts: in how many packs tables of equal attributes are dealt, by attributes in
    order. reasons: sentences.
    """

    sharding: Mapping[str, Placement] = field(default_factory=dict)
    summed: tuple[str, ...] = ()
    pack_parts: tuple[int, ...] = (1,)
    reasons: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @staticmethod
    def from_json(fields: Mapping[str, Any]) -> Placing:
        sharding = {name: Placement(**of) for name, of in fields["sharding"].items()}
        lists = {name: tuple(fields[name]) for name in ("summed", "pack_parts", "reasons")}
        return Placing(sharding, **lists)


def place(
    data: EncodedData, config: TrainConfig, model: Model, ranks: Ranks, num_samples: int
) -> Placing:  # fmt: skip
    """Collective. num_samples: that the run will train on."""
    tables, sequences = _optimized(model.tables, config), model.sequences
    assert config.pack_parts is not None, "settle the config first"
    parts: tuple[int, ...] = (config.pack_parts,)
    if ranks.num_ranks == 1 and config.pack_parts:
        return Placing(pack_parts=parts)
    reasons: list[str] = []
    if not config.pack_parts:
        parts = _balanced(data, config, tables, sequences, reasons)
    if ranks.num_ranks == 1:
        return Placing(pack_parts=parts, reasons=tuple(reasons))
    machine = _machine(ranks, num_samples, reasons)
    found = None
    if ranks.rank == 0:
        sharding = _sharding(data, config, model, tables, ranks, machine, reasons)
        summed = _summed(data, config, tables, sequences, sharding, ranks.num_ranks, reasons)
        found = Placing(sharding, summed, parts, tuple(reasons))
    return ranks.gather_objects(found)[0]


def _machine(ranks: Ranks, num_samples: int, reasons: list[str]) -> Machine:
    """What a rank of this job can do: measured, where the run is long enough to gain from it."""
    if num_samples < _LONG:
        reasons.append(f"a short run: as for a machine of the kind {_STATED}, not measured")
        return MACHINES[_STATED]
    machine = ranks.gather_objects(measure(ranks))[0]
    link = machine.inner or machine.outer
    assert link is not None, "several ranks have a link"
    reasons.append(
        f"measured: copies {machine.memory_bandwidth / 1e9:.1f} GB/s, a row "
        f"{machine.row_seconds * 1e9:.1f} ns + {machine.row_bandwidth / 1e9:.1f} GB/s, between ranks "
        f"{link.latency * 1e6:.0f} us + {link.bandwidth / 1e9:.1f} GB/s"
    )
    return machine


def _sharding(
    data: EncodedData, config: TrainConfig, model: Model, tables: Sequence[Table], ranks: Ranks,
    machine: Machine, reasons: list[str],
) -> dict[str, Placement]:  # fmt: skip
    num_ranks = ranks.num_ranks
    if config.sharding != "auto":
        reasons.append(f"all tables: {config.sharding}, as asked")
        found = uniform(config.sharding, tables, num_ranks)
    elif data.source is not None or not data.vocabularies:
        reasons.append("all tables: ids dealt over all ranks; the data has no counts of ids")
        found = uniform("rows", tables, num_ranks)
    elif config.fast_memory is not None:
        reasons.append("all tables: ids dealt over all ranks, so that each cache has its share")
        found = uniform("rows", tables, num_ranks)
    else:
        found = _chosen(data, config, model, num_ranks, machine, reasons)
    return found if data.halves is None else _with_hot(data, found, tables, reasons)


def _chosen(
    data: EncodedData, config: TrainConfig, model: Model, num_ranks: int, machine: Machine,
    reasons: list[str],
) -> dict[str, Placement]:  # fmt: skip
    assert config.batch_size is not None
    shape = shapes.of_data(
        data, model, row_optimizer=config.row_optimizer, table_dtype=config.table_dtype,
        batch_size=config.batch_size,
    )  # fmt: skip
    wire = 4 if config.wire_dtype == "float32" else 2
    step = dataclasses.replace(shape.step, wire_bytes=wire, micro_batches=config.micro_batches)
    here = int(os.environ.get("LOCAL_WORLD_SIZE", num_ranks))
    memory = _OF_MEMORY * os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / here
    choice = choose(shape.loads, machine, num_ranks, step, memory - step.dense_bytes)
    reasons += choice.reasons
    placed = zip(shape.loads, choice.placements, strict=True)
    return {load.name: placement for load, placement in placed}


def _with_hot(
    data: EncodedData, found: dict[str, Placement], tables: Sequence[Table], reasons: list[str]
) -> dict[str, Placement]:
    """Every rank holds what regrouped data calls hot: all-hot batches then exchange no row."""
    hot = Profile.of(data).hot
    vocabularies = {of.name: vocabulary_of(of) for of in data.schema.id_features}
    reasons.append("hot rows of regrouped data: on every rank")
    changed = dict(found)
    for table in tables:
        ids = hot.get(vocabularies.get(table.features[0], ""))
        place = found[table.name]
        if ids is not None and len(ids) and not place.columns:
            most = max(place.hot, int(ids.max()) + 1)
            changed[table.name] = dataclasses.replace(place, hot=min(most, table.rows))
    return changed


def _balanced(
    data: EncodedData, config: TrainConfig, tables: Sequence[Table], sequences: Sequence[str],
    reasons: list[str],
) -> tuple[int, ...]:  # fmt: skip
    """Packs of far more volume than the mean, split evenly: by what the first batches read."""
    packs = packing.pack_tables(tables, sequences)
    reads = _reads_of(data, config)
    each = [
        [
            (table.dim, float(sum(reads.get(name, 0) for name in table.features)))
            for table in of.tables
        ]
        for of in packs
    ]
    parts = balance([volume(1.0, of) for of in each])
    for pack, num in zip(packs, parts, strict=True):
        if num > 1:
            reasons.append(f"{pack.name}: far more volume than the mean, in {num} parts")
    return parts


def _reads_of(data: EncodedData, config: TrainConfig) -> dict[str, int]:
    """How many ids of each feature the first batches have."""
    found: dict[str, int] = {}
    for batch in _first_batches(data, config):
        for f, name in enumerate(batch.features):
            at = f * batch.size
            num = batch.size
            if batch.offsets is not None:
                num = int(batch.offsets[at + batch.size] - batch.offsets[at])
            found[name] = found.get(name, 0) + num
    return found


def _first_batches(data: EncodedData, config: TrainConfig, num_ranks: int = 1) -> list[Batch]:
    assert config.batch_size is not None
    size = max(1, config.batch_size // num_ranks // config.micro_batches)
    loader = Loader(data.parts["train"], size, shuffle=config.shuffle, seed=config.seed)
    return list(islice(loader.batches(0), _MEASURED_BATCHES))


def _summed(
    data: EncodedData, config: TrainConfig, tables: Sequence[Table], sequences: Sequence[str],
    sharding: Mapping[str, Placement], num_ranks: int, reasons: list[str],
) -> tuple[str, ...]:  # fmt: skip
    """List features of which a rank's samples ask for fewer sums than rows, in the first batches."""
    lists = [of.name for of in data.schema.id_features if is_list(of) and of.name not in sequences]
    if not lists:
        return ()
    packs = packing.pack_tables(tables, sequences, sharding)
    planner = Planner(packs, data.schema.pooling, ranks=_Alone(num_ranks))
    rows, sums = dict.fromkeys(lists, 0), dict.fromkeys(lists, 0)
    for batch in _first_batches(data, config, num_ranks):
        for p, pack in enumerate(packs):
            for name in lists:
                if summed_columns(pack, [name]):
                    of_rows, of_sums = planner.volumes(p, batch, name)
                    rows[name] += of_rows * pack.dim
                    sums[name] += of_sums * pack.dim
    chosen = tuple(name for name in lists if sums[name] < rows[name])
    for name in lists:
        batches = _MEASURED_BATCHES
        reasons.append(
            f"feature {name}: {'sums' if name in chosen else 'rows'} travel; a batch asks for "
            f"{rows[name] // batches:,} numbers of rows or {sums[name] // batches:,} of sums"
        )
    return chosen


class _Alone(OneRank):
    """One rank that resolves ids as one of many does."""

    def __init__(self, num_ranks: int) -> None:
        self.num_ranks = num_ranks


def _optimized(tables: Sequence[Table], config: TrainConfig) -> list[Table]:
    """The tables with the optimizer and dtype that the config says."""
    return [
        dataclasses.replace(
            of, optimizer=of.optimizer or config.row_optimizer, dtype=config.table_dtype
        )
        for of in tables
    ]
