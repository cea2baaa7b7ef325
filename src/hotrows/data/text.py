"""Raw text into fields, and fields into numbers; the first bad line is an error that names it.

The native core does it on several threads. `cut_line` and `plain_number` say the same in Python:
they are the specification, and what runs where the core was not built.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

import numpy as np

from hotrows import native
from hotrows.data.foreign import call
from hotrows.data.layout import AFTER_QUOTE, UNCLOSED, WRONG_COLUMNS, Layout, cut_line
from hotrows.data.reading import Chunk

_NUMBER = re.compile(rb"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")


@dataclass(frozen=True)
class Fields:
    """A chunk cut into fields: where the field of every used column and row stands in the text.

    starts, lengths: [used columns, rows] uint32.
    """

    chunk: Chunk
    layout: Layout
    starts: np.ndarray
    lengths: np.ndarray
    threads: int

    @property
    def num_rows(self) -> int:
        return self.starts.shape[1]

    def value(self, place: int, row: int) -> bytes:
        start = int(self.starts[place, row])
        return bytes(self.chunk.text[start : start + int(self.lengths[place, row])])

    def head(self, num_rows: int) -> Fields:
        """The first rows alone."""
        starts = np.ascontiguousarray(self.starts[:, :num_rows])
        lengths = np.ascontiguousarray(self.lengths[:, :num_rows])
        return Fields(self.chunk, self.layout, starts, lengths, self.threads)

    def as_arguments(self) -> tuple:
        """What the native core asks for: text, its size, starts, lengths, number of rows."""
        text = np.frombuffer(self.chunk.text, np.uint8)
        return text, len(text), self.starts, self.lengths, self.num_rows


@dataclass(frozen=True)
class Numbers:
    """The numbers of a chunk.

    dense: [num_dense, rows] float64, NaN where missing; labels: [rows] uint8, None without a label.
    """

    dense: np.ndarray
    labels: np.ndarray | None


def parse(chunk: Chunk, layout: Layout, threads: int) -> tuple[Fields, Numbers]:
    """The fields and numbers of a chunk. What is wrong in the smallest line is raised."""
    fields, problem = _cut(chunk, layout, threads)
    if problem is None:
        return fields, _numbers(fields)
    kind, row, column = problem
    _numbers(fields.head(row))  # a bad number in an earlier line comes first
    raise _bad_line(chunk, layout, kind, row, column)


def plain_number(value: bytes) -> float | None:
    """The number a field holds: NaN where it is empty, None where it is none that float32 holds."""
    text = value.strip(b" ")
    if not text:
        return math.nan
    if not _NUMBER.fullmatch(text):
        return None
    number = float(text) + 0.0  # never a negative zero
    with np.errstate(over="ignore"):
        return number if np.isfinite(np.float32(number)) else None


def _cut(chunk: Chunk, layout: Layout, threads: int) -> tuple[Fields, tuple[int, int, int] | None]:
    """The fields of a chunk; and kind, row and column of what is wrong in its first bad line."""
    library = native.load()
    if library is None:
        return _cut_in_python(chunk, layout)
    shape = (len(layout.used), chunk.num_lines)
    starts, lengths = np.empty(shape, np.uint32), np.empty(shape, np.uint32)
    problem = np.zeros(2, np.int64)
    text = np.frombuffer(chunk.text, np.uint8)
    how = (ord(layout.delimiter), int(layout.quoted), len(layout.names), layout.wanted)
    to = (chunk.num_lines, starts, lengths, problem, threads)
    kind = call(library, "tokenize", text, len(text), *how, *to)
    found = (kind, int(problem[0]), int(problem[1])) if kind else None
    return Fields(chunk, layout, starts, lengths, threads), found


def _cut_in_python(chunk: Chunk, layout: Layout) -> tuple[Fields, tuple[int, int, int] | None]:
    values = bytearray()
    spans: list[list[tuple[int, int]]] = []
    problem = None
    for row, line in enumerate(chunk.text.split(b"\n")[:-1]):
        fields, kind = cut_line(bytes(line), layout.delimiter)
        if kind is None and len(fields) != len(layout.names):
            kind = WRONG_COLUMNS
        if kind is not None:
            problem = (kind, row, len(fields) - 1)
            break
        spans.append([])
        for column in layout.used:
            spans[-1].append((len(values), len(fields[column])))
            values += fields[column]
    table = np.array(spans, np.uint32).reshape(len(spans), len(layout.used), 2)
    starts, lengths = np.ascontiguousarray(table.transpose(2, 1, 0))
    copied = Chunk(chunk.path, values, chunk.first_line, chunk.num_lines, chunk.position)
    return Fields(copied, layout, starts, lengths, threads=1), problem


def _numbers(fields: Fields) -> Numbers:
    """The numbers of the fields; an error for the first row where one is none, or no label."""
    layout = fields.layout
    label = () if layout.label is None else (layout.label,)
    places = np.array([*label, *layout.dense], np.int32)
    values, bad = _parse_numbers(fields, places)
    row, which = bad or (fields.num_rows, 0)
    if layout.label is not None:
        sound = row + (which > 0)  # where a number is bad, the label of its row was parsed
        wrong = np.flatnonzero((values[0, :sound] != 0) & (values[0, :sound] != 1))
        if len(wrong):
            raise _not_a(fields, "label 0 or 1", layout.label, int(wrong[0]))
    if bad is not None:
        is_label = layout.label is not None and which == 0
        what = "label 0 or 1" if is_label else "number"
        raise _not_a(fields, what, int(places[which]), row)
    if layout.label is None:
        return Numbers(values, None)
    return Numbers(values[1:], values[0].astype(np.uint8))


def _not_a(fields: Fields, what: str, place: int, row: int) -> ValueError:
    column, value = fields.layout.name_of(place), _shown(fields.value(place, row))
    return _error(
        fields.chunk,
        row,
        f"column {column!r}: expected a {what}, found {value}; correct the line, or the schema",
    )


def _parse_numbers(fields: Fields, places: np.ndarray) -> tuple[np.ndarray, tuple[int, int] | None]:
    """[places, rows] float64; and row and index in `places` of the first that is no number."""
    values = np.empty((len(places), fields.num_rows))
    library = native.load()
    if library is None:
        for row in range(fields.num_rows):
            for i, place in enumerate(places):
                number = plain_number(fields.value(place, row))
                if number is None:
                    return values, (row, i)
                values[i, row] = number
        return values, None
    feature = np.zeros(1, np.int64)
    arguments = (places, len(places), values, feature, fields.threads)
    row = call(library, "parse_numbers", *fields.as_arguments(), *arguments)
    return values, None if row < 0 else (row, int(feature[0]))


def _bad_line(chunk: Chunk, layout: Layout, kind: int, row: int, column: int) -> ValueError:
    if kind == WRONG_COLUMNS:
        expected = f"expected {len(layout.names)} columns between {layout.delimiter!r}"
        what = "correct the line, or the schema's columns and delimiter"
        return _error(chunk, row, f"{expected}, found {column + 1}; {what}")
    name = layout.names[column] if column < len(layout.names) else f"number {column + 1}"
    assert kind in (UNCLOSED, AFTER_QUOTE)
    what = "does not end on its line; fields with line breaks are not read"
    if kind == AFTER_QUOTE:
        what = 'is followed by text; write a quote inside a quoted field twice, ""'
    return _error(chunk, row, f"column {name!r}: the quoted field {what}")


def _error(chunk: Chunk, row: int, what: str) -> ValueError:
    return ValueError(f"{chunk.path} line {chunk.first_line + row}, {what}")


def _shown(value: bytes) -> str:
    text = value[:60].decode("utf-8", "backslashreplace")
    return repr(text + ("..." if len(value) > 60 else "")) if value else "nothing"
