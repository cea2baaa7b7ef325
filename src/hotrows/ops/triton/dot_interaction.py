"""The dot interaction on the GPU: a program per sample, its vectors as one tile.

    Z [F + 1, D], row 0 the bottom vector        S [F + 1, F + 1], symmetric, 0 on the diagonal
    forward    Z Z^T, whose lower triangle goes out row after row
    backward   dZ = S Z, S both triangles of the gradient

Formulas: `ops.layers.interaction`. Sums are in float32, in an order fixed by the shapes; tensors of one
narrow dtype are multiplied as they are, which is exact. Where float32 vectors give a bfloat16 result,
under autocast, they are multiplied in TF32, which keeps three bits more. D is walked in blocks of BD.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from hotrows.ops.triton import launch

_MOST_PADDING = 8
_MOST_ROWS = 128  # of Z: their products, 64 KiB in float32, stay in registers
_DTYPES = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}


def takes(*tensors: Tensor) -> bool:
    """True if there are kernels for these dtypes and as many vectors as the last tensor has."""
    return all(t.dtype in _DTYPES for t in tensors) and tensors[-1].shape[1] < _MOST_ROWS


def dot_interaction(bottom: Tensor, vectors: Tensor, padding: int = 0) -> Tensor:
    if not 0 <= padding < _MOST_PADDING:  # to a multiple of what tensor cores read at once
        raise ValueError(f"padding must be from 0 to {_MOST_PADDING - 1}, not {padding}")
    bottom = _rows_together(bottom)
    size, count, width = vectors.shape
    out = bottom.new_empty(size, width + count * (count + 1) // 2 + padding)
    if out.numel() > 0:
        strides = bottom.stride(0), *vectors.stride(), out.stride(0)
        tile = _tile(count, width, bottom, vectors, out=bottom.dtype)
        with torch.cuda.device_of(vectors):
            _forward[(size,)](bottom, vectors, out, *strides, count, width, **tile, PADDING=padding)
    return out


def dot_interaction_backward(grad: Tensor, bottom: Tensor, vectors: Tensor) -> tuple[Tensor, Tensor]:
    grad, bottom = _rows_together(grad), _rows_together(bottom)
    size, count, width = vectors.shape
    grad_bottom, grad_vectors = bottom.new_empty(bottom.shape), vectors.new_empty(vectors.shape)
    if grad_bottom.numel() > 0:
        strides, grads = (bottom.stride(0), *vectors.stride()), (grad_bottom, grad_vectors)
        tile = _tile(count, width, grad, bottom, vectors)
        with torch.cuda.device_of(vectors):
            _backward[(size,)](
                grad, bottom, vectors, *grads, grad.stride(0), *strides, count, width, **tile
            )
    return grad_bottom, grad_vectors


@triton.jit
def _forward(
    bottom, vectors, out,
    bottom_stride, vectors_stride_b, vectors_stride_f, vectors_stride_d, out_stride,
    F: tl.constexpr, D: tl.constexpr, BF: tl.constexpr, BK: tl.constexpr, BD: tl.constexpr,
    DTYPE: tl.constexpr, PRECISION: tl.constexpr, PADDING: tl.constexpr,
):  # fmt: skip
    i_b = tl.program_id(0).to(tl.int64)
    p_bottom = bottom + i_b * bottom_stride
    p_vectors = vectors + i_b * vectors_stride_b
    p_out = out + i_b * out_stride
    o_f = tl.arange(0, BF)
    b_products = tl.zeros([BF, BF], tl.float32)
    for first in range(0, D, BD):
        o_d = first + tl.arange(0, BD)
        # [BF, BD]
        b_z = _load_z(p_bottom, p_vectors, vectors_stride_f, vectors_stride_d, o_f, o_d, F, D)
        b_z = b_z.to(DTYPE)
        b_products = tl.dot(b_z, tl.trans(b_z), b_products, input_precision=PRECISION)
        # [BD]
        b_bottom = tl.load(p_bottom + o_d, mask=o_d < D)
        tl.store(p_out + o_d, b_bottom, mask=o_d < D)
    o_row, o_column = o_f[:, None], o_f[None, :]
    o_pair = o_row * (o_row - 1) // 2 + o_column
    m_pair = (o_column < o_row) & (o_row <= F)
    tl.store(p_out + D + o_pair, b_products.to(out.dtype.element_ty), mask=m_pair)
    if PADDING > 0:
        o_padding = tl.arange(0, 8)
        b_zeros = tl.zeros([8], out.dtype.element_ty)
        tl.store(p_out + D + F * (F + 1) // 2 + o_padding, b_zeros, mask=o_padding < PADDING)


@triton.jit
def _backward(
    grad, bottom, vectors, grad_bottom, grad_vectors,
    grad_stride, bottom_stride, vectors_stride_b, vectors_stride_f, vectors_stride_d,
    F: tl.constexpr, D: tl.constexpr, BF: tl.constexpr, BK: tl.constexpr, BD: tl.constexpr,
    DTYPE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    i_b = tl.program_id(0).to(tl.int64)
    p_grad = grad + i_b * grad_stride
    p_bottom = bottom + i_b * bottom_stride
    p_vectors = vectors + i_b * vectors_stride_b
    p_grad_bottom = grad_bottom + i_b * D
    p_grad_vectors = grad_vectors + i_b * F * D
    o_f = tl.arange(0, BF)
    for first in range(0, D, BD):
        o_d = first + tl.arange(0, BD)
        m_d = o_d < D
        b_grad_z = tl.zeros([BF, BD], tl.float32)
        for row in range(0, BF, BK):
            o_k = row + tl.arange(0, BK)
            o_low = tl.minimum(o_f[:, None], o_k[None, :])
            o_high = tl.maximum(o_f[:, None], o_k[None, :])
            p_s = p_grad + D + o_high * (o_high - 1) // 2 + o_low
            # [BF, BK]
            b_s = tl.load(p_s, mask=(o_low < o_high) & (o_high <= F), other=0.0)
            # [BK, BD]
            b_z = _load_z(p_bottom, p_vectors, vectors_stride_f, vectors_stride_d, o_k, o_d, F, D)
            b_grad_z = tl.dot(b_s.to(DTYPE), b_z.to(DTYPE), b_grad_z, input_precision=PRECISION)
        m_z = (o_f[:, None] > 0) & (o_f[:, None] <= F) & m_d[None, :]
        p_z = p_grad_vectors + (o_f[:, None] - 1) * D + o_d[None, :]
        tl.store(p_z, b_grad_z.to(grad_vectors.dtype.element_ty), mask=m_z)
        # [BD]
        b_direct = tl.load(p_grad + o_d, mask=m_d, other=0.0).to(tl.float32)
        b_first = tl.sum(tl.where(o_f[:, None] == 0, b_grad_z, 0.0), axis=0) + b_direct
        tl.store(p_grad_bottom + o_d, b_first.to(grad_bottom.dtype.element_ty), mask=m_d)


@triton.jit
def _load_z(p_bottom, p_vectors, stride_f, stride_d, o_f, o_d, F: tl.constexpr, D: tl.constexpr):
    """Columns o_d of Z, zeros outside: [BF, BD] float32."""
    m_d = o_d < D
    m_z = (o_f[:, None] > 0) & (o_f[:, None] <= F) & m_d[None, :]
    o_row, o_column = (o_f - 1).to(tl.int64) * stride_f, o_d.to(tl.int64) * stride_d
    p_z = p_vectors + o_row[:, None] + o_column[None, :]
    b_vectors = tl.load(p_z, mask=m_z, other=0.0).to(tl.float32)
    b_bottom = tl.load(p_bottom + o_d, mask=m_d, other=0.0).to(tl.float32)
    return tl.where(o_f[:, None] == 0, b_bottom[None, :], b_vectors)


def _tile(count: int, width: int, *tensors: Tensor, out: torch.dtype = torch.float32) -> dict:
    """Sizes of the tile, the dtype that products are taken in and how, and warps per program.

    out: of all results. Without tensor cores, in float32, long blocks would not fit the registers.
    """
    dtypes = {tensor.dtype for tensor in tensors}
    dtype = dtypes.pop() if len(dtypes) == 1 else torch.float32
    in_tf32 = dtype == torch.float32 and out == torch.bfloat16
    rows = max(16, launch.next_power_of_2(count + 1))
    longest = 16 if dtype == torch.float32 and not in_tf32 else 64
    return {
        "BF": rows,
        "BK": min(rows, longest),
        "BD": min(max(16, launch.next_power_of_2(width)), longest),
        "DTYPE": _DTYPES[dtype],
        "PRECISION": "tf32" if in_tf32 else "ieee",
        "num_warps": {16: 1, 32: 4, 64: 4, 128: 8}[rows],
    }


def _rows_together(t: Tensor) -> Tensor:
    """[B, N] with each row's values side by side; rows may be apart."""
    return t if t.stride(1) == 1 else t.contiguous()
