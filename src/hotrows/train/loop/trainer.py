"""Training: a run from prepared data to a trained model in a run folder.

    trainer = Trainer(data, TrainConfig(model="deepfm"), run="runs/a")
    result = trainer.fit()
    trainer.predict(frame)                       # by the best checkpoint
    predictor = load_run("runs/a")               # the same in another process

    StepTrainer    model, tables, optimizers, batches: one step after the other
    Trainer        evaluations, checkpoints, logs and the end of a run around them

While a batch is trained, the next ones are loaded and planned, and their rows brought into fast memory
where it does not hold all (see `hotrows.engine.stages`). A resumed run has the bits of one that was never
stopped. The validation part alone decides (learning rate, early stop, best); the test part only reports.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any

import torch

from hotrows.data import EncodedData
from hotrows.data.streams import EventSource, StreamConfig
from hotrows.engine.checkpoint.fetch import opened as run_copy
from hotrows.engine.checkpoint.run_lock import RunLock
from hotrows.engine.distributed.all_or_none import of_rank_0, together
from hotrows.engine.distributed.comm import OneRank, Ranks
from hotrows.engine.distributed.machines import watched
from hotrows.models.model import Model
from hotrows.runtime.atomic_files import absolute
from hotrows.runtime.suggestions import refusing_unknown
from hotrows.train.callback import Callback, RunControl, StopRequested, check_callbacks, listeners_of
from hotrows.train.config import SETTINGS, TrainConfig, advice_on
from hotrows.train.costs.placement import ShardingPlan
from hotrows.train.loop.batch_shares import BatchShares
from hotrows.train.loop.evaluate import Evaluate, HeldOut, evaluate
from hotrows.train.loop.step_trainer import ChooseSharding, Runner, StepTrainer, keep_freed_memory
from hotrows.train.loop.stream_run import OnAlarm, StreamRun
from hotrows.train.metrics import Metrics
from hotrows.train.run import folder as run_folder
from hotrows.train.run.checkpoints import RunCheckpoints
from hotrows.train.run.end import RunEnd
from hotrows.train.run.signals import stop_signals
from hotrows.train.run.state import RunState, evaluation_is_due, lr_scale, stops_early
from hotrows.train.run.trace import RunTrace
from hotrows.train.start.defaults import agreed
from hotrows.train.telling import notes
from hotrows.train.telling.progress import Progress
from hotrows.train.telling.reports import Reports
from hotrows.train.telling.result import Result

_TICK = 0.1  # seconds between looks at the clock while no batch comes


def _advice_on(name: str) -> str:
    """Advice for an argument that `Trainer` or `fit` does not have."""
    if name in SETTINGS:
        return f"; it is a setting: Trainer(data, TrainConfig({name}=...))"
    is_of_fit = name in ("callbacks", "verbose")
    return "; it is an argument of Trainer.fit" if is_of_fit else advice_on(name)


class Trainer:
    """One run: a model, its tables, its optimizers and its folder.

    data: prepared data, or its folder.
    config: the settings (default: `TrainConfig()`).
    run: a new folder, or with `resume` one to go on with (default: runs/MODEL-NUMBER). Of a URL, such as
        s3://bucket/run, each rank has a copy on its machine, whose checkpoints go there as they are made.
    model: in place of the config's: a name, a class made of `hotrows.models.Model`, or an object of one,
        which is trained as it is. `train.config.model_options` are the arguments of the class.
    progress: called after every step, and after every batch of an evaluation.
    trace: a file for the stages of the last batches, which Perfetto opens; a picture goes beside it.
    ranks: the processes that train together (`hotrows.engine.distributed.process_group.start()`),
        each with this Trainer; None: this one alone. They share the folder of the run, or its URL, and
        read the same data. The first one writes what is written, and every other a log of its own
        (`ranks/`).

    Makes malloc keep freed memory, for the whole process (`keep_freed_memory`).

    >>> trainer = Trainer(data, TrainConfig(model="fm", steps=4), run=f"{folder}/run")
    >>> result = trainer.fit()
    >>> trainer.predict(frame).shape
    (100,)
    """

    @refusing_unknown(_advice_on)
    def __init__(
        self,
        data: EncodedData | Path | str,
        config: TrainConfig | None = None,
        run: Path | str | None = None,
        *,
        model: str | type[Model] | Model | None = None,
        resume: bool = False,
        progress: Callable[[Progress], None] | None = None,
        trace: Path | str | None = None,
        ranks: Ranks | None = None,
    ) -> None:
        self.ranks = ranks or OneRank()
        scratch = config.scratch if isinstance(config, TrainConfig) else None
        place = None if run is None else partial(run_copy, run, self.ranks.rank, scratch)
        run = None if place is None else together(self.ranks, place)
        self.given_model = None if isinstance(model, str) else model
        self.data, config, self.config = agreed(self.ranks, data, config, model, run if resume else None)
        next_run = run_folder.next_folder(str(self.config.model))
        self.run = run or absolute(self.ranks.gather_objects(next_run)[0])
        of_rank_0(self.ranks, partial(run_folder.check, self.run, resume))
        self._lock = RunLock(self.run, self.ranks)
        self.callbacks: Sequence[Callback] = ()
        self._trace = RunTrace(trace)
        self.validation: HeldOut | StreamRun = HeldOut()
        self._end, self._doing = RunEnd(self.run, self.config.store != "memory"), "starting"
        with watched(self.ranks), ExitStack() as on_error:
            on_error.callback(self._lock.release)
            self._open(resume)
            if self.is_first and config.model is None:
                notes.of_model(self.config, self.data)
            self.reports = Reports(self.steps, progress)
            on_error.pop_all()

    def _open(self, resume: bool) -> None:
        """Makes or reads all that is trained, and begins a new run; the folder is locked."""
        begun = of_rank_0(self.ranks, partial(run_folder.check, self.run, resume))  # nobody writes it now
        if begun:
            together(self.ranks, partial(run_folder.check_same, self.run, self.config, self.data))
            if self.is_first:
                run_folder.compare_environment(self.run)
        else:
            run_folder.make_way_for_store(self.config, self.run, self.ranks)
        reading = partial(run_folder.read_placing, self.run, self.ranks.num_ranks, self.config)
        known = of_rank_0(self.ranks, reading) if begun else None  # copies of a run at a URL may differ

        def place(choose: ChooseSharding) -> ShardingPlan:
            """As this run has dealt its tables before on as many ranks, else chosen now."""
            return choose() if known is None else known

        self.steps = StepTrainer(self.data, self.config, self.ranks, place, self.given_model)
        keep = partial(run_folder.write_placing, self.run, self.ranks.num_ranks)
        self.shares = BatchShares(self.steps, begun, keep)
        self.recommender, self.model = self.steps.recommender, self.steps.model
        self.recommender.run = self.run
        self.embedding, self.cached_tables = self.steps.embedding, self.steps.cached_tables
        if self._trace.is_on:
            self.steps.note_times(self._trace.note)
        self.evaluation: Evaluate = partial(evaluate, self.recommender)
        self._control = _control_of(self)
        self.checkpoints = RunCheckpoints(self.run, self.steps, self._lock)
        if begun:
            choices = of_rank_0(self.ranks, partial(run_folder.read_choices, self.run))
            self.steps.use_linear_paths(choices)
            self.checkpoints.resume()
        else:
            self.checkpoints.writer.check_room()
            self.checkpoints.first_values()
            self.steps.choose_linear_paths(partial(run_folder.begin, self.run, self.config, self.data))
        if self.is_first:
            run_folder.keep_config(self.run, self.config)
            run_folder.claim_store(self.config, self.run)
            notes.of_tables(self.steps.placing.reasons, self.checkpoints.coverage, self.run)
        if self.is_first and not begun:
            notes.of_labels(self.data.parts)
        if self.is_first and known is None:
            run_folder.write_placing(self.run, self.ranks.num_ranks, self.steps.placing)

    def __repr__(self) -> str:
        return f"Trainer({self.run}, {self.config.model}, {self.steps.place}; {self.data!r})"

    @property
    def state(self) -> RunState:
        """How far the run has trained."""
        return self.steps.state

    @property
    def total_steps(self) -> int:
        return self.steps.batches.total_steps

    @property
    def _last_step(self) -> int:
        """The step after which training ends: where `stop` was called this one."""
        return self.state.step if self._control.has_ended else self.total_steps

    @property
    def stopped_early(self) -> bool:
        stops = self._last_step < self.total_steps or stops_early(self.state, self.config)
        return self.state.step < self.total_steps and stops

    @property
    def is_first(self) -> bool:
        """True if this rank writes the results of all."""
        return self.ranks.rank == 0

    def evaluate(self, part: str) -> Metrics:
        """Metrics over all of the `train`, `validation` or `test` part; disturbs no training. Warns of
        bad ones, as `fit` does once it is over."""
        if not isinstance(part, str) or part not in self.data.parts:
            raise ValueError(f"part must be one of {', '.join(self.data.parts)}, not {part!r}")
        self._end.check(reads=True)
        self._doing = f"evaluating on the {part} part"
        metrics = self.evaluation(self.data.parts[part], self._evaluation_progress)
        if self.is_first and not self._end.is_fitting:
            notes.of_metrics(part, metrics)
        return metrics

    def predict(self, data: Any) -> Any:
        """Predicts, as `Predictor.predict` does, by the model as it is: after `fit` the best checkpoint.

        Several ranks all call it, with equal data.
        """
        if not (self.state.step or self._end.is_fitting or self.config.start_from):
            notes.log.warning(
                "the model is untrained, and so are its predictions; call fit before predict"
            )
        self._end.check(reads=True)
        self._doing = "predicting"
        return self.recommender.predict(data)

    def stop(self) -> None:
        """Ends the run after this step, as if it were the last: to be called by a callback.

        It evaluates and saves, and `fit` returns the result. Of several ranks one may call it: all end at
        the same step, some steps later.
        """
        self._control.stop()

    def request_checkpoint(self) -> None:
        """Writes a checkpoint after this step: to be called by a callback; of several ranks by each."""
        self._control.request_checkpoint()

    @refusing_unknown(_advice_on)
    def fit(
        self,
        *,
        verbose: bool | None = None,
        callbacks: Sequence[Callback] = (),
        signals: Callable[[], int] | None = None,
        evaluate: Evaluate | None = None,
    ) -> Result:
        """Trains to the end, goes back to the best checkpoint, and reports on the test part.

        verbose: whether to show a bar, and a line for each evaluation, on standard error; None: on a
            terminal and in a notebook, unless the Trainer has a `progress`. Where there is no terminal,
            True prints the lines alone.
        callbacks: called after each step and each evaluation.
        signals: what this rank requests of all when a batch is planned (`RankSignals`); None: to stop
            after Ctrl-C, and a checkpoint where a file store needs one.
        evaluate: in place of `train.loop.evaluate.evaluate`: called with a part and a progress function.

        Tables in a file store can be read afterwards, no longer trained.
        Ctrl-C (or SIGTERM) saves a checkpoint after the current step and raises `Interrupted`; a
        second one says what is still being done, and a third one interrupts at once.
        """
        _check_samples(self)
        self._end.check()
        check_callbacks(callbacks)
        keep_freed_memory()
        self._control = _control_of(self)
        self.evaluation = evaluate or self.evaluation
        self._lock.take()
        self.callbacks = (*callbacks, *self.steps.batches.callbacks)
        is_first_fit = self._end.result is None
        self._end.is_fitting, self._end.result = True, None
        with ExitStack() as stack:
            stack.push(lambda kind, error, trace: self._end.note(self, error))
            stack.callback(setattr, self._control, "is_interrupted", lambda: False)
            stack.callback(self._lock.release)
            request = stack.enter_context(stop_signals(partial(_described, self)))
            self._control.is_interrupted, self._control.noticed_at = request, lambda: request.noticed_at
            self.checkpoints.writer.stops_with(request)
            listeners = [partial(callback.on_log, self) for callback in listeners_of(callbacks)]
            stack.enter_context(self.reports.opened(self.run, verbose, listeners))
            if self.is_first:
                stack.callback(self._trace.write)
            stack.callback(self.checkpoints.writer.close)
            # After an error the lanes of a device may still read what the step has left.
            stack.callback(self.recommender.device.synchronize)
            stack.callback(self.embedding.threads.close)
            stack.callback(self.cached_tables.stop_writing)
            stack.callback(self.recommender.mode.put, training=False)
            if is_first_fit:
                self.cached_tables.warm()
            with self._end.explained(self):
                _train_all(self, stack, signals or self._control.signals)
                self._lock.check()
                return self._end.finish(self)

    def fit_stream(
        self,
        source: EventSource | str,
        stream: StreamConfig | None = None,
        *,
        labels: EventSource | str | None = None,
        on_alarm: OnAlarm | None = None,
        repeat: Path | str | None = None,
        verbose: bool | None = None,
        callbacks: Sequence[Callback] = (),
    ) -> Result:
        """Trains on events as they come, to the end of the stream; returns the last window's metrics as
        those of validation.

        Each event is scored, then trained on once, also where the run is killed and resumed. Its values
        are encoded by the vocabularies of the data. Of several ranks all call it; the first one reads.

        source: a source, or a text that names it, such as folder:PATH; see `hotrows.data.streams`.
        labels: the source of labels that come later than their impressions; `stream` says how they are
            joined (join_on, label_window, delayed_labels).
        on_alarm: called with an `Alarm`; None: the run saves itself, and the alarm is raised.
        repeat: the folder of a run whose batches are made again, of the same events.
        verbose, callbacks: see `Trainer.fit`.
        """
        self._end.check()
        steps, checkpoints = self.steps, self.checkpoints
        window = checkpoints.window
        with StreamRun(self.run, steps, source, stream, on_alarm, repeat, window, labels) as running:
            checkpoints.window, checkpoints.open_window = {}, running.tensors
            self.validation = running
            result = self.fit(verbose=verbose, callbacks=(running, *callbacks))
        if running.alarm is not None:
            raise running.alarm
        return result

    def _train(self, runner: Runner) -> bool:
        """Trains on the batches of the runner, with all that is due between two of them; returns whether
        training is over, or other shares are due."""
        while True:
            if self._evaluation_is_due():
                self._write_interval()
                with runner.paused():
                    self.validation.validate(self)
                    self._save()
            elif self._control.checkpoint_is_due(self.state.step):
                with runner.paused():
                    self._save()
            if self.state.step >= self._last_step or stops_early(self.state, self.config):
                return True
            if self.state.step >= self.steps.batches.until:
                next(runner, None)  # until every batch has left
                return False
            self._control.stop_if_interrupted()
            if not self.steps.batches.wait(_TICK, self._control):
                for callback in self.callbacks:
                    callback.on_idle(self)
            elif self.state.step < self._last_step:  # else the stream has ended meanwhile
                self._train_step(runner)

    def _train_step(self, runner: Runner) -> None:
        self._doing = "training"
        self.reports.begin_step(runner)
        begin = time.perf_counter()
        work = next(runner)
        self._control.hear(work.item.plan.signals)
        if self._control.has_ended:
            return
        ready = time.perf_counter()
        self._trace.batch = work.number
        loss = self.steps.train(work, lr_scale(self.state, self.config))
        seconds, stalled = time.perf_counter() - begin, ready - begin
        self.reports.add_step(runner, work, loss, seconds, stalled)
        self._trace.end_step(begin, runner.events)
        if self.reports.interval_is_over or self._evaluation_is_due():
            self._write_interval()
        progress = self.reports.show_step()
        for callback in self.callbacks:
            callback.on_step_end(self, progress)

    def _evaluation_is_due(self) -> bool:
        return evaluation_is_due(self.state, self.config, self.reports.epoch_steps, self._last_step)

    def _save(self) -> None:
        self._doing = "writing a checkpoint"
        for callback in self.callbacks:
            callback.on_checkpoint(self)
        if self.checkpoints.save():
            self._control.has_saved()

    def _write_interval(self) -> None:
        self._lock.check()
        self.reports.write_interval()

    def _evaluation_progress(self, done: int, total: int) -> None:
        self._control.stop_if_interrupted()
        self.reports.show_evaluation(done, total)


def _train_all(trainer: Trainer, stack: ExitStack, signals: Callable[[], int]) -> None:
    """Trains to the end; callbacks are called at the begin, at the end, and as the stack ends."""
    stack.enter_context(trainer.recommender.device.ahead_of_lanes())
    callbacks = listeners_of(trainer.callbacks)
    for callback in callbacks:
        stack.push(partial(_end, trainer, callback))
        callback.on_begin(trainer)
    trainer.shares.begin()
    while not _train_until_due(trainer, signals):
        trainer.shares.change()
    for callback in callbacks:
        callback.on_training_end(trainer)


def _train_until_due(trainer: Trainer, signals: Callable[[], int]) -> bool:
    """Trains while ranks have the shares that they have; returns whether training is over."""
    with closing(trainer.steps.start(signals, trainer._trace.is_on)) as runner:
        try:
            return trainer._train(runner)
        except StopRequested:
            with runner.paused():
                trainer._end.leave(trainer, trainer._control.seconds_left(trainer.config.notice))
            raise
        except BaseException:
            runner.abandon()
            raise
        finally:
            trainer._trace.events += runner.events


def _end(trainer: Trainer, callback: Callback, _: Any, error: BaseException | None, *__: Any) -> None:
    callback.on_end(trainer, None if error else trainer._end.result, error)


def _check_samples(trainer: Trainer) -> None:
    """Raises ValueError for samples that cannot be trained on, not here, or not by this loss."""
    if not torch.is_grad_enabled():
        raise ValueError("PyTorch records no gradients here: call fit outside of torch.no_grad()")
    if not trainer.reports.epoch_steps:
        raise ValueError(f"{trainer.data.path} has no samples: train on a stream (--stream, fit_stream)")
    is_of_streams = any(loss.is_of_streams for loss in trainer.steps.recommender.losses)
    if is_of_streams and not isinstance(trainer.validation, StreamRun):
        raise ValueError(
            "the loss fake_negative is for a stream in which each positive was a negative before: "
            "train on prepared data with log_loss, and begin the stream with --init-from"
        )


def _control_of(trainer: Trainer) -> RunControl:
    return RunControl(trainer.ranks, trainer.cached_tables, trainer.config.checkpoint_every)


def _described(trainer: Trainer) -> str:
    """The work under way, for messages to who waits for it."""
    where = f"{trainer._doing} after {trainer.steps.place}"
    if trainer.ranks.num_ranks == 1:
        return where
    patience = f"{trainer.config.timeout:g} s"
    return f"{where} on {trainer.ranks.num_ranks:,} ranks (a silent one is given up after {patience})"
