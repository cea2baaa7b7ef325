"""StandardInput: events from a pipe, a line each.

What was read from a pipe is gone. A killed run has lost the events after its last checkpoint, and is
resumed only where the input begins anew (`-:replay`): the events that were trained are then skipped.
"""

from __future__ import annotations

import os
import select
import sys
import time
from typing import Any

from hotrows.data.raw.reading import Reading
from hotrows.data.raw.text import Layout
from hotrows.data.streams.events import (
    RawEvents,
    blank_lines,
    end_of_line,
    layout_by_first,
    line_events,
    reading_of,
)
from hotrows.schema import Schema

_BLOCK = 1 << 20
_LONGEST = 1 << 24  # bytes of a line


class StandardInput:
    """Reads lines of JSON, or delimited ones, with a header unless the schema has `columns`.

    replays: whether the input begins anew in each process. descriptor: of the file (default: standard
    input).
    """

    def __init__(
        self, schema: Schema | Reading, replays: bool = False, descriptor: int | None = None
    ) -> None:
        self.name = "-:replay" if replays else "-"
        self._how, self._replays = reading_of(schema), replays
        self._descriptor = sys.stdin.fileno() if descriptor is None else descriptor
        self._text, self._ended = b"", False
        self._layout: Layout | None = None
        self._is_known = False  # whether the layout is
        self._line, self._events = 1, 0

    @property
    def position(self) -> dict[str, Any]:
        return {"events": self._events}

    def seek(self, position: dict[str, Any]) -> None:
        if not self._replays and position["events"] > self._events:
            raise ValueError(
                "standard input cannot be read again: what the run had read after its last checkpoint is "
                "lost. If the input begins anew with the same events, resume with --stream -:replay; "
                "else begin a new run from this one (--init-from)"
            )
        while self._events < position["events"]:
            if self.read(position["events"] - self._events, 1.0) is None:
                raise ValueError(
                    f"standard input ended after {self._events:,} events, {position['events']:,} of "
                    f"which were trained: pipe the same events, from the first one on"
                )

    def read(self, limit: int, wait: float) -> RawEvents | None:
        until = time.monotonic() + wait
        while not (lines := self._lines(limit)) and not self._ended:
            left = until - time.monotonic()
            if left < 0 or not select.select([self._descriptor], [], [], left)[0]:
                break
            block = os.read(self._descriptor, _BLOCK)
            self._text += block
            self._ended = not block
            if len(self._text) > _LONGEST and b"\n" not in self._text:
                raise ValueError(f"standard input line {self._line} is longer than 16 MiB; correct it")
        if not lines and self._ended and not self._text:
            return None
        events = line_events("standard input", lines, self._line, self._layout)
        self._line, self._events = self._line + lines.count(b"\n"), self._events + len(events)
        return events

    def read_to(self, position: dict[str, Any], wait: float) -> RawEvents | None:
        return self.read(position["events"] - self._events, wait)

    def has_reached(self, position: dict[str, Any]) -> bool:
        return self._events >= position["events"]

    def close(self) -> None:
        """Leaves standard input open, which belongs to the process."""

    def _lines(self, limit: int) -> bytes:
        """Takes whole lines, `limit` at most; the last one needs no line break."""
        if self._ended and self._text and not self._text.endswith(b"\n"):
            self._text += b"\n"
        blank = blank_lines(self._text)
        self._line, self._text = self._line + self._text.count(b"\n", 0, blank), self._text[blank:]
        if not self._is_known and b"\n" in self._text:
            self._take_header()
        end = end_of_line(self._text, limit)
        lines, self._text = self._text[:end], self._text[end:]
        return lines

    def _take_header(self) -> None:
        line, self._is_known = self._text[: end_of_line(self._text, 1)], True
        self._layout, is_header = layout_by_first(self._how, "standard input", line)
        if is_header:
            self._text, self._line = self._text[len(line) :], self._line + 1
