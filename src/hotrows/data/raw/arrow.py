"""Arrow columns as cells: of typed files, Arrow tables, and frames.

Text is read in Arrow's own buffers. Other ids become the canonical text of their value: it gets one
id, whether it comes from a CSV file or from a Parquet file.

Rows may be requests, with lists of candidates: a row for each candidate is made of them.

    request  history  item     label                request  history  item  label
    r1       a|b      [x, y]   [0, 1]       ->      r1       a|b      x     0
                                                    r1       a|b      y     1

So they are read where the first label is a list and the schema has
requests. What the schema says is shared is there once in a row; any other column is too, or is a list as
long as that of the label, of lists where the feature is one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from hotrows.data.raw import values
from hotrows.data.raw.arrow_arrays import (
    first_line,
    has_many_texts,
    is_list,
    is_number,
    is_of_text,
    is_of_vectors,
    is_pickled,
    is_text,
    lengths_of,
    seconds_of_moments,
    spans_of,
    unnested,
    value_at,
    vectors_of,
)
from hotrows.data.raw.cell_source import Bad
from hotrows.data.raw.cells import Columns, Reading, check_present, columns_of, show
from hotrows.data.raw.files import pyarrow
from hotrows.data.raw.values import RawIds
from hotrows.schema import Dense, Schema, column_of
from hotrows.schema import is_list as has_lists

ROWS_PER_CHUNK = 1 << 16
_NUMBERS_PER_CHUNK = 1 << 23  # of vectors
_EXACT_BITS = {16: 11, 32: 24, 64: 53}  # of floats by their width: they hold all whole numbers below
_FEW = 1 << 14  # values: reading them takes less time than a call for every column
_BEYOND_FLOAT32 = float.fromhex("0x1.ffffffp+127")  # the least number that is infinite as float32


@dataclass(frozen=True)
class ArrowCells:
    """`Cells` of an Arrow record batch. first_row: number of its first row in the file `name`; rows: of
    candidates, the row of the file that each is in."""

    batch: Any
    name: str
    first_row: int
    how: Reading
    rows: np.ndarray | None = None

    @property
    def num_rows(self) -> int:
        return self.batch.num_rows

    @property
    def kept(self) -> Any:
        if self.how.kept == ():
            return None
        names = self.batch.schema.names if self.how.kept is None else self.how.kept
        columns = {name: self.batch.column(name) for name in names}
        is_coded = pyarrow().types.is_dictionary
        plain = {n: c.dictionary_decode() if is_coded(c.type) else c for n, c in columns.items()}
        return pyarrow().table(plain)

    def has(self, column: str) -> bool:
        return bool(self.batch.schema.get_all_field_indices(column))

    def raw(self, column: str) -> RawIds:
        few = self._few_ids
        return few[column] if column in few else self.how.text(self._single(column), column)

    def lists(self, column: str, separator: str) -> RawIds:
        array = self.batch.column(column)
        if not is_list(array.type):
            cells = self._trimmed(self._text(array, column))
            cut = values.cut_lists(cells, separator, self.how.threads)
            return self.how.text(self._trimmed(cut, column), column)
        if is_list(array.type.value_type):
            raise self._unfit(column, "a list of values", "lists of lists are not read")
        offsets, flat = unnested(array)
        ids = self._trimmed(self._text(flat, column), column)
        return self.how.text(RawIds(ids.text, ids.starts, ids.lengths, offsets), column)

    def numbers(self, columns: Sequence[str]) -> tuple[np.ndarray, Bad | None]:
        numbers = np.full((len(columns), self.num_rows), np.nan)
        texts, joined = self._few_texts(columns)
        parsed, wrong = values.parse_numbers(joined, self.how.threads, self.how.marks)
        rows_of_texts = parsed.reshape(len(texts), self.num_rows)
        few = dict(zip(texts, rows_of_texts, strict=True)) if wrong is None else {}
        problems = []
        for into, column in zip(numbers, columns, strict=True):
            into[:], bad = (few[column], None) if column in few else self._numbers(column)
            if bad is not None:
                problems.append(Bad(bad, column, "number"))
        return numbers, min(problems, key=lambda bad: bad.row, default=None)

    def list_numbers(self, column: str, separator: str) -> tuple[np.ndarray, np.ndarray, int | None]:
        array = self.batch.column(column)
        if not is_list(array.type):
            cut = values.cut_lists(self._text(array, column), separator, self.how.threads)
            assert cut.offsets is not None
            numbers, bad = values.parse_numbers(cut, self.how.threads, self.how.marks)
            return numbers, cut.offsets, bad
        if not is_of_vectors(array.type):
            raise self._unfit(column, "lists of numbers", "convert the column")
        offsets, flat = unnested(array)
        return flat.to_numpy(zero_copy_only=False).astype(np.float64), offsets, None

    def vectors(self, column: str, feature: Dense) -> tuple[np.ndarray, Bad | None]:
        return vectors_of(self.batch.column(column), feature)

    def times(self, column: str, format: str) -> tuple[np.ndarray, Bad | None]:
        moments = seconds_of_moments(self.batch.column(column))
        if moments is not None:
            seconds, bad = moments
        elif format in values.UNIX:
            numbers, bad = self._numbers(column)
            values.blank_numbers(numbers, self.how.schema.missing_of(column))
            seconds, bad = values.seconds_of(numbers, bad, format)
        else:
            seconds, bad = values.parse_times(self._single(column), format, self.how.threads)
        return seconds, None if bad is None else Bad(bad, column, values.kind_of_time(format))

    def where(self, row: int) -> str:
        return f"{self.name} row {self.first_row + row if self.rows is None else self.rows[row]:,}"

    def shown(self, row: int, column: str) -> str:
        array = self.batch.column(column)
        if is_of_text(array.type):
            return show(self._single(column).value(row))
        if pyarrow().types.is_dictionary(array.type):
            array = array.dictionary_decode()
        value = value_at(array, row)
        return "nothing" if value is None else show(str(value).encode())

    @cached_property
    def _few_ids(self) -> dict[str, RawIds]:
        """The ids of all columns of text or int64 by name, where there are few values."""
        schema, rows = self.how.schema, self.num_rows
        single = [f for f in schema.sparse if not f.many and f.transform == "none"]
        columns = dict.fromkeys(schema.column_of(feature) for feature in single)
        texts, joined = self._few_texts(list(columns), integers=True)
        ids = self.how.text(joined, *texts)
        spans = (slice(i * rows, (i + 1) * rows) for i in range(len(texts)))
        cut = (RawIds(ids.text, ids.starts[span], ids.lengths[span]) for span in spans)
        return dict(zip(texts, cut, strict=True))

    def _few_texts(self, columns: Sequence[str], integers: bool = False) -> tuple[list[str], RawIds]:
        """Those of the columns that are of text, and their values, column after column; none where
        there are many values. integers: also those of int64, as text."""
        pa = pyarrow()
        arrays = {c: self.batch.column(c) for c in columns if self.has(c)}
        texts = {column: array for column, array in arrays.items() if array.type == pa.string()}
        numbers = {c: array for c, array in arrays.items() if integers and array.type == pa.int64()}
        if (len(texts) + len(numbers)) * self.num_rows > _FEW or len(texts) + len(numbers) < 2:
            return [], values.no_values(0)
        parts = [*texts.values()]
        if numbers:
            parts.append(pa.concat_arrays(numbers.values()).cast(pa.string()))
        names = [*texts, *numbers]
        return names, self._trimmed(spans_of(pa.concat_arrays(parts)), *names)

    def _numbers(self, column: str) -> tuple[np.ndarray, int | None]:
        pa, array = pyarrow(), self.batch.column(column)
        if array.type != pa.float64():
            if is_of_text(array.type):
                return values.parse_numbers(self._single(column), self.how.threads, self.how.marks)
            if pa.types.is_dictionary(array.type):
                array = array.dictionary_decode()
            kind = array.type
            if pa.types.is_boolean(kind):
                array = array.cast(pa.int8())
            elif not is_number(kind):
                what = "declare Dense with a width" if is_list(kind) else "correct the schema"
                raise self._unfit(column, "numbers", f"convert the column, or {what}")
            array = array.cast(pa.float64(), safe=False)
        numbers = array.to_numpy(zero_copy_only=False)
        wrong = np.abs(numbers) >= _BEYOND_FLOAT32
        return numbers + 0.0, int(wrong.argmax()) if wrong.any() else None

    def _single(self, column: str) -> RawIds:
        """The values of a column, one per row, as they were found."""
        array = self.batch.column(column)
        if is_list(array.type):
            raise self._unfit(column, "a single value", "declare a Sequence, or Sparse(many=True)")
        return self._trimmed(self._text(array, column), column)

    def _text(self, array: Any, column: str) -> RawIds:
        """The values of a flat array as bytes; text is not copied."""
        types, kind = pyarrow().types, array.type
        if types.is_large_binary(kind) and is_pickled(self.batch.schema.field(column)):
            what = "Ray pickled its objects: map_batches(.., batch_format='pyarrow') keeps lists"
            raise self._unfit(column, "ids (text or whole numbers)", what)
        if types.is_dictionary(kind):
            return self._dictionary(array, column)
        if types.is_floating(kind):
            array = self._whole(array, column)
        elif has_many_texts(kind):
            raise self._unfit(column, "ids (text or whole numbers)", "convert the column")
        if not is_text(array.type):
            array = self._as_text(array, column)
        return spans_of(array)

    def _as_text(self, array: Any, column: str) -> Any:
        """Casts to text; bytes are left unchanged and need not be UTF-8."""
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
        """Casts floats to whole numbers: frames store whole numbers with missing values as floats."""
        pa = pyarrow()
        kind, bits = array.type, _EXACT_BITS[array.type.bit_width]
        if pa.types.is_float16(kind):  # which Arrow does not calculate with
            array = array.cast(pa.float32())
        array = pa.compute.if_else(pa.compute.is_nan(array), None, array)
        try:
            integers = array.cast(pa.int64())
        except pa.ArrowInvalid:
            raise self._unfit(
                column, "ids (text or whole numbers)", "use it as Dense, or with transform='bucket'"
            ) from None
        far = pa.compute.greater_equal(pa.compute.abs_checked(array), float(1 << bits))
        if pa.compute.any(far).as_py():
            what = (
                f"{kind} from 2^{bits} on skips whole numbers: store the column as integers, or as text"
            )
            raise self._unfit(column, "ids (text or whole numbers)", what)
        return integers

    def _trimmed(self, ids: RawIds, *columns: str) -> RawIds:
        """The values of columns without spaces, where the schema says so, and without those that mean
        missing."""
        schema = self.how.schema
        if schema.strip or (schema.missing and columns):
            ids = RawIds(ids.text, ids.starts.copy(), ids.lengths.copy(), ids.offsets)
            values.blank(ids, schema.strip, (), self.how.threads)
            self.how.blank(ids, *columns)
        return ids

    def _unfit(self, column: str, expected: str, what: str) -> ValueError:
        kind = first_line(self.batch.column(column).type)
        return ValueError(f"{self.name}, column {column!r}: expected {expected}, found {kind}; {what}")


def table_columns(table: Any, name: str, how: Reading, first_row: int = 0) -> Iterator[Columns]:
    """Yields the columns of an Arrow table, up to ROWS_PER_CHUNK rows at a time. first_row: the number
    of its first row in what is called `name`."""
    columns = check_present(how, name, tuple(table.schema.names))
    for batch in table.select(columns).combine_chunks().to_batches(rows_per_chunk(how.schema)):
        yield from columns_of_batch(batch, name, first_row, how)
        first_row += batch.num_rows


def rows_per_chunk(schema: Schema) -> int:
    """The rows of a chunk: fewer where they have wide vectors."""
    width = schema.num_dense - len(schema.dense)
    return min(ROWS_PER_CHUNK, max(1, _NUMBERS_PER_CHUNK // max(1, width)))


def columns_of_tables(
    tables: Iterable[Any], name: str, how: Reading, skip: int
) -> Iterator[tuple[int, Columns | int]]:
    """Yields (rows so far, columns) of tables that follow each other; of the first `skip` the number of
    rows."""
    done = first_row = number = 0
    for table in tables:
        for columns in table_columns(table, name, how, first_row):
            done += columns.num_rows
            yield done, columns.num_rows if number < skip else columns
            number += 1
        first_row += table.num_rows


def columns_of_batch(batch: Any, name: str, first_row: int, how: Reading) -> Iterator[Columns]:
    """Yields the columns of a record batch; where rows have lists of candidates, in several chunks."""
    for part, rows in rows_of_candidates(batch, how.schema, name, first_row, rows_per_chunk(how.schema)):
        yield columns_of(ArrowCells(part, name, first_row, how, rows), how)


def rows_of_candidates(
    batch: Any, schema: Schema, name: str, first_row: int, most: int
) -> Iterator[tuple[Any, np.ndarray | None]]:
    """Yields record batches of about `most` rows at most, and of each row its number in the file; None:
    the batch has no lists of candidates and is as it was.

    batch: an Arrow record batch, the first row of which is `first_row` of the file `name`.
    """
    label = column_of(schema.labels[0])
    if schema.request is None or label not in batch.schema.names or not is_list(batch.column(label).type):
        yield batch, None
        return
    lengths = lengths_of(batch.column(label))
    ends = np.concatenate([[0], lengths.cumsum()])
    first = 0
    while first < batch.num_rows:
        end = max(int(np.searchsorted(ends, ends[first] + most, side="right")) - 1, first + 1)
        place = first_row + first
        yield _exploded(batch.slice(first, end - first), schema, label, name, place)
        first = end


def _exploded(
    batch: Any, schema: Schema, label: str, name: str, first_row: int
) -> tuple[Any, np.ndarray]:
    import pyarrow as pa

    lengths = lengths_of(batch.column(label))
    row = np.repeat(np.arange(batch.num_rows), lengths)
    shared = {schema.column_of(f) for f in schema.features if f.name in schema.shared}
    shared |= {str(f.weights) for f in schema.weighted if f.name in schema.shared}
    of_lists = {schema.column_of(f) for f in schema.features if has_lists(f) or f in schema.vectors}
    of_lists |= {str(f.weights) for f in schema.weighted}
    columns = []
    for column in batch.schema.names:
        values = batch.column(column)
        is_of_candidates = is_list(values.type) and column not in shared
        if is_of_candidates and column in of_lists:
            is_of_candidates = is_list(values.flatten().type)
        if not is_of_candidates:
            columns.append(values.take(pa.array(row)))
            continue
        num = lengths_of(values)
        if len(wrong := np.flatnonzero(num != lengths)):
            place = int(wrong[0])
            raise ValueError(
                f"{name} row {first_row + place:,}, column {column!r}: expected a list of "
                f"{lengths[place]:,}, as many candidates as {label!r} has, found {num[place]:,}; correct "
                f"the row, or say in shared that the column is of requests"
            )
        columns.append(values.flatten())
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names), row + first_row
