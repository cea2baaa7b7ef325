"""Calls that bring the parts of a group together again, read off their stack: cat, stack and sums."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, Node

from hotrows.fx.batching.operands import Operand, StackItem, StackItems, Viewed, build, operand_of
from hotrows.fx.batching.views import name_of
from hotrows.fx.nodes import result

_SUMS = (operator.add, torch.add, "add", "__add__", "__radd__")


def is_gathering(node: Node, parts: Mapping[Node, StackItem]) -> bool:
    """Whether a call brings parts together, or is a step on the way of a sum to that."""
    return (
        _brought_together(_joined(node), parts) is not None
        or _brought_together(_summed(node), parts) is not None
        or len(_summed(node)) == 1
    )


def gather(graph: Graph, node: Node, parts: Mapping[Node, StackItem], is_others: bool) -> Node | None:
    """The value of `node` off the stack that it brings together; None where there is none.

    is_others: somebody else may change it, so it may not share memory with the stack.
    """
    if (operand := _brought_together(_joined(node), parts)) is not None:
        return _join(graph, node, build(graph, operand, {}), is_others)
    if len(node.users) == 1 and _is_sum(next(iter(node.users))):
        return None  # on the way
    if (operand := _brought_together(_summed(node), parts)) is not None:
        return graph.call_method("sum", (build(graph, operand, {}), 0))
    return None


def _brought_together(nodes: Sequence[Any], parts: Mapping[Node, StackItem]) -> Operand | None:
    """`nodes`, two at least, as parts of one stack, or equal views of them."""
    if len(nodes) < 2 or not all(isinstance(node, Node) for node in nodes):
        return None
    operand = base = operand_of(nodes, parts)
    while isinstance(base, Viewed):
        base = base.base
    return operand if isinstance(base, StackItems) else None


def _joined(node: Node) -> Sequence[Any]:
    if name_of(node) not in ("cat", "concat", "stack") or node.op != "call_function":
        return ()
    is_plain = set(node.kwargs) <= {"dim"} and node.args and isinstance(node.args[0], tuple | list)
    return node.args[0] if is_plain else ()  # type: ignore[return-value]


def _join(graph: Graph, node: Node, stack: Node, is_others: bool) -> Node:
    old_dim: Any = node.kwargs.get("dim", node.args[1] if len(node.args) > 1 else 0)
    dim = old_dim % result(node).dim()
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
    """The terms of ((0 + a) + b) + c, where nothing else reads the sums on the way."""
    value = result(node)
    if not _is_sum(node) or not isinstance(value, Tensor) or not value.is_floating_point():
        return ()
    terms: list[Any] = []
    remaining: Any = node
    while (
        isinstance(remaining, Node)
        and _is_sum(remaining)
        and (remaining is node or len(remaining.users) == 1)
    ):
        terms.append(remaining.args[1])
        remaining = remaining.args[0]
    terms += [] if type(remaining) is int and remaining == 0 else [remaining]
    return terms[::-1]


def _is_sum(node: Node) -> bool:
    return node.target in _SUMS and len(node.args) == 2 and not node.kwargs
