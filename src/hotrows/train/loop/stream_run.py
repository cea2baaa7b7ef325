"""StreamRun: what a run on a stream does beside training: progressive validation, its log, alarms.

Every event is scored before it is trained on: by the logits of the training step itself, before its
update. What is written is cut back to the checkpoint from which a run is resumed.
"""

from __future__ import annotations

import dataclasses
import logging
import math
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hotrows.data.streams import (
    CutBatch,
    DeadLetters,
    EventSource,
    EventStream,
    JoinedSource,
    StreamConfig,
    open_joined,
    open_source,
)
from hotrows.data.streams.alarms import Alarm
from hotrows.data.streams.label_join import HeldImpressions
from hotrows.data.streams.line_log import LineLog, read_lines
from hotrows.engine import checkpoint
from hotrows.engine.distributed.all_or_none import together
from hotrows.engine.distributed.comm import any_rank
from hotrows.runtime.atomic_files import local
from hotrows.runtime.json_file import JsonFile, build
from hotrows.schema import Schema
from hotrows.train.callback import Callback
from hotrows.train.loop.scored_window import ScoredWindow
from hotrows.train.loop.step_trainer import StepTrainer
from hotrows.train.metrics import Metrics
from hotrows.train.run import folder as run_folder

log = logging.getLogger("hotrows")

_LOG = "stream.jsonl"
_LINE = JsonFile("bring it back from a copy")
DEAD_LETTERS = "dead_letters.jsonl"
OnAlarm = Callable[[Alarm], None]
_HELD = "held/"  # in the names of tensors with impressions whose labels are to come


class StreamRun(Callback):
    """A callback of the Trainer whose run is on a stream.

    source: where the events are, or a text that names it; see `hotrows.data.streams.source`. on_alarm:
    called with an alarm, in place of ending the run. repeat: a log of batches to cut alike. window: what
    `tensors` gave to a checkpoint. labels: where labels are that come later than their impressions.

    Of several ranks the first one reads the source, and writes what is written; windows and alarms are
    those of all.
    """

    name = "last window"

    def __init__(
        self,
        run: Path,
        steps: StepTrainer,
        source: EventSource | str,
        config: StreamConfig | None = None,
        on_alarm: OnAlarm | None = None,
        repeat: Path | str | None = None,
        window: Mapping[str, Tensor] | None = None,
        labels: EventSource | str | None = None,
    ) -> None:
        self._steps, self._config, self._on_alarm = steps, config or StreamConfig(), on_alarm
        _check(steps, self._config, labels is not None)
        self.window = ScoredWindow(steps, self._config.window, window or {})
        self.alarm: Alarm | None = None
        self.last: Metrics | None = None
        self._saved, self._saved_at = steps.state, time.monotonic()
        self._alarmed_at: float | None = None  # the last arrival that an alarm of idleness was about
        self._opened, self._sizes = ExitStack(), dict[int, int]()
        self._events: EventStream | None = None  # of the first rank
        self._log: BatchLog | None = None
        self._files: tuple[BatchLog | DeadLetters, ...] = ()
        opening = partial(self._open, run, source, repeat, window or {}, labels)
        together(steps.ranks, opening if steps.ranks.rank == 0 else lambda: None)
        self._batches = steps.train_on(self._events, self.window.add, self._checkpoint_is_due)

    def _open(
        self,
        run: Path,
        source: EventSource | str,
        repeat: Path | str | None,
        window: Mapping[str, Tensor],
        labels: EventSource | str | None,
    ) -> None:
        """Opens the source, and the files that are written."""
        steps, config = self._steps, self._config
        state, encoder = steps.state, run_folder.open_encoder(run)
        opened_source = _opened(source, labels, encoder.schema, config)
        with ExitStack() as opened:
            path = _letters_of(run, config)
            letters = DeadLetters(path, state.stream.read if state.stream else 0)
            opened.callback(letters.close)
            self._log = BatchLog(run, state.step)
            opened.callback(self._log.close)
            self._files = (self._log, letters)
            size = steps.config.batch_size
            assert size is not None, "settle the config first"
            batches = [] if repeat is None else batches_after(Path(repeat), state.step)
            self._sizes = {batch.step: batch.size for batch in batches}
            cuts = None if repeat is None else [batch.reads for batch in batches]
            histories = run_folder.histories_at(run, window)
            names = [name for name in window if name.startswith(_HELD)]
            held = {name.removeprefix(_HELD): window[name].numpy() for name in names}
            self._events = EventStream(
                opened_source,
                encoder,
                size,
                config,
                state.stream,
                letters,
                cuts,
                histories,
                HeldImpressions.of_arrays(held),
            )
            opened.callback(self._events.close)
            settings = config.to_json()
            if isinstance(opened_source, JoinedSource):
                run_folder.write_stream(run, *opened_source.names, settings)
            else:
                run_folder.write_stream(run, opened_source.name, None, settings)
            self._opened = opened.pop_all()

    def __enter__(self) -> StreamRun:
        return self

    def __exit__(self, *error: object) -> None:
        self._opened.close()

    def tensors(self) -> dict[str, Tensor]:
        """What a checkpoint has of the window that is open, and the events that users have got."""
        histories = self._batches.histories
        events = {} if histories is None else histories.since(0)
        added = {run_folder.HISTORIES + name: torch.from_numpy(values) for name, values in events.items()}
        held = {} if self._batches.held is None else self._batches.held.arrays()
        added |= {_HELD + name: torch.from_numpy(values) for name, values in held.items()}
        return {**self.window.tensors(), **added}

    def on_idle(self, trainer: Any) -> None:
        """Sounds the alarm of idleness."""
        limit = self._config.alarm_idle
        if limit is not None and any_rank(self._steps.ranks, self._is_idle(limit)):
            self._sound(Alarm("idle", f"no event that can be trained came for {limit:g} s"), trainer)

    def _is_idle(self, limit: float) -> bool:
        """True on the rank that reads if no event came for so many seconds, once for each time."""
        last = math.inf if self._events is None else self._events.last_arrival
        is_new = time.monotonic() - last > limit and self._alarmed_at != last
        self._alarmed_at = last if is_new else self._alarmed_at
        return is_new

    def on_step_end(self, trainer: Any, progress: Any) -> None:
        """Notes the batch, and closes the window where it is full."""
        cut, step = self._batches.trained, self._steps.state.step
        assert cut is not None
        self.window.end_batch(cut.size)
        if self._log is not None:
            self._log.write(step, cut)
        if (size := self._sizes.get(step, cut.size)) != cut.size:
            log.warning(
                f"batch {step:,} has {cut.size:,} events, and had {size:,} in the run that is "
                f"repeated: the stream has other events now, and what comes of them is another model"
            )
            self._sizes = {}
        if self.window.is_full:
            self.close_window(trainer)
        elif self._steps.recommender.device.on_host:
            self._check_finite()

    def _checkpoint_is_due(self) -> bool:
        """True if the state is not saved, and the last that was is old."""
        seconds, age = self._config.checkpoint_seconds, time.monotonic() - self._saved_at
        return seconds is not None and age > seconds and self._steps.state != self._saved

    def on_checkpoint(self, trainer: Any) -> None:
        """Makes durable what was written about the events of the checkpoint."""
        self._check_finite()
        for file in self._files:
            file.sync()
        self._saved, self._saved_at = self._steps.state, time.monotonic()

    def validate(self, trainer: Any) -> None:
        """Closes the window at the end of the run; the state knows of it."""
        self.close_window(trainer)
        self._steps.state = dataclasses.replace(trainer.state, evaluated_at=trainer.state.step)

    def results(self, trainer: Any) -> dict[str, Metrics | None]:
        """The metrics of the last window; a stream has no test part."""
        return {"validation": self.last, "test": None}

    def close_window(self, trainer: Any) -> None:
        """Computes the metrics of the events since the last window, where there are any."""
        self._check_finite()
        metrics, state = self.window.close(), self._steps.state.stream
        if metrics is None or state is None:
            return
        self.last = metrics
        names = ("events", "malformed", "late", "short", "event_time")
        counts = {name: getattr(state, name) for name in names}
        if state.labels is not None and (held := self._batches.held) is not None:
            counts |= {"labels": dataclasses.asdict(state.labels), "untrained": held.num_untrained}
        trainer.reports.write_window(metrics, counts)
        for callback in trainer.callbacks:
            callback.on_evaluation_end(trainer, metrics)
        bounds = self._config.calibration_bounds
        is_whole = metrics.samples >= self._config.window  # few say little, and without a click nothing
        if bounds and is_whole and not math.isnan(metrics.calibration):
            self._check_calibration(metrics, bounds, trainer)

    def _check_calibration(self, metrics: Metrics, bounds: tuple[float, float], trainer: Any) -> None:
        if not bounds[0] <= metrics.calibration <= bounds[1]:
            what = (
                f"the calibration of the last {metrics.samples:,} events is {metrics.calibration:.4f}, "
                f"out of {bounds[0]:g} to {bounds[1]:g}, after step {self._steps.state.step:,}"
            )
            self._sound(Alarm("calibration", what), trainer)

    def _sound(self, alarm: Alarm, trainer: Any) -> None:
        if self._on_alarm is not None:
            self._on_alarm(alarm)
            return
        self.alarm = alarm
        trainer.stop()

    def _check_finite(self) -> None:
        """Raises an alarm before what no prediction comes of is saved, or published."""
        values = self._steps.model.parameters()
        is_finite = self.window.is_finite() and all(bool(value.isfinite().all()) for value in values)
        if not any_rank(self._steps.ranks, not is_finite):
            return
        alarm = Alarm(
            "nan",
            f"predictions or parameters are no finite numbers after step {self._steps.state.step:,}: "
            f"training diverged; resume from the last checkpoint with lower learning rates, or set "
            f"clip_norm",
        )
        if self._on_alarm is not None:
            self._on_alarm(alarm)
        raise alarm


def _letters_of(run: Path, config: StreamConfig) -> Path:
    """The file of dead letters; ValueError for one that was not this run's: it would be cut back."""
    path = local(config.dead_letters or run / DEAD_LETTERS)
    is_known = config.dead_letters in (None, run_folder.read_stream(run).get("dead_letters"))
    if not is_known and path.exists() and path.stat().st_size:
        raise ValueError(f"{path} has lines already, which are not of this run: name a new file")
    return path


def _opened(
    source: EventSource | str, labels: EventSource | str | None, schema: Schema, config: StreamConfig
) -> EventSource | JoinedSource:
    if labels is not None and config.join_on is not None:
        return open_joined(source, labels, schema, config.join_on)
    if labels is not None or config.join_on is not None:
        raise ValueError(
            "labels that come later need their source (--labels, labels=) and the column with the id of "
            "an impression (--join-on, join_on); one of them is missing"
        )
    return open_source(source, schema) if isinstance(source, str) else source


def _check(steps: StepTrainer, stream: StreamConfig, has_labels: bool) -> None:
    """Raises ValueError for a run that cannot train on a stream."""
    state, config = steps.state, steps.config
    is_weighted = has_labels and stream.delayed_labels == "weight"
    of_loss = [loss.is_of_streams for loss in steps.recommender.losses]
    if is_weighted and of_loss != [True]:
        raise ValueError(
            "delayed_labels='weight' trains each impression as a negative, which only the loss "
            "fake_negative of one label corrects: begin the run with it (--loss fake_negative), or wait "
            "(--delayed-labels wait)"
        )
    if any(of_loss) and not is_weighted:
        raise ValueError(
            "the loss fake_negative is for a stream in which each positive was a negative before: give "
            "--labels and --delayed-labels weight, or another loss"
        )
    if state.stream is None and state.step > 0:
        raise ValueError(
            "this run has trained on prepared data: begin a new one from it on the stream (--init-from, "
            "start_from)"
        )
    if state.position is not None:
        raise ValueError(
            "data regrouped into hot and cold samples is no beginning of a stream: name the data before"
        )
    if not steps.data.encodes_raw:
        raise ValueError(
            f"events are encoded by the vocabularies of prepared data, and {steps.data.path} has none: "
            f"prepare it (`hotrows prepare`), be it a small sample where features are dynamic"
        )
    if config.shares not in (None, "equal"):
        raise ValueError("shares of ranks are for prepared data: leave --shares out on a stream")
    if config.cuda_graph:
        raise ValueError("batches of a stream differ in size: train on it without cuda_graph")
    if config.evaluate_every is not None:
        raise ValueError("a stream is validated as it comes, window by window: leave out evaluate_every")
    vocabularies = steps.embedding.dynamic.vocabularies
    if any(vocabulary.dynamic.batches_ahead for vocabulary in vocabularies.values()):
        raise ValueError(
            "dynamic ids that look ahead would wait for events to come: give them admit='first' or "
            "'after:READS', and evict='lru', 'lfu', 'idle:BATCHES' or 'time:SECONDS'"
        )


@dataclass(frozen=True)
class LoggedBatch:
    """A batch of a run: its step, how many events it has, and the reads that it was made of."""

    step: int
    size: int
    reads: tuple[dict[str, Any], ...]


class BatchLog:
    """`stream.jsonl` of a run that goes on after a step: a line for each batch, by which another run cuts
    alike; lines of later batches are cut off.

        {"format": 1, "step": 12, "size": 64, "reads": [{"file": "a.csv", ..}, ..], "crc32": 2774413601}

    `reads`: the position of the stream behind each read that the batch was made of.
    """

    def __init__(self, run: Path, step: int) -> None:
        path = run / _LOG
        if step:
            _check_goes_to(path, step)
        self._log = LineLog(path, lambda line: type(n := line.get("step")) is int and n <= step)
        self.sync, self.close = self._log.sync, self._log.close

    def write(self, step: int, cut: CutBatch) -> None:
        self._log.write(_LINE.sign({"step": step, "size": cut.size, "reads": cut.reads}))


def batches_after(place: Path, step: int) -> list[LoggedBatch]:
    """The batches after a step, by the log of a run or its folder."""
    path = place / _LOG if place.is_dir() else place
    if not path.exists():
        raise ValueError(
            f"{path} does not exist: a run on a stream writes it, and its batches are cut alike"
        )
    saved = 0
    if checkpoint.pointed(path.parent) is not None:
        saved = checkpoint.read_manifest(checkpoint.folder_of(path.parent, "last")).step
    fields = [_LINE.verified(path, line) for line in read_lines(path)]
    with _LINE.naming(path):
        lines = [build(LoggedBatch, line, "batch") for line in fields]
        later = [line for line in lines if line.step > step]
        if [line.step for line in later] != list(range(step + 1, step + 1 + len(later))):
            raise ValueError(f"it does not have each batch after step {step:,} once")
        if step + len(later) < saved:
            raise ValueError(f"it lacks batch {step + len(later) + 1:,} of the {saved:,} trained")
    return later


def _check_goes_to(path: Path, step: int) -> None:
    """Raises ValueError where a line up to that of a step is missing: all were durable before its
    checkpoint."""
    if not path.exists():
        log.warning(
            f"{path} is gone: batches up to step {step:,} cannot be made again (--replay-batches-of)"
        )
        return
    last = None
    for line in read_lines(path):
        number = line.get("step")
        if type(number) is not int or (last is not None and number != last + 1):
            break
        last = number
        if last == step:
            return
    raise ValueError(
        f"{path} is damaged: the line behind that of batch {last or 0:,}, of {step:,}, cannot be read; "
        f"bring it back from a copy, or move it away, if these batches need not be made again"
    )
