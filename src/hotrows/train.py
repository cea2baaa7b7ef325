"""Training: a run from prepared data to a trained model in a run folder.

    trainer = Trainer(data, TrainConfig(model="deepfm"), run="runs/a")
    result = trainer.fit()                       # or train(data, config, run)
    predictor = load_run("runs/a")               # later: the best checkpoint, ready to predict

The step is that of the design: lookup, model, loss, backward, update, dense optimizer. The next
batches are loaded and planned beside it, and their rows brought into fast memory where it does not
hold all (see `hotrows.stages`). Going on with a run gives the
same bits as never having stopped it: a checkpoint holds the number of batches trained (not
planned), rows, parameters, optimizer and random state, and where the schedule stands. The
validation part alone decides (learning rate, early stop, best); the test part only reports.
"""

from __future__ import annotations

import dataclasses
import logging
import math
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from hotrows import checkpoint, models, native, nn, placing, report, run_folder, stages
from hotrows.batch import Batch
from hotrows.config import TrainConfig, settle
from hotrows.data import EncodedData, Loader
from hotrows.data.description import row_counts
from hotrows.data.hot_cold import SEQUENTIAL, HotColdLoader, Position, advance, next_block
from hotrows.data.profile import Profile
from hotrows.exchange.dense import SharedGradients
from hotrows.exchange.processes import Processes, Sent
from hotrows.metrics import Metrics
from hotrows.pipeline.runner import Overlapped, Serial
from hotrows.pipeline.trace import Event, write_trace
from hotrows.placing import Placing
from hotrows.planning.routing import CHECKPOINT, STOP
from hotrows.predict import Predictor
from hotrows.ranks import OneRank, Ranks
from hotrows.run_folder import MetricsLog
from hotrows.schema import Schema, Table, vocabulary_of
from hotrows.standing import (
    Standing,
    after_evaluation,
    after_step,
    evaluation_is_due,
    lr_scale,
    stops_early,
)
from hotrows.step import CapturedStep, Step
from hotrows.tiers import Moved

log = logging.getLogger("hotrows")

Runner = Serial | Overlapped
_KEPT_EVENTS = 40_000


@dataclass(frozen=True)
class Progress:
    """Where a run is, for a progress bar.

    stage: `train` or `evaluate`; done and total: steps, or samples when evaluating.
    loss, samples_per_second: of the last interval of training.
    hit_rate: the share of rows that were in fast memory already; bytes_in, bytes_out: moved per
        second; waited: the share of the interval spent waiting; waited_for: mostly for this stage.
        All of the last interval, None where every row is in memory.
    validation: what the evaluation after this step has found.
    """

    stage: str
    done: int
    total: int
    loss: float | None = None
    samples_per_second: float | None = None
    hit_rate: float | None = None
    bytes_in: float | None = None
    bytes_out: float | None = None
    waited: float | None = None
    waited_for: str | None = None
    validation: Metrics | None = None


@dataclass(frozen=True)
class Result:
    """How a run ended.

    validation, test: metrics of the best checkpoint; None where the part is empty.
    samples_per_second: of training alone; evaluations and checkpoints are not counted.
    """

    run: Path
    steps: int
    best_step: int
    stopped_early: bool
    samples_per_second: float | None
    validation: Metrics | None
    test: Metrics | None

    def to_json(self) -> dict[str, Any]:
        metrics = {"validation": self.validation, "test": self.test}
        plain = {part: found.to_json() if found else None for part, found in metrics.items()}
        return {**dataclasses.asdict(self), **plain, "run": self.run.name}


class Interrupted(KeyboardInterrupt):
    """A run was asked to stop and has saved itself; resume it to go on."""


def train(
    data: EncodedData,
    config: TrainConfig,
    run: Path | str,
    *,
    resume: bool = False,
    progress: Callable[[Progress], None] | None = None,
    ranks: Ranks | None = None,
) -> Result:
    """Trains a model into the folder `run`: `Trainer(...).fit()`."""
    return Trainer(data, config, run, resume=resume, progress=progress, ranks=ranks).fit()


def load_run(run: Path | str, which: str = "best") -> Predictor:
    """The model of a run from its `best` or `last` checkpoint, ready to evaluate and predict."""
    run = Path(run)
    config, data = run_folder.read_config(run), run_folder.read_json(run / "data.json")
    folder = checkpoint.folder_of(run, which)
    predictor = Predictor(_for_reading(config), Schema.load(run / "schema.json"), read_only=True)
    checkpoint.load(
        folder, predictor.embedding, predictor.model, data["fingerprint"], read_only=True
    )
    nn.use_linear_paths(predictor.model, run_folder.read_json(run / "choices.json"))
    return predictor


class Trainer:
    """One run: a model, its tables, its optimizers and its folder.

    data: prepared data; run: a new folder, or with `resume` one to go on with.
    progress: called after every step, and after every batch of an evaluation.
    trace: a file for the times of every stage of the last batches, which Perfetto opens; a picture
        of them goes beside it.
    ranks: the processes that train together (`hotrows.exchange.processes.start()`), each with this
        Trainer; None: this one alone. They share the folder of the run and read the same data. The
        first one writes what is written, and every other a log of its own (`ranks/`).

    Asks malloc to keep freed memory, for the whole process: a step frees and takes the same large
    blocks again and again.
    """

    def __init__(
        self,
        data: EncodedData,
        config: TrainConfig,
        run: Path | str,
        *,
        resume: bool = False,
        progress: Callable[[Progress], None] | None = None,
        trace: Path | None = None,
        ranks: Ranks | None = None,
    ) -> None:
        self.data, self.run = data, Path(run)
        self.ranks = ranks or OneRank()
        self.config = settle(config, _num_training_samples(data))
        if self.config.fast_memory is not None and self.config.policy == "hot":
            data.hot_and_cold()  # says so where it is not regrouped, before a store is made
        begun = run_folder.check(self.run, resume)
        if begun:
            run_folder.check_same(self.run, self.config, data)
        else:
            _check_new_store(self.config)
        known = run_folder.read_placing(self.run, self.ranks.num_ranks) is not None
        self.ranks.barrier()  # all have looked before the first one writes
        self.loader = _loader(data, self.config, self.ranks)
        self.total_steps = self.config.steps or self.config.epochs * len(self.loader)
        hot_ids = _hot_ids(data)
        self.predictor = Predictor(
            self.config, data.schema, hot_ids=hot_ids, ranks=self.ranks, place=self._place
        )
        self.model, self.embedding = self.predictor.model, self.predictor.embedding
        self.tiers = self.embedding.tiers
        if self.embedding.needs_counts:
            self.embedding.set_counts(_counts(data, self.embedding.tables))
        self.dense_optimizer = dense_optimizer(self.config, self.model)
        self._shared = SharedGradients(self.model, self.ranks)
        step = Step(self.predictor, self.dense_optimizer, self.config, self._shared)
        self._step = CapturedStep(step) if self.config.cuda_graph else step
        self._writer = checkpoint.Writer(
            self.run, self.embedding, self.model, data.fingerprint,
            keep_last=self.config.keep_last, full_every=self.config.full_every,
            background=self.config.background_checkpoints,
        )  # fmt: skip
        self.standing = Standing(position=_first_position(data, self.config))
        self._random_state = self._first_random_state()
        self._device_random_state: Tensor | None = None
        self._saved: Standing | None = None
        self._progress = progress or (lambda _: None)
        self._interval, self._whole = _Interval(), _Interval()
        self._last_interval: dict[str, Any] = {}
        self._trace, self._events = trace, deque[Event](maxlen=_KEPT_EVENTS)
        self._number = 0  # of the batch that is trained
        if trace is not None:
            step.note = self._note
        self._trace_ranks()
        self._asked: Callable[[], bool] = lambda: False
        self._checkpoint_wished = False
        self._sent = Sent()
        if begun:
            self._read_checkpoint()
        else:
            self._start_from()
            self._begin()
        if self.is_first and not known:
            self._keep_placing()

    @property
    def stopped_early(self) -> bool:
        return self.standing.step < self.total_steps and stops_early(self.standing, self.config)

    @property
    def is_first(self) -> bool:
        """Whether this rank writes what all have found."""
        return self.ranks.rank == 0

    def evaluate(self, part: str) -> Metrics:
        """Metrics over the whole `train`, `validation` or `test` part; disturbs no training."""
        if part not in self.data.parts:
            raise ValueError(f"part must be one of {', '.join(self.data.parts)}, not {part!r}")
        return self.predictor.evaluate(self.data.parts[part], self._evaluation_progress)

    def fit(self) -> Result:
        """Trains to the end, goes back to the best checkpoint, and reports on the test part.

        Tables in a file store can be read afterwards, no longer trained.
        Ctrl-C (or SIGTERM) saves a checkpoint after the current step and raises `Interrupted`; a
        second one interrupts at once.
        """
        keep_freed_memory()
        with ExitStack() as stack:
            self._asked = stack.enter_context(_stop_signals())
            self._log = stack.enter_context(closing(self._open_log()))
            stack.enter_context(torch.random.fork_rng(devices=[]))
            torch.set_rng_state(self._random_state)
            device, state = self.predictor.device, self._device_random_state
            stack.enter_context(device.own_random_numbers(state, self.config.seed))
            stack.callback(self._write_trace)
            stack.callback(self._writer.close)
            stack.callback(self.embedding.threads.close)
            if self.tiers:
                stack.callback(self.tiers.stop_writing)
                self.tiers.warm()
            try:
                while not self._train_block():
                    pass
                return self._finish()
            except _Asked:
                raise Interrupted(
                    f"stopped after step {self.standing.step:,} of {self.total_steps:,}; "
                    f"the checkpoint is in {self.run}"
                ) from None

    def _place(self, model: models.Model) -> Placing:
        """How tables are dealt: as this run did before on as many ranks, else chosen now."""
        known = run_folder.read_placing(self.run, self.ranks.num_ranks)
        if known is not None:
            self.placing = Placing.from_json(known)
        else:
            num_samples = self.total_steps * self.loader.batch_size
            self.placing = placing.place(self.data, self.config, model, self.ranks, num_samples)
        return self.placing

    def _begin(self) -> None:
        """Fills the folder of a new run; choices are measured once, for all ranks."""
        choices = None
        if self.is_first:
            choices = self.predictor.measure_choices(self.total_steps * self.loader.batch_size)
            self._begin_folder(choices)
        self.choices = self.ranks.gather_objects(choices)[0]
        nn.use_linear_paths(self.model, self.choices)

    def _begin_folder(self, choices: dict) -> None:
        run_folder.begin(self.run, self.config, self.data, choices)

    def _keep_placing(self) -> None:
        run_folder.write_placing(self.run, self.ranks.num_ranks, self.placing.to_json())

    def _first_random_state(self) -> Tensor:
        """Where random numbers begin; on every rank in a place of its own."""
        if self.is_first:
            return self.predictor.random_state
        seed = (self.config.seed + 0x9E3779B97F4A7C15 * self.ranks.rank) & (1 << 63) - 1
        return torch.Generator().manual_seed(seed).get_state()

    def _start(self) -> Runner:
        """A runner of the batches still to train."""
        future = (batch for _, batch in self._batches()) if self.tiers else None
        return stages.start(
            self.embedding, self._batches(), future, plan_depth=self.config.plan_depth,
            trace=self._trace is not None, wishes=self._wishes, padded=self.config.cuda_graph,
        )  # fmt: skip

    def _wishes(self) -> int:
        """What this rank asks of all: they do it together, before the batch that is planned now."""
        wants_checkpoint = self.tiers is not None and self.tiers.wants_checkpoint
        return STOP * self._asked() | CHECKPOINT * wants_checkpoint

    def _train_block(self) -> bool:
        """Trains all there is, of regrouped data the next block; whether that was the end."""
        with closing(self._start()) as runner:
            try:
                return self._train(runner)
            except _Asked:
                with runner.paused():
                    self._save()
                    self._writer.wait()
                raise
            except BaseException:
                runner.abandon()
                raise
            finally:
                self._events += runner.events

    def _train(self, runner: Runner) -> bool:
        """Trains on what the runner hands out; whether that was all there is to train."""
        while True:
            if self._evaluation_is_due():
                with runner.paused():
                    self._validate()
                    self._save()
            elif self._checkpoint_is_due():
                with runner.paused():
                    self._save()
            if self.standing.step >= self.total_steps or stops_early(self.standing, self.config):
                return True
            if self._asked() and self.ranks.num_ranks == 1:
                raise _Asked
            self._timed_step(runner)
            if self._block_has_ended():
                surplus = next(runner, None)  # returns once all of the block is written back
                assert surplus is None, "a block's runner hands out its batches alone"
                self._set_rate()
                return False

    def _note(self, stage: str, lane: str, begin: float, end: float) -> None:
        self._events.append(Event(stage, lane, self._number, begin, end))

    def _trace_ranks(self) -> None:
        """Notes what travels between ranks too."""
        if self._trace is not None and isinstance(self.ranks, Processes):
            self.embedding.note = self._shared.note = self._note
            self.ranks.notes_times = True

    def _timed_step(self, runner: Runner) -> None:
        begin, before = time.perf_counter(), runner.stalled.copy()
        work = next(runner)
        if work.plan.wishes & STOP:
            raise _Asked
        self._checkpoint_wished |= bool(work.plan.wishes & CHECKPOINT)
        ready = time.perf_counter()
        self._number = work.number
        loss = self._step(work.plan, work.batch, lr_scale(self.standing, self.config))
        end = time.perf_counter()
        self._advance()
        for interval in (self._interval, self._whole):
            interval.add(loss, work.batch.size, seconds=end - begin, stalled=ready - begin)
            interval.wait(before, runner.stalled)
            if self.tiers:
                interval.moves += self.tiers.moved(work.plan)
        if self._interval.steps == self._interval_steps or self._evaluation_is_due():
            self._write_interval()
        self._step_progress()

    def _advance(self) -> None:
        """One step further."""
        self.standing = after_step(self.standing)
        if isinstance(self.loader, HotColdLoader):
            assert self.standing.position is not None
            position = advance(
                self.standing.position, 1, len(self.loader.hot), len(self.loader.cold)
            )
            self.standing = dataclasses.replace(self.standing, position=position)

    def _batches(self) -> Iterator[tuple[int, Batch]]:
        """The batches still to train, each with its step; of regrouped data, of this block alone."""
        step = self.standing.step
        if isinstance(self.loader, HotColdLoader):
            assert self.standing.position is not None
            hot, cold = self.loader.hot, self.loader.cold
            block = next_block(self.standing.position, len(hot), len(cold))
            batches = self.loader.block(*dataclasses.astuple(block))
            yield from enumerate(islice(batches, self.total_steps - step), step)
            return
        while step < self.total_steps:
            epoch, first = divmod(step, len(self.loader))
            batches = self.loader.batches(epoch, first)
            for batch in islice(batches, self.total_steps - step):
                yield step, batch
                step += 1

    def _block_has_ended(self) -> bool:
        position = self.standing.position
        return position is not None and position.done == 0

    def _set_rate(self) -> None:
        """Between blocks, where they are scheduled: the loss decides how long the next one is.

        Ctrl-C waits for it: the checkpoint would be one of a block's end with the rate of before.
        """
        position = self.standing.position
        assert position is not None
        if position.rate is None or not self.data.parts["validation"].rows:
            return
        found = self.predictor.evaluate(self.data.parts["validation"], self._show_evaluation)
        position = dataclasses.replace(position, rate=position.rate.after(found.log_loss))
        self.standing = dataclasses.replace(self.standing, position=position)

    def _evaluation_is_due(self) -> bool:
        return evaluation_is_due(self.standing, self.config, len(self.loader), self.total_steps)

    def _checkpoint_is_due(self) -> bool:
        every = self.config.checkpoint_every
        periodic = every is not None and self.standing.step > 0 and self.standing.step % every == 0
        return periodic or self._checkpoint_wished

    def _validate(self) -> None:
        if not self.data.parts["validation"].rows:
            self.standing = dataclasses.replace(self.standing, evaluated_at=self.standing.step)
            return
        metrics = self.evaluate("validation")
        self.standing = after_evaluation(self.standing, metrics, self.config, len(self.loader))
        fields = {"epoch": self._epoch, **metrics.to_json()}
        self._log.write("evaluation", self.standing.step, fields)
        self._step_progress(validation=metrics)

    def _save(self) -> None:
        """Writes a checkpoint, unless this very standing has one: the last, perhaps the best."""
        if self._saved == self.standing:
            return
        tensors = _optimizer_tensors(self.dense_optimizer)
        # [P, n]: of every rank
        tensors["random_state"] = self.ranks.all_gather(torch.get_rng_state()).wait()
        of_device = self.predictor.device.random_state()
        if of_device is not None:
            tensors["device_random_state"] = of_device
        state = checkpoint.State(self.standing.step, self.standing.to_json(), tensors)
        is_best = self.standing.best is None or self.standing.best_step == self.standing.step
        self._writer.save(state, is_best)
        self._saved, self._checkpoint_wished = self.standing, False

    def _read_checkpoint(self) -> None:
        nn.use_linear_paths(self.model, run_folder.read_json(self.run / "choices.json"))
        if checkpoint.pointed(self.run) is None:  # it was stopped before its first one
            if self.tiers:
                self.tiers.restore(None)
            self._start_from()
            return
        folder = checkpoint.folder_of(self.run, "last")
        state = checkpoint.load(folder, self.embedding, self.model, self.data.fingerprint)
        self.standing = self._saved = Standing.from_json(state.fields)
        states = state.tensors.pop("random_state")
        self._device_random_state = state.tensors.pop("device_random_state", None)
        if len(states) == self.ranks.num_ranks:  # else every rank begins anew
            self._random_state = states[self.ranks.rank].clone()  # PyTorch misreads views
        _load_optimizer(self.dense_optimizer, state.tensors)
        self._writer.went_to(folder)
        if self.tiers:
            of = checkpoint.retained(self.run, self.ranks.rank, self.ranks.num_ranks)
            self.tiers.retain(of)

    def _start_from(self) -> None:
        """Begins with what another run has learned, where the config names one."""
        if self.config.start_from is None:
            return
        folder = checkpoint.folder_of(Path(self.config.start_from), "best")
        state = checkpoint.load(folder, self.embedding, self.model, self.data.lineage)
        for name in ("random_state", "device_random_state"):
            state.tensors.pop(name, None)
        _load_optimizer(self.dense_optimizer, state.tensors)

    def _finish(self) -> Result:
        self._writer.wait()
        pointer = checkpoint.pointed(self.run)
        in_files = self.tiers is not None and self.tiers.files
        if pointer is not None and (pointer.best != pointer.last or in_files):
            folder = checkpoint.folder_of(self.run, "best")
            fingerprint = self.data.fingerprint
            checkpoint.load(folder, self.embedding, self.model, fingerprint, read_only=True)
        self._whole.sum_over(self.ranks)
        result = Result(
            run=self.run,
            steps=self.standing.step,
            best_step=self.standing.best_step if self.standing.best else self.standing.step,
            stopped_early=self.stopped_early,
            samples_per_second=self._whole.samples_per_second,
            validation=self.standing.best,
            test=self.evaluate("test") if self.data.parts["test"].rows else None,
        )
        if self.is_first:
            run_folder.write_json(self.run / "result.json", result.to_json())
            report.draw_run(self.run)
        return result

    @property
    def _epoch(self) -> float:
        return round(self.standing.step / len(self.loader), 4)

    @property
    def _interval_steps(self) -> int:
        """Steps between lines of metrics: 200 lines a run, but one in 100 steps at least."""
        return min(max(self.total_steps // 200, 1), 100)

    def _write_trace(self) -> None:
        if self._trace is not None and self.is_first:
            events = list(self._events)
            write_trace(events, self._trace)
            report.draw_timeline(events, self._trace.with_suffix(".png"))

    def _open_log(self) -> MetricsLog:
        at = self.standing.step, self.standing.evaluated_at
        if self.is_first:
            return MetricsLog(self.run, *at)
        return MetricsLog(self.run, *at, file=f"ranks/rank-{self.ranks.rank}.jsonl")

    def _write_interval(self) -> None:
        interval, self._interval = self._interval, _Interval()
        own = interval.samples
        interval.sum_over(self.ranks)
        loss = interval.mean_loss
        if not math.isfinite(loss):
            raise ValueError(
                f"training diverged: the loss is {loss} at step {self.standing.step:,}; lower the "
                f"learning rates ({self.config.row_optimizer}, dense_lr={self.config.dense_lr}), "
                f"warm up, or set clip_norm"
            )
        scale = lr_scale(self.standing, self.config)
        assert self.config.row_optimizer is not None and self.config.dense_lr is not None
        self._last_interval = {"loss": loss, "samples_per_second": interval.samples_per_second}
        if self.tiers:
            self._last_interval |= interval.moved()
        fields = {
            "epoch": self._epoch,
            **self._last_interval,
            "lr": self.config.row_optimizer.lr * scale,
            "dense_lr": self.config.dense_lr * scale,
            **self._travelled(interval.steps, own),
            "stall_seconds": interval.stalled,
            "seconds": interval.seconds,
            **{f"waited_{stage.replace(' ', '_')}": s for stage, s in interval.waited.items()},
        }
        self._log.write("train", self.standing.step, fields)

    def _travelled(self, steps: int, samples: int) -> dict[str, float]:
        """Of several ranks: this one's samples, and what it has sent in a step of the interval."""
        if self.ranks.num_ranks == 1:
            return {}
        sent = getattr(self.ranks, "sent", Sent())
        before, self._sent = self._sent, dataclasses.replace(sent)
        return {
            "samples_here": samples,
            "bytes_sent": (sent.num_bytes - before.num_bytes) / steps,
            "messages_sent": (sent.messages - before.messages) / steps,
        }

    def _step_progress(self, validation: Metrics | None = None) -> None:
        step, total = self.standing.step, self.total_steps
        self._progress(Progress("train", step, total, validation=validation, **self._last_interval))

    def _evaluation_progress(self, done: int, total: int) -> None:
        if self._asked() and self.ranks.num_ranks == 1:  # ranks finish it: they stop together
            raise _Asked
        self._show_evaluation(done, total)

    def _show_evaluation(self, done: int, total: int) -> None:
        self._progress(Progress("evaluate", done, total))


class _Asked(Exception):
    """Leaves the loop after Ctrl-C."""


@dataclass
class _Interval:
    """Sums over some steps of training."""

    steps: int = 0
    samples: int = 0
    loss: Tensor | float = 0.0
    seconds: float = 0.0
    stalled: float = 0.0
    waited: dict[str, float] = field(default_factory=dict)
    moves: Moved = field(default_factory=Moved)

    def add(self, loss: Tensor, samples: int, *, seconds: float, stalled: float) -> None:
        self.steps += 1
        self.samples += samples
        self.loss = self.loss + loss
        self.seconds += seconds
        self.stalled += stalled

    def wait(self, before: Mapping[str, float], now: Mapping[str, float]) -> None:
        """before, now: seconds waited for each stage since the runner began."""
        for stage, seconds in now.items():
            more = seconds - before.get(stage, 0.0)
            self.waited[stage] = self.waited.get(stage, 0.0) + more

    def moved(self) -> dict[str, Any]:
        """The fields of `Progress` that say how the cache fares."""
        return {
            "hit_rate": 1 - self.moves.rows_in / max(self.moves.rows, 1),
            "bytes_in": self.moves.bytes_in / self.seconds,
            "bytes_out": self.moves.bytes_out / self.seconds,
            "waited": self.stalled / self.seconds,
            "waited_for": max(self.waited, key=self.waited.__getitem__, default=None),
        }

    def sum_over(self, ranks: Ranks) -> None:
        """Makes the loss, the samples and the moves those of all ranks; collective."""
        mine = [float(self.loss), self.samples, *dataclasses.astuple(self.moves)]
        loss, samples, *moves = (
            ranks.all_reduce(torch.tensor(mine, dtype=torch.float64)).wait().tolist()
        )
        self.loss, self.samples, self.moves = loss, int(samples), Moved(*map(int, moves))

    @property
    def mean_loss(self) -> float:
        return float(self.loss) / self.steps

    @property
    def samples_per_second(self) -> float:
        return self.samples / self.seconds if self.seconds else 0.0


@contextmanager
def _stop_signals() -> Iterator[Callable[[], bool]]:
    """Remembers the first Ctrl-C or SIGTERM for the loop to ask about; the second acts as before.

    A step interrupted in its middle would leave rows of one pack updated and those of another not.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    asked = threading.Event()
    before = {n: signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler or signal.SIG_DFL)

    def remember(number: int, frame: Any) -> None:
        asked.set()
        restore()

    for number in before:
        signal.signal(number, remember)
    try:
        yield asked.is_set
    finally:
        restore()


def _check_new_store(config: TrainConfig) -> None:
    """A run begins with a store of its own."""
    caching = config.caching()
    path = caching.path if caching else None
    if path is not None and path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise ValueError(
            f"store {path} exists already: go on with its run (resume=True, --resume), or name a new "
            f"folder; delete it if no run needs it"
        )


def _for_reading(config: TrainConfig) -> TrainConfig:
    """The config of a run, for looking things up alone, on any machine: what fits in memory needs no
    cache.

    A file store is read without a policy's help, `hot` having no data at hand that says what is.
    """
    config = dataclasses.replace(config, device="cpu", cuda_graph=False, planning="host")
    if config.store == "memory":
        return dataclasses.replace(config, fast_memory=None)
    return dataclasses.replace(config, policy="lru")


def _num_training_samples(data: EncodedData) -> int:
    if not data.parts["train"].rows:
        raise ValueError(
            f"the training part of {data.path} has no rows: prepare the data with another split"
        )
    return data.parts["train"].rows


def _loader(data: EncodedData, config: TrainConfig, ranks: Ranks) -> Loader | HotColdLoader:
    assert config.batch_size is not None
    how: dict[str, Any] = {
        "shuffle": config.shuffle, "seed": config.seed, "rank": ranks.rank, "num_ranks": ranks.num_ranks
    }  # fmt: skip
    if data.halves is not None:
        return HotColdLoader(*data.halves, config.batch_size, **how)
    return Loader(data.parts["train"], config.batch_size, **how)


def _first_position(data: EncodedData, config: TrainConfig) -> Position | None:
    if data.halves is None:
        return None
    return Position() if config.hot_cold == "scheduled" else SEQUENTIAL


def _hot_ids(data: EncodedData) -> dict[str, Tensor] | None:
    """The ids that regrouped data holds for hot, by vocabulary."""
    if data.halves is None:
        return None
    return {name: torch.from_numpy(ids) for name, ids in Profile.of(data).hot.items()}


def _counts(data: EncodedData, tables: Sequence[Table]) -> dict[str, Tensor]:
    """How often each id of a table stands in the training part; those of crosses are not counted."""
    if not data.vocabularies:
        raise ValueError(f"decay_by_count: {data.path} has no counts of ids; `prepare` makes them")
    vocabularies = {f.name: vocabulary_of(f) for f in data.schema.id_features}
    counts = {name: torch.from_numpy(of) for name, of in row_counts(data).items()}
    found = {}
    for table in tables:
        if table.features[0] in vocabularies:
            of = counts[vocabularies[table.features[0]]][: table.rows]
            found[table.name] = functional.pad(of, (0, table.rows - len(of)))
    return found


def dense_optimizer(config: TrainConfig, model: torch.nn.Module) -> torch.optim.Optimizer:
    kinds: dict[str, Callable[..., torch.optim.Optimizer]] = {
        "adam": torch.optim.Adam,
        "adagrad": torch.optim.Adagrad,
        "sgd": torch.optim.SGD,
    }
    options: dict[str, Any] = {"lr": config.dense_lr, "fused": True}
    if config.device != "cpu" and config.dense_optimizer == "adagrad":
        options["fused"] = False  # PyTorch has none on a GPU
    if config.cuda_graph:  # its numbers are read from memory, where the next step's are put
        assert config.dense_lr is not None
        device = next(model.parameters()).device
        options["lr"] = torch.full((), config.dense_lr, device=device)
        if config.dense_optimizer == "adam":
            options["capturable"] = True
    return kinds[config.dense_optimizer](model.parameters(), **options)


def _optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Its state by `parameter number.name`."""
    return {
        f"{parameter}.{name}": value.cpu()
        for parameter, state in optimizer.state_dict()["state"].items()
        for name, value in state.items()
        if isinstance(value, Tensor)
    }


def _load_optimizer(optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        parameter, name = key.split(".", 1)
        state.setdefault(int(parameter), {})[name] = value
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": state, "param_groups": groups})


def keep_freed_memory() -> None:
    """Asks malloc to, for the whole process."""
    library = native.load()
    if library is not None:
        library.hotrows_keep_freed_memory()
