"""TableParameter: an embedding weight whose reads and writes are intercepted.

The class of a parameter is changed in place, so it stays the object that modules and optimizers hold.
Every operation of PyTorch on it goes through `__torch_function__`:

    its shape, dtype, `.grad`, hooks ..          plain PyTorch, without reading a row
    F.embedding, F.embedding_bag, weight[ids]    a lookup: rows alone
    square().sum(), norm() ..                    a term over the whole table: a decay, and a number
    anything else                                brings every row up to date; then plain PyTorch
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch._dynamo.eval_frame import skip_code
from torch.autograd.graph import get_gradient_edge

from hotrows.acceleration.nodes import tensors_in
from hotrows.acceleration.table import RowTable

NO_TORCH_FUNCTION = torch._C.DisableTorchFunctionSubclass


class Capturing(threading.local):
    """A switch: while on, dynamo traces an accelerated model on this thread, to run its graph.

    Any other compiler (inductor, say) would read the rows as they are stored: its graphs must break at
    operations on tables.
    """

    is_on = False


CAPTURING = Capturing()


@contextmanager
def capturing() -> Iterator[None]:
    """Within, this thread may capture models with their tables."""
    before, CAPTURING.is_on = CAPTURING.is_on, True
    try:
        yield
    finally:
        CAPTURING.is_on = before


@torch._dynamo.assume_constant_result  # dynamo of PyTorch 2.10 reads the class's value of a thread-local
def _is_capturing() -> bool:
    return CAPTURING.is_on


class TableParameter(nn.Parameter):
    """The weight of a table: see the module.

    intercepts_in_graphs: captured graphs call `__torch_function__` when they run, too.
    """

    table: RowTable
    intercepts_in_graphs = True

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if torch.compiler.is_dynamo_compiling():
            if not _is_capturing():
                torch._dynamo.graph_break()
            with NO_TORCH_FUNCTION():
                return func(*args, **kwargs)
        if func in _NOT_READING:  # often; what keeps a compiler away from the others takes its time
            with NO_TORCH_FUNCTION():
                return func(*args, **kwargs)
        return _intercept(func, args, kwargs)

    def register_hook(self, hook: Callable[[Tensor], Any]) -> Any:
        with NO_TORCH_FUNCTION():
            return super().register_hook(_GradientHook(hook))

    def __deepcopy__(self, memo: dict[int, Any]) -> nn.Parameter:
        """A plain parameter of the same values."""
        if id(self) not in memo:
            memo[id(self)] = nn.Parameter(self.table.caught_up().clone(), self.requires_grad)
        return memo[id(self)]

    def __reduce_ex__(self, protocol: Any) -> Any:
        return nn.Parameter(self.table.caught_up(), self.requires_grad).__reduce_ex__(protocol)


class _GradientHook:
    """A hook that is called where there is a gradient: of tables that are read at once PyTorch calls
    those with None, too, that the loss does not read."""

    def __init__(self, hook: Callable[[Tensor], Any]) -> None:
        self.hook = hook

    def __call__(self, gradient: Tensor | None) -> Any:
        return None if gradient is None else self.hook(gradient)


CLASSES: dict[type, type[TableParameter]] = {nn.Parameter: TableParameter}
"""The class that weights of a class get, so that their reads are intercepted."""


PLAIN: set[type] = {Tensor}
"""Classes of tensors without a meaning of their own."""


def intercept(weight: Tensor) -> None:
    """Makes a weight a `TableParameter`; the caller gives it its table."""
    hooks = weight._backward_hooks or {}
    for key, hook in hooks.items():
        hooks[key] = hook if type(hook) is _GradientHook else _GradientHook(hook)
    weight.__class__ = CLASSES[type(weight)]


def release(weight: Tensor) -> None:
    """Makes a weight what it was before."""
    weight.__class__ = next(plain for plain, kind in CLASSES.items() if kind is type(weight))


# Dynamo traces it within a captured model; where it is called, its own code must not be compiled.
skip_code(TableParameter.__torch_function__.__func__.__code__)  # type: ignore[attr-defined]


@torch.compiler.disable
def _intercept(func: Callable, args: Any, kwargs: dict[str, Any]) -> Any:
    # A compiler describes the weight, and reads no numbers.
    if func is Tensor.untyped_storage and torch.compiler.is_compiling():
        with NO_TORCH_FUNCTION():
            return func(*args, **kwargs)
    handler = None if torch.jit.is_tracing() else _HANDLERS.get(func)
    result = NotImplemented if handler is None else handler(*args, **kwargs)
    return read_whole(func, args, kwargs) if result is NotImplemented else result


def read_whole(func: Callable, args: Any, kwargs: dict[str, Any]) -> Any:
    """Runs plain PyTorch, which may read and write, on tables whose rows are all up to date."""
    parameters = list(tables_in((args, kwargs)))
    if any(parameter.table.group is not None for parameter in parameters):
        if torch.jit.is_tracing():
            raise RuntimeError(
                f"table {parameters[0].table.names[0]} is kept behind a cache (fast_memory), where "
                f"torch.jit.trace cannot read it; hotrows.restore(model) first"
            )
        return _read_copies(func, args, kwargs, parameters)
    trace = torch._C._get_tracing_state()
    torch._C._set_tracing_state(None)  # type: ignore[attr-defined]  # no missed step is traced
    try:
        for parameter in parameters:
            parameter.table.catch_up()
            parameter.table.before_write()
    finally:
        torch._C._set_tracing_state(trace)  # type: ignore[attr-defined]
    with NO_TORCH_FUNCTION():
        return func(*args, **kwargs)


def _read_copies(func: Callable, args: Any, kwargs: Any, parameters: list[TableParameter]) -> Any:
    """Runs plain PyTorch on copies of the tables that are behind a cache.

    A copy that it writes is stored. Until the next lookup or step, users who read the weight again see
    a copy that was part of a result, and what they write to it is stored.
    """
    first = parameters[0]
    frozen = not torch.is_grad_enabled() or not first.requires_grad
    if func is Tensor.copy_ and frozen and len(parameters) == 1 and args[0] is first and not kwargs:
        first.table.write_weights(args[1].expand(first.shape))
        return first
    copies: dict[int, tuple[TableParameter, Tensor]] = {}
    with NO_TORCH_FUNCTION():
        for parameter in parameters:
            if parameter.table.group is None:
                parameter.table.catch_up()
            elif id(parameter) not in copies:
                copy = parameter.table.caught_up()
                if torch.is_grad_enabled() and parameter.requires_grad:
                    copy = (
                        copy.requires_grad_()
                        if _takes_leaf(func)
                        else _Copy.apply(parameter, [copy], func)
                    )
                copies[id(parameter)] = parameter, copy
        versions = [copy._version for _, copy in copies.values()]

        def copied(value: Any) -> Any:
            return copies[id(value)][1] if id(value) in copies else value

        result = func(*mapped(copied, args), **mapped(copied, kwargs))
        results = [x for x in tensors_in(result) if type(x) in (Tensor, nn.Parameter)]
        memories = {x.untyped_storage().data_ptr() for x in results}
        is_fused = getattr(func, "__name__", "").startswith("_fused_")  # which counts no version
        for (parameter, copy), version in zip(copies.values(), versions, strict=True):
            if copy._version != version or is_fused:
                parameter.table.write_weights(copy)
            if copy.untyped_storage().data_ptr() in memories:
                parameter.table.show(copy)
    for parameter, copy in copies.values():
        if result is copy:
            return parameter
    return result


class _Copy(torch.autograd.Function):
    """A copy of a table from which no loss may learn."""

    @staticmethod
    def forward(ctx: Any, weight: TableParameter, copies: list[Tensor], func: Callable) -> Tensor:
        ctx.table, ctx.func = weight.table, func
        return copies[0]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        raise RuntimeError(
            f"{_name_of(ctx.func)} has read all of table {ctx.table.names[0]}, and the loss learns from "
            f"it; but the table is kept behind a cache (fast_memory) and is stepped row by row. Look "
            f"rows up, read it under torch.no_grad(), or accelerate without fast_memory"
        )


def _takes_leaf(func: Callable) -> bool:
    """True of a function that writes in place, which PyTorch refuses of a leaf, or that shows it."""
    name = getattr(func, "__name__", "")
    is_special = name.startswith("__i") or name in ("__setitem__", "__repr__", "__format__")
    return is_special or (name.endswith("_") and not name.endswith("__"))


def _name_of(func: Callable) -> str:
    """As users write it: `weight.T`, `torch.sum`."""
    name = torch.overrides.resolve_name(func) or getattr(func, "__qualname__", repr(func))
    return name.removesuffix(".__get__").replace("torch.Tensor.", "weight.")


def mapped(function: Callable[[Any], Any], values: Any) -> Any:
    """Applies a function to all values in lists, tuples and dictionaries."""
    if isinstance(values, list | tuple):
        return type(values)(mapped(function, value) for value in values)
    if isinstance(values, dict):
        return {name: mapped(function, value) for name, value in values.items()}
    return function(values)


def tables_in(values: Any) -> Iterator[TableParameter]:
    """Yields the tables among arguments, in lists and dictionaries too."""
    return (tensor for tensor in tensors_in(values) if isinstance(tensor, TableParameter))


def handles(*functions: Callable) -> Callable[[Callable], Callable]:
    """Registers a handler of functions of PyTorch for calls with a table among their arguments."""

    def register(handler: Callable) -> Callable:
        for function in functions:
            _HANDLERS[function] = handler
        return handler

    return register


_HANDLERS: dict[Callable, Callable] = {}


def _set_data(parameter: TableParameter, data: Tensor) -> None:
    if data is parameter:  # as model.to(device) does, where nothing moves
        return
    if isinstance(data, TableParameter):
        data = data.data  # its rows: the parameter itself has none behind a cache
    parameter.table.catch_up()
    parameter.table.before_write()
    with NO_TORCH_FUNCTION():
        Tensor.data.__set__(parameter, data)  # type: ignore[attr-defined]
    parameter.table.adopt_weight()


_HANDLERS[Tensor.data.__set__] = _set_data  # type: ignore[attr-defined]


@handles(Tensor.share_memory_)
def _share_memory(parameter: TableParameter) -> Any:
    raise RuntimeError(
        f"table {parameter.table.names[0]} cannot be shared with other processes, which would "
        f"not see the steps that its rows have yet to make; hotrows.restore(model) first"
    )


@handles(Tensor.detach)
def _detach(parameter: TableParameter) -> Any:
    """Names the table in a call of nn.Parameter, whose own refusal speaks of `__torch_dispatch__`."""
    frame = sys._getframe()
    while frame := frame.f_back:  # type: ignore[assignment]
        if frame.f_code is nn.Parameter.__new__.__code__:
            raise RuntimeError(
                f"table {parameter.table.names[0]} cannot become another parameter, which would not see "
                f"the steps that its rows have yet to make: give nn.Parameter a copy, "
                f"weight.detach().clone(), or call hotrows.restore(model) first"
            )
    return NotImplemented


def _edges(inputs: Any) -> list[Any]:
    """Replaces tables by their edges of the graph: those of the parameters, for which no row is read."""
    with NO_TORCH_FUNCTION():
        return [get_gradient_edge(x) if isinstance(x, TableParameter) else x for x in inputs]


@handles(torch.autograd.backward)
def _backward(tensors: Any, *, inputs: Any = None, **kwargs: Any) -> Any:
    if any(tables_in([tensors])) or not inputs:
        return NotImplemented
    return torch.autograd.backward(tensors, inputs=_edges(inputs), **kwargs)


@handles(torch.autograd.grad)
def _grad(outputs: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
    """Passes tables as edges of the graph, so that operations of the backward pass are intercepted."""
    inputs = [inputs] if isinstance(inputs, Tensor) else list(inputs)
    materialize = kwargs.get("materialize_grads", False)
    is_differentiable = all(isinstance(x, Tensor) and x.requires_grad for x in inputs)
    if any(tables_in([outputs])) or not is_differentiable:
        return NotImplemented
    edges = _edges(inputs)
    if materialize:
        kwargs = {**kwargs, "allow_unused": True, "materialize_grads": False}
    grads = torch.autograd.grad(outputs, edges, *args, **kwargs)
    if not materialize:
        return grads
    return tuple(
        torch.zeros_like(x) if grad is None else grad for x, grad in zip(inputs, grads, strict=True)
    )


_PROPERTIES = (
    "shape", "dtype", "device", "layout", "requires_grad", "grad", "is_leaf", "grad_fn", "ndim",
    "names", "name", "is_sparse", "is_sparse_csr", "is_cuda", "is_cpu", "is_meta", "is_quantized",
    "is_mkldnn", "is_mps", "is_xpu", "is_nested", "is_vulkan", "is_xla", "is_ipu", "is_mtia",
    "itemsize", "nbytes", "output_nr", "retains_grad", "_backward_hooks",
    "_post_accumulate_grad_hooks", "_version", "_base", "_cdata", "_grad", "_grad_fn",
    "grad_dtype",
)  # fmt: skip
_METHODS = (
    "size", "dim", "ndimension", "numel", "nelement", "stride", "storage_offset", "is_contiguous",
    "get_device", "element_size", "is_floating_point", "is_complex", "is_signed", "is_pinned",
    "is_shared", "is_inference", "_is_view", "register_hook",
    "register_post_accumulate_grad_hook", "retain_grad", "requires_grad_", "__len__", "__hash__",
    "has_names", "new_empty", "new_zeros", "new_ones", "new_full", "new_tensor", "is_same_size",
    "backward", "_is_zerotensor", "is_conj", "is_neg", "is_coalesced", "dim_order",
)  # fmt: skip
_FUNCTIONS = (
    torch.zeros_like, torch.ones_like, torch.empty_like, torch.full_like, torch.rand_like,
    torch.randn_like, torch.numel, torch.is_floating_point, torch.is_complex, torch.is_same_size,
    torch.is_tensor, torch.is_inference, torch.result_type, torch.can_cast, torch.promote_types,
    torch.is_signed,
)  # fmt: skip


def _not_reading() -> set[Any]:
    accessors: set[Any] = set(_FUNCTIONS)
    for name in _PROPERTIES:
        descriptor = getattr(Tensor, name, None)
        for access in ("__get__", "__set__", "__delete__"):
            if name != "data" and hasattr(descriptor, access):
                accessors.add(getattr(descriptor, access))
    accessors.update(getattr(Tensor, name) for name in _METHODS if hasattr(Tensor, name))
    return accessors


_NOT_READING = _not_reading()
