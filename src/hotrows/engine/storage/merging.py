"""Merging: closed logs of a file store become part of `base`, in the background; and the way back.

    log-<g>   sorted, newest record of each row  ->  base      then store.json: merged = g
    undo-<g>  what base had in these rows        ->  base      when the store goes back before g

A merge that was interrupted is repeated. `base` is only overwritten once the undo journal, where a
retained checkpoint needs one, is synced and named in store.json.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from hotrows.engine.storage import record_io
from hotrows.engine.storage.base_file import BaseFile
from hotrows.engine.storage.disk_io import runs
from hotrows.engine.storage.log import RecordLog, Segment, UndoJournal, mapped_segments, pieces, segments
from hotrows.engine.storage.merge_pace import MergePace
from hotrows.engine.storage.record_io import ABSENT, SWEEP_BYTES
from hotrows.engine.storage.store_state import Named, StateFile
from hotrows.runtime.background import Worker

MERGE_BYTES = 32 << 20  # of records in memory while merging
PIECE_BYTES = 4 << 20  # of `base`, rewritten without a pause
PIECE_ROWS = 1024  # read from `base` without a pause

_SAMPLE = 16  # one row in so many decides where a merge is cut


class Merger:
    """Merges the closed logs of a store into its base file, oldest first, on a thread of its own.

    next_log: the log to merge next, None where none is due; remove: takes a merged log from the
    logs that are read, and closes it. pace: how fast to merge in the background. fetcher counts the
    bytes that merging reads, `undo_bytes` those written to undo journals; `base` counts its own.
    """

    def __init__(
        self,
        saved: StateFile,
        base: BaseFile,
        next_log: Callable[[], RecordLog | None],
        remove: Callable[[RecordLog], None],
        pace: MergePace,
    ) -> None:
        self._saved, self._base, self._stride = saved, base, base.form.stride
        self._next_log, self._remove, self._pace = next_log, remove, pace
        self.fetcher, self.undo_bytes = record_io.Fetcher(self._stride), 0
        self._share = 0.0, 1.0  # of a merge, that writing the journal or `base` is
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
            if not self.is_running and self._next_log() is not None:
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
        """Bytes of memory that a merge takes at most: rows, places and records, sorted into others."""
        return 2 * MERGE_BYTES + SWEEP_BYTES + self.fetcher.memory_bytes

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
        """Merges every log that is due, on the calling thread."""
        with self._pace.at_once():
            while (log := self._next_log()) is not None and self._merge(log):
                pass

    def raise_error(self) -> None:
        """Raises what failed in the background since the last call."""
        error, self.error = self.error, None
        if error is not None:
            raise error

    def _run(self) -> None:
        is_stopped = False
        try:
            while not is_stopped and (log := self._next_or_end()) is not None:
                is_stopped = not self._merge(log)
        except BaseException as error:
            self.error, is_stopped = error, True
        if is_stopped:
            self.ended.set()

    def _next_or_end(self) -> RecordLog | None:
        """The log to merge next; None: nothing is due, and `start` makes another thread once there is."""
        with self._deciding:
            log = self._next_log()
            if log is None:
                self.ended.set()
            return log

    def _merge(self, log: RecordLog) -> bool:
        """Moves a generation into `base`; False where it was stopped, and is to be repeated. In memory
        are some MERGE_BYTES of its records at a time."""
        self._pace.begin()
        self._share = 0.0, 1.0
        parts = mapped_segments(log.path, log.number, self._stride, log.end, log.checksum)
        if not self._write_undo(log, parts) or not self._write_base(log, parts):
            return False
        with self._saved.lock:
            state = self._saved.state
            closed = tuple(other for other in state.closed if other[0] != log.number)
            self._saved.save(replace(state, merged=log.number, closed=closed))
        self._remove(log)
        return True

    def _write_base(self, log: RecordLog, parts: list[Segment]) -> bool:
        """Writes the newest record of each row of a log into `base`, and syncs; False if stopped."""
        for rows, places in _newest(parts, self._stride):
            records = np.empty((rows.size, self._stride), np.uint8)
            self.fetcher.fetch(log.file, places, np.arange(rows.size), records)
            for piece in self._paced(_spans(rows, self._stride), rows):
                if self._stop.is_set():
                    return False
                self._base.write(rows[piece], records[piece])
            self._base.mark(rows, True)
        self._base.sync()
        return True

    def _paced(self, pieces: Iterator[slice], rows: np.ndarray) -> Iterator[slice]:
        """The pieces of rows, ascending, with a pause after each."""
        for piece in pieces:
            begin = time.perf_counter()
            yield piece
            done, (first, last) = int(rows[piece.stop - 1]) / self._base.form.rows, self._share
            self._pace.pause(begin, first + done * (last - first))

    def _write_undo(self, log: RecordLog, parts: list[Segment]) -> bool:
        """Writes the undo journal, if an older retained checkpoint needs one; False if stopped. A row
        whose bytes at that checkpoint an earlier journal has need not be written again."""
        # 1. Find the newest retained checkpoint before this log; none needs no journal.
        folder = self._saved.folder
        with self._saved.lock:
            state = self._saved.state
            before = max((g for g in state.retained if g < log.number), default=None)
            if before is None or log.number in (g for g, *_ in state.undo):
                return True
            earlier = [
                UndoJournal(folder, number, self._stride, length, checksum)
                for number, length, checksum in state.undo
                if number > before
            ]
        # 2. Append what the base has of rows that no earlier journal has.
        self._share = 0.0, 0.5
        undo = RecordLog(folder / f"undo-{log.number}", log.number, self._stride, self._base.file.align)
        try:
            for rows, _ in _newest(parts, self._stride):
                if self._stop.is_set():
                    return False
                for journal in earlier:
                    rows = rows[journal.find(rows) == ABSENT]
                self._append_old(undo, rows)
            undo.file.sync()
            self.undo_bytes += undo.end
            self._share = 0.5, 1.0
        finally:
            undo.close()
            for journal in earlier:
                journal.close()
        # 3. Name the journal in the state.
        with self._saved.lock:
            # `retain` may have dropped what needed it, but then it does no harm.
            state, named = self._saved.state, (log.number, undo.end, undo.checksum)
            self._saved.save(replace(state, undo=(*state.undo, named)))
        return True

    def _append_old(self, undo: RecordLog, rows: np.ndarray) -> None:
        """Appends what `base` has of rows: records, and those without one."""
        written = self._base.marked(rows)
        for some in _split(rows[written], self._stride):
            records = np.empty((some.size, self._stride), np.uint8)
            steps = (slice(i, min(i + PIECE_ROWS, some.size)) for i in range(0, some.size, PIECE_ROWS))
            for piece in self._paced(steps, some):
                self._base.fetch(self.fetcher, some[piece], np.arange(piece.start, piece.stop), records)
            undo.append(some, records)
        for some in _split(rows[~written], self._stride):
            undo.append(some, None)


def go_back(base: BaseFile, folder: Path, journals: Sequence[Named]) -> None:
    """Writes the old records of the journals into `base`, the newest journal first, and syncs."""
    stride = base.form.stride
    for number, length, checksum in journals:  # checked before `base` changes
        UndoJournal(folder, number, stride, length, checksum).close()
    for number, length, checksum in sorted(journals, reverse=True):
        path = folder / f"undo-{number}"
        for segment in segments(path, number, stride, length, checksum):
            if not segment.bare:
                assert segment.records is not None
                base.write(segment.rows, segment.records)
            base.mark(segment.rows, not segment.bare)
    base.sync()


def _newest(parts: Sequence[Segment], stride: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The rows of a log with the place of their newest record, ascending, some MERGE_BYTES at a time.

    rows of segments = [1, 5], [2, 5]  ->  rows [1, 2, 5], places of the first's 1, the second's 2, 5
    """
    if not parts:
        return
    sample = np.sort(np.concatenate([part.rows[::_SAMPLE] for part in parts]))
    every = max(MERGE_BYTES // ((stride + 24) * _SAMPLE), 1)
    bounds = np.unique(sample[every::every])
    cuts = [[0, *np.searchsorted(part.rows, bounds).tolist(), part.rows.size] for part in parts]
    for i in range(bounds.size + 1):
        slices = [(part, cut[i], cut[i + 1]) for part, cut in zip(parts, cuts, strict=True)]
        rows = np.concatenate([part.rows[b:e] for part, b, e in slices])
        if not rows.size:
            continue
        places = np.concatenate([part.first + stride * np.arange(b, e) for part, b, e in slices])
        order = np.argsort(rows, kind="stable")  # of equal rows, the newest comes last
        rows = rows[order]
        newest = np.append(rows[1:] != rows[:-1], True)
        yield rows[newest], places[order[newest]]


def _spans(rows: np.ndarray, stride: int) -> Iterator[slice]:
    """Slices of ascending rows whose records are in one piece of a file, of PIECE_BYTES."""
    return (slice(begin, end) for begin, end in runs(rows * stride // PIECE_BYTES, 0))


def _split(rows: np.ndarray, stride: int) -> Iterator[np.ndarray]:
    return (rows[piece] for piece in pieces(rows.size, stride))
