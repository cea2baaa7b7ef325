"""The way back through a PReLU with a slope per feature, where PyTorch's sums on one thread."""

from __future__ import annotations

from ctypes import c_int64

import torch
from torch import Tensor

from hotrows import native
from hotrows.native import pointer


def prelu_backward(grad: Tensor, x: Tensor, slope: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of x and of the slope: [M, H], [M, H], [H] -> [M, H], [H].

    grad = [[1., 1.]], x = [[2., -3.]], slope = [0.5, 0.5]  ->  [[1., 0.5]], [0., -3.]
    """
    tensors = (grad, x, slope)
    on_core = all(t.device.type == "cpu" and t.dtype == torch.float32 for t in tensors)
    core = native.load() if on_core and not torch.compiler.is_compiling() else None
    if core is None:
        return prelu_backward_reference(grad, x, slope)
    grad, x, slope = grad.contiguous(), x.contiguous(), slope.contiguous()
    grad_x, grad_slope = torch.empty_like(x), torch.empty_like(slope)
    core.hotrows_prelu_backward(
        pointer(grad), pointer(x), pointer(slope), *(c_int64(n) for n in x.shape),
        pointer(grad_x), pointer(grad_slope),
    )  # fmt: skip
    return grad_x, grad_slope


def prelu_backward_reference(grad: Tensor, x: Tensor, slope: Tensor) -> tuple[Tensor, Tensor]:
    positive = x > 0
    return torch.where(positive, grad, grad * slope), torch.where(positive, 0, grad * x).sum(0)
