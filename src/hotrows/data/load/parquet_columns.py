"""Columns of a Parquet file as arrays of a batch: row groups, their handles, and checked values."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock
from types import ModuleType
from typing import Any

import numpy as np

from hotrows.data.columns.id import IdColumn
from hotrows.data.columns.list import ListColumn
from hotrows.data.columns.of_schema import SchemaColumns
from hotrows.data.raw.arrow_arrays import first_line, is_list, unnested, value_at
from hotrows.data.raw.cells import cells_of
from hotrows.data.raw.files import File, pyarrow
from hotrows.data.raw.reading import Reading
from hotrows.data.raw.typed_files import explained, open_parquet_file
from hotrows.data.rows import Rows, lists_between
from hotrows.losses import NO_GROUP
from hotrows.schema import MISSING_KEY

_MOST_IDLE = 32


@dataclass(frozen=True)
class RowGroup:
    """A row group that is not empty. metadata: of its file, kept to read it once."""

    file: File
    index: int
    rows: int
    metadata: Any


class Handles:
    """Open files, each lent to one reader at a time; up to `_MOST_IDLE` remain open when idle."""

    def __init__(self) -> None:
        self._idle: list[tuple[str, Any]] = []
        self._lock = Lock()

    def __reduce__(self) -> Any:  # another process opens its own
        return Handles, ()

    @contextmanager
    def lent(self, file: File, metadata: Any) -> Iterator[Any]:
        with self._lock:
            places = [i for i, (name, _) in enumerate(self._idle) if name == file.name]
            handle = self._idle.pop(places[-1])[1] if places else None
        handle = handle or open_row_groups(file, metadata)
        yield handle
        with self._lock:
            self._idle.append((file.name, handle))
            longest = self._idle.pop(0)[1] if len(self._idle) > _MOST_IDLE else None
        if longest is not None:
            longest.close()


def open_row_groups(file: File, metadata: Any = None) -> Any:
    """Opens a Parquet file to read single row groups; metadata: of the file, if it was read before."""
    local = file.system is None  # of remote files, few large requests
    return open_parquet_file(file, metadata=metadata, memory_map=local, pre_buffer=not local)


class RowGroupColumns:
    """The columns of a row group: ids as they are stored, and all others as every reader reads them."""

    def __init__(self, group: RowGroup, columns: SchemaColumns, how: Reading, handles: Handles) -> None:
        self._group, self._columns, self._pa = group, columns, pyarrow()
        with explained(f"{group.file.name} is damaged"):
            with handles.lent(group.file, group.metadata) as file:
                present = set(file.schema_arrow.names)
                stored = [name for name in how.columns if name in present]
                table = file.read_row_group(group.index, columns=stored)
            self._arrays = {name: _array(self._pa, table.column(name)) for name in stored}
        for name in (name for name in how.columns if name not in self._arrays):
            value = _value_of(self._pa, group.file.partitions[name])
            self._arrays[name] = self._pa.repeat(value, group.rows)
        batch = self._pa.RecordBatch.from_pydict(self._arrays)
        self._cells = cells_of(batch, f"{group.file.name}, row group {group.index}", 0, how)

    def rows(self) -> Rows:
        """The rows, encoded and checked."""
        rows = self._columns.as_stored(self._cells, self._ids)
        group = self._columns.schema.group
        if group is not None and self._pa.types.is_integer(self._arrays[group].type):
            groups = self._arrays[group].cast(self._pa.int64(), safe=False).fill_null(NO_GROUP)
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
        if not self._pa.types.is_integer(array.type):
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
        if not self._pa.types.is_integer(array.type):
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


def _array(pa: ModuleType, column: Any) -> Any:
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


def _value_of(pa: ModuleType, text: str) -> Any:
    """Parses the value of `key=value` in a path: a whole number, a number, or text."""
    if text == "__HIVE_DEFAULT_PARTITION__":
        return pa.scalar(None, pa.int64())
    for kind in (int, float):
        try:
            return pa.scalar(kind(text))
        except ValueError:
            continue
    return pa.scalar(text)
