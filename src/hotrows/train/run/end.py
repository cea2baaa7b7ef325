"""How the fit of a run ends: with a result, or so that another object goes on with the run."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hotrows.engine.distributed.job import RankLost
from hotrows.train.callback import StopRequested
from hotrows.train.loop.evaluate import HeldOut
from hotrows.train.run import folder as run_folder
from hotrows.train.run.signals import Interrupted
from hotrows.train.run.state import stops_early
from hotrows.train.telling import notes, pictures
from hotrows.train.telling.result import Result

_TRY_AGAIN = 75  # the exit code: the same command with --resume goes on
_OF_NOTICE = 0.8  # of the seconds of a notice, those in which all is to be done


class RunEnd:
    """How `Trainer.fit` has ended in this object.

    in_file: rows are in a file store, which is closed after an error. is_fitting: it has not ended yet.
    result: of the last one that came to its end.
    """

    def __init__(self, run: Path, in_file: bool) -> None:
        self._run, self._in_file, self._how = str(run), in_file, ""
        self.is_fitting, self._exit_code = False, Interrupted.exit_code
        self.result: Result | None = None

    def check(self, reads: bool = False) -> None:
        """Raises ValueError where this object can train no further, or has no rows to read."""
        cannot_read = self._in_file and self.result is None
        how = "is under way" if self.is_fitting and not reads else self._how
        if how and (cannot_read or not reads):
            raise ValueError(
                f"the fit of {self._run} {how}: go on in a new object, Trainer(data, config, "
                f"{self._run!r}, resume=True).fit(), or read its last checkpoint, "
                f"load_run({self._run!r}, 'last')"
            )

    def note(self, trainer: Any, error: BaseException | None) -> None:
        """Notes how `fit` ended, where this object lacks what the last checkpoint has to go on with."""
        self.is_fitting = False
        is_whole = trainer.state.step >= trainer.total_steps or stops_early(trainer.state, trainer.config)
        if error is not None or not is_whole or not isinstance(trainer.validation, HeldOut):
            words = f"{type(error).__name__}: {error}".removesuffix(": ")
            why = f" by {words}" if isinstance(error, Exception) else ""
            self._how = f"ended after {trainer.steps.place}{why}"

    def leave(self, trainer: Any, seconds: float | None) -> None:
        """Saves before the run stops; where the machine is gone in so many seconds, what can be saved."""
        writer, end = trainer.checkpoints.writer, None
        if seconds is not None:
            self._exit_code, end = _TRY_AGAIN, time.monotonic() + seconds * _OF_NOTICE
        if end is None or writer.leaves_within(end):
            trainer._save()
        trainer._doing = "sending the checkpoint"
        writer.send(end)

    @contextmanager
    def explained(self, trainer: Any) -> Iterator[None]:
        """Makes the error of a run that stops say which checkpoint it can go on from."""
        try:
            yield
        except StopRequested:
            stopped = Interrupted(f"stopped after {trainer.steps.place}; {trainer.checkpoints.safe()}")
            stopped.exit_code = self._exit_code
            raise stopped from None
        except RankLost as error:
            raise RankLost(f"{error}; {trainer.checkpoints.safe()}") from error

    def finish(self, trainer: Any) -> Result:
        """Reads the best checkpoint back, reports on it, and writes the result into the run's folder."""
        trainer.checkpoints.load_best()
        result = Result(
            run=trainer.run,
            steps=trainer.state.step,
            best_step=trainer.state.best_step if trainer.state.best else trainer.state.step,
            stopped_early=trainer.stopped_early,
            model=trainer.given_model,
            samples_per_second=trainer.reports.samples_per_second(),
            **trainer.validation.results(trainer),
        )
        if trainer.is_first:
            notes.of_metrics(trainer.validation.name, result.validation)
            notes.of_metrics("test", result.test)
            notes.of_pins(trainer.cached_tables)
            run_folder.write_json(trainer.run / "result.json", result.to_json())
            pictures.draw_run(trainer.run)
        trainer._doing = "sending the run"
        trainer.checkpoints.writer.send()
        self.result = result
        return result
