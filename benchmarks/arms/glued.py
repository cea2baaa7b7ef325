"""The fastest public parts, put together by hand: what an expert could build without us.

FBGEMM's tables; linear layers on oneDNN, or bfloat16 under autocast; malloc keeps freed memory.
"""

import torch
from torch import Tensor, nn

from benchmarks.arms import arm
from benchmarks.arms.fbgemm import tbe_lookup
from benchmarks.arms.malloc import keep_freed_memory
from benchmarks.arms.torch_models import linear
from benchmarks.arms.torch_step import make_step
from benchmarks.workload import batches

onednn_linear = torch.ops.mkldnn._linear_pointwise


class LinearFunction(torch.autograd.Function):
    """y = relu(x wᵀ + b), or without the relu. With a single output oneDNN gains nothing."""

    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, bias: Tensor, relu: bool) -> Tensor:
        y = onednn_linear(x, weight, bias, "relu" if relu else "none", [], "")
        ctx.save_for_backward(x, weight, y)
        ctx.relu = relu
        return y

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, y = ctx.saved_tensors
        grad = torch.ops.aten.threshold_backward(grad, y, 0) if ctx.relu else grad.contiguous()
        multiply = _multiply if len(weight) > 1 else torch.mm
        grad_x = multiply(grad, weight) if ctx.needs_input_grad[0] else None
        return grad_x, multiply(grad.t(), x), grad.sum(0), None


class OneDnnLinear(nn.Linear):
    def __init__(self, inputs: int, outputs: int, relu: bool) -> None:
        super().__init__(inputs, outputs)
        self.relu = relu

    def forward(self, x: Tensor) -> Tensor:
        return LinearFunction.apply(x, self.weight, self.bias, self.relu)


def main() -> None:
    args = arm.parse()
    keep_freed_memory()
    torch.set_num_threads(args.threads)
    data = batches(args.workload, args.batch_size)
    lookup = tbe_lookup(args, data)
    layer = OneDnnLinear if args.precision == "float32" else linear
    arm.report(args, make_step(args, data, lookup, layer=layer), "torch", "fbgemm-gpu-cpu")


def _multiply(a: Tensor, b: Tensor) -> Tensor:
    return onednn_linear(a, b.t(), None, "none", [], "")


if __name__ == "__main__":
    main()
