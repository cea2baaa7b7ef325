"""Files of a folder of events while they are read: text that may grow, and Parquet, Arrow and ORC.

A file is known again by the bytes before the place up to which it was read, or by its last ones, where it
is read once it is whole: their checksum is in the position of a stream. So a file that was truncated or
replaced is an error, whether a process read it meanwhile or not, and whatever its size is now.
"""

from __future__ import annotations

import codecs
import os
import zlib
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any, BinaryIO

from hotrows.data.raw.chunks import COMPRESSIONS, LONGEST
from hotrows.data.raw.files import File
from hotrows.data.raw.inputs import kind_of
from hotrows.data.raw.reading import Reading, check_present
from hotrows.data.raw.text import Layout
from hotrows.data.raw.typed_files import Groups, checked, explained, open_typed_file
from hotrows.data.streams.events import (
    LineEvents,
    RawEvents,
    TableEvents,
    blank_lines,
    end_of_line,
    layout_by_first,
    line_events,
)
from hotrows.runtime.arrow import pa

_BLOCK = 1 << 20  # bytes of text that are read at once
_MOST_TEXT = 1 << 24  # bytes of text that are read for one call; a longer line is none
_TAIL = 1 << 14  # bytes by which a file is known again


def open_file(path: Path, how: Reading) -> Reader | None:
    """Opens a file; None: it is not whole yet."""
    with open(path, "rb") as file:
        start, status = file.read(LONGEST), os.fstat(file.fileno())
        sum_ = zlib.crc32(_tail(file, status.st_size))
    if start.startswith((*COMPRESSIONS, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise ValueError(
            f"{path} is compressed or UTF-16; a stream reads UTF-8 text, Parquet, Arrow and ORC"
        )
    encoding = how.schema.encoding
    if start.startswith(codecs.BOM_UTF8) and encoding != "utf-8":
        raise ValueError(
            f"{path} has the byte order mark of UTF-8, and the schema says {encoding!r}; write "
            f"all files of a stream in one encoding"
        )
    kind = kind_of(start)
    if kind is None:
        return _TextFile(path, how) if start else None
    # A memory map would end the process where a file is truncated.
    unmapped = File(str(path), str(path), system=SimpleNamespace(open=pa.OSFile))
    try:
        opened = open_typed_file(unmapped, kind)
        reader = _RowsFile(path, kind, opened, status, sum_)
    except ValueError:
        return None
    check_present(how, str(path), tuple(opened.schema.names))
    return reader


class _RowsFile:
    """A file of rows and columns with types: Parquet, Arrow or ORC.

    offset: rows before the next event; line: its number, from 1. is_read: whether all that the file had
    when it was last looked at was read. size: bytes of the file that were read. sum: the checksum by
    which it is known again. status: when it was opened.
    """

    line = 1

    def __init__(self, path: Path, kind: str, opened: Groups, status: os.stat_result, sum_: int) -> None:
        self._path, self._kind, self._opened, self._num_rows = path, kind, opened, opened.count()
        self.offset, self.status, self._sum = 0, status, sum_
        self._batches = self._from_group(0)
        self._batch: Any = None

    @property
    def is_read(self) -> bool:
        return self.offset == self._num_rows

    @property
    def size(self) -> int:
        return self.status.st_size

    @property
    def sum(self) -> int:
        return self._sum if self.offset else 0

    def is_same(self, status: os.stat_result) -> bool:
        """True if a file of this status is the one that is open."""
        before = self.status
        is_same = (status.st_size, status.st_mtime_ns) == (before.st_size, before.st_mtime_ns)
        return is_same and os.path.samestat(status, before)

    def _from_group(self, first: int) -> Iterator[Any]:
        with explained(f"{self._path} is damaged"):
            for group in range(first, self._opened.num_groups):
                for batch in self._opened.batches(group, self._opened.schema.names, 1 << 16):
                    yield checked(batch, str(self._path), self._kind)

    def skip(self, offset: int, line: int, sum_: int | None) -> None:
        """Goes to a place, by reading the rows before; ValueError where the file is another one. sum_:
        None in older positions."""
        if offset > self._num_rows:
            raise ValueError(
                f"{self._path} has {self._num_rows:,} rows, of which {offset:,} were read: it was "
                f"replaced; events are written into new files alone"
            )
        _check_sum(self._path, sum_ in (None, 0, self._sum), offset, "rows")
        while self.offset < offset:
            self.read(offset - self.offset, True)

    def read(self, limit: int, is_complete: bool) -> RawEvents:
        """The next events; is_complete: nothing will be added to the file."""
        while self._batch is None or not self._batch.num_rows:
            self._batch = next(self._batches, None)
            if self._batch is None:
                return LineEvents(str(self._path), b"")
        batch, self._batch = self._batch.slice(0, limit), self._batch.slice(limit)
        events = TableEvents(str(self._path), pa.Table.from_batches([batch]), self.offset)
        self.offset += batch.num_rows
        return events

    def close(self) -> None:
        self._batch = None
        self._batches = iter(())


class _TextFile:
    """A file of lines, which may be appended to; as `_RowsFile`, its offset counts bytes."""

    def __init__(self, path: Path, how: Reading) -> None:
        self._path, self._how = path, how
        with ExitStack() as opened:
            self._file = opened.enter_context(open(path, "rb", buffering=0))
            self.status = os.fstat(self._file.fileno())
            self._opened = opened.pop_all()
        self.offset, self.line = 0, 1
        self._text = b""  # what was read behind `offset`
        self._tail = b""  # the bytes before `offset`
        self._layout: Layout | None = None
        self._is_known = False  # whether the layout is
        self.is_read = False

    @property
    def size(self) -> int:
        return self.offset

    @property
    def sum(self) -> int:
        return zlib.crc32(self._tail)

    def is_same(self, status: os.stat_result) -> bool:
        return os.path.samestat(status, self.status)

    def skip(self, offset: int, line: int, sum_: int | None) -> None:
        if self._take_header(False) and offset < self.offset:
            return
        if os.fstat(self._file.fileno()).st_size < offset:
            raise ValueError(
                f"{self._path} is shorter than the {offset:,} bytes of it that were read: it was "
                f"replaced; events are appended, or written into new files"
            )
        self.offset, self.line, self._text, self._tail = offset, line, b"", _tail(self._file, offset)
        _check_sum(self._path, sum_ in (None, self.sum), offset, "bytes")

    def read(self, limit: int, is_complete: bool) -> RawEvents:
        name = str(self._path)
        if not self._take_header(is_complete):
            return LineEvents(name, b"")
        text = self._lines(limit, is_complete)
        end = b"" if text.endswith(b"\n") or not text else b"\n"
        events = line_events(name, text + end, self.line, self._layout)
        self._pass(text + end, len(text))
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
        self._layout, is_header = layout_by_first(self._how, str(self._path), line)
        if is_header:
            self._pass(line, len(line))
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
            block = self._block()
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
        text, self._text = self._text[:blank], self._text[blank:]
        self._pass(text, blank)
        return self._text.count(b"\n")

    def _pass(self, text: bytes, num_bytes: int) -> None:
        """Goes on behind a text, of which the file has `num_bytes`."""
        self.offset, self.line = self.offset + num_bytes, self.line + text.count(b"\n")
        self._tail = (self._tail + text[max(num_bytes - _TAIL, 0) : num_bytes])[-_TAIL:]

    def _block(self) -> bytes:
        """The next bytes; those before them must be as they were."""
        end, known = self.offset + len(self._text), (self._tail + self._text[-_TAIL:])[-_TAIL:]
        self._file.seek(end - len(known))
        content = self._file.read(len(known) + _BLOCK)
        _check_sum(self._path, content.startswith(known), end, "bytes")
        return content[len(known) :]


Reader = _RowsFile | _TextFile


def _tail(file: BinaryIO, end: int) -> bytes:
    """The bytes of a file before `end`, as many as a file is known again by."""
    begin = max(end - _TAIL, 0)
    file.seek(begin)
    return file.read(end - begin)


def _check_sum(path: Path, is_right: bool, offset: int, what: str) -> None:
    if not is_right:
        raise ValueError(
            f"{path} was truncated or replaced after {offset:,} {what} of it were read: events are "
            f"appended, or written into new files; bring it back, or begin a new run from this one "
            f"(--init-from)"
        )
