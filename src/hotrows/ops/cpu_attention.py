"""Attention over lists of vectors on the native core: as in `reference_attention`."""

from __future__ import annotations

from ctypes import CDLL, c_int64

import torch
from torch import Tensor

from hotrows import native
from hotrows.native import pointer


def takes(*tensors: Tensor) -> bool:
    """Whether the core has kernels for tensors of these devices and dtypes; not in a compiled graph."""
    on_core = all(t.device.type == "cpu" and t.dtype == torch.float32 for t in tensors)
    return on_core and not torch.compiler.is_compiling() and native.load() is not None


def target_projection(
    queries: Tensor, keys: Tensor, offsets: Tensor, weight: Tensor, bias: Tensor | None
) -> Tensor:
    queries, keys, weight = queries.contiguous(), keys.contiguous(), weight.contiguous()
    bias = None if bias is None else bias.contiguous()
    offsets = _checked(offsets, len(queries), len(keys))
    out = torch.empty(len(keys), len(weight))
    _core().hotrows_target_projection(
        pointer(queries), pointer(keys), pointer(offsets), pointer(weight), pointer(bias),
        *_sizes(*queries.shape, len(weight)), pointer(out),
    )  # fmt: skip
    return out


def target_projection_backward(
    grad: Tensor, queries: Tensor, keys: Tensor, offsets: Tensor, weight: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    grad, queries, keys = grad.contiguous(), queries.contiguous(), keys.contiguous()
    weight, offsets = weight.contiguous(), _checked(offsets, len(queries), len(keys))
    grads = [torch.empty_like(t) for t in (queries, keys, weight)]
    grad_bias = torch.empty(len(weight))
    _core().hotrows_target_projection_backward(
        pointer(grad), pointer(queries), pointer(keys), pointer(offsets), pointer(weight),
        *_sizes(*queries.shape, len(weight)), *map(pointer, grads), pointer(grad_bias),
    )  # fmt: skip
    return grads[0], grads[1], grads[2], grad_bias


def softmax_jagged(scores: Tensor, offsets: Tensor) -> Tensor:
    scores = scores.contiguous()
    offsets = _checked(offsets, len(offsets) - 1, len(scores))
    out = torch.empty_like(scores)
    _core().hotrows_softmax_jagged(
        pointer(scores), pointer(offsets), *_sizes(len(offsets) - 1), pointer(out)
    )
    return out


def softmax_jagged_backward(grad: Tensor, weights: Tensor, offsets: Tensor) -> Tensor:
    grad, weights = grad.contiguous(), weights.contiguous()
    offsets = _checked(offsets, len(offsets) - 1, len(weights))
    out = torch.empty_like(weights)
    _core().hotrows_softmax_jagged_backward(
        pointer(grad), pointer(weights), pointer(offsets), *_sizes(len(offsets) - 1), pointer(out)
    )
    return out


def weighted_sum(weights: Tensor, values: Tensor, offsets: Tensor) -> Tensor:
    weights, values = weights.contiguous(), values.contiguous()
    size, width = len(offsets) - 1, values.shape[1]
    offsets = _checked(offsets, size, len(values))
    out = torch.empty(size, width)
    _core().hotrows_weighted_sum(
        pointer(weights), pointer(values), pointer(offsets), *_sizes(size, width), pointer(out)
    )
    return out


def jagged_dot(queries: Tensor, keys: Tensor, offsets: Tensor) -> Tensor:
    queries, keys = queries.contiguous(), keys.contiguous()
    offsets = _checked(offsets, len(queries), len(keys))
    out = torch.empty(len(keys))
    _core().hotrows_jagged_dot(
        pointer(queries), pointer(keys), pointer(offsets), *_sizes(*queries.shape), pointer(out)
    )
    return out


def weighted_copies(weights: Tensor, queries: Tensor, offsets: Tensor) -> Tensor:
    weights, queries = weights.contiguous(), queries.contiguous()
    offsets = _checked(offsets, len(queries), len(weights))
    out = torch.empty(len(weights), queries.shape[1])
    _core().hotrows_weighted_copies(
        pointer(weights), pointer(queries), pointer(offsets), *_sizes(*queries.shape), pointer(out)
    )
    return out


def _core() -> CDLL:
    core = native.load()
    assert core is not None, "asked without `takes`"
    return core


def _checked(offsets: Tensor, size: int, num_vectors: int) -> Tensor:
    """Offsets that the core can follow: nothing that it reads lies outside of the tensors."""
    fits = offsets.shape == (size + 1,) and offsets.dtype == torch.int64
    if fits and size > 0:
        fits = bool(offsets[0] == 0 and offsets[-1] == num_vectors and (offsets.diff() >= 0).all())
    if not fits or (size == 0 and num_vectors > 0):
        raise ValueError(
            f"offsets of {size} samples and {num_vectors} vectors must be {size + 1} int64 values "
            f"that rise from 0 to {num_vectors}, not {offsets}"
        )
    return offsets.contiguous()


def _sizes(*sizes: int) -> list[c_int64]:
    return [c_int64(n) for n in sizes]
