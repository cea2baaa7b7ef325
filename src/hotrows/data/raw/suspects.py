"""Columns that are other than they look: numbers that are ids, times and others that tell the label."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import combinations

import numpy as np

from hotrows.data.raw.kinds import Column
from hotrows.schema import Label

_LEAST_VALUES, _LEAST_COUNT = 50, 3  # distinct numbers, and rows of each on average
_SPREAD = 4  # times the variance of counts that chance gives
_ALIKE = 0.5  # correlation of neighbours from which on numbers are amounts
_GIVES_AWAY, _LEAST_OF_EACH = 0.99, 20
_AFTER_NAME = re.compile(
    r"status|cancel|refund|return|conver|deliver|resol|complet|closed|attribut|churn|outcome|finish|check_?out",
    re.IGNORECASE,
)
_AFTER, _ABOVE_ALONE = 0.8, 0.1  # AUC of a delay, or of missing times; of a delay above that of its times


def neighbours_unlike(counts: Counter) -> float | None:
    """The correlation of log counts of neighbouring whole numbers, if it is below 0.5 as that of ids.

    Of amounts, what is near is about as frequent; of ids any may be popular. None: of amounts, and where
    numbers are few or rare, counts differ by chance, or amounts are rounded to fives or often 0.
    """
    numbers = np.array(sorted(counts))
    often = np.array([counts[x] for x in numbers.tolist()], np.float64)
    if len(often) < _LEAST_VALUES or often.mean() < _LEAST_COUNT or often.var() < _SPREAD * often.mean():
        return None
    is_round = np.isin(numbers % 5, (0, 4))
    if often[is_round].sum() > 0.6 * often.sum() or 4 * counts[0] > often.sum():
        return None
    logs = np.log(often)
    alike = float(np.corrcoef(logs[:-1], logs[1:])[0, 1])
    return alike if alike < _ALIKE else None


def giveaways(columns: Sequence[Column], label: Label, target: Column) -> Iterator[tuple[str, float]]:
    """Names of columns whose values alone rank the label with an AUC above 0.99, and that AUC."""
    y = _ones(label, target)
    for column in columns:
        if y is None or column is target or column.kind not in ("number", "text", "time"):
            continue
        auc = max(_aucs(column, y))
        if auc > _GIVES_AWAY:
            yield column.name, auc


def times_after(times: Sequence[Column], label: Label, target: Column) -> dict[str, str]:
    """Names of times that seem to be known only after the label, and why.

    Their names say so, or they rank the label, by their values or by which are missing; or the delay
    between two does, which neither does alone: then it is the one that is later on average.
    """
    why = {c.name: f"{word[0]!r} is in its name" for c in times if (word := _AFTER_NAME.search(c.name))}
    y = _ones(label, target)
    if y is None:
        return why
    seconds = {c.name: np.array([np.nan if x is None else x for x in c.values], float) for c in times}
    alone = {name: _either(x, y) for name, x in seconds.items()}
    for name, x in seconds.items():
        by_missing = _either(np.isnan(x).astype(float), y)
        if by_missing > _AFTER:
            why.setdefault(name, f"whether it is missing ranks the label with an AUC of {by_missing:.4f}")
        elif alone[name] > _GIVES_AWAY:
            why.setdefault(name, f"it ranks the label with an AUC of {alone[name]:.4f}")
    for first, second in combinations(seconds, 2):
        delay = seconds[second] - seconds[first]
        by_delay, has = _either(delay, y), ~np.isnan(delay)
        least = max(_AFTER, max(alone[first], alone[second]) + _ABOVE_ALONE)
        if first in why or second in why or by_delay < least:
            continue
        later, other = (second, first) if delay[has].mean() > 0 else (first, second)
        why[later] = f"the time between {other!r} and it ranks the label with an AUC of {by_delay:.4f}"
    return why


def _ones(label: Label, target: Column) -> np.ndarray | None:
    """1 and 0 for each row, NaN if it has no label; None: of other labels, or of few rows of either."""
    if not label.values.binary:
        return None
    y = np.array([_is_one(x, label) if x is not None else np.nan for x in target.values])
    return y if min((y == 1).sum(), (y == 0).sum()) >= _LEAST_OF_EACH else None


def _either(scores: np.ndarray, y: np.ndarray) -> float:
    """The AUC of scores or of their negatives, without rows that have none."""
    has = ~np.isnan(y) & ~np.isnan(scores)
    auc = _auc(scores[has], y[has])
    return max(auc, 1 - auc)


def _is_one(value: object, label: Label) -> bool:
    if label.positive:
        return str(value).strip() in label.positive
    return float(value) >= (1 if label.at_least is None else label.at_least)  # type: ignore[arg-type]


def _aucs(column: Column, y: np.ndarray) -> Iterator[float]:
    """By size, of numbers; and by the mean label that a value has in every other row."""
    is_known = ~np.isnan(y)
    if column.kind != "text":
        yield _either(np.array([np.nan if x is None else x for x in column.values], np.float64), y)
    _, ids = np.unique([str(x) for x in column.values], return_inverse=True)
    fits, tests = is_known & (np.arange(len(y)) % 2 == 0), is_known & (np.arange(len(y)) % 2 == 1)
    counts = np.bincount(ids[fits], minlength=ids.max() + 1)
    ones = np.bincount(ids[fits], y[fits], minlength=ids.max() + 1)
    means = (ones + y[fits].mean()) / (counts + 1)
    yield _auc(means[ids[tests]], y[tests])


def _auc(scores: np.ndarray, y: np.ndarray) -> float:
    """The chance that a 1 is above a 0, ties half; 0.5 where either is missing."""
    ones, zeros = np.sort(scores[y == 1]), np.sort(scores[y == 0])
    if not len(ones) or not len(zeros):
        return 0.5
    below, up_to = np.searchsorted(zeros, ones, "left"), np.searchsorted(zeros, ones, "right")
    return float((below + up_to).mean() / 2 / len(zeros))
