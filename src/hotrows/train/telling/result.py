"""The result of a run: how it ended, how good it is, and its model."""

from __future__ import annotations

import copy
import dataclasses
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from hotrows.models.model import Model
from hotrows.runtime.pages import notebook
from hotrows.train.loop.predictor import Predictor, load_run
from hotrows.train.metrics import Metrics
from hotrows.train.telling import metrics_log


@dataclass(frozen=True, repr=False)
class Result:
    """How a run ended.

    validation, test: metrics of the best checkpoint; None where the part is empty.
    stopped_early: by `stop_patience`, or by `Trainer.stop`.
    samples_per_second: of training alone; evaluations and checkpoints are not counted.
    model: the class or the object that the `Trainer` was given, if it was.

    >>> result = hotrows.Trainer(data, hotrows.TrainConfig(steps=2), f"{folder}/result").fit()
    >>> result.steps, result.predictor.predict(frame).shape
    (2, (100,))
    """

    run: Path
    steps: int
    best_step: int
    stopped_early: bool
    samples_per_second: float | None
    validation: Metrics | None
    test: Metrics | None
    model: type[Model] | Model | None = None

    _repr_html_ = notebook.result

    def __repr__(self) -> str:
        early = ", stopped early" if self.stopped_early else ""
        parts = [
            f"; {part} " + ", ".join(f"{n} {v:.4f}" for n, v in list(metrics.shown().items())[:2])
            for part, metrics in (("validation", self.validation), ("test", self.test))
            if metrics
        ]
        return f"Result({self.run}, {self.steps:,} steps, best {self.best_step:,}{early}{''.join(parts)})"

    def __getstate__(self) -> dict[str, Any]:
        """The fields: a predictor that was read back is read again by a copy."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    @cached_property
    def predictor(self) -> Predictor:
        """The best checkpoint, read from the run's folder with tables of its own: see `load_run`."""
        return load_run(self.run, model=copy.deepcopy(self.model), trust=True)

    @property
    def history(self) -> Any:
        """The intervals and evaluations of the run, a row each, as an Arrow table (`.to_pandas()`).

        Its column `kind` is `train` or `evaluation`; what a row of one kind lacks is null. Read from the
        run's metrics.jsonl.
        """
        return metrics_log.history(self.run)

    def to_json(self) -> dict[str, Any]:
        """The fields of result.json."""
        metrics = {"validation": self.validation, "test": self.test}
        plain = {part: value.to_json() if value else None for part, value in metrics.items()}
        fields = {**self.__getstate__(), **plain, "run": self.run.name}
        return {name: value for name, value in fields.items() if name != "model"}

    @staticmethod
    def from_json(run: Path | str, fields: dict[str, Any]) -> Result:
        """The result of `to_json`, of a run in the folder `run`."""
        try:
            stored = {part: fields[part] for part in ("validation", "test")}
            parts = {part: Metrics.from_json(one) if one else None for part, one in stored.items()}
            return Result(**{**fields, **parts, "run": Path(run)})
        except (KeyError, TypeError) as error:
            raise ValueError(f"the result of {run} is damaged: {error}; train again") from error
