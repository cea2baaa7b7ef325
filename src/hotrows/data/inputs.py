"""Inputs: raw rows from wherever they are, as one stream of checked columns.

An input is a file of text or Parquet, or a table in memory; its first bytes tell which. Rows are
numbered through all inputs. The stream is cut in the same places every time, so a place in it (input,
chunk) is where an interrupted preparation goes on.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from hotrows.data.arrow import as_table, open_parquet_file, parquet_columns, table_columns
from hotrows.data.columns import Columns
from hotrows.data.files import File, find_files
from hotrows.data.layout import layout_of
from hotrows.data.reading import chunks_of
from hotrows.data.text import parse
from hotrows.schema import Schema

_PARQUET = b"PAR1"

Progress = Callable[[int, int], None]  # bytes (of tables: rows) read so far, and in all


@dataclass(frozen=True)
class Reading:
    """How rows are read. for_training: whether every column of the schema must be there."""

    schema: Schema
    threads: int
    for_training: bool = True


class Input(Protocol):
    """A file or table of raw rows."""

    @property
    def name(self) -> str: ...

    @property
    def size(self) -> int:
        """In the unit of progress."""
        ...

    @property
    def stamp(self) -> list | None:
        """What tells that it is the same another time; None: nothing does."""
        ...

    def chunks(self, how: Reading, skip: int) -> Iterator[tuple[int, Columns | int]]:
        """From the first chunk on: how far it was read, and its columns; of the first `skip`
        chunks the number of their rows alone."""
        ...

    def count_rows(self, schema: Schema) -> int: ...


@dataclass(frozen=True)
class _FileInput:
    """What text and Parquet files have in common."""

    file: File

    @property
    def name(self) -> str:
        return self.file.name

    @property
    def size(self) -> int:
        return self.file.size

    @property
    def stamp(self) -> list | None:
        return self.file.stamp


@dataclass(frozen=True)
class TextInput(_FileInput):
    """A file of delimited text, plain or compressed."""

    def chunks(self, how: Reading, skip: int) -> Iterator[tuple[int, Columns | int]]:
        for number, chunk in enumerate(chunks_of(self.file)):
            if chunk.first_line == 1:
                first_line = bytes(chunk.text[: chunk.text.index(b"\n")])
                layout = layout_of(how.schema, self.name, first_line, how.for_training)
                chunk = chunk.without_header() if layout.has_header else chunk
            if number < skip or not chunk.num_lines:
                yield chunk.position, chunk.num_lines
            else:
                yield (
                    chunk.position,
                    parse(chunk, layout, how.schema, how.threads, how.for_training),
                )

    def count_rows(self, schema: Schema) -> int:
        lines = sum(chunk.num_lines for chunk in chunks_of(self.file))
        return lines - (schema.columns is None)


@dataclass(frozen=True)
class ParquetInput(_FileInput):
    """A Parquet file; its progress is told in row groups, by their share of the bytes."""

    def chunks(self, how: Reading, skip: int) -> Iterator[tuple[int, Columns | int]]:
        num_groups = open_parquet_file(self.file).num_row_groups
        found = parquet_columns(self.file, how.schema, how.threads, how.for_training)
        for number, (group, columns) in enumerate(found):
            position = self.size * (group + 1) // num_groups
            yield position, columns.num_rows if number < skip else columns

    def count_rows(self, schema: Schema) -> int:
        return open_parquet_file(self.file).metadata.num_rows


@dataclass(frozen=True)
class TableInput:
    """An Arrow table in memory."""

    table: Any
    name: str = "the table"

    @property
    def size(self) -> int:
        return self.table.num_rows

    @property
    def stamp(self) -> list | None:
        return None

    def chunks(self, how: Reading, skip: int) -> Iterator[tuple[int, Columns | int]]:
        done = 0
        found = table_columns(self.table, self.name, how.schema, how.threads, how.for_training)
        for number, columns in enumerate(found):
            done += columns.num_rows
            yield done, columns.num_rows if number < skip else columns

    def count_rows(self, schema: Schema) -> int:
        return self.table.num_rows


def inputs_of(given: Any) -> list[Input]:
    """The inputs of paths, globs, folders, URLs, tables and frames, or of a list of them."""
    several = given if isinstance(given, list | tuple) else [given]
    found: list[Input] = []
    for one in several:
        if isinstance(one, str | Path):
            found += [_file_input(file) for file in find_files(one)]
        else:
            found.append(TableInput(as_table(one)))
    return found


def _file_input(file: File) -> Input:
    with file.open() as raw:
        is_parquet = raw.read(len(_PARQUET)) == _PARQUET
    return ParquetInput(file) if is_parquet else TextInput(file)


@dataclass(frozen=True)
class Place:
    """A place between two chunks of a stream: input and chunk in it, and the rows before."""

    input: int = 0
    chunk: int = 0
    rows: int = 0

    def to_json(self) -> list[int]:
        return [self.input, self.chunk, self.rows]


def stream(
    inputs: Sequence[Input],
    how: Reading,
    progress: Progress | None = None,
    start: Place | None = None,
) -> Iterator[tuple[Place, Columns]]:
    """The columns of all rows from `start` on, chunk by chunk, each with its place.

    progress: hears of each chunk once it was worked on.
    """
    start = start or Place()
    sizes = [of.size for of in inputs]
    row = start.rows
    for i in range(start.input, len(inputs)):
        skip = start.chunk if i == start.input else 0
        rows_here = 0
        for number, (position, found) in enumerate(inputs[i].chunks(how, skip)):
            rows_here += found if isinstance(found, int) else found.num_rows
            if isinstance(found, Columns):
                yield Place(i, number, row), dataclasses.replace(found, first_row=row)
                row += found.num_rows
            if progress is not None:
                progress(sum(sizes[:i]) + position, sum(sizes))
        if not rows_here:
            raise ValueError(_no_rows(inputs[i], how.schema))


def _no_rows(of: Input, schema: Schema) -> str:
    if isinstance(of, TextInput):
        what = "lines" if schema.columns else "lines after its header"
        return f"raw file {of.name} has no {what}; expected rows of delimited text"
    return f"{of.name} has no rows"
