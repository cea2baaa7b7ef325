"""Trials: how fast configurations train, measured side by side in short runs that leave nothing behind.

    with Trials(data, ranks, window_seconds=0.5) as trials:
        found = trials.compare(config, dataclasses.replace(config, in_flight=8), num_pairs=7)
    found.ratio                                # of samples a second, after over before

A machine is now faster, now slower, for reasons that no configuration has a part in. So two
configurations are trained in windows of a few steps in turn, and what counts is the ratio of windows
that are neighbours:

    before  ####        ####  ####        ####
    after         ####              ####        ####
            `- pair 0 -'`- pair 1 -'...

Each one is a whole run: tables, optimizers, threads of the pipeline. While one trains, the other
rests. Nothing is evaluated, saved or logged. Steps before the first window, and the first two of each
window, are not timed.
"""

from __future__ import annotations

import dataclasses
import gc
import math
import re
import shutil
import statistics
import tempfile
import time
import uuid
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from hotrows import nn
from hotrows.config import TrainConfig
from hotrows.data import EncodedData
from hotrows.models.model import Model
from hotrows.pipeline.schedule import Work
from hotrows.placing import Placing
from hotrows.ranks import OneRank, Ranks
from hotrows.tiers import FILE
from hotrows.train import Runner, Trainer, keep_freed_memory

WIN = 1.02  # a median ratio below is no win, however steady
_WARM_UP = 8  # steps before the first window
_LEAD_IN = 2  # steps of every window that are not timed
_LEAST = 3  # steps of a window that are
_PLACED_BY = (
    "sharding", "pack_parts", "micro_batches", "batch_size", "wire_dtype", "table_dtype", "fast_memory",
)  # fmt: skip
_PATHS_BY = ("linear_paths", "precision", "micro_batches", "batch_size")


@dataclass(frozen=True)
class Comparison:
    """Samples a second of two configurations in windows that alternate, pair by pair.

    filled: the share of slots in fast memory that held rows when the second one was measured; None
    without a cache.
    """

    before: tuple[float, ...]
    after: tuple[float, ...]
    filled: float | None = None

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
        """Between which the middle half of the ratios lies."""
        if len(self.ratios) < 2:
            return self.ratio, self.ratio
        low, _, high = statistics.quantiles(self.ratios, n=4, method="inclusive")
        return low, high

    @property
    def wins(self) -> bool:
        """Whether the second is faster beyond what the windows vary by."""
        return self.ratio > WIN and self.quartiles[0] > 1

    def is_lost(self, num_pairs: int) -> bool:
        """Whether it cannot win any more in so many pairs: too many are below what the lower quartile
        of all may be."""
        return sum(ratio <= 1 for ratio in self.ratios) >= (num_pairs - 1) // 4 + 2

    def to_json(self) -> dict[str, Any]:
        return {
            **dataclasses.asdict(self), "ratio": self.ratio, "quartiles": self.quartiles,
            "wins": self.wins,
        }  # fmt: skip


class Trials:
    """Configurations of one data set, opened anew for every comparison.

    ranks: those that train together; all call the same methods and get the same figures: samples of
    all ranks, seconds of the slowest. window_seconds: about how long each window is.
    warm_up_seconds: how long a cache may take to fill before it is measured.

    Two are open at once where memory holds both; otherwise they are opened in turn for every window.
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
        self._open: dict[str, Trial] = {}
        self._known: dict[Any, Any] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Trials:
        self._stack.enter_context(torch.random.fork_rng(devices=[]))
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        try:
            self.close_all(abandon=error is not None)
        finally:
            self._stack.close()

    def compare(
        self, before: TrainConfig, after: TrainConfig, num_pairs: int, after_first: bool = False
    ) -> Comparison:
        """Both, opened anew, in windows that alternate; ends early where `after` cannot win any more.

        after_first: which of them is opened first, and first in the even pairs.
        ValueError where a configuration is refused, on all ranks alike.
        """
        self.close_all()
        found = Comparison((), ())
        try:
            while len(found.before) < num_pairs and not found.is_lost(num_pairs):
                swapped = after_first != (len(found.before) % 2 == 1)
                found = self._pair(found, (before, after), (1, 0) if swapped else (0, 1))
        except ValueError:
            self.close_all(abandon=True)
            raise
        return found

    def _pair(
        self, found: Comparison, configs: tuple[TrainConfig, TrainConfig], order: tuple[int, int]
    ) -> Comparison:
        """What was found, and one more window of each."""
        speeds, filled = [0.0, 0.0], None
        for which in order:
            trial = self.opened(configs[which])
            speeds[which] = trial.window(self.window_seconds)
            filled = trial.filled if which == 1 else filled
        return Comparison((*found.before, speeds[0]), (*found.after, speeds[1]), filled)

    def opened(self, config: TrainConfig) -> Trial:
        """The trial of a configuration, ready to be measured."""
        key = config.to_json()
        if key not in self._open:
            if self._open and not self.holds_both:
                self.close_all()
            trial = Trial(self.data, config, self.ranks, self._known)
            self._open[key] = trial
            trial.warm_up(self.warm_up_seconds)
        return self._open[key]

    @property
    def holds_both(self) -> bool:
        """Whether memory has room for what is open and once more for as much; all ranks agree."""
        if len(self._open) != 1:
            return len(self._open) > 1
        (trial,) = self._open.values()
        needed = sum(self.ranks.gather_objects(trial.num_bytes))
        free = self.ranks.gather_objects(_free_memory())[0]
        return free is None or needed < free / 2

    def close_all(self, abandon: bool = False) -> None:
        """abandon: after an error, when other ranks are not waited for."""
        for key in list(self._open):
            self._open.pop(key).close(abandon)
        gc.collect()


class Trial:
    """A configuration that trains for some steps at a time, and rests in between.

    known: what other trials have measured to make their choices, and this one need not.
    """

    def __init__(
        self, data: EncodedData, config: TrainConfig, ranks: Ranks, known: dict[Any, Any]
    ) -> None:
        self._ranks = ranks
        config = dataclasses.replace(config, start_from=None)
        self._store: Path | None = None
        if config.store.startswith(FILE):
            self._store = _beside(Path(config.store[len(FILE) :]), ranks)
            config = dataclasses.replace(config, store=f"{FILE}{self._store}")
        self._resting = ExitStack()
        try:
            self.trainer = _StepTrainer(data, config, ranks, known)
            self._runner = self.trainer.start()
        except BaseException:
            self._remove_store()
            raise
        self._step_seconds = 0.0

    @property
    def num_bytes(self) -> int:
        """Of rows in memory, on this rank."""
        caching = self.trainer.config.caching()
        cached = caching.fast_memory if caching else 0
        return cached + (0 if self._store else self.trainer.embedding.num_bytes)

    @property
    def measures_paths(self) -> bool:
        """Whether the paths of matrix products were measured for it."""
        return bool(self.trainer.choices)

    @property
    def filled(self) -> float | None:
        """The share of slots that hold rows; None without a cache."""
        tiers = self.trainer.tiers
        if tiers is None:
            return None
        held = sum(slots.num_resident for slots in tiers.slots)
        return held / sum(cache.num_slots for cache in tiers.caches)

    def warm_up(self, seconds: float) -> None:
        """Steps that no window counts: until pipeline and caches are full, or the time is over."""
        begin, full = time.perf_counter(), False
        while not full:
            self._step_seconds = self._timed(_WARM_UP)[1] / _WARM_UP
            late = time.perf_counter() - begin > seconds
            full = self._agreed(late or self.filled is None or self.filled > 0.99)

    def window(self, seconds: float) -> float:
        """Samples a second of all ranks, over steps that take about so long."""
        num_steps = max(_LEAST, math.ceil(seconds / max(self._step_seconds, 1e-6)))
        self._timed(_LEAD_IN, rest=False)
        samples, spent = self._timed(num_steps)
        self._step_seconds = spent / num_steps
        return samples / spent

    def close(self, abandon: bool = False) -> None:
        """Ends the pipeline and deletes the temporary store. abandon: other ranks are not waited for."""
        if abandon:
            self._runner.abandon()
        self._runner.close()
        self._resting.close()
        if self.trainer.tiers:
            self.trainer.tiers.close()
        if not abandon:
            self._ranks.barrier()
        self._remove_store()

    def _timed(self, num_steps: int, rest: bool = True) -> tuple[int, float]:
        """Samples of all ranks and seconds of the slowest one, over some steps."""
        self._resting.close()
        self._ranks.barrier()
        begin = time.perf_counter()
        samples = sum(self._step() for _ in range(num_steps))
        seconds = time.perf_counter() - begin
        if rest:
            self._resting.enter_context(self._runner.paused())
        found = self._ranks.gather_objects((samples, seconds))
        return sum(samples for samples, _ in found), max(seconds for _, seconds in found)

    def _step(self) -> int:
        work = next(self._runner, None)
        if work is None:  # the end of a block of regrouped data
            self._runner.close()
            self._runner = self.trainer.start()
            work = next(self._runner)
        self.trainer.step(work)
        return work.batch.size

    def _agreed(self, value: bool) -> bool:
        """As the first rank has it."""
        return self._ranks.gather_objects(value)[0]

    def _remove_store(self) -> None:
        if self._store is not None:
            shutil.rmtree(self._store, ignore_errors=True)


class _StepTrainer(Trainer):
    """A trainer of steps without end, which keeps no folder.

    known: choices made by measurement, by the settings that they depend on; filled here.
    """

    def __init__(
        self, data: EncodedData, config: TrainConfig, ranks: Ranks, known: dict[Any, Any]
    ) -> None:
        self._known = known
        nowhere = Path(tempfile.gettempdir()) / f"hotrows-trial-{uuid.uuid4().hex}"
        super().__init__(data, config, nowhere, ranks=ranks)

    def start(self) -> Runner:
        """A runner of the batches to come; for `step`."""
        if self.tiers and self.tiers.num_planned == 0:
            self.tiers.warm()
        keep_freed_memory()
        self.total_steps = 1 << 62  # after the choices, which follow the length of the run
        return self._start()

    def step(self, work: Work) -> None:
        self._step(work.plan, work.batch, 1.0)
        self._advance()

    def _place(self, model: Model) -> Placing:
        key = "placing", *(getattr(self.config, name) for name in _PLACED_BY)
        if key not in self._known:
            self._known[key] = super()._place(model)
        self.placing = self._known[key]
        return self.placing

    def _begin(self) -> None:
        key = "choices", *(getattr(self.config, name) for name in _PATHS_BY)
        if key in self._known:
            self.choices = self._known[key]
            nn.use_linear_paths(self.model, self.choices)
        else:
            super()._begin()
            self._known[key] = self.choices

    def _begin_folder(self, choices: dict) -> None:
        pass

    def _keep_placing(self) -> None:
        pass


def _beside(path: Path, ranks: Ranks) -> Path:
    """A new folder next to where a store is going to be, the same on all ranks."""
    name = f"{path.name}.trial-{uuid.uuid4().hex[:8]}"
    return path.resolve().parent / ranks.gather_objects(name)[0]


def _free_memory() -> int | None:
    """Bytes that may be had without swapping, where the system says so."""
    try:
        text = Path("/proc/meminfo").read_text()
    except OSError:
        return None
    found = re.search(r"MemAvailable:\s*(\d+) kB", text)
    return int(found[1]) * 1024 if found else None
