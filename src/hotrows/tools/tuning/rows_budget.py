"""Rows budget: bytes for all rows of a model, divided over its key tables so that most lookups own a row.

    keys, _ = reads(data, tables)
    divide(keys, num_bytes)                       # by vocabulary: how many keys own a row
    capacities(schema, tables, keys, num_bytes)   # and what the schema is to declare for that

Values of all vocabularies are ranked by how often the training part reads them, per byte of their rows; a
table has as many rows as it has values among the first that fit. Which keys own them, training decides.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hotrows.data import EncodedData, Loader
from hotrows.data.description import row_counts
from hotrows.data.encode.vocabulary import IdCounts
from hotrows.data.stored.order import BLOCK_ROWS
from hotrows.dynamic import MOST_ROWS, Dynamic
from hotrows.engine.dynamic_ids import DynamicIds
from hotrows.ops.record import layout_of
from hotrows.runtime.units import format_bytes
from hotrows.schema import FIRST_UNKNOWN, Schema, vocabulary_of
from hotrows.table import Table

_ADMIT, _EVICT = "frequent:2", "lfu:8"  # best of those in docs/evidence/quality.md
_LEAST_BOUND = 2**20  # counters in a row of a sketch, 8 MiB in all, which needs no bound


@dataclass(frozen=True)
class ValueReads:
    """How the training part reads the values of a vocabulary.

    counts: lookups of each value, falling; unknown: all others.
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
        by_key = np.sort(counts.merged()[1])[::-1]
        dynamic[name] = ValueReads(by_key, row_bytes[name], v.dynamic.partitions, reserved[name])
    for name, lookups in (row_counts(data) if data.vocabularies else {}).items():
        if row_bytes[name] and name not in dynamic:
            values, unknown = lookups[reserved[name] :], lookups[FIRST_UNKNOWN : reserved[name]]
            static[name] = ValueReads(
                counts=np.sort(values)[::-1],
                row_bytes=row_bytes[name],
                least=len(values),
                reserved=reserved[name],
                unknown=int(unknown.sum()),
            )
    return dynamic, static


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


def capacities(
    schema: Schema, tables: Sequence[Table], keys: Vocabularies, num_bytes: int
) -> dict[str, Dynamic]:
    """What dynamic features are to declare so that all rows take so many bytes, by vocabulary.

    Those that declare neither `admit` nor `evict` get the policy that is best in evidence.
    """
    fixed = fixed_bytes(tables, schema, keys)
    least = fixed + sum(one.least * one.row_bytes for one in keys.values())
    if not keys or num_bytes < least:
        raise ValueError(
            f"rows_budget is {format_bytes(num_bytes)}, and the rows of vocabularies and crosses, with "
            f"one for each of {len(keys)} dynamic vocabularies, need {format_bytes(least)}: give more, "
            f"make large features dynamic, or leave rare values out (prepare --min-count)"
        )
    sized = with_capacities(schema, divide(keys, num_bytes - fixed), keys, (_ADMIT, _EVICT))
    return sized.dynamic_vocabularies


def with_capacities(
    schema: Schema, rows: Mapping[str, int], read: Vocabularies, policy: tuple[str, str] | None = None
) -> Schema:
    """The schema whose dynamic features have so many keys at most, by vocabulary.

    policy: `admit` and `evict` of those that declare neither (default: as declared).
    """

    def sized(feature: Any) -> Any:
        dynamic = getattr(feature, "dynamic", None)
        if not dynamic or vocabulary_of(feature) not in rows:
            return feature
        name = vocabulary_of(feature)
        changes: dict[str, Any] = {"capacity": rows[name]}
        if policy and (dynamic.admit, dynamic.evict) == (Dynamic.admit, Dynamic.evict):
            changes |= dict(zip(("admit", "evict"), policy, strict=True))
        dynamic, counts = dataclasses.replace(dynamic, **changes), read[name].counts
        width = max(4 * int(counts.sum()) // dynamic.partitions, _LEAST_BOUND)  # two epochs' reads
        if dynamic.admission.kind == "frequent" and len(counts) and width < dynamic.sketch_width:
            dynamic = dataclasses.replace(dynamic, admit=f"frequent:{dynamic.admission.reads},{width}")
        return dataclasses.replace(feature, dynamic=dynamic)

    return dataclasses.replace(schema, features=tuple(map(sized, schema.features)))
