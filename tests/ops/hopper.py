"""Compiles Triton kernels for a Hopper GPU on a machine without one: run as a script, in its own process.

    python -m tests.ops.hopper             # the layers that need most registers
    python -m tests.ops.hopper layers      # all of the layers at real sizes: registers, spills

A launch compiles the kernel for these very arguments and stops there.
"""

import argparse
import re
import subprocess
import tempfile

from triton import knobs
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
    """From now on kernels that are launched are compiled; names and results of those that were."""
    compiled = []

    def launch(kernel, grid):
        def run(*arguments, **options):
            made = kernel.warmup(*arguments, grid=grid, **options)
            compiled.append((kernel.__name__, made))

        return run

    driver.set_active(Hopper())
    JITFunction.__getitem__ = launch
    return compiled


def layers(calls):
    """Of each call the op, and name, registers, bytes of stack and of shared memory of its kernels."""
    from tests.ops.triton.layer_cases import kernel

    compiled = compile_only()
    for name, arguments in calls:
        del compiled[:]
        kernel(name)(*arguments)
        yield name, [(kernel, *_resources(made)) for kernel, made in compiled]


def _resources(made):
    """Registers of a thread, bytes of its stack, where spills go, and of shared memory, in the SASS."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as cubin:
        cubin.write(made.asm["cubin"])
        cubin.flush()
        command = [knobs.nvidia.cuobjdump.path, "--dump-resource-usage", cubin.name]
        told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = {key: int(number) for key, number in re.findall(r"(REG|STACK|LOCAL|SHARED):(\d+)", told)}
    return found["REG"], found["STACK"] + found["LOCAL"], made.metadata.shared, made.metadata.num_warps


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", nargs="?", choices=("heavy", "layers"), default="heavy")
    what = parser.parse_args().what
    from tests.ops.triton import layer_cases

    if what == "heavy":
        calls = dict(reversed(layer_cases.real_calls(64, 5)))  # the first of each op
        heavy = [
            (name, calls[name])
            for name in (
                "target_projection_backward",
                "recurrent_backward",
                "pointwise_attention_backward",
            )
        ]
        kernels = [kernel for _, kernels in layers(heavy) for kernel in kernels]
        spilled = sum(spilled for _, _, spilled, *_ in kernels)
        print(f"{len(kernels)} kernels compiled, {spilled} bytes spilled")
        return
    print(f"{'op':28} {'kernel':18} {'warps':>5} {'regs':>5} {'spill':>5} {'shared':>7}")
    for name, kernels in layers(layer_cases.real_calls()):
        for kernel, registers, stack, shared, warps in kernels:
            print(f"{name:28} {kernel:18} {warps:5} {registers:5} {stack:5} {shared:7}")


if __name__ == "__main__":
    main()
