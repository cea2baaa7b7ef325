"""Merging: a base file and closed logs of a file store become the next base file, in the background.

    base-<f>, log-<f + 1> .. log-<g>  -- one sweep, rows ascending -->  base-<g>

Files are read, none is overwritten. The new base counts once store.json names it; the files that it
replaces go then, unless a retained checkpoint is read from them. An interrupted merge is repeated.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np

from hotrows.engine.storage import base_file, record_io
from hotrows.engine.storage.base_file import COUNTED, Base, BaseWriter
from hotrows.engine.storage.disk_io import Disk
from hotrows.engine.storage.log import RecordLog, segments
from hotrows.engine.storage.merge_pace import MergePace
from hotrows.engine.storage.old_store import UndoJournal
from hotrows.engine.storage.store_state import StateFile
from hotrows.runtime.background import Worker

MERGE_BYTES = 32 << 20  # of new records in memory while merging

LISTED_BYTES = 2  # of memory for each row of the logs that are merged: those of its sample, three times
_SAMPLE = 16  # one row in so many decides where a merge is cut
_PIECE_ROWS = 1 << 20  # of the table, whether they were written or not
_ROW_BYTES, _ROWS_DEPTH = 8, 32  # of a row number in a log; how many reads of them are in flight
_REMOVED = -1  # the place of a row that has no record, whatever the base has


class _Stopped(Exception):
    """Merging is to end, unfinished."""


@dataclass(frozen=True)
class Due:
    """What is to be merged: base, and the logs that come into it, oldest first, down to undo journals of
    a store of format 3. align: of direct I/O on the new file."""

    base: Base
    logs: tuple[RecordLog | UndoJournal, ...]
    align: int


class Merger:
    """Merges the closed logs of a store into its next base file, on a thread of its own.

    next: what to merge next; None where nothing is due. full: only once the logs together are full.
    switch: reads the base at a path, of so many bytes and that checksum, in place of what was merged.
    pace: how fast to merge in the background.
    fetcher counts the bytes that merging reads; bytes_written: to base files.
    """

    def __init__(
        self,
        saved: StateFile,
        next_due: Callable[[bool], Due | None],
        switch: Callable[[Due, Path, int, int], None],
        pace: MergePace,
    ) -> None:
        self._saved, self._form, self._stride = saved, saved.form, saved.form.stride
        self._next_due, self._switch, self._pace = next_due, switch, pace
        self.fetcher, self.bytes_written = record_io.Fetcher(self._stride), 0
        self._row_fetcher = record_io.Fetcher(_ROW_BYTES, depth=_ROWS_DEPTH)  # of the rows of logs
        self.merging: tuple[RecordLog | UndoJournal, ...] = ()  # at present
        self._stop = threading.Event()
        self._worker: Worker[None] | None = None
        # A thread that finds nothing more to merge says so at once: it may take a while to end, and what
        # is due by then needs another one.
        self.ended, self._deciding = threading.Event(), threading.Lock()
        self.ended.set()
        self.error: BaseException | None = None  # of merging in the background

    def start(self) -> None:
        """Begins to merge in the background, unless that is running or nothing is due."""
        with self._deciding:
            if not self.is_running and self._next_due(True) is not None:
                self._stop.clear()
                self.ended.clear()
                self._worker = Worker("hotrows-merging", self._run, self._stop.set)

    def stop(self) -> None:
        """Ends merging in the background; what is unfinished is to be repeated."""
        self._stop.set()
        self.join()
        self._stop.clear()

    @property
    def memory_bytes(self) -> int:
        """Bytes of memory that a merge takes at most: rows, places and records, sorted into others, and
        pieces of the base files; LISTED_BYTES for each row of its logs are yet to be added."""
        fetchers = self.fetcher.memory_bytes + self._row_fetcher.memory_bytes
        return 2 * MERGE_BYTES + 4 * base_file.PIECE_BYTES + fetchers

    @property
    def is_running(self) -> bool:
        """True if logs are merged in the background."""
        return not self.ended.is_set()

    def join(self) -> None:
        """Waits until merging in the background has ended."""
        if self._worker is not None:
            with self._pace.at_once():
                self._worker.wait()

    def merge_all(self) -> None:
        """Merges every log that a retained checkpoint has, on the calling thread."""
        with self._pace.at_once():
            while (due := self._next_due(False)) is not None and self._merge(due):
                pass

    def raise_error(self) -> None:
        """Raises what failed in the background since the last call."""
        error, self.error = self.error, None
        if error is not None:
            raise error

    def _run(self) -> None:
        is_stopped = False
        try:
            while not is_stopped and (due := self._next_or_end()) is not None:
                is_stopped = not self._merge(due)
        except BaseException as error:
            self.error, is_stopped = error, True
        if is_stopped:
            self.ended.set()

    def _next_or_end(self) -> Due | None:
        """What to merge next; None: nothing is due, and `start` makes another thread once there is."""
        with self._deciding:
            due = self._next_due(True)
            if due is None:
                self.ended.set()
            return due

    def _merge(self, due: Due) -> bool:
        """Makes the next base; False where it was stopped, and is to be repeated. In memory are some
        MERGE_BYTES of new records at a time."""
        generation = due.logs[-1].number
        path = self._saved.folder / f"base-{generation}"
        self._pace.begin()
        self.merging = due.logs
        try:
            named = self._write(due, path)
            with self._saved.lock:
                state = self._saved.state
                bases = (*state.bases, (generation, *named))
                self._saved.save(replace(state, bases=bases).without_unneeded())
            self._switch(due, path, *named)
        except _Stopped:
            return False
        finally:
            self.merging = ()
        return True

    def _write(self, due: Due, path: Path) -> tuple[int, int]:
        """Writes a base file; returns its length and checksum."""
        writer = BaseWriter(path, self._form, due.align)
        try:
            self._write_all(due, writer)
            return writer.finish()
        except BaseException:
            with suppress(OSError):  # if the disk is full, there is room again
                Disk.unlink(path)
            raise
        finally:
            self.bytes_written += writer.bytes_written
            writer.close()

    def _write_all(self, due: Due, writer: BaseWriter) -> None:
        """Writes the newest record of each row, ascending."""
        for new in self._newest(due):
            # Read the new records, in the order in which they lie in their logs.
            records = np.empty((new.rows.size, self._stride), np.uint8)
            step = max(base_file.PIECE_BYTES // self._stride, 1)
            for n, log in enumerate(due.logs):
                of_log = np.flatnonzero((new.logs == n) & (new.places != _REMOVED))
                of_log = of_log[np.argsort(new.places[of_log])]
                for some in (of_log[i : i + step] for i in range(0, of_log.size, step)):
                    with self._piece(new.first):
                        self.fetcher.fetch(log.file, new.places[some], some, records)
            bits = due.base.bits[new.first // 8 : new.end // 8]
            is_removed = new.places == _REMOVED
            if is_removed.any():
                flags = np.unpackbits(bits, bitorder="little")
                flags[new.rows[is_removed] - new.first] = 0
                bits = np.packbits(flags, bitorder="little")
            rows, records = new.rows[~is_removed], records[~is_removed]
            for first, end in _ranges(due.base, new, step):
                with self._piece(first):
                    of_range = bits[(first - new.first) // 8 : (end - new.first) // 8]
                    begin, stop = np.searchsorted(rows, (first, end))
                    old = due.base.read(self.fetcher, first, of_range)
                    writer.add(first, of_range, old, rows[begin:stop], records[begin:stop])

    def _newest(self, due: Due) -> Iterator[_New]:
        """The rows of logs, oldest first, with the place of their newest record, some MERGE_BYTES at a
        time.

        rows of segments = [1, 5], [2, 5]  ->  rows [1, 2, 5], places of the first's 1, the second's 2, 5
        """
        logs = [_LogRows(log, self._stride) for log in due.logs]
        sample = np.sort(np.concatenate([np.empty(0, np.int64), *(log.sample for log in logs)]))
        every = max(MERGE_BYTES // ((self._stride + 64) * _SAMPLE), 1)
        cuts = sample[every::every] // COUNTED * COUNTED
        for first, end in pairwise(np.unique([0, *cuts, 8 * self._form.bit_bytes]).tolist()):
            pieces = []
            for log in logs:
                with self._piece(first):
                    pieces.append(log.read(self._row_fetcher, first, end))
            rows = np.concatenate([rows for rows, _ in pieces])
            of_log = np.repeat(np.arange(len(logs)), [rows.size for rows, _ in pieces])
            order = np.argsort(rows, kind="stable")  # of equal rows, the newest comes last
            rows, places = rows[order], np.concatenate([places for _, places in pieces])[order]
            newest = np.append(rows[1:] != rows[:-1], True)[: rows.size]
            yield _New(first, end, rows[newest], of_log[order[newest]], places[newest])

    @contextmanager
    def _piece(self, row: int) -> Iterator[None]:
        """Some work, at a row, and the pause after it."""
        if self._stop.is_set():
            raise _Stopped
        begin = time.perf_counter()
        yield
        self._pace.pause(begin, row / (8 * self._form.bit_bytes))


@dataclass(frozen=True)
class _New:
    """The rows from `first` to `end` that logs have, ascending: which log, by its position, has the
    newest record of each, and at which place."""

    first: int
    end: int
    rows: np.ndarray
    logs: np.ndarray
    places: np.ndarray


class _LogRows:
    """The rows of a log, read again where they are merged: in memory is one in _SAMPLE of each segment.

    A log has a segment a step, of which each range of rows wants a few: from a mapped file such a read
    brings in 128 KiB for 2, which drives all else from the page cache.
    """

    def __init__(self, log: RecordLog | UndoJournal, stride: int) -> None:
        samples, listed = [np.empty(0, np.int64)], []
        for part in segments(log.path, log.number, stride, log.end, log.checksum, records=False):
            samples.append(part.rows[::_SAMPLE].copy())
            listed.append((part.rows.size, part.first, part.bare))
        self._file, self._stride = log.file, stride
        self.sample = np.concatenate(samples)
        self._starts = np.cumsum([part.size for part in samples])[:-1]  # of the samples of each segment
        self._counts, self._firsts, self._bare = np.array(listed, np.int64).reshape(-1, 3).T

    def read(self, fetcher: record_io.Fetcher, first: int, end: int) -> tuple[np.ndarray, np.ndarray]:
        """The rows from `first` to `end`, segment by segment, and the places of their records."""
        begins = np.maximum(self._num_below(first) - 1, 0) * _SAMPLE
        lengths = np.minimum(self._num_below(end) * _SAMPLE, self._counts) - begins
        part = np.repeat(np.arange(lengths.size), lengths)
        numbers = np.arange(part.size) - np.repeat(np.cumsum(lengths) - lengths - begins, lengths)
        rows = np.empty((part.size, 1), np.int64)
        offsets = self._firsts[part] - 8 * (self._counts[part] - numbers)
        fetcher.fetch(self._file, offsets, np.arange(part.size), rows.view(np.uint8))
        places = np.where(self._bare[part], _REMOVED, self._firsts[part] + self._stride * numbers)
        is_in = (first <= rows[:, 0]) & (rows[:, 0] < end)
        return rows[is_in, 0], places[is_in]

    def _num_below(self, row: int) -> np.ndarray:
        """How many samples of each segment are below a row."""
        below = self.sample < row
        return np.add.reduceat(below, self._starts, dtype=np.int64) if below.size else self._counts


def _ranges(base: Base, new: _New, step: int) -> Iterator[tuple[int, int]]:
    """Ranges of rows of which neither the base nor the logs have many more than `step`."""
    tables = np.arange(new.first, new.end, _PIECE_ROWS)
    of_logs = new.rows[step::step] // COUNTED * COUNTED
    return pairwise(np.unique([*tables, *base.cuts(new.first, new.end), *of_logs, new.end]).tolist())
