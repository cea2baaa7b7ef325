"""What brings the parts of a group together again, read off their stack: cat, stack and sums."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, Node

from hotrows.graph_nodes import result
from hotrows.nn.batching.operands import Operand, Part, Parts, Viewed, build, operand_of
from hotrows.nn.batching.views import name_of

_SUMS = (operator.add, torch.add, "add", "__add__", "__radd__")


def is_gathering(node: Node, parts: Mapping[Node, Part]) -> bool:
    """Whether a call brings parts together, or is a step on the way of a sum to that."""
    return (
        _brought_together(_joined(node), parts) is not None
        or _brought_together(_summed(node), parts) is not None
        or len(_summed(node)) == 1
    )


def gather(graph: Graph, node: Node, parts: Mapping[Node, Part], is_others: bool) -> Node | None:
    """The value of `node` off the stack that it brings together; None where there is none.

    is_others: somebody else may change it, so it may not share memory with the stack.
    """
    if (found := _brought_together(_joined(node), parts)) is not None:
        return _join(graph, node, build(graph, found, {}), is_others)
    if len(node.users) == 1 and _is_sum(next(iter(node.users))):
        return None  # on the way
    if (found := _brought_together(_summed(node), parts)) is not None:
        return graph.call_method("sum", (build(graph, found, {}), 0))
    return None


def _brought_together(nodes: Sequence[Any], parts: Mapping[Node, Part]) -> Operand | None:
    """`nodes`, two at least, as parts of one stack, or equal views of them."""
    if len(nodes) < 2 or not all(isinstance(node, Node) for node in nodes):
        return None
    found = whole = operand_of(nodes, parts)
    while isinstance(found, Viewed):
        found = found.of
    return whole if isinstance(found, Parts) else None


def _joined(node: Node) -> Sequence[Any]:
    if name_of(node) not in ("cat", "concat", "stack") or node.op != "call_function":
        return ()
    is_plain = set(node.kwargs) <= {"dim"} and node.args and isinstance(node.args[0], tuple | list)
    return node.args[0] if is_plain else ()  # type: ignore[return-value]


def _join(graph: Graph, node: Node, stack: Node, is_others: bool) -> Node:
    given: Any = node.kwargs.get("dim", node.args[1] if len(node.args) > 1 else 0)
    dim = given % result(node).dim()
    moved = graph.call_method("movedim", (stack, 0, dim))
    if is_others:
        to: dict[str, Any] = {"memory_format": torch.contiguous_format}
        moved = graph.call_method("clone", (moved,), to)
    else:
        moved = graph.call_method("contiguous", (moved,))
    if name_of(node) == "stack":
        return moved
    return graph.call_method("flatten", (moved, dim, dim + 1))


def _summed(node: Node) -> Sequence[Any]:
    """What ((0 + a) + b) + c adds, where nothing else reads the sums on the way."""
    if not _is_sum(node) or not _is_float(node):
        return ()
    terms: list[Any] = []
    rest: Any = node
    while isinstance(rest, Node) and _is_sum(rest) and (rest is node or len(rest.users) == 1):
        terms.append(rest.args[1])
        rest = rest.args[0]
    terms += [] if type(rest) is int and rest == 0 else [rest]
    return terms[::-1]


def _is_float(node: Node) -> bool:
    value = result(node)
    return isinstance(value, Tensor) and value.is_floating_point()


def _is_sum(node: Node) -> bool:
    return node.target in _SUMS and len(node.args) == 2 and not node.kwargs
