"""Inputs: files and tables of raw rows, as one stream of checked columns.

An input is a file of text, JSON lines, Parquet, Arrow or ORC, recognized by its first bytes, or a table
in memory. Rows are numbered through all inputs. Every pass cuts the stream at the same places, so an
interrupted preparation resumes at a position (input, chunk).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from hotrows.data.raw.arrow import as_table, table_columns
from hotrows.data.raw.cells import Reading
from hotrows.data.raw.columns import Columns
from hotrows.data.raw.files import File, find_files
from hotrows.data.raw.json_lines import count_json_rows, first_json_rows, is_json_lines, json_columns
from hotrows.data.raw.layout import layout_of
from hotrows.data.raw.ray_dataset import RayInput, is_ray_dataset
from hotrows.data.raw.reading import chunks_of, first_bytes
from hotrows.data.raw.text import parse
from hotrows.data.raw.typed_files import count_rows, file_columns, first_rows_of_file, kind_of
from hotrows.schema import Schema

_MAGIC_BYTES = 8
_UNREAD = {
    b"FEA1": "Feather of version 1",
    b"Obj\x01": "Avro",
    b"SQLite format 3": "an SQLite database",
    b"\x89HDF": "HDF5",
    b"\x93NUMPY": "a NumPy array",
    b"7z\xbc\xaf": "a 7z archive",
}

Progress = Callable[[int, int], None]  # bytes (of tables: rows) read so far, and in all


class Input(Protocol):
    """A file or table of raw rows."""

    @property
    def name(self) -> str: ...

    @property
    def size(self) -> int:
        """Bytes of a file, rows of a table: the unit of progress."""
        ...

    @property
    def stamp(self) -> list | None:
        """Name, size and time, to recognize the input in a later process; None if that is impossible."""
        ...

    def chunks(self, how: Reading, skip: int) -> Iterator[tuple[int, Columns | int]]:
        """Yields (bytes or rows read so far, columns) per chunk; of the first `skip` chunks the number
        of rows instead of the columns."""
        ...

    def count_rows(self, schema: Schema) -> int: ...


class TypedInput(Input, Protocol):
    """An input whose columns have names and types."""

    def first_rows(self, limit: Callable[[int], int]) -> tuple[Any, bool]:
        """An Arrow table of the first rows, and whether there are no others. limit: the number of
        rows to read of so many columns."""
        ...


@dataclass(frozen=True)
class TextInput(File):
    """A file of delimited text, plain or compressed."""

    def chunks(self, how: Reading, skip: int) -> Iterator[tuple[int, Columns | int]]:
        for number, chunk in enumerate(chunks_of(self)):
            if chunk.first_line == 1:
                first_line = bytes(chunk.text[: chunk.text.index(b"\n")])
                layout = layout_of(how.schema, self.name, first_line, how.for_training, how.kept)
                chunk = chunk.without_header() if layout.has_header else chunk
            if number < skip or not chunk.num_lines:
                yield chunk.position, chunk.num_lines
            else:
                yield chunk.position, parse(chunk, layout, how)

    def count_rows(self, schema: Schema) -> int:
        return sum(chunk.num_lines for chunk in chunks_of(self)) - (schema.columns is None)


@dataclass(frozen=True)
class JsonInput(File):
    """A file of JSON lines, plain or compressed."""

    def chunks(self, how: Reading, skip: int) -> Iterator[tuple[int, Columns | int]]:
        return json_columns(self, how, skip)

    def count_rows(self, schema: Schema) -> int:
        return count_json_rows(self)

    def first_rows(self, limit: Callable[[int], int]) -> tuple[Any, bool]:
        return first_json_rows(self, limit)


@dataclass(frozen=True)
class TypedFileInput(File):
    """A Parquet, Arrow or ORC file; its progress counts its groups, by their share of the bytes."""

    kind: str = "Parquet"

    def chunks(self, how: Reading, skip: int) -> Iterator[tuple[int, Columns | int]]:
        for number, (position, columns) in enumerate(file_columns(self, self.kind, how)):
            yield position, columns.num_rows if number < skip else columns

    def count_rows(self, schema: Schema) -> int:
        return count_rows(self, self.kind)

    def first_rows(self, limit: Callable[[int], int]) -> tuple[Any, bool]:
        return first_rows_of_file(self, self.kind, limit)


@dataclass(frozen=True)
class TableInput:
    """An Arrow table in memory."""

    table: Any
    name: str = "the table"
    stamp: list | None = None

    @property
    def size(self) -> int:
        return self.table.num_rows

    def chunks(self, how: Reading, skip: int) -> Iterator[tuple[int, Columns | int]]:
        done = 0
        batches = table_columns(self.table, self.name, how)
        for number, columns in enumerate(batches):
            done += columns.num_rows
            yield done, columns.num_rows if number < skip else columns

    def count_rows(self, schema: Schema) -> int:
        return self.table.num_rows

    def first_rows(self, limit: Callable[[int], int]) -> tuple[Any, bool]:
        rows = limit(self.table.num_columns)
        return self.table.slice(0, rows), self.table.num_rows <= rows


def inputs_of(raw: Any) -> list[Input]:
    """Opens the inputs that paths, globs, folders, URLs, tables, frames and datasets of Ray, or a list of
    them, name."""
    inputs: list[Input] = []
    for item in raw if isinstance(raw, list | tuple) else [raw]:
        if isinstance(item, str | Path):
            inputs += [_file_input(file) for file in find_files(item)]
        elif is_ray_dataset(item):
            inputs.append(RayInput(item))
        else:
            inputs.append(TableInput(as_table(item)))
    return inputs


def _file_input(file: File) -> Input:
    with file.open() as raw:
        start = raw.read(_MAGIC_BYTES)
    if kind := kind_of(start):
        return TypedFileInput(**vars(file), kind=kind)
    content = first_bytes(file)
    if packed := kind_of(content):
        raise ValueError(f"{file.name} holds {packed} inside a compressed file; unpack it, and name that")
    if unread := next((what for magic, what in _UNREAD.items() if content.startswith(magic)), None):
        raise ValueError(f"{file.name} holds {unread}, which is not read; write it as Parquet or CSV")
    return JsonInput(**vars(file)) if is_json_lines(file, content) else TextInput(**vars(file))


@dataclass(frozen=True)
class InputPosition:
    """A position between two chunks of a stream: input, chunk in it, and number of rows before."""

    input: int = 0
    chunk: int = 0
    rows: int = 0

    def to_json(self) -> list[int]:
        return [self.input, self.chunk, self.rows]


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
