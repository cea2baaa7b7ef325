"""LineLog: a file of JSON lines that is appended to, and cut back where a resumed run goes on.

DeadLetters: events that were not trained, a line of JSON each, with position and reason.

    {"read": 1041, "place": "clicks/a.jsonl line 1042", "reason": "malformed",
     "what": "clicks/a.jsonl event 1,042, column 'price': expected a number, found 'x'; correct ..",
     "event": "{\"click\": 1, \"price\": \"x\"}"}

`read` counts the events of the stream before it. A resumed run reads events after its checkpoint again,
and so drops the letters that were written about them: each event has at most one.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from hotrows.data.streams.alarms import log
from hotrows.runtime.atomic_files import make_folder
from hotrows.runtime.json_file import parse

_LONGEST = 1 << 16  # characters of an event that are written
MALFORMED, LATE = "malformed", "late"


class LineLog:
    """Appends lines to a file. keeps: which of its lines stay, from the first one on; the others are cut
    off, as is what a crash has left of a line. ValueError: a line would stay behind one that does not, or
    that cannot be read, which no crash leaves."""

    def __init__(
        self, path: Path, keeps: Callable[[Mapping[str, Any]], bool] = lambda line: False
    ) -> None:
        self.path = path
        make_folder(path.parent)
        with ExitStack() as opened:
            self._file = opened.enter_context(open(path, "ab"))
            kept, other = 0, 0
            for number, (end, line) in enumerate(_lines(path), 1):
                if line is None or not keeps(line):
                    other = other or number
                elif other:
                    raise ValueError(
                        f"{path} is damaged: line {other:,} cannot be read, or is not in its place; "
                        f"bring it back from a copy, or move it away"
                    )
                else:
                    kept = end
            self._file.truncate(kept)
            self._opened = opened.pop_all()

    def write(self, fields: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(fields).encode() + b"\n")

    def sync(self) -> None:
        """Makes durable what was written: before a checkpoint that comes after it."""
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        with self._opened:
            self.sync()


class DeadLetters:
    """Appends to a file of dead letters, and warns of the first malformed event. read: events that were
    read before; later letters are dropped."""

    def __init__(self, path: Path | str, read: int = 0) -> None:
        self.path = path = Path(path)
        self._log = LineLog(path, lambda letter: type(n := letter.get("read")) is int and n < read)
        self.sync, self.close, self._has_warned = self._log.sync, self._log.close, False

    def write(self, read: int, place: str, reason: str, what: str, event: str) -> None:
        """place: where the event is in the source; what: the reason in words; event: as it came."""
        if reason == MALFORMED and not self._has_warned:
            log.warning(f"{place} is not trained: {what}; malformed events go to {self.path}")
            self._has_warned = True
        position = {"read": read, "place": place}
        self._log.write({**position, "reason": reason, "what": what, "event": event[:_LONGEST]})


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of such a file, up to one that a crash has cut."""
    for _, line in _lines(path):
        if line is None:
            return
        yield line


def _lines(path: Path) -> Iterator[tuple[int, dict[str, Any] | None]]:
    """Yields the end of each line in the file, and its fields; None of one that cannot be read."""
    end = 0
    with open(path, "rb") as file:
        for text in file:
            end += len(text)
            try:
                line = parse(text) if text.endswith(b"\n") else None
            except ValueError:
                line = None
            yield end, line if isinstance(line, dict) else None
