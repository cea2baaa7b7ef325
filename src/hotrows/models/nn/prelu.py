"""PReLU with a slope per feature, whose way back PyTorch does on one thread (He et al. 2015)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from hotrows.ops.layers.prelu import prelu_backward


class PReLU(nn.PReLU):
    """max(x, 0) + weight * min(x, 0): [M, H] -> [M, H], one weight per feature, from 0.25.

    (The code of DIEN's authors starts at 0.1.) Narrow values are computed in float32.
    """

    def __init__(self, width: int, init: float = 0.25) -> None:
        super().__init__(width, init)

    def forward(self, input: Tensor) -> Tensor:
        return _PReLU.apply(input.to(self.weight.dtype), self.weight).to(input.dtype)


class _PReLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, slope):
        ctx.save_for_backward(x, slope)
        return nn.functional.prelu(x, slope)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad):
        return prelu_backward(grad, *ctx.saved_tensors)
