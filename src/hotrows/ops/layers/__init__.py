"""Ops of layers, one file each: the native core where it takes the tensors, else PyTorch.

    softmax_jagged             what layers call
    softmax_jagged_reference   the specification in plain PyTorch: the tests' oracle, and the fallback

`native.takes` decides: CPU tensors of the right dtypes go to the core where it was built. In a graph
that PyTorch compiles, the reference is what it compiles.
"""
