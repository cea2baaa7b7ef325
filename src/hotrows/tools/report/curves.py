"""Curves of predictions: ROC, precision and recall, reliability, histograms; from arrays to points."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

_POINTS = 200


@dataclass(frozen=True)
class ReliabilityBin:
    """Samples of near predictions: how many, mean prediction, mean label and its 95 % interval."""

    samples: int
    prediction: float
    label: float
    low: float
    high: float


def ranked_counts(
    scores: np.ndarray, labels: np.ndarray, weights: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Counts ones and zeros among the samples with at least each distinct score, from high to low scores.

    scores = [3, 2, 2, 1], labels = [1, 1, 0, 0]  ->  ones [0, 1, 2, 2], zeros [0, 0, 1, 2]
    """
    order = np.argsort(-scores, kind="stable")
    scores, labels = scores[order], labels[order]
    weights = np.ones(len(scores)) if weights is None else weights[order]
    ends = np.append(np.flatnonzero(np.diff(scores)), len(scores) - 1)
    ones, zeros = np.cumsum(weights * labels)[ends], np.cumsum(weights * (1 - labels))[ends]
    return np.append(0, ones), np.append(0, zeros)


def roc(ones: np.ndarray, zeros: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """False and true positive rates of `ranked_counts`."""
    chosen = _thinned(zeros / zeros[-1] + ones / ones[-1])
    return zeros[chosen] / zeros[-1], ones[chosen] / ones[-1]


def gains(ones: np.ndarray, zeros: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Share of the samples and recall of `ranked_counts`."""
    chosen = _thinned(ones + zeros)
    return (ones + zeros)[chosen] / (ones[-1] + zeros[-1]), ones[chosen] / ones[-1]


def precision_recall(ones: np.ndarray, zeros: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Recall and precision of `ranked_counts`, without the point of no sample."""
    chosen = _thinned(ones[1:] / ones[-1]) + 1
    return ones[chosen] / ones[-1], ones[chosen] / (ones + zeros)[chosen]


def thresholds(
    scores: np.ndarray, labels: np.ndarray, weights: np.ndarray | None, shares: Sequence[float]
) -> list[tuple[float, ...]]:
    """The highest scores that give at least these shares of the samples, equal scores together: of each
    (score, share, precision, recall, precision over the rate of ones).

    scores = [3, 2, 2, 1], labels = [1, 1, 0, 0], shares = [0.5]  ->  [(2, 0.75, 0.667, 1, 1.333)]
    """
    ones, zeros = ranked_counts(scores, labels, weights)
    counts, distinct = ones + zeros, np.unique(scores)[::-1]
    places = np.unique(np.searchsorted(counts, np.array(shares) * counts[-1] * (1 - 1e-9)).clip(1))
    share, recall = counts[places] / counts[-1], ones[places] / ones[-1]
    precision = ones[places] / counts[places]
    columns = distinct[places - 1], share, precision, recall, recall / share
    return list(zip(*(column.tolist() for column in columns), strict=True))


def _thinned(places: np.ndarray) -> np.ndarray:
    """Numbers of entries of a rising array, spread evenly over its values; the first and last too."""
    wanted = np.linspace(places[0], places[-1], _POINTS)
    return np.unique(
        np.append(np.searchsorted(places, wanted), len(places) - 1).clip(max=len(places) - 1)
    )


def even_edges(values: Sequence[np.ndarray], bins: int) -> np.ndarray:
    """Edges between bins with about as many of the values in each: distinct, rising, at most bins - 1."""
    return np.unique(np.quantile(np.concatenate(values), np.linspace(0, 1, bins + 1)[1:-1]))


def reliability(
    predictions: np.ndarray, labels: np.ndarray, edges: np.ndarray, weights: np.ndarray | None = None
) -> list[ReliabilityBin]:
    """Compares mean prediction and mean label within bins; those without a sample are left out."""
    places = np.searchsorted(edges, predictions, side="right")
    weights = np.ones(len(labels)) if weights is None else weights
    bins = []
    for place in np.unique(places):
        within = places == place
        weight = weights[within] / weights[within].sum()
        label = float(weight @ labels[within])
        error = 1.96 * float(np.sqrt((weight**2 * (labels[within] - label) ** 2).sum()))
        bins.append(
            ReliabilityBin(
                int(within.sum()),
                float(weight @ predictions[within]),
                label,
                label - error,
                label + error,
            )
        )
    return bins


def shares_by(values: np.ndarray, edges: np.ndarray, weights: np.ndarray | None = None) -> np.ndarray:
    """The share of the values between neighbouring edges; those beyond count in the first or last bin."""
    counts, _ = np.histogram(values.clip(edges[0], edges[-1]), edges, weights=weights)
    return counts / max(float(counts.sum()), 1e-30)


def span(values: Sequence[np.ndarray], bins: int = 40) -> np.ndarray:
    """Edges of equal width that hold all but a thousandth of the values on either side."""
    low, high = np.quantile(np.concatenate(values), [0.001, 0.999])
    return np.linspace(low, high if high > low else low + 1, bins + 1)
