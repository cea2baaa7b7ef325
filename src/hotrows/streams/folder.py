"""FolderSource: a folder that grows, file after file, in the order of their names.

Parquet, Arrow and ORC files are read once they are whole: write them aside, then rename them into place.
Text (JSON lines, delimited) may also be appended to: a line is read once its line break is there. A file
is taken as complete when one with a later name is there, and all of it has been read; then it may be
deleted. Names that begin with `.` or `_`, or end with .tmp or .part, are not there yet.
"""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

from hotrows.data.raw.files import File
from hotrows.data.raw.layout import Layout
from hotrows.data.raw.reading import COMPRESSIONS
from hotrows.data.raw.typed_files import TypedFile, checked, explained, kind_of, open_typed_file
from hotrows.schema import Schema
from hotrows.streams.events import (
    LineEvents,
    RawEvents,
    TableEvents,
    blank_lines,
    end_of_line,
    layout_by_first,
    line_events,
)

log = logging.getLogger("hotrows")

_UNFINISHED = (".tmp", ".part", ".crdownload")
_BLOCK = 1 << 20  # bytes of text that are read at once
_MOST_TEXT = 1 << 24  # bytes of text that are read for one call; a longer line is none
_POLL = 0.02  # seconds between two looks
_PATIENCE = 10.0  # seconds after which a file that is not whole is spoken of
_MAGIC = 16  # bytes that tell what a file holds
_FIRST = {"offset": 0, "line": 1, "is_read": False}  # the place before all events of a file


class FolderSource:
    """Reads the files of a folder, and of those inside it, in the order of their paths.

    schema: of the events; whether text has a header is said by it, as in `prepare`.
    """

    def __init__(self, folder: Path | str, schema: Schema) -> None:
        self._folder, self._schema = Path(folder), schema
        if not self._folder.is_dir():
            raise ValueError(
                f"the stream {folder} is no folder; make it before events are written into it"
            )
        self.name = f"folder:{self._folder.resolve()}"
        self._reader: _Reader | None = None
        self._file = ""  # relative to the folder; "": before the first one
        self._before = _FIRST  # the place in a file that is not open
        self._events = 0
        self._listed: set[str] = set()
        self._waited_for = ("", 0.0)  # a file that is not whole, and since when

    @property
    def position(self) -> dict[str, Any]:
        place = self._before if self._reader is None else _place(self._reader)
        return {"file": self._file, **place, "events": self._events}

    def seek(self, position: dict[str, Any]) -> None:
        self.close()
        self._file, self._events = position["file"], position["events"]
        self._before = {name: position[name] for name in _FIRST}
        path = self._folder / self._file
        if self._file and not path.exists() and not position["is_read"]:
            raise ValueError(
                f"{path} is gone, and events of it were not read yet: bring it back, or begin a new run "
                f"from this one (--from)"
            )
        self._listed = set(self._names())

    def read(self, limit: int, wait: float) -> RawEvents | None:
        until = time.monotonic() + wait
        while True:
            begin = time.monotonic()
            events = self._read(limit)
            if len(events) or time.monotonic() >= until:
                self._events += len(events)
                return events
            pause = max(_POLL, 5 * (time.monotonic() - begin))  # to list a large folder takes time, too
            time.sleep(min(pause, max(until - time.monotonic(), 0)))

    def read_to(self, position: dict[str, Any], wait: float) -> RawEvents | None:
        return self.read(position["events"] - self._events, wait)

    def has_reached(self, position: dict[str, Any]) -> bool:
        return self._events >= position["events"]

    def close(self) -> None:
        if self._reader is not None:
            self._before = _place(self._reader)
            self._reader.close()
        self._reader = None

    def _read(self, limit: int) -> RawEvents:
        """The events that are there, of one file, `limit` at most."""
        while True:
            later = self._later()  # before the file is read: what is written into it afterwards is lost
            if self._reader is None and self._file:
                self._open(self._file)
            if self._reader is not None and len(events := self._reader.read(limit, bool(later))):
                return events
            if not later or (self._reader is None and _has_bytes(self._folder / self._file)):
                return LineEvents(self.name, b"")
            self.close()
            self._file, self._before = later[0], _FIRST

    def _open(self, name: str) -> None:
        """Opens a file at the place before it, where it is whole or a text."""
        path = self._folder / name
        try:
            self._reader = _opened(path, self._schema)
        except FileNotFoundError:
            return
        if self._reader is None:
            self._wait_for(path)
        elif self._before != _FIRST:
            self._reader.skip(self._before["offset"], self._before["line"])

    def _wait_for(self, path: Path) -> None:
        """Says once, after a while, that a file is not whole."""
        name, since = self._waited_for
        if name != str(path):
            self._waited_for = str(path), time.monotonic()
        elif time.monotonic() - since > _PATIENCE:
            log.warning(f"{path} is not whole yet; events after it wait for it")
            self._waited_for = str(path), math.inf

    def _later(self) -> list[str]:
        """The names after the file that is read, in order."""
        names = self._names()
        missed = [name for name in names if name < self._file and name not in self._listed]
        if missed:
            log.warning(
                f"{self._folder / missed[0]} came after {self._file} and is before it by name: it is not "
                f"read, nor are {len(missed) - 1:,} others; give later files later names"
            )
        self._listed = set(names)
        return [name for name in names if name > self._file]

    def _names(self) -> list[str]:
        return sorted(_names(self._folder, ""))


def _names(folder: Path, prefix: str, above: tuple[Path, ...] = ()) -> Iterator[str]:
    """The files of a folder; pipes, and links to folders `above`, would be read without an end."""
    above = *above, folder.resolve()
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith((".", "_")) or entry.name.endswith(_UNFINISHED):
                continue
            if entry.is_file():
                yield prefix + entry.name
            elif entry.is_dir() and not (entry.is_symlink() and Path(entry.path).resolve() in above):
                yield from _names(Path(entry.path), f"{prefix}{entry.name}/", above)


class _Reader(Protocol):
    """An open file. offset: bytes or rows before the next event; line: its number, from 1.

    is_read: whether all that the file had when it was last looked at was read.
    """

    offset: int
    line: int

    @property
    def is_read(self) -> bool: ...

    def skip(self, offset: int, line: int) -> None: ...

    def read(self, limit: int, is_complete: bool) -> RawEvents:
        """The next events; is_complete: nothing will be added to the file."""
        ...

    def close(self) -> None: ...


def _place(reader: _Reader) -> dict[str, Any]:
    return {name: getattr(reader, name) for name in _FIRST}


def _has_bytes(path: Path) -> bool:
    return path.is_file() and path.stat().st_size > 0


def _opened(path: Path, schema: Schema) -> _Reader | None:
    """Opens a file; None: it is not whole yet."""
    with open(path, "rb") as file:
        start = file.read(_MAGIC)
    if start.startswith(tuple(COMPRESSIONS)):
        raise ValueError(f"{path} is compressed; a stream reads plain text, Parquet, Arrow and ORC")
    kind = kind_of(start)
    if kind is None:
        return _TextFile(path, schema) if start else None
    try:
        return _RowsFile(path, kind, open_typed_file(File(str(path), str(path)), kind))
    except ValueError:
        return None


class _RowsFile:
    """A file of rows and columns with types: Parquet, Arrow or ORC."""

    line = 1

    def __init__(self, path: Path, kind: str, opened: TypedFile) -> None:
        self._path, self._kind, self._opened, self._num_rows = path, kind, opened, opened.num_rows
        self.offset = 0
        self._batches = self._from_group(0)
        self._batch: Any = None

    @property
    def is_read(self) -> bool:
        return self.offset == self._num_rows

    def _from_group(self, first: int) -> Iterator[Any]:
        with explained(f"{self._path} is damaged"):
            for group in range(first, self._opened.num_groups):
                for batch in self._opened.batches(group, self._opened.names, 1 << 16):
                    yield checked(batch, str(self._path), self._kind)

    def skip(self, offset: int, line: int) -> None:
        """Reads the rows before, and drops them."""
        if offset > self._num_rows:
            raise ValueError(
                f"{self._path} has {self._num_rows:,} rows, of which {offset:,} were read: it was "
                f"replaced; events are written into new files alone"
            )
        while self.offset < offset:
            self.read(offset - self.offset, True)

    def read(self, limit: int, is_complete: bool) -> RawEvents:
        while self._batch is None or not self._batch.num_rows:
            self._batch = next(self._batches, None)
            if self._batch is None:
                return LineEvents(str(self._path), b"")
        batch, self._batch = self._batch.slice(0, limit), self._batch.slice(limit)
        import pyarrow

        events = TableEvents(str(self._path), pyarrow.Table.from_batches([batch]), self.offset)
        self.offset += batch.num_rows
        return events

    def close(self) -> None:
        self._batch = None
        self._batches = iter(())


class _TextFile:
    """A file of lines, which may be appended to."""

    def __init__(self, path: Path, schema: Schema) -> None:
        self._path, self._schema = path, schema
        with ExitStack() as opened:
            self._file = opened.enter_context(open(path, "rb"))
            self._opened = opened.pop_all()
        self.offset, self.line = 0, 1
        self._text = b""  # what was read behind `offset`
        self._layout: Layout | None = None
        self._is_known = False  # whether the layout is
        self.is_read = False

    def skip(self, offset: int, line: int) -> None:
        if self._take_header(False) and offset < self.offset:
            return
        if os.fstat(self._file.fileno()).st_size < offset:
            raise ValueError(
                f"{self._path} is shorter than the {offset:,} bytes of it that were read: it was "
                f"replaced; events are appended, or written into new files"
            )
        self._file.seek(offset)
        self.offset, self.line, self._text = offset, line, b""

    def read(self, limit: int, is_complete: bool) -> RawEvents:
        name = str(self._path)
        if not self._take_header(is_complete):
            return LineEvents(name, b"")
        text = self._lines(limit, is_complete)
        end = b"" if text.endswith(b"\n") or not text else b"\n"
        events = line_events(name, text + end, self.line, self._layout)
        self.offset, self.line = self.offset + len(text), self.line + (text + end).count(b"\n")
        return events

    def close(self) -> None:
        self._opened.close()

    def _take_header(self, is_complete: bool) -> bool:
        """Finds what the lines are, by the first one; whether it is there."""
        if self._is_known:
            return True
        line = self._lines(1, is_complete)
        if not line:
            return False
        self._layout, is_header = layout_by_first(self._schema, str(self._path), line)
        if is_header:
            self.offset, self.line = self.offset + len(line), self.line + 1
        else:
            self._text = line + self._text
        self._is_known = True
        return True

    def _lines(self, limit: int, is_complete: bool) -> bytes:
        """Takes whole lines, `limit` at most, of which the first is not blank; the last one of a complete
        file needs no line break."""
        self.is_read = False
        while (num_lines := self._count_lines()) < limit:
            if len(self._text) > _MOST_TEXT and not num_lines:
                raise ValueError(f"{self._path} line {self.line} is longer than 16 MiB; correct the file")
            if len(self._text) > _MOST_TEXT:
                break
            block = self._file.read(_BLOCK)
            if not block:
                self.is_read = True
                break
            self._text += block
        end = end_of_line(self._text, limit)
        if is_complete and self.is_read and self._text.count(b"\n") < limit:
            end = len(self._text)
        self.is_read = self.is_read and end == len(self._text)
        text, self._text = self._text[:end], self._text[end:]
        return text

    def _count_lines(self) -> int:
        """How many whole lines were read, after the blank ones before them are passed over."""
        blank = blank_lines(self._text)
        self.line += self._text.count(b"\n", 0, blank)
        self.offset, self._text = self.offset + blank, self._text[blank:]
        return self._text.count(b"\n")
