"""The scale of logits: one number that mends the probabilities of a model too sure, or too unsure."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from hotrows.train.metrics.sums import weighted_mean

_LEAST, _LARGEST, _STEPS, _RARE = 0.01, 100.0, 60, 0.05
Scale = tuple[float, float]  # and shift
_NONE: Scale = (1.0, 0.0)


def fit_scale(logits: Tensor, labels: Tensor, weights: Tensor | None = None, base: float = 0.0) -> Scale:
    """The scale and the shift of [M] logits with the least log loss, by Newton's method; four decimals.

    One number is fitted, the factor above 0 of the distance of logits from `base`, the logit of the base
    rate of training: shift = (1 - scale) * base. A factor about 0 would move the mean of rare labels, and
    follow every change of the base rate. (1, 0) where no factor is better by more than chance: of labels
    that are all equal, logits that rank no better than chance, few samples of a good model. Of rare
    labels the factor is multiplied by 1 - (e / g)^2, where g is the gain in log loss over the base rate
    alone and e its standard error (James and Stein 1961), down to 0.01. Labels are smoothed as Platt
    (1999) does, by one sample of each kind, so that few samples without an error do not ask for an
    infinite factor. Weights are scaled to the sum (sum of w)^2 / sum of w^2, the number of equal samples
    that say as much (Kish 1965): what unit they have changes nothing.
    """
    y, distances = labels.double(), logits.double() - base
    weights = _counts(labels, weights)
    clicks = (y * weights).sum().item()
    others = weights.sum().item() - clicks
    if not clicks or not others:
        return _NONE
    targets = torch.where(y > 0, (clicks + 1) / (clicks + 2), 1 / (others + 2))
    low, high, scale = 0.0, _LARGEST, 1.0
    for _ in range(_STEPS):  # the slope rises with the scale; where Newton leaves the bracket, halve it
        p = (base + scale * distances).sigmoid()
        slope = weighted_mean(distances * (p - targets), weights)
        curvature = weighted_mean(distances.square() * p * (1 - p), weights)
        low, high = (scale, high) if slope < 0 else (low, scale)
        following = scale - slope / curvature if curvature else high
        if not low < following < high:
            following = (low + high) / 2
        if abs(following - scale) < 1e-6 * scale:
            break
        scale = following
    scale = round(scale, 4)
    fitted = scale, round((1 - scale) * base, 4)
    best = fitted if scale >= _LEAST and is_better(fitted, _NONE, logits, labels, weights) else _NONE
    is_rare = min(clicks, others) < _RARE * (clicks + others)
    return _shrunk(best, base, logits, labels, weights) if is_rare else best


def _shrunk(scale: Scale, base: float, logits: Tensor, labels: Tensor, weights: Tensor) -> Scale:
    """A scale nearer to the base rate, the less surely its log loss is lower on these samples."""
    flat, (z, y) = (0.0, base), (logits.double(), labels.double())
    kept = 0.0
    if is_better(scale, flat, logits, labels, weights):
        of_flat, of_scale = (_losses(a * z + b, y) for a, b in (flat, scale))
        gains = of_flat - of_scale
        gain = (weights * gains).sum().item()
        variance = (weights * (gains - gain / weights.sum()).square()).sum().item()
        kept = max(1 - variance / gain**2, 0.0)
    factor = round(max(kept * scale[0], _LEAST), 4)
    return scale if factor == scale[0] else (factor, round((1 - factor) * base, 4))


def is_better(
    scale: Scale, other: Scale, logits: Tensor, labels: Tensor, weights: Tensor | None = None
) -> bool:
    """True if a scale has a lower log loss on these samples than another one, by more than chance
    (Akaike: a log likelihood that is higher by 1)."""
    z, y, weights = logits.double(), labels.double(), _counts(labels, weights)
    loss, before = (weighted_mean(_losses(a * z + b, y), weights) for a, b in (scale, other))
    return weights.sum().item() * (before - loss) > 1


def _counts(labels: Tensor, weights: Tensor | None) -> Tensor:
    """The weights, as many equal samples as they say as much as."""
    weights = torch.ones_like(labels.double()) if weights is None else weights.double()
    return weights * (weights.sum() / weights.square().sum())


def _losses(logits: Tensor, labels: Tensor) -> Tensor:
    return functional.softplus(logits) - labels * logits
