"""What a node of a captured graph does besides computing its result: writes, random numbers, state.

The graphs are dynamo's, at the level of torch's functions and methods, with the fake tensor of each
result in `node.meta["example_value"]`. Where nothing certain is known of a node, it counts as one
that nothing may be moved across.
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
    """The fake result of a node; None where dynamo keeps none."""
    return node.meta.get("example_value")


def is_wall(node: Node) -> bool:
    """Whether nothing may be moved across `node`: it changes a mode, or what it does is unknown."""
    if node.op in ("placeholder", "get_attr", "output"):
        return False
    if node.op == "call_module" or (node.op == "call_function" and not _is_known(node.target)):
        return True
    written = [each for each in written_by(node) if not isinstance(result(each), _NUMBERS)]
    if not written:
        return result(node) is None
    return any(storage_of(tensor) is None or _is_input(tensor) for tensor in written)


def written_by(node: Node) -> Iterator[Node]:
    """The nodes whose tensors `node` changes in place."""
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
        given = _arguments(node)
        if given is not None and given.get("max_norm") is not None:
            yield from _nodes_in([given.get("weight")])
    elif "batch_norm" in name or "instance_norm" in name:
        given = _arguments(node)  # running statistics, where training is not ruled out
        if given is None:
            yield from node.all_input_nodes
        else:
            yield from _nodes_in([given.get("running_mean"), given.get("running_var")])
    elif (given := _arguments(node)) is not None and given.get("inplace") not in (None, False):
        yield from _nodes_in(node.args[:1] or tuple(node.kwargs.values())[:1])


def _overload(target: Any) -> Any:
    """Of an op with overloads the plain one, as a rule the one meant; anything else as it is."""
    if isinstance(target, torch._ops.OpOverloadPacket):
        names = target.overloads()
        return getattr(target, "default" if "default" in names else names[0])
    return target


def _written_by_schema(node: Node, target: Any) -> Iterator[Node]:
    for place, argument in enumerate(target._schema.arguments):
        alias = argument.alias_info
        if alias is not None and alias.is_write:
            given = node.args[place] if place < len(node.args) else node.kwargs.get(argument.name)
            yield from _nodes_in(given)


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
    """Whether a node draws random numbers."""
    if node.op == "call_function":
        target: Any = _overload(node.target)
        if isinstance(target, torch._ops.OpOverload):
            return torch.Tag.nondeterministic_seeded in target.tags
        return _draws(getattr(target, "__name__", ""))
    return node.op == "call_method" and _draws(str(node.target))


def is_idle_dropout(node: Node) -> bool:
    """Whether a node is a dropout that hands back what it is given: not training, or p = 0."""
    if getattr(node.target, "__name__", "") != "dropout" or any(True for _ in written_by(node)):
        return False
    given = {**dict(zip(("input", "p", "training"), node.args, strict=False)), **node.kwargs}
    p, training = given.get("p", 0.5), given.get("training", given.get("train", True))
    return training is False or (isinstance(p, int | float) and p == 0)


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
    """Whether a function is PyTorch's or Python's own, and no operator over whole graphs."""
    if isinstance(function, torch._ops.HigherOrderOperator):
        return False
    if isinstance(function, torch._ops.OpOverload):
        return True
    if isinstance(function, BuiltinFunctionType | BuiltinMethodType | torch._ops.OpOverloadPacket):
        return True
    module = getattr(function, "__module__", None) or ""
    return module.split(".")[0] in ("torch", "_operator", "operator", "math", "builtins")


def _is_input(node: Node) -> bool:
    """Whether a tensor is the caller's own: then it may share memory with any other input."""
    storage = storage_of(node)
    inputs = (each for each in node.graph.nodes if each.op == "placeholder")
    return any(storage_of(each) == storage and not is_of_module(each) for each in inputs)


def is_of_module(placeholder: Node) -> bool:
    """Whether an input of the graph is a parameter or a buffer of a module."""
    name = source_of(placeholder)
    return "_buffers[" in name or "_parameters[" in name


def source_of(placeholder: Node) -> str:
    """Where dynamo found an input: L['self']._modules['item']._parameters['weight'], or ""."""
    source = getattr(placeholder.meta.get("grapharg"), "source", None)
    name = getattr(source, "name", "")
    return str(name() if callable(name) else name)


def storages(node: Node) -> Iterator[int | None]:
    """The memory that a node's arguments and its result lie in; None for what is not known."""
    for each in (*node.all_input_nodes, node):
        for tensor in tensors_in(result(each)):
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
    """The tensors of a result, which may be a tuple or a list of them."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, tuple | list):
        for each in value:
            yield from tensors_in(each)


def _nodes_in(value: Any) -> Iterator[Node]:
    if isinstance(value, Node):
        yield value
    elif isinstance(value, Iterable) and not isinstance(value, str):
        for each in value:
            yield from _nodes_in(each)
