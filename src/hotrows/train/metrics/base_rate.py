"""The log loss of one constant prediction for all samples, and warnings where a model is no better."""

from __future__ import annotations

import math
from collections.abc import Iterator

from hotrows.train.metrics.binary import BINS
from hotrows.train.metrics.result import Metrics, word_of

_ABOVE_BASE = 1.001  # times the log loss of the base rate: more is no chance
_MISCALIBRATED = 2.0  # times too high or too low
_RIGHT, _BENT = 1.1, 0.1  # times at most; distance within bins, of the rarer label's rate
# Training begins at the mean of the labels: what is worse than that has learned too much by heart.
_TRAIN_LESS = "train fewer epochs, with lower learning rates or more weight decay"


def base_log_loss(positive_rate: float) -> float:
    """The log loss of the positive rate itself as the prediction for every sample: its entropy in nats.

    >>> round(base_log_loss(0.25), 4)
    0.5623
    """
    rates = (positive_rate, 1 - positive_rate)
    return 0.0 - math.fsum(rate * math.log(rate) for rate in rates if rate > 0)  # no -0.0


def shortcomings(metrics: Metrics) -> Iterator[str]:
    """Says where predictions are worse than one constant for all samples, off by more than a factor of
    two on average, or right on average alone, a line each, or that there is nothing to compare them
    with; nothing of labels that are all equal."""
    if not metrics.samples:
        yield "no sample has this label and a weight above 0, so there are no metrics"
    elif math.isnan(metrics.score):
        yield f"no group has a label above 0, so there is no {word_of(metrics.decides)}"
    if metrics.ungrouped > 0:
        yield (
            f"{metrics.ungrouped:,.0f} of {metrics.samples:,} samples have no group, and do not count in "
            f"metrics within groups"
        )
    if metrics.r2 < 0:
        yield (
            f"R2 {metrics.r2:.4f} is below 0, that of the mean of the labels for every sample: "
            f"{_TRAIN_LESS}"
        )
    if not 0 < metrics.positive_rate < 1 or math.isnan(metrics.log_loss):
        return
    base = base_log_loss(metrics.positive_rate)
    is_right_on_average = 1 / _MISCALIBRATED <= metrics.calibration <= _MISCALIBRATED
    if metrics.log_loss > _ABOVE_BASE * base:
        advice = f"too sure: {_TRAIN_LESS}" if is_right_on_average else "train longer, or at other rates"
        yield (
            f"log loss {metrics.log_loss:.4f} is above {base:.4f}, that of the base rate alone "
            f"({metrics.positive_rate:.3%} for every sample): {advice}"
        )
    if not is_right_on_average:
        yield (
            f"predictions are {metrics.calibration:.3g} times the labels on average "
            f"({metrics.mean_prediction:.3%}, not {metrics.positive_rate:.3%}): good for ranking at most"
        )
    elif metrics.log_loss <= _ABOVE_BASE * base and _is_bent(metrics):
        yield (
            f"predictions are right on average, but {metrics.calibration_error:.3%} off within bins of "
            f"equal predictions: the reliability curve (`hotrows report`) is not straight"
        )


def _is_bent(metrics: Metrics) -> bool:
    """True if predictions are right on average, but within bins by more than chance explains not."""
    rate, others = metrics.positive_rate, 1 - metrics.positive_rate
    least = max(2 * math.sqrt(BINS * rate * others / metrics.samples), _BENT * min(rate, others))
    return 1 / _RIGHT < metrics.calibration < _RIGHT and metrics.calibration_error > least
