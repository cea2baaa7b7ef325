"""Training straight from Parquet files whose ids are numbers already, without preparing them.

Ids are taken as they are stored, from 0 to `rows` - 1 as the schema declares. Row groups are decoded
on a thread of their own, one pool ahead; an epoch permutes the row groups, takes as many as make a
pool (see `order`), and permutes its rows.

    this thread     |        batches of pool 0        |        batches of pool 1        |
    decoding        | pool 0 | pool 1 |               | pool 2 |
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import accumulate, cycle
from pathlib import Path
from threading import Lock
from types import ModuleType
from typing import Any

import numpy as np

from hotrows.data.ahead import Ahead
from hotrows.data.arrow import pyarrow
from hotrows.data.columns import MISSING_LABEL, RawIds
from hotrows.data.encoded import EncodedData
from hotrows.data.files import File, find_files
from hotrows.data.gather import Room, ends_of, interleave, joined_offsets, take_lists
from hotrows.data.order import Share, pools_of
from hotrows.data.part import Part, chosen, shared
from hotrows.data.shards import Rows, gathered, width_of
from hotrows.data.split import NAMES
from hotrows.data.values import hash_values
from hotrows.schema import Dense, Label, Schema, Sparse, column_of, is_list
from hotrows.schema import Sequence as ListFeature

Places = str | Path | Sequence[str | Path]


def open_parquet(
    schema: Schema, train: Places, validation: Places = (), test: Places = ()
) -> EncodedData:
    """Data that a trainer reads straight from Parquet: paths, globs, folders (`key=value` in them
    is a column), URLs, or lists of these, for each part.

    The features must say their `rows`; their columns hold whole numbers below, lists of them where a
    feature is a list. What needs statistics or vocabularies is made by `prepare`.
    """
    _check_schema(schema)
    given = dict(zip(NAMES, map(_as_list, (train, validation, test)), strict=True))
    digest = hashlib.sha256(schema.to_json().encode() + b"ids as stored")
    return EncodedData(
        path=Path(next(iter(given["train"]), ".")),
        schema=schema,
        parts={name: _part(name, schema, places) for name, places in given.items()},
        fingerprint=digest.hexdigest(),
        split="as given",
        seed=0,
        vocabularies={},
        statistics={},
        encodes_raw=False,
        source={"kind": "parquet", "schema": json.loads(schema.to_json()), **given},
    )


def open_source(source: dict[str, Any]) -> EncodedData:
    """The data that `EncodedData.source` describes, opened again."""
    if source.get("kind") != "parquet":
        raise ValueError(f"a source of data is of kind 'parquet', not {source.get('kind')!r}")
    schema = Schema.from_json(json.dumps(source["schema"]))
    return open_parquet(schema, *(source[name] for name in NAMES))


@dataclass(frozen=True)
class RowGroup:
    """A row group that is not empty. metadata: of its file, so that it is read once."""

    file: File
    index: int
    rows: int
    metadata: Any


class Handles:
    """Open files, each lent to one reader at a time; those that rest stay open, a few of them."""

    def __init__(self, num_resting: int = 32) -> None:
        self._num_resting = num_resting
        self._resting: list[tuple[str, Any]] = []
        self._lock = Lock()

    @contextmanager
    def lent(self, file: File, metadata: Any) -> Iterator[Any]:
        handle = self._taken(file.name) or _opened(file, metadata)
        yield handle
        self._return(file.name, handle)

    def _taken(self, name: str) -> Any:
        with self._lock:
            places = [i for i, (resting, _) in enumerate(self._resting) if resting == name]
            return self._resting.pop(places[-1])[1] if places else None

    def _return(self, name: str, handle: Any) -> None:
        with self._lock:
            self._resting.append((name, handle))
            longest = self._resting.pop(0)[1] if len(self._resting) > self._num_resting else None
        if longest is not None:
            longest.close()


@dataclass(frozen=True)
class ParquetPart(Part):
    """Rows in the row groups of Parquet files. Nothing is counted of them."""

    groups: tuple[RowGroup, ...] = ()
    handles: Handles = field(default_factory=Handles, compare=False, repr=False)

    @property
    def rows(self) -> int:
        return sum(group.rows for group in self.groups)

    def shard(self, index: int) -> Rows:
        raise ValueError(
            f"part {self.name!r} is read straight from Parquet and has no shards; prepare the data "
            f"(`hotrows prepare`) for what needs them"
        )

    def in_order(self, share: Share, at: int) -> Iterator[Rows]:
        bounds = self._bounds()
        groups = [i for i, end in enumerate(bounds[1:]) if end > at]
        pieces = Ahead(self._read([[self.groups[i]] for i in groups]), 1)
        for i, rows in zip(groups, pieces, strict=True):
            yield shared(rows, share, bounds[i], max(at, bounds[i]))

    def shuffled(self, share: Share, at: int, seed: int, epoch: int) -> Iterator[Rows]:
        bounds = self._bounds()
        pools = list(pools_of(bounds, seed, epoch, at))
        numbers = {first: i for i, first in enumerate(bounds)}
        groups = [[self.groups[numbers[first]] for first, _ in pool.blocks] for pool in pools]
        room = Room()
        for pool, rows in zip(pools, Ahead(self._read(groups), 1), strict=True):
            yield gathered([rows], chosen(pool, share, at), room)

    def _read(self, pools: Iterable[Sequence[RowGroup]]) -> Iterator[Rows]:
        """The rows of the row groups of each pool, one after the other, in rooms that take turns:
        one is read while the other is filled."""
        for room, groups in zip(cycle((Room(), Room())), pools, strict=False):
            yield _joined(self.schema, groups, self.handles, room)

    def _bounds(self) -> list[int]:
        return [0, *accumulate(group.rows for group in self.groups)]


def _part(name: str, schema: Schema, places: list[str]) -> ParquetPart:
    files = find_files(places)
    groups = [group for file in files for group in _groups(file, schema)]
    return ParquetPart(name, Path(next(iter(places), ".")), schema, groups=tuple(groups))


def _groups(file: File, schema: Schema) -> Iterator[RowGroup]:
    """The row groups of a file; an error where its columns are not what the schema asks for."""
    opened = _opened(file)
    metadata = opened.metadata
    found = {field.name: field.type for field in opened.schema_arrow}
    absent = [of for of in _asked(schema) if of not in found and of not in file.partitions]
    if absent:
        raise ValueError(
            f"{file.name} lacks the columns {absent} that schema {schema.name!r} asks for; it has "
            f"{', '.join(map(repr, [*found, *file.partitions]))}"
        )
    for index in range(metadata.num_row_groups):
        if rows := metadata.row_group(index).num_rows:
            yield RowGroup(file, index, rows, metadata)


def _opened(file: File, metadata: Any = None) -> Any:
    pa = pyarrow()
    local = file.system is None
    try:
        return pa.parquet.ParquetFile(
            file.path if local else file.open(),
            metadata=metadata,
            memory_map=local,
            pre_buffer=not local,  # far away, few large requests
        )
    except (pa.ArrowException, OSError) as error:
        raise ValueError(
            f"{file.name} is no whole Parquet file ({_first_line(error)}); write it again"
        ) from error


def _joined(schema: Schema, groups: Sequence[RowGroup], handles: Handles, room: Room) -> Rows:
    """The rows of several row groups, checked; ids as narrow as in a shard."""
    into = _empty(schema, sum(group.rows for group in groups), room)
    lists: list[list[tuple[np.ndarray, np.ndarray]]] = [[] for _ in into.ids]
    done = 0
    for group in groups:
        columns = _Columns(group, _asked(schema), handles)
        to = into[done : done + group.rows]
        done += group.rows
        for f, feature in enumerate(schema.id_features):
            if is_list(feature):
                ids, offsets = columns.lists(feature)
                lists[f].append((ids.astype(into.ids[f].dtype), offsets))
            else:
                to.ids[f][:] = columns.ids(feature)
        _fill(schema, columns, to)
    ids_of = [np.concatenate([ids for ids, _ in of]) if of else None for of in lists]
    return dataclasses.replace(
        into,
        ids=tuple(one if of is None else of for one, of in zip(into.ids, ids_of, strict=True)),
        offsets=tuple(joined_offsets([bounds for _, bounds in of]) if of else None for of in lists),
    )


def _empty(schema: Schema, rows: int, room: Room) -> Rows:
    """Rows to be filled; of lists nothing but the type of their ids."""
    num_labels, features = len(schema.labels), schema.id_features
    widths = [width_of(schema.rows_of(feature.name)) for feature in features]
    sizes = [0 if is_list(feature) else rows for feature in features]
    pairs = enumerate(zip(sizes, widths, strict=True))
    return Rows(
        ids=tuple(room.array(f"ids {f}", (size,), width) for f, (size, width) in pairs),
        offsets=(None,) * len(features),
        dense=room.array("dense", (rows, len(schema.dense)), np.float32),
        labels=room.array("labels", (rows, num_labels) if num_labels > 1 else (rows,), np.uint8),
        weights=None if schema.weight is None else room.array("weights", (rows,), np.float32),
        groups=None if schema.group is None else room.array("groups", (rows,), np.int64),
    )


def _fill(schema: Schema, columns: _Columns, to: Rows) -> None:
    """All but the ids."""
    if schema.dense:
        interleave([columns.dense(feature) for feature in schema.dense], to.dense)
    several = len(schema.labels) > 1
    for label, into in zip(schema.labels, to.labels.reshape(len(to), -1).T, strict=True):
        into[:] = columns.label(label, several)
    if to.weights is not None:
        to.weights[:] = columns.weights(str(schema.weight))
    if to.groups is not None:
        to.groups[:] = columns.groups(str(schema.group))


class _Columns:
    """The columns of a row group as arrays, each value checked."""

    def __init__(self, group: RowGroup, names: Sequence[str], handles: Handles) -> None:
        self._group = group
        self._pa = pyarrow()
        try:
            with handles.lent(group.file, group.metadata) as file:
                found = set(file.schema_arrow.names)
                stored = [name for name in names if name in found]
                table = file.read_row_group(group.index, columns=stored)
        except (self._pa.ArrowException, OSError) as error:
            raise ValueError(
                f"{group.file.name} is damaged ({_first_line(error)}); write it again"
            ) from error
        self._arrays = {name: _array(self._pa, table.column(name)) for name in stored}
        for name in (name for name in names if name not in self._arrays):
            value = _value_of(self._pa, group.file.partitions[name])
            self._arrays[name] = self._pa.repeat(value, group.rows)

    def ids(self, feature: Sparse | ListFeature) -> np.ndarray:
        """[rows]."""
        return self._numbers_of(self._arrays[column_of(feature)], feature, None)

    def lists(self, feature: Sparse | ListFeature) -> tuple[np.ndarray, np.ndarray]:
        """[N] ids and [rows + 1] offsets."""
        column = column_of(feature)
        array, types = self._arrays[column], self._pa.types
        if not (types.is_list(array.type) or types.is_large_list(array.type)):
            if not types.is_fixed_size_list(array.type):
                raise self._wrong(column, 0, "a list of ids")
            array = array.cast(self._pa.large_list(array.type.value_type))
        lengths = self._pa.compute.list_value_length(array).fill_null(0)
        offsets = ends_of(lengths.to_numpy(zero_copy_only=False))
        values = self._numbers_of(array.flatten(), feature, offsets)
        return _last(values, offsets, feature.max_length)

    def dense(self, feature: Dense) -> np.ndarray:
        """[rows] float32, transformed; 0 where missing."""
        column = column_of(feature)
        found = self._numbers(column)
        if feature.transform == "missing":
            return np.isnan(found).astype(np.float32)
        if feature.transform == "log":
            found = np.log1p(np.maximum(found.astype(np.float64), 0))
        with np.errstate(over="ignore"):
            values = found.astype(np.float32, copy=False)
        if np.isfinite(values).all():
            return values
        infinite = np.flatnonzero(np.isinf(values))
        if len(infinite):
            raise self._wrong(column, int(infinite[0]), "a number that float32 can hold")
        return np.where(np.isnan(values), np.float32(0), values)

    def label(self, label: Label, may_lack: bool) -> np.ndarray:
        """[rows] uint8: 0, 1, or 255 where missing."""
        column = column_of(label)
        if label.positive:
            found = self._is_one_of(column, label.positive)
        elif label.at_least is None and self._is_zero_or_one(column):
            return self._arrays[column].to_numpy().astype(np.uint8)
        else:
            given = self._numbers(column)
            wrong = (given != 0) & (given != 1) & ~np.isnan(given)
            if label.at_least is None and wrong.any():
                raise self._wrong(column, int(np.argmax(wrong)), "a label 0 or 1")
            least = 1 if label.at_least is None else label.at_least
            found = np.where(np.isnan(given), MISSING_LABEL, given >= least).astype(np.uint8)
        absent = np.flatnonzero(found == MISSING_LABEL)
        if len(absent) and not may_lack:
            raise self._wrong(column, int(absent[0]), "a label")
        return found

    def weights(self, column: str) -> np.ndarray:
        found = self._numbers(column).astype(np.float32)
        wrong = np.flatnonzero(~(found >= 0) | np.isinf(found))
        if len(wrong):
            raise self._wrong(column, int(wrong[0]), "a weight of at least 0")
        return found

    def groups(self, column: str) -> np.ndarray:
        """[rows] int64: the value where it is a whole number, else a hash of it."""
        array, types = self._arrays[column], self._pa.types
        if types.is_integer(array.type):
            return (
                array.fill_null(np.iinfo(array.type.to_pandas_dtype()).min)
                .to_numpy()
                .astype(np.int64)
            )
        text = array.cast(self._pa.large_string()).fill_null("")
        ends = np.frombuffer(text.buffers()[1], np.int64)[text.offset : text.offset + len(text) + 1]
        bytes_of = np.frombuffer(text.buffers()[2] or b"", np.uint8)
        lengths = np.diff(ends).astype(np.uint32)
        return hash_values(RawIds(bytes_of, ends[:-1].astype(np.uint32), lengths)).view(np.int64)

    def _numbers_of(
        self, array: Any, feature: Sparse | ListFeature, offsets: np.ndarray | None
    ) -> np.ndarray:
        """Ids of a feature, checked; offsets: which row each belongs to, None: one per row."""

        def row_of(place: int) -> int:
            return place if offsets is None else int(np.searchsorted(offsets, place, "right")) - 1

        column, limit = column_of(feature), feature.rows
        assert limit is not None
        expected = f"an id from 0 to {limit - 1:,}"
        if not self._pa.types.is_integer(array.type):
            kind = f"{expected}, a whole number, not {array.type}"
            raise self._wrong(column, row_of(0), kind)
        if array.null_count:
            null = int(np.argmax(array.is_null().to_numpy(zero_copy_only=False)))
            raise self._wrong(column, row_of(null), expected)
        ids = array.to_numpy()
        unsigned = ids.view(f"u{ids.itemsize}")  # negative ids are then above all others
        if len(ids) and int(unsigned.max()) >= min(limit, np.iinfo(ids.dtype).max + 1):
            wrong = int(np.argmax((ids < 0) | (ids >= limit)))
            raise self._wrong(column, row_of(wrong), expected)
        return ids

    def _numbers(self, column: str) -> np.ndarray:
        """[rows] of floats, NaN where missing."""
        array, types = self._arrays[column], self._pa.types
        if types.is_decimal(array.type) or types.is_boolean(array.type):
            array = array.cast(self._pa.float64())
        if not (types.is_floating(array.type) or types.is_integer(array.type)):
            raise self._wrong(column, 0, f"a number, not {array.type}")
        if types.is_integer(array.type):
            array = array.cast(self._pa.float64(), safe=False)
        return array.to_numpy(zero_copy_only=False)

    def _is_zero_or_one(self, column: str) -> bool:
        """Whether a column holds nothing else, as whole numbers: the usual case, told fast."""
        array = self._arrays[column]
        if not self._pa.types.is_integer(array.type) or array.null_count or not len(array):
            return False
        values = array.to_numpy()
        return int(values.min()) >= 0 and int(values.max()) <= 1

    def _is_one_of(self, column: str, positive: tuple[str, ...]) -> np.ndarray:
        array = self._arrays[column].cast(self._pa.string())
        found = self._pa.compute.is_in(array, value_set=self._pa.array(positive))
        is_null = array.is_null().to_numpy(zero_copy_only=False)
        values = found.to_numpy(zero_copy_only=False)
        return np.where(is_null, MISSING_LABEL, values).astype(np.uint8)

    def _wrong(self, column: str, row: int, expected: str) -> ValueError:
        array = self._arrays[column]
        value = array[row].as_py() if len(array) else None
        shown = "nothing" if value is None else repr(value)
        return ValueError(
            f"{self._group.file.name}, row group {self._group.index}, row {row} of it, column "
            f"{column!r}: expected {expected}, found {shown[:80]}; correct the data, or let "
            f"`hotrows prepare` make ids of its values"
        )


def _asked(schema: Schema) -> tuple[str, ...]:
    """The columns that are read; no feature is made of the time."""
    return dataclasses.replace(schema, time=None).raw_columns


def _last(
    values: np.ndarray, offsets: np.ndarray, max_length: int | None
) -> tuple[np.ndarray, np.ndarray]:
    """The last `max_length` ids of each list."""
    lengths = np.diff(offsets)
    if max_length is None or not len(lengths) or lengths.max() <= max_length:
        return values, offsets
    kept = np.minimum(lengths, max_length)
    starts, ends = np.append(offsets[1:] - kept, 0), ends_of(kept)
    out = np.empty(ends[-1], values.dtype)
    return take_lists(values, starts, np.arange(len(kept)), ends, out), ends


def _array(pa: ModuleType, column: Any) -> Any:
    """A column as one array; dictionaries are decoded."""
    array = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(array.chunks)
    if pa.types.is_dictionary(array.type):
        return array.dictionary_decode()
    value_type = getattr(array.type, "value_type", None)
    if value_type is not None and pa.types.is_dictionary(value_type):
        return array.cast(pa.large_list(value_type.value_type))
    return array


def _value_of(pa: ModuleType, text: str) -> Any:
    """What `key=value` in a path says: a whole number, a number, or text."""
    if text == "__HIVE_DEFAULT_PARTITION__":
        return pa.scalar(None, pa.int64())
    for kind in (int, float):
        try:
            return pa.scalar(kind(text))
        except ValueError:
            continue
    return pa.scalar(text)


def _check_schema(schema: Schema) -> None:
    for feature in schema.id_features:
        schema.rows_of(feature.name)
    unfit = [f.name for f in schema.dense if f.transform == "standard"]
    unfit += [f.name for f in schema.sparse if f.transform != "none"]
    if unfit:
        raise ValueError(
            f"features {unfit} have transforms that are learned or made from raw values ('standard' "
            f"of numbers, any of ids); train on data made by `hotrows prepare`, or use others"
        )


def _as_list(given: Places) -> list[str]:
    """Places as text that means the same in another folder."""
    places = [given] if isinstance(given, str | Path) else list(given)
    return [str(place) if "://" in str(place) else os.path.abspath(place) for place in places]


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
