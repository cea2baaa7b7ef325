"""How the weights of the peers' models are written as ours: the same numbers under other names.

Each function takes the parameters of a peer's model by name and gives those of ours, as functions of
them that autograd can follow. Where ours has a bias and the peer has none, or one for both, it is 0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from benchmarks.samples import Features

Weights = dict[str, Tensor]
Layer = tuple[Tensor, Tensor | None]  # weight, bias
RECURRENT = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
Mapping = Callable[[Weights, Features, int], Weights]  # parameters, features, width of vectors


def mlp(ours: str, layers: Sequence[Layer]) -> Weights:
    """Layers as those of `nn.MLP`."""
    weights = {}
    for n, (weight, bias) in enumerate(layers):
        weights[f"{ours}.layers.{n}.weight"] = weight
        weights[f"{ours}.layers.{n}.bias"] = _bias(weight, bias)
    return weights


def grouped(ours: str, groups: Sequence[Sequence[Layer]]) -> Weights:
    """The layers of several MLPs as those of `nn.GroupedMLP`."""
    first, *others = zip(*groups, strict=True)
    weights = {
        f"{ours}.first.weight": torch.cat([weight for weight, _ in first]),
        f"{ours}.first.bias": torch.cat([_bias(*layer) for layer in first]),
    }
    for n, layers in enumerate(others):
        weights[f"{ours}.weights.{n}"] = torch.stack([weight.t() for weight, _ in layers])
        weights[f"{ours}.biases.{n}"] = torch.stack([_bias(*layer)[None] for layer in layers])
    return weights


def linears(p: Weights, prefix: str) -> list[Layer]:
    """The linear layers PREFIX.N, in order."""
    numbers = {
        int(name[len(prefix) + 1 :].split(".")[0])
        for name in p
        if name.startswith(f"{prefix}.") and p[name].dim() == 2
    }
    return [(p[f"{prefix}.{n}.weight"], p.get(f"{prefix}.{n}.bias")) for n in sorted(numbers)]


def cross_mixture(
    up: Sequence[Tensor],
    down: Sequence[Tensor],
    within: Sequence[Tensor],
    biases: Sequence[Tensor],
    gates: Sequence[Tensor],
) -> Weights:
    """up, down: [E, K, rank] of each layer; within: [E, rank, rank]; gates: [1, K] of each expert."""
    weights = {"cross.gates.weight": torch.cat(list(gates))}
    for n in range(len(up)):
        weights[f"cross.down.{n}.weight"] = down[n].transpose(1, 2).flatten(0, 1)
        weights[f"cross.within.{n}"] = within[n]
        weights[f"cross.up.{n}.weight"] = up[n].transpose(0, 1).flatten(1)
        weights[f"cross.up.{n}.bias"] = biases[n].squeeze(1)
    return weights


# ---- DeepCTR-Torch: its layers are DNN.linears, the last one stands apart, the last bias in `out`


def deepctr_lr(p: Weights, features: Features, dim: int) -> Weights:
    first = {"first.bias": p["out.bias"].squeeze(0)}
    if features.num_dense:
        first["first.dense.weight"] = p["linear_model.weight"].t()
    return first


def deepctr_dnn(p: Weights, features: Features, dim: int) -> Weights:
    return mlp("deep", [*linears(p, "dnn.linears"), (p["dnn_linear.weight"], p["out.bias"])])


def deepctr_wide_deep(p: Weights, features: Features, dim: int) -> Weights:
    wide = mlp("wide", [(p["linear_model.weight"].t(), None)])
    return deepctr_dnn(p, features, dim) | wide


def deepctr_deepfm(p: Weights, features: Features, dim: int) -> Weights:
    linear = mlp("linear", [(p["linear_model.weight"].t(), None)])
    return deepctr_dnn(p, features, dim) | linear


def deepctr_dcn(p: Weights, features: Features, dim: int) -> Weights:
    weights = mlp("deep", linears(p, "dnn.linears"))
    weights |= mlp("last", [(p["dnn_linear.weight"], p["out.bias"])])
    crosses = zip(p["crossnet.kernels"], p["crossnet.bias"], strict=True)
    return weights | mlp("cross", [(weight, bias.squeeze(1)) for weight, bias in crosses])


def deepctr_dcn_mixture(p: Weights, features: Features, dim: int) -> Weights:
    weights = mlp("deep", linears(p, "dnn.linears"))
    weights |= mlp("last", [(p["dnn_linear.weight"], p["out.bias"])])
    parts = (p[f"crossnet.{name}"] for name in ("U_list", "V_list", "C_list", "bias"))
    gates = [weight for weight, _ in linears(p, "crossnet.gating")]
    return weights | cross_mixture(*parts, gates)


def deepctr_mmoe(p: Weights, features: Features, dim: int) -> Weights:
    tasks = range(len(features.labels))
    experts = range(_count(p, "expert_dnn"))
    gate = [(p[f"gate_dnn_final_layer.{t}.weight"], None) for t in tasks]
    tower = [(p[f"tower_dnn_final_layer.{t}.weight"], p[f"out.{t}.bias"]) for t in tasks]
    return {
        **grouped("mixture.experts", [linears(p, f"expert_dnn.{e}.linears") for e in experts]),
        **grouped("mixture.gates", [[*linears(p, f"gate_dnn.{t}.linears"), gate[t]] for t in tasks]),
        **grouped("towers", [[*linears(p, f"tower_dnn.{t}.linears"), tower[t]] for t in tasks]),
    }


def deepctr_din(p: Weights, features: Features, dim: int, normalized: bool = False) -> Weights:
    return _deepctr_top(p, features, dim, past_first=False) | _deepctr_attention(
        p, "attention.local_att", dim, normalized
    )


def deepctr_din_normalized(p: Weights, features: Features, dim: int) -> Weights:
    return deepctr_din(p, features, dim, normalized=True)


def deepctr_dien(p: Weights, features: Features, dim: int) -> Weights:
    """Where its AUGRU has one bias for both, each of ours is that one."""
    unit = "interest_evolution.attention.local_att"
    weights = _deepctr_top(p, features, dim, past_first=True) | same_target(p[f"{unit}.dense.bias"], dim)
    weights |= _deepctr_attention(p, unit, dim, scaled=False)
    for ours, theirs in (
        ("extraction", "interest_extractor.gru."),
        ("evolving", "interest_evolution.interest_evolution."),
    ):
        recurrent = {name.removeprefix(theirs): value for name, value in p.items()}
        recurrent = {
            name.removeprefix("rnn.").removesuffix("_l0"): value for name, value in recurrent.items()
        }
        recurrent.setdefault("bias_hh", recurrent["bias_ih"])
        for name in RECURRENT:
            weights[f"interests.0.{ours}.{name}"] = recurrent[name]
    return weights


# ---- FuxiCTR


def fuxictr_lr(p: Weights, features: Features, dim: int) -> Weights:
    return {"first.bias": p["lr.bias"].squeeze(0)}


def fuxictr_dnn(p: Weights, features: Features, dim: int) -> Weights:
    return mlp("deep", linears(p, "dnn.mlp"))


def fuxictr_dcn(p: Weights, features: Features, dim: int) -> Weights:
    weights = mlp("deep", linears(p, "dnn.mlp")) | mlp("last", [(p["last.weight"], p["last.bias"])])
    return weights | mlp("cross", linears(p, "cross.cross_layers"))


def fuxictr_dcn_mixture(p: Weights, features: Features, dim: int) -> Weights:
    weights = mlp("deep", linears(p, "dnn.mlp")) | mlp("last", [(p["last.weight"], p["last.bias"])])
    layers = range(_count(p, "cross.U_list"))
    parts = ([p[f"cross.{name}.{n}"] for n in layers] for name in ("U_list", "V_list", "C_list", "bias"))
    return weights | cross_mixture(*parts, [weight for weight, _ in linears(p, "cross.gating")])


def fuxictr_din(p: Weights, features: Features, dim: int, normalized: bool = False) -> Weights:
    unit = "attention_layers.attention_layer.mlp"
    return _fuxictr_top(p, features, dim) | attention(linears(p, unit), alphas(p, unit), dim, normalized)


def fuxictr_din_normalized(p: Weights, features: Features, dim: int) -> Weights:
    return fuxictr_din(p, features, dim, normalized=True)


def fuxictr_dien(p: Weights, features: Features, dim: int) -> Weights:
    weights = _fuxictr_top(p, features, dim)
    for name in RECURRENT:
        weights[f"interests.0.extraction.{name}"] = p[f"extraction_modules.0.{name}_l0"]
    for ours, theirs in (("ih", "x2h"), ("hh", "h2h")):
        for kind in ("weight", "bias"):
            update, reset, new = p[f"evolving_modules.0.gru_cell.{theirs}.{kind}"].chunk(3)
            weights[f"interests.0.evolving.{kind}_{ours}"] = torch.cat([reset, update, new])
    unit = "attention_modules.0."
    if f"{unit}W_kernel" in p:
        return weights | {"interests.0.attention.weight": p[f"{unit}W_kernel"]}
    layers = linears(p, f"{unit}attn_mlp.mlp")
    return weights | same_target(layers[0][0], dim) | attention(layers, [], dim, scaled=False)


# ---- the padded versions of `arms/padded_models.py`


def padded_din(p: Weights, features: Features, dim: int, scaled: bool = True) -> Weights:
    top = mlp("top", linears(p, "model.top"))
    return top | attention(linears(p, "model.attention.layers"), [], dim, scaled)


def padded_dien(p: Weights, features: Features, dim: int) -> Weights:
    weights = padded_din(p, features, dim, scaled=False)
    weights |= same_target(p["model.top.0.bias"], dim)
    for name in RECURRENT:
        weights[f"interests.0.extraction.{name}"] = p[f"model.extraction.{name}_l0"]
        kind, source = name.split("_")
        theirs = {"ih": "inputs", "hh": "states"}[source]
        weights[f"interests.0.evolving.{name}"] = p[f"model.evolution.{theirs}.{kind}"]
    return weights


def padded_can(p: Weights, features: Features, dim: int) -> Weights:
    """Its PReLU has one slope for all features."""
    layers = linears(p, "model.top")
    weights = mlp("top", layers) | {
        f"norm.{kind}": p[f"model.norm.{kind}"] for kind in ("weight", "bias")
    }
    for n, (_, bias) in enumerate(layers[:-1]):
        weights[f"top.after.{n}.weight"] = p[f"model.top.{2 * n + 1}.weight"].repeat(len(bias))
    return weights


# ---- parts


def attention(layers: Sequence[Layer], slopes: Sequence[Tensor], dim: int, scaled: bool) -> Weights:
    """DIN's unit; slopes: of Dice, after each hidden layer.

    scaled: where ours divides the scores by sqrt(D), its last layer is sqrt(D) times theirs.
    """
    ours = "interests.0.attention"
    weight, bias = layers[-1]
    scale = dim**0.5 if scaled else 1.0
    last = (weight * scale, _bias(weight, bias) * scale)
    first_weight, first_bias = layers[0]
    weights = mlp(f"{ours}.rest", [*layers[1:-1], last])
    weights |= {f"{ours}.first.weight": first_weight, f"{ours}.first.bias": first_bias}
    for n, slope in enumerate(slopes):
        where = f"{ours}.rest.after.{n - 1}" if n else f"{ours}.activation"
        weights[f"{where}.alpha"] = slope.flatten()
    return weights


def same_target(like: Tensor, dim: int) -> Weights:
    """Our DIEN projects the target before DIN's attention, as its authors do: here onto itself."""
    query = mlp("interests.0.query", [(torch.eye(dim, dtype=like.dtype), None)])
    return query | {"interests.0.query.after.0.weight": like.new_ones(dim)}


def alphas(p: Weights, prefix: str) -> list[Tensor]:
    """The slopes of Dice, PREFIX.N.alpha, in order."""
    names = [name for name in p if name.startswith(f"{prefix}.") and name.endswith(".alpha")]
    return [p[name] for name in sorted(names, key=lambda name: int(name.split(".")[-2]))]


def _deepctr_attention(p: Weights, unit: str, dim: int, scaled: bool) -> Weights:
    last = (p[f"{unit}.dense.weight"], p[f"{unit}.dense.bias"])
    slopes = alphas(p, f"{unit}.dnn.activation_layers")
    return attention([*linears(p, f"{unit}.dnn.linears"), last], slopes, dim, scaled)


def _deepctr_top(p: Weights, features: Features, dim: int, past_first: bool) -> Weights:
    last = p["linear.weight"] if "linear.weight" in p else p["dnn_linear.weight"]
    order = ["past", "fields", "dense"] if past_first else ["fields", "past", "dense"]
    layers = [*linears(p, "dnn.linears"), (last, p["out.bias"])]
    sizes = {"fields": len(features.fields) * dim, "dense": features.num_dense, "past": dim}
    return mlp("top", _reordered(layers, sizes, order, ["fields", "dense", "past"]))


def _fuxictr_top(p: Weights, features: Features, dim: int) -> Weights:
    """Its input has the target behind all other features."""
    fields = list(features.fields)
    sizes = dict.fromkeys(fields, dim) | {"dense": features.num_dense, "past": dim}
    others = [name for name in fields if name != features.target]
    order = [*others, "dense", features.target, "past"]
    weights = mlp("top", _reordered(linears(p, "dnn.mlp"), sizes, order, [*fields, "dense", "past"]))
    return weights | {f"top.after.{n}.alpha": slope for n, slope in enumerate(alphas(p, "dnn.mlp"))}


def _reordered(
    layers: Sequence[Layer], sizes: dict[str, int], theirs: Sequence[str], ours: Sequence[str]
) -> list[Layer]:
    """The columns of the first layer, blocks of these sizes, in our order."""
    weight, bias = layers[0]
    parts = weight.split([sizes[name] for name in theirs], 1)
    blocks = dict(zip(theirs, parts, strict=True))
    return [(torch.cat([blocks[name] for name in ours], 1), bias), *layers[1:]]


def _bias(weight: Tensor, bias: Tensor | None) -> Tensor:
    return weight.new_zeros(len(weight)) if bias is None else bias


def _count(p: Weights, prefix: str) -> int:
    """How many numbered things PREFIX has."""
    return len({name[len(prefix) + 1 :].split(".")[0] for name in p if name.startswith(f"{prefix}.")})
