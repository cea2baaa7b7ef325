"""Calls that may be batched: their kinds, when two are equal, what each launches.

kind           of G calls on operands [G, ...] becomes (`batched_call`)
linear         one product: of the stacks (baddbmm); where all read the same x, of x with all weights
product        one product: matmul, bmm, mm
pointwise      itself, on operands aligned for broadcasting: activations, sums, masks
along          itself, its dimensions counted one further: softmax, sum, mean
norm           layer_norm without weights, then theirs: a product and a sum
join           cat or stack of what a member has, one dimension further
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._subclasses import FakeTensor
from torch.fx import Node, map_arg

from hotrows.fx.batching.views import name_of
from hotrows.fx.nodes import result, storage_of

_PRODUCTS = ("matmul", "bmm", "mm", "__matmul__")
_ALONG = ("softmax", "log_softmax", "sum", "mean", "amax", "amin", "logsumexp")
_JOINS = ("cat", "concat", "stack")
_POINTWISE = {
    "relu", "sigmoid", "tanh", "gelu", "silu", "softplus", "leaky_relu", "elu", "selu", "relu6",
    "hardtanh", "logsigmoid", "exp", "log", "log1p", "neg", "abs", "sqrt", "rsqrt", "square", "pow",
    "reciprocal", "clamp", "add", "sub", "mul", "div", "truediv", "maximum", "minimum", "where",
    "masked_fill", "eq", "ne", "lt", "gt", "le", "ge", "logical_not", "logical_and", "logical_or",
    "invert", "bitwise_not", "to", "float", "double", "half", "bfloat16",
}  # fmt: skip


def kind_of(node: Node) -> str:
    """The kind of a call that may be batched; "" of any other."""
    name = name_of(node)
    if not _is_plain(node) or not _is_torchs(node):
        return ""
    if name == "linear":
        return "linear" if _is_linear(node) else ""
    if name in _PRODUCTS:
        return "product" if _are_matrices(node) else ""
    if name in _ALONG:
        return "along" if place_of_dim(node) is not None else ""
    if name == "layer_norm":
        return "norm" if set(node.kwargs) <= {"eps"} and len(node.args) > 1 else ""
    if name in _JOINS:
        return "join" if _is_join(node) else ""
    return "pointwise" if name.strip("_") in _POINTWISE and _has_no_scalars(node) else ""


def _is_plain(node: Node) -> bool:
    """Whether a node makes a new, dense, ordinary tensor out of such tensors."""
    value, operands = result(node), list(operands_of(node))
    if not operands or not all(type(result(operand)) is FakeTensor for operand in operands):
        return False
    if type(value) is not FakeTensor or value.layout != torch.strided or not value.is_contiguous():
        return False
    return storage_of(node) not in {storage_of(operand) for operand in operands}


def _is_torchs(node: Node) -> bool:
    target: Any = node.target
    module = getattr(target, "__module__", None) or "torch"
    return node.op == "call_method" or module.split(".")[0] in ("torch", "_operator", "operator")


def _is_linear(node: Node) -> bool:
    dims = [result(operand).dim() for operand in operands_of(node)]
    return not node.kwargs and dims[1:] in ([2], [2, 1])


def _are_matrices(node: Node) -> bool:
    dims = [result(operand).dim() for operand in operands_of(node)]
    if node.kwargs or len(node.args) != 2 or min(dims) < 2:
        return False
    return dims[1] == 2 or dims[0] == dims[1]


def place_of_dim(node: Node) -> int | str | None:
    """Where a call has its dimensions: the number or the name of an argument."""
    place: int | str = "dim" if "dim" in node.kwargs else 1
    dim = node.kwargs.get("dim", node.args[1] if len(node.args) > 1 else None)
    dims = dim if isinstance(dim, tuple | list) else (dim,)
    return place if dims and all(type(dim) is int for dim in dims) else None


def norm_of(node: Node) -> tuple[Any, ...]:
    """The arguments of layer_norm: (x, normalized_shape, weight, bias, eps)."""
    by_default = (None, None, node.kwargs.get("eps", 1e-5))
    return (*node.args, *by_default[len(node.args) - 2 :])


def _is_join(node: Node) -> bool:
    first = node.args[0] if node.args else None
    return isinstance(first, tuple | list) and set(node.kwargs) <= {"dim"} and len(node.args) < 3


def _has_no_scalars(node: Node) -> bool:
    """Tensors without dimensions promote types as numbers do; their stack would not."""
    return all(result(operand).dim() > 0 for operand in operands_of(node))


def operands_of(node: Node) -> Iterator[Node]:
    """The tensors that a call reads, in the order of its arguments."""
    inputs: list[Node] = []
    map_arg((node.args, node.kwargs), inputs.append)
    return (read for read in inputs if isinstance(result(read), Tensor))


def key_of(node: Node, kind: str) -> str:
    """Equal for calls that may be one: the same function on equal shapes and types, all else equal."""
    arguments, learns = _described((node.args, node.kwargs)), result(node).requires_grad
    return f"{kind} {node.op} {node.target} {arguments} {_of(node)} {learns}"


def _described(value: Any) -> str:
    if isinstance(value, Node):
        return _of(value)
    if isinstance(value, tuple | list):
        return "(" + ", ".join(map(_described, value)) + ")"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_described(element)}" for key, element in value.items()) + "}"
    return repr(value)


def _of(node: Node) -> str:
    value = result(node)
    if isinstance(value, Tensor):
        return f"{value.dtype} {value.device} {tuple(value.shape)}"
    return node.name if value is None else str(value)


def launches(node: Node, kind: str) -> int:
    """Kernels of a call, forward and backward, about."""
    num = len(list(operands_of(node)))
    if not result(node).is_floating_point():
        return 1
    backward = {"linear": num, "product": 2, "pointwise": num, "norm": min(num, 2)}
    return 1 + backward.get(kind, 1)


def launches_together(node: Node, kind: str, shared: Sequence[bool]) -> int:
    """Kernels of the call that stands for a group."""
    if kind == "norm" and not all(shared[1:]):
        return 8  # norm, product and sum, back through each, and the sums of two gradients
    return launches(node, kind)
