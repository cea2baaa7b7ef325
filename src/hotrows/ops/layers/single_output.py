"""The way back through a linear layer with one output, in one pass on a GPU."""

from __future__ import annotations

from torch import Tensor

from hotrows.ops.layers.by_device import by_device, gpu_op


def single_output_backward(grad: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of x [M, K], weight [1, K] and bias [1], from that of x weight^T + bias, [M, 1].

    grad = [[2.], [1.]], x = [[1., 3.], [0., 1.]], weight = [[5., 7.]]
        ->  [[10., 14.], [5., 7.]], [[2., 7.]], [3.]
    """
    return by_device(single_output_backward_reference, grad, x, weight)


@gpu_op("statistics")
def single_output_backward_reference(
    grad: Tensor, x: Tensor, weight: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    return grad * weight, grad.t() @ x, grad.sum(0)
