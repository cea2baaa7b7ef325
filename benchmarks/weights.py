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
Mapping = Callable[[Weights, Features, int], Weights]  # parameters, features, width of vectors


def mlp(ours: str, layers: Sequence[Layer]) -> Weights:
    """Layers as those of `nn.MLP`."""
    found = {}
    for n, (weight, bias) in enumerate(layers):
        found[f"{ours}.layers.{n}.weight"] = weight
        found[f"{ours}.layers.{n}.bias"] = _bias(weight, bias)
    return found


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
    found = {"cross.gates.weight": torch.cat(list(gates))}
    for n in range(len(up)):
        found[f"cross.down.{n}.weight"] = down[n].transpose(1, 2).flatten(0, 1)
        found[f"cross.within.{n}"] = within[n]
        found[f"cross.up.{n}.weight"] = up[n].transpose(0, 1).flatten(1)
        found[f"cross.up.{n}.bias"] = biases[n].squeeze(1)
    return found


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
    found = mlp("deep", linears(p, "dnn.linears"))
    found |= mlp("last", [(p["dnn_linear.weight"], p["out.bias"])])
    crosses = zip(p["crossnet.kernels"], p["crossnet.bias"], strict=True)
    return found | mlp("cross", [(weight, bias.squeeze(1)) for weight, bias in crosses])


def deepctr_dcn_mixture(p: Weights, features: Features, dim: int) -> Weights:
    found = mlp("deep", linears(p, "dnn.linears"))
    found |= mlp("last", [(p["dnn_linear.weight"], p["out.bias"])])
    parts = (p[f"crossnet.{name}"] for name in ("U_list", "V_list", "C_list", "bias"))
    gates = [weight for weight, _ in linears(p, "crossnet.gating")]
    return found | cross_mixture(*parts, gates)


def deepctr_mmoe(p: Weights, features: Features, dim: int) -> Weights:
    found: Weights = {}
    for e in range(_count(p, "expert_dnn")):
        found |= mlp(f"mixture.experts.groups.{e}", linears(p, f"expert_dnn.{e}.linears"))
    for t in range(len(features.labels)):
        gate = (p[f"gate_dnn_final_layer.{t}.weight"], None)
        tower = (p[f"tower_dnn_final_layer.{t}.weight"], p[f"out.{t}.bias"])
        found |= mlp(f"mixture.gates.groups.{t}", [*linears(p, f"gate_dnn.{t}.linears"), gate])
        found |= mlp(f"towers.groups.{t}", [*linears(p, f"tower_dnn.{t}.linears"), tower])
    return found


# ---- FuxiCTR


def fuxictr_lr(p: Weights, features: Features, dim: int) -> Weights:
    return {"first.bias": p["lr.bias"].squeeze(0)}


def fuxictr_dnn(p: Weights, features: Features, dim: int) -> Weights:
    return mlp("deep", linears(p, "dnn.mlp"))


def fuxictr_dcn(p: Weights, features: Features, dim: int) -> Weights:
    found = mlp("deep", linears(p, "dnn.mlp")) | mlp("last", [(p["last.weight"], p["last.bias"])])
    return found | mlp("cross", linears(p, "cross.cross_layers"))


def fuxictr_dcn_mixture(p: Weights, features: Features, dim: int) -> Weights:
    found = mlp("deep", linears(p, "dnn.mlp")) | mlp("last", [(p["last.weight"], p["last.bias"])])
    layers = range(_count(p, "cross.U_list"))
    parts = (
        [p[f"cross.{of}.{n}"] for n in layers] for of in ("U_list", "V_list", "C_list", "bias")
    )
    return found | cross_mixture(*parts, [weight for weight, _ in linears(p, "cross.gating")])


def _bias(weight: Tensor, bias: Tensor | None) -> Tensor:
    return weight.new_zeros(len(weight)) if bias is None else bias


def _count(p: Weights, prefix: str) -> int:
    """How many numbered things PREFIX has."""
    return len(
        {name[len(prefix) + 1 :].split(".")[0] for name in p if name.startswith(f"{prefix}.")}
    )
