"""DLRM_Net of facebookresearch/dlrm, from its own source file: one EmbeddingBag per feature."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.any_model.absent import stand_in
from benchmarks.any_model.columns import CATEGORIES, DENSE, ROWS, columns
from benchmarks.any_model.recipe import Library, Recipe, Training, optimizer_of, place_of
from benchmarks.peers import SOURCES, source_of

stand_in("torch.utils.tensorboard", always=True)
sys.path.insert(0, str(source_of("dlrm")))

from dlrm_s_pytorch import DLRM_Net  # noqa: E402
from optim.rwsadagrad import RWSAdagrad  # noqa: E402

DIM = 8
TABLES = (*ROWS.values(), CATEGORIES)  # the last one's bags hold several ids
Batch = tuple[Tensor, list[Tensor], list[Tensor], Tensor]
SPARSE_GRADIENTS = ("sgd", "adagrad", "rwsadagrad", "sparse_adam")  # those that take sparse gradients


def library() -> Library:
    return Library("dlrm", "ctr", lambda: {"facebookresearch/dlrm": SOURCES["dlrm"].commit}, RECIPES)


def _recipe(remark: str = "", float64: bool = True, **options: Any) -> Recipe:
    def build() -> nn.Module:
        np.random.seed(torch.initial_seed() % 2**32)  # noqa: NPY002 (its weights come from it)
        settings = {"arch_interaction_op": "dot", "sigmoid_top": 1, **options}
        vectors = len(TABLES) + 1
        pairs = vectors * (vectors + 1 if settings.get("arch_interaction_itself") else vectors - 1) // 2
        width = DIM + pairs if settings["arch_interaction_op"] == "dot" else DIM * vectors
        return DLRM_Net(
            DIM, np.array(TABLES), np.array([len(DENSE), 16, DIM]), np.array([width, 16, 1]), **settings
        )

    return Recipe(
        build, _batches, _training, lambda _, batch: batch[:3], SPARSE_GRADIENTS, remark, float64
    )


def _batches(dtype: torch.dtype) -> list[Batch]:
    arguments = []
    for batch in columns():
        dense = torch.from_numpy(np.stack(list(batch.dense.values()), 1)).to(dtype)
        ids = [torch.from_numpy(column) for column in batch.ids.values()]
        offsets = [torch.arange(len(column)) for column in ids]
        tags = batch.history[1]
        ids.append(torch.from_numpy(tags[tags > 0]))
        offsets.append(torch.from_numpy(np.cumsum(batch.length) - batch.length))
        arguments.append((dense, offsets, ids, torch.from_numpy(batch.labels[:, :1]).to(dtype)))
    return arguments


def _training(model: nn.Module, name: str) -> Training:
    optimizer: torch.optim.Optimizer
    weights = getattr(model, "v_W_l", None)  # of samples, which its own loop moves
    if isinstance(weights, list):
        model.v_W_l = [w if w is None else w.to(place_of(model)) for w in weights]
    if name == "rwsadagrad":
        optimizer = RWSAdagrad(model.parameters(), lr=0.05)
    elif name == "sparse_adam":  # its tables alone: SparseAdam takes no dense gradients
        optimizer = torch.optim.SparseAdam(model.emb_l.parameters(), lr=1e-3)
    else:
        optimizer = optimizer_of(model, name)

    def step(batch: Batch) -> object:  # the body of its loop
        *inputs, labels = batch
        loss = model.loss_fn(model(*inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    return Training(optimizer, step)


RECIPES: dict[str, Recipe | str] = {
    "DLRM, dot": _recipe(),
    "DLRM, dot with itself": _recipe(arch_interaction_itself=True),
    "DLRM, cat": _recipe(arch_interaction_op="cat"),
    "DLRM, weighted pooling": _recipe(
        "its weights are float32 by name: no float64 run", False, weighted_pooling="fixed"
    ),
    "DLRM, learned pooling": _recipe(weighted_pooling="learned"),
    "DLRM, quotient-remainder": _recipe(qr_flag=True, qr_collisions=4),
    "DLRM, quotient-remainder, add": _recipe(qr_flag=True, qr_collisions=4, qr_operation="add"),
}
