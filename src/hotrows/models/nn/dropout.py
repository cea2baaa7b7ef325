"""Dropout that costs one pass on the CPU, where PyTorch draws its mask on a single thread."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from hotrows.ops.layers import dropout as ops


class Dropout(nn.Dropout):
    """`nn.Dropout`, p rounded to a multiple of 1 / 65536; keys come from PyTorch's generator.

    A seed drops equal elements on any number of threads. On a GPU, and where it is
    compiled, it is PyTorch's own: a key drawn here would be the same in every replay of a graph.
    """

    def forward(self, input: Tensor) -> Tensor:
        dropped = round(self.p * ops.LEVELS)
        if not self.training or dropped == 0:
            return input
        on_core = input.device.type == "cpu" and not torch.compiler.is_compiling()
        if dropped == ops.LEVELS or not on_core:
            return super().forward(input)
        return _Dropout.apply(input, int(torch.randint(2**62, ())), dropped)


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, key, dropped):
        ctx.key, ctx.dropped = key, dropped
        return ops.dropout(x, key, dropped)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad):
        return ops.dropout(grad, ctx.key, ctx.dropped), None, None
