"""Metrics of probabilities: AUC, log loss and calibration, all from logits with one sort."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

from hotrows.train.metrics.ranking import grouped_auc
from hotrows.train.metrics.result import Metrics
from hotrows.train.metrics.sums import sums_by, weighted_mean

BINS = 20


def compute_metrics(
    logits: Tensor, labels: Tensor, weights: Tensor | None = None, groups: Tensor | None = None
) -> Metrics:
    """Metrics of [M] logits against [M] labels of 0 and 1, or from 0 to 1.

    weights: [M], above 0.
    groups: [M] integers, equal within a group.

    >>> metrics = compute_metrics(torch.tensor([2.0, -1.0, 0.5]), torch.tensor([1, 0, 0]))
    >>> metrics.auc, round(metrics.positive_rate, 3)
    (1.0, 0.333)
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
    positive_rate, mean = weighted_mean(clicks, by_weight), weighted_mean(predictions, by_weight)
    return Metrics(
        samples=len(scores),
        auc=auc_of_sorted(scores, clicks, by_weight),
        log_loss=weighted_mean(functional.softplus(scores) - clicks * scores, by_weight),
        positive_rate=positive_rate,
        mean_prediction=mean,
        calibration=mean / positive_rate if positive_rate else math.nan,
        calibration_error=calibration_error(predictions, clicks, by_weight),
        gauc=math.nan if groups is None else grouped_auc(logits, labels, groups, weights),
    )


def auc(scores: Tensor, labels: Tensor) -> float:
    """Area under the ROC curve; nan where all labels are equal.

    >>> auc(torch.tensor([1.0, 2.0, 2.0, 3.0]), torch.tensor([0, 0, 1, 1]))  # (1 + 0.5 + 1 + 1) / 4
    0.875
    """
    scores, order = scores.double().sort()
    return auc_of_sorted(scores, labels.double()[order])


def auc_of_sorted(scores: Tensor, clicks: Tensor, weights: Tensor | None = None) -> float:
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
    return min(pairs / (positives * negatives), 1.0)  # weights may sum to a little more


def calibration_error(predictions: Tensor, labels: Tensor, weights: Tensor | None) -> float:
    """The mean distance of predictions, which rise, from labels, over 20 bins of equal size.

    Samples of equal predictions count alike, each with the mean of all of them: their order decides
    nothing.
    """
    gaps = predictions - labels if weights is None else (predictions - labels) * weights
    total = len(labels) if weights is None else weights.sum().item()
    _, run, sizes = predictions.unique_consecutive(return_inverse=True, return_counts=True)
    gaps = (sums_by(gaps, run) / sizes)[run]
    return sum(abs(gap.sum().item()) for gap in gaps.tensor_split(min(BINS, len(labels)))) / total
