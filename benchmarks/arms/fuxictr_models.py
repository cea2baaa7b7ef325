"""Models of FuxiCTR for given features, and their inputs.

DIN and DIEN are the classes of its `model_zoo`. The others it ships as layers, which its repository
puts together; so does `Assembled`, with one difference: FuxiCTR multiplies each dense value with a
vector of its own, here dense values stand beside the vectors, as in the other libraries.
"""

from __future__ import annotations

import tempfile
from collections import OrderedDict
from typing import Any

import numpy as np
import torch
from fuxictr.features import FeatureMap
from fuxictr.pytorch.layers import (
    CrossNetMix,
    CrossNetV2,
    FeatureEmbedding,
    InnerProductInteraction,
    LogisticRegression,
    MLP_Block,
)
from model_zoo.LongCTR.DIEN.DIEN import DIEN
from model_zoo.LongCTR.DIN.DIN import DIN
from torch import Tensor, nn

from benchmarks.samples import Features, Samples, padded

Inputs = Any  # a dictionary of columns, or with a history (columns, items, mask)


def build(
    name: str, features: Features, dim: int, *, task: str = "regression", **options: Any
) -> nn.Module:
    """task: `regression` makes it return logits, `binary_classification` probabilities."""
    if features.target is None:
        return Assembled(name, features, dim, **options)
    kind = {"din": DIN, "dien": DIEN}[name]
    return kind(
        _feature_map(features, dim),
        embedding_dim=dim,
        task=task,
        optimizer="adam",
        loss="binary_crossentropy",
        metrics=["AUC"],
        verbose=0,
        model_root=tempfile.mkdtemp(),
        **options,
    )


class Assembled(nn.Module):
    """Its layers as its repository's LR, FM, DNN, WideDeep, DeepFM and DCNv2 put them together."""

    def __init__(
        self,
        name: str,
        features: Features,
        dim: int,
        hidden: tuple[int, ...] = (),
        num_crosses: int = 3,
        rank: int = 32,
        experts: int = 4,
    ) -> None:
        super().__init__()
        kinds = _feature_map(features, dim)
        width = len(features.fields) * dim + features.num_dense
        self.lr = self.fm = self.cross = self.embedding = self.dnn = self.last = None
        if name in ("lr", "fm", "wide_deep", "deepfm"):
            self.lr = LogisticRegression(kinds, use_bias=name in ("lr", "fm"))
        if name != "lr":
            self.embedding = FeatureEmbedding(kinds, dim, required_feature_columns=list(features.fields))
        if name in ("fm", "deepfm"):
            self.fm = InnerProductInteraction(len(features.fields))
        if name == "dcnv2":
            self.cross = CrossNetV2(width, num_crosses)
        if name == "dcnv2_mixture":
            self.cross = CrossNetMix(width, num_crosses, low_rank=rank, num_experts=experts)
        if hidden:
            self.dnn = MLP_Block(width, list(hidden), output_dim=None if self.cross else 1)
        if self.cross is not None:
            self.last = nn.Linear(width + hidden[-1], 1)

    def forward(self, columns: dict[str, Tensor]) -> Tensor:
        logits = torch.zeros(1) if self.lr is None else self.lr(columns)
        if self.embedding is None:
            return logits
        vectors = self.embedding(columns)
        if self.fm is not None:
            logits = logits + self.fm(vectors)
        if self.dnn is None:
            return logits
        dense = [values.unsqueeze(1) for name, values in columns.items() if name.startswith("I")]
        x = torch.cat([vectors.flatten(1), *dense], 1)
        if self.cross is None:
            return logits + self.dnn(x)
        return self.last(torch.cat([self.cross(x), self.dnn(x)], 1))


def tables(model: nn.Module) -> dict[str, nn.Parameter]:
    """The tables of a model by name of the field, those of the linear part as FIELD.linear."""
    of_linear = getattr(getattr(model, "lr", None), "embedding_layer", None)
    embedding = getattr(model, "embedding", None) or getattr(model, "embedding_layer", None)
    return _tables(embedding, "") | _tables(of_linear, ".linear")


def inputs(features: Features, samples: Samples) -> Inputs:
    columns = {
        name: torch.from_numpy(ids) for name, ids in zip(features.fields, samples.ids, strict=True)
    }
    if features.target is None:
        dense = torch.from_numpy(np.ascontiguousarray(samples.dense.T))
        return columns | {f"I{n}": values for n, values in enumerate(dense)}
    if features.num_dense:
        columns["dense"] = torch.from_numpy(samples.dense)
    history, lengths = padded(samples)
    items = np.concatenate([history, columns.pop(features.target)[:, None].numpy()], 1)
    mask = np.arange(history.shape[1]) < lengths[:, None]
    ids = {features.target: torch.from_numpy(items.reshape(-1))}
    return columns, ids, torch.from_numpy(mask.astype(np.int64))


def logits(model: nn.Module, inputs: Inputs) -> Tensor:
    """[B]."""
    if isinstance(model, Assembled):
        return model(inputs).squeeze(1)
    return model(inputs)["y_pred"].squeeze(1)


def _tables(embedding: nn.Module | None, suffix: str) -> dict[str, nn.Parameter]:
    if embedding is None:
        return {}
    layers = embedding.embedding_layer.embedding_layers.items()
    return {f"{n}{suffix}": layer.weight for n, layer in layers if isinstance(layer, nn.Embedding)}


def _feature_map(features: Features, dim: int) -> FeatureMap:
    kinds = FeatureMap("benchmark", tempfile.mkdtemp())
    kinds.features = OrderedDict()
    for name, rows in features.rows.items():
        source = "item" if name == features.target else ""
        kinds.features[name] = {"source": source, "type": "categorical", "vocab_size": rows}
    for name in [f"I{n}" for n in range(features.num_dense)] if features.target is None else ():
        kinds.features[name] = {"source": "", "type": "numeric"}
    if features.target is not None and features.num_dense:
        kinds.features["dense"] = {  # as they are, for DIN and DIEN put all columns side by side
            "source": "",
            "type": "embedding",
            "embedding_dim": features.num_dense,
            "feature_encoder": "nn.Identity()",
        }
    kinds.labels = list(features.labels)
    kinds.num_fields = len(kinds.features)
    kinds.default_emb_dim = dim
    return kinds
