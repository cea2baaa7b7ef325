"""Compiles Triton kernels for a Hopper GPU on a machine without one: run as a script, in its own process.

    python -m tests.ops.hopper

A launch compiles the kernel for these very arguments and stops there.
"""

import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import JITFunction, driver


class Hopper:
    """As much of a driver as compiling needs."""

    def get_current_target(self):
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self):
        return 0

    def get_current_stream(self, device):
        return 0


def compile_only():
    """From now on kernels that are launched are compiled; names of those that were."""
    compiled = []

    def launch(kernel, grid):
        def run(*arguments, **options):
            kernel.warmup(*arguments, grid=grid, **options)
            compiled.append(kernel.__name__)

        return run

    driver.set_active(Hopper())
    JITFunction.__getitem__ = launch
    return compiled


def interactions():
    from hotrows.ops.triton import dot_interaction, second_order

    compiled = compile_only()
    float32, bfloat16 = torch.float32, torch.bfloat16
    for count, width, *dtypes in [
        (26, 16, float32, float32),
        (26, 16, bfloat16, bfloat16),
        (26, 16, bfloat16, float32),
        (1, 1, float32, float32),
        (127, 200, bfloat16, bfloat16),
        (127, 200, float32, float32),
    ]:
        bottom = torch.zeros(2, width, dtype=dtypes[0])
        vectors = torch.zeros(2, count, width + 3, dtype=dtypes[1])[:, :, 3:]
        grad = dot_interaction.dot_interaction(bottom, vectors)
        dot_interaction.dot_interaction_backward(grad, bottom, vectors)
        grad = second_order.second_order(vectors)
        second_order.second_order_backward(grad, vectors)
    return compiled


if __name__ == "__main__":
    print(len(interactions()), "kernels compiled")
