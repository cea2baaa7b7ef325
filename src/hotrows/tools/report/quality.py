"""Quality of predictions with intervals: metrics under a bootstrap over groups, and their differences.

A resample draws as many groups (of a schema without any: rows) as there are, with replacement, and
computes all metrics anew, each row counting as often as its group was drawn. A 95 % interval is the
metric and 1.96 standard deviations of the resamples on either side, within what it may be. Resamples
of equal rows draw alike, whichever model has scored them, so the difference of two models has an
interval, too, which is narrower.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from hotrows.losses import NO_GROUP
from hotrows.train.metrics import Metrics, group_aucs, metrics_by, ranking_values
from hotrows.train.metrics.result import LOWER_IS_BETTER
from hotrows.train.telling.row_sample import ScoredRows

TIMES = 100  # resamples
_NUMBERS = {  # metrics without groups, and what they may be; those within groups are shares
    "auc": (0.0, 1.0),
    "log_loss": (0.0, math.inf),
    "rmse": (0.0, math.inf),
    "mae": (0.0, math.inf),
    "r2": (-math.inf, 1.0),
    "poisson_deviance": (0.0, math.inf),
    "calibration": (0.0, math.inf),
    "calibration_error": (0.0, 1.0),
}
_Z = 1.96
_LEAST = 5  # units, and resamples, of which an interval is made


@dataclass(frozen=True)
class MetricInterval:
    """A number and its 95 % interval; nan where there is none."""

    value: float
    low: float = math.nan
    high: float = math.nan

    @property
    def is_clear(self) -> bool:
        """True if the interval leaves out 0."""
        return self.low > 0 or self.high < 0


@dataclass(frozen=True)
class Quality:
    """Metrics of the predictions of a label. resamples: by metric, its value in each resample [R]; units:
    number of the groups, or rows, that were drawn from."""

    metrics: Metrics
    resamples: Mapping[str, np.ndarray]
    units: int

    @property
    def names(self) -> tuple[str, ...]:
        """The metrics that this kind of label has."""
        return tuple(self.resamples)

    @property
    def decisive(self) -> str:
        """The metric that says which predictions are better: the loss's, else another one; "": none."""
        return self.metrics.decides if self.metrics.decides in self.names else next(iter(self.names), "")

    @property
    def estimates(self) -> dict[str, MetricInterval]:
        """The metrics with their intervals, by name."""
        return {name: self.estimate(name) for name in self.names}

    def estimate(self, name: str) -> MetricInterval:
        estimate = _estimate(self.metrics.value(name), self.resamples[name])
        least, most = _NUMBERS.get(name, (0.0, 1.0))
        return replace(estimate, low=max(estimate.low, least), high=min(estimate.high, most))

    def gain(self, other: Quality, name: str) -> MetricInterval:
        """By how much a metric is better than that of other predictions for the same rows."""
        sign = -1 if name in LOWER_IS_BETTER else 1
        change = self.metrics.value(name) - other.metrics.value(name)
        return _estimate(sign * change, sign * (self.resamples[name] - other.resamples[name]))


def measure(
    scored: ScoredRows, ranking: Sequence[str] = (), times: int = TIMES, seed: int = 0
) -> Quality:
    """Computes metrics of scored rows and of resamples. ranking: further metrics within groups."""
    groups = scored.groups
    metrics = metrics_by(scored.loss, scored.outputs, scored.labels, scored.weights, groups, ranking)
    units = torch.arange(len(scored))
    if groups is not None:  # rows without a group are drawn one by one
        with_group = groups.unique(return_inverse=True)[1] + len(groups)
        units = units.where(groups == NO_GROUP, with_group).unique(return_inverse=True)[1]
    num_units = int(units.max()) + 1
    within = {} if groups is None else dict(_within_groups(scored, units, (*metrics.ranking,)))
    names = [name for name in _NUMBERS if not math.isnan(metrics.value(name))]
    names = [] if scored.loss.is_order else names
    resamples: dict[str, list[float]] = {name: [] for name in (*names, *within)}
    random = np.random.default_rng(seed)
    for _ in range(times if num_units >= _LEAST else 0):
        counts = torch.from_numpy(
            np.bincount(random.integers(num_units, size=num_units), minlength=num_units)
        )
        for name, (values, weights) in within.items():
            total = (counts * weights).sum()
            resamples[name].append(float((counts * weights * values).sum() / total))
        if names:
            resampled = _resampled(scored, counts[units].double())
            for name in names:
                resamples[name].append(resampled.value(name))
    return Quality(metrics, {name: np.array(values) for name, values in resamples.items()}, num_units)


def _resampled(scored: ScoredRows, counts: Tensor) -> Metrics:
    """The metrics without groups, each sample counting so often, [M]."""
    weights = counts if scored.weights is None else counts * scored.weights
    drawn = weights > 0
    return metrics_by(scored.loss, scored.outputs[drawn], scored.labels[drawn], weights[drawn])


def _within_groups(
    scored: ScoredRows, units: Tensor, ranking: Sequence[str]
) -> Iterator[tuple[str, tuple[Tensor, Tensor]]]:
    """Yields metrics within groups: of each the value, 0 where it does not count, and the weight."""
    assert scored.groups is not None
    outputs = scored.loss.calibrated(scored.outputs)
    labels = scored.labels.where(scored.groups != NO_GROUP, 0.0)
    if torch.isin(labels, labels.new_tensor([0, 1])).all():
        aucs, size = group_aucs(outputs, labels, units, scored.weights)
        if (size > 0).any():
            yield "gauc", (aucs.nan_to_num(), size)
    counts = torch.zeros(int(units.max()) + 1).index_add_(0, units, (labels > 0).float()) > 0
    ranked = ranking_values(outputs, labels, units, ranking, scored.weights)
    for name, (values, weights) in ranked.items():
        if len(values):
            of_groups = values.new_zeros(2, len(counts))
            of_groups[:, counts] = torch.stack([values, weights])
            yield name, (of_groups[0], of_groups[1])


def _estimate(value: float, resamples: np.ndarray) -> MetricInterval:
    known = resamples[~np.isnan(resamples)]
    spread = _Z * float(known.std()) if len(known) >= _LEAST else math.nan
    return MetricInterval(value, value - spread, value + spread)
