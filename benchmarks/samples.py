"""Samples as comparisons of models see them: ids by field, dense values, histories, labels.

numpy only: it runs in every environment.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np


@dataclass(frozen=True)
class Features:
    """What a sample has.

    rows: of the table of each field. target: the field that a history is compared with, whose table
        it reads; None: there is no history. max_length: of the longest.
    """

    rows: dict[str, int] = field(default_factory=dict)
    num_dense: int = 0
    target: str | None = None
    max_length: int = 0
    labels: tuple[str, ...] = ("label",)

    @property
    def fields(self) -> tuple[str, ...]:
        return tuple(self.rows)


class Samples(NamedTuple):
    ids: np.ndarray  # [F, B] int64, numbered within each field
    dense: np.ndarray  # [B, num_dense] float32
    labels: np.ndarray  # [B] float32, of several labels [B, T]
    history: np.ndarray  # [N] int64, ids of the target's field
    offsets: np.ndarray  # [B + 1] int64

    @property
    def size(self) -> int:
        return len(self.labels)


def cut(samples: Samples, first: int, end: int) -> Samples:
    """The samples first .. end - 1."""
    begin, stop = samples.offsets[first], samples.offsets[min(end, samples.size)]
    return Samples(
        np.ascontiguousarray(samples.ids[:, first:end], np.int64),
        samples.dense[first:end],
        samples.labels[first:end],
        samples.history[begin:stop].astype(np.int64),
        samples.offsets[first : end + 1] - begin,
    )


def take(samples: Samples, places: np.ndarray) -> Samples:
    """The samples at these places, in their order."""
    begins, lengths = samples.offsets[places], np.diff(samples.offsets)[places]
    offsets = ends_of(lengths)
    elements = np.arange(offsets[-1]) + np.repeat(begins - offsets[:-1], lengths)
    return Samples(
        np.ascontiguousarray(samples.ids[:, places], np.int64),
        samples.dense[places],
        samples.labels[places],
        samples.history[elements].astype(np.int64),
        offsets,
    )


def batches(samples: Samples, size: int) -> list[Samples]:
    """All samples in order, `size` at a time; the last batch may be smaller."""
    return [cut(samples, first, first + size) for first in range(0, samples.size, size)]


def padded(samples: Samples, length: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """[B, L] ids of the histories with zeros behind the last, and their lengths [B].

    length: L; None: the longest history's.
    """
    lengths = np.diff(samples.offsets)
    width = max(int(lengths.max(initial=0)), 1) if length is None else length
    ids = np.zeros((samples.size, width), np.int64)
    ids[np.arange(width) < lengths[:, None]] = samples.history
    return ids, lengths


def random_lengths(
    rng: np.random.Generator, size: int, mean: float, longest: int, shortest: int = 1
) -> np.ndarray:
    """[size] lengths of histories, skewed: lognormal with about this mean, cut at both ends."""
    lengths = rng.lognormal(0.0, 0.9, size * 4)
    low, high = 0.0, float(longest)
    for _ in range(40):  # the scale that gives the mean after the cut, by bisection
        scale = (low + high) / 2
        mean_length = np.clip(np.rint(lengths * scale), shortest, longest).mean()
        low, high = (scale, high) if mean_length < mean else (low, scale)
    return np.clip(np.rint(lengths[:size] * scale), shortest, longest).astype(np.int64)


def ends_of(lengths: np.ndarray) -> np.ndarray:
    """[B + 1] offsets of lists of these lengths."""
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
