"""A chain of linear layers as one autograd function: chosen paths, fused ReLU, no needless copies.

Each activation is saved once, as the next layer's input; its sign is the ReLU's mask. In bfloat16
every weight is rounded once per forward; gradients arrive in the parameters' own dtype. The input's
gradient is not computed where it does not need one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from hotrows.ops.layers import products
from hotrows.ops.layers.products import Paths
from hotrows.ops.layers.relu import relu_backward

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class ChainLink(NamedTuple):
    """How one layer of a chain is computed."""

    paths: Paths
    relu: bool
    has_bias: bool


class PathLinear(nn.Linear):
    """`nn.Linear` on chosen paths; parameters and results are those of `nn.Linear`.

    paths: by name of dtype. Made from an `nn.Linear` by `use_linear_paths`.
    """

    paths: dict[str, Paths]

    def forward(self, input: Tensor) -> Tensor:
        if not can_chain(input, [self]):
            return super().forward(input)
        rows = input.reshape(-1, self.in_features)
        return chain(rows, [self], relu=[False]).view(*input.shape[:-1], self.out_features)


def can_chain(x: Tensor, layers: Iterable[nn.Module]) -> bool:
    """True if `chain` computes what the layers would, one after the other, on this input."""
    return (
        not torch.compiler.is_compiling()
        and x.device.type == "cpu"
        and x.numel() > 0
        and (x.dtype == torch.float32 or _autocast())
        and _compute_dtype() in DTYPES.values()
        and all(isinstance(layer, PathLinear) for layer in layers)
        and all(p.dtype == torch.float32 for layer in layers for p in layer.parameters())
    )


def chain(x: Tensor, layers: Iterable[nn.Module], relu: Sequence[bool]) -> Tensor:
    """[B, K] through the layers, each followed by a ReLU where `relu` says so: [B, N]."""
    dtype = _compute_dtype()
    name = str(dtype).removeprefix("torch.")
    linears = [layer for layer in layers if isinstance(layer, PathLinear)]
    links = tuple(
        ChainLink(layer.paths.get(name, Paths()), after, layer.bias is not None)
        for layer, after in zip(linears, relu, strict=True)
    )
    parameters = [p for layer in linears for p in (layer.weight, layer.bias) if p is not None]
    return _Chain.apply(x, dtype, links, *parameters)


class _Chain(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, dtype, links, *parameters):
        remaining = iter(parameters)
        activations, weights = [x.to(dtype).contiguous()], []
        for link in links:
            weights.append(next(remaining).to(dtype))
            bias = next(remaining).to(dtype) if link.has_bias else None
            product = products.FORWARD[link.paths.forward]
            activations.append(product(activations[-1], weights[-1], bias, link.relu))
        out = activations[-1]
        if not links[-1].relu:
            activations.pop()
        ctx.links, ctx.input_dtype = links, x.dtype
        ctx.save_for_backward(*weights, *activations)
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad):
        links = ctx.links
        weights, activations = ctx.saved_tensors[: len(links)], ctx.saved_tensors[len(links) :]
        wanted = ctx.needs_input_grad[3:]
        gradients: list[Tensor | None] = []  # of the parameters, the last one first
        grad, ours = grad.contiguous(), False
        for place in reversed(range(len(links))):
            link, x = links[place], activations[place]
            if link.relu or link.has_bias:
                after = activations[place + 1] if link.relu else None
                out = grad if ours or after is None else torch.empty_like(grad)
                grad, bias_gradient = relu_backward(grad, after, out)
                ours = ours or link.relu
            if link.has_bias:
                gradients.append(bias_gradient)
            product = products.WEIGHT_GRADIENT[link.paths.weight_gradient]
            gradients.append(product(grad, x).float() if wanted[-1 - len(gradients)] else None)
            if place > 0 or ctx.needs_input_grad[0]:
                grad = products.INPUT_GRADIENT[link.paths.input_gradient](grad, weights[place])
                ours = True
        input_gradient = grad.to(ctx.input_dtype) if ctx.needs_input_grad[0] else None
        return input_gradient, None, None, *reversed(gradients)


def _autocast() -> bool:
    return torch.is_autocast_enabled("cpu")


def _compute_dtype() -> torch.dtype:
    return torch.get_autocast_dtype("cpu") if _autocast() else torch.float32
