"""Frequencies: how often the ids of a table are read, in classes of equal chance.

    ids = Frequencies.zipf(10_000_000, 1.05)
    ids.distinct(8192)                  # mean number of different ids among so many lookups
    ids.head(1000), ids.tail(1000)      # the 1,000 hottest ids, and all but these

Lookups are independent draws: an id of chance p is among n lookups with 1 - (1 - p)^n. Ids are in
order of falling chance, as `prepare` numbers them.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np

_EXACT = 1024  # ranks of a law that are classes of one id; larger ranks share classes
_GROWTH = 1.03  # ratio of the ranks at which two classes in a row end
_EVEN = 1e-9  # an exponent below counts as 0: its effect drowns in rounding


@dataclass(frozen=True, eq=False)
class Frequencies:
    """K classes of ids by falling chance.

    ids: [K] float64, number of ids in each class.
    chances: [K], chance that a lookup reads one given id of the class; over all ids they sum to 1,
        unless these are a `head` or a `tail`.
    """

    ids: np.ndarray
    chances: np.ndarray

    def __post_init__(self) -> None:
        assert (np.diff(self.chances) <= 0).all(), "classes are in order of falling chance"

    @staticmethod
    def of_counts(counts: np.ndarray) -> Frequencies:
        """Counts how often each id was read, in any order; ids never read have a chance of 0."""
        distinct, ids = np.unique(counts, return_counts=True)
        total = max(float(counts.sum()), 1.0)
        return Frequencies(ids[::-1].astype(float), distinct[::-1] / total)

    @staticmethod
    @functools.lru_cache(maxsize=4096)
    def zipf(rows: int, exponent: float) -> Frequencies:
        """Zipf's law: the id of rank k has a chance in proportion to k^-exponent; 0: all are alike.

        Beyond rank 1,024, classes whose ends grow by 3 % each take the integral of the law.
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
        """[K]: chance that an id of each class is among so many lookups: 1 - (1 - p)^lookups.

        A number of lookups below one is the chance that one is made.
        """
        if lookups <= 1:
            return max(lookups, 0.0) * self.chances
        return -np.expm1(lookups * np.log1p(-np.minimum(self.chances, 1 - 1e-16)))

    def distinct(self, lookups: float) -> float:
        """Mean number of different ids of these classes among so many lookups."""
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

    def sums_by_owner(self, values: np.ndarray, num_ranks: int) -> np.ndarray:
        """[num_ranks]: sums of a value per id [K] over the ids of a rank; rank j % num_ranks owns id j.

        Of a class, every rank owns `rounds` ids; the first `left` ranks from its start on, one more.
        """
        starts = np.cumsum(self.ids) - self.ids
        rounds, left = np.divmod(self.ids, num_ranks)
        first = (starts % num_ranks).astype(np.int64)
        positions = np.concatenate([first, first + left.astype(np.int64)])  # [2 K]
        steps = np.bincount(positions, np.concatenate([values, -values]), 2 * num_ranks + 1)
        more = np.cumsum(steps[:-1]).reshape(2, num_ranks).sum(0)
        return float(rounds @ values) + np.maximum(more, 0.0)

    def with_companions(self, num: int) -> Frequencies:
        """Frequencies where every id brings num - 1 companions, drawn once over all rows.

        So `num` times as many ids are read, each with 1 / num of the chance. Where these are more
        than there are rows, the chance of rarely read ids is spread evenly over the rows left.
        """
        if num == 1:
            return self
        ids, chances = self.ids * num, self.chances / num
        behind = self.rows - np.cumsum(ids)
        spread = np.maximum(1 - np.cumsum(ids * chances), 0.0) / np.where(behind > 0, behind, 1)
        kept = int(((behind > 0) & (spread <= chances)).sum())
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
    middles = ends + 0.5
    if exponent == 1:
        return np.diff(np.log(middles))
    return np.diff(middles ** (1 - exponent)) / (1 - exponent)
