"""Metrics of numbers: RMSE, MAE, R² and Poisson deviance, in the units of the label."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from hotrows.train.metrics.binary import calibration_error
from hotrows.train.metrics.result import Metrics
from hotrows.train.metrics.sums import standard_error, weighted_mean


def regression_metrics(
    predictions: Tensor, labels: Tensor, weights: Tensor | None = None, decides: str = "rmse"
) -> Metrics:
    """Metrics of [M] predictions against [M] labels; weights: [M], above 0.

    Calibration and deviance are of counts, and asked for by decides="poisson_deviance".
    """
    # Sort by prediction, so that the order of samples changes no sum.
    predictions, order = predictions.double().sort(stable=True)
    labels = labels.double()[order]
    weights = None if weights is None else weights.double()[order]
    errors = predictions - labels
    mean, mean_prediction = weighted_mean(labels, weights), weighted_mean(predictions, weights)
    spread = weighted_mean((labels - mean).square(), weights)
    squared = weighted_mean(errors.square(), weights)
    samples = {"rmse": errors.square(), "mae": errors.abs()}
    if decides == "poisson_deviance":
        ratios = labels / predictions.where(labels != 0, 1.0)  # 0 log 0 is 0, also of 0 / 0
        samples[decides] = 2 * (torch.xlogy(labels, ratios) - labels + predictions)
    means: dict[str, Any] = {name: weighted_mean(values, weights) for name, values in samples.items()}
    error = standard_error(samples[decides], weights)
    rmse = math.sqrt(squared)
    return Metrics(
        samples=len(labels),
        auc=math.nan,
        log_loss=math.nan,
        positive_rate=mean,
        mean_prediction=mean_prediction,
        calibration=mean_prediction / mean if mean and decides == "poisson_deviance" else math.nan,
        calibration_error=calibration_error(predictions, labels, weights),
        r2=1 - squared / spread if spread else math.nan,
        error=error / (2 * rmse) if decides == "rmse" and rmse else error,
        decides=decides,
        **{**means, "rmse": rmse},
    )
