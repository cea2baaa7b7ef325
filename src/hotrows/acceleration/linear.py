"""Linear layers of a captured graph, on the paths that the rule of this processor names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.fx import Graph

from hotrows.acceleration import nodes
from hotrows.acceleration.lookup_nodes import is_tensor
from hotrows.ops.layers import products
from hotrows.ops.layers.products import Paths, paths_of

_PLAIN_TYPES = (Tensor, nn.Parameter)


def gains(model: nn.Module) -> bool:
    """True if the rule names another path than PyTorch's own for a layer of the model."""
    linears = (module for module in model.modules() if isinstance(module, nn.Linear))
    # Reading a parametrized weight computes it: spectral_norm would make a step of its power iteration.
    return any(_paths((layer.out_features, layer.in_features)) != Paths() for layer in linears)


def swap_products(graph: Graph) -> int:
    """Replaces the linear layers that gain; returns how many. Rounding alone changes."""
    gaining = [
        node
        for node in graph.nodes
        if node.target is torch._C._nn.linear
        and is_tensor(node.args[1])
        and _paths(nodes.result(node.args[1]).shape) != Paths()
    ]
    for node in gaining:
        node.target = linear
    return len(gaining)


def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`torch.nn.functional.linear`; on the paths of the rule where nothing but a product is asked for."""
    tensors = (input, weight) if bias is None else (input, weight, bias)
    is_plain = (
        all(type(t) in _PLAIN_TYPES and t.dtype == torch.float32 for t in tensors)
        and all(t.device.type == "cpu" for t in tensors)
        and input.numel() > 0
        and not torch.is_autocast_enabled("cpu")
        and torch._C._functorch.peek_interpreter_stack() is None
        and forward_ad._current_level < 0
    )
    if not is_plain:
        return F.linear(input, weight, bias)
    rows = input.reshape(-1, weight.shape[1])
    return _Linear.apply(rows, weight, bias).view(*input.shape[:-1], len(weight))


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return products.FORWARD[_paths(weight.shape).forward](x, weight, bias, False)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        # The gradient of a gradient goes through PyTorch's own products.
        paths = Paths() if torch.is_grad_enabled() else _paths(weight.shape)
        wanted = ctx.needs_input_grad
        return (
            products.INPUT_GRADIENT[paths.input_gradient](grad, weight) if wanted[0] else None,
            products.WEIGHT_GRADIENT[paths.weight_gradient](grad, x) if wanted[1] else None,
            grad.sum(0) if wanted[2] else None,
        )


def _paths(shape: Sequence[int]) -> Paths:
    num_outputs, num_inputs = map(int, shape)
    return paths_of(num_inputs, num_outputs, torch.float32)
