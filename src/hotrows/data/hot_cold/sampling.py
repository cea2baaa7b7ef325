"""Samples of a training part: blocks of rows, counts of their ids, and shares estimated from them.

Two samples are drawn in blocks of consecutive rows, so that mapped shards are read in pieces. Every
stretch of the part gives one block to each:

    blocks of the part    . c . . m . | m . . c . . | . . c m . .
                          c: counted, to choose the hot ids; m: measured, to say how good they are

A row looks hotter in the sample that chose it than it is; the measured sample never saw the choice,
so its shares are without bias. Rows of a block resemble one another, so the shares of the blocks
say how wide an interval is: Wilson's, over as many independent trials as the blocks are worth.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from hotrows.data.encode.encoder import readers_of
from hotrows.data.encode.passes import Progress
from hotrows.data.rows import ends_of, joined_offsets
from hotrows.data.stored.part import Part
from hotrows.schema import Schema

_BLOCK_ROWS = 4096  # of a block, at most
_BLOCKS = 256  # of a sample, where rows allow


@dataclass(frozen=True)
class Estimate:
    """A share that was measured on a sample; the true one is from `low` to `high`, at the
    confidence of the profile."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{100 * self.value:.1f} % ({100 * self.low:.1f} to {100 * self.high:.1f} %)"


def two_samples(rows: int, sample: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Draws two disjoint sets of blocks: each [K, 2] int64, first row and end.

    The part is cut into K stretches; each has a block, drawn at random, in either sample.
    """
    num_rows = max(1, round(sample * rows))
    block_rows = min(max(1, num_rows // _BLOCKS), _BLOCK_ROWS)
    num_blocks = -(-rows // block_rows)
    stretches = min(-(-num_rows // block_rows), num_blocks // 2)
    bounds = np.arange(stretches + 1) * num_blocks // stretches
    first, sizes = bounds[:-1], np.diff(bounds)
    random = np.random.PCG64(seed & (1 << 64) - 1).random_raw(2 * stretches).reshape(2, -1) >> 1
    one = random[0].astype(np.int64) % sizes
    other = (one + 1 + random[1].astype(np.int64) % (sizes - 1)) % sizes
    starts = [(first + chosen) * block_rows for chosen in (one, other)]
    counted, measured = (np.stack([start, np.minimum(start + block_rows, rows)], 1) for start in starts)
    return counted, measured


@dataclass(frozen=True)
class Accesses:
    """Counts of the lookups of a vocabulary: ids [I] int64, ascending; counts [I] int64.

    rows: ids in all, looked up or not; bytes_per_row: bytes of one of them.
    """

    vocabulary: str
    rows: int
    bytes_per_row: int
    ids: np.ndarray
    counts: np.ndarray

    @property
    def bytes(self) -> int:
        return self.rows * self.bytes_per_row


def count_accesses(
    sample: Sample, schema: Schema, bytes_per_row: Mapping[str, int], progress: Progress
) -> Iterator[Accesses]:
    done = 0
    for name, readers in readers_of(schema).items():
        rows = schema.rows_of(readers[0].name)
        columns = [sample.column(feature.name).ids for feature in readers]
        yield Accesses(name, rows, bytes_per_row[name], *_counts(np.concatenate(columns), rows))
        done += len(readers)
        progress("counting", done, len(schema.id_features))


def _counts(ids: np.ndarray, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Counts each distinct id, ascending, in memory that grows with `ids` alone."""
    if rows <= len(ids):
        counts = np.bincount(ids, minlength=rows)
        distinct = np.flatnonzero(counts)
        return distinct, counts[distinct]
    distinct, counts = np.unique(ids, return_counts=True)
    return distinct.astype(np.int64), counts


def interval(hits: np.ndarray, sizes: np.ndarray, confidence: float) -> Estimate:
    """Estimates the share of hits with its Wilson interval; hits, sizes: [K] int64, per block.

    If neighbouring blocks differ more than by chance, a block is worth fewer trials than it has (Kish's
    design effect). A slow drift through the part does not count: every stretch of it has its block.
    """
    total = int(sizes.sum())
    if total == 0:
        return Estimate(0.0, 0.0, 1.0)  # no trial, so any share is possible
    p = float(hits.sum() / total)
    of_chance = p * (1 - p) / total
    n = float(total)
    if len(sizes) > 1 and of_chance > 0:
        steps = np.diff(hits - p * sizes)
        variance = len(sizes) / (2 * len(steps)) * float((steps**2).sum()) / total**2
        n = total / max(1.0, variance / of_chance)
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    middle, half = p + z * z / (2 * n), z * math.sqrt(p * (1 - p) / n + (z / (2 * n)) ** 2)
    scale = 1 + z * z / n
    return Estimate(p, max(0.0, (middle - half) / scale), min(1.0, (middle + half) / scale))


@dataclass(frozen=True)
class SampledIds:
    """The ids of a feature in a sample, [N].

    rows: [rows + 1] offsets of the ids of each row, None if each row has one; pieces: [K + 1] offsets
        of the ids of each piece.
    """

    ids: np.ndarray
    rows: np.ndarray | None
    pieces: np.ndarray


class Sample:
    """Mapped rows of blocks, in pieces within one shard each."""

    def __init__(self, part: Part, blocks: np.ndarray) -> None:
        self._places = {column.name: f for f, column in enumerate(part.columns.ids)}
        self._pieces = [piece for first, end in blocks.tolist() for piece in part.mapped(first, end)]
        self.sizes = np.array([len(piece) for piece in self._pieces])  # [K]
        self._starts = np.cumsum(self.sizes) - self.sizes

    def __len__(self) -> int:
        return int(self.sizes.sum())

    def column(self, feature: str) -> SampledIds:
        ids = [piece.values(f"ids/{feature}") for piece in self._pieces]
        bounds = [piece.bounds[feature] for piece in self._pieces if feature in piece.bounds]
        return SampledIds(
            ids=np.concatenate(ids),
            rows=joined_offsets(bounds) if bounds else None,
            pieces=ends_of(np.array([len(piece_ids) for piece_ids in ids])),
        )

    def hits(self, is_hit: np.ndarray) -> np.ndarray:
        """Counts the rows of each piece that are hits: [K] int64. is_hit: [rows] bool."""
        return np.add.reduceat(is_hit, self._starts, dtype=np.int64)
