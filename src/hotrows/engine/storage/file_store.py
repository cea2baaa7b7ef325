"""A store on disk: the records of a group of tables that are larger than memory.

    PATH/store.json   what is here: form, checkpoints, and which files count
    PATH/base-<g>     the records of all rows written up to checkpoint g, in row order, and a bit for each
    PATH/log-<g>      records written since checkpoint g - 1, in the order of their writing

Rows come and go by the thousand, at random places. Writing each in place would cost a read and a
write of a block per row; so writes append to a log, an index in memory says where a row's newest
record is, and whole logs and the base are merged into the next base in one sweep, in the background.

    write -> log-<open> --checkpoint--> log-<closed> --retain, then merge--> base-<g>
    read  <- the newest of:  log-<open>, log-<closed>..., base-<g> if the row's bit is set, first values

Crashes. No file is overwritten but `store.json`, which is replaced whole and decides: a file that it
does not name means nothing, and numbers are never used twice. A new base is synced, then `store.json`
names it; the base and logs that it replaces go then, unless a retained checkpoint is read from them.
An interrupted merge is done again. To go back is to name the files of an earlier checkpoint alone.
"""

from __future__ import annotations

import json
import os
import shutil
import threading
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from hotrows.engine.storage import record_io, store_state
from hotrows.engine.storage.base_file import Base, FillInitial, Form
from hotrows.engine.storage.disk_io import BLOCK, Disk, explained, full
from hotrows.engine.storage.log import KEEPS, SEGMENT_BYTES, RecordLog, pieces
from hotrows.engine.storage.merge_pace import MOST_FULL, MergePace, Note
from hotrows.engine.storage.merging import LISTED_BYTES, Due, Merger
from hotrows.engine.storage.old_store import SparseBase, UndoJournal
from hotrows.engine.storage.record_io import Index
from hotrows.engine.storage.store_state import StateFile, StoreState, check_restorable, read_state
from hotrows.engine.storage.store_view import Source, StoreView, checked, open_sources, read_rows
from hotrows.runtime.atomic_files import make_folder
from hotrows.runtime.locks import NAME as LOCK
from hotrows.runtime.locks import Held, Lock
from hotrows.runtime.user_warnings import warn


class FileStore:
    """Records of `rows` rows in a folder, `stride` bytes each, behind a cache.

    initial_values(rows, out) fills out [m, stride] uint8 for rows [m] that were never written. One
    thread may read while another writes; checkpoints are taken by the thread that writes. A new
    store can be used at once; one that was opened must first be restored to a checkpoint.
    """

    def __init__(
        self, path: Path, form: Form, initial_values: FillInitial, log_rows: int | None,
        lock: Lock, state: StoreState,
    ) -> None:  # fmt: skip
        """For `create` and `open`."""
        self.path, self.stride, self.num_rows = path, form.stride, form.rows
        self.log_rows = _log_rows(form, log_rows)
        self._form, self._initial_values, self._lock = form, initial_values, lock
        self._saved, self._align = StateFile(path, form, state), _alignment(path)
        self._logs: tuple[RecordLog, ...] = ()  # the open one, then closed ones, newest first
        self._older: tuple[UndoJournal, ...] = ()  # of a store of format 3, between logs and base
        self._base = Base(form)
        self._num_initialised = self._num_read = self._log_bytes = 0
        self._reader = record_io.Fetcher(form.stride)
        self._pace = MergePace(self._fullness)
        self._merger = Merger(self._saved, self._next_to_merge, self._switch, self._pace)
        # Taken in this order: who writes, what a reader looks through, the state (`_saved.lock`).
        self._writing, self._reading = threading.RLock(), threading.Lock()
        self._broken: str | None = "go to a checkpoint first: restore(generation) or restore(None)"

    @classmethod
    def create(
        cls, path: Path | str, rows: int, stride: int, initial_values: FillInitial, meta: dict[str, Any],
        log_rows: int | None = None, grows: bool = False,
    ) -> FileStore:  # fmt: skip
        """Makes a store of untouched rows in a new folder; takes seconds at any size.

        grows: nobody expects that all rows are written, so nothing is said about room for them.
        """
        path = Path(path)
        form = Form(rows, stride, json.loads(json.dumps(meta)))
        make_folder(path)
        lock = _locked(path)
        try:
            leftovers = {LOCK, "log-1", store_state.ASIDE}  # of a crash
            if set(os.listdir(path)) - leftovers:
                raise ValueError(
                    f"{path} is not empty; delete it, choose another folder, or open the store in it"
                )
            _check_room(path, form, _log_rows(form, log_rows), grows)
            store = cls(path, form, initial_values, log_rows, lock, StoreState())
            store._logs = (store._new_log(1),)
            store._saved.save(StoreState())
        except BaseException:
            lock.release()
            raise
        store._broken = None
        return store

    @classmethod
    def open(
        cls,
        path: Path | str,
        rows: int,
        stride: int,
        initial_values: FillInitial,
        meta: dict[str, Any],
        log_rows: int | None = None,
    ) -> FileStore:
        """Opens a store, whether or not it was closed; `restore` then says which state to use."""
        path = Path(path)
        form = Form(rows, stride, json.loads(json.dumps(meta)))
        read_state(path, form)  # or says what is wrong with it
        lock = _locked(path)
        try:  # until now another process may have written it
            return cls(path, form, initial_values, log_rows, lock, read_state(path, form))
        except BaseException:
            lock.release()
            raise

    def read(self, rows: Tensor, out: Tensor) -> None:
        """Fills out [m, stride] uint8 with the records of `rows` [m] int64, distinct, ascending."""
        numbers, bytes_ = checked(rows, out, self._form, filled=True)
        with self._reading, self._pace.reading():
            self._check()
            sources: list[Source] = [*self._logs, *self._older, self._base]
            self._num_initialised += read_rows(
                sources, self._reader, self._initial_values, numbers, bytes_
            )
            self._num_read += numbers.size

    def write(self, rows: Tensor, records: Tensor, keeps: bool = False) -> None:
        """Appends the records of `rows`, distinct and ascending, to the open log.

        keeps: the caller retains the rows and writes them again before it reads them, so they need
        no memory in the index.
        """
        numbers, bytes_ = checked(rows, records, self._form)
        with self._writing:
            self._check()
            log, added = self._logs[0], []
            begin, checksum = log.end, log.checksum
            try:
                for piece in pieces(numbers.size, self.stride):
                    first = log.append(numbers[piece], bytes_[piece], KEEPS if keeps else 0)
                    added.append((numbers[piece], first))
            except BaseException:
                log.take_back(begin, checksum)
                raise
            self._log_bytes += log.end - begin
            for of_segment, first in [] if keeps else added:
                log.index.put(of_segment, first, self.stride)
        if not keeps:
            self._pace.hold_back(self._merger.ended)

    @property
    def wants_checkpoint(self) -> bool:
        """True if the logs have more than `log_rows` records, so that the open one should be closed soon.

        This bounds the logs on disk and their index in memory. The default is a record per 4 KiB of
        the tables: a merge reads and writes the whole base, however short the log. False while logs are
        merged: writes are held back then, and another closed log would have to wait for that merge.
        """
        return not self._merger.is_running and self._fullness() > 1

    def checkpoint(self) -> int:
        """Makes all writes so far durable, as a generation that can be restored; returns its number.

        Costs three syncs, whatever the size of the tables.
        """
        with self._writing:
            self._check()
            self._merger.raise_error()
            log = self._logs[0]
            try:
                log.file.sync()
            except OSError as error:  # what the log holds is unknown from now on
                self._broken = f"syncing {log.path} failed ({error.strerror}); open the store anew"
                raise
            fresh = self._new_log(self._saved.state.open + 1)
            try:
                with self._saved.lock:
                    state = self._saved.state
                    closed = (*state.closed, (log.number, log.end, log.checksum))
                    self._saved.save(replace(state, open=fresh.number, closed=closed))
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
            self._merger.raise_error()
            with self._saved.lock:
                state, retained = self._saved.state, tuple(sorted(set(generations)))
                for generation in retained:
                    check_restorable(self.path, state, generation)
                self._saved.save(replace(state, retained=retained).without_unneeded())
            self._merger.start()

    def merge_now(self) -> None:
        """Merges what may be merged, however little, and returns when it is done."""
        with self._writing:
            self._check()
            self._merger.join()
            self._merger.raise_error()
            self._merger.merge_all()

    def restore(self, generation: int | None) -> None:
        """Goes back to exactly the state of a restorable checkpoint, and drops later ones.

        None: to the state in which no row was ever written.
        """
        with self._writing:
            if generation is not None:
                check_restorable(self.path, self._saved.state, generation)
            self._merger.stop()
            self._merger.error, self._broken = None, "restoring was interrupted; restore again"
            with self._reading, self._saved.lock:
                self._close_files()
                state = self._saved.state
                self._saved.save(
                    StoreState(open=state.open + 1) if generation is None else state.back_to(generation)
                )
                state = self._saved.state
                for file in self.path.iterdir():  # what a crash left, and means nothing
                    if file.name.startswith(("log-", "undo-", "base")) and file.name not in state.files:
                        Disk.unlink(file)
                fresh = self._new_log(state.open)
                sources = open_sources(self.path, self._form, state.files_of(state.open))
                self._logs = (fresh, *(one for one in sources if isinstance(one, RecordLog)))
                self._older = tuple(one for one in sources if isinstance(one, UndoJournal))
                (self._base,) = (one for one in sources if isinstance(one, Base))
            self._broken = None
            self._merger.start()

    def view(self, generation: int) -> StoreView:
        """The state at a restorable checkpoint, to read from."""
        with self._writing, self._saved.lock:
            return StoreView(self.path, self._form, self._saved.state, generation, self._initial_values)

    @property
    def generations(self) -> list[int]:
        """The checkpoints that can be restored."""
        return self._saved.state.restorable

    @property
    def num_bytes(self) -> int:
        """Bytes on disk; rows that were never written take none."""
        with self._saved.lock:  # no file is deleted meanwhile
            return sum(file.stat().st_blocks * 512 for file in self.path.iterdir())

    @property
    def counters(self) -> dict[str, int]:
        """Rows, requests and bytes since the store was opened; of merging, the bytes alone."""
        merger = self._merger
        return {
            "rows_read": self._num_read,
            "rows_initialised": self._num_initialised,
            "requests": self._reader.num_requests,
            "bytes_read": self._reader.num_bytes + merger.fetcher.num_bytes,
            "bytes_written": self._log_bytes + merger.bytes_written,
        }

    @property
    def memory_bytes(self) -> int:
        """Bytes of memory that it takes at most: which rows were written, logs, merging, reading."""
        in_log = min(int(self.log_rows * MOST_FULL), self.num_rows)  # in one, or in all that wait for it
        logs = 2 * (Index.ROW_BYTES * in_log + SEGMENT_BYTES)
        readers = self._reader.memory_bytes + self._merger.memory_bytes + LISTED_BYTES * in_log
        return self._base.memory_bytes + logs + readers

    def note_times(self, note: Note) -> None:
        """Calls `note` with the times of the pieces of merging, and of writes that wait for it."""
        self._pace.note = note

    def close(self, merge: bool = True) -> None:
        """Ends a merge that is due, or drops what is unfinished of it, and unlocks the folder."""
        if not self._lock.is_held:
            return
        try:
            if merge and self._broken is None:
                self._merger.join()
                self._merger.raise_error()
        finally:
            self._merger.stop()
            with self._writing, self._reading:
                self._broken = "it is closed; open it anew"
                self._close_files()
                self._lock.release()

    def __enter__(self) -> FileStore:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self.close(merge=kind is None)

    # ---- merging

    def _next_to_merge(self, full: bool) -> Due | None:
        """All closed logs that a retained checkpoint has; full: if together they are as full as one is to
        be."""
        last = max(self._saved.state.retained, default=0)
        logs = tuple(log for log in reversed(self._logs[1:]) if log.number <= last)
        if not logs or (full and sum(log.num_records for log in logs) < self.log_rows):
            return None
        return Due(self._base, (*reversed(self._older), *logs), self._align)

    def _switch(self, due: Due, path: Path, length: int, checksum: int) -> None:
        """Reads a new base from now on, in place of the files that were merged."""
        with self._reading:
            before = None if self._older or isinstance(due.base, SparseBase) else due.base
            try:
                base = Base(self._form, path, length, checksum, before)
            except BaseException as error:
                self._broken = f"reading {path} failed ({error}); open the store anew"
                raise
            self._logs = tuple(log for log in self._logs if log not in due.logs)
            for merged in (*due.logs, due.base):
                merged.close()
            self._base, self._older = base, ()

    def _fullness(self) -> float:
        """How full the logs are that are not being merged: 1 where the open one should be closed."""
        waiting = [log for log in self._logs if log not in self._merger.merging]
        return sum(log.num_records for log in waiting) / self.log_rows

    # ---- files

    def _new_log(self, number: int) -> RecordLog:
        """An empty log."""
        path = self.path / f"log-{number}"
        with explained(path, 0):
            return RecordLog(path, number, self.stride, self._align, rows=self.num_rows)

    def _close_files(self) -> None:
        files: list[Source] = [*self._logs, *self._older, self._base]
        for file in files:
            file.close()
        self._logs, self._older, self._base = (), (), Base(self._form)

    def _check(self) -> None:
        if self._broken is not None:
            raise ValueError(f"the store in {self.path} cannot be used: {self._broken}")


def rows_of_log(rows: int, stride: int) -> int:
    """How many rows a log has before it is closed, where nothing else is said: one for each block."""
    return max(65536, rows * stride // BLOCK)


def _check_room(path: Path, form: Form, log_rows: int, grows: bool) -> None:
    free = shutil.disk_usage(path).free
    logs = 2 * log_rows * (form.stride + 8)  # one is merged while the next is written
    if free < logs:
        raise full(path / "log-1", logs)
    most = 2 * form.base_bytes + logs  # while a base becomes the next one
    if free < most and not grows:
        warn(
            f"{path} may grow to {most / 2**30:.1f} GiB, when every row was "
            f"written, and {free / 2**30:.1f} GiB are free there",
            RuntimeWarning,
        )


def _alignment(folder: Path) -> int:
    """Of direct I/O on files in a folder, found on a file that means nothing."""
    path = folder / store_state.ASIDE
    with explained(path, BLOCK):
        path.write_bytes(bytes(BLOCK))
        return record_io.alignment(path)


def _log_rows(form: Form, log_rows: int | None) -> int:
    return rows_of_log(form.rows, form.stride) if log_rows is None else log_rows


def _locked(path: Path) -> Lock:
    try:
        return Lock(path)
    except Held as held:
        raise ValueError(f"{held.holder} has the store in {path} open; close it there first") from None
