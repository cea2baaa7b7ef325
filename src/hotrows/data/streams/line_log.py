"""LineLog: a file of JSON lines that is appended to, and cut back where a resumed run goes on."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from hotrows.runtime.atomic_files import make_folder
from hotrows.runtime.json_file import parse


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
