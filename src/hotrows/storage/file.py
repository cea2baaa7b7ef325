"""A store on disk: the records of a group of tables that are larger than memory.

    PATH/store.json   what is here: form, checkpoints, and which files count
    PATH/base         the records of every row at its place, and a bit for each row that was ever written
    PATH/log-<g>      records written since checkpoint g - 1, in the order of their writing
    PATH/undo-<g>     what `base` held where merging log-<g> into it overwrites

Rows come and go by the thousand, at random places. Writing each in place would cost a read and a
write of a block per row; so writes append to a log, an index in memory says where a row's newest
record is, and whole logs are merged into `base` in sorted sweeps, in the background.

    write -> log-<open> --checkpoint--> log-<closed> --retain, then merge--> base
    read  <- the newest of:  log-<open>, log-<closed>..., base if the row's bit is set, first values

Crashes. `store.json` is replaced whole and decides: a file that it does not name means nothing, and
numbers are never used twice. A generation's log goes only when `base` is synced and `store.json`
says that it holds the generation, so an interrupted merge is just done again. Before a merge
overwrites what an older retained checkpoint reads, the old bytes are in an undo journal that
`store.json` names. Going back applies journals from the newest to the oldest, which may be repeated.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import struct
import threading
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from hotrows.storage.log import (
    ABSENT,
    BLOCK,
    KEEPS,
    UNTOUCHED,
    Disk,
    Fetcher,
    Log,
    RecordFile,
    Segment,
    Undo,
    alignment,
    explained,
    full,
    read_whole,
    runs,
    segments,
    sweep,
    sync_folder,
)

FORMAT = 1
SEGMENT_BYTES = 8 << 20  # a longer write becomes several segments
MERGE_BYTES = 32 << 20  # of records in memory while merging

_KIND = "hotrows file store"
_BASE_HEADER = struct.Struct("<8sqqqqI")
_BASE_MAGIC = b"hotrowsB"
_RECORDS_ALIGN = 1 << 20
_SAMPLE = 16  # one row in so many decides where a merge is cut

FirstValues = Callable[[Tensor, Tensor], None]


@dataclass(frozen=True)
class State:
    """What store.json says besides the form of the store."""

    open: int = 1  # the generation that is being written
    merged: int = 0  # `base` holds all generations up to this one
    closed: tuple[tuple[int, int], ...] = ()  # later ones that are whole: number, bytes of its log
    retained: tuple[int, ...] = ()  # must stay restorable
    undo: tuple[int, ...] = ()  # journals that count

    @property
    def restorable(self) -> list[int]:
        last = max(self.retained, default=self.merged)
        return sorted({*self.retained, *(g for g, _ in self.closed if g > last)})

    @property
    def files(self) -> set[str]:
        logs = {f"log-{g}" for g in (self.open, *(g for g, _ in self.closed))}
        return logs | {f"undo-{g}" for g in self.undo}


class FileStore:
    """Records of `rows` rows in a folder, `stride` bytes each, behind a cache.

    first_values(rows, out) fills out [m, stride] uint8 for rows [m] that were never written. One
    thread may read while another writes; checkpoints are taken by the thread that writes. A new
    store can be used at once; one that is opened first goes to a checkpoint, by `restore`.
    """

    def __init__(
        self,
        path: Path,
        form: Form,
        first_values: FirstValues,
        log_rows: int | None,
        lock: RecordFile,
        state: State,
    ) -> None:
        """For `create` and `open`."""
        self.path, self.stride, self.num_rows = path, form.stride, form.rows
        self.log_rows = _log_rows(form, log_rows)
        self._form, self._first_values, self._lock_file = form, first_values, lock
        self._base = Base(path / "base", form)
        self._state = state
        self._logs: tuple[Log, ...] = ()  # the open one, then closed ones, newest first
        self._num_views = 0
        self._num_initialised = self._num_read = self._log_bytes = 0
        self._reader, self._merger = Fetcher(form.stride), Fetcher(form.stride)
        # Taken in this order: who writes, what a reader looks through, the state.
        self._writing, self._reading = threading.RLock(), threading.Lock()
        self._saving = threading.RLock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._merge_error: BaseException | None = None
        self._broken: str | None = "go to a checkpoint first: restore(generation) or restore(None)"

    @classmethod
    def create(
        cls, path: Path | str, rows: int, stride: int, first_values: FirstValues, meta: dict,
        log_rows: int | None = None,
    ) -> FileStore:  # fmt: skip
        """Makes a store of untouched rows in a new folder; takes seconds at any size."""
        path = Path(path)
        form = Form(rows, stride, json.loads(json.dumps(meta)))
        path.mkdir(parents=True, exist_ok=True)
        lock = _lock(path)
        try:
            if set(os.listdir(path)) - {"lock", "base", "log-1", "store.json.part"}:
                raise ValueError(
                    f"{path} is not empty; delete it, choose another folder, or open the store in it"
                )
            _check_room(path, form, _log_rows(form, log_rows))
            Base.create(path / "base", form)
            store = cls(path, form, first_values, log_rows, lock, State())
            store._logs = (store._new_log(1),)
            store._save(State())
        except BaseException:
            lock.close()
            raise
        store._broken = None
        return store

    @classmethod
    def open(
        cls, path: Path | str, rows: int, stride: int, first_values: FirstValues, meta: dict,
        log_rows: int | None = None,
    ) -> FileStore:  # fmt: skip
        """Opens a store, whether or not it was closed; `restore` then says which state to use."""
        path = Path(path)
        form = Form(rows, stride, json.loads(json.dumps(meta)))
        _read_state(path, form)  # or says what is wrong with it
        lock = _lock(path)
        try:  # until now another process may have written it
            return cls(path, form, first_values, log_rows, lock, _read_state(path, form))
        except BaseException:
            lock.close()
            raise

    @staticmethod
    def view_at(
        path: Path | str, rows: int, stride: int, first_values: FirstValues, meta: dict,
        generation: int,
    ) -> View:  # fmt: skip
        """A restorable checkpoint of a store that nobody writes at this time, from any process."""
        path, form = Path(path), Form(rows, stride, json.loads(json.dumps(meta)))
        return View(path, form, _read_state(path, form), generation, first_values)

    def read(self, rows: Tensor, out: Tensor) -> None:
        """Fills out [m, stride] uint8 with the records of `rows` [m] int64, distinct, ascending."""
        numbers, bytes_ = _checked(rows, out, self._form, filled=True)
        with self._reading:
            self._check()
            initialised = _read(
                self._logs, self._base, self._reader, self._first_values, numbers, bytes_
            )
            self._num_read += numbers.size
            self._num_initialised += initialised

    def write(self, rows: Tensor, records: Tensor, keeps: bool = False) -> None:
        """Appends the records of `rows`, distinct and ascending, to the open log.

        keeps: the caller holds the rows on and writes them again before it reads them, so they
        cost no memory here.
        """
        numbers, bytes_ = _checked(rows, records, self._form)
        with self._writing:
            self._check()
            log, begin, added = self._logs[0], self._logs[0].end, []
            try:
                for part in _pieces(numbers.size, self.stride):
                    first = log.append(numbers[part], bytes_[part], KEEPS if keeps else 0)
                    added.append((numbers[part], first))
            except BaseException:
                log.take_back(begin)
                raise
            self._log_bytes += log.end - begin
            for piece, first in [] if keeps else added:
                log.index.put(piece, first, self.stride)

    @property
    def wants_checkpoint(self) -> bool:
        """Whether the open log has more than `log_rows` records, so that it should be closed soon.

        This bounds the log on disk and its index in memory. The default is a record per 4 KiB of
        the tables: by then about every block of `base` has a changed row, and merging is one
        sequential sweep instead of random writes; waiting longer saves little.
        """
        return bool(self._logs) and self._logs[0].num_records > self.log_rows

    def checkpoint(self) -> int:
        """Makes all writes so far durable, as a generation that can be restored; its number.

        Costs three syncs, whatever the size of the tables.
        """
        with self._writing:
            self._check()
            self._raise_merge_error()
            log = self._logs[0]
            try:
                log.file.sync()
            except OSError as error:  # what the log holds is unknown from here on
                self._broken = f"syncing {log.path} failed ({error.strerror}); open the store anew"
                raise
            fresh = self._new_log(self._state.open + 1)
            try:
                with self._saving:
                    closed = (*self._state.closed, (log.number, log.end))
                    self._save(replace(self._state, open=fresh.number, closed=closed))
                    self._logs = (fresh, *self._logs)
            except BaseException:
                fresh.close()
                raise
            return log.number

    def retain(self, generations: Iterable[int]) -> None:
        """From now on just these checkpoints, and later ones, must stay restorable.

        To be called after whatever names them is durable. Starts merging, in the background.
        """
        with self._writing:
            self._check()
            self._raise_merge_error()
            with self._saving:
                retained = tuple(sorted(set(generations)))
                for generation in retained:
                    _check_restorable(self.path, self._state, generation)
                undo = tuple(g for g in self._state.undo if min(retained, default=g) < g)
                self._save(replace(self._state, retained=retained, undo=undo))
            self._start_merging()

    def merge_now(self) -> None:
        """Merges what may be merged, and returns when it is done."""
        with self._writing:
            self._check()
            if self._num_views:
                raise ValueError(f"{self.path} has open views, which hold merging; close them")
            if self._thread is not None:
                self._thread.join()
            self._raise_merge_error()
            self._merge_all()

    def restore(self, generation: int | None) -> None:
        """Back to exactly the state of a restorable checkpoint; None: no row was ever written.

        Later generations are dropped.
        """
        with self._writing:
            if self._num_views:
                raise ValueError(f"{self.path} has open views; close them before restoring")
            if generation is not None:
                _check_restorable(self.path, self._state, generation)
            self._stop_merging()
            self._merge_error, self._broken = None, "restoring was interrupted; restore again"
            with self._reading, self._saving:
                self._close_logs()
                if generation is None:
                    self._save(State(open=self._state.open + 1))
                    self._base.clear()
                else:
                    self._go_back(generation)
                for file in self.path.iterdir():  # what a crash left, and means nothing
                    if (
                        file.name.startswith(("log-", "undo-"))
                        and file.name not in self._state.files
                    ):
                        Disk.unlink(file)
                self._logs = self._open_logs()
            self._broken = None
            self._start_merging()

    def view(self, generation: int) -> View:
        """The state at a restorable checkpoint, to read from; merging waits until it is closed."""
        with self._writing:
            _check_restorable(self.path, self._state, generation)
            self._stop_merging()
            self._num_views += 1
            try:
                return View(
                    self.path, self._form, self._state, generation, self._first_values, self._leave
                )
            except BaseException:
                self._leave()
                raise

    @property
    def generations(self) -> list[int]:
        """The checkpoints that can be restored."""
        return self._state.restorable

    @property
    def num_bytes(self) -> int:
        """Bytes on disk; rows that were never written take none."""
        with self._saving:  # no file goes meanwhile
            return sum(file.stat().st_blocks * 512 for file in self.path.iterdir())

    @property
    def counters(self) -> dict[str, int]:
        """What was done since the store was opened; of merging, the bytes alone."""
        by = self._reader, self._merger
        return {
            "rows_read": self._num_read,
            "rows_initialised": self._num_initialised,
            "requests": self._reader.num_requests,
            "bytes_read": sum(one.num_bytes for one in by) + self._base.bytes_read,
            "bytes_written": self._log_bytes + self._base.bytes_written,
        }

    def close(self, merge: bool = True) -> None:
        """Finishes merging, or drops what is unfinished of it, and gives the folder free."""
        if not self._lock_file.is_open:
            return
        try:
            if merge and self._broken is None and not self._num_views:
                self.merge_now()
        finally:
            self._stop_merging()
            with self._writing, self._reading:
                self._broken = "it is closed; open it anew"
                self._close_logs()
                self._base.close()
                self._lock_file.close()

    def __enter__(self) -> FileStore:
        return self

    def __exit__(self, kind, error, trace) -> None:
        self.close(merge=kind is None)

    # Merging

    def _start_merging(self) -> None:
        if self._num_views or (self._thread is not None and self._thread.is_alive()):
            return
        if self._next_to_merge() is not None:
            self._stop.clear()
            self._thread = threading.Thread(target=self._merge_aside, daemon=True)
            self._thread.start()

    def _stop_merging(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        self._stop.clear()

    def _merge_aside(self) -> None:
        try:
            self._merge_all()
        except BaseException as error:
            self._merge_error = error

    def _raise_merge_error(self) -> None:
        error, self._merge_error = self._merge_error, None
        if error is not None:
            raise error

    def _merge_all(self) -> None:
        while (log := self._next_to_merge()) is not None and self._merge(log):
            pass

    def _next_to_merge(self) -> Log | None:
        """The oldest closed log, if a retained checkpoint needs it or a later one."""
        last = max(self._state.retained, default=0)
        log = self._logs[-1]
        return log if log.number <= last and log.number != self._state.open else None

    def _merge(self, log: Log) -> bool:
        """Moves a generation into `base`; False where it was told to stop, and is to be repeated.

        In memory are all row numbers of the log, and some MERGE_BYTES of its records at a time.
        """
        parts = list(segments(log.path, log.number, self.stride, log.end, records=False))
        if not self._keep_old_bytes(log, parts):
            return False
        for rows, places in _newest(parts, self.stride):
            if self._stop.is_set():
                return False
            records = np.empty((rows.size, self.stride), np.uint8)
            self._merger.fetch(log.file, places, np.arange(rows.size), records)
            self._base.write(rows, records)
            self._base.mark(rows, True)
        self._base.sync()
        with self._saving:
            closed = tuple((g, length) for g, length in self._state.closed if g != log.number)
            self._save(replace(self._state, merged=log.number, closed=closed))
        with self._reading, self._saving:
            self._logs = tuple(one for one in self._logs if one is not log)
            log.close()
        return True

    def _keep_old_bytes(self, log: Log, parts: list[Segment]) -> bool:
        """Writes the undo journal, if an older retained checkpoint needs one; False if stopped.

        A row whose bytes at that checkpoint an earlier journal has need not be kept again.
        """
        path = self.path / f"undo-{log.number}"
        with self._saving:
            state = self._state
            before = max((g for g in state.retained if g < log.number), default=None)
            if before is None or log.number in state.undo:
                return True
            earlier = [_open_undo(self.path, g, self.stride) for g in state.undo if g > before]
        undo = Log(path, log.number, self.stride, self._base.file.align)
        try:
            for rows, _ in _newest(parts, self.stride):
                if self._stop.is_set():
                    return False
                for one in earlier:
                    rows = rows[one.find(rows) == ABSENT]
                written = self._base.marked(rows)
                for some in _split(rows[written], self.stride):
                    records = np.empty((some.size, self.stride), np.uint8)
                    self._base.fetch(self._merger, some, np.arange(some.size), records)
                    undo.append(some, records)
                for some in _split(rows[~written], self.stride):
                    undo.append(some, None)
            undo.file.sync()
            self._log_bytes += undo.end
        finally:
            undo.close()
            for one in earlier:
                one.close()
        with self._saving:
            # `retain` may have dropped what needed it, but then it does no harm.
            self._save(replace(self._state, undo=(*self._state.undo, log.number)))
        return True

    # Going back

    def _go_back(self, generation: int) -> None:
        """Drops what is later, durably, then makes `base` older where it has gone past."""
        state = self._state
        self._save(
            replace(
                state,
                open=state.open + 1,
                merged=min(state.merged, generation),
                closed=tuple((g, length) for g, length in state.closed if g <= generation),
                retained=tuple(g for g in state.retained if g <= generation),
            )
        )
        for number in sorted((g for g in state.undo if g > generation), reverse=True):
            path = self.path / f"undo-{number}"
            for part in segments(path, number, self.stride, path.stat().st_size, keep=True):
                if not part.bare:
                    assert part.records is not None
                    self._base.write(part.rows, part.records)
                self._base.mark(part.rows, not part.bare)
        self._base.sync()
        self._save(replace(self._state, undo=tuple(g for g in state.undo if g <= generation)))

    def _open_logs(self) -> tuple[Log, ...]:
        logs = [self._new_log(self._state.open)]
        for number, length in reversed(self._state.closed):
            path = self.path / f"log-{number}"
            log = Log(path, number, self.stride, self._base.file.align, length)
            logs.append(log)
            log.index_segments()
        return tuple(logs)

    # The folder

    def _new_log(self, number: int) -> Log:
        with explained(self.path / f"log-{number}", 0):
            return Log(self.path / f"log-{number}", number, self.stride, self._base.file.align)

    def _save(self, state: State) -> None:
        """Replaces store.json, durably, along with the names of files made before.

        Then deletes the files that it no longer names; after a crash, the next `restore` does.
        """
        text = json.dumps(self._form.as_json() | asdict(state), indent=1).encode() + b"\n"
        aside = RecordFile(
            self.path / "store.json.part", 0, flags=os.O_RDWR | os.O_CREAT | os.O_TRUNC
        )
        try:
            aside.write(text, 0)
            aside.sync()
        finally:
            aside.close()
        with explained(self.path / "store.json", len(text)):
            Disk.replace(aside.path, self.path / "store.json")
            sync_folder(self.path)
        before, self._state = self._state, state
        for name in before.files - state.files:
            if (self.path / name).exists():  # a crash comes between naming a log and making it
                Disk.unlink(self.path / name)

    def _close_logs(self) -> None:
        logs, self._logs = self._logs, ()
        for log in logs:
            log.close()

    def _leave(self) -> None:
        with self._writing:
            self._num_views -= 1
            if self._broken is None:
                self._start_merging()

    def _check(self) -> None:
        if self._broken is not None:
            raise ValueError(f"the store in {self.path} cannot be used: {self._broken}")


class View:
    """The rows as they were at a checkpoint, while the store may stand elsewhere; changes nothing."""

    def __init__(
        self, path: Path, form: Form, state: State, generation: int, first_values: FirstValues,
        leave: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        _check_restorable(path, state, generation)
        self.stride, self.num_rows = form.stride, form.rows
        self._form, self._first_values, self._leave = form, first_values, leave
        self._base = Base(path / "base", form, os.O_RDONLY)
        self._sources: list[Log | Undo] = []
        for number, length in reversed(state.closed):
            if number <= generation:
                align = self._base.file.align
                log = Log(path / f"log-{number}", number, form.stride, align, length)
                self._sources.append(log)
                log.index_segments()
        # Of several journals, the oldest has what stood there right after `generation`.
        for number in state.undo:
            if number > generation:
                self._sources.append(_open_undo(path, number, form.stride))
        self._reader, self._open = Fetcher(form.stride), True

    def read(self, rows: Tensor, out: Tensor) -> None:
        """Fills out [m, stride] uint8 with the records of `rows` [m] int64, distinct, ascending."""
        if not self._open:
            raise ValueError("this view of a store is closed; open another")
        numbers, bytes_ = _checked(rows, out, self._form, filled=True)
        _read(self._sources, self._base, self._reader, self._first_values, numbers, bytes_)

    def close(self) -> None:
        """To be called: a store merges nothing while it has an open view."""
        if self._open:
            self._open = False
            for source in (*self._sources, self._base):
                source.close()
            self._leave()

    def __enter__(self) -> View:
        return self

    def __exit__(self, *exception) -> None:
        self.close()


@dataclass(frozen=True)
class Form:
    """What a store holds; never changes."""

    rows: int
    stride: int
    meta: dict

    def __post_init__(self) -> None:
        if self.rows < 1 or self.stride < 4 or self.stride % 4:
            raise ValueError(
                f"a store holds at least one row, of a multiple of 4 bytes, not {self.rows:,} rows "
                f"of {self.stride}"
            )

    @property
    def records_at(self) -> int:
        return _up(BLOCK + self.bit_bytes, _RECORDS_ALIGN)

    @property
    def bit_bytes(self) -> int:
        return _up(-(-self.rows // 8), BLOCK)

    @property
    def base_bytes(self) -> int:
        return self.records_at + _up(self.rows * self.stride, BLOCK)

    def as_json(self) -> dict:
        return {"kind": _KIND, "format": FORMAT, "records_at": self.records_at} | asdict(self)


class Base:
    """The file of all records: header, a bit per row that was ever written, records; sparse."""

    def __init__(self, path: Path, form: Form, flags: int = os.O_RDWR) -> None:
        self.form, self.bytes_read, self.bytes_written = form, 0, 0
        self._plain = RecordFile(path, form.stride, flags=flags)
        if read_whole(self._plain, _BASE_HEADER.size, 0) != _base_header(form):
            raise ValueError(
                f"{path} is damaged, or of another store: its header does not say {form.rows:,} "
                f"rows of {form.stride} bytes in format {FORMAT}; bring back the whole folder"
            )
        self._bits = np.frombuffer(
            bytearray(read_whole(self._plain, form.bit_bytes, BLOCK)), np.uint8
        )
        self.file = RecordFile(path, form.stride, alignment(path), flags)

    @staticmethod
    def create(path: Path, form: Form) -> None:
        file = RecordFile(path, form.stride, flags=os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        try:
            with explained(path, form.base_bytes):
                Disk.truncate(file.fd, form.base_bytes)
            file.write(_base_header(form), 0)
            file.sync()
        finally:
            file.close()

    def marked(self, rows: np.ndarray) -> np.ndarray:
        """Which of the rows were ever written."""
        return (self._bits[rows >> 3] >> (rows & 7).astype(np.uint8) & 1).astype(bool)

    def mark(self, rows: np.ndarray, written: bool) -> None:
        """Says of rows, ascending, whether they were ever written."""
        for bit in range(8):
            at = rows[rows & 7 == bit] >> 3
            if written:
                self._bits[at] |= np.uint8(1 << bit)
            else:
                self._bits[at] &= np.uint8(255 - (1 << bit))
        blocks = np.unique(rows // (8 * BLOCK))
        for first, last in runs(blocks, 1):
            begin, end = int(blocks[first]) * BLOCK, (int(blocks[last - 1]) + 1) * BLOCK
            self._plain.write(self._bits[begin:end], BLOCK + begin)
            self.bytes_written += end - begin

    def fetch(
        self, fetcher: Fetcher, rows: np.ndarray, targets: np.ndarray, out: np.ndarray
    ) -> None:
        """out[targets[i]] = the record of rows[i]."""
        fetcher.fetch(self.file, self.form.records_at + rows * self.form.stride, targets, out)

    def write(self, rows: np.ndarray, records: np.ndarray) -> None:
        read, written = sweep(self.file, self.form.records_at, rows, records)
        self.bytes_read += read
        self.bytes_written += written

    def clear(self) -> None:
        """As it was made."""
        with explained(self.file.path, 0):
            Disk.truncate(self._plain.fd, BLOCK)
            Disk.truncate(self._plain.fd, self.form.base_bytes)
        self.sync()
        self._bits[:] = 0

    def sync(self) -> None:
        self._plain.sync()

    def close(self) -> None:
        self._plain.close()
        self.file.close()


def _read(
    sources: Sequence[Log | Undo], base: Base, fetcher: Fetcher, first_values: FirstValues,
    rows: np.ndarray, out: np.ndarray,
) -> int:  # fmt: skip
    """Each row from the first source that has it, else from `base`, else anew; how many anew."""
    left, fresh = np.arange(rows.size), []
    for source in sources:
        if left.size:
            places = source.find(rows[left])
            here = places >= 0
            fetcher.fetch(source.file, places[here], left[here], out)
            fresh.append(left[places == UNTOUCHED])
            left = left[places == ABSENT]
    written = base.marked(rows[left])
    base.fetch(fetcher, rows[left[written]], left[written], out)
    new = np.sort(np.concatenate([*fresh, left[~written]]))
    if new.size:
        records = torch.empty(new.size, out.shape[1], dtype=torch.uint8)
        first_values(torch.from_numpy(rows[new]), records)
        out[new] = records.numpy()
    return new.size


def _newest(parts: Sequence[Segment], stride: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The rows of a log with the place of their newest record, ascending, some MERGE_BYTES at a time.

    rows of segments = [1, 5], [2, 5]  ->  rows [1, 2, 5], places of the first's 1, the second's 2, 5
    """
    if not parts:
        return
    sample = np.sort(np.concatenate([part.rows for part in parts])[::_SAMPLE])
    every = max(MERGE_BYTES // ((stride + 24) * _SAMPLE), 1)
    bounds = np.unique(sample[every::every])
    cuts = [[0, *np.searchsorted(part.rows, bounds).tolist(), part.rows.size] for part in parts]
    for i in range(bounds.size + 1):
        slices = [(part, cut[i], cut[i + 1]) for part, cut in zip(parts, cuts, strict=True)]
        rows = np.concatenate([part.rows[begin:end] for part, begin, end in slices])
        if not rows.size:
            continue
        places = np.concatenate(
            [part.first + stride * np.arange(begin, end) for part, begin, end in slices]
        )
        order = np.argsort(rows, kind="stable")  # of equal rows, the newest comes last
        rows = rows[order]
        newest = np.append(rows[1:] != rows[:-1], True)
        yield rows[newest], places[order[newest]]


def _split(rows: np.ndarray, stride: int) -> Iterator[np.ndarray]:
    return (rows[part] for part in _pieces(rows.size, stride))


def _pieces(count: int, stride: int) -> Iterator[slice]:
    step = max(SEGMENT_BYTES // (stride + 8), 1)
    return (slice(begin, min(begin + step, count)) for begin in range(0, count, step))


def _open_undo(path: Path, number: int, stride: int) -> Undo:
    return Undo(path / f"undo-{number}", number, stride)


def _checked(
    rows: Tensor, records: Tensor, form: Form, filled: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Rows and records as arrays; filled: the records are to be written to."""
    assert records.is_contiguous() or not filled, "records that are read stand side by side"
    if records.shape != (rows.numel(), form.stride) or records.dtype != torch.uint8:
        raise ValueError(
            f"{rows.numel():,} rows have records of [{rows.numel()}, {form.stride}] uint8, not "
            f"{list(records.shape)} {records.dtype}"
        )
    numbers = rows.contiguous().numpy()
    if numbers.size and (
        numbers[0] < 0 or numbers[-1] >= form.rows or not (np.diff(numbers) > 0).all()
    ):
        raise ValueError(
            f"rows of a store are distinct, ascending and from 0 to {form.rows - 1:,}; these go "
            f"from {numbers.min():,} to {numbers.max():,}"
        )
    return numbers, records.numpy()


def _check_restorable(path: Path, state: State, generation: int) -> None:
    if generation not in state.restorable:
        raise ValueError(
            f"{path} has no checkpoint {generation} to go to; it has {state.restorable or 'none'}"
        )


def _check_room(path: Path, form: Form, log_rows: int) -> None:
    free = shutil.disk_usage(path).free
    logs = 2 * log_rows * (form.stride + 8)  # one is merged while the next is written
    if free < logs:
        raise full(path / "log-1", logs)
    if free < form.base_bytes + logs:
        warnings.warn(
            f"{path} may grow to {(form.base_bytes + logs) / 2**30:.1f} GiB, when every row was "
            f"written, and {free / 2**30:.1f} GiB are free there",
            RuntimeWarning,
            stacklevel=3,
        )


def _log_rows(form: Form, log_rows: int | None) -> int:
    return max(65536, form.rows * form.stride // BLOCK) if log_rows is None else log_rows


def _lock(path: Path) -> RecordFile:
    file = RecordFile(path / "lock", 0, flags=os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(file.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        raise ValueError(
            f"another process, or this one, has the store in {path} open; close it there first"
        ) from None
    return file


def _read_state(path: Path, form: Form) -> State:
    """What store.json says, if it is of a store of this form."""
    file = path / "store.json"
    try:
        found = json.loads(file.read_bytes())
    except FileNotFoundError:
        raise ValueError(
            f"{path} holds no store (store.json is missing); create one there"
        ) from None
    except ValueError as error:
        raise ValueError(f"{file} is damaged ({error}); bring back the file") from error
    if not isinstance(found, dict) or found.get("kind") != _KIND:
        raise ValueError(f"{file} is not the description of a {_KIND}; choose another folder")
    for name, expected in form.as_json().items():
        if found.get(name) != expected:
            raise ValueError(
                f"{file} says {name} {found.get(name)!r}, but {expected!r} was asked for; open it "
                f"as it was created, or create another store"
            )
    try:
        lists = {name: tuple(found[name]) for name in ("retained", "undo")}
        closed = tuple((int(number), int(length)) for number, length in found["closed"])
        return State(found["open"], found["merged"], closed, **lists)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{file} is damaged ({error!r}); bring back the file") from error


def _base_header(form: Form) -> bytes:
    fields = (_BASE_MAGIC, FORMAT, form.stride, form.rows, form.records_at)
    return _BASE_HEADER.pack(*fields, zlib.crc32(_BASE_HEADER.pack(*fields, 0)))


def _up(size: int, to: int) -> int:
    return -(-size // to) * to
