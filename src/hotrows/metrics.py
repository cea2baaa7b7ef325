"""Quality of predictions: exact AUC, log loss and calibration over a whole part of the data.

Nothing is averaged over batches and nothing is binned but the calibration error. All from logits,
in float64, with one sort:

    AUC          the chance that a random click is ranked above a random non-click; ties count half
    log loss     mean of log(1 + exp(z)) - y * z
    calibration  mean prediction / mean label; 1 is right, 2 promises twice the clicks
    calibration error   mean |prediction - label| of 20 bins of equal size, from low to high
    grouped AUC  the AUC within each group (a user's samples), averaged by the weight of its samples
                 over the groups that have both labels (Zhou et al., DIN, KDD 2018)

Where samples have weights, a sample counts as often as its weight says.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

_BINS = 20
_ABOVE_BASE = 1.001  # times the log loss of the base rate: more is no chance
_MISCALIBRATED = 2.0  # times too high or too low


@dataclass(frozen=True)
class Metrics:
    """The result of `compute_metrics`; nan: `auc` where all labels are equal, `calibration` where none
    is 1, `gauc` where no group has both labels.

    tasks: metrics by label, where there are several; all other fields are then means over them.
    """

    samples: int
    auc: float
    log_loss: float
    click_rate: float
    mean_prediction: float
    calibration: float
    calibration_error: float
    gauc: float = math.nan
    tasks: Mapping[str, Metrics] = field(default_factory=dict)

    @property
    def score(self) -> float:
        """The number that validation compares, higher is better: AUC, or -log loss where AUC is nan."""
        return -self.log_loss if math.isnan(self.auc) else self.auc

    @property
    def chance(self) -> float:
        """The standard error of the score (Hanley and McNeil 1982)."""
        if math.isnan(self.auc):
            return 0.0
        if self.tasks:
            return math.hypot(*(task.chance for task in self.tasks.values())) / len(self.tasks)
        clicks = self.samples * self.click_rate
        others = self.samples - clicks
        both_above, both_below = self.auc / (2 - self.auc), 2 * self.auc**2 / (1 + self.auc)
        spread = (clicks - 1) * (both_above - self.auc**2) + (others - 1) * (both_below - self.auc**2)
        return math.sqrt((self.auc * (1 - self.auc) + spread) / (clicks * others))

    def to_json(self) -> dict:
        """Plain numbers, with None for nan, and the metrics of tasks by label."""
        numbers = {name: getattr(self, name) for name in _NUMBERS}
        fields = {name: None if math.isnan(value) else value for name, value in numbers.items()}
        tasks = {name: task.to_json() for name, task in self.tasks.items()}
        return {**fields, "tasks": tasks} if tasks else fields

    @staticmethod
    def from_json(fields: Any) -> Metrics:
        """The metrics of `to_json`; ValueError where these are none."""
        if not isinstance(fields, dict) or not isinstance(fields.get("tasks", {}), dict):
            raise ValueError("expected an object of metrics")
        tasks = {name: Metrics.from_json(task) for name, task in fields.get("tasks", {}).items()}
        known: dict[str, Any] = {
            name: math.nan if value is None else value for name, value in fields.items()
        }
        numbers = [name for name in known if name != "tasks"]
        if {*numbers, "gauc"} != set(_NUMBERS) or not all(
            type(known[n]) in (int, float) for n in numbers
        ):
            raise ValueError(
                f"expected numbers of {', '.join(_NUMBERS)}, found those of {', '.join(numbers)}"
            )
        return Metrics(**{**known, "tasks": tasks})


_NUMBERS = tuple(name for name in Metrics.__dataclass_fields__ if name != "tasks")


def mean_of(tasks: Mapping[str, Metrics]) -> Metrics:
    """The metrics of several labels as one: each number is the mean of those that are not nan."""
    means: dict[str, Any] = {}
    for name in _NUMBERS:
        known = [v for v in (getattr(task, name) for task in tasks.values()) if not math.isnan(v)]
        means[name] = math.fsum(known) / len(known) if known else math.nan
    return Metrics(**{**means, "samples": max(task.samples for task in tasks.values())}, tasks=tasks)


def compute_metrics(
    logits: Tensor, labels: Tensor, weights: Tensor | None = None, groups: Tensor | None = None
) -> Metrics:
    """Metrics of [M] logits against [M] labels of 0 and 1.

    weights: [M], above 0; groups: [M] integers, equal within a group.
    """
    if logits.shape != labels.shape or logits.dim() != 1 or not len(logits):
        raise ValueError(
            f"metrics need as many logits as labels, at least one, not {list(logits.shape)} "
            f"and {list(labels.shape)}"
        )
    scores, order = logits.double().sort(stable=True)
    clicks = labels.double()[order]
    by_weight = None if weights is None else weights.double()[order]
    predictions = scores.sigmoid()
    click_rate, mean = _mean(clicks, by_weight), _mean(predictions, by_weight)
    return Metrics(
        samples=len(scores),
        auc=_auc_of_sorted(scores, clicks, by_weight),
        log_loss=_mean(functional.softplus(scores) - clicks * scores, by_weight),
        click_rate=click_rate,
        mean_prediction=mean,
        calibration=mean / click_rate if click_rate else math.nan,
        calibration_error=_calibration_error(predictions, clicks, by_weight),
        gauc=math.nan if groups is None else grouped_auc(logits, labels, groups, weights),
    )


def auc(scores: Tensor, labels: Tensor) -> float:
    """Area under the ROC curve; nan where all labels are equal.

    scores = [1., 2., 2., 3.], labels = [0, 0, 1, 1]  ->  (1 + 0.5 + 1 + 1) / 4 = 0.875
    """
    scores, order = scores.double().sort()
    return _auc_of_sorted(scores, labels.double()[order])


def grouped_auc(scores: Tensor, labels: Tensor, groups: Tensor, weights: Tensor | None = None) -> float:
    """The mean of each group's AUC, by the weight of its samples; nan where no group has both labels.

    scores = [1., 2., 5., 6., 7.], labels = [0, 1, 1, 0, 1], groups = [0, 0, 1, 1, 1]
    ->  (2 * 1 + 3 * 0.5) / 5 = 0.7
    """
    if scores.isnan().any():
        return math.nan
    scores, order = scores.double().sort(stable=True)
    groups, by_group = groups[order].sort(stable=True)
    order, scores = order[by_group], scores[by_group]
    clicks = labels.double()[order]
    weighted = torch.ones_like(clicks) if weights is None else weights.double()[order]
    first = torch.ones(len(scores), dtype=torch.bool)  # of a run of equal scores within a group
    first[1:] = (scores[1:] != scores[:-1]) | (groups[1:] != groups[:-1])
    run = first.cumsum(0) - 1
    _, group_of_row = groups.unique_consecutive(return_inverse=True)
    group_of_run = group_of_row[first]
    positives, others = clicks * weighted, (1 - clicks) * weighted
    in_run, others_in = _sums(positives, run), _sums(others, run)
    totals, others_of = _sums(positives, group_of_row), _sums(others, group_of_row)
    before = others_in.cumsum(0) - others_in
    before -= (others_of.cumsum(0) - others_of)[group_of_run]
    pairs = _sums(in_run * (before + others_in / 2), group_of_run)
    both = (totals > 0) & (others_of > 0)
    if not both.any():
        return math.nan
    size = (totals + others_of)[both]
    of_groups = pairs[both] / (totals[both] * others_of[both])
    return ((size * of_groups).sum() / size.sum()).item()


def _sums(values: Tensor, places: Tensor) -> Tensor:
    """The sum of the values of each place; places rise from 0 without a gap."""
    sums = values.new_zeros(int(places[-1]) + 1)
    return sums.index_add_(0, places, values)


def _mean(values: Tensor, weights: Tensor | None) -> float:
    if weights is None:
        return values.mean().item()
    return ((values * weights).sum() / weights.sum()).item()


def _auc_of_sorted(scores: Tensor, clicks: Tensor, weights: Tensor | None = None) -> float:
    """Sums, over runs of equal scores, clicks of the run * (others before it + half of its own)."""
    weighted = torch.ones_like(clicks) if weights is None else weights
    positives = (clicks * weighted).sum().item()
    negatives = ((1 - clicks) * weighted).sum().item()
    if scores.isnan().any() or not positives or not negatives:
        return math.nan
    _, sizes = scores.unique_consecutive(return_counts=True)
    ends = sizes.cumsum(0)
    clicks_in, others_in = (
        weights.cumsum(0)[ends - 1].diff(prepend=weights.new_zeros(1))
        for weights in (clicks * weighted, (1 - clicks) * weighted)
    )
    others_before = others_in.cumsum(0) - others_in
    pairs = (clicks_in * (others_before + others_in / 2)).sum().item()
    return pairs / (positives * negatives)


def _calibration_error(predictions: Tensor, clicks: Tensor, weights: Tensor | None) -> float:
    gaps = predictions - clicks if weights is None else (predictions - clicks) * weights
    total = len(clicks) if weights is None else weights.sum().item()
    return sum(abs(gap.sum().item()) for gap in gaps.tensor_split(min(_BINS, len(clicks)))) / total


def base_log_loss(click_rate: float) -> float:
    """The log loss of the click rate itself as the prediction for every sample: its entropy in nats."""
    rates = (click_rate, 1 - click_rate)
    return -math.fsum(rate * math.log(rate) for rate in rates if rate > 0)


def shortcomings(metrics: Metrics) -> Iterator[str]:
    """Says where predictions are worse than one constant for all samples, or off by more than a factor
    of two on average, a line each; of labels that are all equal nothing is said."""
    if not 0 < metrics.click_rate < 1:
        return
    base = base_log_loss(metrics.click_rate)
    if metrics.log_loss > _ABOVE_BASE * base:
        yield (
            f"log loss {metrics.log_loss:.4f} is above {base:.4f}, that of the base rate alone "
            f"({metrics.click_rate:.3%} for every sample): train longer, or with other learning rates"
        )
    if not 1 / _MISCALIBRATED <= metrics.calibration <= _MISCALIBRATED:
        yield (
            f"predictions are {metrics.calibration:.3g} times the labels on average "
            f"({metrics.mean_prediction:.3%}, not {metrics.click_rate:.3%}): good for ranking at most"
        )
