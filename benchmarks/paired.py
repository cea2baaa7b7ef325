"""Two models on the samples of one test part: how far their AUC is apart, and the error of that."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def placed(scores: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Of each sample the share of samples of the other label that it is in order with.

    AUC is the mean over samples of one label, of either.

    scores = [.1, .2, .2, .3], labels = [0, 1, 0, 1]  ->  [1., .75, .75, 1.]
    """
    places = np.unique(scores, return_inverse=True)[1]
    positives, negatives = np.bincount(places, labels), np.bincount(places, 1 - labels)
    below, above = (np.cumsum(some) - some / 2 for some in (negatives, positives))
    return np.where(labels, below[places] / negatives.sum(), 1 - above[places] / positives.sum())


def auc_of(scores: np.ndarray, labels: np.ndarray) -> float:
    return float(placed(scores, labels)[labels == 1].mean())


def error_of(shares: np.ndarray, labels: np.ndarray) -> float:
    """Standard error of the mean of shares of positives, for test samples drawn anew (DeLong 1988).

    It is what a paired bootstrap gives, without draws: shares are linear in the samples.
    """
    kinds = [shares[labels == kind] for kind in (0, 1)]
    return float(sum(kind.var(ddof=1) / len(kind) for kind in kinds) ** 0.5)


def difference(
    first: Sequence[np.ndarray],
    second: Sequence[np.ndarray],
    labels: Sequence[np.ndarray],
    is_one_test: bool,
) -> dict[str, float]:
    """Mean AUC of the first scores less the second over seeds, and its error: of drawing the test parts,
    or of seeds where that is larger.

    is_one_test: all seeds have the same test part, so more seeds do not average the error of drawing it.
    """
    apart = [placed(a, y) - placed(b, y) for a, b, y in zip(first, second, labels, strict=True)]
    aucs = [shares[y == 1].mean() for shares, y in zip(apart, labels, strict=True)]
    seeds = len(aucs)
    if is_one_test:
        of_test = error_of(np.mean(apart, 0), labels[0])
    else:
        of_test = np.linalg.norm([error_of(*pair) for pair in zip(apart, labels, strict=True)]) / seeds
    of_seeds = np.std(aucs, ddof=1) / seeds**0.5 if seeds > 1 else 0
    return {"auc": round(float(np.mean(aucs)), 5), "error": round(float(max(of_test, of_seeds)), 5)}
