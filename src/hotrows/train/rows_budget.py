"""Rows budget: bytes for all rows of a model, divided over its key tables so that most lookups own a row.

    data = budgeted(data, config)                # its schema has a capacity for each key table
    divide(reads(data, tables), num_bytes)       # by vocabulary: how many values own a row

Values of all vocabularies are ranked by how often the training part reads them, per byte of their rows; a
table has as many rows as it has values among the first that fit. Which keys own them, training decides.
"""

from __future__ import annotations

import dataclasses
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from hotrows import models
from hotrows.config import TrainConfig
from hotrows.costs.workload import stored_tables
from hotrows.data import EncodedData, Loader
from hotrows.data.description import row_counts
from hotrows.data.encode.vocabulary import IdCounts
from hotrows.data.stored.order import BLOCK_ROWS
from hotrows.distributed.comm import Ranks
from hotrows.dynamic import MOST_ROWS, Dynamic
from hotrows.engine.dynamic_ids import DynamicIds
from hotrows.record import layout_of
from hotrows.runtime.units import format_bytes
from hotrows.schema import FIRST_UNKNOWN, Schema, vocabulary_of
from hotrows.table import Table
from hotrows.train.pretrained import frozen
from hotrows.train.recommender import with_linear

log = logging.getLogger("hotrows")

_BEST = {"admit": "frequent:2", "evict": "lfu:8"}  # of those in docs/evidence/quality.md


@dataclass(frozen=True)
class Reads:
    """How the training part reads a vocabulary.

    counts: lookups of each value, falling; others: lookups of unknown values. row_bytes: of the records
    of a value, in all tables. dynamic: of a key table.
    """

    counts: np.ndarray
    others: int
    row_bytes: int
    num_unknown: int = 1
    dynamic: Dynamic | None = None

    @property
    def least(self) -> int:
        """The least rows that it may have for values."""
        return len(self.counts) if self.dynamic is None else self.dynamic.partitions


def reads(data: EncodedData, tables: Sequence[Table]) -> dict[str, Reads]:
    """The reads of each vocabulary; without those of numbered ids that were never counted.

    tables: as they are stored, with their optimizers.
    """
    features = {vocabulary_of(f): f for f in data.schema.id_features}
    owner = {f.name: vocabulary_of(f) for f in data.schema.id_features}
    row_bytes: Counter[str] = Counter()
    for table in tables:
        if table.features[0] in owner:  # which a cross is not
            row_bytes[owner[table.features[0]]] += layout_of(table).stride
    keys = _key_counts(data, tables)
    ids = row_counts(data) if data.vocabularies else {}
    found = {}
    for name, num_bytes in row_bytes.items():
        reserved = FIRST_UNKNOWN + features[name].num_unknown
        if (dynamic := features[name].dynamic) is not None:
            found[name] = Reads(keys[name], 0, num_bytes, reserved - FIRST_UNKNOWN, dynamic)
        elif name in ids:
            counts, others = ids[name][reserved:], int(ids[name][FIRST_UNKNOWN:reserved].sum())
            found[name] = Reads(np.sort(counts)[::-1], others, num_bytes, reserved - FIRST_UNKNOWN)
    return found


def _key_counts(data: EncodedData, tables: Sequence[Table]) -> dict[str, np.ndarray]:
    """How often each key is read, falling, by the vocabulary of dynamic features."""
    ids = DynamicIds.of_schema(data.schema, tables)
    counted = [IdCounts() for _ in ids.vocabularies]
    for batch in Loader(data.parts["train"], BLOCK_ROWS).batches(0) if counted else ():
        for counts, keys in zip(counted, ids.present_keys(batch.expanded()), strict=True):
            counts.add(keys.numpy())
    of_keys = [np.sort(counts.merged()[1])[::-1] for counts in counted]
    return dict(zip(ids.vocabularies, of_keys, strict=True))


def divide(read: Mapping[str, Reads], num_bytes: int) -> dict[str, int]:
    """The rows for values of each vocabulary that together take so many bytes at most.

    Where all values have a row, what is left is room for more keys, in proportion.
    """
    if not read:
        return {}
    least = np.array([one.least for one in read.values()])
    row_bytes = np.array([one.row_bytes for one in read.values()], np.int64)
    owners, _, taken = ranked(read)
    num = int(np.searchsorted(taken, num_bytes - int(row_bytes @ least), "right"))
    rows = np.bincount(owners[:num], minlength=len(read)) + least
    if num == len(owners):
        rows = rows * num_bytes // int(row_bytes @ rows)
    return dict(zip(read, np.minimum(rows, MOST_ROWS).tolist(), strict=True))


def ranked(read: Mapping[str, Reads]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The values beyond the least in the order in which they get rows: the number of their vocabulary,
    their lookups, and the bytes up to each."""
    more = [one.counts[one.least :] for one in read.values()]
    owners = np.repeat(np.arange(len(more)), [len(counts) for counts in more])
    sizes, counts = np.array([one.row_bytes for one in read.values()])[owners], np.concatenate(more)
    order = np.argsort(-counts / sizes, kind="stable")
    return owners[order], counts[order], np.cumsum(sizes[order])


def coverage(read: Mapping[str, Reads], rows: Mapping[str, int]) -> float:
    """The fraction of lookups that own a row if the values that are read most have them."""
    lookups = sum(int(one.counts.sum()) + one.others for one in read.values())
    owned = sum(int(one.counts[: rows[name]].sum()) for name, one in read.items())
    return owned / max(lookups, 1)


def fixed_bytes(tables: Sequence[Table], schema: Schema, read: Mapping[str, Reads]) -> int:
    """The bytes of all rows but those for values of these vocabularies."""
    divided = {f.name for f in schema.id_features if vocabulary_of(f) in read}
    others = (table for table in tables if table.features[0] not in divided)
    reserved = sum((FIRST_UNKNOWN + one.num_unknown) * one.row_bytes for one in read.values())
    return reserved + sum(table.rows * layout_of(table).stride for table in others)


def budgeted(
    data: EncodedData,
    config: TrainConfig,
    model: models.Model | type[models.Model] | None = None,
    ranks: Ranks | None = None,
) -> EncodedData:
    """The data by a schema whose dynamic features have the capacities that `config.rows_budget` allows.

    Those that declare neither `admit` nor `evict` get the policy that is best in evidence.
    model: in place of the config's; ranks: the first of them logs what each gets.
    """
    budget = config.rows_budget
    if budget is None or budget == data.rows_budget:
        return data
    if isinstance(model, models.Model):
        raise ValueError("rows_budget sizes the tables of a model, and this one is made: give its class")
    # 1. What tables take that have their rows by the data
    assert config.model is not None, "settle the config first"
    with torch.random.fork_rng(devices=[]):
        built = models.build(model or config.model, data.schema, **config.model_options)
    built.tables = with_linear(frozen(built.tables, config.frozen), config)
    tables = stored_tables(built, config.table_dtype, config.row_optimizer)
    read = reads(data, tables)
    of_keys = {name: one for name, one in read.items() if one.dynamic is not None}
    fixed = fixed_bytes(tables, data.schema, of_keys)
    least = fixed + sum(one.least * one.row_bytes for one in of_keys.values())
    if budget < least:
        raise ValueError(_too_small(budget, least, read))
    # 2. The capacities of the others
    if of_keys and not data.parts["train"].rows:
        raise ValueError(
            f"rows_budget is divided by how often keys are read, and {data.path} has no rows: give each "
            f"dynamic feature a capacity"
        )
    rows = divide(of_keys, budget - fixed)
    if rows and (ranks is None or ranks.rank == 0):
        sizes = ", ".join(f"{name} {num:,}" for name, num in rows.items())
        share = f"{coverage(of_keys, rows):.1%}".replace("%", " %")
        log.info(f"rows of {format_bytes(budget)}: {sizes} keys; {share} of their lookups can own a row")
    schema = with_capacities(data.schema, rows, **_BEST)
    return dataclasses.replace(data.read_by(schema), rows_budget=budget)


def with_capacities(schema: Schema, rows: Mapping[str, int], **policy: str) -> Schema:
    """The schema whose dynamic features have so many keys at most, by vocabulary.

    policy: fields of `Dynamic` for those that declare neither `admit` nor `evict`.
    """

    def sized(dynamic: Dynamic, capacity: int) -> Dynamic:
        plain = (dynamic.admit, dynamic.evict) == (Dynamic.admit, Dynamic.evict)
        return dataclasses.replace(dynamic, capacity=capacity, **(policy if plain else {}))

    features = {
        f.name: dataclasses.replace(f, dynamic=sized(f.dynamic, rows[vocabulary_of(f)]))
        for f in schema.id_features
        if f.dynamic is not None and vocabulary_of(f) in rows
    }
    return dataclasses.replace(schema, features=tuple(features.get(f.name, f) for f in schema.features))


def _too_small(budget: int, least: int, read: Mapping[str, Reads]) -> str:
    """What to do where a budget holds less than the rows that no one divides."""
    static = [one for one in read.values() if one.dynamic is None]
    left = budget - least + sum(len(one.counts) * one.row_bytes for one in static)
    message = (
        f"rows_budget is {format_bytes(budget)}, and the rows of vocabularies, with one for each dynamic "
        f"feature, need {format_bytes(least)}: give more"
    )
    if left < 0 or not static:
        return message
    counts = np.concatenate([one.counts for one in static])
    order = np.argsort(-counts, kind="stable")
    taken = np.cumsum(
        np.repeat([one.row_bytes for one in static], [len(one.counts) for one in static])[order]
    )
    first = int(counts[order[np.searchsorted(taken, left, "right")]])
    return (
        f"{message}, or prepare the data with --min-count {first + 1}, which keeps the values read most"
    )
