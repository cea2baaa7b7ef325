"""Counts of ids, or of other whole numbers."""

from __future__ import annotations

import numpy as np


class IdCounts:
    """Counts ids, in memory that grows with the number of distinct ids."""

    def __init__(self) -> None:
        self._ids = np.zeros(0, np.int64)
        self._counts = np.zeros(0, np.int64)
        self._pending: list[np.ndarray] = []
        self._num_pending = 0

    def add(self, ids: np.ndarray) -> None:
        self._pending.append(ids.copy())
        self._num_pending += len(ids)
        if self._num_pending > max(1 << 20, len(self._ids)):
            self.merged()

    def merged(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns the distinct ids, ascending, and their counts."""
        self.join(*np.unique(np.concatenate([self._ids[:0], *self._pending]), return_counts=True))
        self._pending, self._num_pending = [], 0
        return self._ids, self._counts

    def join(self, ids: np.ndarray, num: np.ndarray) -> None:
        """Counts distinct ids, each of which was seen `num` times."""
        self._ids, place = np.unique(np.concatenate([self._ids, ids]), return_inverse=True)
        counts = np.zeros(len(self._ids), np.int64)
        counts[place[: len(self._counts)]] = self._counts
        counts[place[len(self._counts) :]] += num
        self._counts = counts
