"""Training straight from Parquet files whose ids are numbers already, without preparing them.

Stored ids are used unchanged, from 0 to `rows` - 1 as the schema declares. A background thread decodes
row groups one pool ahead; an epoch permutes the row groups, takes as many as make a pool (see
`order`), and permutes the rows of the pool.

    this thread     |        batches of pool 0        |        batches of pool 1        |
    decoding        | pool 0 | pool 1 |               | pool 2 |
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, cycle
from pathlib import Path
from typing import Any

import numpy as np

from hotrows.data.columns.of_schema import SchemaColumns
from hotrows.data.load.parquet_columns import Handles, RowGroup, RowGroupColumns, open_row_groups
from hotrows.data.raw.files import File, find_files
from hotrows.data.raw.reading import Reading
from hotrows.data.rows import Room, Rows, empty_rows, gathered, joined_offsets, narrowed
from hotrows.data.stored.encoded import EncodedData
from hotrows.data.stored.histories import check_no_histories
from hotrows.data.stored.order import Share, Shuffle, order_of, pools_of
from hotrows.data.stored.part import NAMES, Part, chosen, shared
from hotrows.data.stored.request_rows import RequestRows
from hotrows.engine.pipeline.prefetch import prefetch
from hotrows.runtime.atomic_files import address
from hotrows.runtime.json_file import value_of
from hotrows.runtime.suggestions import did_you_mean
from hotrows.schema import Schema

Places = str | Path | Sequence[str | Path]


def open_parquet(
    schema: Schema, train: Places, validation: Places = (), test: Places = ()
) -> EncodedData:
    """Opens data that a trainer reads straight from Parquet.

    train, validation, test: paths, globs, folders (`key=value` in them is a column), URLs, or lists
    of these. The features must declare their `rows`; their columns hold whole numbers below it, or
    lists of them; those of dynamic features any whole numbers, which are their keys. Features that
    need statistics or vocabularies require `prepare`.

    >>> import pyarrow.parquet
    >>> table = pyarrow.table({"user": [3, 4, 3], "click": [0, 1, 0]})
    >>> pyarrow.parquet.write_table(table, f"{folder}/train.parquet")
    >>> schema = Schema((hotrows.Sparse("user", rows=100),), label="click")
    >>> open_parquet(schema, f"{folder}/train.parquet").parts["train"].rows
    3
    """
    check_no_histories(schema, "training straight from Parquet")
    _check_schema(schema)
    paths = dict(zip(NAMES, map(_as_list, (train, validation, test)), strict=True))
    return EncodedData(
        path=Path(next(iter(paths["train"]), ".")),
        schema=schema,
        parts={name: _part(name, schema, places) for name, places in paths.items()},
        fingerprint=hashlib.sha256(schema.to_json().encode() + b"ids as stored").hexdigest(),
        split="as given",
        seed=0,
        vocabularies={},
        statistics={},
        encodes_raw=False,
        source={"kind": "parquet", "schema": json.loads(schema.to_json()), **paths},
    )


def open_source(source: dict[str, Any]) -> EncodedData:
    """Opens the data that `EncodedData.source` describes."""
    if source.get("kind") != "parquet":
        raise ValueError(f"a source of data is of kind 'parquet', not {source.get('kind')!r}")
    schema = Schema.from_fields(source.get("schema"))
    places = (
        value_of(tuple[str, ...], source.get(name), f"{name} of a source of data") for name in NAMES
    )
    return open_parquet(schema, *places)


@dataclass(frozen=True, repr=False, kw_only=True)
class ParquetPart(Part):
    """Rows in the row groups of Parquet files, without counts."""

    groups: tuple[RowGroup, ...] = ()
    handles: Handles = field(default_factory=Handles, compare=False, repr=False)

    @property
    def rows(self) -> int:
        return sum(group.rows for group in self.groups)

    def stored(self, index: int) -> Rows:
        raise ValueError(
            f"part {self.name!r} is read straight from Parquet and has no shards; prepare the data "
            f"(`hotrows prepare`) for what needs them"
        )

    def in_order(self, share: Share, first_place: int) -> Iterator[Rows | RequestRows]:
        bounds = self._bounds()
        groups = [i for i, end in enumerate(bounds[1:]) if end > first_place]
        pieces = prefetch(self._read([[self.groups[i]] for i in groups]), 1)
        for i, rows in zip(groups, pieces, strict=True):
            yield shared(rows, share, bounds[i], max(first_place, bounds[i]))

    def shuffled(self, share: Share, first_place: int, shuffle: Shuffle, epoch: int) -> Iterator[Rows]:
        bounds = self._bounds()
        pools = list(pools_of(bounds, shuffle.seed, epoch, first_place))
        numbers = {first: i for i, first in enumerate(bounds)}
        groups = [[self.groups[numbers[first]] for first, _ in pool.blocks] for pool in pools]
        room = Room()
        for pool, rows in zip(pools, prefetch(self._read(groups), 1), strict=True):
            order = order_of(pool, [rows], self.columns, shuffle, self.expanded)
            yield gathered([rows], chosen(order, pool, share, first_place), room)

    def _labels(self) -> Iterator[tuple[np.ndarray, np.ndarray | None]]:
        alone = dataclasses.replace(self.schema, features=(), time=None, group=None)
        columns = SchemaColumns(alone)
        for group in self.groups:
            rows = RowGroupColumns(group, columns, Reading(alone, 1), self.handles).rows()
            yield rows.arrays["labels"], rows.get("weights")

    def _read(self, pools: Iterable[Sequence[RowGroup]]) -> Iterator[Rows]:
        """Yields the rows of each pool's row groups, alternating two buffers: one is read while the
        other is filled."""
        for room, groups in zip(cycle((Room(), Room())), pools, strict=False):
            yield _joined(self.columns, groups, self.handles, room)

    def _bounds(self) -> list[int]:
        return [0, *accumulate(group.rows for group in self.groups)]


def _part(name: str, schema: Schema, places: list[str]) -> ParquetPart:
    groups = [group for file in find_files(places) for group in _groups(file, schema)]
    folder = Path(next(iter(places), "."))
    return ParquetPart(name=name, folder=folder, schema=schema, groups=tuple(groups))


def _groups(file: File, schema: Schema) -> Iterator[RowGroup]:
    """Yields the row groups of a file; an error if it lacks a column of the schema."""
    opened = open_row_groups(file)
    metadata = opened.metadata
    types = {field.name: field.type for field in opened.schema_arrow}
    absent = [c for c in _reading(schema).columns if c not in types and c not in file.partitions]
    if absent:
        raise ValueError(
            f"{file.name} lacks the columns {absent} that schema {schema.name!r} reads; it has "
            f"{', '.join(map(repr, [*types, *file.partitions]))}"
            f"{did_you_mean(absent[0], [*types, *file.partitions])}"
        )
    for index in range(metadata.num_row_groups):
        if rows := metadata.row_group(index).num_rows:
            yield RowGroup(file, index, rows, metadata)


def _joined(columns: SchemaColumns, groups: Sequence[RowGroup], handles: Handles, room: Room) -> Rows:
    """Decodes and checks several row groups; ids are as narrow as in a shard."""
    sections, how = columns.sections, _reading(columns.schema)
    into = empty_rows(sections, sum(group.rows for group in groups), room.array)
    lists: dict[str, list[Rows]] = {name: [] for name in into.bounds}
    done = 0
    for group in groups:
        rows = narrowed(RowGroupColumns(group, columns, how, handles).rows(), sections)
        to = into[done : done + group.rows]
        done += group.rows
        for name, array in to.arrays.items():
            if to.bounds_of(name) is None:
                array[:] = rows.arrays[name]
        for pieces in lists.values():
            pieces.append(rows)
    values = {n: [p.arrays[f"ids/{n}"] for p in pieces] for n, pieces in lists.items() if pieces}
    return into.with_arrays(
        {f"ids/{name}": np.concatenate(ids) for name, ids in values.items()},
        {name: joined_offsets([piece.bounds[name] for piece in lists[name]]) for name in values},
    )


def _reading(schema: Schema) -> Reading:
    """How row groups are read; no feature is made of the time."""
    kept = schema if schema.keeps_times else dataclasses.replace(schema, time=None)
    return Reading(kept, 1)


def _check_schema(schema: Schema) -> None:
    if schema.request is not None:
        raise ValueError(
            f"schema {schema.name!r}: samples of a request share features where shards have them once; "
            f"prepare the data (`hotrows prepare`), or leave out request and shared"
        )
    for feature in schema.id_features:
        schema.rows_of(feature.name)
    unfit = [f.name for f in schema.dense if f.transform == "standard"]
    unfit += [f.name for f in schema.sparse if f.transform != "none"]
    for column in (column for column in SchemaColumns(schema).ids if column.has_weights):
        raise ValueError(f"feature {column.name!r} has weights: make data with `hotrows prepare`")
    if unfit:
        raise ValueError(
            f"features {unfit} have transforms that are learned or made from raw values ('standard' "
            f"of numbers, any of ids); train on data made by `hotrows prepare`, or use others"
        )


def _as_list(paths: Places) -> list[str]:
    """Absolute paths and URLs: they hold in any working directory."""
    places = [paths] if isinstance(paths, str | Path) else list(paths)
    named = map(address, places)
    return [place if "://" in place else os.path.abspath(place) for place in named]
