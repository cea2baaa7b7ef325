"""Raw files as a stream of parsed chunks, their rows numbered through all files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from hotrows.data.layout import layout_of
from hotrows.data.reading import Chunk, check_readable, chunks_of
from hotrows.data.text import Fields, Numbers, parse
from hotrows.schema import Schema


@dataclass(frozen=True)
class Parsed:
    """The fields and numbers of a chunk; first_row: the number of its first row, from 0."""

    first_row: int
    fields: Fields
    numbers: Numbers

    @property
    def num_rows(self) -> int:
        return self.fields.num_rows


Progress = Callable[[int, int], None]  # bytes of the raw files read so far, bytes in all


def parsed(
    raw: Sequence[Path],
    schema: Schema,
    threads: int,
    needs_label: bool = True,
    progress: Progress | None = None,
) -> Iterator[Parsed]:
    """The chunks of the files, one file after the other."""
    row = 0
    for path, chunks in _files(raw, progress):
        first_of_file = row
        for chunk in chunks:
            if chunk.first_line == 1:
                first_line = bytes(chunk.text[: chunk.text.index(b"\n")])
                layout = layout_of(schema, path, first_line, needs_label)
                chunk = chunk.without_header() if layout.has_header else chunk
            if chunk.num_lines:
                fields, numbers = parse(chunk, layout, threads)
                yield Parsed(row, fields, numbers)
                row += chunk.num_lines
        if row == first_of_file:
            what = "lines" if schema.columns else "lines after its header"
            raise ValueError(f"raw file {path} has no {what}; expected rows of delimited text")


def count_rows(raw: Sequence[Path], schema: Schema, progress: Progress | None = None) -> int:
    """The number of rows in the files: their lines but for the headers."""
    lines = sum(chunk.num_lines for _, chunks in _files(raw, progress) for chunk in chunks)
    return lines - (len(raw) if schema.columns is None else 0)


def _files(
    raw: Sequence[Path], progress: Progress | None
) -> Iterator[tuple[Path, Iterator[Chunk]]]:
    """The files and their chunks; `progress` hears of each chunk that was worked on."""
    sizes = [check_readable(path) for path in raw]
    for i, path in enumerate(raw):
        yield path, _reported(chunks_of(path), sum(sizes[:i]), sum(sizes), progress)


def _reported(
    chunks: Iterator[Chunk], before: int, total: int, progress: Progress | None
) -> Iterator[Chunk]:
    for chunk in chunks:
        yield chunk
        if progress is not None:
            progress(before + chunk.position, total)
