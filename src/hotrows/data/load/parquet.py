"""Training straight from Parquet files whose ids are numbers already, without preparing them.

Stored ids are used unchanged, from 0 to `rows` - 1 as the schema declares. A background thread decodes
row groups one pool ahead; an epoch permutes the row groups, takes as many as make a pool (see
`order`), and permutes the rows of the pool.

    this thread     |        batches of pool 0        |        batches of pool 1        |
    decoding        | pool 0 | pool 1 |               | pool 2 |
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, cycle
from pathlib import Path
from typing import Any

import numpy as np

from hotrows.data.columns.id import IdColumn
from hotrows.data.columns.list import ListColumn
from hotrows.data.columns.of_schema import SchemaColumns
from hotrows.data.raw.arrow_arrays import first_line, is_list, unnested, value_at
from hotrows.data.raw.cells import cells_of
from hotrows.data.raw.files import File, by_path, find_files
from hotrows.data.raw.reading import Reading, check_present
from hotrows.data.raw.typed_files import NO_VALUE, explained, open_parquet_file, warn_of_folders
from hotrows.data.rows import Room, Rows, empty_rows, gathered, joined_offsets, lists_between, narrowed
from hotrows.data.stored.encoded import EncodedData
from hotrows.data.stored.histories import check_no_histories
from hotrows.data.stored.order import Share, Shuffle, order_of, pools_of
from hotrows.data.stored.part import NAMES, Part, chosen, shared
from hotrows.data.stored.request_rows import RequestRows
from hotrows.engine.pipeline.prefetch import prefetch
from hotrows.losses import NO_GROUP
from hotrows.runtime.arrow import pa
from hotrows.runtime.atomic_files import address
from hotrows.runtime.json_file import value_of
from hotrows.schema import MISSING_KEY, Schema
from hotrows.schema_checks import reading_less

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


@dataclass(frozen=True)
class RowGroup:
    """A row group that is not empty. metadata: of its file, kept to read it once."""

    file: File
    index: int
    rows: int
    metadata: Any


@dataclass(frozen=True, repr=False, kw_only=True)
class ParquetPart(Part):
    """Rows in the row groups of Parquet files, without counts."""

    groups: tuple[RowGroup, ...] = ()

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
        alone = reading_less(self.schema, features=(), time=None, group=None)
        columns = SchemaColumns(alone)
        for group in self.groups:
            rows = RowGroupColumns(group, columns, Reading(alone, 1)).rows()
            yield rows.arrays["labels"], rows.get("weights")

    def _read(self, pools: Iterable[Sequence[RowGroup]]) -> Iterator[Rows]:
        """Yields the rows of each pool's row groups, alternating two buffers: one is read while the
        other is filled."""
        for room, groups in zip(cycle((Room(), Room())), pools, strict=False):
            yield _joined(self.columns, groups, room)

    def _bounds(self) -> list[int]:
        return [0, *accumulate(group.rows for group in self.groups)]


def _part(name: str, schema: Schema, places: list[str]) -> ParquetPart:
    groups = [group for file in find_files(places) for group in _groups(file, schema)]
    folder = Path(next(iter(places), "."))
    return ParquetPart(name=name, folder=folder, schema=schema, groups=tuple(groups))


def _groups(file: File, schema: Schema) -> Iterator[RowGroup]:
    """Yields the row groups of a file; an error if it lacks a column of the schema."""
    opened = _opened(file)
    metadata = opened.metadata
    names = (*opened.schema_arrow.names, *by_path(file, opened.schema_arrow.names))
    check_present(_reading(schema), file.name, names)
    for index in range(metadata.num_row_groups):
        if rows := metadata.row_group(index).num_rows:
            yield RowGroup(file, index, rows, metadata)


def _opened(file: File, metadata: Any = None) -> Any:
    """Opens a Parquet file to read single row groups; metadata: of the file, if it was read before."""
    local = file.system is None  # of remote files, few large requests
    return open_parquet_file(file, metadata=metadata, memory_map=local, pre_buffer=not local)


def _joined(columns: SchemaColumns, groups: Sequence[RowGroup], room: Room) -> Rows:
    """Decodes and checks several row groups; ids are as narrow as in a shard."""
    sections, how = columns.sections, _reading(columns.schema)
    into = empty_rows(sections, sum(group.rows for group in groups), room.array)
    lists: dict[str, list[Rows]] = {name: [] for name in into.bounds}
    done = 0
    for group in groups:
        rows = narrowed(RowGroupColumns(group, columns, how).rows(), sections)
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
    kept = schema if schema.keeps_times else reading_less(schema, time=None)
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


class RowGroupColumns:
    """The columns of a row group: ids as they are stored, and all others as every reader reads them."""

    def __init__(self, group: RowGroup, columns: SchemaColumns, how: Reading) -> None:
        self._group, self._columns = group, columns
        with explained(f"{group.file.name} is damaged"):
            with _opened(group.file, group.metadata) as file:
                present = set(file.schema_arrow.names)
                stored = [name for name in how.columns if name in present]
                table = file.read_row_group(group.index, columns=stored)
            self._arrays = {name: _array(table.column(name)) for name in stored}
        warn_of_folders(group.file, {n: a for n, a in self._arrays.items() if n in group.file.partitions})
        for name in (name for name in how.columns if name not in self._arrays):
            value = _value_of(group.file.partitions[name])
            self._arrays[name] = pa.repeat(value, group.rows)
        batch = pa.RecordBatch.from_pydict(self._arrays)
        self._cells = cells_of(batch, f"{group.file.name}, row group {group.index}", 0, how)

    def rows(self) -> Rows:
        rows = self._columns.as_stored(self._cells, self._ids)
        group = self._columns.schema.group
        if group is not None and pa.types.is_integer(self._arrays[group].type):
            groups = self._arrays[group].cast(pa.int64(), safe=False).fill_null(NO_GROUP)
            return rows.with_arrays({"groups": groups.to_numpy()}, {})
        return rows

    def _ids(self, column: IdColumn) -> tuple[np.ndarray, np.ndarray | None]:
        """The ids of a column, checked, and where lists of them begin."""
        array = self._arrays[column.column]
        if not isinstance(column, ListColumn):
            return self._numbers_of(array, column, None), None
        if not is_list(array.type):
            raise self._wrong(column.column, 0, "a list of ids")
        offsets, flat = unnested(array)
        return _last(self._numbers_of(flat, column, offsets), offsets, column.max_length)

    def _numbers_of(self, array: Any, of_ids: IdColumn, offsets: np.ndarray | None) -> np.ndarray:
        """Checks ids of a feature. offsets: [rows + 1] of lists, None: one id per row."""

        def row_of(place: int) -> int:
            return place if offsets is None else int(np.searchsorted(offsets, place, "right")) - 1

        column, limit = of_ids.column, of_ids.feature.rows
        if not of_ids.lookup.has_values:
            return self._keys_of(array, column, row_of)
        assert limit is not None
        expected = f"an id from 0 to {limit - 1:,}"
        if not pa.types.is_integer(array.type):
            kind = first_line(array.type)
            raise self._wrong(column, row_of(0), f"{expected}, a whole number, not {kind}")
        if array.null_count:
            null = int(np.argmax(array.is_null().to_numpy(zero_copy_only=False)))
            raise self._wrong(column, row_of(null), expected)
        ids = array.to_numpy()
        unsigned = ids.view(f"u{ids.itemsize}")  # negative ids are then above all others
        if len(ids) and int(unsigned.max()) >= min(limit, np.iinfo(ids.dtype).max + 1):
            raise self._wrong(column, row_of(int(np.argmax((ids < 0) | (ids >= limit)))), expected)
        return ids

    def _keys_of(self, array: Any, column: str, row_of: Callable[[int], int]) -> np.ndarray:
        """The keys of a dynamic feature, [N] int64; nothing is the missing key."""
        expected = f"a whole number from {MISSING_KEY + 1} to {-MISSING_KEY - 1}"
        if not pa.types.is_integer(array.type):
            raise self._wrong(column, row_of(0), f"{expected}, not {first_line(array.type)}")
        absent = array.is_null().to_numpy(zero_copy_only=False)
        numbers = array.fill_null(0).to_numpy()
        keys = np.where(absent, MISSING_KEY, numbers.astype(np.int64))
        if wrong := np.flatnonzero(
            (keys == MISSING_KEY) & ~absent | (numbers > -MISSING_KEY - 1)
        ).tolist():
            raise self._wrong(column, row_of(wrong[0]), expected)
        return keys

    def _wrong(self, column: str, row: int, expected: str) -> ValueError:
        array = self._arrays[column]
        value = value_at(array, row) if len(array) else None
        shown = "nothing" if value is None else repr(value)
        return ValueError(
            f"{self._group.file.name}, row group {self._group.index}, row {row} of it, column "
            f"{column!r}: expected {expected}, found {shown[:80]}; correct the data, or let "
            f"`hotrows prepare` make ids of its values"
        )


def _last(
    values: np.ndarray, offsets: np.ndarray, max_length: int | None
) -> tuple[np.ndarray, np.ndarray]:
    """Shortens each list to its last `max_length` ids."""
    lengths = np.diff(offsets)
    if max_length is None or not len(lengths) or lengths.max() <= max_length:
        return values, offsets
    return lists_between(values, offsets[1:] - np.minimum(lengths, max_length), offsets[1:])


def _array(column: Any) -> Any:
    """Joins a column into one array; decodes dictionaries."""
    array = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(array.chunks)
    if pa.types.is_dictionary(array.type):
        return array.dictionary_decode()
    value_type = getattr(array.type, "value_type", None)
    if value_type is not None and pa.types.is_dictionary(value_type):
        return array.cast(pa.large_list(value_type.value_type))
    return array


def _value_of(text: str) -> Any:
    """Parses the value of `key=value` in a path: a whole number, a number, or text."""
    if text == NO_VALUE:
        return pa.scalar(None, pa.int64())
    for kind in (int, float):
        try:
            return pa.scalar(kind(text))
        except ValueError:
            continue
    return pa.scalar(text)
