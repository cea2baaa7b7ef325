"""Arrow columns as cells: Parquet files, Arrow tables, and pandas or Polars frames.

Text stays where Arrow keeps it. Ids that are whole numbers are read as their decimal digits, so that
a value gets the same id from a CSV file and from a Parquet file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np

from hotrows.data import values
from hotrows.data.ahead import Ahead
from hotrows.data.cells import Bad, columns_of, show
from hotrows.data.columns import Columns, RawIds
from hotrows.data.files import File
from hotrows.data.layout import check_present
from hotrows.data.values import MISSING_TIME
from hotrows.schema import Schema

ROWS_PER_CHUNK = 1 << 16
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


def pyarrow() -> ModuleType:
    """The module pyarrow; one sentence where it is not installed."""
    try:
        import pyarrow
        import pyarrow.compute
        import pyarrow.parquet
    except ImportError:
        raise ValueError(
            "Parquet, Arrow tables, data frames and zstd need pyarrow: pip install pyarrow"
        ) from None
    return pyarrow


@dataclass(frozen=True)
class ArrowCells:
    """A record batch: `Cells` of Arrow. first_row: the number of its first row in `name`."""

    batch: Any
    name: str
    first_row: int
    schema: Schema
    threads: int

    @property
    def num_rows(self) -> int:
        return self.batch.num_rows

    def has(self, column: str) -> bool:
        return column in self.batch.schema.names

    def raw(self, column: str) -> RawIds:
        array = self.batch.column(column)
        if _is_list(array.type):
            raise self._unfit(column, "a single value", "declare a Sequence, or Sparse(many=True)")
        return self._trimmed(self._text(array, column))

    def lists(self, column: str, separator: str) -> RawIds:
        array = self.batch.column(column)
        if not _is_list(array.type):
            found = values.cut_lists(self.raw(column), separator, self.threads)
            return self._trimmed(found)
        if _is_list(array.type.value_type):
            raise self._unfit(column, "a list of values", "lists of lists are not read")
        offsets, flat = _unnested(array)
        return self._trimmed(self._text(flat, column), offsets)

    def numbers(self, columns: Sequence[str]) -> tuple[np.ndarray, Bad | None]:
        found = np.full((len(columns), self.num_rows), np.nan)
        problems = []
        for into, column in zip(found, columns, strict=True):
            into[:], bad = self._numbers(column)
            if bad is not None:
                problems.append(Bad(bad, column, "number"))
        return found, min(problems, key=lambda bad: bad.row, default=None)

    def times(self, column: str, format: str) -> tuple[np.ndarray, Bad | None]:
        pa, array = pyarrow(), self.batch.column(column)
        types = pa.types
        if types.is_date(array.type):
            array = array.cast(pa.timestamp("s"))
        if types.is_timestamp(array.type):
            ticks = array.cast(pa.int64())
            found = np.full(self.num_rows, MISSING_TIME)
            present = ticks.is_valid().to_numpy(zero_copy_only=False)
            whole = ticks.fill_null(0).to_numpy()[present]
            found[present] = whole // _PER_SECOND[array.type.unit]
            return found, None
        if format in ("unix", "unix_ms"):
            found, bad = values.seconds_of(*self._numbers(column), format)
        else:
            found, bad = values.parse_times(self.raw(column), format, self.threads)
        return found, None if bad is None else Bad(bad, column, f"time {format}")

    def where(self, row: int) -> str:
        return f"{self.name} row {self.first_row + row:,}"

    def shown(self, row: int, column: str) -> str:
        array = self.batch.column(column)
        if _is_text(array.type):
            return show(self.raw(column).value(row))
        try:
            value = array[row].as_py()
        except (ValueError, OverflowError):  # a time or duration beyond those of Python
            value = array.cast(pyarrow().int64())[row].as_py()
        return "nothing" if value is None else show(str(value).encode())

    def _numbers(self, column: str) -> tuple[np.ndarray, int | None]:
        pa, array = pyarrow(), self.batch.column(column)
        if pa.types.is_dictionary(array.type):
            array = array.dictionary_decode()
        kind = array.type
        if pa.types.is_boolean(kind):
            array = array.cast(pa.int8())
        elif _is_text(kind) or str(kind) == "string_view":
            return values.parse_numbers(self.raw(column), self.threads)
        elif not any(
            test(kind)
            for test in (
                pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal, pa.types.is_null
            )
        ):  # fmt: skip
            raise self._unfit(column, "numbers", "convert the column, or correct the schema")
        found = array.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
        with np.errstate(over="ignore"):
            wrong = np.flatnonzero(np.isinf(found.astype(np.float32)))
        return found + 0.0, int(wrong[0]) if len(wrong) else None

    def _text(self, array: Any, column: str) -> RawIds:
        """The values of a flat array as bytes; nothing is copied where they are text already."""
        pa = pyarrow()
        types, kind = pa.types, array.type
        if types.is_dictionary(kind):
            return self._dictionary(array, column)
        if types.is_floating(kind):
            array = self._whole(array, column)
        elif types.is_decimal(kind) or types.is_nested(kind):
            raise self._unfit(column, "ids (text or whole numbers)", "convert the column")
        if not _is_text(array.type):
            array = self._as_text(array, column)
        return _spans(array)

    def _as_text(self, array: Any, column: str) -> Any:
        """Bytes as they stand, which need not be UTF-8; numbers and times as they are written."""
        pa = pyarrow()
        is_bytes = pa.types.is_binary_view(array.type) or pa.types.is_fixed_size_binary(array.type)
        try:
            return array.cast(pa.large_binary() if is_bytes else pa.large_string())
        except pa.ArrowException:
            raise self._unfit(column, "ids (text or whole numbers)", "convert the column") from None

    def _dictionary(self, array: Any, column: str) -> RawIds:
        words = self._text(array.dictionary, column)
        present = array.indices.is_valid().to_numpy(zero_copy_only=False)
        which = array.indices.fill_null(0).to_numpy(zero_copy_only=False)
        if not len(words):
            return values.no_values(len(array))
        lengths = np.where(present, words.lengths[which], 0).astype(np.uint32)
        return RawIds(words.text, words.starts[which], lengths)

    def _whole(self, array: Any, column: str) -> Any:
        """Whole numbers of floats: what a frame makes of whole numbers with some missing."""
        pa = pyarrow()
        array = pa.compute.if_else(pa.compute.is_nan(array), None, array)
        try:
            return array.cast(pa.int64())
        except pa.ArrowInvalid:
            raise self._unfit(
                column, "ids (text or whole numbers)", "use it as Dense, or with transform='bucket'"
            ) from None

    def _trimmed(self, found: RawIds, offsets: np.ndarray | None = None) -> RawIds:
        own = found
        if self.schema.strip or self.schema.missing:
            own = RawIds(found.text, found.starts.copy(), found.lengths.copy(), found.offsets)
            values.blank(own, self.schema.strip, self.schema.missing, self.threads)
        return own if offsets is None else RawIds(own.text, own.starts, own.lengths, offsets)

    def _unfit(self, column: str, expected: str, what: str) -> ValueError:
        kind = self.batch.column(column).type
        return ValueError(
            f"{self.name}, column {column!r}: expected {expected}, found {kind}; {what}"
        )


def parquet_columns(
    file: File, schema: Schema, threads: int, for_training: bool, first_group: int = 0
) -> Iterator[tuple[int, Columns]]:
    """The columns of a Parquet file, some rows at a time, each with the number of its row group."""
    for group, first_row, batch in Ahead(_batches(file, schema, first_group, for_training), 1):
        cells = ArrowCells(batch, file.name, first_row, schema, threads)
        yield group, columns_of(cells, schema, for_training)


def table_columns(
    table: Any, name: str, schema: Schema, threads: int, for_training: bool
) -> Iterator[Columns]:
    """The columns of an Arrow table, some rows at a time."""
    asked = check_present(schema, name, tuple(table.schema.names), for_training)
    first_row = 0
    for batch in table.select(asked).combine_chunks().to_batches(ROWS_PER_CHUNK):
        cells = ArrowCells(batch, name, first_row, schema, threads)
        yield columns_of(cells, schema, for_training)
        first_row += batch.num_rows


def as_table(given: Any) -> Any:
    """The Arrow table of a table, a record batch, or a pandas or Polars frame."""
    pa = pyarrow()
    if isinstance(given, pa.Table):
        return given
    if isinstance(given, pa.RecordBatch):
        return pa.Table.from_batches([given])
    if hasattr(given, "__arrow_c_stream__"):
        return pa.table(given)
    raise ValueError(
        f"expected paths, an Arrow table, or a pandas or Polars frame, not {type(given).__name__}"
    )


def open_parquet_file(file: File) -> Any:
    """The Parquet file; an error where it is none."""
    pa = pyarrow()
    try:
        return pa.parquet.ParquetFile(file.path if file.system is None else file.open())
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise ValueError(
            f"{file.name} is no whole Parquet file ({_first_line(error)}); write it again"
        ) from error


def _batches(
    file: File, schema: Schema, first_group: int, for_training: bool
) -> Iterator[tuple[int, int, Any]]:
    """Number of the row group, of the first row, and the rows."""
    pa = pyarrow()
    opened = open_parquet_file(file)
    try:
        inside = opened.schema_arrow.names
        names = (*inside, *(name for name in file.partitions if name not in inside))
        asked = check_present(schema, file.name, names, for_training)
        stored = [column for column in asked if column in inside]
        groups = range(opened.num_row_groups)
        first_row = sum(opened.metadata.row_group(g).num_rows for g in groups[:first_group])
        for group in groups[first_group:]:
            how = {"batch_size": ROWS_PER_CHUNK, "row_groups": [group], "columns": stored}
            for batch in opened.iter_batches(**how):
                yield group, first_row, _with_partitions(batch, asked, file)
                first_row += batch.num_rows
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise ValueError(
            f"{file.name} is damaged ({_first_line(error)}); write it again"
        ) from error


def _with_partitions(batch: Any, asked: Sequence[str], file: File) -> Any:
    """The batch with a column for what its path says of every row."""
    pa = pyarrow()
    for name in (name for name in asked if name not in batch.schema.names):
        nulls = file.partitions[name] == "__HIVE_DEFAULT_PARTITION__"
        value = pa.array([None if nulls else file.partitions[name]], pa.string())
        which = pa.array(np.zeros(batch.num_rows, np.int32))
        batch = batch.append_column(name, pa.DictionaryArray.from_arrays(which, value))
    return batch


def _unnested(array: Any) -> tuple[np.ndarray, Any]:
    """offsets [rows + 1] int64, and the values of all lists; a null is an empty list."""
    pa = pyarrow()
    if pa.types.is_fixed_size_list(array.type):
        array = array.cast(pa.large_list(array.type.value_type))
    lengths = pa.compute.list_value_length(array).fill_null(0).to_numpy(zero_copy_only=False)
    offsets = np.concatenate([[0], lengths.cumsum(dtype=np.int64)])
    return offsets, array.flatten()


def _spans(array: Any) -> RawIds:
    """Where the values of a text array stand in its buffer."""
    pa = pyarrow()
    wide = pa.types.is_large_string(array.type) or pa.types.is_large_binary(array.type)
    _, offsets, text = array.buffers()
    n = len(array)
    if not n or text is None:
        return values.no_values(n)
    bounds: np.ndarray = np.frombuffer(offsets, np.int64 if wide else np.int32)
    bounds = bounds[array.offset : array.offset + n + 1]
    first, end = int(bounds[0]), int(bounds[-1])
    if end - first >= 1 << 32:
        raise ValueError(f"{n:,} values hold more than 4 GiB of text; write smaller row groups")
    bounds = bounds - first
    lengths = np.diff(bounds).astype(np.uint32)
    if array.null_count:
        lengths[array.is_null().to_numpy(zero_copy_only=False)] = 0
    starts = bounds[:-1].astype(np.uint32)
    return RawIds(np.frombuffer(text, np.uint8)[first:end], starts, lengths)


def _is_list(kind: Any) -> bool:
    types = pyarrow().types
    return types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)


def _is_text(kind: Any) -> bool:
    types = pyarrow().types
    return any(
        test(kind)
        for test in (types.is_string, types.is_large_string, types.is_binary, types.is_large_binary)
    )


def _first_line(error: Exception) -> str:
    """What an error says, in one short line: Arrow repeats bytes of the file."""
    lines = str(error).splitlines() or [type(error).__name__]
    return "".join(c if c.isprintable() else "?" for c in lines[0][:200])
