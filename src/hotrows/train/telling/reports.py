"""Reports of a run while it trains: lines of metrics.jsonl, progress for its caller, and a display."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from hotrows.engine.pipeline.runner import TRAIN
from hotrows.engine.pipeline.schedule import Work
from hotrows.runtime import terminal
from hotrows.train.loop.step_trainer import Runner, StepTrainer
from hotrows.train.metrics import Metrics
from hotrows.train.run.state import lr_scale
from hotrows.train.telling.metrics_log import METRICS, Listener, MetricsLog
from hotrows.train.telling.progress import Meter, Progress, SlowestStep


class Reports:
    """Reports of a run, made of what its steps and evaluations give.

    progress: called after every step, and after every batch of an evaluation.
    """

    def __init__(self, steps: StepTrainer, progress: Callable[[Progress], None] | None) -> None:
        self._steps, self._meter = steps, Meter(steps.ranks, steps.embedding.device)
        self._progress: Callable[[Progress], None] = progress or terminal.silent
        self._display: Callable[[Progress], None] = terminal.silent

    @contextmanager
    def opened(
        self, run: Path, verbose: bool | None, listeners: Sequence[Listener] = ()
    ) -> Iterator[None]:
        """Writes into the folder of a run, and shows progress as `verbose` says; see `Trainer.fit`.

        listeners: called with each line of metrics.jsonl.
        """
        state, rank = self._steps.state, self._steps.ranks.rank
        file = METRICS if rank == 0 else f"ranks/rank-{rank}.jsonl"
        if rank or (verbose is None and self._progress is not terminal.silent):
            verbose = False
        log = MetricsLog(run, state.step, state.evaluated_at, file, listeners)
        with closing(log) as self._log, display(verbose) as self._display:
            yield

    @property
    def epoch_steps(self) -> int:
        return self._steps.batches.epoch_steps

    def samples_per_second(self) -> float:
        """The speed of all steps, of all ranks together; collective, and called once."""
        self._meter.total.sum_over(self._steps.ranks)
        return self._meter.total.samples_per_second

    @property
    def interval_is_over(self) -> bool:
        """True if a line is due: there are 200 in a run, but one in 100 steps at least."""
        return self._meter.interval.steps == min(max(self._steps.batches.total_steps // 200, 1), 100)

    def begin_step(self, runner: Runner) -> None:
        """Notes how long stages of the runner have worked and been waited for so far."""
        self._meter.begin_step()
        self._before = dict(runner.stalled), dict(runner.busy)

    def add_step(self, runner: Runner, work: Work, loss: Tensor, seconds: float, stalled: float) -> None:
        """Adds a step; seconds: it took, stalled: of these until its batch came."""
        cached_tables = self._steps.cached_tables
        waited, busy = map(_since, self._before, (runner.stalled, runner.busy))
        busy[TRAIN] = seconds - stalled  # the runner notes it when the next batch is asked for
        for interval in (self._meter.interval, self._meter.total):
            interval.add(loss, work.item.batch.size, seconds=seconds, stalled=stalled)
            interval.add_stages(waited, busy)
            interval.moves += cached_tables.traffic(work.item.plan)
        waited_for = max(waited, key=waited.__getitem__) if any(waited.values()) else None
        self._meter.interval.add_slowest(
            SlowestStep(self._steps.state.step, seconds, stalled, waited_for)
        )

    def write_interval(self) -> None:
        """Writes a line for the steps since the last one, where there are any; collective."""
        if not self._meter.interval.steps:
            return
        state, config = self._steps.state, self._steps.config
        of_rank = self._meter.close_interval(cached=bool(self._steps.cached_tables))
        loss = self._meter.shown["loss"]
        if not math.isfinite(loss):
            raise ValueError(
                f"training diverged: the loss is {loss} at step {state.step:,}; lower the learning rates "
                f"({config.row_optimizer}, dense_lr={config.dense_lr}), warm up, or set clip_norm"
            )
        assert config.row_optimizer is not None and config.dense_lr is not None
        scale = lr_scale(state, config)
        rates = {"lr": config.row_optimizer.lr * scale, "dense_lr": config.dense_lr * scale}
        fields = {"epoch": self._epoch, **self._meter.shown, **rates, **of_rank}
        if growth := self._steps.embedding.dynamic.growth():
            fields["keys"] = growth
        self._log.write("train", state.step, fields)

    def write_evaluation(self, metrics: Metrics) -> None:
        """Writes and shows the metrics of the validation part; the state knows of them already."""
        state = self._steps.state
        is_best = state.best_step == state.step
        fields = {"epoch": self._epoch, **metrics.to_json(), "is_best": is_best}
        self._log.write("evaluation", state.step, fields)
        is_peak = state.peak is not None and metrics.score >= state.peak
        is_best = is_best and state.peak is not None
        self._show(replace(self._now(validation=metrics), is_best=is_best, is_peak=is_peak))

    def write_window(self, metrics: Metrics, fields: Mapping[str, Any]) -> None:
        """Writes and shows the metrics of the events that were scored since the last window."""
        self._log.write("window", self._steps.state.step, {**metrics.to_json(), **fields})
        self._show(self._now(validation=metrics))

    def show_step(self) -> Progress:
        """Shows that a step was made; returns what was shown."""
        now = self._now()
        self._show(now)
        return now

    def show_evaluation(self, done: int, total: int) -> None:
        """Shows how many samples of an evaluation are done."""
        self._show(Progress("evaluate", done, total))

    def _now(self, validation: Metrics | None = None) -> Progress:
        batches, shown = self._steps.batches, self._meter.shown
        done, total = self._steps.state.step, batches.known_steps
        return Progress("train", done, total, validation=validation, **shown)

    def _show(self, now: Progress) -> None:
        self._progress(now)
        self._display(now)

    @property
    def _epoch(self) -> float:
        return round(self._steps.state.step / self.epoch_steps, 4)


def _since(before: Mapping[str, float], now: Mapping[str, float]) -> dict[str, float]:
    """By stage, the seconds that have come since."""
    return {stage: seconds - before.get(stage, 0.0) for stage, seconds in now.items()}


@contextmanager
def display(verbose: bool | None) -> Iterator[Callable[[Progress], None]]:
    """Yields a function that shows the progress of a run.

    verbose: None: on a terminal and in a notebook alone; True: elsewhere too, where lines stand for
    evaluations and no bar; False: nowhere.
    """
    if not (terminal.is_watched() if verbose is None else verbose):
        yield terminal.silent
        return
    with terminal.bar() as progress:
        yield shown_by(progress)


def shown_by(progress: Callable[..., None]) -> Callable[[Progress], None]:
    """Shows a run's progress on a bar, `progress(stage, done, total, note)`, and by lines that stay."""

    def show(now: Progress) -> None:
        stage, total = "evaluating" if now.stage == "evaluate" else "training", now.total or None
        progress(stage, now.done, total, _note(now))
        if now.validation is not None:
            numbers = [
                f"{name} {value:.6f}"
                for place, (name, value) in enumerate(now.validation.shown().items())
                if place < 3 or name == "calibration"
            ]
            what = f" of {total:,}: validation" if total else ": window"
            print(f"step {now.done:,}{what} {', '.join(numbers)}{_standing(now)}", file=sys.stderr)

    return show


def _standing(now: Progress) -> str:
    """The place of an evaluation among those so far."""
    if not now.is_best:
        return ""
    return ", best so far" if now.is_peak else ", kept: within one standard error of the best so far"


def _note(now: Progress) -> str:
    """The text behind the bar."""
    note = ""
    if now.loss is not None and now.samples_per_second is not None:
        note = f"loss {now.loss:.4f}  {now.samples_per_second:,.0f} samples/s"
    if now.hit_rate is not None:
        note += f"  hits {now.hit_rate:.1%}  in {_megabytes(now.bytes_in)}"
        note += f"  out {_megabytes(now.bytes_out)}"
    if now.waited is not None and now.waited > 0.01:
        note += f"  waits {now.waited:.0%} ({now.waited_for})"
    return note


def _megabytes(per_second: float | None) -> str:
    return f"{(per_second or 0) / 1e6:,.1f} MB/s"
