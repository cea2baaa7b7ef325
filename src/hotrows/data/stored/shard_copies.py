"""ShardCopies: the shards of data at a URL, of which this machine has copies in a bounded folder.

    reads     | 7 2 | 9 4 | 1 8 | ..         shards, in the order of the epoch
    ahead     9 4 1 8                        are fetched by threads meanwhile, in that order
    folder    2 9 4 1                        7 was read longest ago, and went when 1 needed its room

    CACHE/copies/DIGEST/enc/train-00007.shard     as it was written: compared with its checksums
    CACHE/copies/DIGEST/fetching/train-00007.shard/    its lock, and what has come of it

All processes of the machine share the folder. The one that locks a shard fetches it, and renames it when
it is complete; the others wait for it, or fetch the next one. A shard that a process reads stays mapped
when another one drops its file.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from hotrows.data.columns.of_schema import SchemaColumns
from hotrows.data.rows import Rows
from hotrows.data.stored.request_rows import RequestRows
from hotrows.data.stored.sections import open_sections
from hotrows.data.stored.shards import Shard, open_shard
from hotrows.runtime.background import Worker
from hotrows.runtime.locks import NAME as LOCK
from hotrows.runtime.locks import Held, Lock, holder_of
from hotrows.runtime.remote.files import RemoteFiles, open_files
from hotrows.runtime.units import format_bytes

log = logging.getLogger("hotrows")

_THREADS = 4  # that fetch shards
_TRIES = 3  # to fetch a shard that comes with other bytes
_OTHER_RANK = 3600.0  # seconds for another process of this machine to fetch the same
_MOMENT = 2.0  # seconds
FEWEST = 3  # shards that must fit


class ShardCopies:
    """Copies of the shards of the data at `url`, in `folder`. sizes: their bytes, by name; limit: bytes
    of all that are there, or on their way (None: no limit)."""

    def __init__(self, folder: Path, url: str, sizes: Mapping[str, int], limit: int | None) -> None:
        self.folder, self.url, self.sizes, self.limit = folder, url, sizes, limit
        self._fetching, largest = folder.parent / "fetching", max(sizes.values(), default=0)
        if limit is not None and limit < FEWEST * largest:
            raise ValueError(
                f"a data cache of {format_bytes(limit)} has no room for {FEWEST} shards of {url}, the "
                f"largest of which has {format_bytes(largest)}: give it at least {FEWEST * largest} bytes"
            )
        # Room for what no reader has announced.
        self._room = sum(sizes.values()) if limit is None else limit - largest
        self._begin()

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.folder, self.url, self.sizes, self.limit)

    def _begin(self) -> None:
        """Begins in this process: threads and connections do not outlive a fork."""
        is_forked = hasattr(self, "_files")
        self._process, self._guard = os.getpid(), threading.Lock()
        self._files = RemoteFiles(self.url) if is_forked else open_files(self.url)
        self._wanted: dict[str, list[Shard]] = {}  # by reader, in the order in which it reads them
        self._tried: set[str] = set()  # of these, by a thread
        self._failed: set[str] = set()
        self._underway: set[str] = set()  # a thread fetches them, also if nobody wants them any more
        self._num_threads = 0
        self._rows: dict[tuple[str, SchemaColumns], Rows | RequestRows] = {}
        self._known: set[tuple[str, int, int]] = set()  # files whose bytes are as they were written
        self._is_stopped = False

    def most_shuffled(self, shards: Iterable[Shard]) -> int | None:
        """How many shards a shuffled epoch can read at a time; None: all of these."""
        sizes = [self.sizes[shard.file] for shard in shards]
        if sum(sizes) <= self._room:
            return None
        return self._room // (2 * max(sizes)) or 1  # and those that come after them

    def ahead(self, reader: str, shards: Iterable[Shard]) -> None:
        """Fetches shards in the order in which a reader reads them: the first, and as many as there is
        room for. They replace what it announced before."""
        if self._process != os.getpid():
            self._begin()
        with self._guard:
            self._wanted.pop(reader, None)
            taken = self._names() | self._underway
            room = self._room - sum(self.sizes[name] for name in taken)
            chosen: list[Shard] = []
            for shard in shards:
                room -= 0 if shard.file in taken else self.sizes[shard.file]
                if chosen and room < 0:
                    break
                chosen.append(shard)
            self._wanted[reader], names = chosen, self._names() | {shard.file for shard in chosen}
            self._rows = {
                key: rows for key, rows in self._rows.items()
                if key[0] in names or (self.folder / key[0]).exists()
            }  # fmt: skip
            self._tried = self._failed | self._underway
            missing = min(_THREADS, len(chosen)) - self._num_threads
            self._num_threads += max(missing, 0)
        for shard in chosen:
            self._touch(shard.file)
        for _ in range(missing):
            Worker("hotrows data", self._fetch_ahead, self._stop, patience=_MOMENT)

    def rows(self, shard: Shard, columns: SchemaColumns) -> Rows | RequestRows:
        if self._process != os.getpid():
            self._begin()
        key, path = (shard.file, columns), self.folder / shard.file
        while (rows := self._rows.get(key)) is None:
            self.bring(shard)
            try:
                rows = open_shard(path, columns, shard.header)
            except ValueError:
                if path.exists():
                    raise
                continue  # another process has dropped it just now
            self._touch(shard.file)
            with self._guard:
                self._rows[key] = rows
        return rows

    def bring(self, shard: Shard, patience: float = _OTHER_RANK) -> Path:
        """The path of a shard, fetched if it is not there; `Held` if another process fetches it for
        longer than `patience` seconds, ValueError if it does not come as it was written."""
        if not self._is_there(shard):
            lock = Lock(self._fetching / shard.file, patience)
            try:
                if not self._is_there(shard):
                    self._make_room(shard.file)
                    self._fetch(shard)
            finally:
                lock.release()
        return self.folder / shard.file

    def clean(self) -> None:
        """Deletes what killed processes have fetched of shards, and shards that have no room."""
        self._make_room()
        for folder in {path.parent for path in self._fetching.glob("*/*") if path.name != LOCK}:
            with suppress(Held):
                lock = Lock(folder)
                for path in folder.iterdir():
                    if path.name != LOCK:
                        path.unlink()
                lock.release()

    def _fetch_ahead(self) -> None:
        """A thread: fetches the first wanted shard that no thread has tried, until there is none."""
        while True:
            with self._guard:
                wanted = (shard for shards in self._wanted.values() for shard in shards)
                shard = next((shard for shard in wanted if shard.file not in self._tried), None)
                if shard is None or self._is_stopped:
                    self._num_threads -= 1
                    return
                self._tried.add(shard.file)
                self._underway.add(shard.file)
            try:
                self.bring(shard, patience=0.0)
            except Held:
                continue  # another process fetches it
            except (OSError, ValueError):  # who reads it fetches it again, and says why not
                self._failed.add(shard.file)
            finally:
                self._underway.discard(shard.file)

    def _stop(self) -> None:
        self._is_stopped = True
        self._files.stopped.set()

    def _names(self) -> set[str]:
        return {shard.file for shards in self._wanted.values() for shard in shards}

    def _is_there(self, shard: Shard) -> bool:
        path = self.folder / shard.file
        try:
            status = path.stat()
            version = shard.file, status.st_ino, status.st_mtime_ns
            if version not in self._known:
                open_sections(path, shard.header).check()
                self._known.add(version)
        except (FileNotFoundError, ValueError):
            return False
        return True

    def _fetch(self, shard: Shard) -> None:
        path, name = self._fetching / shard.file / "shard", f"{self.url}/{shard.file}"
        for tries_left in reversed(range(_TRIES)):
            self._files.get(shard.file, path, self.sizes[shard.file])
            try:
                open_sections(path, shard.header).check()
                break
            except ValueError as error:
                path.unlink()
                text = str(error).replace(os.fspath(path), name)
                if not tries_left:
                    raise ValueError(text) from None
                log.warning("%s; it is fetched again", text)
        status = path.stat()
        self._known.add((shard.file, status.st_ino, status.st_mtime_ns))
        os.replace(path, self.folder / shard.file)

    def _make_room(self, *names: str) -> None:
        """Deletes what was read longest ago, until there is room for shards; nothing that a reader of
        this process has announced."""
        if self.limit is None:
            return
        lock = Lock(self._fetching, _OTHER_RANK)
        try:
            coming = {
                path.parent.name for path in self._fetching.glob(f"*/{LOCK}") if holder_of(path.parent)
            }
            copies = {path.name: path.stat() for path in self._copies()}
            used = sum(self.sizes[name] for name in copies.keys() | coming | {*names})
            with self._guard:
                kept = self._names() | coming
            for old in sorted(copies.keys() - kept, key=lambda name: copies[name].st_atime_ns):
                if used <= self.limit:
                    break
                (self.folder / old).unlink(missing_ok=True)
                used -= self.sizes[old]
        finally:
            lock.release()

    def _copies(self) -> list[Path]:
        return [path for path in self.folder.iterdir() if path.name in self.sizes]

    def _touch(self, name: str) -> None:
        """Notes that a shard is read, for all processes; its file stays the version that it is."""
        with suppress(FileNotFoundError):
            path = self.folder / name
            os.utime(path, ns=(time.time_ns(), path.stat().st_mtime_ns))
