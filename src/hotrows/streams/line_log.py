"""LineLog: a file of JSON lines that is appended to, and cut back where a resumed run goes on."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from hotrows.json_file import parse
from hotrows.runtime.atomic_files import make_folder


class LineLog:
    """Appends lines to a file. keeps: which of its lines stay, from the first one on; the others are cut
    off, as is a line that a crash has cut."""

    def __init__(
        self, path: Path, keeps: Callable[[Mapping[str, Any]], bool] = lambda line: False
    ) -> None:
        self.path = path
        make_folder(path.parent)
        with ExitStack() as opened:
            self._file = opened.enter_context(open(path, "ab"))
            kept = 0
            for end, line in _lines(path):
                if not keeps(line):
                    break
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


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of such a file, up to one that a crash has cut."""
    return (line for _, line in _lines(path))


def _lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields the end of each line in the file, and its fields."""
    end = 0
    with open(path, "rb") as file:
        for text in file:
            try:
                line = parse(text) if text.endswith(b"\n") else None
            except ValueError:
                line = None
            if not isinstance(line, dict):
                return
            end += len(text)
            yield end, line
