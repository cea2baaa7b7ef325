"""TableParameter: an embedding weight that knows who reads it.

The class of a parameter is changed in place, so it stays the object that modules and optimizers hold.
Everything that PyTorch does with it comes through `__torch_function__`:

    its shape, dtype, `.grad`, hooks ..          as it is
    F.embedding, F.embedding_bag, weight[ids]    a lookup: rows alone
    square().sum(), norm() ..                    a term over the whole table: a number, and a decay
    anything else                                every row is brought up to date first; then plain PyTorch
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch._dynamo.eval_frame import skip_code

from hotrows.capture.table import Table

NO_TORCH_FUNCTION = torch._C.DisableTorchFunctionSubclass


class Capturing:
    """Whether what dynamo traces is a model captured here, whose graph will run as it is.

    Anything else that is compiled (inductor, say) would read the rows as they are stored: it must stop
    before them, and begin again behind them.
    """

    is_on = False


@contextmanager
def capturing() -> Iterator[None]:
    """Within, models may be captured with their tables."""
    before, Capturing.is_on = Capturing.is_on, True
    try:
        yield
    finally:
        Capturing.is_on = before


class TableParameter(nn.Parameter):
    """The weight of a table; see above.

    intercepts_in_graphs: captured graphs call `__torch_function__` when they run, too.
    """

    table: Table
    intercepts_in_graphs = True

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if torch.compiler.is_dynamo_compiling():
            if not Capturing.is_on:
                torch._dynamo.graph_break()
            with NO_TORCH_FUNCTION():
                return func(*args, **kwargs)
        return _intercept(func, args, kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> nn.Parameter:
        """A plain parameter of the same values."""
        if id(self) not in memo:
            memo[id(self)] = nn.Parameter(self.table.caught_up().clone(), self.requires_grad)
        return memo[id(self)]

    def __reduce_ex__(self, protocol: Any) -> Any:
        return nn.Parameter(self.table.caught_up(), self.requires_grad).__reduce_ex__(protocol)


# Traced from within a captured model, it is followed (above); called there, it is not to be compiled.
skip_code(TableParameter.__torch_function__.__func__.__code__)  # type: ignore[attr-defined]


@torch.compiler.disable
def _intercept(func: Callable, args: Any, kwargs: dict[str, Any]) -> Any:
    # A compiler describes the weight, and reads no numbers.
    if func in _AS_IT_IS or (func is Tensor.untyped_storage and torch.compiler.is_compiling()):
        with NO_TORCH_FUNCTION():
            return func(*args, **kwargs)
    handler = _HANDLERS.get(func)
    if handler is not None:
        result = handler(*args, **kwargs)
        if result is not NotImplemented:
            return result
    return read_whole(func, args, kwargs)


def read_whole(func: Callable, args: Any, kwargs: dict[str, Any]) -> Any:
    """Plain PyTorch on tables whose rows are all up to date; it may write them, too."""
    found = list(tables_in((args, kwargs)))
    if any(parameter.table.keeper is not None for parameter in found):
        return _read_copies(func, args, kwargs, found)
    for parameter in found:
        parameter.table.catch_up()
        parameter.table.to_be_written()
    with NO_TORCH_FUNCTION():
        return func(*args, **kwargs)


def _read_copies(func: Callable, args: Any, kwargs: Any, found: list[TableParameter]) -> Any:
    """Plain PyTorch, on copies of the tables that are kept behind a cache.

    A copy that it writes is written back; one that it hands on is looked at again before the next
    lookup, since users may write that, too.
    """
    frozen = not torch.is_grad_enabled() or not found[0].requires_grad
    if func is Tensor.copy_ and frozen and len(found) == 1 and args[0] is found[0] and not kwargs:
        found[0].table.write_whole(args[1].expand(found[0].shape))
        return found[0]
    copies: dict[int, tuple[TableParameter, Tensor]] = {}
    with NO_TORCH_FUNCTION():
        for parameter in found:
            if parameter.table.keeper is None:
                parameter.table.catch_up()
                parameter.table.written()
            elif id(parameter) not in copies:
                copy = parameter.table.caught_up()
                if torch.is_grad_enabled() and parameter.requires_grad:
                    copy.requires_grad_().register_hook(partial(_refuse, func, parameter.table))
                copies[id(parameter)] = parameter, copy
        versions = [copy._version for _, copy in copies.values()]
        result = func(*_with_copies(args, copies), **_with_copies(kwargs, copies))
        results = list(_tensors_in(result))
        for (parameter, copy), version in zip(copies.values(), versions, strict=True):
            own = copy.untyped_storage().data_ptr()
            results = [of for of in results if type(of) in (Tensor, nn.Parameter)]
            seen = [of for of in results if of.untyped_storage().data_ptr() == own]
            if copy._version != version:
                parameter.table.write_whole(copy)
            if seen:
                parameter.table.lend(copy, [*seen, copy])
    for parameter, copy in copies.values():
        if result is copy:
            return parameter
    return result


def _refuse(func: Callable, table: Table, grad: Tensor) -> None:
    raise RuntimeError(
        f"{getattr(func, '__qualname__', func)} has read all of table {table.names[0]}, and the loss "
        f"learns from it; but the table is kept behind a cache (fast_memory) and is stepped row by "
        f"row. Look rows up, read it under torch.no_grad(), or accelerate without fast_memory"
    )


def _with_copies(values: Any, copies: dict[int, tuple[TableParameter, Tensor]]) -> Any:
    if id(values) in copies:
        return copies[id(values)][1]
    if isinstance(values, list | tuple):
        return type(values)(_with_copies(value, copies) for value in values)
    if isinstance(values, dict):
        return {name: _with_copies(value, copies) for name, value in values.items()}
    return values


def _tensors_in(values: Any) -> Iterator[Tensor]:
    if isinstance(values, Tensor):
        yield values
    elif isinstance(values, list | tuple):
        for value in values:
            yield from _tensors_in(value)
    elif isinstance(values, dict):
        for value in values.values():
            yield from _tensors_in(value)


def tables_in(values: Any) -> Iterator[TableParameter]:
    """The tables among arguments, in lists and dictionaries too."""
    if isinstance(values, TableParameter):
        yield values
    elif isinstance(values, list | tuple):
        for value in values:
            yield from tables_in(value)
    elif isinstance(values, dict):
        for value in values.values():
            yield from tables_in(value)


def handles(*functions: Callable) -> Callable[[Callable], Callable]:
    """Says which functions of PyTorch a handler takes over where a table is among the arguments."""

    def note(handler: Callable) -> Callable:
        for function in functions:
            _HANDLERS[function] = handler
        return handler

    return note


_HANDLERS: dict[Callable, Callable] = {}


def _set_data(parameter: TableParameter, data: Tensor) -> None:
    parameter.table.catch_up()
    parameter.table.to_be_written()
    with NO_TORCH_FUNCTION():
        Tensor.data.__set__(parameter, data)  # type: ignore[attr-defined]
    parameter.table.adopt_weight()


_HANDLERS[Tensor.data.__set__] = _set_data  # type: ignore[attr-defined]


@handles(torch.autograd.grad)
def _grad(outputs: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
    """The tables by their edges of the graph: what backward runs is to be intercepted as ever."""
    inputs = [inputs] if isinstance(inputs, Tensor) else list(inputs)
    given = [outputs] if isinstance(outputs, Tensor) else list(outputs)
    materialize = kwargs.get("materialize_grads", False)
    if any(tables_in(given)) or not all(
        isinstance(of, Tensor) and of.requires_grad for of in inputs
    ):
        return NotImplemented
    edges = [
        torch.autograd.graph.get_gradient_edge(of) if isinstance(of, TableParameter) else of
        for of in inputs
    ]
    if materialize:
        kwargs = {**kwargs, "allow_unused": True, "materialize_grads": False}
    found = torch.autograd.grad(outputs, edges, *args, **kwargs)
    if not materialize:
        return found
    return tuple(
        torch.zeros_like(of) if grad is None else grad
        for of, grad in zip(inputs, found, strict=True)
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


def _as_it_is() -> set[Any]:
    found: set[Any] = set(_FUNCTIONS)
    for name in _PROPERTIES:
        descriptor = getattr(Tensor, name, None)
        for access in ("__get__", "__set__", "__delete__"):
            if name != "data" and hasattr(descriptor, access):
                found.add(getattr(descriptor, access))
    found.update(getattr(Tensor, name) for name in _METHODS if hasattr(Tensor, name))
    return found


_AS_IT_IS = _as_it_is()
