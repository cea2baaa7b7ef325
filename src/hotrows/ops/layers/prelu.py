"""The way back through a PReLU with a slope per feature, where PyTorch's sums on one thread."""

from __future__ import annotations

import torch
from torch import Tensor

from hotrows.runtime.native import call, takes


def prelu_backward(grad: Tensor, x: Tensor, slope: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of x and of the slope: [M, H], [M, H], [H] -> [M, H], [H].

    grad = [[1., 1.]], x = [[2., -3.]], slope = [0.5, 0.5]  ->  [[1., 0.5]], [0., -3.]
    """
    if not takes(grad, x, slope):
        return prelu_backward_reference(grad, x, slope)
    grad, x, slope = grad.contiguous(), x.contiguous(), slope.contiguous()
    grads = torch.empty_like(x), torch.empty_like(slope)
    call("prelu_backward", grad, x, slope, *x.shape, *grads)
    return grads


def prelu_backward_reference(grad: Tensor, x: Tensor, slope: Tensor) -> tuple[Tensor, Tensor]:
    positive = x > 0
    return torch.where(positive, grad, grad * slope), torch.where(positive, 0, grad * x).sum(0)
