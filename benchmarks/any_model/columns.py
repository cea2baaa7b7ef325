"""Synthetic columns: ids of small tables, some skewed, dense values, histories with padding, labels."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

BATCH_SIZE = 64
NUM_BATCHES = 4  # cycled: rows fall behind and come back, and many are never touched
MAX_LENGTH = 6
ITEMS, CATEGORIES = 500, 40
ROWS = {"c0": 10, "c1": 60, "c2": 300, "c3": 2000, "c4": 17}
DENSE = ("d0", "d1")


@dataclass(frozen=True)
class Columns:
    """ids: [B] of ROWS. dense: [B] float32. item, category: [B], never 0.

    histories, negatives: item and category [B, T], 0 behind length [B] >= 1. labels: [B, 2] of 0 and 1.
    """

    ids: dict[str, np.ndarray]
    dense: dict[str, np.ndarray]
    item: np.ndarray
    category: np.ndarray
    history: tuple[np.ndarray, np.ndarray]
    negatives: tuple[np.ndarray, np.ndarray]
    length: np.ndarray
    labels: np.ndarray


def columns(batch_size: int = BATCH_SIZE, num_batches: int = NUM_BATCHES) -> list[Columns]:
    random = np.random.default_rng(20)
    return [_columns(random, batch_size) for _ in range(num_batches)]


def _columns(random: np.random.Generator, size: int) -> Columns:
    ids = {name: (rows * random.random(size) ** 3).astype(np.int64) for name, rows in ROWS.items()}
    dense = {name: random.standard_normal(size).astype(np.float32) for name in DENSE}
    length = random.integers(1, MAX_LENGTH + 1, size)
    inside = np.arange(MAX_LENGTH) < length[:, None]

    def sequence(rows: int) -> np.ndarray:
        return np.where(inside, random.integers(1, rows, (size, MAX_LENGTH)), 0)

    return Columns(
        ids,
        dense,
        random.integers(1, ITEMS, size),
        random.integers(1, CATEGORIES, size),
        (sequence(ITEMS), sequence(CATEGORIES)),
        (sequence(ITEMS), sequence(CATEGORIES)),
        length,
        random.integers(0, 2, (size, 2)).astype(np.float32),
    )
