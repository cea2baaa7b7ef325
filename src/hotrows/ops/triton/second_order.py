"""The second-order term of a factorization machine on the GPU: a program per sample.

A sample's vectors are read in tiles of [BF, BD]; sums are in float32, in an order fixed by the shapes.
Formulas: `ops.layers.interaction`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from hotrows.ops.triton import launch

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def takes(*tensors: Tensor) -> bool:
    """True if there are kernels for these dtypes."""
    return all(t.dtype in _DTYPES for t in tensors)


def second_order(vectors: Tensor) -> Tensor:
    size, count, width = vectors.shape
    out = vectors.new_empty(size, dtype=torch.float32)
    if size > 0:
        with torch.cuda.device_of(vectors):
            _forward[(size,)](vectors, out, *vectors.stride(), count, width, **_tile(vectors))
    return out


def second_order_backward(grad: Tensor, vectors: Tensor) -> Tensor:
    size, count, width = vectors.shape
    grad_vectors = vectors.new_empty(vectors.shape)
    if grad_vectors.numel() > 0:
        strides = grad.stride(0), *vectors.stride()
        with torch.cuda.device_of(vectors):
            _backward[(size,)](grad, vectors, grad_vectors, *strides, count, width, **_tile(vectors))
    return grad_vectors


@triton.jit
def _forward(
    vectors, out, stride_b, stride_f, stride_d,
    F: tl.constexpr, D: tl.constexpr, BF: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    i_b = tl.program_id(0).to(tl.int64)
    p_vectors = vectors + i_b * stride_b
    b_out = tl.zeros([BD], tl.float32)
    for first in range(0, D, BD):
        o_d = first + tl.arange(0, BD)
        b_sum = tl.zeros([BD], tl.float32)
        b_squares = tl.zeros([BD], tl.float32)
        for row in range(0, F, BF):
            o_f = row + tl.arange(0, BF)
            # [BF, BD]
            b_v = _load(p_vectors, stride_f, stride_d, o_f, o_d, F, D)
            b_sum += tl.sum(b_v, axis=0)
            b_squares += tl.sum(b_v * b_v, axis=0)
        b_out += b_sum * b_sum - b_squares
    tl.store(out + i_b, 0.5 * tl.sum(b_out, axis=0))


@triton.jit
def _backward(
    grad, vectors, grad_vectors, grad_stride, stride_b, stride_f, stride_d,
    F: tl.constexpr, D: tl.constexpr, BF: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    i_b = tl.program_id(0).to(tl.int64)
    p_vectors = vectors + i_b * stride_b
    p_grad_vectors = grad_vectors + i_b * F * D
    b_grad = tl.load(grad + i_b * grad_stride)
    for first in range(0, D, BD):
        o_d = first + tl.arange(0, BD)
        b_sum = tl.zeros([BD], tl.float32)
        for row in range(0, F, BF):
            o_f = row + tl.arange(0, BF)
            # [BF, BD]
            b_sum += tl.sum(_load(p_vectors, stride_f, stride_d, o_f, o_d, F, D), axis=0)
        for row in range(0, F, BF):
            o_f = row + tl.arange(0, BF)
            # [BF, BD]
            b_v = _load(p_vectors, stride_f, stride_d, o_f, o_d, F, D)
            b_grad_v = (b_grad * (b_sum[None, :] - b_v)).to(grad_vectors.dtype.element_ty)
            m_v = (o_f[:, None] < F) & (o_d[None, :] < D)
            tl.store(p_grad_vectors + o_f[:, None] * D + o_d[None, :], b_grad_v, mask=m_v)


@triton.jit
def _load(p_vectors, stride_f, stride_d, o_f, o_d, F: tl.constexpr, D: tl.constexpr):
    """Vectors o_f of the sample, columns o_d, zeros outside: [BF, BD] float32."""
    m_v = (o_f[:, None] < F) & (o_d[None, :] < D)
    o_row, o_column = o_f.to(tl.int64) * stride_f, o_d.to(tl.int64) * stride_d
    p_v = p_vectors + o_row[:, None] + o_column[None, :]
    return tl.load(p_v, mask=m_v, other=0.0).to(tl.float32)


def _tile(vectors: Tensor) -> dict:
    """Sizes of the tile, at most 2,048 values, and warps per program."""
    _, count, width = vectors.shape
    columns = min(launch.next_power_of_2(max(width, 1)), 128)
    rows = min(launch.next_power_of_2(max(count, 1)), 2048 // columns, 32)
    return {"BF": rows, "BD": columns, "num_warps": 1 if rows * columns <= 512 else 2}
