"""FileSpeed: how long a step takes whose rows are in a file store, on a machine that was measured.

    speed = FileSpeed(measure_disk(folder), cores=2, busy_seconds=0.07, cache=CacheCost(...))
    speed.step(result, in_memory)           # seconds; a `PolicyResult` with `in_file`

A step is as long as the slowest of three:

    processors    the step in memory, and by how much the work of cache and store slows it down
    disk          what is read, appended and merged
    the log       it fills, is closed some batches later, and filled again; but not before it is merged

and a checkpoint, which closes the log, pauses training for as long as it writes the cache's changed rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hotrows.config import TrainConfig
from hotrows.costs.measure_disk import DiskRates
from hotrows.storage.merge_pace import LATE, MOST

if TYPE_CHECKING:
    from hotrows.tuning.cache_simulation import PolicyResult
    from hotrows.tuning.file_replay import FileCounts


@dataclass(frozen=True)
class CacheCost:
    """By how many seconds a step is longer behind a cache in which so many `rows` came in, with planning,
    the store being in memory."""

    seconds: float = 0.0
    rows: float = 1.0


@dataclass(frozen=True)
class FileSpeed:
    """Speed of a file store, beside training.

    cores: that training has; busy_seconds: of them all, that a step in memory takes.
    new_row_seconds: of a processor, to draw the first values of a row that was never written.
    in_flight: number of batches that move rows at once.
    """

    disk: DiskRates
    cores: int
    busy_seconds: float
    cache: CacheCost = CacheCost()
    new_row_seconds: float = 0.0
    in_flight: int = TrainConfig.in_flight

    def step(self, result: PolicyResult, in_memory: float) -> float:
        """Seconds of a step that takes `in_memory` seconds with all rows in memory."""
        disk, counts = self.disk, _counts(result)
        moving = counts.requests / disk.reads_per_second
        moving += counts.bytes_fetched / disk.bytes_read_per_second
        moving += result.reads * disk.row_seconds + result.bytes_written / disk.bytes_per_second
        computing = self._computing(result, in_memory)
        step = self._with_merges(counts, max(computing, moving), moving)
        # A batch that waits for all before it moves its rows first, and is trained then.
        step = (1 - result.drained) * step + result.drained * max(computing + moving, step)
        return step + counts.bytes_flushed / disk.bytes_per_second

    def _with_merges(self, counts: FileCounts, step: float, moving: float) -> float:
        """Seconds of a step that takes `step` without merges, and `moving` of the disk."""
        if not counts.checkpoints:
            return step
        disk, cycle = self.disk, 1 / counts.checkpoints
        closing = min(counts.closing, 1.0) * cycle  # steps in which a full log waits for its checkpoint
        filling = cycle - closing
        merge = counts.bytes_merged / disk.merged_per_second + counts.rows_merged * disk.merge_row_seconds
        merge *= cycle
        # While the log fills to LATE, a merge works no more than MOST of the time.
        merged = merge + disk.sync_seconds + LATE * (1 - MOST) * filling * step
        # Writes of a log that is full wait for the merge, and training for them, some batches later.
        held_back = (merged + closing * step) / (filling + self.in_flight + closing)
        cycle = max(filling, merged / step) + closing
        return max(step, moving + merge / cycle, held_back)

    def work(self, result: PolicyResult) -> float:
        """Seconds of processors that the store takes for a step."""
        disk, counts = self.disk, _counts(result)
        reads = counts.requests * disk.request_seconds + result.reads * disk.row_seconds
        reads += result.untouched * self.new_row_seconds
        writes = (result.writes + counts.rows_flushed) * disk.write_seconds
        merges = counts.bytes_merged * disk.merge_seconds + counts.rows_merged * disk.merge_row_seconds
        return reads + writes + merges

    def _computing(self, result: PolicyResult, in_memory: float) -> float:
        """Seconds that processors take for a step: training waits wherever no core is idle."""
        busy_cores = min(self.busy_seconds / in_memory, self.cores)
        all_busy = max(busy_cores - (self.cores - 1), 0.0)  # share of the time
        planning, work = result.planning_seconds, self.work(result)
        row_seconds = max(self.cache.seconds - planning * all_busy, 0.0) / self.cache.rows
        moved = (result.misses + _counts(result).rows_flushed) * row_seconds
        least = (self.busy_seconds + planning + work) / self.cores
        return max(in_memory + moved + (planning + work) * all_busy, least)


def _counts(result: PolicyResult) -> FileCounts:
    assert result.in_file is not None, "simulate(..., in_file=True)"
    return result.in_file
