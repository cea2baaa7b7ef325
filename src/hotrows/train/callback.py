"""Callbacks: code of a user's that training calls, and what it may request of training."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from hotrows.data import EncodedData
from hotrows.engine.cached_tables import CachedTables
from hotrows.engine.distributed.comm import Ranks
from hotrows.engine.embedding import Embedding
from hotrows.engine.planning.routing import RankSignals
from hotrows.models import Model
from hotrows.runtime.suggestions import did_you_mean
from hotrows.train.config import TrainConfig
from hotrows.train.loop.predictor import Predictor
from hotrows.train.metrics import Metrics
from hotrows.train.run.state import RunState
from hotrows.train.telling.progress import Progress
from hotrows.train.telling.result import Result


class Training(Protocol):
    """The part of a `Trainer` that callbacks may read, and what they may request of it."""

    run: Path
    data: EncodedData
    config: TrainConfig
    ranks: Ranks
    recommender: Predictor
    model: Model
    embedding: Embedding
    cached_tables: CachedTables
    steps: Any  # its StepTrainer

    @property
    def state(self) -> RunState: ...

    @property
    def is_first(self) -> bool: ...

    def evaluate(self, part: str) -> Metrics: ...

    def predict(self, data: Any) -> Any: ...

    def stop(self) -> None: ...

    def request_checkpoint(self) -> None: ...


class Callback:
    """Code of a user's that `Trainer.fit` calls; a subclass overrides the methods that it needs.

    `trainer.stop()` ends the run after this step. An error leaves the run as it is: with `resume=True`
    it goes on from its last checkpoint. Of several ranks each calls its own callbacks, with equal
    metrics; one of them may stop all, and none should raise an error alone. A method `on_...` that
    training does not call is a ValueError when the class is defined.

    >>> class Early(hotrows.Callback):
    ...     def on_evaluation_end(self, trainer, metrics):
    ...         if metrics.auc < 0.5:
    ...             trainer.stop()
    >>> trainer = hotrows.Trainer(data, hotrows.TrainConfig(steps=2), run=f"{folder}/run")
    >>> trainer.fit(callbacks=[Early()]).steps
    2
    """

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        known = [name for name in vars(Callback) if name.startswith("on_")]
        for name in vars(cls):
            if name.startswith("on_") and name not in known:
                hint = did_you_mean(name, known) or f"; training calls {', '.join(known)}"
                raise ValueError(f"{cls.__name__}.{name} is never called{hint}")

    def on_begin(self, trainer: Training) -> None:
        """Called before the first batch is planned; a resumed run is then at its checkpoint."""

    def on_step_end(self, trainer: Training, progress: Progress) -> None:
        """Called after each step; the loss and speed in `progress` are those of the last interval.

        On a stream, `trainer.state.stream` says how many events were trained, and the newest event time.
        """

    def on_evaluation_end(self, trainer: Training, metrics: Metrics) -> None:
        """Called after each evaluation of the validation part, before its checkpoint is written; on a
        stream, of each window of events."""

    def on_end(self, trainer: Training, result: Result | None, error: BaseException | None) -> None:
        """Called when `fit` ends: with the result that it returns, or with the error that it raises.

        result: None after an error, or Ctrl-C. The folder of the run has the result by then.
        """

    def on_log(self, trainer: Training, kind: str, step: int, numbers: Mapping[str, float]) -> None:
        """Called with the numbers of each line of metrics.jsonl, on the first rank alone.

        kind: `train`, `evaluation` or `window`; those of a label are named tasks/LABEL/...
        """

    def on_checkpoint(self, trainer: Training) -> None:
        """Called before a checkpoint is written."""

    def on_training_end(self, trainer: Training) -> None:
        """Called after the last step, before the best checkpoint is read back; not after an error."""

    def on_idle(self, trainer: Training) -> None:
        """Called several times a second while a stream has no event to train on."""


def check_callbacks(callbacks: Sequence[Callback]) -> None:
    """Raises ValueError for what training would never call."""
    known = [name for name in vars(Callback) if name.startswith("on_")]
    if not isinstance(callbacks, Iterable):
        raise ValueError(f"callbacks must be a list of hotrows.Callback objects, not {callbacks!r}")
    for callback in callbacks:
        if not isinstance(callback, Callback):
            raise ValueError(f"callbacks must be objects of hotrows.Callback, not {callback!r}")
        kind = type(callback)
        if all(getattr(kind, n) is getattr(Callback, n) and n not in vars(callback) for n in known):
            raise ValueError(f"{kind.__name__} has none of the methods that training calls")


def listeners_of(callbacks: Sequence[Callback]) -> list[Callback]:
    """Selects those callbacks that are of the class `Callback`: others lack some of its methods."""
    return [callback for callback in callbacks if isinstance(callback, Callback)]


class RunControl:
    """Requests to end a run, or to write a checkpoint: of callbacks, of Ctrl-C, and of file stores.

    Those of a rank go to all with the next batch that is planned, so that all act at one step; a rank
    that trains by itself acts at once. is_interrupted: whether Ctrl-C was pressed. has_ended: whether
    `stop` was called, and all ranks know it.
    """

    def __init__(self, ranks: Ranks, cached_tables: CachedTables, every: int | None) -> None:
        self._ranks = ranks
        self._is_alone, self._cached_tables, self._every = ranks.num_ranks == 1, cached_tables, every
        self._stop_called = self.has_ended = self._checkpoint_requested = False
        self.is_interrupted: Callable[[], bool] = lambda: False
        self.noticed_at: Callable[[], float | None] = lambda: None

    def stop(self) -> None:
        self._stop_called = True
        self.has_ended |= self._is_alone

    def request_checkpoint(self) -> None:
        self._checkpoint_requested = True

    def signals(self) -> int:
        """The requests of this rank."""
        signals = RankSignals(0)
        if self.is_interrupted():
            signals |= RankSignals.STOP
        if self._stop_called:
            signals |= RankSignals.FINISH
        if self._cached_tables.requests_checkpoint():
            signals |= RankSignals.CHECKPOINT
        return signals

    def hear(self, signals: int) -> None:
        """Notes what ranks requested when a batch was planned; StopRequested where that is to save all
        and stop."""
        if signals & RankSignals.STOP:
            raise StopRequested
        self.has_ended |= bool(signals & RankSignals.FINISH)
        self._checkpoint_requested |= bool(signals & RankSignals.CHECKPOINT)

    def seconds_left(self, notice: float | None) -> float | None:
        """Collective: the seconds until the first of the machines is taken away, which were `notice` when
        it said so (SIGTERM); None: none has."""
        begun = self.noticed_at()
        left = None if notice is None or begun is None else notice - (time.monotonic() - begun)
        return min((s for s in self._ranks.gather_objects(left) if s is not None), default=None)

    def stop_if_interrupted(self) -> None:
        """Raises StopRequested after Ctrl-C; ranks stop together, with a batch."""
        if self._is_alone and self.is_interrupted():
            raise StopRequested

    def checkpoint_is_due(self, step: int) -> bool:
        periodic = self._every is not None and step > 0 and step % self._every == 0
        return periodic or self._checkpoint_requested

    def has_saved(self) -> None:
        """Says that a checkpoint was written, as requested."""
        self._checkpoint_requested = False


class StopRequested(Exception):
    """Leaves the loop after Ctrl-C."""
