"""The slow obvious engine: an `nn.EmbeddingBag` per table, and `torch.optim`.

What `hotrows.Embedding` must equal: forward, backward, and after any number of steps. Row optimizers
that PyTorch lacks are written out, row by row, in the words of `hotrows.optim`.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from hotrows import FTRL, SGD, Adagrad, Batch, LazyAdam, RowWiseAdagrad, Table


class ReferenceEngine:
    """One bag per table; every feature that reads it calls it."""

    def __init__(self, tables: list[Table], weights: dict[str, Tensor], pooling=None) -> None:
        self.tables = tables
        self.pooling = pooling or {}
        self.bags = {t.name: nn.EmbeddingBag(t.rows, t.dim, mode="sum", sparse=True) for t in tables}
        for name, bag in self.bags.items():
            bag.weight.data.copy_(weights[name])
        self.optimizers = {t.name: _optimizer(t.optimizer, self.bags[t.name]) for t in tables}

    def vectors(self, batch: Batch) -> dict[tuple[str, str], Tensor]:
        """(feature, role) -> [B, D]."""
        vectors = {}
        for table in self.tables:
            for feature in table.features:
                f = batch.features.index(feature)
                bag = self.bags[table.name]
                vectors[feature, table.role] = self._lookup(bag, batch, f, feature)
        return vectors

    def update(self) -> None:
        for optimizer in self.optimizers.values():
            optimizer.step()
            optimizer.zero_grad()

    def _lookup(self, bag: nn.EmbeddingBag, batch: Batch, f: int, feature: str) -> Tensor:
        if batch.offsets is None:
            offsets = torch.arange(f * batch.size, (f + 1) * batch.size + 1)
        else:
            offsets = batch.offsets[f * batch.size : (f + 1) * batch.size + 1]
        span = slice(int(offsets[0]), int(offsets[-1]))
        starts = offsets - offsets[0]
        weights = None if batch.weights is None else batch.weights[span]
        if self.pooling.get(feature) == "mean":
            lengths = starts.diff().clamp(min=1).float()
            scale = (1 / lengths).repeat_interleave(starts.diff())
            weights = scale if weights is None else weights * scale
        return bag(batch.ids[span], starts[:-1], per_sample_weights=weights)


def _optimizer(kind, bag: nn.EmbeddingBag):
    parameters = list(bag.parameters())
    if isinstance(kind, SGD) and kind.weight_decay == 0:
        return torch.optim.SGD(parameters, kind.lr)
    if isinstance(kind, Adagrad) and kind.weight_decay == 0:
        return torch.optim.Adagrad(
            parameters, kind.lr, eps=kind.eps, initial_accumulator_value=kind.initial_accumulator
        )
    if isinstance(kind, LazyAdam) and kind.weight_decay == 0 and not kind.per_row_step:
        return torch.optim.SparseAdam(parameters, kind.lr, (kind.beta1, kind.beta2), kind.eps)
    return RowByRow(kind, bag)


class RowByRow:
    """A row optimizer in float64, one row after the other."""

    def __init__(self, kind, bag: nn.EmbeddingBag) -> None:
        self.kind, self.weight = kind, bag.weight
        rows, dim = bag.weight.shape
        accumulator = getattr(kind, "initial_accumulator", 0.0)
        self.first = torch.full((rows, dim), accumulator, dtype=torch.float64)
        self.second = torch.zeros(rows, dim, dtype=torch.float64)
        self.row_steps = [0] * rows
        self.steps = 0

    def zero_grad(self) -> None:
        self.weight.grad = None

    @torch.no_grad()
    def step(self) -> None:
        self.steps += 1
        grad = self.weight.grad.coalesce()
        for row, g in zip(grad.indices()[0].tolist(), grad.values().double(), strict=True):
            self.row_steps[row] += 1
            w = self.weight[row].double()
            self.weight[row] = self._updated(row, w, g + self._decay() * w).float()

    def _decay(self) -> float:
        return getattr(self.kind, "weight_decay", 0.0)

    def _updated(self, row: int, w: Tensor, g: Tensor) -> Tensor:
        kind = self.kind
        if isinstance(kind, SGD):
            return w - kind.lr * g
        if isinstance(kind, Adagrad):
            self.first[row] += g * g
            return w - kind.lr * g / (self.first[row].sqrt() + kind.eps)
        if isinstance(kind, RowWiseAdagrad):
            self.first[row] += (g * g).mean()
            return w - kind.lr * g / (self.first[row].sqrt() + kind.eps)
        if isinstance(kind, LazyAdam):
            t = self.row_steps[row] if kind.per_row_step else self.steps
            m = self.first[row] = kind.beta1 * self.first[row] + (1 - kind.beta1) * g
            v = self.second[row] = kind.beta2 * self.second[row] + (1 - kind.beta2) * g * g
            rate = kind.lr * math.sqrt(1 - kind.beta2**t) / (1 - kind.beta1**t)
            return w - rate * m / (v.sqrt() + kind.eps)
        assert isinstance(kind, FTRL)
        n = self.first[row].clone()
        more = self.first[row] = n + g * g
        z = self.second[row] = self.second[row] + g - (more.sqrt() - n.sqrt()) / kind.lr * w
        shrunk = (z.sign() * kind.l1 - z) / ((kind.beta + more.sqrt()) / kind.lr + kind.l2)
        return torch.where(z.abs() <= kind.l1, torch.zeros_like(z), shrunk)
