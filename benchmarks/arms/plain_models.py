"""The models of PICASSO in plain PyTorch, as one writes them: a table per field, sparse gradients.

Models of fields pool each field by an `nn.EmbeddingBag`; those with histories are `padded_models`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from benchmarks.arms import padded_models
from benchmarks.arms.plain_torch import Bags
from benchmarks.arms.torch_models import linear
from benchmarks.samples import Features, Samples

SEQUENCE_MODELS = ("din", "dien", "can")
CO_ACTION = {"sizes": (16, 8, 4), "orders": 3}  # what `hotrows.models.can` has by default


class Plain(NamedTuple):
    """inputs: of samples, made ahead; loss: of inputs. tables and layers: all parameters."""

    inputs: Callable[[Samples], Any]
    loss: Callable[[Any], Tensor]
    tables: list[nn.Parameter]
    layers: list[nn.Parameter]


def build(name: str, features: Features, dim: int, batch_size: int, options: Mapping[str, Any]) -> Plain:
    """options: of the library's model of that name."""
    build_plain = _sequences if name in SEQUENCE_MODELS else _fields
    return build_plain(name, features, dim, batch_size, options)


def _sequences(
    name: str, features: Features, dim: int, batch_size: int, options: Mapping[str, Any]
) -> Plain:
    co_action = CO_ACTION if name == "can" else {}
    model = padded_models.build(name, features, dim, **co_action, **options)

    def loss(batch: padded_models.Batch) -> Tensor:
        return binary_cross_entropy_with_logits(model(batch), batch.labels)

    def inputs(samples: Samples) -> padded_models.Batch:
        return padded_models.inputs(features, samples)

    return Plain(inputs, loss, list(padded_models.tables(model).values()), list(model.model.parameters()))


def _fields(
    name: str, features: Features, dim: int, batch_size: int, options: Mapping[str, Any]
) -> Plain:
    model = PlainFields(name, len(features.rows), features.num_dense, dim, options)
    rows = tuple(features.rows.values())
    vectors = Bags(rows, dim, batch_size)
    first = Bags(rows, 1, batch_size) if name in ("wide_deep", "deepfm") else None

    def inputs(samples: Samples) -> tuple[Tensor, ...]:
        arrays = (samples.ids, samples.dense, samples.labels)
        return tuple(torch.from_numpy(array) for array in arrays)

    def loss(batch: tuple[Tensor, ...]) -> Tensor:
        ids, dense, labels = batch
        logits = model(vectors(ids), dense)
        if first is not None:
            logits = logits + first(ids).sum((1, 2))
        return binary_cross_entropy_with_logits(logits, labels)

    tables = [*vectors.parameters(), *(first.parameters() if first is not None else ())]
    return Plain(inputs, loss, tables, list(model.parameters()))


class PlainFields(nn.Module):
    """The dense part of a model of fields as one writes it: [B, F, D] and [B, d] to logits."""

    def __init__(
        self, name: str, num_fields: int, num_dense: int, dim: int, options: Mapping[str, Any]
    ) -> None:
        super().__init__()
        self.name, width = name, num_fields * dim + num_dense
        self.wide = nn.Linear(num_dense, 1)
        if name == "dlrm":
            self.bottom = _perceptrons(num_dense, *options["bottom"], dim)
            left, right = torch.tril_indices(num_fields + 1, num_fields + 1, offset=-1)
            self.register_buffer("pairs", left * (num_fields + 1) + right)
            width = dim + num_fields * (num_fields + 1) // 2
        if name == "mmoe":
            experts, hidden = options["num_experts"], options["expert_hidden"]
            self.experts = nn.ModuleList(_perceptrons(width, *hidden) for _ in range(experts))
            self.gates = nn.ModuleList(nn.Linear(width, experts) for _ in range(2))
            towers = (hidden[-1], *options["tower_hidden"], 1)
            self.towers = nn.ModuleList(_perceptrons(*towers) for _ in range(2))
        else:
            self.top = _perceptrons(width, *options["top" if name == "dlrm" else "hidden"], 1)

    def forward(self, vectors: Tensor, dense: Tensor) -> Tensor:
        x = torch.cat([vectors.flatten(1), dense], 1)
        if self.name == "mmoe":
            experts = torch.stack([expert(x).relu() for expert in self.experts], 1)
            mixed = [(gate(x).softmax(1).unsqueeze(2) * experts).sum(1) for gate in self.gates]
            towers = zip(self.towers, mixed, strict=True)
            return torch.cat([tower(of_task) for tower, of_task in towers], 1)
        if self.name == "dlrm":
            bottom = self.bottom(dense).relu()
            stacked = torch.cat([bottom.unsqueeze(1), vectors], 1)
            dots = torch.bmm(stacked, stacked.transpose(1, 2)).flatten(1).index_select(1, self.pairs)
            return self.top(torch.cat([bottom, dots], 1)).squeeze(1)
        logits = self.top(x).squeeze(1) + self.wide(dense).squeeze(1)
        if self.name == "deepfm":
            logits = logits + 0.5 * (vectors.sum(1).square() - vectors.square().sum(1)).sum(1)
        return logits


def _perceptrons(*sizes: int) -> nn.Sequential:
    pairs = list(pairwise(sizes))
    return nn.Sequential(*(linear(*pair, n < len(pairs) - 1) for n, pair in enumerate(pairs)))
