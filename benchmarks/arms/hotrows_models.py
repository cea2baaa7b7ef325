"""Models of this library for given features, their batches, and the step that trains them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import count
from typing import Any

import numpy as np
import torch
from torch.nn.functional import binary_cross_entropy_with_logits

import hotrows
from benchmarks.samples import Features, Samples
from hotrows import models
from hotrows.engine.pipeline.prefetch import prefetch

HISTORY = "history"


def build(name: str, features: Features, dim: int, **options: Any) -> models.Model:
    if name != "lr":
        options["dim"] = dim
    return models.build(name, schema_of(features), **options)


def schema_of(features: Features) -> hotrows.Schema:
    dense = tuple(hotrows.Dense(f"I{n}") for n in range(features.num_dense))
    fields = tuple(hotrows.Sparse(name, rows=rows) for name, rows in features.rows.items())
    history = ()
    if features.target is not None:
        rows = features.rows[features.target]
        history = (hotrows.Sequence(HISTORY, vocabulary=features.target, rows=rows),)
    return hotrows.Schema((*dense, *fields, *history), label=features.labels)


def batch_of(features: Features, samples: Samples) -> hotrows.Batch:
    dense, labels = torch.from_numpy(samples.dense), torch.from_numpy(samples.labels)
    if features.target is None:
        ids = torch.from_numpy(samples.ids).reshape(-1)
        return hotrows.Batch(features.fields, ids, dense, labels)
    ids = np.concatenate([samples.ids.reshape(-1), samples.history])
    offsets = np.concatenate([np.arange(samples.ids.size), samples.offsets + samples.ids.size])
    return hotrows.Batch(
        (*features.fields, HISTORY),
        torch.from_numpy(ids),
        dense,
        labels,
        offsets=torch.from_numpy(offsets),
    )


def embedding_of(
    model: models.Model, features: Features, optimizer: hotrows.Adagrad, seed: int = 0
) -> hotrows.Embedding:
    """The model's tables, all under one optimizer."""
    own_no_optimizers(model)
    return hotrows.Embedding.for_model(model, schema_of(features), optimizer=optimizer, seed=seed)


def own_no_optimizers(model: models.Model) -> None:
    """Its tables learn by the optimizer of the embedding."""
    model.tables = tuple(replace(table, optimizer=None) for table in model.tables)


def training_step(
    model: models.Model,
    embedding: hotrows.Embedding,
    data: list[hotrows.Batch],
    lr: float = 1e-3,
    precision: torch.dtype = torch.float32,
) -> Callable[[int], float]:
    """The step of the Trainer, with Adam for the dense part; batches are planned ahead."""
    optimizer = torch.optim.Adam(model.parameters(), lr, fused=True)

    def plan(k: int) -> tuple:
        batch = data[k % len(data)]
        return batch, embedding.plan(batch, k)

    planned = prefetch(map(plan, count()), depth=2)
    autocast = torch.autocast("cpu", torch.bfloat16, enabled=precision == torch.bfloat16)

    def step(k: int) -> float:
        batch, plan = next(planned)
        vectors = embedding.lookup(plan)
        with autocast:
            logits, model_loss = models.logits_and_loss(model(vectors, batch.dense))
        loss = binary_cross_entropy_with_logits(logits.float(), batch.labels)
        (loss if model_loss is None else loss + model_loss).backward()
        embedding.update(plan, vectors)
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()

    return step
