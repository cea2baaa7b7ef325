"""Quality of predictions over a whole part of the data.

Nothing is averaged over batches and nothing is binned but the calibration error. All in float64:

    AUC          the chance that a random click is ranked above a random non-click; ties count half
    log loss     mean of log(1 + exp(z)) - y * z
    calibration  mean prediction / mean label; 1 is right, 2 promises twice the clicks
    calibration error   mean |prediction - label| of 20 bins of equal size, from low to high
    RMSE, MAE    root of the mean squared error, mean absolute error
    R2           1 - mean squared error / variance of the labels
    Poisson deviance    mean of 2 (y log(y / prediction) - y + prediction)

and within groups, such as the samples of a user, averaged over groups:

    grouped AUC  by the weight of their samples, over the groups that have both labels (Zhou et al.,
                 DIN, KDD 2018)
    NDCG@k       sum of label / log2(1 + place) over the first k places, divided by the greatest sum
                 that an order could have
    Hit@k        whether the first k places have a label above 0
    MRR          1 / place of the first label above 0

Groups without a label above 0 do not count for these three, and samples without a group for none of the
four. Where samples have equal outputs, a metric
is its mean over all their orders, and in the calibration error each has the mean of their gaps: the
order of samples changes no metric. Where samples have weights, a sample counts as often as its weight
says; in NDCG, Hit and MRR a group counts by the mean weight of its samples, and a weight moves no place.
The sum would let long groups count more, which without weights they do not.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from hotrows.losses import NO_GROUP, Loss
from hotrows.train.metrics.base_rate import base_log_loss as base_log_loss
from hotrows.train.metrics.base_rate import shortcomings as shortcomings
from hotrows.train.metrics.binary import auc, auc_of_sorted, compute_metrics
from hotrows.train.metrics.calibration import fit_scale, is_better
from hotrows.train.metrics.ranking import group_aucs as group_aucs
from hotrows.train.metrics.ranking import grouped_auc
from hotrows.train.metrics.ranking import ranking_metrics as ranking_metrics
from hotrows.train.metrics.ranking import ranking_values as ranking_values
from hotrows.train.metrics.regression import regression_metrics as regression_metrics
from hotrows.train.metrics.result import Metrics
from hotrows.train.metrics.result import mean_of as mean_of
from hotrows.train.metrics.result import word_of as word_of
from hotrows.train.metrics.sums import standard_error, weighted_mean

__all__ = ["Metrics", "auc", "compute_metrics", "grouped_auc"]

_OF_AN_ORDER = ("ndcg@10", "mrr")


def metrics_by(
    loss: Loss,
    outputs: Tensor,
    labels: Tensor,
    weights: Tensor | None = None,
    groups: Tensor | None = None,
    ranking: Sequence[str] = (),
) -> Metrics:
    """The metrics by which a model of this loss is judged.

    outputs: of the model, [M]; labels: [M]; weights: [M], above 0; groups: [M] integers, equal within
    a group. ranking: further metrics within groups, such as ndcg@10.
    """
    changes: dict[str, Any] = {"decides": loss.decides}
    if loss.scale != 1:
        changes |= {"scale": loss.scale, "shift": loss.shift}
    calibrated = loss.calibrated(outputs.double())
    if loss.is_order:
        metrics = _order_metrics(calibrated, labels, weights, groups)
        ranking = tuple(dict.fromkeys((*_OF_AN_ORDER, *ranking)))
    elif loss.link == "sigmoid":
        metrics = compute_metrics(calibrated, labels, weights, groups)
    else:
        metrics = regression_metrics(loss.predictions(outputs), labels, weights, loss.decides)
    if loss.decides == "log_loss":
        losses = functional.softplus(calibrated) - labels * calibrated
        changes["error"] = standard_error(losses, None if weights is None else weights.double())
    if groups is not None and (ungrouped := int((groups == NO_GROUP).sum())):
        changes["ungrouped"] = ungrouped
    if ranking:
        if groups is None:
            raise ValueError(f"{ranking[0]} is a metric within groups, and these samples have no groups")
        results = ranking_metrics(calibrated, labels, groups, ranking, weights)
        changes["ranking"] = {name: value for name, (value, _) in results.items()}
        if loss.decides in results:
            changes["error"] = results[loss.decides][1]
    return dataclasses.replace(metrics, **changes)


def fitted(
    loss: Loss, outputs: Tensor, labels: Tensor, weights: Tensor | None, base: float, anew: bool = True
) -> Loss:
    """The loss with the scale that fits samples best, if labels are 0 or 1; base: see `fit_scale`.

    anew: False: the scale is that of the run that the model began with. It stays unless these samples
    say more than chance against it, as labels of one kind never do.
    """
    if not loss.labels.binary or not (anew or labels.min() < labels.max()):
        return loss
    scale, shift = fit_scale(loss.unbiased(outputs.double()), labels, weights, base)
    other = dataclasses.replace(loss, scale=scale, shift=shift)
    return other if anew else better(loss, other, outputs, labels, weights)


def better(loss: Loss, other: Loss, outputs: Tensor, labels: Tensor, weights: Tensor | None) -> Loss:
    """The other scale of a loss if it fits these samples better, by more than chance; else the first."""
    if loss == other:
        return loss
    one, two, outputs = (other.scale, other.shift), (loss.scale, loss.shift), outputs.double()
    return other if is_better(one, two, loss.unbiased(outputs), labels, weights) else loss


def _order_metrics(
    outputs: Tensor, labels: Tensor, weights: Tensor | None, groups: Tensor | None
) -> Metrics:
    """Of outputs that are an order and nothing else: AUC and grouped AUC, where labels are 0 and 1."""
    nothing: dict[str, Any] = dict.fromkeys(("log_loss", "mean_prediction", "calibration"), math.nan)
    metrics = Metrics(
        samples=len(outputs),
        auc=math.nan,
        positive_rate=weighted_mean(labels.double(), None if weights is None else weights.double()),
        calibration_error=math.nan,
        **nothing,
    )
    if not torch.isin(labels, labels.new_tensor([0, 1])).all():
        return metrics
    scores, order = outputs.sort(stable=True)
    by_weight = None if weights is None else weights.double()[order]
    return dataclasses.replace(
        metrics,
        auc=auc_of_sorted(scores, labels.double()[order], by_weight),
        gauc=math.nan if groups is None else grouped_auc(outputs, labels, groups, weights),
    )
