"""The program of a model behind the layers that the native core computes: what they give are inputs.

BehindLayers(plain, layers)     an nn.Module: tensors by `inputs`, in order -> logits
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from hotrows.engine.planning.packing import Pack
from hotrows.models.hstu import TransducedInterest
from hotrows.models.interest_model import InterestModel
from hotrows.models.interests import AttentionInterest, EvolvingInterest, Interest
from hotrows.models.model import Model
from hotrows.models.nn import GRU, AttentionalGRU, BilinearAttention, TargetAttention
from hotrows.models.nn.dice import Dice
from hotrows.models.nn.hstu import TransductionLayer
from hotrows.models.tables import VECTOR
from hotrows.ops.layers.padded import PaddedLists
from hotrows.serving.bundle import CoreLayer, ProgramInput
from hotrows.serving.export.program import PlainModel, PlainVectors


def core_layers(model: Model, packs: Sequence[Pack]) -> tuple[CoreLayer, ...]:
    """The layers over histories that the core computes; none where it does not have all of them."""
    if not isinstance(model, InterestModel):
        return ()
    tables = {
        (feature, pack.tables[t].role): pack.tables[t].name
        for pack in packs
        for feature, t in (*pack.columns, *pack.sequences)
    }
    names = {parameter: f"model.{name}" for name, parameter in model.named_parameters()}
    layers = []
    for place, (history, interest) in enumerate(zip(model.histories, model.interests, strict=True)):
        kind = _kind_of(interest)
        if kind is None or any(p.dtype != torch.float32 for p in kind.parameters):
            return ()
        targets, sequences = (
            tuple((name, tables[name, VECTOR]) for name in features)
            for features in (history.targets, history.sequences)
        )
        parameters = tuple(names[parameter] for parameter in kind.parameters)
        name = f"interests.{place}{kind.submodule}"
        layers.append(CoreLayer(name, kind.kind, targets, sequences, parameters, kind.options))
    return tuple(layers)


@dataclass(frozen=True)
class _Kind:
    """What the core has of an interest: all of it, or its `submodule`."""

    kind: str
    submodule: str
    parameters: list[nn.Parameter]
    options: dict[str, Any]


def _kind_of(interest: nn.Module) -> _Kind | None:
    """None for what the core does not have."""
    if type(interest) is AttentionInterest:
        attention = _target_attention(interest.attention)
        return attention and _Kind("target_attention", ".attention", *attention)
    if type(interest) is TransducedInterest:
        return _transduced(interest)
    if type(interest) is not EvolvingInterest or interest.evolution == "aigru":
        return None
    grus: list[nn.Parameter] = []
    for gru in (interest.extraction, interest.evolving):
        assert isinstance(gru, GRU | AttentionalGRU)
        grus += [gru.weight_ih, gru.weight_hh, gru.bias_ih, gru.bias_hh]
    how = {"evolution": interest.evolution, "reset": interest.extraction.reset, "sums": interest.sums}
    if isinstance(interest.attention, BilinearAttention):
        parameters = [*grus, interest.attention.weight]
        return _Kind("evolving_interest", "", parameters, how | {"attention": None})
    attention = _target_attention(interest.attention)
    parameters = [*grus, *interest.query.parameters()]
    return attention and _Kind(
        "evolving_interest", "", [*parameters, *attention[0]], how | {"attention": attention[1]}
    )


def _transduced(interest: TransducedInterest) -> _Kind:
    """All of HSTU's layers; times of elements, which a layer could read, no batch has."""
    parameters: list[nn.Parameter] = []
    for layer in interest.layers:
        assert isinstance(layer, TransductionLayer) and layer.intervals is None
        for part in (layer.norm, layer.norm_attended, layer.to_gates, layer.to_keys, layer.to_output):
            parameters += part.parameters()
        parameters.append(layer.distances)
        heads, places = layer.distances.shape
        options = {"heads": heads, "places": places, "eps": layer.norm.eps}
    return _Kind("transduced_interest", "", parameters, {"layers": len(interest.layers), **options})


def _target_attention(layer: nn.Module) -> tuple[list[nn.Parameter], dict[str, Any]] | None:
    """Parameters and options of DIN's attention, but with Dice."""
    if type(layer) is not TargetAttention or isinstance(layer.activation, Dice):
        return None
    sizes, activation, others, slopes = layer.network()
    how = {"scale": layer.scale, "normalize": layer.normalize}
    options = {"sizes": sizes, "activation": activation, **how}
    return [layer.first.weight, layer.first.bias, *others, *slopes], options


class BehindLayers(PlainModel):
    """A model whose forward takes what these layers give, and no lists that they alone read."""

    def __init__(self, plain: PlainModel, layers: Sequence[CoreLayer]) -> None:
        super().__init__(copy.deepcopy(plain.model), plain.packs, plain.num_dense)
        inputs: dict[str, Tensor] = {}
        for layer in layers:
            owner, _, name = layer.name.rpartition(".")
            stand_in = _Given(_reading(inputs, layer.name), layer.kind != "target_attention")
            setattr(self.model.get_submodule(owner), name, stand_in)
        read = {read for layer in layers for read in layer.sequences}
        lists = [e for e in plain.inputs if e.kind == "sequence" and e.reads[0] not in read]
        features = {e.reads[0][0] for e in lists}
        kept = [
            e
            for e in plain.inputs
            if e in lists or (e.kind == "lengths" and e.reads[0][0] in features)
            or e.kind not in ("sequence", "lengths")
        ]  # fmt: skip
        outputs = [
            ProgramInput(layer.name, "layer", layer.targets * (3 if layer.options.get("sums") else 1))
            for layer in layers
        ]
        self.inputs = (*kept, *outputs)
        self._give = inputs.update

    def vectors(self, tensors: dict[str, Tensor], size: int) -> PlainVectors:
        self._give(tensors)
        return _WithoutLists(self.packs, tensors, size, self._read)


class _Given(nn.Module):
    """In place of a layer, or of an interest, which has a loss: what it gives is read."""

    def __init__(self, read: Callable[[], Tensor], is_interest: bool) -> None:
        super().__init__()
        self._read, self._is_interest = read, is_interest

    def forward(self, *inputs: object) -> Tensor | Interest:
        return (self._read(), None) if self._is_interest else self._read()


def _reading(inputs: dict[str, Tensor], name: str) -> Callable[[], Tensor]:
    return lambda: inputs[name]


class _WithoutLists(PlainVectors):
    """Vectors whose lists are of one zero where no tensor has them; nothing reads them."""

    def sequence(self, feature: str, role: str = VECTOR) -> tuple[Tensor, PaddedLists]:  # type: ignore[override]
        if self.has_sequence(feature, role):
            return super().sequence(feature, role)
        size = self._plan.batch_size
        lengths = torch.ones(size, dtype=torch.int64)
        return torch.zeros(size, 1), PaddedLists(lengths, 1)
