"""Lines of text: delimited, cut into cells by the columns of a schema or of a header line, or objects of
JSON, whose keys are the columns. An error names the first bad line.
"""

from __future__ import annotations

import dataclasses
import io
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hotrows.data.raw import arrow_arrays, values
from hotrows.data.raw.arrow_arrays import first_line, text_array
from hotrows.data.raw.cells import Cells, Fields, cells_of
from hotrows.data.raw.chunks import Chunk, chunk_of, chunks_of, first_chunk, sampled_lines
from hotrows.data.raw.files import File
from hotrows.data.raw.reading import Reading, check_present
from hotrows.data.raw.values import RawIds
from hotrows.runtime import native
from hotrows.runtime.arrow import pa
from hotrows.runtime.native import call
from hotrows.schema import Schema, column_of, is_list

PROBLEMS = "none", "columns", "unclosed", "after_quote"  # of a line
WRONG_COLUMNS, UNCLOSED, AFTER_QUOTE = 1, 2, 3
_QUOTED = re.compile(rb'"((?:[^"]|"")*)"(?!")')


@dataclass(frozen=True)
class TextInput(File):
    """A file of delimited text, plain or compressed."""

    def chunks(self, how: Reading, skip: int) -> Iterator[tuple[int, Cells | int]]:
        for number, chunk in enumerate(chunks_of(_encoded(self, how.schema))):
            if chunk.first_line == 1:
                if chunk.not_utf8 is not None and chunk.not_utf8[0] == 1:
                    raise ValueError(chunk.not_utf8[1])
                first_line = bytes(chunk.text[: chunk.text.index(b"\n")])
                layout = layout_of(how, self.name, first_line)
                chunk = chunk.without_header() if layout.has_header else chunk
            if number < skip or not chunk.num_lines:
                yield chunk.position, chunk.num_lines
            else:
                yield chunk.position, parse(chunk, layout, how)

    def count_rows(self, schema: Schema) -> int:
        chunks = chunks_of(_encoded(self, schema))
        return sum(chunk.num_lines for chunk in chunks) - (schema.columns is None)


def _encoded(file: TextInput, schema: Schema) -> TextInput:
    return dataclasses.replace(file, encoding=schema.encoding)


@dataclass(frozen=True)
class Layout:
    """The columns of one raw file.

    names: every column, in order; places: for each column that is read, its index among those read.
    """

    names: tuple[str, ...]
    places: Mapping[str, int]
    delimiter: str
    has_header: bool

    @property
    def used(self) -> tuple[int, ...]:
        """Index in a line of each column that is read, in the order of their places."""
        numbers = {name: number for number, name in reversed(list(enumerate(self.names)))}
        return tuple(numbers[column] for column in self.places)

    @property
    def wanted(self) -> np.ndarray:
        """[columns] int32, the index of each column among those read, or -1."""
        places = np.full(len(self.names), -1, np.int32)
        places[list(self.used)] = np.arange(len(self.used))
        return places


def layout_of(how: Reading, name: str, first_line: bytes) -> Layout:
    """Finds the layout of the raw file `name`, which begins with `first_line`."""
    schema = how.schema
    if len(schema.delimiter.encode()) != 1 or schema.delimiter in '"\r\n':
        raise ValueError(
            f"schema {schema.name!r}: the delimiter must be one character of one byte, "
            f"not {schema.delimiter!r}; convert the file first"
        )
    line = first_line.rstrip(b"\n")
    if schema.columns is None:
        check_line_ends(name, line)
    delimiter = _delimiter_of(line, how)
    fields, problem = cut_line(line, delimiter)
    if schema.columns is not None:
        names = _declared(schema, len(fields))
    elif problem is None:
        names = _header(fields)
    else:
        raise ValueError(f"{name} line 1: a quoted column name does not end; correct the header")
    present = check_present(how, f"{name} line 1: the header", names)
    places = {column: place for place, column in enumerate(present)}
    return Layout(names, places, delimiter, has_header=schema.columns is None)


def check_line_ends(name: str, line: bytes) -> None:
    """Raises ValueError if a line that names the columns is several, which end with a carriage return."""
    if b"\r" in line.rstrip(b"\r"):
        raise ValueError(
            f"{name} line 1: lines end with a carriage return alone, as on old Macs, which is not read; "
            f"convert the file (tr '\\r' '\\n' < FILE)"
        )


def _delimiter_of(header: bytes, how: Reading) -> str:
    """The schema's delimiter, or, where it does not cut a header, the one that gives most of the schema's
    columns."""
    delimiter = how.schema.delimiter

    def num_columns(delimiter: str) -> int:
        fields, problem = cut_line(header, delimiter)
        return 0 if problem is not None else len(set(how.columns) & set(_header(fields)))

    is_cut = how.schema.columns is not None or len(cut_line(header, delimiter)[0]) > 1
    return delimiter if is_cut else max((delimiter, *",\t;|"), key=num_columns)


def _is_quoted(delimiter: str) -> bool:
    """True if fields between delimiters may be in double quotes: not those between tabs."""
    return delimiter != "\t"


def cut_line(line: bytes, delimiter: str) -> tuple[list[bytes], int | None]:
    """Cuts a line without its line break into fields; and the kind of error in the last."""
    separator = delimiter.encode()
    fields: list[bytes] = []
    remaining: bytes | None = line
    while remaining is not None:
        if _is_quoted(delimiter) and remaining.startswith(b'"'):
            quoted = _QUOTED.match(remaining)
            if quoted is None:
                return [*fields, b""], UNCLOSED
            field, remaining = quoted[1].replace(b'""', b'"'), remaining[quoted.end() :]
            if remaining not in (b"", b"\r") and not remaining.startswith(separator):
                return [*fields, b""], AFTER_QUOTE
            remaining = remaining[1:] if remaining.startswith(separator) else None
        else:
            field, cut, after = remaining.partition(separator)
            field = field if cut else field.removesuffix(b"\r")
            remaining = after if cut else None
        fields.append(field)
    return fields, None


def _declared(schema: Schema, num_fields: int) -> tuple[str, ...]:
    """The schema's columns, without the labels if the first line has that many fields less."""
    assert schema.columns is not None
    labels = {column_of(label) for label in schema.labels}
    without_labels = tuple(name for name in schema.columns if name not in labels)
    return without_labels if num_fields == len(without_labels) else schema.columns


def _header(fields: list[bytes]) -> tuple[str, ...]:
    first, *others = (name.decode("utf-8", "surrogateescape").strip() for name in fields)
    return (first.removeprefix("\ufeff"), *others)


def parse(chunk: Chunk, layout: Layout, how: Reading) -> Cells:
    """Cuts a chunk into the fields of the columns in use; of lines that cannot be read the first one is
    the problem of the cells, which end before it."""
    fields, problem = _cut(chunk, layout, how)
    errors = {
        row: ValueError(
            f"{chunk.name} line {chunk.first_line + row} names the columns, as a header does: files with "
            f"headers were appended to each other; give them one by one, or leave this line out"
        )
        for row in _headers(fields, layout)[:1]
    }
    if problem is not None:
        errors[problem[1]] = error_of_line(chunk, layout, *problem)
    if chunk.not_utf8 is not None:
        errors[max(chunk.not_utf8[0] - chunk.first_line, 0)] = ValueError(chunk.not_utf8[1])
    first = min(errors, default=None)
    if first is not None:  # errors in earlier lines come first
        spans = fields.spans
        starts, lengths = (np.ascontiguousarray(a[:, :first]) for a in (spans.starts, spans.lengths))
        fields = dataclasses.replace(fields, spans=RawIds(spans.text, starts, lengths))
    fields = dataclasses.replace(fields, unblanked=_list_fields(fields, how))
    kept = None
    if how.kept != ():
        names = layout.names if how.kept is None else how.kept
        kept = pa.table({name: text_array(fields.spans_of(name)) for name in names})
    spans = fields.spans
    values.blank(spans, how.schema.strip, (), how.threads)
    how.blank(RawIds(spans.text, spans.starts.reshape(-1), spans.lengths.reshape(-1)), *layout.places)
    num_rows, of_chunk = spans.starts.shape[1], (chunk.name, chunk.first_line, how)
    error = None if first is None else errors[first]
    return Cells(None, *of_chunk, num_rows, "line", fields=fields, kept=kept, problem=error)


def _list_fields(fields: Fields, how: Reading) -> dict[str, RawIds]:
    """Copies of the fields of columns of lists, without spaces around them, where words may mean missing:
    such a word alone is a list of one missing value, not an empty one."""
    schema = how.schema
    columns = {schema.column_of(f) for f in schema.id_features if is_list(f)}
    copies = {}
    for name in (c for c in columns & set(fields.places) if schema.missing_of(c)):
        one = fields.spans_of(name)
        copies[name] = RawIds(one.text, one.starts.copy(), one.lengths.copy())
        values.blank(copies[name], how.schema.strip, (), how.threads)
    return copies


def _headers(fields: Fields, layout: Layout) -> list[int]:
    """The rows that have the name of a column in each of several columns: files that were appended."""
    columns, names = list(layout.places), [name for name in layout.names if name]
    if len(columns) < 2 or not names:
        return []
    # Find the rows whose fields are as long as names; the label, near the end, seldom is.
    sizes = [len(name.encode("utf-8", "surrogateescape")) for name in names]
    may_be = np.zeros(max(sizes) + 2, bool)
    may_be[sizes] = True
    spans = fields.spans
    rows = np.flatnonzero(may_be[np.minimum(spans.lengths[-1], len(may_be) - 1)])
    for lengths in spans.lengths[-2::-1]:
        rows = rows[may_be[np.minimum(lengths[rows], len(may_be) - 1)]] if len(rows) else rows
    for starts, lengths in zip(spans.starts, spans.lengths, strict=True):
        some = RawIds(spans.text, starts[rows], lengths[rows])
        rows = rows[values.is_one_of(some, names)] if len(rows) else rows
    distinct = (len({fields.spans_of(c).value(row) for c in columns}) for row in rows.tolist())
    return [row for row, num in zip(rows.tolist(), distinct, strict=True) if num == len(columns)]


def _cut(chunk: Chunk, layout: Layout, how: Reading) -> tuple[Fields, tuple | None]:
    """Cuts a chunk into fields; also returns (kind, row, column) of the first bad line, or None."""
    native.codes("text_problem", *PROBLEMS)
    shape = (len(layout.places), chunk.num_lines)
    starts, lengths = np.zeros(shape, np.uint32), np.zeros(shape, np.uint32)
    changing = np.full(len(layout.places), how.schema.strip)
    problem = np.zeros(2, np.int64)
    text = np.frombuffer(chunk.text, np.uint8)
    of_lines = (
        ord(layout.delimiter),
        int(_is_quoted(layout.delimiter)),
        len(layout.names),
        layout.wanted,
    )
    to = (chunk.num_lines, starts, lengths, changing.view(np.uint8), problem, how.threads)
    kind = call("tokenize", text, len(text), *of_lines, *to)
    bad_line = (kind, int(problem[0]), int(problem[1])) if kind else None
    return Fields(RawIds(text, starts, lengths), layout.places, changing), bad_line


def error_of_line(chunk: Chunk, layout: Layout, kind: int, row: int, column: int) -> ValueError:
    """The error of a row of a chunk that cannot be cut. kind: its place in PROBLEMS; column: the last."""
    where = f"{chunk.name} line {chunk.first_line + row}"
    if kind == WRONG_COLUMNS:
        expected = f"expected {len(layout.names)} columns between {layout.delimiter!r}"
        what = "correct the line, or the schema's columns and delimiter"
        return ValueError(f"{where}, {expected}, found {column + 1}; {what}")
    name = layout.names[column] if column < len(layout.names) else f"number {column + 1}"
    what = "does not end on its line; of rows with line breaks write Parquet (frame.to_parquet does it)"
    if kind == AFTER_QUOTE:
        what = 'is followed by text; write a quote inside a quoted field twice, ""'
    return ValueError(f"{where}, column {name!r}: the quoted field {what}")


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
        if table.num_rows == 1 and all(map(pa.types.is_nested, table.schema.types)):
            raise ValueError(
                f"{self.name} holds a whole table in one object of JSON; write one object per line (of a "
                f"pandas frame: frame.to_json(path, orient='records', lines=True))"
            )
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
    if not arrow_arrays.is_list(array.type) or not len(array):
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
