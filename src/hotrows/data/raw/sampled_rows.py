"""A sample of the rows of raw data, column by column, before a schema is known.

Text is cut by the delimiter that cuts every line alike, and its first line is a header where its fields
are of another kind than those below them.
"""

from __future__ import annotations

import csv
import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from hotrows.data.raw.arrow_arrays import decoded, has_many_texts, is_list
from hotrows.data.raw.chunks import Chunk, first_chunk, sampled_lines
from hotrows.data.raw.files import BLOCKS
from hotrows.data.raw.inputs import TextInput, TypedInput, inputs_of
from hotrows.data.raw.reading import QUOTED_BETWEEN_TABS
from hotrows.data.raw.text import UNCLOSED, Layout, check_line_ends, cut_line, error_of_line
from hotrows.data.raw.values import MACHINE, Marks, plain_number, time_of
from hotrows.runtime.arrow import pa

DELIMITERS = ("\t", ",", ";", "|", "\x01", "^", " ")
_ROWS, _CELLS = 30_000, 1_500_000  # at most, and never less than the least number of rows
_LEAST_ROWS = 1_000
_LEAST_UNIQUE = 20  # rows from which on different values in all rows say something
_SNIFFED = 100  # lines that the delimiter is found from
_CHUNK_BYTES = 16 << 20
_LONGEST = 24  # characters of an example
_PAIRS = re.compile(  # a line of libsvm, libfm or libffm, or of a ranking (LETOR)
    rb"[-+.\d]+( +qid:\d+)?( +(\w+:)?\d+:[-+.\deE]+)+ *(#.*)?"
)
_ONE = re.compile(rb"(\w+:)?\d+:1(\.0*)?")
_FEATURES = rb"(\|([A-Za-z][^ |]*|(?=[^|]* [^ |:\d][^ |:]*:[-+.\d]))( +[^ |]+)+ *)+"  # by namespace
_WABBIT = re.compile(rb"[-+.:\d]+( [-+.\d]+)* ('[^ |]*)?" + _FEATURES)
_QUOTED = re.compile(rb'".*"')


@dataclass(frozen=True)
class Column:
    """A column of a sample.

    kind: "text" (str), "number" (int or float), "boolean", "time" (seconds since 1970), "list" (of str),
        "vector" (its width), or "other", which no feature reads. values: one per row, None where missing.
        marks: of numbers in text.
    counts: of the values (of lists, of theirs), without missing ones, once the kind is understood. words:
    those that stand for a missing number. format: of a time; separator: of lists in text. is_typed:
    whether the data itself says the kind.
    """

    name: str
    kind: str
    values: Sequence[Any]
    counts: Counter = field(default_factory=Counter)
    words: tuple[str, ...] = ()
    format: str = "unix"
    separator: str = "|"
    is_typed: bool = False
    marks: Marks = MACHINE

    @property
    def missing(self) -> int:
        return sum(value is None for value in self.values)

    @property
    def is_constant(self) -> bool:
        return not self.counts or (
            len(self.counts) == 1 and not self.missing and self.kind not in ("list", "vector")
        )

    @property
    def is_unique(self) -> bool:
        return self.kind in ("text", "number") and len(self.counts) == len(self.values) >= _LEAST_UNIQUE

    @property
    def is_whole(self) -> bool:
        return self.kind == "number" and all(x == math.floor(x) for x in self.counts)

    @property
    def is_padded(self) -> bool:
        """True if most values of text have spaces around them."""
        padded = sum(
            count for x, count in self.counts.items() if isinstance(x, str) and x != x.strip(" ")
        )
        return 2 * padded > len(self.values)

    @property
    def examples(self) -> tuple[str, ...]:
        """The first three different values, as text that can be printed."""
        shown: dict[str, None] = {}
        for value in self.values:
            if value is not None and len(shown) < 3:
                shown.setdefault(_shown(value, self.kind))
        return tuple(shown)


@dataclass(frozen=True)
class SampledRows:
    """A sample of the rows of raw data, in BLOCKS blocks of neighbours.

    is_all: whether there are no others. delimiter: of text, None where columns have types;
    has_header: whether a line of text names the columns. notes: what is unsure about that.
    """

    name: str
    columns: tuple[Column, ...]
    num_rows: int
    is_all: bool
    delimiter: str | None = None
    has_header: bool = True
    notes: tuple[str, ...] = field(default=())


def sampled_rows_of(
    raw: Any, encoding: str = "utf-8", decimal: str = ".", thousands: str = ""
) -> SampledRows:
    """Reads at most 30,000 rows, fewer of wide data, from all of the first input that has rows."""
    inputs = inputs_of(raw)
    if not inputs:
        raise ValueError("no raw files to draft a schema from; name at least one")
    for source in inputs:
        if isinstance(source, TextInput):
            rows = _of_text(replace(source, encoding=encoding))
        else:
            rows = _of_table(source)
        if rows.num_rows:
            only = f"of {len(inputs):,} files only {rows.name} is looked at"
            marks, notes = Marks(decimal, thousands), (only,) if len(inputs) > 1 else ()
            columns = tuple(replace(c, marks=marks) for c in rows.columns)
            return replace(rows, columns=columns, notes=(*rows.notes, *notes))
    raise ValueError(f"{inputs[0].name} has no rows to draft a schema from")


def _num_rows(num_columns: int) -> int:
    return max(_LEAST_ROWS, min(_ROWS, _CELLS // max(1, num_columns)))


def _of_text(file: TextInput) -> SampledRows:
    # Cut the first lines at the delimiter that fits them best.
    chunk = first_chunk(file, _CHUNK_BYTES)
    if chunk is None:
        raise ValueError(f"{file.name} has no lines to draft a schema from")
    if chunk.not_utf8 is not None:
        raise ValueError(chunk.not_utf8[1])
    lines = [bytes(line).removesuffix(b"\r") for line in chunk.text.split(b"\n")[:-1]]
    if len(lines) == 1:
        check_line_ends(file.name, lines[0])
    delimiter, notes = _delimiter(chunk, lines[:_SNIFFED])
    widths = Counter(len(cut_line(line, delimiter)[0]) for line in lines[:_SNIFFED])
    num_fields = widths.most_common(1)[0][0]
    limit = _num_rows(num_fields)
    is_all = len(lines) <= limit and chunk.position >= file.size
    chosen = lines if is_all else [x.removesuffix(b"\r") for x in sampled_lines(file, chunk, limit)]
    fields = [cut_line(line, delimiter)[0] for line in chosen]
    table = [line for line in fields if len(line) == num_fields]
    if len(table) < len(fields):
        wrong = next(number for number, line in enumerate(fields, 1) if len(line) != num_fields)
        where = f"line {wrong}" if is_all or wrong <= limit // BLOCKS else "a line"
        notes.append(
            f"{where} has {len(fields[wrong - 1])} columns, not {num_fields}, which `prepare` refuses"
        )
    # Take names from the header, if there is one.
    has_header, why = _has_header(table)
    notes += why
    if delimiter == "\t" and any(_QUOTED.fullmatch(x) for line in table[:_SNIFFED] for x in line):
        notes.append(QUOTED_BETWEEN_TABS)
    names = [f"column_{i + 1}" for i in range(num_fields)]
    if has_header:
        stored = [_text(name).removeprefix("\ufeff") for name in table.pop(0)]
        names = [name.strip() for name in stored]
        kept = [line for line in table if [*map(_text, line)] != stored]
        if len(kept) < len(table):  # files with headers were appended
            notes.append("the header stands among the lines, too, which `prepare` refuses: take it out")
            table = kept
        notes += changed_names(zip(stored, names, strict=True))
    _check_quotes(chunk, lines[: limit + 1], Layout(tuple(names), {}, delimiter, has_header))
    columns = zip(*table, strict=True) if table else [()] * num_fields
    return SampledRows(
        name=file.name,
        columns=tuple(
            Column(name, "text", [_text(value) or None for value in column])
            for name, column in zip(names, columns, strict=True)
        ),
        num_rows=len(table),
        is_all=is_all,
        delimiter=delimiter,
        has_header=has_header,
        notes=tuple(notes),
    )


def _text(value: bytes) -> str:
    return value.decode("utf-8", "surrogateescape")


def changed_names(pairs: Iterable[tuple[str, str]]) -> list[str]:
    """A note of names in a file that are not those of its columns; none where all are. pairs: of both."""
    changed = [f"{stored!r} is {name!r}" for stored, name in pairs if stored != name]
    more = f" and {len(changed) - 3:,} more" if len(changed) > 3 else ""
    return [f"names of columns that reading changes: {', '.join(changed[:3])}{more}"] if changed else []


def _check_quotes(chunk: Chunk, lines: Sequence[bytes], layout: Layout) -> None:
    """Raises the error of `prepare` where a quoted field does not end on its line."""
    for row, line in enumerate(lines):
        fields, problem = cut_line(line, layout.delimiter) if b'"' in line else ([], None)
        if problem == UNCLOSED:
            raise error_of_line(chunk, layout, problem, row, len(fields) - 1)


def _delimiter(chunk: Chunk, lines: Sequence[bytes]) -> tuple[str, list[str]]:
    """The delimiter that cuts all lines into equally many fields, the most; else most lines."""
    name, fitting = chunk.name, []
    for delimiter in DELIMITERS:
        if _have_line_breaks(lines, delimiter):
            names = tuple(map(_text, cut_line(lines[0], delimiter)[0]))
            _check_quotes(chunk, lines, Layout(names, {}, delimiter, True))
        counts = Counter(len(cut_line(line, delimiter)[0]) for line in lines)
        fields, num_lines = counts.most_common(1)[0]
        if fields > 1 and 2 * num_lines > len(lines):
            fitting.append((num_lines, delimiter != " ", fields, delimiter))
    if all(_PAIRS.fullmatch(line) for line in lines):
        if _has_field_by_position(lines):
            return " ", [
                "pairs of index:1, a field at each position, as in files of libfm and libffm: ids of "
                "columns"
            ]
        raise ValueError(
            f"{name} has pairs of index:value, as libsvm writes them, or field:index:value of libffm, "
            f"which are not read, unless each position is a field: always with other indices than those "
            f"of the others, and the value 1; write a column for each index or field"
        )
    if all(_WABBIT.fullmatch(line) for line in lines):
        raise ValueError(
            f"{name} has lines of Vowpal Wabbit, 'label |namespace feature:value', which are not read; "
            f"write a column for each namespace, as CSV, JSON lines or Parquet"
        )
    if not fitting:
        advice = "convert the file, or write the schema by hand"
        if all(b"::" in line for line in lines):
            advice = "'::' is two bytes: write one in its place (sed 's/::/\\t/g' FILE)"
        raise ValueError(
            f"{name} line 1: no delimiter of {', '.join(map(repr, DELIMITERS))} cuts the lines into "
            f"equally many columns; {advice}"
        )
    num_lines, *_, best = max(fitting, key=lambda rank: rank[:3])
    return best, [] if num_lines == len(lines) else [f"the delimiter is perhaps {best!r}: lines differ"]


def _has_field_by_position(lines: Sequence[bytes]) -> bool:
    """True if lines of (field:)index:value have equally many, of value 1, and no index in two places."""
    rows = [line.rstrip(b" ").split(b" ")[1:] for line in lines]
    if len({*map(len, rows)}) > 1 or not all(_ONE.fullmatch(pair) for row in rows for pair in row):
        return False
    fields = [{pair.rpartition(b":")[0] for pair in pairs} for pairs in zip(*rows, strict=True)]
    return sum(map(len, fields)) == len(set().union(*fields))


def _have_line_breaks(lines: Sequence[bytes], delimiter: str) -> bool:
    """True if lines are rows of equally many fields if a quoted field may go on in the next line."""
    text = (_text(line) + "\n" for line in lines)
    try:
        widths = [len(row) for row in csv.reader(text, delimiter=delimiter)]
    except csv.Error:
        return False
    return len(widths) < len(lines) and widths[0] > 1 and len({*widths[:-1]}) == 1  # the last may be cut


def _has_header(table: Sequence[Sequence[bytes]]) -> tuple[bool, list[str]]:
    """True if the first line names the columns: numbers and times below it are text in it."""
    first, others = table[0], table[1 : _SNIFFED + 1]
    if not others:
        return True, ["there is one line: it is taken for a header"]
    votes = 0
    for place, name in enumerate(first):
        below = {line[place].strip() for line in others} - {b""}
        if below and sum(map(_is_typed, below)) >= 0.9 * len(below):
            votes += -1 if _is_typed(name.strip()) or (not name.strip() and place) else 1
    if votes > 0:
        return True, []
    if votes < 0:
        return False, ["no line names the columns: they are column_1 and so on"]
    names = [name.strip() for name in first]
    is_header = len(set(names)) == len(names) and all(names)
    is_header &= not any(names[i] == line[i].strip() for line in others for i in range(len(names)))
    what = "names the columns" if is_header else "is data: the columns are column_1 and so on"
    return is_header, [f"line 1 perhaps {what}; all columns are text"]


def _is_typed(value: bytes) -> bool:
    number = plain_number(value)
    return (number is not None and not math.isnan(number)) or time_of(value, "iso") is not None


def _of_table(source: TypedInput) -> SampledRows:
    table, is_all = source.sample_rows(_num_rows)
    columns = tuple(map(_of_array, table.column_names, table.columns))
    return SampledRows(source.name, columns, table.num_rows, is_all)


def _of_array(name: str, array: Any) -> Column:
    types, array = pa.types, decoded(array.combine_chunks())
    kind = array.type
    if types.is_boolean(kind):
        return Column(name, "boolean", array.to_pylist())
    if types.is_decimal(kind) and kind.scale == 0:  # whole, of more digits than float64 has
        return Column(name, "number", [x if x is None else int(x) for x in array.to_pylist()])
    if types.is_decimal(kind):
        array = array.cast(pa.float64(), safe=False)
    if any(test(array.type) for test in (types.is_integer, types.is_floating, types.is_null)):
        return Column(name, "number", [x if x == x else None for x in array.to_pylist()])
    if types.is_date(kind) or types.is_timestamp(kind):
        ticks = array.cast(pa.timestamp("s", getattr(kind, "tz", None)), safe=False).cast(pa.int64())
        return Column(name, "time", ticks.to_pylist())
    if is_list(kind):
        if has_many_texts(kind.value_type):
            return Column(name, "other", [])
        lengths = pa.compute.list_value_length(array).to_pylist()
        widths = set(lengths) - {None}
        if types.is_floating(kind.value_type) and len(widths) == 1 and max(widths) > 1:
            return Column(name, "vector", lengths)
        lists = array.to_pylist()
        if types.is_floating(kind.value_type) and any(y and y % 1 > 0 for x in lists for y in x or ()):
            return Column(name, "other", [])
        return Column(name, "list", [x and [str(y) for y in x if y is not None] for x in lists])
    if has_many_texts(kind):
        return Column(name, "other", [])
    words = (_text(x) if isinstance(x, bytes) else x if x is None else str(x) for x in array.to_pylist())
    return Column(name, "text", [word or None for word in words])


def _shown(value: Any, kind: str) -> str:
    if kind == "vector":
        return f"{value} numbers"
    if kind == "time":
        value = str(np.datetime64(value, "s")).replace("T", " ")
    if kind == "list":
        value = "|".join(value)
    text = f"{value:.12g}" if isinstance(value, float) else str(value)
    text = text if text.isprintable() else repr(text)[1:-1]
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
