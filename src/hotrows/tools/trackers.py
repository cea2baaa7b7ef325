"""Trackers: callbacks that log a run to MLflow or Weights & Biases.

    trainer.fit(callbacks=[MLflow(experiment="clicks")])         # or WandB(project="clicks")

Logged are the settings, the numbers of each line of metrics.jsonl (`train/loss`, `evaluation/auc`), the
metrics of the best checkpoint (`best/test/auc`), and the small files of the run's folder. Where a service
is and who logs in there is said to its own library: MLFLOW_TRACKING_URI, WANDB_MODE, WANDB_API_KEY. A run
that is resumed goes on in the run of the service that it had. Of several ranks the first one logs.

A thread sends, so that training never waits for a service: lines that it does not take in time are left
out, and warned of once; metrics.jsonl has them all.
"""

from __future__ import annotations

import json
import logging
import math
import os
import queue
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from hotrows.runtime.atomic_files import write_json
from hotrows.runtime.background import Worker
from hotrows.runtime.extras import needs
from hotrows.runtime.suggestions import one_line
from hotrows.train.callback import Callback, Training
from hotrows.train.run import folder as run_folder
from hotrows.train.telling.metrics_log import flat, numbers_of
from hotrows.train.telling.result import Result
from hotrows.version import VERSION

log = logging.getLogger("hotrows")

_IDS = "trackers.json"  # in the folder of a run: its id at each service
_MOST_WAITING = 1000  # lines of metrics that a service has not taken yet
_PATIENCE = 60.0  # seconds at the end of a run without anything that the service takes
_FILES = ("config.json", "schema.json", "environment.json", "metrics.jsonl", "result.json", "report.svg")


class Tracker(Callback, ABC):
    """The base of trackers; a subclass calls its service.

    `_open` is called by training; all else by the thread that sends.
    """

    name = ""  # in trackers.json, and of `hotrows train --tracker`

    def __init__(self) -> None:
        self._sender: _Sender | None = None
        self._is_done = False

    @abstractmethod
    def _open(self, run: Path, known: str | None, settings: Mapping[str, Any]) -> str:
        """Begins a run of the service, or goes on with the `known` one; returns its id."""

    @abstractmethod
    def _send(self, numbers: Mapping[str, float], step: int) -> None:
        """Logs finite numbers by their names."""

    @abstractmethod
    def _send_result(self, numbers: Mapping[str, float], step: int, files: Sequence[Path]) -> None:
        """Logs the numbers of a finished run, and files of its folder."""

    @abstractmethod
    def _end_run(self, is_done: bool) -> None:
        """Ends the run of the service, as finished or as failed."""

    def on_begin(self, trainer: Training) -> None:
        if not trainer.is_first:
            return
        path = trainer.run / _IDS
        known = run_folder.read_json(path) if path.exists() else {}
        facts = {
            "run": str(trainer.run.resolve()),
            "hotrows": VERSION,
            "rows": trainer.data.parts["train"].rows,
            "fingerprint": trainer.data.fingerprint,
        }
        settings = {**json.loads(trainer.config.to_json()), **facts}
        try:
            opened = self._open(trainer.run, known.get(self.name), settings)
        except Exception as error:
            raise ValueError(
                f"{self.name} did not begin a run: {one_line(error)}; see that its service answers and "
                f"lets you in, or train without this tracker"
            ) from error
        self._is_done, self._sender = False, _Sender(self.name)
        write_json(path, {**known, self.name: opened})

    def on_log(self, trainer: Training, kind: str, step: int, numbers: Mapping[str, float]) -> None:
        named = {f"{kind}/{name}": value for name, value in numbers.items() if math.isfinite(value)}
        if self._sender is not None:
            self._sender.send(f"the metrics of step {step:,}", partial(self._send, named, step))

    def on_end(self, trainer: Training, result: Result | None, error: BaseException | None) -> None:
        if self._sender is None:
            return
        if result is not None:
            self._hand_over(self._sender, trainer.run, result)
        sender, self._sender = self._sender, None
        sender.end(lambda: self._end_run(self._is_done))

    def _hand_over(self, sender: _Sender, run: Path, result: Result) -> None:
        metrics = {"validation": result.validation, "test": result.test}
        shown: dict[str, Any] = {
            part: value.to_json() for part, value in metrics.items() if value is not None
        }
        shown |= {"step": result.best_step, "samples_per_second": result.samples_per_second}
        numbers = {n: value for n, value in numbers_of({"best": shown}).items() if math.isfinite(value)}
        files = [run / name for name in _FILES if (run / name).exists()]

        def send() -> None:
            self._send_result(numbers, result.steps, files)
            self._is_done = True

        sender.send("the result", send)


class _Sender:
    """A thread that sends to a service, in order; the first problem is warned of."""

    def __init__(self, name: str) -> None:
        self._name, self._warned = name, False
        self._work: queue.SimpleQueue[tuple[str, Callable[[], None]] | None] = queue.SimpleQueue()
        self._num_sent = 0
        self._worker = Worker("hotrows tracking", self._run, lambda: self._work.put(None))

    def send(self, what: str, call: Callable[[], None]) -> None:
        """Has something sent, unless too much waits; what: it in words."""
        if self._work.qsize() < _MOST_WAITING:
            self._work.put((what, call))
        else:
            self._warn(what, f"{_MOST_WAITING:,} lines wait for it")

    def end(self, call: Callable[[], None]) -> None:
        """Sends the last, and waits for the thread as long as the service takes anything."""
        self._work.put(("the end of the run", call))
        self._work.put(None)
        num_sent = -1
        while num_sent < self._num_sent:
            num_sent = self._num_sent
            if self._worker.wait(_PATIENCE):
                return
        self._warn("the end of the run", f"nothing for {_PATIENCE:g} s")

    def _run(self) -> None:
        while (item := self._work.get()) is not None:
            what, call = item
            try:
                call()
                self._num_sent += 1
            except Exception as error:
                self._warn(what, one_line(error))

    def _warn(self, what: str, why: str) -> None:
        if not self._warned:
            log.warning(f"{self._name} did not take {what}; metrics.jsonl has all: {why}")
        self._warned = True


class MLflow(Tracker):
    """Logs to MLflow.

    experiment: its name (default: MLFLOW_EXPERIMENT_NAME, else hotrows).
    uri: of the store, such as sqlite:///mlflow.db (default: as MLflow has it). Within
    `mlflow.start_run()` it logs to that run, and leaves it open. Characters that MLflow does not take in
    names become _: ndcg@10 is ndcg_10.
    """

    name = "mlflow"

    def __init__(self, experiment: str | None = None, *, uri: str | None = None) -> None:
        super().__init__()
        with needs("--tracker mlflow", "mlflow-skinny", "sqlalchemy", "alembic", "sqlparse"):
            import mlflow
        self._mlflow, self._experiment, self._uri = mlflow, experiment, uri

    def _open(self, run: Path, known: str | None, settings: Mapping[str, Any]) -> str:
        mlflow = self._mlflow
        self._client = mlflow.MlflowClient(self._uri)
        active = mlflow.active_run()
        self._is_ours = active is None
        if active is not None:
            self._id = active.info.run_id
        elif known is not None:
            self._id = known
            self._client.update_run(known, status="RUNNING")
        else:
            self._id = self._client.create_run(self._experiment_id(), run_name=run.name).info.run_id
        before = self._client.get_run(self._id).data.params  # which never change
        texts = {_mlflow_name(name): str(value)[:6000] for name, value in flat(settings)}
        params = [mlflow.entities.Param(*pair) for pair in texts.items() if pair[0] not in before]
        for first in range(0, len(params), 100):  # as many as it takes at once
            self._client.log_batch(self._id, params=params[first : first + 100])
        return str(self._id)

    def _experiment_id(self) -> str:
        name = self._experiment or self._mlflow.environment_variables.MLFLOW_EXPERIMENT_NAME.get()
        name = name or "hotrows"
        experiment = self._client.get_experiment_by_name(name)
        return experiment.experiment_id if experiment else self._client.create_experiment(name)

    def _send(self, numbers: Mapping[str, float], step: int) -> None:
        now = int(time.time() * 1000)
        metric = self._mlflow.entities.Metric
        metrics = [metric(_mlflow_name(name), value, now, step) for name, value in numbers.items()]
        self._client.log_batch(self._id, metrics=metrics)

    def _send_result(self, numbers: Mapping[str, float], step: int, files: Sequence[Path]) -> None:
        self._send(numbers, step)
        for file in files:
            self._client.log_artifact(self._id, str(file))

    def _end_run(self, is_done: bool) -> None:
        if self._is_ours:
            self._client.set_terminated(self._id, "FINISHED" if is_done else "FAILED")


def _mlflow_name(name: str) -> str:
    return re.sub(r"[^\w\-. :/]", "_", name)


class WandB(Tracker):
    """Logs to Weights & Biases.

    project: its name (default: WANDB_PROJECT, else hotrows). Without a network WANDB_MODE=offline writes
    into the folder wandb, which `wandb sync` sends later. Where the code has begun a run by `wandb.init`,
    it logs to that run, and leaves it open. The axis of its charts is `step`, the steps of training.
    """

    name = "wandb"

    def __init__(self, project: str | None = None) -> None:
        super().__init__()
        with needs("--tracker wandb", "wandb"):
            import wandb
        self._wandb, self._project = wandb, project

    def _open(self, run: Path, known: str | None, settings: Mapping[str, Any]) -> str:
        active = self._wandb.run
        self._is_ours = active is None
        if active is None:
            project = self._project or (None if "WANDB_PROJECT" in os.environ else "hotrows")
            resume = "allow" if known else None
            active = self._wandb.init(project=project, name=run.name, id=known, resume=resume)
        self._run = active
        self._run.config.update(dict(settings), allow_val_change=True)
        self._run.define_metric("*", step_metric="step")  # else a resumed run could not log a step again
        return str(self._run.id)

    def _send(self, numbers: Mapping[str, float], step: int) -> None:
        self._run.log({**numbers, "step": step})

    def _send_result(self, numbers: Mapping[str, float], step: int, files: Sequence[Path]) -> None:
        self._run.summary.update(dict(numbers))
        for file in files:
            self._run.save(str(file), base_path=str(file.parent), policy="now")

    def _end_run(self, is_done: bool) -> None:
        if self._is_ours:
            self._run.finish(exit_code=0 if is_done else 1)


BY_NAME: Mapping[str, type[Tracker]] = {tracker.name: tracker for tracker in (MLflow, WandB)}
__all__ = ["MLflow", "Tracker", "WandB"]
