"""Logistic regression on one-hot ids, fitted to convergence: what a linear model can say of the data."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from hotrows.data import EncodedData, Loader, Part
from hotrows.metrics import Metrics, compute_metrics

STRENGTHS = (30.0, 10.0, 3.0, 1.0, 0.3)  # of the L2 term, strong ones first; scikit-learn's is 1


class Design(NamedTuple):
    """What a linear model sees: columns of one-hot ids, of lists their mean, and scaled numbers."""

    columns: Tensor  # [N] int64, ids of all features one after the other
    shares: Tensor  # [N] float64, 1 / number of ids in the list
    samples: Tensor  # [N] int64
    dense: Tensor  # [B, num_dense] float64
    labels: Tensor  # [B] float64
    groups: Tensor | None

    def logits(self, weights: Tensor, num_columns: int) -> Tensor:
        """weights: [num_columns + num_dense + 1], the last one is the bias."""
        of_ids = weights[self.columns] * self.shares
        logits = torch.zeros(len(self.labels), dtype=torch.float64).index_add(0, self.samples, of_ids)
        return logits + self.dense @ weights[num_columns:-1] + weights[-1]


def fitted(data: EncodedData) -> tuple[Metrics, float]:
    """Metrics on the test part, and the strength that the validation part chooses by log loss."""
    first = np.cumsum([0, *(data.schema.rows_of(f.name) for f in data.schema.id_features)])
    parts = {name: _design(part, first) for name, part in data.parts.items()}
    train, validation, test = (parts[name] for name in ("train", "validation", "test"))
    mean, deviation = train.dense.mean(0), train.dense.std(0, unbiased=False).clamp(min=1e-9)
    train, validation, test = (
        part._replace(dense=(part.dense - mean) / deviation) for part in (train, validation, test)
    )
    weights = torch.zeros(int(first[-1]) + train.dense.shape[1] + 1, dtype=torch.float64)
    rate = float(train.labels.mean())
    weights[-1] = math.log(rate / (1 - rate))
    best: tuple[float, float, Tensor] | None = None
    for strength in STRENGTHS:
        weights = _fit(train, weights, strength, int(first[-1]))
        loss = _loss(validation, weights, int(first[-1]))
        if best is None or loss < best[0]:
            best = loss, strength, weights
    assert best is not None
    logits = test.logits(best[2], int(first[-1]))
    return compute_metrics(logits.float(), test.labels.float(), None, test.groups), best[1]


def _fit(train: Design, start: Tensor, strength: float, num_columns: int) -> Tensor:
    """Minimizes the summed log loss and strength / 2 times the squares of all weights but the bias."""
    weights = start.clone().requires_grad_()
    optimizer = torch.optim.LBFGS(
        [weights], max_iter=200, history_size=10, tolerance_grad=1e-6, line_search_fn="strong_wolfe"
    )

    def closure() -> Tensor:
        optimizer.zero_grad()
        logits = train.logits(weights, num_columns)
        loss = functional.binary_cross_entropy_with_logits(logits, train.labels, reduction="sum")
        loss = (loss + strength / 2 * weights[:-1].square().sum()) / len(train.labels)
        loss.backward()
        return loss

    optimizer.step(closure)
    return weights.detach()


def _loss(part: Design, weights: Tensor, num_columns: int) -> float:
    logits = part.logits(weights, num_columns)
    return float(functional.binary_cross_entropy_with_logits(logits, part.labels))


def _design(part: Part, first: np.ndarray) -> Design:
    columns, shares, samples, dense, labels, groups = [], [], [], [], [], []
    begin = 0
    for batch in Loader(part, 8192, shuffle=False).batches(0):
        size, count = batch.size, len(batch.features)
        offsets = torch.arange(count * size + 1) if batch.offsets is None else batch.offsets
        lengths = offsets.diff()
        bags = torch.repeat_interleave(lengths)
        columns.append(batch.ids + torch.from_numpy(first)[bags // size])
        shares.append(1 / lengths[bags].double())
        samples.append(bags % size + begin)
        dense.append(batch.dense.double())
        assert batch.labels is not None
        labels.append(batch.labels.double())
        groups += [] if batch.groups is None else [batch.groups]
        begin += size
    return Design(
        *map(torch.cat, (columns, shares, samples, dense, labels)), torch.cat(groups) if groups else None
    )
