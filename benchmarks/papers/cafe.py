"""CAFE (Zhang et al., SIGMOD 2024, arXiv 2312.03256), an arm of `benchmarks.dynamic` in plain PyTorch.

Hot keys own rows, all others share rows by a hash. `HotSketch` finds the hot ones: buckets of four slots
(key, score, row); the score of a key is the sum of its gradients' norms, which have a mean of 1 in each
batch and feature. A key whose score reaches the threshold gets an own row, which begins as its shared
one; it loses it when scores decay below the threshold. All features share one sketch and its own rows.

What the paper leaves open is as in its published code: a new key replaces the least of a full bucket and
adds to its score, unless that one is hot; there are as many buckets as own rows; scores decay when the
scores added since are ten thresholds a bucket. A new own row begins without optimizer state.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from hotrows import Batch
from hotrows.data.raw.values import mix64

SLOTS = 4  # of a bucket
SLOT_BYTES = 12  # key, score, row: four bytes each
LR, EPS = 0.05, 1e-10  # Adagrad's, as in `benchmarks.dynamic`


@dataclass(frozen=True)
class Setting:
    """threshold: score of a hot key; shared: fraction of bytes for shared rows; decay: of scores."""

    threshold: float
    shared: float
    decay: float = 0.99


class HotSketch:
    """The keys of high scores. rows: own rows that there are, and buckets."""

    def __init__(self, rows: int, threshold: float, decay: float) -> None:
        self.threshold, self.decay = threshold, decay
        self.buckets: list[list[list]] = [[] for _ in range(rows)]  # of slots [key, score, row or None]
        self.free = list(range(rows))[::-1]
        self.added = 0.0

    def row(self, key: int) -> int | None:
        """The own row of a key."""
        for slot in self.buckets[key % len(self.buckets)]:
            if slot[0] == key:
                return slot[2]
        return None

    def add(self, key: int, score: float) -> int | None:
        """Adds to the score of a key; returns the row that it got by that."""
        bucket = self.buckets[key % len(self.buckets)]
        self.added += score
        for slot in bucket:
            if slot[0] == key:
                slot[1] += score
                if slot[2] is None and slot[1] >= self.threshold and self.free:
                    slot[2] = self.free.pop()
                    return slot[2]
                return None
        if len(bucket) < SLOTS:
            bucket.append([key, score, None])
            return None
        least = min(bucket, key=lambda slot: slot[1])
        if least[2] is None:
            least[0], least[1] = key, least[1] + score
        return None

    def fade(self) -> None:
        """Lowers all scores, if much was added since; keys below the threshold lose their rows."""
        if self.added <= 10 * len(self.buckets) * self.threshold:
            return
        self.added = 0.0
        for slot in (slot for bucket in self.buckets for slot in bucket):
            slot[1] *= self.decay
            if slot[2] is not None and slot[1] < self.threshold:
                self.free.append(slot[2])
                slot[2] = None


class CafeRows:
    """The rows of a factorization machine, with the calls of `hotrows.Embedding` that training makes.

    num_bytes: of each feature, what its rows and its part of the sketch may take.
    """

    def __init__(self, num_bytes: list[int], dim: int, setting: Setting, seed: int) -> None:
        record = 2 * 4 * (dim + 1)  # weights and sums of squares, of a vector and a weight
        own = sum(num_bytes) * (1 - setting.shared) / (record + SLOTS * SLOT_BYTES)
        self.own = max(int(own), 1)
        self.shared = [max(int(n * setting.shared / record), 1) for n in num_bytes]
        self.sketch = HotSketch(self.own, setting.threshold, setting.decay)
        self.begin = [self.own + sum(self.shared[:f]) for f in range(len(num_bytes))]
        rows = self.own + sum(self.shared)
        draw = torch.Generator().manual_seed(seed)
        vectors = torch.randn(rows, dim, generator=draw) * 0.1
        self.weights = torch.cat([vectors, torch.zeros(rows, 1)], 1)
        self.squares = torch.zeros_like(self.weights)

    def resolved(self, batches):
        return batches

    def plan(self, batch: Batch, step: int | None = None) -> "Places":
        keys = batch.ids.view(len(self.shared), -1).numpy()
        with np.errstate(over="ignore"):
            mixed = mix64(keys.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15))
            sizes, begin = np.array(self.shared, np.uint64)[:, None], np.array(self.begin)[:, None]
            shared = (mixed % sizes).astype(np.int64) + begin
            named = mix64(mixed + np.arange(1, len(keys) + 1, dtype=np.uint64)[:, None])
        distinct, inverse = np.unique(named, return_inverse=True)
        own = [self.sketch.row(key) for key in distinct.tolist()]
        own = np.array([-1 if row is None else row for row in own])[inverse].reshape(keys.shape)
        rows = np.where(own < 0, shared, own)
        return Places(named, torch.from_numpy(shared), torch.from_numpy(rows))

    def lookup(self, places: "Places") -> "Places":
        read = self.weights[places.rows.T.reshape(-1)]  # a sample after the other
        places.leaves = [read[:, :-1].clone().requires_grad_(), read[:, -1:].clone().requires_grad_()]
        return places

    def update(self, places: "Places", vectors: "Places") -> None:
        gradient = torch.cat([leaf.grad for leaf in vectors.leaves], 1)
        rows, inverse = places.rows.T.reshape(-1).unique(return_inverse=True)
        summed = torch.zeros(len(rows), gradient.shape[1]).index_add_(0, inverse, gradient)
        self.squares[rows] += summed**2
        self.weights[rows] -= LR * summed / (self.squares[rows].sqrt() + EPS)
        norms = gradient[:, :-1].norm(dim=1).view(-1, len(self.shared)).T
        scores = norms / norms.mean(1, keepdim=True).clamp(min=1e-30)
        self.sketch.fade()
        named, shared = places.named.reshape(-1).tolist(), places.shared.reshape(-1).tolist()
        for key, score, row in zip(named, scores.reshape(-1).tolist(), shared, strict=True):
            if (own := self.sketch.add(key, score)) is not None:
                self.weights[own], self.squares[own] = self.weights[row], 0.0


@dataclass
class Places:
    """Keys of a batch [F, B] as the sketch names them, their shared rows, and the rows that they read."""

    named: np.ndarray
    shared: Tensor
    rows: Tensor
    leaves: list[Tensor] | None = None
