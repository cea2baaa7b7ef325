"""Streams of row numbers for measuring caches: skewed as published workloads are. numpy only.

A stream gives the rows of batch after batch, [N] int64 with repeats, the same for the same seed. Its
size is a scale: a tenth of the rows, slots and lookups misses a tenth as often.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from benchmarks.workload import CRITEO_KAGGLE


@dataclass(frozen=True)
class Stream:
    """Tables of these sizes end to end; each batch draws `lookups` rows of each by Zipf's law.

    drift: the share of rows that swap their popularity with another row's before every batch.
    """

    name: str
    num_rows: tuple[int, ...]
    lookups: int
    zipf: float = 1.05
    drift: float = 0.0
    seed: int = 0

    @property
    def rows(self) -> int:
        return sum(self.num_rows)

    def batches(self, count: int) -> Iterator[np.ndarray]:
        """The rows of batch 0, 1, ..."""
        rng = np.random.default_rng(self.seed)
        tables = self._tables()
        for _ in range(count):
            yield np.concatenate([table.draw(self.lookups, rng) for table in tables])
            for table in tables:
                table.swap(int(table.row_of.size * self.drift), rng)

    def by_popularity(self) -> np.ndarray:
        """All rows, the most popular at the start first."""
        chance = np.concatenate([table.chance() for table in self._tables()])
        return np.argsort(-chance, kind="stable").astype(np.int64)

    def _tables(self) -> "list[_Table]":
        rng = np.random.default_rng(self.seed + 1)
        firsts = np.cumsum([0, *self.num_rows])
        return [
            _Table(first, size, self.zipf, rng)
            for first, size in zip(firsts, self.num_rows, strict=False)
        ]


class _Table:
    def __init__(self, first: int, size: int, zipf: float, rng: np.random.Generator) -> None:
        self.first = first
        self.weights = np.arange(1.0, size + 1) ** -zipf
        self.cumulated = np.cumsum(self.weights)
        self.row_of = rng.permutation(size)  # of each rank

    def draw(self, count: int, rng: np.random.Generator) -> np.ndarray:
        points = np.sort(rng.random(count)) * self.cumulated[-1]
        ranks = np.minimum(np.searchsorted(self.cumulated, points), self.row_of.size - 1)
        return self.first + self.row_of[ranks]

    def swap(self, count: int, rng: np.random.Generator) -> None:
        chosen = rng.choice(self.row_of.size, 2 * count, replace=False, shuffle=True)
        a, b = chosen[:count], chosen[count:]
        self.row_of[a], self.row_of[b] = self.row_of[b].copy(), self.row_of[a].copy()

    def chance(self) -> np.ndarray:
        """How likely each row is to be drawn."""
        chance = np.empty(self.row_of.size)
        chance[self.row_of] = self.weights / self.cumulated[-1]
        return chance


def scaled(sizes: tuple[int, ...], scale: int) -> tuple[int, ...]:
    return tuple(max(size // scale, 1) for size in sizes)


STREAMS = {
    "zipf": Stream("zipf", (2_500_000,), 10_240),
    "criteo": Stream("criteo", scaled(CRITEO_KAGGLE, 32), 256),
    "drift": Stream("drift", (2_500_000,), 10_240, drift=0.0002),
    # One of the 26 equal tables of `benchmarks.gpu_parts.cache`: 80 GB of 516 bytes, batch 65,536.
    "gpu": Stream("gpu", (5_963_029,), 65_536),
}
