"""Callbacks: code of a user's that training calls, and what it may request of training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hotrows.planning.routing import RankSignals

if TYPE_CHECKING:
    from hotrows.metrics import Metrics
    from hotrows.train.progress import Progress, Result
    from hotrows.train.trainer import Trainer


class Callback:
    """Code of a user's that `Trainer.fit` calls; a subclass overrides the methods that it needs.

    `trainer.stop()` ends the run after this step. An error leaves the run as it is: with `resume=True`
    it goes on from its last checkpoint. Of several ranks each calls its own callbacks, with equal
    metrics; one of them may stop all, and none should raise an error alone.
    """

    def begin(self, trainer: Trainer) -> None:
        """Called before the first batch is planned; a resumed run is then at its checkpoint."""

    def end(self, trainer: Trainer) -> None:
        """Called once training is over, before it goes back to the best checkpoint; not where it is
        interrupted."""

    def after_fit(self, trainer: Trainer, result: Result) -> None:
        """Called with the result that `fit` returns, once the folder of the run has it."""

    def close(self) -> None:
        """Called when `fit` ends, however it ends."""

    def after_step(self, trainer: Trainer, progress: Progress) -> None:
        """Called after each step; the loss and speed in `progress` are those of the last interval.

        On a stream, `trainer.state.stream` says how many events were trained, and the newest event time.
        """

    def after_evaluation(self, trainer: Trainer, metrics: Metrics) -> None:
        """Called after each evaluation of the validation part, before its checkpoint is written; on a
        stream, of each window of events."""

    def log_metrics(self, trainer: Trainer, kind: str, step: int, numbers: Mapping[str, float]) -> None:
        """Called with the numbers of each line of metrics.jsonl, on the first rank alone.

        kind: `train`, `evaluation` or `window`; those of a label are named tasks/LABEL/...
        """

    def before_checkpoint(self, trainer: Trainer) -> None:
        """Called before a checkpoint is written."""

    def while_idle(self, trainer: Trainer) -> None:
        """Called several times a second while a stream has no event to train on."""


class Requests:
    """The requests that a callback may make of its run."""

    _stop_called = _checkpoint_requested = False

    def stop(self) -> None:
        """Ends the run after this step, as if it were the last: to be called by a callback.

        It evaluates and saves, and `fit` returns the result. Of several ranks one may call it: all end at
        the same step, some steps later.
        """
        self._stop_called = True

    def request_checkpoint(self) -> None:
        """Writes a checkpoint after this step: to be called by a callback; of several ranks by each."""
        self._checkpoint_requested = True

    def _own_signals(self: Any) -> int:
        is_requested = self.cached_tables is not None and self.cached_tables.requests_checkpoint()
        stop = RankSignals.STOP if self._stop_requested() else RankSignals(0)
        stop |= RankSignals.FINISH if self._stop_called else RankSignals(0)
        return stop | (RankSignals.CHECKPOINT if is_requested else RankSignals(0))

    def _checkpoint_is_due(self: Any) -> bool:
        every = self.config.checkpoint_every
        periodic = every is not None and self.state.step > 0 and self.state.step % every == 0
        return periodic or self._checkpoint_requested
