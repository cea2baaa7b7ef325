"""An emulator of the PTX that Triton makes of our kernels: they are executed without a GPU.

    python -m pytest -p tests.ptx.plugin tests/ops/triton      # the kernels' tests, emulated
    python -m tests.ptx --help                                 # all kernels, mutants, interleavings

A launch compiles the kernel for sm_80, and `machine` runs the threads of its blocks over arrays of NumPy:
warps come in any order between barriers, shared memory begins as noise, and an access out of bounds, a
race, or a register that nothing has written is an error that names kernel, line and address.
"""
