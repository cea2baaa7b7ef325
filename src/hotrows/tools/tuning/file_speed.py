"""FileSpeed: how long a step takes whose rows are in a file store, on a machine that was measured.

    speed = FileSpeed(measure_disk(folder), cores=2, busy_seconds=0.07, costs=(CacheCost(...), ...))
    speed.step(result, in_memory)           # seconds; a `PolicyResult` with `in_file`

A step is as long as the slowest of three:

    training      the step in memory, and by how much the work of cache and store slows it down
    disk          what is read, appended and merged, more slowly while training goes on
    the log       it fills, is closed some batches later, and filled again; but not before it is merged

and a checkpoint, which closes the log, pauses training for as long as it writes the cache's changed rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hotrows.engine.storage.merge_pace import LATE, MOST
from hotrows.train.config import TrainConfig
from hotrows.train.costs.measure_disk import DiskRates

if TYPE_CHECKING:
    from hotrows.tools.tuning.cache_simulation import PolicyResult
    from hotrows.tools.tuning.file_replay import FileCounts

_ROUNDS = 20


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
    costs: of a cache, by rows, few of them first. request_hinders: by how many seconds training takes
    longer for a request of a read beside it; None: for what that takes of a processor.
    new_row_seconds: of a processor, to draw the first values of a row that was never written.
    flush_seconds: to gather a changed row of the cache, when a checkpoint writes it.
    in_flight: number of batches that move rows at once.
    """

    disk: DiskRates
    cores: int
    busy_seconds: float
    costs: tuple[CacheCost, ...] = ()
    request_hinders: float | None = None
    new_row_seconds: float = 0.0
    flush_seconds: float = 0.0
    in_flight: int = TrainConfig.in_flight

    def step(self, result: PolicyResult, in_memory: float) -> float:
        """Seconds of a step that takes `in_memory` seconds with all rows in memory."""
        disk, counts = self.disk, _counts(result)
        reading = max(
            counts.requests / disk.reads_per_second, counts.bytes_fetched / disk.bytes_read_per_second
        )
        moving = reading + result.bytes_written / disk.bytes_per_second
        training = in_memory + counts.checkpoints * moving / 2  # a checkpoint waits for reads
        hindered = self._cache_seconds(result.misses) + self._hindered(result, in_memory)
        step = self._with_merges(result, training, hindered, moving)
        # A batch that waits for all before it moves its rows first, and is trained then.
        step = (1 - result.drained) * step + result.drained * max(training + hindered + moving, step)
        gathered = counts.rows_flushed * self.flush_seconds
        return step + max(gathered, counts.bytes_flushed / disk.bytes_per_second)  # at the same time

    def _with_merges(
        self, result: PolicyResult, training: float, hindered: float, moving: float
    ) -> float:
        """Seconds of a step of which training takes so many, and `moving` the disk without merges."""
        disk, counts = self.disk, _counts(result)
        step = self._beside(result, training, hindered, moving)
        if not counts.checkpoints:
            return step
        cycle = 1 / counts.checkpoints
        closing = min(counts.closing, 1.0) * cycle  # steps in which a full log waits for its checkpoint
        filling = cycle - closing
        merge = counts.bytes_merged / disk.merged_per_second * cycle
        # While the log fills to LATE, a merge works no more than MOST of the time.
        merged = merge + disk.sync_seconds + LATE * (1 - MOST) * filling * step
        # Writes of a log that is full wait for the merge, and training for them, some batches later.
        held_back = (merged + closing * step) / (filling + self.in_flight + closing)
        cycle = max(filling, merged / step) + closing
        return max(self._beside(result, training, hindered, moving + merge / cycle), held_back)

    def _beside(self, result: PolicyResult, training: float, hindered: float, moving: float) -> float:
        """Seconds of a step whose training and whose moves, alone, take so many.

        While both go on, each slows the other down: training takes `hindered` seconds longer beside
        all of the work of cache and store.
        """
        step = trained = training + hindered
        for _ in range(_ROUNDS):  # the step and how much of it training takes, by one another
            trained = training + hindered * min(trained / step, 1.0)
            step = trained + max(moving - trained / self.disk.beside, 0.0)
        return max(step, (self.busy_seconds + result.planning_seconds + self.work(result)) / self.cores)

    def _hindered(self, result: PolicyResult, in_memory: float) -> float:
        """By how many seconds the store's work makes training longer where all of it is beside training:
        requests as measured, the rest wherever no core is idle."""
        busy_cores = min(self.busy_seconds / in_memory, self.cores)
        all_busy = max(busy_cores - (self.cores - 1), 0.0)  # share of the time
        requests = _counts(result).requests
        of_processor = requests * self.disk.request_seconds
        hinders = of_processor if self.request_hinders is None else requests * self.request_hinders
        return hinders + (self.work(result) - of_processor) * all_busy

    def _cache_seconds(self, rows: float) -> float:
        """By how much a cache makes a step longer in which so many rows come in: on the line through the
        costs."""
        if not self.costs:
            return 0.0
        few, many = self.costs[0], self.costs[-1]
        slope = max(many.seconds - few.seconds, 0.0) / max(many.rows - few.rows, 1.0)
        beyond = rows - (few.rows + many.rows) / 2
        return max((few.seconds + many.seconds) / 2 + beyond * slope, 0.0)

    def work(self, result: PolicyResult) -> float:
        """Seconds of processors that the store takes for a step, but for checkpoints."""
        disk, counts = self.disk, _counts(result)
        reads = counts.requests * disk.request_seconds + result.reads * disk.row_seconds
        reads += result.untouched * self.new_row_seconds
        writes = result.writes * disk.write_seconds
        merges = counts.bytes_merged * disk.merge_seconds + counts.rows_merged * disk.merge_row_seconds
        return reads + writes + merges


def _counts(result: PolicyResult) -> FileCounts:
    assert result.in_file is not None, "simulate(..., in_file=True)"
    return result.in_file
