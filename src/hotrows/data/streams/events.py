"""Events: some of what a source has returned, in order, before it is encoded.

Lines of text (JSON or delimited) and Arrow tables become cells by the readers of `hotrows.data.raw`,
so that a value has one id, whether it was prepared or came with an event.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from hotrows.data.raw.cells import Cells, cells_of
from hotrows.data.raw.chunks import chunk_of, recoded
from hotrows.data.raw.reading import Reading
from hotrows.data.raw.tables import as_table
from hotrows.data.raw.text import Layout, layout_of, parse, table_of_lines, with_columns
from hotrows.runtime.arrow import pa
from hotrows.schema import Schema


class RawEvents(Protocol):
    """Events in order."""

    def __len__(self) -> int: ...

    def __getitem__(self, chosen: slice) -> RawEvents:
        """Consecutive events."""
        ...

    def columns(self, how: Reading) -> Cells:
        """The cells of the events; ValueError names the first event that cannot be read."""
        ...

    def texts(self) -> list[str]:
        """Each event as it is written into a file of dead letters."""
        ...

    def place(self, number: int) -> str:
        """Where the event of this number is: file and line, or partition and offset."""
        ...


@dataclass(frozen=True)
class LineEvents:
    """Whole lines of text. name: for messages; first_line: number of the first one, from 1.

    layout: the columns of delimited text; None: each line is an object of JSON. places: where each event
    is; None: in the line that it is. lines: the number of each one's line, where blank ones were between.
    """

    name: str
    text: bytes
    first_line: int = 1
    layout: Layout | None = None
    places: Sequence[str] | None = None
    lines: Sequence[int] | None = None

    @cached_property
    def _ends(self) -> np.ndarray:
        """[events + 1], where lines begin and end."""
        ends = np.flatnonzero(np.frombuffer(self.text, np.uint8) == ord("\n")) + 1
        return np.concatenate([np.zeros(1, np.int64), ends])

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __getitem__(self, chosen: slice) -> LineEvents:
        first, end, _ = chosen.indices(len(self))
        text = self.text[self._ends[first] : self._ends[max(first, end)]]
        places = None if self.places is None else self.places[first:end]
        lines = None if self.lines is None else self.lines[first:end]
        return LineEvents(self.name, text, self._line(first), self.layout, places, lines)

    def columns(self, how: Reading) -> Cells:
        text = self.text if self.layout is None else recoded(self.text, self.name, how.schema.encoding)
        chunk = chunk_of(self.name, bytearray(text), self.first_line)
        if self.layout is not None:
            return parse(chunk, self.layout, how)
        return _cells_of_table(table_of_lines(chunk), self.name, self.first_line, how)

    def texts(self) -> list[str]:
        return [line.decode("utf-8", "backslashreplace") for line in self.text.split(b"\n")[:-1]]

    def place(self, number: int) -> str:
        line = f"{self.name} line {self._line(number)}"
        return line if self.places is None else self.places[number]

    def _line(self, number: int) -> int:
        lines = self.lines or ()
        return lines[number] if number < len(lines) else self.first_line + number


@dataclass(frozen=True)
class TableEvents:
    """The rows of an Arrow table. name: for messages; first_row: number of the first one, from 0; places:
    where each event is; None: in its row."""

    name: str
    table: Any
    first_row: int = 0
    places: Sequence[str] | None = None

    def __len__(self) -> int:
        return self.table.num_rows

    def __getitem__(self, chosen: slice) -> TableEvents:
        first, end, _ = chosen.indices(len(self))
        table = self.table.slice(first, max(end - first, 0))
        places = None if self.places is None else self.places[first:end]
        return TableEvents(self.name, table, self.first_row + first, places)

    def columns(self, how: Reading) -> Cells:
        return _cells_of_table(self.table, self.name, self.first_row, how)

    def texts(self) -> list[str]:
        return [json.dumps(row, default=_text, ensure_ascii=False) for row in self.table.to_pylist()]

    def place(self, number: int) -> str:
        row = f"{self.name} row {self.first_row + number}"
        return row if self.places is None else self.places[number]


def line_events(name: str, text: bytes, first_line: int, layout: Layout | None) -> LineEvents:
    """Events that are whole lines of a text; blank lines are none."""
    if blank_lines(text) == 0 and b"\n\n" not in text and b"\n\r\n" not in text:
        return LineEvents(name, text, first_line, layout)
    numbered = enumerate(text.split(b"\n")[:-1], first_line)
    lines = {number: line + b"\n" for number, line in numbered if line.strip(b"\r")}
    return LineEvents(name, b"".join(lines.values()), first_line, layout, lines=list(lines))


def blank_lines(text: bytes) -> int:
    """The length of the blank lines that a text begins with."""
    return text.rfind(b"\n", 0, len(text) - len(text.lstrip(b"\r\n"))) + 1


def table_events(table: Any, name: str = "the stream") -> TableEvents:
    """Events of what holds columns: an Arrow table, a frame, a dict of columns.

    >>> len(table_events({"user": ["u1", "u2"], "click": [0, 1]}))
    2
    """
    return TableEvents(name, as_table(table))


def field_events(events: Iterable[Mapping[str, bytes]], name: str, places: Sequence[str]) -> TableEvents:
    """Events whose fields are texts, each a mapping of names to bytes; a field that one lacks is
    missing."""
    rows = list(events)
    names = dict.fromkeys(field for row in rows for field in row)
    columns = {field: pa.array([row.get(field) for row in rows], pa.binary()) for field in names}
    return TableEvents(name, pa.table(columns), places=places)


def message_events(
    messages: Iterable[bytes], name: str, layout: Layout | None, places: Sequence[str]
) -> LineEvents:
    """Events that are messages of one line; JSON may be of several."""
    text = b"".join(message.replace(b"\n", b" ") + b"\n" for message in messages)
    return LineEvents(name, text, 1, layout, places)


def is_json(line: bytes) -> bool:
    """True if a line of text is an object of JSON rather than fields with delimiters."""
    return line.removeprefix(codecs.BOM_UTF8).lstrip().startswith(b"{")


def reading_of(how: Schema | Reading) -> Reading:
    """How the events of a source are read; of a schema alone, one sample a line."""
    return how if isinstance(how, Reading) else Reading(how, 1, histories="lines")


def declared_layout(how: Reading, name: str, line: bytes) -> Layout:
    """The columns of lines without a header, as the schema has them; ValueError where it has none."""
    if how.schema.columns is None:
        raise ValueError(
            f"{name}: expected objects of JSON, found {line[:60]!r}; of lines with delimiters the schema "
            f"must say the `columns`, as there is no header"
        )
    return layout_of(how, name, line.rstrip(b"\r\n"))


def layout_by_first(how: Reading, name: str, line: bytes) -> tuple[Layout | None, bool]:
    """The columns of a text, by its first line, and whether this line is their header; None: JSON."""
    if is_json(line):
        return None, False
    line = recoded(line, name, how.schema.encoding)
    if (problem := chunk_of(name, bytearray(line), 1).not_utf8) is not None:
        raise ValueError(problem[1])
    if how.schema.columns is not None:
        return declared_layout(how, name, line), False
    line = line if line.endswith(b"\n") else line + b"\n"
    return layout_of(how, name, line), True


def end_of_line(text: bytes, number: int) -> int:
    """The end of the line of this number, or of the last whole line before it; 0: there is none."""
    end = 0
    for _ in range(number):
        following = text.find(b"\n", end) + 1
        if not following:
            break
        end = following
    return end


def _text(value: Any) -> str:
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)


def _cells_of_table(table: Any, name: str, first_row: int, how: Reading) -> Cells:
    complete = with_columns(table, how.columns).combine_chunks()
    batches = complete.to_batches()
    batch = batches[0] if batches else pa.RecordBatch.from_pylist([], schema=complete.schema)
    return cells_of(batch, name, first_row, how, "event")
