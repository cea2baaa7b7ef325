"""A stream of raw rows: the chunks of all inputs, read and checked, one after the other.

Rows are numbered through all inputs. Every pass cuts the stream at the same places, so an interrupted
preparation resumes at a position (input, chunk).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hotrows.data.columns.candidates import rows_of_candidates
from hotrows.data.columns.kind import RawRows
from hotrows.data.columns.of_schema import SchemaColumns
from hotrows.data.raw.cells import Cells
from hotrows.data.raw.files import File
from hotrows.data.raw.inputs import Input, Progress, TextInput
from hotrows.data.raw.reading import Reading
from hotrows.schema import Schema


@dataclass(frozen=True)
class InputPosition:
    """A position between two chunks of a stream: input, chunk in it, and number of rows before."""

    input: int = 0
    chunk: int = 0
    rows: int = 0


def stream(
    inputs: Sequence[Input],
    how: Reading,
    progress: Progress | None = None,
    start: InputPosition | None = None,
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
                yield (
                    InputPosition(i, number, row),
                    dataclasses.replace(columns.read(cells), first_row=row),
                )
                row += cells.num_rows
            if progress is not None:
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
