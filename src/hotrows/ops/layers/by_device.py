"""The seam between layers and kernels for a GPU: a reference, and the Triton function of its name.

    @gpu_op("softmax")
    def softmax_jagged_reference(scores: Tensor, offsets: Tensor) -> Tensor: ...

    by_device(softmax_jagged_reference, scores, offsets)      # on CUDA tensors `softmax_jagged` of
                                                              # `hotrows.ops.triton.softmax`

Such an op is one of PyTorch's dispatcher, `torch.ops.hotrows.softmax_jagged`. In graphs that PyTorch
compiles it is the reference, whose parts are fused with what is around them.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

F = TypeVar("F", bound=Callable[..., Any])

OPS: dict[str, str] = {}
"""The module of `hotrows.ops.triton` that each op is in."""

_library = torch.library.Library("hotrows", "FRAGMENT")


def gpu_op(module: str) -> Callable[[F], F]:
    """Makes a reference, `<name>_reference`, the op `<name>`; `module` has its Triton kernels.

    These are for float32, and where the module has `takes`, for arguments that it returns True for; they
    get contiguous tensors. All else is left to the reference.
    """

    def register(reference: F) -> F:
        name = reference.__name__.removesuffix("_reference")
        OPS[name] = module
        _library.define(name + _schema(reference))
        _library.impl(name, reference, "CompositeExplicitAutograd")
        if importlib.util.find_spec("triton") is not None:
            _library.impl(name, _in_triton(name, module, reference), "CUDA")
        return reference

    return register


def by_device(reference: Callable[..., Any], *args: Any) -> Any:
    """Calls the op of a reference if its first argument is on a GPU, else the reference itself."""
    if not args[0].is_cuda or torch.compiler.is_compiling():
        return reference(*args)
    return _op_of(reference)(*args)


@functools.cache
def _op_of(reference: Callable[..., Any]) -> Callable[..., Any]:
    return getattr(torch.ops.hotrows, reference.__name__.removesuffix("_reference")).default


def _in_triton(name: str, module: str, reference: Callable[..., Any]) -> Callable[..., Any]:
    @functools.cache
    def kernel_and_takes() -> tuple[Callable[..., Any], Callable[..., bool] | None]:
        kernels = importlib.import_module(f"hotrows.ops.triton.{module}")
        return getattr(kernels, name), getattr(kernels, "takes", None)

    def run(*args: Any) -> Any:
        kernel, takes = kernel_and_takes()
        for t in args:
            if isinstance(t, Tensor) and t.dtype != torch.float32 and t.is_floating_point():
                return reference(*args)
        if takes is not None and not takes(*args):
            return reference(*args)
        with torch.cuda.device_of(args[0]):
            return kernel(*(t.contiguous() if isinstance(t, Tensor) else t for t in args))

    return run


def _schema(reference: Callable[..., Any]) -> str:
    """Makes the schema of an op from annotations such as `Tensor | None` and `Sequence[int]`."""
    signature = inspect.signature(reference)
    parameters = signature.parameters.values()
    arguments = [f"{_type(p.annotation)} {p.name}{_default(p.default)}" for p in parameters]
    returns = signature.return_annotation.replace("tuple[", "(").replace("]", ")")
    return f"({', '.join(arguments)}) -> {_type(returns)}"


def _default(value: Any) -> str:
    return "=None" if value is None else ""


def _type(annotation: str) -> str:
    return annotation.replace("Tensor | None", "Tensor?").replace("Sequence[int]", "int[]")
