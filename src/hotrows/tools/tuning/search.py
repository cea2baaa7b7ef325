"""Search for quality: the settings whose model scores best on the validation part, by Optuna.

    found = search(data, TrainConfig(), "runs/search", metric="auc", seconds=1800)
    Trainer(found.data, found.config, run="runs/a").fit()

Trials run one after the other: the defaults first, then some at random, then what TPE draws. One below
the median of the earlier ones after as many epochs ends there. The folder has Optuna's journal and the
run of the best trial. A search that was stopped resumes in it, also within a trial, and makes the trials
that it would have made. No trial sees the test part: it is read once, for the chosen run.
"""

from __future__ import annotations

import json
import logging
import math
import os
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hotrows.data import EncodedData, Part
from hotrows.losses import parse_ranking
from hotrows.runtime.atomic_files import make_folder
from hotrows.runtime.extras import needs
from hotrows.runtime.locks import Lock
from hotrows.runtime.suggestions import one_line
from hotrows.tools.tuning.search_space import SearchError, SearchSpace
from hotrows.train.callback import Callback
from hotrows.train.config import TrainConfig
from hotrows.train.loop.predictor import load_run
from hotrows.train.loop.trainer import Trainer
from hotrows.train.metrics import Metrics
from hotrows.train.metrics.result import LOWER_IS_BETTER
from hotrows.train.run.signals import Interrupted
from hotrows.train.start.defaults import opened

JOURNAL = "search.journal"
_RANDOM, _UNPRUNED, _HALF = 8, 4, 2  # trials; quarters of an epoch that each trial has
_MOST_FAILED = 5  # trials, if none does better
log = logging.getLogger("hotrows")


@dataclass(frozen=True)
class Found:
    """The result of a search.

    config, data: what to train, and on what. run: the best trial's; test: its metrics on the test part.
    trials: Optuna's, the best first, those without a value last. `params` are what was chosen, rates as
        times the default; `user_attrs` has turn, config, seconds, error (of the value) and note.
    """

    metric: str
    config: TrainConfig
    data: Path
    run: Path
    trials: tuple[Any, ...]
    test: Metrics | None


def search(
    data: EncodedData | Path | str,
    config: TrainConfig | None = None,
    run: Path | str = "runs/search",
    *,
    metric: str = "auc",
    seconds: float = 1800.0,
    trials: int | None = None,
    raw: Mapping[str, Any] | None = None,
    progress: Callable[[str, float, float], None] | None = None,
) -> Found:
    """Returns the best of the trials that fit into the time, by the validation part.

    config: its settings stay; of what it leaves open, a search chooses the model, the rates of rows and
        of the dense part, and the model's dim, dropout and crosses.
    run: folder of the search, which resumes if it has begun there.
    metric: of the validation part, such as auc, log_loss, gauc, rmse or ndcg@10.
    seconds: the time for all trials, those of earlier calls included.
    trials: the most trials, those of earlier calls included (default: no limit).
    raw: arguments of `prepare` with the raw rows that data was prepared from, such as
        {"raw": "clicks.csv"}: min_count is then chosen too.
    progress: called with what is tried, the seconds spent, and those in all.
    """
    with needs("a search for quality", "optuna"):
        import optuna
    source, config, folder = opened(data), config or TrainConfig(), Path(run)
    if not source.parts["validation"].rows:
        raise ValueError(
            f"a search chooses by the validation part, and {source.path} has none: prepare the data with "
            f"--split fraction:0.8,0.1,0.1"
        )
    if metric.partition("@")[0] in ("ndcg", "hit", "mrr"):
        names = [*parse_ranking(metric), *(parse_ranking(config.metrics) if config.metrics else ())]
        config = replace(config, metrics=",".join(dict.fromkeys(names)))
    make_folder(folder)
    lock, level, of_optuna = Lock(folder), log.level, optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        space = SearchSpace(source, config, folder, raw or {})
        running = _Search(optuna, space, config, folder, metric)
        running.begin({"data": source.fingerprint, "models": [*space.models], "metric": metric})
        running.run(seconds, trials or 1 << 62, progress or (lambda what, done, total: None))
        return running.result()
    finally:
        optuna.logging.set_verbosity(of_optuna)
        log.setLevel(level)
        lock.release()


class _Search:
    """A study of Optuna, and the runs of its trials."""

    def __init__(
        self, optuna: Any, space: SearchSpace, config: TrainConfig, folder: Path, metric: str
    ) -> None:
        self._optuna, self._space, self._config = optuna, space, config
        self._folder, self._metric = folder, metric
        backend = optuna.storages.journal.JournalFileBackend(str(_whole(folder / JOURNAL)))
        self._study = optuna.create_study(
            storage=optuna.storages.JournalStorage(backend),
            study_name="search",
            direction="minimize" if metric in LOWER_IS_BETTER else "maximize",
            pruner=optuna.pruners.MedianPruner(n_startup_trials=_UNPRUNED, n_warmup_steps=_HALF),
            load_if_exists=True,
        )

    def begin(self, facts: dict[str, Any]) -> None:
        """Begins the search, or goes on with it; ValueError if the folder has one of other facts."""
        facts = {**facts, **json.loads(self._config.to_json())}
        before = self._study.user_attrs.get("facts", facts)
        for name in facts:
            if before[name] != facts[name]:
                raise ValueError(
                    f"{self._folder} has a search with {name} {before[name]!r:.200}, not "
                    f"{facts[name]!r:.200}: name another folder, or delete that one"
                )
        self._study.set_user_attr("facts", facts)
        if "min_count" in self._space.default:
            self._space.data_of({"min_count": 2})  # what is wrong with the files is wrong for all trials
        if not self._trials():
            self._study.enqueue_trial(self._space.default)
        for trial in self._trials():
            if trial.state.name == "RUNNING":  # it was interrupted
                self._study.tell(trial.number, state=self._optuna.trial.TrialState.FAIL)
                self._study.enqueue_trial(trial.params, user_attrs={"resumes": trial.number})

    def run(self, seconds: float, most: int, progress: Callable[[str, float, float], None]) -> None:
        """Makes trials until there are as many, or the time is spent."""
        while self._spent() < seconds and len(ended := self._ended()) < most:
            if len(ended) >= _MOST_FAILED and not self._best():
                raise ValueError(
                    f"the first {len(ended)} trials failed; the last one {ended[-1].user_attrs['note']}"
                )
            try:
                self._make_trial(len(ended), seconds, progress)
            except _TimeIsOver:  # in a trial that the next call goes on with
                return
            self._keep_best()

    def result(self) -> Found:
        """The best trial, and how its run does on the test part."""
        best = self._best()
        if best is None:
            raise ValueError(
                f"no trial ended within {self._spent():,.0f} s; the same call with more time goes on in "
                f"{self._folder}"
            )
        sign = 1 if self._metric in LOWER_IS_BETTER else -1
        trials = sorted(self._ended(), key=lambda t: math.inf if t.user_attrs["note"] else sign * t.value)
        config = TrainConfig.from_json(best.user_attrs["config"])
        data, run = self._space.data_of(best.params), self._run_of(best)
        has_test = bool(data.parts["test"].rows)
        test = load_run(run, trust=True).evaluate(data.parts["test"]) if has_test else None
        return Found(self._metric, config, data.path, run, tuple(trials), test)

    def _make_trial(
        self, turn: int, seconds: float, progress: Callable[[str, float, float], None]
    ) -> None:
        """Makes a trial, and notes how it ended; one that is interrupted has no note."""
        # Each turn has a seed of its own: a search that was stopped draws what it would have drawn.
        seed = self._config.seed * 1_000_003 + turn
        self._study.sampler = self._optuna.samplers.TPESampler(n_startup_trials=_RANDOM, seed=seed)
        trial, states = self._study.ask(), self._optuna.trial.TrialState
        chosen, best = self._space.suggest(trial), self._best()
        trial.set_user_attr("turn", turn)
        log.setLevel(logging.ERROR if turn else logging.WARNING)  # warnings of the first run hold for all
        what = f"trial {turn}: {chosen['model']}" + (f", best {best.value:.4f}" if best else "")
        begin, before = time.perf_counter(), self._spent()

        def check_time() -> None:
            spent = before + time.perf_counter() - begin
            progress(what, min(spent, seconds), seconds)
            if spent >= seconds:
                raise _TimeIsOver

        value, state, note = None, states.FAIL, ""
        try:
            value, state = self._trained(trial, chosen, check_time), states.COMPLETE
        except KeyboardInterrupt:
            message = f"interrupted in trial {turn}; the same call goes on with it in {self._folder}"
            raise Interrupted(message) from None
        except (SearchError, _TimeIsOver):
            raise
        except self._optuna.TrialPruned as pruned:
            state, note = states.PRUNED, str(pruned)
        except Exception as error:
            note = f"failed: {one_line(error)}"
        finally:
            trial.set_user_attr("seconds", time.perf_counter() - begin)
            trial.set_user_attr("note", note)
        self._study.tell(trial, value, state=state)

    def _trained(self, trial: Any, chosen: Mapping[str, Any], check_time: Callable[[], None]) -> float:
        """Trains, and returns the value of the run's best checkpoint on the validation part."""
        config, data, run = (
            self._space.config_of(chosen),
            self._space.data_of(chosen),
            self._run_of(trial),
        )
        trial.set_user_attr("config", config.to_json())
        reported = dict[int, float]()
        if (resumed := trial.user_attrs.get("resumes")) is not None:
            reported = self._trials()[resumed].intermediate_values
            for quarter, value in reported.items():
                trial.report(value, quarter)
        config = replace(config, store=config.store.replace("file:", f"file:{run}.rows/"))  # its own
        unseen = Part(name="test", folder=data.path, schema=data.schema)
        data = replace(data, parts={**data.parts, "test": unseen})
        trainer = Trainer(data, config, run, resume=(run / "config.json").exists())

        def judge(metrics: Metrics) -> None:
            # Models may have batches of different sizes; by quarters of an epoch they compare.
            quarter = round(4 * trainer.state.step / trainer.steps.batches.epoch_steps)
            value = self._value_of(metrics)
            if quarter not in reported:
                reported[quarter] = value
                trial.report(value, quarter)
                if trial.should_prune():
                    raise self._optuna.TrialPruned(f"stopped: {value:.4f} after {quarter / 4:g} epochs")

        validation = trainer.fit(callbacks=[_Watch(check_time, judge)], verbose=False).validation
        assert validation is not None
        if validation.decides == self._metric:
            trial.set_user_attr("error", validation.chance)
        return self._value_of(validation)

    def _value_of(self, metrics: Metrics) -> float:
        value = metrics.value(self._metric)
        known = [word for word, number in metrics.shown().items() if not math.isnan(number)]
        if math.isnan(value) and known and not self._best():
            raise SearchError(f"the validation part has no {self._metric}; it has {', '.join(known)}")
        if math.isnan(value):
            raise ValueError(f"{self._metric} is nan")
        return value

    def _trials(self) -> list[Any]:
        return self._study.get_trials(deepcopy=False)

    def _ended(self) -> list[Any]:
        """The trials that have ended, but those that were interrupted: they were made again."""
        ended = [trial for trial in self._trials() if trial.state.is_finished()]
        return [t for t in ended if t.state.name == "COMPLETE" or t.user_attrs.get("note")]

    def _best(self) -> Any:
        """The trial of the best value; None if none has one."""
        is_any = any(trial.state.name == "COMPLETE" for trial in self._trials())
        return self._study.best_trial if is_any else None

    def _spent(self) -> float:
        return sum(trial.user_attrs.get("seconds", 0.0) for trial in self._trials())

    def _run_of(self, trial: Any) -> Path:
        return self._folder / f"trial-{trial.user_attrs['turn']:04d}"

    def _keep_best(self) -> None:
        """Deletes the runs of all other trials: tables are large."""
        best = self._best()
        for folder in self._folder.glob("trial-*"):
            if best is None or folder.name.partition(".")[0] != self._run_of(best).name:
                shutil.rmtree(folder)


class _Watch(Callback):
    """Ends a trial when time is over, and judges its evaluations."""

    def __init__(self, check_time: Callable[[], None], judge: Callable[[Metrics], None]) -> None:
        self._check_time, self._judge = check_time, judge

    def on_step_end(self, trainer: Any, progress: Any) -> None:
        self._check_time()

    def on_evaluation_end(self, trainer: Any, metrics: Metrics) -> None:
        self._judge(metrics)


class _TimeIsOver(Exception):
    """Leaves a trial, which waits to be resumed."""


def _whole(journal: Path) -> Path:
    """The journal without a line that a killed process did not end: Optuna would stop there."""
    text = journal.read_bytes() if journal.exists() else b""
    if text and not text.endswith(b"\n"):
        os.truncate(journal, text.rfind(b"\n") + 1)
    return journal
