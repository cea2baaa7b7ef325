"""JSON lines: an object per line, its keys the columns; read in chunks of whole lines."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hotrows.data.raw.arrow_arrays import first_line, is_list
from hotrows.data.raw.cells import Cells, cells_of
from hotrows.data.raw.files import Chunk, File, chunk_of, chunks_of, first_chunk, sampled_lines
from hotrows.data.raw.reading import Reading, check_present
from hotrows.runtime.arrow import pa
from hotrows.schema import Schema

_BLANK = re.compile(rb"[ \t\r]*(null[ \t\r]*)?\n")
_LATER_BLANK = re.compile(rb"\n" + _BLANK.pattern)
_ROW = re.compile(r"in row (\d+)")
_DEEPEST = 64  # lists and objects in each other: Arrow's JSON reader recurses, and would end the process
_NOT_OPENING = bytes(set(range(256)) - set(b"[{\n"))
_OPENING = re.compile(rb"[^\n]{%d}" % _DEEPEST)


@dataclass(frozen=True)
class JsonInput(File):
    """A file of JSON lines, plain or compressed.

    A key that a line lacks is missing; a column of the schema must be in the first chunk.
    """

    def chunks(self, how: Reading, skip: int) -> Iterator[tuple[int, Cells | int]]:
        for number, chunk in enumerate(chunks_of(self)):
            if number == 0 or number >= skip:
                table = table_of_lines(chunk)
            if number == 0:
                names = tuple(table.column_names)
                wanted = check_present(how, self.name, names)
            if number < skip:
                yield chunk.position, chunk.num_lines
                continue
            batch = with_columns(table, wanted).combine_chunks().to_batches()[0]
            yield chunk.position, cells_of(batch, self.name, chunk.first_line, how, "line")

    def count_rows(self, schema: Schema) -> int:
        return sum(chunk.num_lines for chunk in chunks_of(self))

    def sample_rows(self, limit: Callable[[int], int]) -> tuple[Any, bool]:
        chunk = first_chunk(self)
        assert chunk is not None, "its first bytes were read"
        table = table_of_lines(chunk)
        rows = limit(table.num_columns)
        if table.num_rows <= rows and chunk.position >= self.size:
            return table, True
        lines = sampled_lines(self, chunk, rows)
        text = bytearray(b"\n".join([*lines, b""]))
        return table_of_lines(chunk_of(f"{self.name} (a sample of it)", text, 1)), False


def table_of_lines(chunk: Chunk) -> Any:
    # Refuse what is no UTF-8, blank lines, which Arrow skips, and what may end the process.
    if chunk.not_utf8 is not None:
        raise ValueError(chunk.not_utf8[1])
    if blank := _BLANK.match(chunk.text) or _LATER_BLANK.search(chunk.text):
        line = chunk.first_line + chunk.text.count(b"\n", 0, blank.end() - 1)
        what = "null" if blank[1] else "nothing"
        raise ValueError(f"{chunk.name} line {line}: expected an object of JSON, found {what}")
    _check_depth(chunk)
    options = pa.json.ReadOptions(use_threads=False, block_size=len(chunk.text) + 1)

    def read(**how: Any) -> Any:
        return pa.json.read_json(io.BytesIO(chunk.text), options, pa.json.ParseOptions(**how))

    try:
        table = read()
    except pa.ArrowInvalid as error:
        row = _ROW.search(str(error))
        where = f" line {chunk.first_line + int(row[1])}" if row else ""
        why = _ROW.sub("", first_line(error)).removeprefix("JSON parse error: ").strip(" .")
        raise ValueError(
            f"{chunk.name}{where}: expected an object of JSON per line, with values of one type per key "
            f"({why}); correct the line"
        ) from error
    # Refuse lines with more objects than one.
    if table.num_rows != chunk.num_lines:
        raise ValueError(
            f"{chunk.name}: {chunk.num_lines:,} lines from line {chunk.first_line} on hold "
            f"{table.num_rows:,} objects of JSON; write one per line"
        )
    # Read again by their types: as text what looks like times, as long as its neighbors do, since such
    # ids must not change; and lists that begin with a null, which Arrow loses (apache/arrow#47417).
    names = table.column_names
    again = [
        field.with_type(_to_read(field.type))
        for field, column in zip(table.schema, table.columns, strict=True)
        if "time" in str(field.type) or any(map(_lacks_values, column.chunks))
    ]
    if again:
        table = read(explicit_schema=pa.schema(again))
    return table.select(names)


def _check_depth(chunk: Chunk) -> None:
    """Refuses lines that are nested too deeply. Lines of few brackets, which a value ends in, are not."""
    text = chunk.text
    is_apart = any(text.count(end) == chunk.num_lines - 1 for end in (b"}\n{", b"}\r\n{"))
    if is_apart and not _OPENING.search(text.translate(None, _NOT_OPENING)):
        return
    bare = np.frombuffer(text.replace(b"\\\\", b"").replace(b'\\"', b""), np.uint8)
    steps = np.zeros(len(bare), np.int32)
    steps[(bare == ord("[")) | (bare == ord("{"))] = 1
    steps[(bare == ord("]")) | (bare == ord("}"))] = -1
    steps[np.logical_xor.accumulate(bare == ord('"'))] = 0  # in text
    too_deep = steps.cumsum(dtype=np.int32) > _DEEPEST
    if len(bare) and too_deep[place := int(too_deep.argmax())]:
        line = chunk.first_line + int((bare[:place] == ord("\n")).sum())
        raise ValueError(
            f"{chunk.name} line {line}: expected an object of JSON, found one that is nested too deeply"
        )


def _lacks_values(array: Any) -> bool:
    """True of lists that end behind the last value, or have such lists."""
    if pa.types.is_struct(array.type):
        return any(map(_lacks_values, array.flatten()))
    if not is_list(array.type) or not len(array):
        return False
    return array.offsets[-1].as_py() > len(array.values) or _lacks_values(array.values)


def _to_read(kind: Any) -> Any:
    """An Arrow type with text in place of the times that its JSON reader saw in text, and with numbers
    in lists of nothing but nulls."""
    if pa.types.is_list(kind):
        inner = kind.value_type
        return pa.list_(pa.float64() if pa.types.is_null(inner) else _to_read(inner))
    return pa.string() if pa.types.is_timestamp(kind) else kind


def with_columns(table: Any, columns: Sequence[str]) -> Any:
    """The columns, in this order; those that no line of the chunk has are empty."""
    present = set(table.column_names)
    for name in (name for name in columns if name not in present):
        table = table.append_column(name, pa.nulls(table.num_rows))
    return table.select(columns)
