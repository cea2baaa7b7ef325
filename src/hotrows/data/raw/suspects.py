"""Columns that are other than they look: numbers that are ids, and columns that give the label away."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from hotrows.data.raw.kinds import Column
from hotrows.schema import Label

_LEAST_VALUES, _LEAST_COUNT = 50, 3  # distinct numbers, and rows of each on average
_SPREAD = 4  # times the variance of counts that chance gives
_ALIKE = 0.5  # correlation of neighbours from which on numbers are amounts
_GIVES_AWAY, _LEAST_OF_EACH = 0.99, 20


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
    if not label.values.binary:
        return
    y = np.array([_is_one(x, label) if x is not None else np.nan for x in target.values])
    if min((y == 1).sum(), (y == 0).sum()) < _LEAST_OF_EACH:
        return
    for column in columns:
        if column is target or column.kind not in ("number", "text", "time"):
            continue
        auc = max(_aucs(column, y))
        if auc > _GIVES_AWAY:
            yield column.name, auc


def _is_one(value: object, label: Label) -> bool:
    if label.positive:
        return str(value).strip() in label.positive
    return float(value) >= (1 if label.at_least is None else label.at_least)  # type: ignore[arg-type]


def _aucs(column: Column, y: np.ndarray) -> Iterator[float]:
    """By size, of numbers; and by the mean label that a value has in every other row."""
    is_known = ~np.isnan(y)
    if column.kind != "text":
        values = np.array([np.nan if x is None else x for x in column.values], np.float64)
        has = is_known & ~np.isnan(values)
        auc = _auc(values[has], y[has])
        yield max(auc, 1 - auc)
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
