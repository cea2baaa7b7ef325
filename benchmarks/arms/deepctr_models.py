"""Models of DeepCTR-Torch for given features, and their inputs.

`build` makes the library's own class; it has no LR, FM or DNN of its own, which are parts of its WDL
and DeepFM. Regularisation, 1e-5 or 1e-6 on embeddings by default, is off.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from deepctr_torch.inputs import DenseFeat, SparseFeat, VarLenSparseFeat
from deepctr_torch.models import DCN, DIEN, DIN, WDL, DCNMix, DeepFM
from deepctr_torch.models.multitask import MMOE
from torch import Tensor, nn

from benchmarks.samples import Features, Samples, padded

NO_REGULARISATION = {"l2_reg_linear": 0.0, "l2_reg_embedding": 0.0}


def build(
    name: str, features: Features, dim: int, *, task: str = "regression", **options: Any
) -> nn.Module:
    """task: `regression` makes it return logits, `binary` probabilities. options: of the class."""
    columns = _columns(features, dim)
    options = {"task": task, **NO_REGULARISATION, **options}
    if name == "lr":
        return WDL(columns, [], (), **options)
    if name == "dnn":
        return WDL([], columns, **options)
    if name == "wide_deep":
        return WDL(columns, columns, **options)
    if name == "fm":
        return DeepFM(columns, columns, dnn_hidden_units=(), **options)
    if name == "deepfm":
        return DeepFM(columns, columns, **options)
    if name == "dcnv2":
        return DCN([], columns, cross_parameterization="matrix", l2_reg_cross=0.0, **options)
    if name == "dcnv2_mixture":
        return DCNMix([], columns, l2_reg_cross=0.0, **options)
    if name == "mmoe":
        tasks = (options.pop("task"),) * len(features.labels)
        return MMOE(columns, task_types=tasks, task_names=features.labels, **options)
    del options["l2_reg_linear"]
    kind = {"din": DIN, "dien": DIEN}[name]
    return kind(columns, [features.target], **options)


def tables(model: nn.Module) -> dict[str, nn.Parameter]:
    """The tables of a model by name of the field, those of the linear part as FIELD.linear."""
    linear = model.linear_model.embedding_dict
    weights = {name: table.weight for name, table in model.embedding_dict.items()}
    return weights | {f"{name}.linear": table.weight for name, table in linear.items()}


def inputs(features: Features, samples: Samples, dtype: torch.dtype = torch.float32) -> Tensor:
    """The one matrix of all inputs that its fit() makes, ids included."""
    columns = [samples.ids.T]
    if features.target is not None:
        history, lengths = padded(samples, features.max_length)
        columns += [history, lengths[:, None]]
    columns.append(samples.dense)
    kind = np.float64 if dtype == torch.float64 else np.float32
    return torch.from_numpy(np.concatenate(columns, 1, dtype=kind, casting="unsafe"))


def logits(model: nn.Module, inputs: Tensor) -> Tensor:
    """[B], or [B, T] of several labels."""
    return model(inputs).squeeze(1)


def _columns(features: Features, dim: int) -> list:
    columns = [SparseFeat(name, rows, dim) for name, rows in features.rows.items()]
    if features.target is not None:
        rows = features.rows[features.target]
        item = SparseFeat(f"hist_{features.target}", rows, dim, embedding_name=features.target)
        columns.append(VarLenSparseFeat(item, features.max_length, length_name="length"))
    return columns + ([DenseFeat("dense", features.num_dense)] if features.num_dense else [])
