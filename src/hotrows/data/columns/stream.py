"""A stream of raw rows: the chunks of all inputs, read and checked, one after the other.

Rows are numbered through all inputs. Every pass cuts the stream at the same places, so an interrupted
preparation resumes at a position (input, chunk).

Rows may be requests with lists of candidates, of which a row is made for each:

    request  history  item     label                request  history  item  label
    r1       a|b      [x, y]   [0, 1]       ->      r1       a|b      x     0
                                                    r1       a|b      y     1

So they are read where the first label is a list and the schema has requests. What the schema says is
shared is there once in a row; any other column is too, or is a list as long as that of the label, of
lists where the feature is one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from hotrows.data.columns.of_schema import SchemaColumns
from hotrows.data.raw.arrow_arrays import is_list, lengths_of
from hotrows.data.raw.cells import Cells, cells_of, rows_per_chunk
from hotrows.data.raw.files import File
from hotrows.data.raw.inputs import Input, Progress, TextInput
from hotrows.data.raw.reading import Reading
from hotrows.data.rows import RawRows
from hotrows.runtime.arrow import pa
from hotrows.runtime.terminal import silent
from hotrows.schema import Schema, column_of


@dataclass(frozen=True)
class InputPosition:
    """A position between two chunks of a stream: input, chunk in it, and number of rows before."""

    input: int = 0
    chunk: int = 0
    rows: int = 0


def stream(
    inputs: Sequence[Input], how: Reading, progress: Progress = silent, start: InputPosition | None = None
) -> Iterator[tuple[InputPosition, RawRows]]:
    """Yields all rows from `start` on, chunk by chunk, each with its position.

    progress: called after each chunk, once the caller has worked on it.
    """
    start, columns = start or InputPosition(), SchemaColumns(how.schema, histories=how.histories)
    sizes = [source.size for source in inputs]
    row = start.rows
    for i in range(start.input, len(inputs)):
        skip = start.chunk if i == start.input else 0
        num_input_rows = 0
        for number, (position, cells) in enumerate(_chunks(inputs[i], how, columns, skip)):
            num_input_rows += cells if isinstance(cells, int) else cells.num_rows
            if isinstance(cells, Cells):
                yield (InputPosition(i, number, row), replace(columns.read(cells), first_row=row))
                row += cells.num_rows
            progress(sum(sizes[:i]) + position, sum(sizes))
        source = inputs[i]
        may_be_empty = source.may_be_empty if isinstance(source, File) else not how.for_training
        if not num_input_rows and not may_be_empty:
            raise ValueError(_no_rows(source, how.schema))
    if inputs and not row and (how.for_training or isinstance(inputs[-1], File)):
        raise ValueError(_no_rows(inputs[-1], how.schema))


def _chunks(
    source: Input, how: Reading, columns: SchemaColumns, skip: int
) -> Iterator[tuple[int, Cells | int]]:
    """The chunks of an input, of rows of candidates as many as there are of these."""
    if how.schema.request is None:
        yield from source.chunks(how, skip)
        return
    number = 0
    for position, cells in source.chunks(how, 0):
        for part in () if isinstance(cells, int) else rows_of_candidates(cells, columns):
            yield position, part.num_rows if number < skip else part
            number += 1


def _no_rows(source: Input, schema: Schema) -> str:
    if isinstance(source, TextInput):
        what = "lines" if schema.columns else "lines after its header"
        return f"raw file {source.name} has no {what}; expected rows of delimited text"
    return f"{source.name} has no rows"


def rows_of_candidates(cells: Cells, columns: SchemaColumns) -> Iterator[Cells]:
    """Yields the cells of a row for each candidate, of about as many rows as a chunk has at most; cells
    without lists of candidates are as they were."""
    schema = columns.schema
    label = column_of(schema.labels[0])
    is_plain = schema.request is None or cells.fields is not None or not cells.has(label)
    if is_plain or not is_list(cells.batch.column(label).type):
        yield cells
        return
    lengths, most = lengths_of(cells.batch.column(label)), rows_per_chunk(schema)
    ends = np.concatenate([[0], lengths.cumsum()])
    first = 0
    while first < cells.num_rows:
        end = max(int(np.searchsorted(ends, ends[first] + most, side="right")) - 1, first + 1)
        part = cells.batch.slice(first, end - first)
        yield _exploded(replace(cells, batch=part, first_row=cells.first_row + first), columns, label)
        first = end


def _exploded(cells: Cells, columns: SchemaColumns, label: str) -> Cells:
    batch, lengths = cells.batch, lengths_of(cells.batch.column(label))
    row = np.repeat(np.arange(batch.num_rows), lengths)
    arrays = []
    for column in batch.schema.names:
        values = batch.column(column)
        is_of_candidates = is_list(values.type) and column not in columns.shared
        if is_of_candidates and column in columns.of_lists:
            is_of_candidates = is_list(values.flatten().type)
        if not is_of_candidates:
            arrays.append(values.take(pa.array(row)))
            continue
        num = lengths_of(values)
        if len(wrong := np.flatnonzero(num != lengths)):
            place = int(wrong[0])
            raise ValueError(
                f"{cells.where(place)}, column {column!r}: expected a list of "
                f"{lengths[place]:,}, as many candidates as {label!r} has, found {num[place]:,}; correct "
                f"the row, or say in shared that the column is of requests"
            )
        arrays.append(values.flatten())
    exploded = pa.RecordBatch.from_arrays(arrays, names=batch.schema.names)
    read = cells_of(exploded, cells.name, cells.first_row, cells.how, cells.unit)
    return replace(read, rows=row + cells.first_row)
