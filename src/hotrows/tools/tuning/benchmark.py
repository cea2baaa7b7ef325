"""Paired benchmark: how fast configurations train, measured in short runs that leave nothing behind.

    with PairedBenchmark(data, ranks, window_seconds=0.5) as benchmark:
        comparison = benchmark.compare(config, replace(config, in_flight=8), num_pairs=7)
    comparison.ratio                           # of samples a second, after over before

A machine is now faster, now slower, for reasons that no configuration has a part in. So two
configurations are trained in windows of a few steps in turn, and what counts is the ratio of windows
that are neighbours:

    before  ####        ####  ####        ####
    after         ####              ####        ####
            `- pair 0 -'`- pair 1 -'...

Each one has tables, optimizers and threads of its own. While one trains, the other is paused. Nothing
is evaluated or logged; the logs of file stores are closed and merged once they are full, as in a run.
Steps before the first window, and the first two of each window, are not timed.
"""

from __future__ import annotations

import dataclasses
import gc
import math
import shutil
import statistics
import time
import uuid
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hotrows.data import EncodedData
from hotrows.engine.caching import FILE
from hotrows.engine.distributed.comm import OneRank, Ranks
from hotrows.engine.planning.routing import RankSignals
from hotrows.runtime.machine import available_memory
from hotrows.runtime.sums import Summed
from hotrows.runtime.utilization import Utilization
from hotrows.train.config import TrainConfig
from hotrows.train.costs.placement import ShardingPlan
from hotrows.train.loop.step_trainer import ChooseSharding, StepTrainer, keep_freed_memory
from hotrows.train.start.defaults import settle

WIN = 1.02  # a median ratio below is no win, however steady
_WARM_UP = 8  # steps before the first window
_LEAD_IN = 2  # steps of every window that are not timed
_LEAST = 3  # steps of every window that are
_ENDLESS = 1 << 62  # steps
# Settings that sharding depends on.
_PLACED_BY = (
    *("sharding", "pack_parts", "micro_batches", "batch_size"),
    *("wire_dtype", "table_dtype", "fast_memory"),
)


@dataclass(frozen=True)
class Comparison:
    """Samples a second of two configurations in windows that alternate, pair by pair.

    filled: the share of slots in fast memory that held rows when the second one was measured; None
    without a cache. cores_busy: the share of the cores' time that each used in its last window, as the
    mean of ranks.
    """

    before: tuple[float, ...]
    after: tuple[float, ...]
    filled: float | None = None
    cores_busy: tuple[float, float] = (0.0, 0.0)

    @property
    def ratios(self) -> list[float]:
        """After over before, of each pair."""
        return [b / a for a, b in zip(self.before, self.after, strict=True)]

    @property
    def ratio(self) -> float:
        return statistics.median(self.ratios)

    @property
    def speeds(self) -> tuple[float, float]:
        """Medians of both."""
        return statistics.median(self.before), statistics.median(self.after)

    @property
    def quartiles(self) -> tuple[float, float]:
        """The lower and the upper quartile of the ratios."""
        if len(self.ratios) < 2:
            return self.ratio, self.ratio
        low, _, high = statistics.quantiles(self.ratios, n=4, method="inclusive")
        return low, high

    @property
    def wins(self) -> bool:
        """True if the second is faster beyond what the windows vary by."""
        return self.ratio > WIN and self.quartiles[0] > 1

    def is_lost(self, num_pairs: int) -> bool:
        """True if `wins` is out of reach in so many pairs: too many ratios are at most 1 already."""
        return sum(ratio <= 1 for ratio in self.ratios) >= (num_pairs - 1) // 4 + 2

    def to_json(self) -> dict[str, Any]:
        figures = {"ratio": self.ratio, "quartiles": self.quartiles, "wins": self.wins}
        return {**dataclasses.asdict(self), **figures}


class PairedBenchmark:
    """Compares configurations on one data set, opened anew for every comparison.

    ranks: those that train together; all call the same methods and get the same figures: samples of
        all ranks, seconds of the slowest.
    window_seconds: about how long each window is.
    warm_up_seconds: how long a cache may take to fill before it is measured.

    Two configurations are open at once where memory holds both; otherwise they are opened in turn for
    every window.
    """

    def __init__(
        self,
        data: EncodedData,
        ranks: Ranks | None = None,
        *,
        window_seconds: float = 0.5,
        warm_up_seconds: float = 4.0,
    ) -> None:
        self.data, self.ranks = data, ranks or OneRank()
        self.window_seconds, self.warm_up_seconds = window_seconds, warm_up_seconds
        self._open: dict[str, TimedTraining] = {}
        self._choices: dict[Any, Any] = {}

    def __enter__(self) -> PairedBenchmark:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        self.close_all(abandon=error is not None)

    def compare(
        self, before: TrainConfig, after: TrainConfig, num_pairs: int, after_first: bool = False
    ) -> Comparison:
        """Times both, opened anew, in windows that alternate; ends early once `after` cannot win.

        after_first: open `after` first, and time it first in the even pairs.
        ValueError where a configuration is refused, on all ranks alike.
        """
        self.close_all()
        comparison = Comparison((), ())
        try:
            while len(comparison.before) < num_pairs and not comparison.is_lost(num_pairs):
                swapped = after_first != (len(comparison.before) % 2 == 1)
                comparison = self._add_pair(comparison, (before, after), (1, 0) if swapped else (0, 1))
        except ValueError:
            self.close_all(abandon=True)
            raise
        return comparison

    def _add_pair(
        self, comparison: Comparison, configs: tuple[TrainConfig, TrainConfig], order: tuple[int, int]
    ) -> Comparison:
        """The comparison with one more window of each configuration."""
        speeds, cores_busy, filled = [0.0, 0.0], [0.0, 0.0], None
        for which in order:
            training = self.opened(configs[which])
            speeds[which] = training.window(self.window_seconds)
            cores_busy[which] = training.cores_busy
            filled = training.filled if which == 1 else filled
        before, after = (*comparison.before, speeds[0]), (*comparison.after, speeds[1])
        return Comparison(before, after, filled, (cores_busy[0], cores_busy[1]))

    def opened(self, config: TrainConfig) -> TimedTraining:
        """The training of a configuration, ready to be measured."""
        key = config.to_json()
        if key not in self._open:
            if self._open and not self.holds_both:
                self.close_all()
            training = TimedTraining(self.data, config, self.ranks, self._choices)
            self._open[key] = training
            training.warm_up(self.warm_up_seconds)
        return self._open[key]

    @property
    def holds_both(self) -> bool:
        """True if memory has room for what is open and once more for as much; all ranks agree."""
        if len(self._open) != 1:
            return len(self._open) > 1
        (training,) = self._open.values()
        needed = sum(self.ranks.gather_objects(training.num_bytes))
        free = self.ranks.gather_objects(available_memory())[0]
        return free is None or needed < free / 2

    def close_all(self, abandon: bool = False) -> None:
        """Closes what is open. abandon: after an error, without waiting for other ranks."""
        for key in list(self._open):
            self._open.pop(key).close(abandon)
        gc.collect()


@dataclass(frozen=True)
class TimedSteps(Summed):
    """Steps that were timed: samples of all ranks and seconds of the slowest one; seconds of this rank's
    processors, and its rows that came into fast memory."""

    steps: int = 0
    samples: int = 0
    seconds: float = 0.0
    processor_seconds: float = 0.0
    rows_in: int = 0


class TimedTraining:
    """A configuration that trains for some steps at a time, and is paused in between.

    choices: made by measurement (sharding, paths of matrix products), by the settings that they
    depend on; shared by the trainings of a benchmark, which add theirs.
    """

    def __init__(
        self, data: EncodedData, config: TrainConfig, ranks: Ranks, choices: dict[Any, Any]
    ) -> None:
        self._ranks = ranks
        config = dataclasses.replace(config, start_from=None)
        self._store: Path | None = None
        if config.store.startswith(FILE):
            self._store = _beside(Path(config.store[len(FILE) :]), ranks)
            config = dataclasses.replace(config, store=f"{FILE}{self._store}")
        self._paused = ExitStack()
        try:
            self.steps = _step_trainer(data, config, ranks, choices)
            self._cached_tables = self.steps.cached_tables
            self._cached_tables.warm()
            keep_freed_memory()
            self._runner = self.steps.start(self._signals)
        except BaseException:
            self._remove_store()
            raise
        self._step_seconds, self._rows_in = 0.0, 0
        self.last = TimedSteps()
        self.cores_busy = 0.0  # in the last window, as the mean of ranks

    @property
    def num_bytes(self) -> int:
        """Bytes of rows in memory, on this rank."""
        caching = self.steps.config.caching()
        cached = caching.fast_memory if caching else 0
        return cached + (0 if self._store else self.steps.embedding.num_bytes)

    @property
    def filled(self) -> float | None:
        """The share of slots that hold rows; None without a cache."""
        if not self._cached_tables:
            return None
        groups = self._cached_tables.groups
        return sum(g.slots.num_resident for g in groups) / sum(g.cache.num_slots for g in groups)

    def warm_up(self, seconds: float) -> None:
        """Trains, untimed, until pipeline and caches are full, or the time is over."""
        begin, full = time.perf_counter(), False
        while not full:
            self._step_seconds = self._timed(_WARM_UP).seconds / _WARM_UP
            late = time.perf_counter() - begin > seconds
            full = late or self.filled is None or self.filled > 0.99
            full = self._ranks.gather_objects(full)[0]  # as the first rank finds it

    def window(self, seconds: float) -> float:
        """Samples a second of all ranks, over steps that take about so long."""
        num_steps = max(_LEAST, math.ceil(seconds / max(self._step_seconds, 1e-6)))
        self._timed(_LEAD_IN, pause=False)
        self.last = self._timed(num_steps)
        self._step_seconds = self.last.seconds / num_steps
        return self.last.samples / self.last.seconds

    def close(self, abandon: bool = False) -> None:
        """Ends the pipeline and deletes the temporary store. abandon: without waiting for other ranks."""
        if abandon:
            self._runner.abandon()
        self._runner.close()
        self._paused.close()
        self._cached_tables.close()
        if not abandon:
            self._ranks.barrier()
        self._remove_store()

    def _timed(self, num_steps: int, pause: bool = True) -> TimedSteps:
        self._paused.close()
        self._ranks.barrier()
        used, rows_in = Utilization(), self._rows_in
        begin, processors = time.perf_counter(), time.process_time()
        samples = sum(self._step() for _ in range(num_steps))
        seconds, processors = time.perf_counter() - begin, time.process_time() - processors
        cores_busy = used.end()["cores_busy"]
        if pause:
            self._paused.enter_context(self._runner.paused())
            for store in self._cached_tables.files:
                store.merge_now()  # else it would take the disk from what is timed next
        by_rank = self._ranks.gather_objects((samples, seconds, cores_busy))
        self.cores_busy = sum(share for _, _, share in by_rank) / len(by_rank)
        return TimedSteps(
            steps=num_steps,
            samples=sum(samples for samples, _, _ in by_rank),
            seconds=max(seconds for _, seconds, _ in by_rank),
            processor_seconds=processors,
            rows_in=self._rows_in - rows_in,
        )

    def _step(self) -> int:
        work = next(self._runner)
        self.steps.train(work)
        self._rows_in += self._cached_tables.traffic(work.item.plan).rows_in
        if work.item.plan.signals & RankSignals.CHECKPOINT:
            self._checkpoint()
        return work.item.batch.size

    def _signals(self) -> int:
        """Requests a checkpoint where the log of a file store is full, as a run does."""
        is_requested = self._cached_tables.requests_checkpoint()
        return RankSignals.CHECKPOINT if is_requested else RankSignals(0)

    def _checkpoint(self) -> None:
        """Closes the logs of the file stores, which begin to merge them."""
        with self._runner.paused():
            self._cached_tables.retain([self._cached_tables.checkpoint()])

    def _remove_store(self) -> None:
        if self._store is not None:
            shutil.rmtree(self._store, ignore_errors=True)


def _step_trainer(
    data: EncodedData, config: TrainConfig, ranks: Ranks, choices: dict[Any, Any]
) -> StepTrainer:
    """A trainer of steps without end, with the choices that have been made for its settings."""

    def place(choose: ChooseSharding) -> ShardingPlan:
        key = "placing", *(getattr(settled, name) for name in _PLACED_BY)
        if key not in choices:
            choices[key] = choose()
        return choices[key]

    settled = settle(config, data)
    steps = StepTrainer(data, settled, ranks, place)
    steps.choose_linear_paths()
    steps.batches.total_steps = _ENDLESS  # after the sharding, which follows the length of the run
    return steps


def _beside(path: Path, ranks: Ranks) -> Path:
    """A new folder next to where a store is going to be, the same on all ranks."""
    name = f"{path.name}.trial-{uuid.uuid4().hex[:8]}"
    return path.resolve().parent / ranks.gather_objects(name)[0]
