"""The way back through a bias and a ReLU, in one pass where the native core is there."""

from __future__ import annotations

from ctypes import c_int64

import torch
from torch import Tensor

from hotrows import native
from hotrows.native import pointer


def relu_backward(grad: Tensor, activation: Tensor | None, out: Tensor) -> tuple[Tensor, Tensor]:
    """The gradient in front of max(x + b, 0), and that of b: [B, N] -> [B, N], [N] float32.

    activation: what the ReLU returned, None where there was none. out: where the masked gradient
    goes, which may be `grad` itself.

    grad = [[1., 2.]], activation = [[5., 0.]]  ->  [[1., 0.]], [1., 0.]
    """
    core = native.load() if grad.device.type == "cpu" else None
    if core is None:
        return relu_backward_reference(grad, activation, out)
    sums = torch.empty(grad.shape[1])
    core.hotrows_relu_backward(
        pointer(grad), pointer(activation), *(c_int64(n) for n in grad.shape),
        grad.itemsize, pointer(out), pointer(sums),
    )  # fmt: skip
    return (grad if activation is None else out), sums


def relu_backward_reference(
    grad: Tensor, activation: Tensor | None, out: Tensor
) -> tuple[Tensor, Tensor]:
    if activation is not None:
        grad = torch.ops.aten.threshold_backward.grad_input(grad, activation, 0, grad_input=out)
    return grad, grad.sum(0, dtype=torch.float32)
