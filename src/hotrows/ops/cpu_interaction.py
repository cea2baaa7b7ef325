"""Interactions of a sample's vectors on the native core: as in `reference_interaction`."""

from __future__ import annotations

from ctypes import CDLL, c_int64

import torch
from torch import Tensor

from hotrows import native
from hotrows.native import pointer

_DTYPES = (torch.float32, torch.bfloat16)


def takes(*tensors: Tensor) -> bool:
    """Whether the core has kernels for tensors of these devices and dtypes."""
    on_core = all(t.device.type == "cpu" and t.dtype in _DTYPES for t in tensors)
    widening = tensors[0].itemsize > tensors[-1].itemsize
    return on_core and not widening and native.load() is not None


def dot_interaction(bottom: Tensor, vectors: Tensor) -> Tensor:
    bottom, vectors = bottom.contiguous(), _by_sample(vectors)
    size, count, width = vectors.shape
    out = bottom.new_empty(size, width + count * (count + 1) // 2)
    _core().hotrows_dot_interaction(
        pointer(bottom), pointer(vectors), *_sizes(vectors),
        bottom.itemsize, vectors.itemsize, pointer(out),
    )  # fmt: skip
    return out


def dot_interaction_backward(
    grad: Tensor, bottom: Tensor, vectors: Tensor
) -> tuple[Tensor, Tensor]:
    grad, bottom, vectors = grad.contiguous(), bottom.contiguous(), _by_sample(vectors)
    grad_bottom, grad_vectors = torch.empty_like(bottom), vectors.new_empty(vectors.shape)
    _core().hotrows_dot_interaction_backward(
        pointer(grad), pointer(bottom), pointer(vectors), *_sizes(vectors),
        bottom.itemsize, vectors.itemsize, pointer(grad_bottom), pointer(grad_vectors),
    )  # fmt: skip
    return grad_bottom, grad_vectors


def second_order(vectors: Tensor) -> Tensor:
    vectors = _by_sample(vectors)
    out = torch.empty(vectors.shape[0])
    _core().hotrows_second_order(pointer(vectors), *_sizes(vectors), vectors.itemsize, pointer(out))
    return out


def second_order_backward(grad: Tensor, vectors: Tensor) -> Tensor:
    grad, vectors = grad.contiguous(), _by_sample(vectors)
    grad_vectors = vectors.new_empty(vectors.shape)
    _core().hotrows_second_order_backward(
        pointer(grad), pointer(vectors), *_sizes(vectors), vectors.itemsize, pointer(grad_vectors)
    )
    return grad_vectors


def _core() -> CDLL:
    core = native.load()
    assert core is not None, "asked without `takes`"
    return core


def _by_sample(vectors: Tensor) -> Tensor:
    """The vectors with each sample's own end to end; samples may stand apart."""
    return vectors if vectors[:1].is_contiguous() else vectors.contiguous()


def _sizes(vectors: Tensor) -> list[c_int64]:
    return [c_int64(n) for n in (*vectors.shape, vectors.stride(0))]
