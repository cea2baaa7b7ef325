"""Inputs: files and tables of raw rows, as one stream of checked columns.

An input is a file of text, JSON lines, Parquet, Arrow or ORC, recognized by its first bytes, a table in
memory, a table of Iceberg or Delta Lake, or a dataset of Ray. Rows are numbered through all inputs.
Every pass cuts the stream at the same places, so an interrupted preparation resumes at a position
(input, chunk). Every kind of input has

    name, size         for messages; bytes of a file, rows of a table: the unit of progress
    stamp              name, size and time, to recognize it in a later process; None if that is impossible
    chunks             of (bytes or rows read so far, columns); of the first `skip` the number of rows
    count_rows
    sample_rows        not of text: an Arrow table of at most `limit(columns)` rows, in blocks from all of
                       the input (of Ray: its first), and whether there are no others
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hotrows.data.raw import snapshots
from hotrows.data.raw.cells import Columns, Reading
from hotrows.data.raw.files import File, content_of, find_files
from hotrows.data.raw.json_lines import JsonInput
from hotrows.data.raw.ray_dataset import RayInput, is_ray_dataset
from hotrows.data.raw.snapshots import SnapshotInput
from hotrows.data.raw.tables import TableInput, as_table
from hotrows.data.raw.text import TextInput
from hotrows.data.raw.typed_files import TypedFileInput, open_typed_file
from hotrows.schema import Schema

Progress = Callable[[int, int], None]  # bytes (of tables: rows) read so far, and in all
TypedInput = JsonInput | TypedFileInput | TableInput | RayInput | SnapshotInput
Input = TextInput | TypedInput


def inputs_of(raw: Any) -> list[Input]:
    """Opens the inputs that paths, globs, folders, URLs, names of tables, tables, frames and datasets of
    Ray, or a list of them, name."""
    inputs: list[Input] = []
    for item in raw if isinstance(raw, list | tuple) else [raw]:
        if isinstance(item, str) and item.startswith(snapshots.KINDS):
            inputs.append(snapshots.open_snapshot(item))
        elif isinstance(item, str | Path):
            inputs += [_file_input(file) for file in find_files(item)]
        elif is_ray_dataset(item):
            inputs.append(RayInput(item))
        else:
            inputs.append(TableInput(as_table(item)))
    return inputs


def zone_of(inputs: Sequence[Input], column: str) -> str | None:
    """The zone that the type of a column of timestamps names, in the first input that has one."""
    for source in inputs:
        if isinstance(source, TypedFileInput):
            schema = open_typed_file(source, source.kind).schema
        elif isinstance(source, TableInput):
            schema = source.table.schema
        elif isinstance(source, SnapshotInput):
            schema = source.schema
        elif isinstance(source, RayInput):  # whose own types may be those of pandas
            schema = source.sample_rows(lambda num_columns: 1)[0].schema
        else:
            continue
        kinds = [field.type for field in schema if field.name == column]
        if zone := next((zone for kind in kinds if (zone := getattr(kind, "tz", None))), None):
            return zone
    return None


def _file_input(file: File) -> Input:
    content = content_of(file)
    if content == "text":
        return TextInput(**vars(file))
    return (
        JsonInput(**vars(file)) if content == "JSON lines" else TypedFileInput(**vars(file), kind=content)
    )


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
) -> Iterator[tuple[InputPosition, Columns]]:
    """Yields the columns of all rows from `start` on, chunk by chunk, each with its position.

    progress: called after each chunk, once the caller has worked on it.
    """
    start = start or InputPosition()
    sizes = [source.size for source in inputs]
    row = start.rows
    for i in range(start.input, len(inputs)):
        skip = start.chunk if i == start.input else 0
        num_input_rows = 0
        for number, (position, columns) in enumerate(inputs[i].chunks(how, skip)):
            num_input_rows += columns if isinstance(columns, int) else columns.num_rows
            if isinstance(columns, Columns):
                yield InputPosition(i, number, row), dataclasses.replace(columns, first_row=row)
                row += columns.num_rows
            if progress is not None:
                progress(sum(sizes[:i]) + position, sum(sizes))
        source = inputs[i]
        may_be_empty = source.may_be_empty if isinstance(source, File) else not how.for_training
        if not num_input_rows and not may_be_empty:
            raise ValueError(_no_rows(source, how.schema))
    if inputs and not row and (how.for_training or isinstance(inputs[-1], File)):
        raise ValueError(_no_rows(inputs[-1], how.schema))


def _no_rows(source: Input, schema: Schema) -> str:
    if isinstance(source, TextInput):
        what = "lines" if schema.columns else "lines after its header"
        return f"raw file {source.name} has no {what}; expected rows of delimited text"
    return f"{source.name} has no rows"
