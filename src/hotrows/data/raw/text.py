"""Raw text into cells; an error names the first bad line."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hotrows.data.raw import values
from hotrows.data.raw.arrow import pyarrow, text_array
from hotrows.data.raw.cells import Bad, Reading, columns_of, show
from hotrows.data.raw.columns import Columns, RawIds
from hotrows.data.raw.layout import AFTER_QUOTE, PROBLEMS, UNCLOSED, WRONG_COLUMNS, Layout
from hotrows.data.raw.reading import Chunk
from hotrows.runtime import native
from hotrows.runtime.native import call
from hotrows.schema import is_list


@dataclass(frozen=True)
class TextCells:
    """`Cells` of text: a chunk cut into the fields of the columns in use.

    fields: starts and lengths are [used columns, rows] uint32; changing: [used columns] bool, whether a
    field may have another canonical text than its own. unblanked: by column of lists, the fields before
    words that mean missing were emptied. kept: see `Cells`.
    """

    chunk: Chunk
    layout: Layout
    how: Reading
    fields: RawIds
    changing: np.ndarray
    unblanked: Mapping[str, RawIds] = field(default_factory=dict)
    kept: Any = None

    @property
    def num_rows(self) -> int:
        return self.fields.starts.shape[1]

    def has(self, column: str) -> bool:
        return column in self.layout.places

    def raw(self, column: str) -> RawIds:
        fields = self._fields_of(column)
        return self.how.text(fields) if self.changing[self.layout.places[column]] else fields

    def lists(self, column: str, separator: str) -> RawIds:
        schema, threads = self.how.schema, self.how.threads
        cells = self.unblanked.get(column) or self._fields_of(column)
        cut = values.cut_lists(cells, separator, threads)
        values.blank(cut, schema.strip, self.how.missing, threads)
        return self.how.text(cut)

    def numbers(self, columns: Sequence[str]) -> tuple[np.ndarray, Bad | None]:
        places = [self.layout.places[column] for column in columns]
        numbers, bad = values.parse_fields(self.fields, places, self.how.threads)
        return numbers, None if bad is None else Bad(bad[0], columns[bad[1]], "number")

    def times(self, column: str, format: str) -> tuple[np.ndarray, Bad | None]:
        seconds, bad = values.parse_times(self._fields_of(column), format, self.how.threads)
        return seconds, None if bad is None else Bad(bad, column, values.kind_of_time(format))

    def where(self, row: int) -> str:
        return f"{self.chunk.name} line {self.chunk.first_line + row}"

    def shown(self, row: int, column: str) -> str:
        return show(self._fields_of(column).value(row))

    def list_fields(self) -> dict[str, RawIds]:
        """Copies of the fields of columns of lists, without spaces around them, where words may mean
        missing: such a word alone is a list of one missing value, not an empty one."""
        schema = self.how.schema
        if not schema.missing:
            return {}
        names = {schema.column_of(f) for f in schema.id_features if is_list(f)} & set(self.layout.places)
        copies = {}
        for name in names:
            fields = self._fields_of(name)
            copies[name] = RawIds(fields.text, fields.starts.copy(), fields.lengths.copy())
            values.blank(copies[name], schema.strip, (), self.how.threads)
        return copies

    def head(self, num_rows: int) -> TextCells:
        """The cells of the first `num_rows` rows."""
        starts = np.ascontiguousarray(self.fields.starts[:, :num_rows])
        lengths = np.ascontiguousarray(self.fields.lengths[:, :num_rows])
        return dataclasses.replace(self, fields=RawIds(self.fields.text, starts, lengths))

    def table(self, columns: Sequence[str] | None) -> Any:
        """Columns as they are in the file, as an Arrow table of text; None: all that it has."""
        names = self.layout.names if columns is None else columns
        return pyarrow().table({name: text_array(self._fields_of(name)) for name in names})

    def _fields_of(self, column: str) -> RawIds:
        place = self.layout.places[column]
        return RawIds(self.fields.text, self.fields.starts[place], self.fields.lengths[place])


def parse(chunk: Chunk, layout: Layout, how: Reading) -> Columns:
    """Parses the columns of a chunk; an error names the smallest bad line."""
    cells, problem = _cut(chunk, layout, how)
    if problem is not None:
        kind, row, column = problem
        cells = cells.head(row)  # errors in earlier lines come first
    cells = dataclasses.replace(cells, unblanked=cells.list_fields())
    if how.kept != ():
        cells = dataclasses.replace(cells, kept=cells.table(how.kept))
    values.blank(cells.fields, how.schema.strip, how.missing, how.threads)
    columns = columns_of(cells, how)
    if problem is not None:
        raise error_of_line(chunk, layout, kind, row, column)
    return columns


def _cut(chunk: Chunk, layout: Layout, how: Reading) -> tuple[TextCells, tuple | None]:
    """Cuts a chunk into fields; also returns (kind, row, column) of the first bad line, or None."""
    native.codes("text_problem", *PROBLEMS)
    shape = (len(layout.places), chunk.num_lines)
    starts, lengths = np.zeros(shape, np.uint32), np.zeros(shape, np.uint32)
    changing = np.full(len(layout.places), how.schema.strip)
    problem = np.zeros(2, np.int64)
    text = np.frombuffer(chunk.text, np.uint8)
    of_lines = (ord(layout.delimiter), int(layout.quoted), len(layout.names), layout.wanted)
    to = (chunk.num_lines, starts, lengths, changing.view(np.uint8), problem, how.threads)
    kind = call("tokenize", text, len(text), *of_lines, *to)
    bad_line = (kind, int(problem[0]), int(problem[1])) if kind else None
    return TextCells(chunk, layout, how, RawIds(text, starts, lengths), changing), bad_line


def error_of_line(chunk: Chunk, layout: Layout, kind: int, row: int, column: int) -> ValueError:
    """The error of a row of a chunk that cannot be cut. kind: see `layout`; column: index of the last."""
    where = f"{chunk.name} line {chunk.first_line + row}"
    if kind == WRONG_COLUMNS:
        expected = f"expected {len(layout.names)} columns between {layout.delimiter!r}"
        what = "correct the line, or the schema's columns and delimiter"
        return ValueError(f"{where}, {expected}, found {column + 1}; {what}")
    name = layout.names[column] if column < len(layout.names) else f"number {column + 1}"
    assert kind in (UNCLOSED, AFTER_QUOTE)
    what = "does not end on its line; of rows with line breaks write Parquet (frame.to_parquet does it)"
    if kind == AFTER_QUOTE:
        what = 'is followed by text; write a quote inside a quoted field twice, ""'
    return ValueError(f"{where}, column {name!r}: the quoted field {what}")
