"""Interactions of a sample's vectors in plain PyTorch: the specification of the kernels."""

from __future__ import annotations

import torch
from torch import Tensor


def dot_interaction(bottom: Tensor, vectors: Tensor) -> Tensor:
    """Dot products of all pairs of a sample's vectors, behind the bottom vector itself (DLRM).

    bottom: [B, D], vectors: [B, F, D]. With Z = [bottom; vectors], out[b] is bottom[b] followed by
    the triangle below the diagonal of Z Z^T, row after row: [B, D + (F + 1) F / 2], of bottom's
    dtype.

    bottom = [[1., 2.]], vectors = [[[3., 4.], [5., 6.]]]  ->  [[1., 2., 11., 17., 39.]]
    """
    z = _rows(bottom, vectors)
    products = z @ z.transpose(1, 2)  # [B, F+1, F+1]
    row, column = _triangle(z)
    return torch.cat([bottom, products[:, row, column].to(bottom.dtype)], dim=1)


def dot_interaction_backward(
    grad: Tensor, bottom: Tensor, vectors: Tensor
) -> tuple[Tensor, Tensor]:
    """Gradients of bottom and vectors: dZ = (G + G^T) Z, G the triangle's gradient."""
    z = _rows(bottom, vectors)
    width = bottom.shape[1]
    row, column = _triangle(z)
    products = z.new_zeros(z.shape[0], z.shape[1], z.shape[1])
    products[:, row, column] = grad[:, width:].to(z.dtype)
    grad_z = (products + products.transpose(1, 2)) @ z  # [B, F+1, D]
    grad_bottom = grad_z[:, 0] + grad[:, :width]
    return grad_bottom.to(bottom.dtype), grad_z[:, 1:].to(vectors.dtype).contiguous()


def second_order(vectors: Tensor) -> Tensor:
    """The sum of the dot products of all pairs of a sample's vectors (factorization machine).

    out[b] = 0.5 * sum over d of (sum of v)^2 - sum of v^2: [B, F, D] -> [B], float32.

    vectors = [[[1., 2.], [3., 4.]]]  ->  [11.]
    """
    v = _wide(vectors)
    return 0.5 * (v.sum(1).square() - v.square().sum(1)).sum(1)


def second_order_backward(grad: Tensor, vectors: Tensor) -> Tensor:
    """The gradient of vectors: each gets the sum of the others of its sample."""
    v = _wide(vectors)
    return (grad[:, None, None] * (v.sum(1, keepdim=True) - v)).to(vectors.dtype)


def _rows(bottom: Tensor, vectors: Tensor) -> Tensor:
    return torch.cat([_wide(bottom)[:, None], _wide(vectors)], dim=1)  # [B, F+1, D]


def _wide(values: Tensor) -> Tensor:
    return values.float() if values.dtype in (torch.bfloat16, torch.float16) else values


def _triangle(z: Tensor) -> Tensor:
    return torch.tril_indices(z.shape[1], z.shape[1], offset=-1, device=z.device)
