"""Frequencies: how often the ids of a table are read, in classes of equal chance.

    ids = Frequencies.zipf(10_000_000, 1.05)
    ids.distinct(8192)                  # different ids among so many lookups, on the mean
    ids.head(1000), ids.tail(1000)      # the hot ones, and the others

Lookups are independent draws: an id of chance p is among n lookups with 1 - (1 - p)^n. Ids stand by
falling chance, as `prepare` numbers them.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np

_EXACT = 1024  # ranks of a law that are a class of their own; those behind them come in classes
_GROWTH = 1.03  # of the ranks at which classes end
_EVEN = 1e-9  # an exponent below is none: what is left of it drowns in rounding


@dataclass(frozen=True, eq=False)
class Frequencies:
    """Classes by falling chance: ids [K] float64, how many; chances [K], of a lookup for one of them.

    Chances of all ids sum to 1, but for a `head` or a `tail`.
    """

    ids: np.ndarray
    chances: np.ndarray

    def __post_init__(self) -> None:
        assert (np.diff(self.chances) <= 0).all(), "classes stand by falling chance"

    @staticmethod
    def of_counts(counts: np.ndarray) -> Frequencies:
        """From how often each id was read, in any order; ids never read have a chance of 0."""
        distinct, ids = np.unique(counts, return_counts=True)
        total = max(float(counts.sum()), 1.0)
        return Frequencies(ids[::-1].astype(float), distinct[::-1] / total)

    @staticmethod
    @functools.lru_cache(maxsize=4096)
    def zipf(rows: int, exponent: float) -> Frequencies:
        """The chance of the id of rank k is in proportion to k^-exponent; 0: all are alike.

        Behind rank 1,024 classes of 3 % more ranks each take the integral of the law.
        """
        if rows < 1 or exponent < 0:
            raise ValueError(
                f"Zipf's law needs at least one row and an exponent of at least 0, not {rows} rows "
                f"and exponent {exponent}"
            )
        if exponent < _EVEN:
            return Frequencies(np.array([float(rows)]), np.array([1 / rows]))
        ends = _class_ends(rows)
        ids = np.diff(ends)
        weights = np.where(ids == 1, ends[1:] ** -exponent, _integral(ends, exponent) / ids)
        return Frequencies(ids, weights / (weights * ids).sum())

    @property
    def rows(self) -> float:
        return float(self.ids.sum())

    def read(self, lookups: float) -> np.ndarray:
        """[K]: the chance that an id of each class is among so many lookups: 1 - (1 - p)^lookups.

        Less than one lookup is one that is made so seldom.
        """
        if lookups <= 1:
            return max(lookups, 0.0) * self.chances
        return -np.expm1(lookups * np.log1p(-np.minimum(self.chances, 1 - 1e-16)))

    def distinct(self, lookups: float) -> float:
        """The mean number of different ids among so many lookups, whatever else they read."""
        return float(self.ids @ self.read(lookups))

    def head(self, num: float) -> Frequencies:
        """The `num` ids that are read most often."""
        return self._cut(0, num)

    def tail(self, num: float) -> Frequencies:
        """All but the `num` ids that are read most often."""
        return self._cut(num, self.rows)

    def _cut(self, first: float, end: float) -> Frequencies:
        ends = np.cumsum(self.ids)
        ids = np.clip(np.minimum(ends, end) - np.maximum(ends - self.ids, first), 0, None)
        kept = ids > 0
        return Frequencies(ids[kept], self.chances[kept])

    def dealt(self, values: np.ndarray, num_ranks: int) -> np.ndarray:
        """[num_ranks]: sums of a value per id [K], id j going to rank j % num_ranks."""
        starts = np.cumsum(self.ids) - self.ids
        whole, left = np.divmod(self.ids, num_ranks)
        steps = np.zeros(2 * num_ranks + 1)
        at = (starts % num_ranks).astype(np.int64)
        np.add.at(steps, at, values)
        np.add.at(steps, at + left.astype(np.int64), -values)
        more = np.cumsum(steps[:-1]).reshape(2, num_ranks).sum(0)
        return float(whole @ values) + np.maximum(more, 0.0)

    def with_companions(self, num: int) -> Frequencies:
        """Every id is read together with num - 1 others of its own, drawn once over all rows.

        So the ids that are read are `num` times as many, each with a share of the chance. Where
        that is more than there are rows, what is rarely read is spread evenly over those left.
        """
        if num == 1:
            return self
        ids, chances = self.ids * num, self.chances / num
        behind = self.rows - np.cumsum(ids)
        rest = np.maximum(1 - np.cumsum(ids * chances), 0.0) / np.where(behind > 0, behind, 1)
        kept = int(((behind > 0) & (rest <= chances)).sum())
        left = self.rows - float(ids[:kept].sum())
        rare = max(1 - float(ids[:kept] @ chances[:kept]), 0.0) / left
        return Frequencies(np.append(ids[:kept], left), np.append(chances[:kept], rare))


def _class_ends(rows: int) -> np.ndarray:
    """[K + 1]: 0, and the last rank of each class."""
    exact = np.arange(min(rows, _EXACT) + 1, dtype=float)
    if rows <= _EXACT:
        return exact
    num = int(np.ceil(np.log(rows / _EXACT) / np.log(_GROWTH)))
    return np.append(exact, np.unique(np.round(np.geomspace(_EXACT, rows, num + 1)))[1:])


def _integral(ends: np.ndarray, exponent: float) -> np.ndarray:
    """[K]: the sum of k^-exponent over the ranks of each class, by the midpoint rule."""
    at = ends + 0.5
    if exponent == 1:
        return np.diff(np.log(at))
    return np.diff(at ** (1 - exponent)) / (1 - exponent)
