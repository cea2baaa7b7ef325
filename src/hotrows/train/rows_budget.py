"""Rows budget: bytes for all rows of a model, divided over its key tables so that most lookups own a row.

    data = budgeted(data, config)                # its schema has a capacity for each key table
    divide(reads(data, tables)[0], num_bytes)    # by vocabulary: how many keys own a row

Values of all vocabularies are ranked by how often the training part reads them, per byte of their rows; a
table has as many rows as it has values among the first that fit. Which keys own them, training decides.
Where samples are not shuffled, keys come and go, and a read counts only if its key owned a row before its
batch: a user who reads much in one batch needs none. `Replay` counts these reads by the number of rows.
"""

from __future__ import annotations

import dataclasses
import logging
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from hotrows import models
from hotrows.config import TrainConfig
from hotrows.data import EncodedData, Loader
from hotrows.data.description import row_counts
from hotrows.data.encode.vocabulary import IdCounts
from hotrows.data.stored.order import BLOCK_ROWS
from hotrows.distributed.all_or_none import of_rank_0
from hotrows.distributed.comm import OneRank, Ranks
from hotrows.dynamic import MOST_ROWS, Dynamic
from hotrows.engine.dynamic_ids import DynamicIds
from hotrows.keys.partitions import Vocabulary, partition_of
from hotrows.record import layout_of
from hotrows.runtime.units import format_bytes
from hotrows.schema import FIRST_UNKNOWN, Schema, vocabulary_of
from hotrows.table import Table
from hotrows.train.recommender import model_and_tables

log = logging.getLogger("hotrows")

_ADMIT, _EVICT = "frequent:2", ("lfu:8", "lfu:32")  # best of those in docs/evidence/quality.md
_LEAST_BOUND = 2**20  # counters in a row of a sketch, 8 MiB in all, which needs no bound


@dataclass(frozen=True)
class ValueReads:
    """How the training part reads the values of a vocabulary.

    counts: lookups of each value, or those that one row more serves, falling; unknown: all others.
    row_bytes: of a value's records in all tables. least: rows that it has at any budget; reserved: those
    that stand for no value.
    """

    counts: np.ndarray
    row_bytes: int
    least: int = 1
    reserved: int = FIRST_UNKNOWN + 1
    unknown: int = 0


Vocabularies = Mapping[str, ValueReads]


def reads(data: EncodedData, tables: Sequence[Table]) -> tuple[Vocabularies, Vocabularies]:
    """The reads of keys, and of values that `prepare` has counted, by vocabulary.

    tables: as they are stored, with their optimizers.
    """
    owner = {f.name: vocabulary_of(f) for f in data.schema.id_features}
    reserved = {vocabulary_of(f): FIRST_UNKNOWN + f.num_unknown for f in data.schema.id_features}
    row_bytes: Counter[str] = Counter()
    for table in tables:
        row_bytes[owner.get(table.features[0], "")] += layout_of(table).stride  # "": of crosses
    ids = DynamicIds.of_schema(data.schema, tables)
    seen = [IdCounts() for _ in ids.vocabularies]
    for batch in Loader(data.parts["train"], BLOCK_ROWS).batches(0) if seen else ():
        for counts, keys in zip(seen, ids.present_keys(batch.expanded()), strict=True):
            counts.add(keys.numpy())
    dynamic, static = {}, {}
    for (name, v), counts in zip(ids.vocabularies.items(), seen, strict=True):
        sizes = (row_bytes[name], v.dynamic.partitions, reserved[name])
        dynamic[name] = ValueReads(np.sort(counts.merged()[1])[::-1], *sizes)
    for name, lookups in (row_counts(data) if data.vocabularies else {}).items():
        if row_bytes[name] and name not in dynamic:
            values, unknown = lookups[reserved[name] :], lookups[FIRST_UNKNOWN : reserved[name]]
            sizes = (row_bytes[name], len(values), reserved[name])
            static[name] = ValueReads(np.sort(values)[::-1], *sizes, int(unknown.sum()))
    return dynamic, static


def replayed(
    data: EncodedData, tables: Sequence[Table], read: Vocabularies, batch_size: int
) -> dict[str, Replay]:
    """By vocabulary of keys, its reads if batches come as the data are stored. read: all of them."""
    ids = DynamicIds.of_schema(data.schema, tables)
    num_reads = {name: int(read[name].counts.sum()) for name in ids.vocabularies}
    replays = {name: Replay(len(read[name].counts), num) for name, num in num_reads.items()}
    if replays:
        log.info(f"counting the reads of {data.parts['train'].rows:,} samples in order")
    for batch in Loader(data.parts["train"], batch_size).batches(0) if replays else ():
        for replay, keys in zip(replays.values(), ids.present_keys(batch.expanded()), strict=True):
            replay.read(keys)
    return replays


class Replay:
    """Reads of keys whose rows earlier batches have trained, by the number of rows.

    Key tables of capacities in powers of two are replayed, under `frequent:2` with `lfu:8` and `lfu:32`.
    Of more than 64 Ki keys, or more than 4 Mi reads, a sample stands for all: at least a thousand keys,
    chosen by their hash. num_keys, num_reads: of the whole.
    """

    def __init__(self, num_keys: int, num_reads: int = 0) -> None:
        self.num_keys = num_keys
        self._one_of = max(num_keys >> 16, min(num_reads >> 22, num_keys >> 10)) + 1
        most = max(num_keys // self._one_of, 1)
        self._sizes = np.array([*(1 << n for n in range((most - 1).bit_length())), most])
        self._tables = [
            [Vocabulary(Dynamic(size, _ADMIT, evict), 1).partition(0) for size in self._sizes.tolist()]
            for evict in _EVICT
        ]
        self._served = np.zeros((len(_EVICT), len(self._sizes)), np.int64)

    def read(self, keys: Tensor) -> None:
        """Reads the keys of the next batch, [N] int64."""
        keys = keys[partition_of(keys, self._one_of) == 0]
        for place in np.ndindex(self._served.shape):
            table = self._tables[place[0]][place[1]]
            self._served[place] += int((table.find(keys) >= table.first_id).sum())
            table.resolve(keys)
            table.trained()

    def counts(self) -> np.ndarray:
        """The reads that one row more serves, [num_keys], falling.

        They are slopes of the least concave curve above what each capacity serves.
        """
        sizes, served = np.append(0, self._sizes), np.append(0, self._served.max(0))
        counts, n = np.zeros(self.num_keys), 0
        while n < len(sizes) - 1:
            slopes = (served[n + 1 :] - served[n]) / (sizes[n + 1 :] - sizes[n])
            first, n = int(sizes[n]), n + 1 + int(np.argmax(slopes))
            counts[first * self._one_of : int(sizes[n]) * self._one_of] = max(slopes.max(), 0)
        return counts

    def evict(self, num_rows: int) -> str:
        """The eviction under which so many rows serve most reads."""
        place = min(int(np.searchsorted(self._sizes * self._one_of, num_rows)), len(self._sizes) - 1)
        return _EVICT[int(np.argmax(self._served[:, place]))]

    def served(self, read: ValueReads) -> ValueReads:
        """These reads of keys, as far as they were served, by rows in place of keys."""
        counts = self.counts()
        lost = max(int(read.counts.sum() - counts.sum()), 0)
        return dataclasses.replace(read, counts=counts, unknown=lost)


def divide(read: Vocabularies, num_bytes: int) -> dict[str, int]:
    """The rows for values of each vocabulary that together take so many bytes at most.

    Where all values have a row, the rest is room for more keys, in proportion; even if none is counted.
    """
    least = np.array([one.least for one in read.values()])
    row_bytes = np.array([one.row_bytes for one in read.values()], np.int64)
    owners, _, taken = ranked(read)
    num = int(np.searchsorted(taken, num_bytes - int(row_bytes @ least), "right"))
    rows = np.bincount(owners[:num], minlength=len(read)) + least
    if num == len(owners):
        used = int(row_bytes @ rows)
        rows = np.array([n * num_bytes // used for n in rows.tolist()])  # products may exceed 64 bits
    return dict(zip(read, np.minimum(rows, MOST_ROWS).tolist(), strict=True))


def ranked(read: Vocabularies) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The values beyond the least in the order in which they get rows: the number of their vocabulary,
    their lookups, and the bytes up to each."""
    more = [one.counts[one.least :] for one in read.values()]
    owners = np.repeat(np.arange(len(more)), [len(counts) for counts in more])
    sizes, counts = np.array([one.row_bytes for one in read.values()])[owners], np.concatenate(more)
    order = np.argsort(-counts / sizes, kind="stable")
    return owners[order], counts[order], np.cumsum(sizes[order])


def coverage(read: Vocabularies, rows: Mapping[str, int]) -> float:
    """The fraction of lookups that own a row if the values that are read most have them."""
    lookups = sum(int(one.counts.sum()) + one.unknown for one in read.values())
    owned = sum(int(one.counts[: rows[name]].sum()) for name, one in read.items())
    return owned / max(lookups, 1)


def fixed_bytes(tables: Sequence[Table], schema: Schema, read: Vocabularies) -> int:
    """The bytes of all rows but those for values of these vocabularies."""
    divided = {f.name for f in schema.id_features if vocabulary_of(f) in read}
    others = (table for table in tables if table.features[0] not in divided)
    reserved = sum(one.reserved * one.row_bytes for one in read.values())
    return reserved + sum(table.rows * layout_of(table).stride for table in others)


def budgeted(
    data: EncodedData,
    config: TrainConfig,
    model: models.Model | type[models.Model] | None = None,
    ranks: Ranks | None = None,
) -> EncodedData:
    """The data by a schema whose dynamic features have the capacities that `config.rows_budget` allows.

    Those that declare neither `admit` nor `evict` get the policy that is best in evidence.
    model: in place of the config's; ranks: the first of them counts, for all.
    """
    budget = config.rows_budget
    if budget is None or budget == data.rows_budget:
        return data
    if isinstance(model, models.Model):
        raise ValueError("rows_budget sizes the tables of a model, and this one is made: give its class")
    schema = of_rank_0(ranks or OneRank(), lambda: _divided(data, config, budget, model))
    return dataclasses.replace(data.read_by(schema), rows_budget=budget)


def _divided(data: EncodedData, config: TrainConfig, budget: int, model: Any) -> Schema:
    """The schema of the data with the rows that keys get, which it logs."""
    # 1. What the rows take that are not divided
    tables = model_and_tables(config, data.schema, model)[1]
    keys, static = reads(data, tables)
    fixed = fixed_bytes(tables, data.schema, keys)
    least = fixed + sum(one.least * one.row_bytes for one in keys.values())
    if budget < least:
        raise ValueError(_too_small(budget, least, tuple(static.values())))
    # 2. The capacities of the others
    assert config.batch_size is not None, "settle the config first"
    replays = {} if config.shuffle else replayed(data, tables, keys, config.batch_size)
    served = {**keys, **{name: replay.served(keys[name]) for name, replay in replays.items()}}
    if rows := divide(served, budget - fixed) if keys else {}:
        sizes = ", ".join(f"{name} {num:,}" for name, num in rows.items())
        share = f"{coverage(served, rows):.1%} of their lookups can own a row".replace("%", " %")
        counted = share if any(len(one.counts) for one in keys.values()) else "even, as none is counted"
        log.info(f"rows of {format_bytes(budget)}: {sizes} keys; {counted}")
    evict = {n: replays[n].evict(num) if n in replays else _EVICT[0] for n, num in rows.items()}
    return with_capacities(data.schema, rows, keys, evict)


def with_capacities(
    schema: Schema, rows: Mapping[str, int], read: Vocabularies, evict: Mapping[str, str] | None = None
) -> Schema:
    """The schema whose dynamic features have so many keys at most, by vocabulary.

    evict: by vocabulary, of those that declare neither `admit` nor `evict` (default: as declared).
    """

    def sized(feature: Any) -> Any:
        dynamic = getattr(feature, "dynamic", None)
        if not dynamic or vocabulary_of(feature) not in rows:
            return feature
        plain = (dynamic.admit, dynamic.evict) == (Dynamic.admit, Dynamic.evict)
        name = vocabulary_of(feature)
        changes: dict[str, Any] = {"capacity": rows[name]}
        if plain and evict:
            changes |= {"admit": _ADMIT, "evict": evict[name]}
        dynamic, counts = dataclasses.replace(dynamic, **changes), read[name].counts
        width = max(4 * int(counts.sum()) // dynamic.partitions, _LEAST_BOUND)  # two epochs' reads
        if dynamic.admission.kind == "frequent" and len(counts) and width < dynamic.sketch_width:
            dynamic = dataclasses.replace(dynamic, admit=f"frequent:{dynamic.admission.reads},{width}")
        return dataclasses.replace(feature, dynamic=dynamic)

    return dataclasses.replace(schema, features=tuple(map(sized, schema.features)))


def _too_small(budget: int, least: int, static: Sequence[ValueReads]) -> str:
    """What to do where a budget holds less than the rows that are not divided."""
    left = budget - least + sum(len(one.counts) * one.row_bytes for one in static)
    message = (
        f"rows_budget is {format_bytes(budget)}, and the rows of vocabularies and crosses, with one for "
        f"each dynamic feature, need {format_bytes(least)}: give more"
    )
    if left < 0 or not static:
        return message

    def fits(min_count: int) -> bool:
        return sum(int((one.counts >= min_count).sum()) * one.row_bytes for one in static) <= left

    all_counts = np.unique(np.concatenate([one.counts for one in static])) + 1
    min_count = all_counts[bisect_left(all_counts, True, key=fits)]
    return f"{message}, or prepare the data with --min-count {min_count}, which keeps what is read most"
