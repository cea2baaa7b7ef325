"""Metrics: the quality of predictions over a part of the data, as one value."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

# Metrics in the order in which they are shown, with their names.
_WORDS = {
    "auc": "AUC",
    "gauc": "gAUC",
    "log_loss": "log loss",
    "rmse": "RMSE",
    "mae": "MAE",
    "r2": "R2",
    "poisson_deviance": "Poisson deviance",
    "ndcg": "NDCG",
    "hit": "Hit",
    "mrr": "MRR",
    "calibration": "calibration",
}
LOWER_IS_BETTER = ("log_loss", "rmse", "mae", "poisson_deviance", "calibration_error")
_OF_PROBABILITIES = ("auc", "log_loss", "calibration")


@dataclass(frozen=True)
class Metrics:  # noqa: PLW1641 (dataclass writes it)
    """The quality of predictions; see `hotrows.train.metrics`.

    nan: `auc` where all labels are equal, `calibration` where their mean is 0, `gauc` where no group
    has both labels, what is not of this kind of label, and all where no sample has a weight above 0.
    positive_rate: the mean label, of labels 0 and 1 the share of 1.
    ranking: further metrics within groups, such as ndcg@10.
    decides: the metric that validation compares.
    error: its standard error.
    scale, shift: these predictions are of logits times `scale` plus `shift`; nan: of logits.
    ungrouped: samples whose group is missing; nan: none.
    tasks: metrics by label, where there are several; all other fields are then means over them.

    >>> metrics = hotrows.load_run(run).evaluate(data.parts["test"])
    >>> metrics.samples, metrics.decides
    (10, 'auc')
    """

    samples: int
    auc: float
    log_loss: float
    positive_rate: float
    mean_prediction: float
    calibration: float
    calibration_error: float
    gauc: float = math.nan
    rmse: float = math.nan
    mae: float = math.nan
    r2: float = math.nan
    poisson_deviance: float = math.nan
    error: float = math.nan
    scale: float = math.nan
    shift: float = math.nan
    ungrouped: float = math.nan
    decides: str = "auc"
    ranking: Mapping[str, float] = field(default_factory=dict)
    tasks: Mapping[str, Metrics] = field(default_factory=dict)

    def __eq__(self, other: object) -> bool:
        """Whether all fields are equal; nan equals nan here, whatever Python does."""
        return isinstance(other, Metrics) and self.to_json() == other.to_json()

    def value(self, name: str) -> float:
        """The metric of this name; nan where it was not computed."""
        return self.ranking.get(name, getattr(self, name, math.nan))

    @property
    def score(self) -> float:
        """The number that validation compares, higher is better.

        The metric that decides, negative where less is better; -log loss where AUC is nan; nan where
        samples have no metric that decides. Of several labels that different metrics decide: the mean of
        their scores.
        """
        if not self.samples:
            return math.nan
        if not self.decides:
            return _mean([task.score for task in self.tasks.values()])
        value = self.value(self.decides)
        if self.decides in LOWER_IS_BETTER:
            return -value if math.isfinite(value) else -sys.float_info.max
        return -self.log_loss if math.isnan(value) else value

    @property
    def validation_loss(self) -> float:
        """A number that is lower where predictions are better: the log loss, else -score."""
        return -self.score if math.isnan(self.log_loss) else self.log_loss

    @property
    def chance(self) -> float:
        """The standard error of the score; of AUC by Hanley and McNeil (1982)."""
        if self.tasks:
            if self.decides and math.isnan(self.value(self.decides)):
                return 0.0
            return math.hypot(*(task.chance for task in self.tasks.values())) / len(self.tasks)
        if self.decides != "auc":
            return self.error if math.isfinite(self.error) else 0.0
        if math.isnan(self.auc):
            return 0.0
        positives = self.samples * self.positive_rate
        others = self.samples - positives
        both_above, both_below = self.auc / (2 - self.auc), 2 * self.auc**2 / (1 + self.auc)
        spread = (positives - 1) * (both_above - self.auc**2) + (others - 1) * (both_below - self.auc**2)
        variance = (self.auc * (1 - self.auc) + spread) / (positives * others)
        return math.sqrt(max(variance, 0.0))  # fewer than one positive may be expected

    @property
    def scales(self) -> tuple[tuple[float, float], ...]:
        """The scale and the shift of each label's logits; () where all are (1, 0)."""
        scales = [(task.scale, task.shift) for task in (self.tasks or {"": self}).values()]
        is_scaled = not all(math.isnan(scale) for scale, _ in scales)
        return tuple((1.0, 0.0) if math.isnan(s[0]) else s for s in scales) if is_scaled else ()

    def shown(self) -> dict[str, float]:
        """The metrics to print, by their names in words, in order; nan only of probabilities, and of the
        metric that decides."""
        names = [name for name in _WORDS if name in _NUMBERS]
        names[names.index("calibration") :] = [*self.ranking, "calibration"]
        always = _OF_PROBABILITIES if self.decides == "auc" else (self.decides,)
        values = {name: self.value(name) for name in names}
        return {word_of(n): v for n, v in values.items() if n in always or not math.isnan(v)}

    def to_json(self) -> dict[str, Any]:
        """Plain numbers, with None for nan, and the metrics of tasks by label.

        What only some kinds of labels have is left out of the others.
        """
        numbers = {name: getattr(self, name) for name in _NUMBERS}
        fields: dict[str, Any] = {
            name: value if math.isfinite(value) else None
            for name, value in numbers.items()
            if name in _FIRST_NUMBERS or not math.isnan(value)
        }
        if self.decides != "auc":
            fields["decides"] = self.decides
        if self.ranking:
            fields["ranking"] = {n: v if math.isfinite(v) else None for n, v in self.ranking.items()}
        tasks = {name: task.to_json() for name, task in self.tasks.items()}
        return {**fields, "tasks": tasks} if tasks else fields

    @staticmethod
    def from_json(fields: Any) -> Metrics:
        """The metrics of `to_json`; ValueError where these are none."""
        nested = ("tasks", "ranking")
        if not isinstance(fields, dict) or not all(isinstance(fields.get(n, {}), dict) for n in nested):
            raise ValueError("expected an object of metrics")
        tasks = {name: Metrics.from_json(task) for name, task in fields.get("tasks", {}).items()}
        decides, ranking = fields.get("decides", "auc"), _with_nan(fields.get("ranking", {}))
        known = _with_nan({n: v for n, v in fields.items() if n not in (*nested, "decides")})
        names = set(known)
        if (
            not {*_FIRST_NUMBERS} <= {*names, "gauc"} <= {*_NUMBERS, "gauc"}
            or not all(type(value) in (int, float) for value in (*known.values(), *ranking.values()))
            or not isinstance(decides, str)
        ):
            raise ValueError(
                f"expected numbers of {', '.join(_FIRST_NUMBERS)}, found those of {', '.join(known)}"
            )
        return Metrics(**known, decides=decides, ranking=ranking, tasks=tasks)


_NUMBERS = tuple(
    name for name in Metrics.__dataclass_fields__ if name not in ("tasks", "ranking", "decides")
)
_FIRST_NUMBERS = _NUMBERS[: _NUMBERS.index("gauc") + 1]  # that every kind of label has, if only as nan


def no_metrics(decides: str) -> Metrics:
    """The metrics of no sample: all nan."""
    numbers: dict[str, Any] = {**dict.fromkeys(_FIRST_NUMBERS, math.nan), "samples": 0}
    ranking = {} if decides in _NUMBERS else {decides: math.nan}
    return Metrics(**numbers, decides=decides, ranking=ranking)


def word_of(name: str) -> str:
    """A metric as it is shown: NDCG@10 for ndcg@10.

    >>> word_of('ndcg@10')
    'NDCG@10'
    """
    kind, sign, k = name.partition("@")
    return _WORDS.get(kind, kind) + sign + k


def _with_nan(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: math.nan if value is None else value for name, value in values.items()}


def mean_of(tasks: Mapping[str, Metrics]) -> Metrics:
    """The metrics of several labels as one: each number is the mean of those that are not nan."""
    values = tasks.values()
    means: dict[str, Any] = {name: _mean([getattr(task, name) for task in values]) for name in _NUMBERS}
    means |= dict.fromkeys(("scale", "shift"), math.nan)  # of one label each
    names = dict.fromkeys(name for task in values for name in task.ranking)
    decides = {task.decides for task in values}
    return Metrics(
        **{**means, "samples": max(task.samples for task in values)},
        decides=decides.pop() if len(decides) == 1 else "",
        ranking={name: _mean([task.value(name) for task in values]) for name in names},
        tasks=tasks,
    )


def _mean(values: Sequence[float]) -> float:
    known = [value for value in values if not math.isnan(value)]
    return math.fsum(known) / len(known) if known else math.nan
