"""The way back through a bias and a ReLU, in one pass on the native core."""

from __future__ import annotations

import torch
from torch import Tensor

from hotrows.runtime.native import call, takes

_DTYPES = (torch.float32, torch.bfloat16)


def relu_backward(grad: Tensor, activation: Tensor | None, out: Tensor) -> tuple[Tensor, Tensor]:
    """The gradient in front of max(x + b, 0), and that of b: [B, N] -> [B, N], [N] float32.

    activation: what the ReLU returned, None where there was none. out: where the masked gradient
    goes, which may be `grad` itself.

    grad = [[1., 2.]], activation = [[5., 0.]]  ->  [[1., 0.]], [1., 0.]
    """
    if not takes(grad, activation, out, dtypes=_DTYPES):
        return relu_backward_reference(grad, activation, out)
    sums = torch.empty(grad.shape[1])
    call("relu_backward", grad, activation, *grad.shape, grad.itemsize, out, sums)
    return (grad if activation is None else out), sums


def relu_backward_reference(
    grad: Tensor, activation: Tensor | None, out: Tensor
) -> tuple[Tensor, Tensor]:
    if activation is not None:
        grad = torch.ops.aten.threshold_backward.grad_input(grad, activation, 0, grad_input=out)
    return grad, grad.sum(0, dtype=torch.float32)
