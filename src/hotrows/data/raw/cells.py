"""Cells: a chunk of raw rows by column, whatever carries them, and the values that they spell.

A column is an Arrow array, or text: spans of bytes in the reader's buffer, which is Arrow's string layout
with a length for each value. What a column means is not known here: a kind of column reads it as ids,
numbers, lists or times (`hotrows.data.columns`), and gets the same from every carrier. Nothing is copied
where bytes are text already, and no row becomes a Python object.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from hotrows.data.raw import values
from hotrows.data.raw.arrow_arrays import (
    decoded,
    first_line,
    has_many_texts,
    is_list,
    is_number,
    is_of_text,
    is_of_vectors,
    is_pickled,
    is_text,
    seconds_of_moments,
    spans_of,
    unnested,
    value_at,
    vectors_of,
)
from hotrows.data.raw.reading import Reading, check_present, show, with_article
from hotrows.data.raw.values import MISSING_WORDS, Bad, RawIds
from hotrows.runtime.arrow import pa
from hotrows.schema import Dense, Schema

ROWS_PER_CHUNK = 1 << 16
_NUMBERS_PER_CHUNK = 1 << 23  # of vectors
_EXACT_BITS = {16: 11, 32: 24, 64: 53}  # of floats by their width: they hold all whole numbers below
_FEW = 1 << 14  # values: reading them takes less time than a call for every column
_BEYOND_FLOAT32 = float.fromhex("0x1.ffffffp+127")  # the least number that is infinite as float32
_IDS = "ids (text or whole numbers)"


@dataclass(frozen=True)
class Fields:
    """The fields of a chunk of text. spans: starts and lengths are [columns, rows] uint32; places: of
    each column among them; changing: [columns] bool, whether a field may have another canonical text than
    its own; unblanked: by column of lists, the fields before words that mean missing were emptied."""

    spans: RawIds
    places: Mapping[str, int]
    changing: np.ndarray
    unblanked: Mapping[str, RawIds] = field(default_factory=dict)

    def spans_of(self, column: str) -> RawIds:
        place = self.places[column]
        return RawIds(self.spans.text, self.spans.starts[place], self.spans.lengths[place])


@dataclass(frozen=True)
class Cells:
    """A chunk of rows: a record batch, or fields of text, which are in place of one.

    first_row: number of its first row in the file `name`, which counts `unit`s; rows: of candidates, the
    row of the file that each is in. kept: the columns to keep, an Arrow table. problem: the error of the
    first row that is not there, as it cannot be read; it is raised once those before it are known to be
    right. numeric, single: the columns that are read as numbers, and as one id a row; of_labels: of
    numeric ones those whose wrong values labels name.
    """

    batch: Any
    name: str
    first_row: int
    how: Reading
    num_rows: int
    unit: str = "row"
    rows: np.ndarray | None = None
    fields: Fields | None = None
    kept: Any = None
    problem: ValueError | None = None
    numeric: tuple[str, ...] = ()
    single: tuple[str, ...] = ()
    of_labels: frozenset[str] = frozenset()

    def has(self, column: str) -> bool:
        if self.fields is not None:
            return column in self.fields.places
        return bool(self.batch.schema.get_all_field_indices(column))

    def ids(self, column: str) -> RawIds:
        """The values of a column, one per row, in canonical text; empty where missing."""
        if column in self._few_ids:
            return self._few_ids[column]
        if self.fields is not None and not self.fields.changing[self.fields.places[column]]:
            return self.fields.spans_of(column)
        return self.how.text(self._single(column), column)

    def lists(self, column: str, separator: str) -> RawIds:
        array = None if self.fields is not None else self.batch.column(column)
        if array is None or not is_list(array.type):
            if self.fields is not None:  # where a word that means missing is a list of it
                cells = self.fields.unblanked.get(column) or self.fields.spans_of(column)
            else:
                cells = self._trimmed(self._text(array, column))
            cut = values.cut_lists(cells, separator, self.how.threads)
            return self.how.text(self._trimmed(cut, column), column)
        if is_list(array.type.value_type):
            raise self._unfit(column, "a list of values", "lists of lists are not read")
        offsets, flat = unnested(array)
        ids = self._trimmed(self._text(flat, column), column)
        return self.how.text(RawIds(ids.text, ids.starts, ids.lengths, offsets), column)

    def number(self, column: str) -> tuple[np.ndarray, Bad | None]:
        """[rows] float64 of a column of `numeric`, NaN where missing; and the first value that is no
        number."""
        numbers, places, bad = self._all_numbers
        return numbers[places[column]], bad if bad is not None and bad.column == column else None

    @property
    def bad_number(self) -> Bad | None:
        """The first value that is no number, of columns that are not of labels."""
        bad = self._all_numbers[2]
        return None if bad is None or bad.column in self.of_labels else bad

    def list_numbers(self, column: str, separator: str) -> tuple[np.ndarray, np.ndarray, int | None]:
        """The numbers of a column of lists, NaN where missing, their offsets, and the place of the first
        value that is no number."""
        array = None if self.fields is not None else self.batch.column(column)
        if array is None or not is_list(array.type):
            cells = self.fields.spans_of(column) if self.fields is not None else self._text(array, column)
            cut = values.cut_lists(cells, separator, self.how.threads)
            assert cut.offsets is not None
            numbers, bad = values.parse_numbers(cut, self.how.threads, self.how.marks)
            return numbers, cut.offsets, bad
        if not is_of_vectors(array.type):
            raise self._unfit(column, "lists of numbers", "convert the column")
        offsets, flat = unnested(array)
        return flat.to_numpy(zero_copy_only=False).astype(np.float64), offsets, None

    def vectors(self, column: str, feature: Dense) -> tuple[np.ndarray, Bad | None]:
        """[rows, width] float32, NaN where missing; and the first value that is no such list."""
        if self.fields is not None:
            raise ValueError(
                f"{self.name}, column {column!r}: expected lists of {feature.width} numbers, found "
                f"text; write the file as Parquet, or as JSON lines"
            )
        return vectors_of(self.batch.column(column), feature)

    def times(self, column: str, format: str) -> tuple[np.ndarray, Bad | None]:
        """[2, rows] int64: seconds since 1970, and those that the clock of each time shows; and the first
        value that is no time."""
        moments = None if self.fields is not None else seconds_of_moments(self.batch.column(column))
        if moments is not None:
            seconds, bad = moments
        elif self.fields is None and format in values.UNIX:
            array = self.batch.column(column)
            if pa.types.is_floating(array.type) and array.type.bit_width < 64:
                self._check_exact(array.cast(pa.float32()), array.type, column, "times")
            numbers, bad = self._numbers(column)
            values.blank_numbers(numbers, self.how.schema.missing_of(column))
            seconds, bad = values.seconds_of(numbers, bad, format)
        else:
            seconds, bad = values.parse_times(self._single(column), format, self.how.threads)
        return seconds, None if bad is None else Bad(bad, column, values.kind_of_time(format))

    def where(self, row: int) -> str:
        """Names the file and line of a row: "train.csv line 17"."""
        place = self.first_row + row if self.rows is None else self.rows[row]
        return f"{self.name} {self.unit} {place if self.unit == 'line' else f'{place:,}'}"

    def shown(self, row: int, column: str) -> str:
        array = None if self.fields is not None else self.batch.column(column)
        if array is None or is_of_text(array.type):
            return show(self._single(column).value(row))
        value = value_at(decoded(array), row)
        return "nothing" if value is None else show(str(value).encode())

    def raise_first(self, problems: Sequence[Bad | None]) -> None:
        """Raises the problem of the smallest row; the first of several in one row."""
        bad = min(filter(None, problems), key=lambda problem: problem.row, default=None)
        if bad is None:
            return
        shown, remedy = self.shown(bad.row, bad.column), bad.remedy
        words = [word for word in MISSING_WORDS if repr(word) == shown]
        if words and bad.expected.startswith(("number", "time")):
            missing = json.dumps({bad.column: words})
            remedy = f'if {shown} means missing, say so in the schema: "missing": {missing}'
        where = f"{self.where(bad.row)}, column {bad.column!r}"
        raise ValueError(f"{where}: expected {with_article(bad.expected)}, found {shown}; {remedy}")

    # ---- text

    @cached_property
    def _few_ids(self) -> Mapping[str, RawIds]:
        """The ids of all columns of text or int64 by name, where there are few values."""
        if self.fields is not None:
            return {}
        rows = self.num_rows
        texts, joined = self._few_texts(self.single, integers=True)
        ids = self.how.text(joined, *texts)
        spans = (slice(i * rows, (i + 1) * rows) for i in range(len(texts)))
        cut = (RawIds(ids.text, ids.starts[span], ids.lengths[span]) for span in spans)
        return dict(zip(texts, cut, strict=True))

    def _few_texts(self, columns: Sequence[str], integers: bool = False) -> tuple[list[str], RawIds]:
        """Those of the columns that are of text, and their values, column after column; none where
        there are many values. integers: also those of int64, as text."""
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

    def _single(self, column: str) -> RawIds:
        """The values of a column, one per row, as they were found."""
        if self.fields is not None:
            return self.fields.spans_of(column)
        array = self.batch.column(column)
        if is_list(array.type):
            raise self._unfit(column, "a single value", "declare a Sequence, or Sparse(many=True)")
        return self._trimmed(self._text(array, column), column)

    def _text(self, array: Any, column: str) -> RawIds:
        """The values of a flat array as bytes; text is not copied."""
        types, kind = pa.types, array.type
        if types.is_large_binary(kind) and is_pickled(self.batch.schema.field(column)):
            what = "Ray pickled its objects: map_batches(.., batch_format='pyarrow') keeps lists"
            raise self._unfit(column, _IDS, what)
        if types.is_dictionary(kind):
            return self._dictionary(array, column)
        if types.is_floating(kind):
            array = self._whole(array, column)
        elif has_many_texts(kind):
            raise self._unfit(column, _IDS, "convert the column")
        if is_text(array.type):
            return spans_of(array)
        # Bytes are left unchanged and need not be UTF-8.
        is_bytes = types.is_binary_view(array.type) or types.is_fixed_size_binary(array.type)
        try:
            return spans_of(array.cast(pa.large_binary() if is_bytes else pa.large_string()))
        except pa.ArrowException:
            raise self._unfit(column, _IDS, "convert the column") from None

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
        kind = array.type
        if pa.types.is_float16(kind):  # which Arrow does not calculate with
            array = array.cast(pa.float32())
        array = pa.compute.if_else(pa.compute.is_nan(array), None, array)
        self._check_exact(array, kind, column, _IDS)
        try:
            return array.cast(pa.int64())
        except pa.ArrowInvalid:
            what = "use it as Dense, or with transform='bucket'"
            raise self._unfit(column, _IDS, what) from None

    def _check_exact(self, array: Any, kind: Any, column: str, expected: str) -> None:
        """Refuses floats so large that whole numbers near them have no float of their own."""
        bits = _EXACT_BITS[kind.bit_width]
        far = pa.compute.greater_equal(pa.compute.abs(array), float(1 << bits))
        if pa.compute.any(far).as_py():
            what = (
                f"{kind} from 2^{bits} on skips whole numbers: store the column as integers, or as text"
            )
            raise self._unfit(column, expected, what)

    def _trimmed(self, ids: RawIds, *columns: str) -> RawIds:
        """The values of columns without spaces, where the schema says so, and without those that mean
        missing."""
        schema = self.how.schema
        if schema.strip or (schema.missing and columns):
            ids = RawIds(ids.text, ids.starts.copy(), ids.lengths.copy(), ids.offsets)
            values.blank(ids, schema.strip, (), self.how.threads)
            self.how.blank(ids, *columns)
        return ids

    # ---- numbers

    @cached_property
    def _all_numbers(self) -> tuple[np.ndarray, Mapping[str, int], Bad | None]:
        """The numbers of all columns of `numeric` that are there, [columns, rows] float64; the place
        of each; and the first value that is no number."""
        columns = [column for column in self.numeric if self.has(column)]
        if self.fields is not None:
            places = [self.fields.places[column] for column in columns]
            numbers, wrong = values.parse_fields(
                self.fields.spans, places, self.how.threads, self.how.marks
            )
            first = None if wrong is None else Bad(wrong[0], columns[wrong[1]], "number")
        else:
            numbers, first = self._numbers_of(columns)
        for column, of_column in zip(columns, numbers, strict=True):
            values.blank_numbers(of_column, self.how.schema.missing_of(column))
        return numbers, {column: place for place, column in enumerate(columns)}, first

    def _numbers_of(self, columns: Sequence[str]) -> tuple[np.ndarray, Bad | None]:
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

    def _numbers(self, column: str) -> tuple[np.ndarray, int | None]:
        array = self.batch.column(column)
        if array.type != pa.float64():
            if is_of_text(array.type):
                return values.parse_numbers(self._single(column), self.how.threads, self.how.marks)
            array = decoded(array)
            kind = array.type
            if pa.types.is_boolean(kind):
                array = array.cast(pa.int8())
            elif not is_number(kind):
                what = "declare Dense with a width" if is_list(kind) else "correct the schema"
                raise self._unfit(column, "numbers", f"convert the column, or {what}")
            array = array.cast(pa.float64(), safe=False)
        numbers = array.to_numpy(zero_copy_only=False) + 0.0
        values.blank_numbers(numbers, self.how.schema.missing_of(column))
        wrong = np.abs(numbers) >= _BEYOND_FLOAT32
        return numbers, int(wrong.argmax()) if wrong.any() else None

    def _unfit(self, column: str, expected: str, what: str) -> ValueError:
        kind = first_line(self.batch.column(column).type)
        return ValueError(f"{self.name}, column {column!r}: expected {expected}, found {kind}; {what}")


def cells_of(batch: Any, name: str, first_row: int, how: Reading, unit: str = "row") -> Cells:
    """The cells of a record batch, whose first row is `first_row` of the file `name`."""
    kept = None
    if how.kept != ():
        names = batch.schema.names if how.kept is None else how.kept
        columns = {name: batch.column(name) for name in names}
        kept = pa.table({name: decoded(column) for name, column in columns.items()})
    return Cells(batch, name, first_row, how, batch.num_rows, unit, kept=kept)


def table_cells(table: Any, name: str, how: Reading, first_row: int = 0) -> Iterator[Cells]:
    """Yields the cells of an Arrow table, up to ROWS_PER_CHUNK rows at a time. first_row: the number
    of its first row in what is called `name`."""
    columns = check_present(how, name, tuple(table.schema.names))
    for batch in table.select(columns).combine_chunks().to_batches(rows_per_chunk(how.schema)):
        yield cells_of(batch, name, first_row, how)
        first_row += batch.num_rows


def rows_per_chunk(schema: Schema) -> int:
    """The rows of a chunk: fewer where they have wide vectors."""
    width = schema.num_dense - len(schema.dense)
    return min(ROWS_PER_CHUNK, max(1, _NUMBERS_PER_CHUNK // max(1, width)))


def cells_of_tables(
    tables: Iterable[Any], name: str, how: Reading, skip: int
) -> Iterator[tuple[int, Cells | int]]:
    """Yields (rows so far, cells) of tables that follow each other; of the first `skip` the number of
    rows."""
    done = first_row = number = 0
    for table in tables:
        for cells in table_cells(table, name, how, first_row):
            done += cells.num_rows
            yield done, cells.num_rows if number < skip else cells
            number += 1
        first_row += table.num_rows
