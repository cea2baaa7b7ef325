"""Interactions of a sample's vectors, ops of PyTorch's dispatcher as those of the engine are.

The tensors' device picks the kernel: the native core on the CPU, Triton on a GPU, and plain PyTorch for
whatever these do not take. Formulas and shapes: `reference_interaction`.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable

import torch
from torch import Tensor

from hotrows.ops import cpu_interaction, reference_interaction

_SCHEMAS = {
    "dot_interaction": "(Tensor bottom, Tensor vectors) -> Tensor",
    "dot_interaction_backward": "(Tensor grad, Tensor bottom, Tensor vectors) -> (Tensor, Tensor)",
    "second_order": "(Tensor vectors) -> Tensor",
    "second_order_backward": "(Tensor grad, Tensor vectors) -> Tensor",
}


def _on_cpu(name: str) -> Callable:
    def run(*tensors: Tensor):
        ops = cpu_interaction if cpu_interaction.takes(*tensors) else reference_interaction
        return getattr(ops, name)(*tensors)

    return run


def _on_gpu(name: str) -> Callable:
    def run(*tensors: Tensor):
        kernels = importlib.import_module(f"hotrows.ops.triton.{name.removesuffix('_backward')}")
        ops = kernels if kernels.takes(*tensors) else reference_interaction
        return getattr(ops, name)(*tensors)

    return run


_library = torch.library.Library("hotrows", "FRAGMENT")
for _name, _schema in _SCHEMAS.items():
    _library.define(_name + _schema)
    _library.impl(_name, getattr(reference_interaction, _name), "CompositeExplicitAutograd")
    _library.impl(_name, _on_cpu(_name), "CPU")
    if importlib.util.find_spec("triton") is not None:
        _library.impl(_name, _on_gpu(_name), "CUDA")

dot_interaction = torch.ops.hotrows.dot_interaction
dot_interaction_backward = torch.ops.hotrows.dot_interaction_backward
second_order = torch.ops.hotrows.second_order
second_order_backward = torch.ops.hotrows.second_order_backward


@torch.library.register_fake("hotrows::dot_interaction", lib=_library)
def _(bottom: Tensor, vectors: Tensor) -> Tensor:
    size, count, width = vectors.shape
    return bottom.new_empty(size, width + count * (count + 1) // 2)


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


def _keep(ctx, inputs: tuple[Tensor, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _refuse(ctx, *grads: Tensor):
    raise RuntimeError("interactions of vectors can be differentiated once, not twice")


for _name in ("dot_interaction", "second_order"):
    _backward = getattr(torch.ops.hotrows, f"{_name}_backward")
    torch.library.register_autograd(
        f"hotrows::{_name}",
        lambda ctx, grad, backward=_backward: backward(grad, *ctx.saved_tensors),
        setup_context=_keep,
        lib=_library,
    )
    torch.library.register_autograd(f"hotrows::{_name}_backward", _refuse, lib=_library)
