"""FileReplay: counts what a file store has to do for the moves of a cache, without a file.

    replay = FileReplay(num_rows, stride)
    replay.add(rows, missing, leaving)      # of each batch in turn
    replay.per_batch()                      # means, since `begin`

Reads join rows that are near one another, in the base, which has the rows ever written side by side, or
in the last two logs. Rows that are written fill a log; once it is full, a checkpoint writes the changed
rows of the cache, too, and a merge rewrites the base with them, until the next log is closed.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hotrows.engine.storage.file_store import rows_of_log
from hotrows.engine.storage.record_io import READ_GAP, REQUEST
from hotrows.runtime.sums import Summed

_SECTOR = 512  # where direct reads begin, on most disks


@dataclass(frozen=True)
class FileCounts(Summed):
    """The work of a file store for a batch, on average.

    requests, bytes_fetched: of reads. checkpoints: that close a full log; closing: share of batches
    that are trained between a full log and its checkpoint. rows_flushed, bytes_flushed: of the cache,
    that checkpoints write. rows_merged: of logs; bytes_merged: of the base, that merges rewrite.
    """

    requests: float = 0.0
    bytes_fetched: float = 0.0
    checkpoints: float = 0.0
    closing: float = 0.0
    rows_flushed: float = 0.0
    bytes_flushed: float = 0.0
    rows_merged: float = 0.0
    bytes_merged: float = 0.0


@dataclass(frozen=True)
class _ClosedLog:
    num_rows: int  # without those of the cache
    flushed: int
    merged: int
    bytes_merged: int


class FileReplay:
    """The store of one group of tables.

    num_rows: of the tables; stride: bytes of a record. delay: number of batches that are trained between
    a full log and the checkpoint that closes it, having been planned before; log_rows: of a full log.
    """

    def __init__(self, num_rows: int, stride: int, delay: int = 0, log_rows: int | None = None) -> None:
        self._stride, self._delay = stride, delay
        self._log_rows = log_rows or rows_of_log(num_rows, stride)
        self._base = torch.zeros(num_rows, dtype=torch.bool)  # rows of all logs that were closed
        self._ranks = torch.zeros(num_rows, dtype=torch.int32)  # of rows that were merged, in the base
        self._logged = torch.zeros(num_rows, dtype=torch.bool)  # since the last checkpoint
        self._changed = torch.zeros(num_rows, dtype=torch.bool)  # in the cache, since then
        self._places = torch.full((num_rows,), -1, dtype=torch.int32)  # among all rows ever logged
        self._num_logged = self._overdue = self._merged_to = self._closed_to = self._logged_to = 0
        self.begin()

    def begin(self) -> None:
        """Counts from the next batch on."""
        self._num_batches = self._requests = self._fetched = self._written = 0
        self._closed: list[_ClosedLog] = []

    def add(self, rows: Tensor, missing: Tensor, leaving: Tensor) -> None:
        """A batch trains on rows, of which some are missing in the cache; leaving: those that are written
        back; all distinct and ascending."""
        places = self._places[missing]
        in_log = places >= self._merged_to
        of_log = places[in_log].sort().values.long()
        of_base = self._ranks[missing[self._base[missing] & ~in_log]].long()
        spans = torch.cat([_spans(some, self._stride) for some in (of_log, of_base)])
        self._num_batches += 1
        self._requests += int((-(-spans // REQUEST)).sum())
        self._fetched += int(spans.sum())
        self._written += leaving.numel()
        self._num_logged += leaving.numel()
        end = self._logged_to + leaving.numel()
        self._places[leaving] = torch.arange(self._logged_to, end, dtype=torch.int32)
        self._logged_to = end
        self._changed[rows] = True
        self._changed[leaving] = False
        self._logged[leaving] = True
        if self._num_logged <= self._log_rows:
            return
        self._overdue += 1
        if self._overdue > self._delay:
            self._closed.append(self._as_closed())
            torch.cumsum(self._base, 0, out=self._ranks).sub_(1)  # of the logs before, merged by now
            self._base |= self._logged | self._changed
            self._logged.zero_()
            self._changed.zero_()
            self._num_logged = self._overdue = 0
            self._merged_to, self._closed_to = self._closed_to, self._logged_to

    def per_batch(self) -> FileCounts:
        """Means of the batches since `begin`; where no log was closed, the open one stands for all."""
        logs = self._closed or [self._as_closed()]
        logged = max(sum(log.num_rows for log in logs), 1)
        batches = max(self._num_batches, 1)
        checkpoints = self._written / max(logged / len(logs), self._log_rows) / batches
        flushed = checkpoints * sum(log.flushed for log in logs) / len(logs)
        merges = self._written / logged / batches
        return FileCounts(
            requests=self._requests / batches,
            bytes_fetched=self._fetched / batches,
            checkpoints=checkpoints,
            closing=checkpoints * self._delay,
            rows_flushed=flushed,
            bytes_flushed=flushed * self._stride,
            rows_merged=merges * sum(log.merged for log in logs),
            bytes_merged=merges * sum(log.bytes_merged for log in logs),
        )

    def _as_closed(self) -> _ClosedLog:
        """The open log, closed by a checkpoint."""
        merged = self._logged | self._changed
        flushed, rows_of_base = int(self._changed.sum()), int((self._base | merged).sum())
        return _ClosedLog(self._num_logged, flushed, int(merged.sum()), rows_of_base * self._stride)


def _spans(places: Tensor, stride: int) -> Tensor:
    """Bytes of the runs of whole sectors that have the records at these places, ascending; runs READ_GAP
    apart or less are one.

    places = [0, 1, 1000], stride = 128  ->  [512, 512]
    """
    begin = places * stride // _SECTOR * _SECTOR
    end = -(-(places + 1) * stride // _SECTOR) * _SECTOR
    cuts = (begin[1:] - end[:-1] > READ_GAP).nonzero().squeeze(1)
    first, last = torch.cat([begin[:1], begin[cuts + 1]]), torch.cat([end[cuts], end[-1:]])
    return last - first
