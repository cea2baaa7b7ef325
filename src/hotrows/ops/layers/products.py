"""The three products of a linear layer, and the paths that compute each.

    forward           Y = X W^T + b, then max(Y, 0) where the layer ends in a ReLU    [B, N]
    input gradient    dX = dY W                                                      [B, K]
    weight gradient   dW = dY^T X                                                    [N, K]

Path `torch` is plain PyTorch, the specification of the others.
`paths_of` has one rule for each kind of processor (figures: docs/explanation/kernels.md):

    float32    AMD with AVX-512   layers of 4,096 weights or more with several outputs: oneDNN, twice as
                                  fast as PyTorch's MKL there
               all others         plain
    bfloat16   where oneDNN has it   forward with bias and ReLU in one, the gradients plain

X is [B, K], W is [N, K], all of one dtype. Each path adds in an order fixed by the shapes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from hotrows.runtime.machine import vendor

PLAIN = "torch"
_LEAST_WEIGHTS, _FEW_INPUTS = 4096, 32


class Paths(NamedTuple):
    """The path of each product of one layer in one dtype."""

    forward: str = PLAIN
    input_gradient: str = PLAIN
    weight_gradient: str = PLAIN


def forward_torch(x: Tensor, weight: Tensor, bias: Tensor | None, relu: bool) -> Tensor:
    y = F.linear(x, weight, bias)
    return y.relu_() if relu else y


def forward_onednn(x: Tensor, weight: Tensor, bias: Tensor | None, relu: bool) -> Tensor:
    return _onednn(x, weight, bias, "relu" if relu else "none")


def input_gradient_onednn(grad: Tensor, weight: Tensor) -> Tensor:
    return _onednn(grad, weight.t())


def weight_gradient_torch(grad: Tensor, x: Tensor) -> Tensor:
    return grad.t().mm(x)


def weight_gradient_onednn(grad: Tensor, x: Tensor) -> Tensor:
    return _onednn(grad.t(), x.t())


def weight_gradient_onednn_turned(grad: Tensor, x: Tensor) -> Tensor:
    """The transpose of X^T dY: faster where X is narrow."""
    return _onednn(x.t(), grad.t()).t().contiguous()


FORWARD: dict[str, Callable[..., Tensor]] = {PLAIN: forward_torch, "onednn": forward_onednn}
INPUT_GRADIENT: dict[str, Callable[..., Tensor]] = {PLAIN: torch.mm, "onednn": input_gradient_onednn}
WEIGHT_GRADIENT: dict[str, Callable[..., Tensor]] = {
    PLAIN: weight_gradient_torch,
    "onednn": weight_gradient_onednn,
    "onednn_turned": weight_gradient_onednn_turned,
}
BY_PRODUCT = {"forward": FORWARD, "input_gradient": INPUT_GRADIENT, "weight_gradient": WEIGHT_GRADIENT}


def paths_for(product: str, dtype: torch.dtype = torch.float32) -> list[str]:
    """The paths that this PyTorch offers on this processor for a product."""
    return list(BY_PRODUCT[product]) if has_onednn(dtype) else [PLAIN]


@functools.cache
def paths_of(num_inputs: int, num_outputs: int, dtype: torch.dtype) -> Paths:
    """Returns the paths that the rule names for a layer."""
    if num_outputs == 1 or not has_onednn(dtype):
        return Paths()
    if dtype == torch.bfloat16:
        return Paths(forward="onednn")
    if not _is_slow_in_float32() or num_inputs * num_outputs < _LEAST_WEIGHTS:
        return Paths()
    return Paths("onednn", "onednn", "onednn_turned" if num_inputs < _FEW_INPUTS else "onednn")


def _is_slow_in_float32() -> bool:
    """True where PyTorch's MKL leaves half of the processor's vector width unused."""
    return vendor() == "AuthenticAMD" and torch.backends.cpu.get_cpu_capability() == "AVX512"


def has_onednn(dtype: torch.dtype) -> bool:
    """True if oneDNN multiplies matrices of the dtype here; of bfloat16 it needs AVX-512, say."""
    if not (torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")):
        return False
    return dtype != torch.bfloat16 or bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def _onednn(x: Tensor, weight: Tensor, bias: Tensor | None = None, after: str = "none") -> Tensor:
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, after, [], "")
