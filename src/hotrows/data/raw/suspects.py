"""Columns that are other than they look: numbers that are ids, times and others that tell the label."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import combinations

import numpy as np

from hotrows.data.raw.sampled_rows import Column
from hotrows.schema import Label

_LEAST_VALUES, _LEAST_COUNT = 50, 3  # distinct numbers, and rows of each on average
_SPREAD = 4  # times the variance of counts that chance gives
_ALIKE = 0.5  # correlation of neighbours from which on numbers are amounts
_CERTAIN = 8  # standard errors by which labels of one value are alike
_SPECIAL = 0.05  # share of the rows of a value, such as 0 or -1, that is not compared with its neighbours
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


def labels_of_neighbours(column: Column, y: np.ndarray | None) -> float | None:
    """How alike the labels of neighbouring numbers are, where those of one number are 1: near 1 of
    amounts, near 0 of ids. None where numbers are few or rare, or say nothing certain of the label.

    y: the label of each row, NaN where it is missing.
    """
    if y is None or len(column.counts) < _LEAST_VALUES:
        return None
    x = np.array([np.nan if value is None else value for value in column.values], np.float64)
    has = ~np.isnan(x) & ~np.isnan(y)
    errors = y[has] - y[has].mean()
    _, place, counts = np.unique(x[has], return_inverse=True, return_counts=True)
    sums, squares = np.bincount(place, errors), np.bincount(place, errors**2)
    usual = counts <= max(_SPECIAL * len(place), _LEAST_COUNT)
    sums, squares, counts = sums[usual], squares[usual], counts[usual]
    if len(counts) < _LEAST_VALUES or counts.mean() < 2:
        return None
    # Products of the errors of two rows of one value, and of two neighbours, weighted by numbers of rows.
    same, near = (sums**2 - squares) / counts, sums[1:] * sums[:-1]
    weights = np.sqrt(counts[1:] * counts[:-1])
    chance = errors.var() * np.sqrt(2 * (1 - 1 / counts).sum())
    if same.sum() <= _CERTAIN * chance:
        return None
    return float((near / weights).sum() / weights.sum() * (counts - 1).sum() / same.sum())


def giveaways(columns: Sequence[Column], label: Label, target: Column) -> Iterator[str]:
    """Notes of columns whose values alone rank the label with an AUC above 0.99."""
    y = outcomes(label, target)
    for column in columns:
        if (
            not label.values.binary
            or y is None
            or column is target
            or column.kind not in ("number", "text", "time")
        ):
            continue
        auc = max(_aucs(column, y))
        if auc > _GIVES_AWAY:
            yield (
                f"{column.name!r} alone ranks the label with an AUC of {auc:.4f}: is it known before the "
                f"label? If not, leave it out"
            )


def times_after(times: Sequence[Column], label: Label, target: Column) -> dict[str, str]:
    """Names of times that seem to be known only after the label, and why.

    Their names say so, or they rank the label, by their values or by which are missing; or the delay
    between two does, which neither does alone: then it is the one that is later on average.
    """
    why = {c.name: f"{word[0]!r} is in its name" for c in times if (word := _AFTER_NAME.search(c.name))}
    y = outcomes(label, target)
    if y is None or not label.values.binary:
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


def outcomes(label: Label, target: Column) -> np.ndarray | None:
    """The label of each row, a number or 1 and 0, NaN if it has none; None: few rows of 1, or of 0."""
    is_binary = label.values.binary
    values = (np.nan if x is None else _is_one(x, label) if is_binary else x for x in target.values)
    y = np.array([*values], np.float64)
    return y if not is_binary or min((y == 1).sum(), (y == 0).sum()) >= _LEAST_OF_EACH else None


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
