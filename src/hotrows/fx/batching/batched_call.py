"""The call that stands for a group: each kind of `calls`, on operands stacked to [G, ...]."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, Node, map_arg

from hotrows.fx.batching.calls import norm_of, operands_of, place_of_dim
from hotrows.fx.batching.views import aligned, name_of, shifted
from hotrows.fx.nodes import result


@dataclass(frozen=True)
class Members:
    """A group: its first call, and its operands in the order of that call's.

    operands: [G, ...] each, or what all members share, as `shared` says; num: G.
    """

    first: Node
    operands: Sequence[Node]
    shared: Sequence[bool]
    num: int

    @property
    def dims(self) -> list[int]:
        """The number of dimensions of each operand in a member."""
        return [result(operand).dim() for operand in operands_of(self.first)]


def _linear(graph: Graph, members: Members) -> Node:
    x, *parameters = members.operands
    linear = torch.nn.functional.linear
    if all(members.shared[1:]):
        return graph.call_function(linear, (x, *parameters))
    parameters = _stacked(graph, members, start=1)
    if members.shared[0]:  # x [A_1 ... A_G]
        flat = [graph.call_method("flatten", (operand, 0, 1)) for operand in parameters]
        return _split(graph, graph.call_function(linear, (x, *flat)), members.num)
    matrices = graph.call_method("transpose", (parameters[0], 1, 2))
    return _with_matrices(graph, x, members.dims[0], matrices, *parameters[1:])


def _product(graph: Graph, members: Members) -> Node:
    left, right = members.operands
    dims = members.dims
    if members.shared[0]:  # x [A_1 ... A_G]
        right = graph.call_method("movedim", (right, 0, -2))
        right = graph.call_method("flatten", (right, -2, -1))
        return _split(graph, graph.call_function(torch.matmul, (left, right)), members.num)
    if dims[1] == 2 and not members.shared[1]:
        return _with_matrices(graph, left, dims[0], right)
    if dims[1] == 2 or not members.shared[1]:
        return graph.call_function(torch.matmul, (left, right))
    left = graph.call_method("movedim", (left, 0, -3))  # [X_1; ...; X_G] A
    left = graph.call_method("flatten", (left, -3, -2))
    out = graph.call_function(torch.matmul, (left, right))
    out = graph.call_method("unflatten", (out, -2, (members.num, -1)))
    return graph.call_method("movedim", (out, -3, 0))


def _with_matrices(graph: Graph, x: Node, dims: int, matrices: Node, bias: Node | None = None) -> Node:
    """x [G, ..., K], a matrix [K, N] for each member -> [G, ..., N]."""
    flat = x
    if dims == 1:
        flat = graph.call_method("unsqueeze", (x, 1))
    elif dims > 2:
        flat = graph.call_method("flatten", (x, 1, -2))
    if bias is None:
        out = graph.call_function(torch.bmm, (flat, matrices))
    else:
        bias = graph.call_method("unsqueeze", (bias, 1))
        out = graph.call_function(torch.baddbmm, (bias, flat, matrices))
    if dims == 1:
        return graph.call_method("squeeze", (out, 1))
    if dims == 2:
        return out
    shape = graph.call_function(getattr, (x, "shape"))
    sizes = graph.call_function(operator.getitem, (shape, slice(1, -1)))
    return graph.call_method("unflatten", (out, 1, sizes))


def _stacked(graph: Graph, members: Members, start: int = 0) -> list[Node]:
    """The operands from number `start` on as stacks: shared ones expanded to [G, ...]."""
    stacks = list(members.operands)[start:]
    for i, (dims, shared) in enumerate(zip(members.dims[start:], members.shared[start:], strict=True)):
        if shared:
            one = graph.call_method("unsqueeze", (stacks[i], 0))
            stacks[i] = graph.call_method("expand", (one, members.num, *[-1] * dims))
    return stacks


def _split(graph: Graph, out: Node, num: int) -> Node:
    """[..., G N] -> [G, ..., N]"""
    out = graph.call_method("unflatten", (out, -1, (num, -1)))
    return graph.call_method("movedim", (out, -2, 0))


def _pointwise(graph: Graph, members: Members) -> Node:
    return _again(graph, members.first, _aligned(graph, members, result(members.first).dim()))


def _aligned(graph: Graph, members: Members, dims: int) -> list[Node]:
    """The operands, unsqueezed to broadcast as those of a member do."""
    operands = zip(members.operands, members.dims, members.shared, strict=True)
    return [
        operand if shared else aligned(graph, operand, own_dims, to=dims)
        for operand, own_dims, shared in operands
    ]


def _again(graph: Graph, node: Node, operands: Sequence[Node]) -> Node:
    """The call of `node` on other tensors."""
    remaining = iter(operands)

    def exchanged(value: Node) -> Node:
        return next(remaining) if isinstance(result(value), Tensor) else value

    args, kwargs = map_arg(node.args, exchanged), map_arg(node.kwargs, exchanged)
    return graph.create_node(node.op, node.target, args, kwargs)


def _along(graph: Graph, members: Members) -> Node:
    node = members.first
    call = _again(graph, node, members.operands)
    place = place_of_dim(node)
    old_dim: Any = node.kwargs["dim"] if place == "dim" else node.args[1]
    dim = shifted(old_dim) if isinstance(old_dim, int) else tuple(map(shifted, old_dim))
    if place == "dim":
        call.update_kwarg("dim", dim)
    else:
        call.update_arg(1, dim)
    return call


def _norm(graph: Graph, members: Members) -> Node:
    _, shape, weight, bias, eps = norm_of(members.first)
    norm: Any = torch.nn.functional.layer_norm
    if all(members.shared[1:]):
        return graph.call_function(norm, (members.operands[0], shape, weight, bias, eps))
    out = graph.call_function(norm, (members.operands[0], shape, None, None, eps))
    _, *parameters = _aligned(graph, members, members.dims[0])
    if weight is not None:
        out = graph.call_function(torch.mul, (out, parameters.pop(0)))
    return graph.call_function(torch.add, (out, parameters.pop())) if parameters else out


def _join(graph: Graph, members: Members) -> Node:
    node = members.first
    dim: Any = node.kwargs.get("dim", node.args[1] if len(node.args) > 1 else 0)
    function = torch.stack if name_of(node) == "stack" else torch.cat
    return graph.call_function(function, (_stacked(graph, members), shifted(dim)))


# By kind, a function that makes the results of a group: [G, ...], not always contiguous.
BY_KIND: dict[str, Callable[[Graph, Members], Node]] = {
    "linear": _linear,
    "product": _product,
    "pointwise": _pointwise,
    "along": _along,
    "norm": _norm,
    "join": _join,
}
