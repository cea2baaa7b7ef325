"""Columns of a Parquet file as arrays of a batch: row groups, their handles, and checked values."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock
from types import ModuleType
from typing import Any

import numpy as np

from hotrows.data.raw.arrow_arrays import first_line, seconds_of_moments, value_at, vectors_of
from hotrows.data.raw.cells import MISSING_LABEL
from hotrows.data.raw.files import File, pyarrow
from hotrows.data.raw.typed_files import open_parquet_file
from hotrows.data.raw.values import UNIX, RawIds, groups_of, kind_of_time, seconds_of
from hotrows.data.stored.rows import ends_of, take_lists
from hotrows.losses import NO_GROUP
from hotrows.schema import MISSING_KEY, Dense, Label, Sparse, Time, column_of
from hotrows.schema import Sequence as ListFeature

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
    """The columns of a row group as arrays of checked values."""

    def __init__(self, group: RowGroup, names: Sequence[str], handles: Handles) -> None:
        self._group = group
        self._pa = pyarrow()
        try:
            with handles.lent(group.file, group.metadata) as file:
                present = set(file.schema_arrow.names)
                stored = [name for name in names if name in present]
                table = file.read_row_group(group.index, columns=stored)
            self._arrays = {name: _array(self._pa, table.column(name)) for name in stored}
        except (self._pa.ArrowException, OSError) as error:
            raise ValueError(
                f"{group.file.name} is damaged ({first_line(error)}); write it again"
            ) from error
        for name in (name for name in names if name not in self._arrays):
            value = _value_of(self._pa, group.file.partitions[name])
            self._arrays[name] = self._pa.repeat(value, group.rows)

    def ids(self, feature: Sparse | ListFeature) -> np.ndarray:
        """Returns the ids [rows] of a feature with one id per row."""
        return self._numbers_of(self._arrays[column_of(feature)], feature, None)

    def lists(self, feature: Sparse | ListFeature) -> tuple[np.ndarray, np.ndarray]:
        """Returns ids [N] and offsets [rows + 1] of a list feature."""
        column = column_of(feature)
        array, types = self._arrays[column], self._pa.types
        if not (types.is_list(array.type) or types.is_large_list(array.type)):
            if not types.is_fixed_size_list(array.type):
                raise self._wrong(column, 0, "a list of ids")
            array = array.cast(self._pa.large_list(array.type.value_type))
        lengths = self._pa.compute.list_value_length(array).fill_null(0)
        offsets = ends_of(lengths.to_numpy(zero_copy_only=False))
        return _last(self._numbers_of(array.flatten(), feature, offsets), offsets, feature.max_length)

    def dense(self, feature: Dense) -> np.ndarray:
        """[rows] float32, transformed; 0 where missing."""
        column = column_of(feature)
        numbers = self._numbers(column)
        if feature.transform == "missing":
            return np.isnan(numbers).astype(np.float32)
        if feature.transform == "log":
            numbers = np.log1p(np.maximum(numbers.astype(np.float64), 0))
        with np.errstate(over="ignore"):
            values = numbers.astype(np.float32, copy=False)
        if np.isfinite(values).all():
            return values
        infinite = np.flatnonzero(np.isinf(values))
        if len(infinite):
            raise self._wrong(column, int(infinite[0]), "a number that float32 can hold")
        return np.where(np.isnan(values), np.float32(0), values)

    def vectors(self, feature: Dense) -> np.ndarray:
        """[rows, width] float32; 0 where missing."""
        vectors, bad = vectors_of(self._arrays[column_of(feature)], feature)
        if bad is not None:
            raise self._wrong(bad.column, bad.row, f"a {bad.expected}")
        return np.nan_to_num(vectors, copy=False)

    def label(self, label: Label, may_lack: bool) -> np.ndarray:
        """[rows]: 0, 1, or 255 where missing; or the number, NaN where missing."""
        column = column_of(label)
        if not label.values.binary:
            return self._number_label(label, may_lack)
        if label.positive:
            labels = self._is_one_of(column, label.positive)
        elif label.at_least is None and self._is_zero_or_one(column):
            return self._arrays[column].to_numpy().astype(np.uint8)
        else:
            numbers = self._numbers(column)
            wrong = (numbers != 0) & (numbers != 1) & ~np.isnan(numbers)
            if label.at_least is None and wrong.any():
                raise self._wrong(column, int(np.argmax(wrong)), "a label 0 or 1")
            least = 1 if label.at_least is None else label.at_least
            labels = np.where(np.isnan(numbers), MISSING_LABEL, numbers >= least).astype(np.uint8)
        absent = np.flatnonzero(labels == MISSING_LABEL)
        if len(absent) and not may_lack:
            raise self._wrong(column, int(absent[0]), "a label")
        return labels

    def _number_label(self, label: Label, may_lack: bool) -> np.ndarray:
        column = column_of(label)
        numbers = self._numbers(column)
        absent = np.isnan(numbers)
        wrong = np.flatnonzero(label.values.wrong(numbers) & ~(absent & may_lack))
        if len(wrong):
            raise self._wrong(column, int(wrong[0]), f"a {label.values.words}")
        return numbers.astype(np.float32)

    def weights(self, column: str) -> np.ndarray:
        weights = self._numbers(column).astype(np.float32)
        wrong = np.flatnonzero(~(weights >= 0) | np.isinf(weights))
        if len(wrong):
            raise self._wrong(column, int(wrong[0]), "a weight of at least 0")
        return weights

    def groups(self, column: str) -> np.ndarray:
        """[rows] int64: the value where it is a whole number, else a hash of it; NO_GROUP: missing."""
        array, types = self._arrays[column], self._pa.types
        if types.is_integer(array.type):
            groups = array.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
        else:
            text = array.cast(self._pa.large_string()).fill_null("")
            ends = np.frombuffer(text.buffers()[1], np.int64)[text.offset : text.offset + len(text) + 1]
            bytes_of = np.frombuffer(text.buffers()[2] or b"", np.uint8)
            lengths = np.diff(ends).astype(np.uint32)
            groups = groups_of(RawIds(bytes_of, ends[:-1].astype(np.uint32), lengths))
        groups[array.is_null(nan_is_null=True).to_numpy(zero_copy_only=False)] = NO_GROUP
        return groups

    def times(self, time: Time) -> np.ndarray:
        """[rows] int64, seconds since 1970, of a column of timestamps or numbers."""
        moments = seconds_of_moments(self._arrays[time.column])
        if moments is None and time.format not in UNIX:
            raise self._wrong(time.column, 0, "a timestamp or a number of seconds")
        seconds, bad = moments or seconds_of(
            self._numbers(time.column).astype(np.float64), None, time.format
        )
        if bad is not None:
            raise self._wrong(time.column, bad, f"a {kind_of_time(time.format)}")
        return seconds[0]

    def _numbers_of(
        self, array: Any, feature: Sparse | ListFeature, offsets: np.ndarray | None
    ) -> np.ndarray:
        """Checks ids of a feature. offsets: [rows + 1] of lists, None: one id per row."""

        def row_of(place: int) -> int:
            return place if offsets is None else int(np.searchsorted(offsets, place, "right")) - 1

        column, limit = column_of(feature), feature.rows
        if feature.dynamic is not None:
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

    def _numbers(self, column: str) -> np.ndarray:
        """Returns [rows] floats, NaN where missing."""
        array, types = self._arrays[column], self._pa.types
        if types.is_decimal(array.type) or types.is_boolean(array.type):
            array = array.cast(self._pa.float64())
        if not (types.is_floating(array.type) or types.is_integer(array.type)):
            raise self._wrong(column, 0, f"a number, not {first_line(array.type)}")
        if types.is_integer(array.type):
            array = array.cast(self._pa.float64(), safe=False)
        return array.to_numpy(zero_copy_only=False)

    def _is_zero_or_one(self, column: str) -> bool:
        """True if a column holds only the whole numbers 0 and 1: the usual case, checked fast."""
        array = self._arrays[column]
        if not self._pa.types.is_integer(array.type) or array.null_count or not len(array):
            return False
        values = array.to_numpy()
        return int(values.min()) >= 0 and int(values.max()) <= 1

    def _is_one_of(self, column: str, positive: tuple[str, ...]) -> np.ndarray:
        array = self._arrays[column].cast(self._pa.string())
        is_positive = self._pa.compute.is_in(array, value_set=self._pa.array(positive))
        is_null = array.is_null().to_numpy(zero_copy_only=False)
        values = is_positive.to_numpy(zero_copy_only=False)
        return np.where(is_null, MISSING_LABEL, values).astype(np.uint8)

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
    kept = np.minimum(lengths, max_length)
    starts, ends = np.append(offsets[1:] - kept, 0), ends_of(kept)
    out = np.empty(ends[-1], values.dtype)
    return take_lists(values, starts, np.arange(len(kept)), ends, out), ends


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
