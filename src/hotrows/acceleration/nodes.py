"""Side effects of the nodes of a captured graph: writes in place, random numbers, changed state.

The graphs are dynamo's, at the level of torch's functions and methods, with the fake tensor of each
result in `node.meta["example_value"]`. A node whose effects are unknown is a wall: nothing may be moved
across it.
"""

import inspect
import operator
from collections.abc import Iterable, Iterator
from functools import lru_cache
from types import BuiltinFunctionType, BuiltinMethodType
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

_IN_PLACE = {
    operator.iadd, operator.isub, operator.imul, operator.itruediv, operator.ifloordiv,
    operator.imod, operator.ipow, operator.iand, operator.ior, operator.ixor, operator.ilshift,
    operator.irshift, operator.imatmul, operator.iconcat, operator.setitem, operator.delitem,
}  # fmt: skip
_NUMBERS = (int, float, complex, torch.SymInt, torch.SymFloat, torch.SymBool)
_RANDOM = ("dropout", "gumbel_softmax", "rrelu", "dot_product_attention", "fractional_max_pool")


def result(node: Node) -> Any:
    """Returns the fake result of a node; None where dynamo has stored none."""
    return node.meta.get("example_value")


def is_wall(node: Node) -> bool:
    """True if nothing may be moved across `node`: it changes a mode, or what it does is unknown."""
    if node.op in ("placeholder", "get_attr", "output"):
        return False
    if node.op == "call_module" or (node.op == "call_function" and not _is_known(node.target)):
        return True
    written = [x for x in written_by(node) if not isinstance(result(x), _NUMBERS)]
    if not written:
        return result(node) is None
    return any(storage_of(tensor) is None or _is_input(tensor) for tensor in written)


def written_by(node: Node) -> Iterator[Node]:
    """Yields the nodes whose tensors `node` changes in place."""
    if "out" in node.kwargs:
        yield from _nodes_in(node.kwargs["out"])
    if node.op == "call_method":
        if _is_name_in_place(str(node.target)):
            yield from _nodes_in(node.args[:1])
    elif node.op == "call_function":
        yield from _written_by_call(node)


def _written_by_call(node: Node) -> Iterator[Node]:
    target: Any = _overload(node.target)
    name = getattr(target, "__name__", "")
    if isinstance(target, torch._ops.OpOverload):
        yield from _written_by_schema(node, target)
    elif target in _IN_PLACE or _is_name_in_place(name):
        yield from _nodes_in(node.args[:1])
    elif name in ("embedding", "embedding_bag"):
        args = _arguments(node)
        if args is not None and args.get("max_norm") is not None:
            yield from _nodes_in([args.get("weight")])
    elif "batch_norm" in name or "instance_norm" in name:
        args = _arguments(node)  # running statistics, where training is not ruled out
        if args is None:
            yield from node.all_input_nodes
        else:
            yield from _nodes_in([args.get("running_mean"), args.get("running_var")])
    elif (args := _arguments(node)) is not None and args.get("inplace") not in (None, False):
        yield from _nodes_in(node.args[:1] or tuple(node.kwargs.values())[:1])


def _overload(target: Any) -> Any:
    """Returns the default overload of an op that has several; anything else unchanged."""
    if isinstance(target, torch._ops.OpOverloadPacket):
        names = target.overloads()
        return getattr(target, "default" if "default" in names else names[0])
    return target


def _written_by_schema(node: Node, target: Any) -> Iterator[Node]:
    for i, argument in enumerate(target._schema.arguments):
        alias = argument.alias_info
        if alias is not None and alias.is_write:
            value = node.args[i] if i < len(node.args) else node.kwargs.get(argument.name)
            yield from _nodes_in(value)


def _is_name_in_place(name: str) -> bool:
    if name.startswith("__") and name.endswith("__"):  # x.__setitem__, x.__iadd__, not x.__invert__
        return name[2:-2] in _IN_PLACE_NAMES
    return name.endswith("_")


_IN_PLACE_NAMES = {function.__name__.strip("_") for function in _IN_PLACE}


def _arguments(node: Node) -> dict[str, Any] | None:
    """The arguments of a call by name; None where its function has no signature to read."""
    signature = _signature(node.target)
    if signature is None:
        return None
    try:
        return dict(signature.bind(*node.args, **node.kwargs).arguments)
    except TypeError:
        return None


@lru_cache(maxsize=1024)
def _signature(function: Any) -> inspect.Signature | None:
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):
        return None


def is_random(node: Node) -> bool:
    """True if a node draws random numbers."""
    if node.op == "call_function":
        target: Any = _overload(node.target)
        if isinstance(target, torch._ops.OpOverload):
            return torch.Tag.nondeterministic_seeded in target.tags
        return _draws(getattr(target, "__name__", ""))
    return node.op == "call_method" and _draws(str(node.target))


@lru_cache(maxsize=1024)
def _draws(name: str) -> bool:
    if any(part in name for part in _RANDOM):
        return True
    packet = getattr(torch.ops.aten, name, None) if name and not name.startswith("__") else None
    if packet is None or not hasattr(packet, "overloads"):
        return False
    overloads = (getattr(packet, overload) for overload in packet.overloads())
    return any(torch.Tag.nondeterministic_seeded in overload.tags for overload in overloads)


def _is_known(function: Any) -> bool:
    """True if a function is PyTorch's or Python's own, and no operator over whole graphs."""
    if isinstance(function, torch._ops.HigherOrderOperator):
        return False
    if isinstance(function, torch._ops.OpOverload):
        return True
    if isinstance(function, BuiltinFunctionType | BuiltinMethodType | torch._ops.OpOverloadPacket):
        return True
    module = getattr(function, "__module__", None) or ""
    return module.split(".")[0] in ("torch", "_operator", "operator", "math", "builtins")


def _is_input(node: Node) -> bool:
    """True if a tensor is the caller's own: then it may share memory with any other input."""
    storage = storage_of(node)
    inputs = (x for x in node.graph.nodes if x.op == "placeholder")
    return any(storage_of(x) == storage and not is_of_module(x) for x in inputs)


def is_of_module(placeholder: Node) -> bool:
    """True if an input of the graph is a parameter or a buffer of a module."""
    name = source_of(placeholder)
    return "_buffers[" in name or "_parameters[" in name


def source_of(placeholder: Node) -> str:
    """Where dynamo found an input: L['self']._modules['item']._parameters['weight'], or ""."""
    source = getattr(placeholder.meta.get("grapharg"), "source", None)
    name = getattr(source, "name", "")
    return str(name() if callable(name) else name)


def storages(node: Node) -> Iterator[int | None]:
    """Yields the memory of a node's arguments and of its result; None for what is not known."""
    for operand in (*node.all_input_nodes, node):
        for tensor in tensors_in(result(operand)):
            yield _memory(tensor)


def storage_of(node: Node) -> int | None:
    """The memory of a node's single tensor; None where it is none, or not known."""
    value = result(node)
    return _memory(value) if isinstance(value, Tensor) else None


def _memory(tensor: Tensor) -> int | None:
    try:
        return tensor.untyped_storage()._cdata
    except (NotImplementedError, RuntimeError, AttributeError):  # sparse tensors have none
        return None


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Yields the tensors in a value, which may be a tuple, a list or a dictionary of them."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, tuple | list | dict):
        for item in value.values() if isinstance(value, dict) else value:
            yield from tensors_in(item)


def _nodes_in(value: Any) -> Iterator[Node]:
    if isinstance(value, Node):
        yield value
    elif isinstance(value, Iterable) and not isinstance(value, str):
        for item in value:
            yield from _nodes_in(item)
