"""Interactions of a sample's vectors, ops of PyTorch's dispatcher as those of the engine are.

The native core has kernels for the CPU; plain PyTorch is for whatever these do not take, and for GPUs.
Formulas and shapes: the references below.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn

import torch
from torch import Tensor

from hotrows.runtime import native
from hotrows.runtime.native import call

_SCHEMAS = {
    "dot_interaction": "(Tensor bottom, Tensor vectors, int padding=0) -> Tensor",
    "dot_interaction_backward": "(Tensor grad, Tensor bottom, Tensor vectors) -> (Tensor, Tensor)",
    "second_order": "(Tensor vectors) -> Tensor",
    "second_order_backward": "(Tensor grad, Tensor vectors) -> Tensor",
}
_DTYPES = (torch.float32, torch.bfloat16)


def takes(*tensors: Tensor) -> bool:
    """True if the core has a kernel for these tensors; vectors are not narrower than the first one."""
    widening = tensors[0].itemsize > tensors[-1].itemsize
    return not widening and native.takes(*tensors, dtypes=_DTYPES)


def _dot_interaction(bottom: Tensor, vectors: Tensor, padding: int = 0) -> Tensor:
    if padding or not takes(bottom, vectors):
        return dot_interaction_reference(bottom, vectors, padding)
    bottom, vectors = bottom.contiguous(), _by_sample(vectors)
    size, count, width = vectors.shape
    out = bottom.new_empty(size, width + count * (count + 1) // 2)
    call("dot_interaction", bottom, vectors, *_sizes(vectors), bottom.itemsize, vectors.itemsize, out)
    return out


def _dot_interaction_backward(grad: Tensor, bottom: Tensor, vectors: Tensor) -> tuple[Tensor, Tensor]:
    if not takes(grad, bottom, vectors):
        return dot_interaction_backward_reference(grad, bottom, vectors)
    bottom, vectors = bottom.contiguous(), _by_sample(vectors)
    _, count, width = vectors.shape
    grad = grad[:, : width + count * (count + 1) // 2].contiguous()  # without that of padding
    grads = torch.empty_like(bottom), vectors.new_empty(vectors.shape)
    call(
        "dot_interaction_backward", grad, bottom, vectors,
        *_sizes(vectors), bottom.itemsize, vectors.itemsize, *grads,
    )  # fmt: skip
    return grads


def _second_order(vectors: Tensor) -> Tensor:
    if not takes(vectors):
        return second_order_reference(vectors)
    vectors = _by_sample(vectors)
    out = torch.empty(vectors.shape[0])
    call("second_order", vectors, *_sizes(vectors), vectors.itemsize, out)
    return out


def _second_order_backward(grad: Tensor, vectors: Tensor) -> Tensor:
    if not takes(grad, vectors):
        return second_order_backward_reference(grad, vectors)
    grad, vectors = grad.contiguous(), _by_sample(vectors)
    out = vectors.new_empty(vectors.shape)
    call("second_order_backward", grad, vectors, *_sizes(vectors), vectors.itemsize, out)
    return out


def dot_interaction_reference(bottom: Tensor, vectors: Tensor, padding: int = 0) -> Tensor:
    """Dot products of all pairs of a sample's vectors, behind the bottom vector itself (DLRM).

    bottom: [B, D], vectors: [B, F, D]. With Z = [bottom; vectors], out[b] is bottom[b] followed by
    the triangle below the diagonal of Z Z^T, row after row: [B, D + (F + 1) F / 2], of bottom's
    dtype. padding: columns of zeros behind, whose gradient is not read.

    bottom = [[1., 2.]], vectors = [[[3., 4.], [5., 6.]]]  ->  [[1., 2., 11., 17., 39.]]
    """
    z = _rows(bottom, vectors)
    products = z @ z.transpose(1, 2)  # [B, F+1, F+1]
    row, column = _triangle(z)
    columns = torch.cat([bottom, products[:, row, column].to(bottom.dtype)], dim=1)
    return torch.nn.functional.pad(columns, (0, padding)) if padding else columns


def dot_interaction_backward_reference(
    grad: Tensor, bottom: Tensor, vectors: Tensor
) -> tuple[Tensor, Tensor]:
    """Gradients of bottom and vectors: dZ = (G + G^T) Z, G the triangle's gradient."""
    z = _rows(bottom, vectors)
    width = bottom.shape[1]
    row, column = _triangle(z)
    products = z.new_zeros(z.shape[0], z.shape[1], z.shape[1])
    products[:, row, column] = grad[:, width : width + len(row)].to(z.dtype)
    grad_z = (products + products.transpose(1, 2)) @ z  # [B, F+1, D]
    grad_bottom = grad_z[:, 0] + grad[:, :width]
    return grad_bottom.to(bottom.dtype), grad_z[:, 1:].to(vectors.dtype).contiguous()


def second_order_reference(vectors: Tensor) -> Tensor:
    """The sum of the dot products of all pairs of a sample's vectors (factorization machine).

    out[b] = 0.5 * sum over d of (sum of v)^2 - sum of v^2: [B, F, D] -> [B], float32.

    vectors = [[[1., 2.], [3., 4.]]]  ->  [11.]
    """
    v = _wide(vectors)
    return 0.5 * (v.sum(1).square() - v.square().sum(1)).sum(1)


def second_order_backward_reference(grad: Tensor, vectors: Tensor) -> Tensor:
    """The gradient of vectors: for each, the sum of all other vectors of its sample."""
    v = _wide(vectors)
    return (grad[:, None, None] * (v.sum(1, keepdim=True) - v)).to(vectors.dtype)


def _rows(bottom: Tensor, vectors: Tensor) -> Tensor:
    return torch.cat([_wide(bottom)[:, None], _wide(vectors)], dim=1)  # [B, F+1, D]


def _wide(values: Tensor) -> Tensor:
    return values.float() if values.dtype in (torch.bfloat16, torch.float16) else values


def _triangle(z: Tensor) -> Tensor:
    return torch.tril_indices(z.shape[1], z.shape[1], offset=-1, device=z.device)


def _by_sample(vectors: Tensor) -> Tensor:
    """The vectors, each sample's end to end; samples may be apart."""
    return vectors if vectors[:1].is_contiguous() else vectors.contiguous()


def _sizes(vectors: Tensor) -> tuple[int, ...]:
    return *vectors.shape, vectors.stride(0)


_library = torch.library.Library("hotrows", "FRAGMENT")
for _name, _schema in _SCHEMAS.items():
    _library.define(_name + _schema)
    _library.impl(_name, globals()[f"{_name}_reference"], "CompositeExplicitAutograd")
    _library.impl(_name, globals()[f"_{_name}"], "CPU")

dot_interaction = torch.ops.hotrows.dot_interaction
dot_interaction_backward = torch.ops.hotrows.dot_interaction_backward
second_order = torch.ops.hotrows.second_order
second_order_backward = torch.ops.hotrows.second_order_backward


@torch.library.register_fake("hotrows::dot_interaction", lib=_library)
def _(bottom: Tensor, vectors: Tensor, padding: int = 0) -> Tensor:
    size, count, width = vectors.shape
    return bottom.new_empty(size, width + count * (count + 1) // 2 + padding)


@torch.library.register_fake("hotrows::dot_interaction_backward", lib=_library)
def _(grad: Tensor, bottom: Tensor, vectors: Tensor) -> tuple[Tensor, Tensor]:
    return bottom.new_empty(bottom.shape), vectors.new_empty(vectors.shape)


@torch.library.register_fake("hotrows::second_order", lib=_library)
def _(vectors: Tensor) -> Tensor:
    dtype = torch.float64 if vectors.dtype == torch.float64 else torch.float32
    return vectors.new_empty(vectors.shape[0], dtype=dtype)


@torch.library.register_fake("hotrows::second_order_backward", lib=_library)
def _(grad: Tensor, vectors: Tensor) -> Tensor:
    return vectors.new_empty(vectors.shape)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    tensors = [value for value in inputs if isinstance(value, Tensor)]
    ctx.save_for_backward(*tensors)
    ctx.no_gradients = (None,) * (len(inputs) - len(tensors))


def _gradients(backward: Callable[..., Any], ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    gradients = backward(grad, *ctx.saved_tensors)
    return (*(gradients if isinstance(gradients, tuple) else (gradients,)), *ctx.no_gradients)


def _refuse(ctx: Any, *grads: Tensor) -> NoReturn:
    raise RuntimeError("interactions of vectors can be differentiated once, not twice")


for _name in ("dot_interaction", "second_order"):
    _backward = getattr(torch.ops.hotrows, f"{_name}_backward")
    torch.library.register_autograd(
        f"hotrows::{_name}", partial(_gradients, _backward), setup_context=_keep, lib=_library
    )
    torch.library.register_autograd(f"hotrows::{_name}_backward", _refuse, lib=_library)
