"""Means of samples, each counted as often as its weight says, and their standard errors."""

from __future__ import annotations

import math

from torch import Tensor


def weighted_mean(values: Tensor, weights: Tensor | None) -> float:
    if weights is None:
        return values.mean().item()
    if not bool(((weights > 0) & weights.isfinite()).all()):
        raise ValueError("weights must be numbers above 0; leave samples of other weights out")
    return ((values * weights).sum() / weights.sum()).item()


def standard_error(values: Tensor, weights: Tensor | None = None) -> float:
    """The standard error of the mean of independent values; 0 of one value."""
    gaps = values - weighted_mean(values, weights)
    if weights is None:
        return gaps.square().mean().sqrt().item() / math.sqrt(len(values))
    return (gaps * weights).square().sum().sqrt().item() / weights.sum().item()


def sums_by(values: Tensor, places: Tensor) -> Tensor:
    """The sum of the values of each place; places rise from 0 without a gap."""
    sums = values.new_zeros(int(places[-1]) + 1)
    return sums.index_add_(0, places, values)
