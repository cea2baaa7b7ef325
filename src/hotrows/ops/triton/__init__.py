"""Triton kernels of the ops, for tensors on a GPU; imported only where one is asked for."""
