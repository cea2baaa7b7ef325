"""Logistic regression on one-hot ids, fitted to convergence: what a linear model can say of the data."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from hotrows.data import EncodedData, Loader, Part
from hotrows.train.metrics import Metrics, compute_metrics

STRENGTHS = (30.0, 10.0, 3.0, 1.0, 0.3)  # of the L2 term, strong ones first; scikit-learn's is 1


class Fitted(NamedTuple):
    """Metrics on the test part with the strength that the validation part chooses by log loss."""

    metrics: Metrics
    strength: float
    aucs: dict[float, float]  # on the test part, of every strength
    chances: np.ndarray  # of the test part


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


def fitted(data: EncodedData) -> Fitted:
    """Fits by L-BFGS with every strength, each from the weights of the one before."""
    (train, validation, test), num_columns = _designs(data)
    weights = torch.zeros(num_columns + train.dense.shape[1] + 1, dtype=torch.float64)
    rate = float(train.labels.mean())
    weights[-1] = math.log(rate / (1 - rate))
    logits = {}
    for strength in STRENGTHS:
        weights = _fit(train, weights, strength, num_columns)
        logits[strength] = [design.logits(weights, num_columns) for design in (validation, test)]
    return _chosen(logits, validation, test)


def fitted_by_scikit_learn(data: EncodedData) -> Fitted:
    """Fits scikit-learn's LogisticRegression with every strength."""
    from scipy.sparse import csr_matrix, hstack
    from sklearn.linear_model import LogisticRegression

    designs, num_columns = _designs(data)

    def matrix(design: Design) -> csr_matrix:
        places = design.samples.numpy(), design.columns.numpy()
        shape = len(design.labels), num_columns
        return hstack([csr_matrix((design.shares.numpy(), places), shape), design.dense.numpy()]).tocsr()

    train, validation, test = map(matrix, designs)
    logits = {}
    for strength in STRENGTHS:
        model = LogisticRegression(C=1 / strength, max_iter=2000).fit(train, designs[0].labels.numpy())
        logits[strength] = [torch.from_numpy(model.decision_function(x)) for x in (validation, test)]
    return _chosen(logits, *designs[1:])


def _chosen(logits: dict[float, list[Tensor]], validation: Design, test: Design) -> Fitted:
    """logits: of the validation and of the test part, by strength, of which the first wins a tie."""
    strength = min(logits, key=lambda strength: _loss(logits[strength][0], validation))
    metrics = {strength: _metrics(of_test, test) for strength, (_, of_test) in logits.items()}
    aucs = {strength: m.auc for strength, m in metrics.items()}
    return Fitted(metrics[strength], strength, aucs, logits[strength][1].sigmoid().numpy())


def _designs(data: EncodedData) -> tuple[list[Design], int]:
    """Training, validation and test part, numbers scaled as in training; the number of ids."""
    first = np.cumsum([0, *(data.schema.rows_of(f.name) for f in data.schema.id_features)])
    designs = [_design(data.parts[name], first) for name in ("train", "validation", "test")]
    dense = designs[0].dense
    mean, deviation = dense.mean(0), dense.std(0, unbiased=False).clamp(min=1e-9)
    return [d._replace(dense=(d.dense - mean) / deviation) for d in designs], int(first[-1])


def _metrics(logits: Tensor, test: Design) -> Metrics:
    return compute_metrics(logits.float(), test.labels.float(), None, test.groups)


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


def _loss(logits: Tensor, part: Design) -> float:
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
