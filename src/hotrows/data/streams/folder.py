"""FolderSource: a folder that grows, file after file, in the order of their names.

Parquet, Arrow and ORC files are read once they are whole: write them aside, then rename them into place.
Text (JSON lines, delimited) may also be appended to: a line is read once its line break is there. A file
is taken as complete when one with a later name is there, and all of it has been read; then it may be
deleted. Names that begin with `.` or `_`, or end with .tmp or .part, are not there yet.

No event is lost in silence. A file that was truncated or replaced while it was read is an error, see
`folder_files`. A warning names files that came too late, are gone unread, or were written to after they
were read. For the time without a process the position has when the newest file was changed, and how many
came before the present one.
"""

from __future__ import annotations

import logging
import math
import os
import time
from bisect import bisect_left
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hotrows.data.raw.reading import Reading
from hotrows.data.streams.alarms import Outage
from hotrows.data.streams.events import LineEvents, RawEvents, reading_of
from hotrows.data.streams.folder_files import Reader, open_file
from hotrows.runtime.atomic_files import local
from hotrows.schema import Schema

log = logging.getLogger("hotrows")

_UNFINISHED = (".tmp", ".part", ".crdownload")
_POLL = 0.02  # seconds between two looks
_PATIENCE = 10.0  # seconds after which a file that is not whole is spoken of
# The place before all events of a file.
_FIRST: dict[str, Any] = {"offset": 0, "line": 1, "is_read": False, "sum": 0}


class FolderSource:
    """Reads the files of a folder, and of those inside it, in the order of their paths.

    schema: of the events; whether text has a header is said by it, as in `prepare`.
    """

    def __init__(self, folder: Path | str, schema: Schema | Reading) -> None:
        self._folder, self._how = local(folder), reading_of(schema)
        if not self._folder.is_dir():
            raise ValueError(
                f"the stream {folder} is no folder; make it before events are written into it"
            )
        self.name = f"folder:{self._folder.resolve()}"
        self._reader: Reader | None = None
        self._file = ""  # relative to the folder; "": before the first one
        self._before = _FIRST  # the place in a file that is not open
        self._events = 0
        self._listed: set[str] = set()
        self._num_before = 0  # names before the file when they were last listed
        self._newest = 0  # when a file that is known was changed last, in nanoseconds
        self._left = ("", 0)  # the file that was read before, and its bytes then
        self._outage = Outage(self.name)
        self._waited_for = ("", 0.0)  # a file that is not whole, and since when

    @property
    def position(self) -> dict[str, Any]:
        place = self._before if self._reader is None else _place(self._reader)
        known = {"_sum": place["sum"], "_before": self._num_before, "_newest": self._newest}
        offset = {name: value for name, value in place.items() if name != "sum"}
        return {"file": self._file, **offset, "events": self._events, **known}

    def seek(self, position: dict[str, Any]) -> None:
        self._leave()
        self._file, self._events = position["file"], position["events"]
        self._before = {name: position.get(name, position.get("_sum")) for name in _FIRST}
        path = self._folder / self._file
        if self._file and not path.exists() and not position["is_read"]:
            raise ValueError(
                f"{path} is gone, and events of it were not read yet: bring it back, or begin a new run "
                f"from this one (--init-from)"
            )
        names = self._names()
        before = sorted(names[: bisect_left(names, self._file)], key=self._changed)
        self._num_before = position.get("_before", len(before))
        self._newest = position.get("_newest", max(map(self._changed, names), default=0))
        num_same = sum(self._changed(name) <= self._newest for name in before)
        self._listed = set(names).difference(before[min(self._num_before, num_same) :])

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
        path = self._folder / self._file
        if self._reader is None and self._waited_for[0] == str(path) and _size(path):
            log.warning(f"{path} is not whole: its events, and those of later files, were not read")
        self._leave()

    def _leave(self) -> None:
        """Closes the file that is read, and keeps the place in it."""
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
            if self._is_replaced(later):
                self._leave()
            elif not later or (self._reader is None and _size(self._folder / self._file)):
                return LineEvents(self.name, b"")
            else:
                if self._reader is None and not self._before["is_read"]:
                    self._warn_lost([] if (self._folder / self._file).exists() else [self._file])
                self._left = self._file, self._reader.size if self._reader else 0
                self._leave()
                self._file, self._before = later[0], _FIRST

    def _open(self, name: str) -> None:
        """Opens a file at the place before it, where it is whole or a text."""
        path = self._folder / name
        try:
            self._reader = open_file(path, self._how)
        except FileNotFoundError:
            return
        if self._reader is None:
            self._wait_for(path)
        elif self._before != _FIRST:
            self._reader.skip(self._before["offset"], self._before["line"], self._before["sum"])

    def _is_replaced(self, later: list[str]) -> bool:
        """True if another file than the one that is open has its name now. ValueError: it has itself a
        later name, so that its events would be read again."""
        if self._reader is None:
            return False
        path, status = self._folder / self._file, self._reader.status
        if path.exists():
            return not self._reader.is_same(path.stat())
        for name in later:
            if _is_of(self._folder / name, status):
                raise ValueError(
                    f"{path} was renamed to {name} while it was read; a file keeps its name until all of "
                    f"it is read: give it back, or begin a new run from this one (--init-from)"
                )
        return False

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
        try:
            names = self._names()
        except OSError as error:  # the folder, or one in it, is away
            self._outage.warn(error)
            return []
        missed = [name for name in names if name < self._file and name not in self._listed]
        if missed:
            log.warning(
                f"{self._folder / missed[0]} came after {self._file} and is before it by name: it is not "
                f"read, nor are {len(missed) - 1:,} others; give later files later names"
            )
        self._warn_lost(sorted(name for name in self._listed.difference(names) if name > self._file))
        left, size = self._left
        if _size(self._folder / left) not in (0, size):
            log.warning(f"{self._folder / left} was written to after it was read: that is not read")
            self._left = ("", 0)
        known = [*set(names).difference(self._listed), *([self._file] if self._file else ())]
        self._newest = max(self._newest, *map(self._changed, known), 0)
        self._listed, self._num_before = set(names), bisect_left(names, self._file)
        return [name for name in names if name > self._file]

    def _warn_lost(self, names: list[str]) -> None:
        if names:
            log.warning(
                f"{self._folder / names[0]} is gone, and its events were not read; nor were those of "
                f"{len(names) - 1:,} others; keep files until they are read"
            )

    def _changed(self, name: str) -> int:
        """When a file was changed, in nanoseconds; 0 where it is gone."""
        try:
            return (self._folder / name).stat().st_ctime_ns
        except OSError:
            return 0

    def _names(self) -> list[str]:
        return sorted(_names(self._folder, ""))


def _names(folder: Path, prefix: str, above: tuple[Path, ...] = ()) -> Iterator[str]:
    """The files of a folder; pipes, and links to folders `above`, would be read without an end."""
    above = *above, folder.resolve()
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith((".", "_")) or entry.name.endswith(_UNFINISHED):
                continue
            # Of links in a circle an entry raises OSError, and a path says that they are neither.
            path = Path(entry.path) if entry.is_symlink() else entry
            if path.is_file():
                yield prefix + entry.name
            elif path.is_dir() and not (entry.is_symlink() and Path(entry.path).resolve() in above):
                yield from _names(Path(entry.path), f"{prefix}{entry.name}/", above)


def _place(reader: Reader) -> dict[str, Any]:
    return {name: getattr(reader, name) for name in _FIRST}


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


def _is_of(path: Path, status: os.stat_result) -> bool:
    """True if a path is that of the file of this status."""
    return path.exists() and os.path.samestat(path.stat(), status)
