"""Operands of a group of calls as one: shared by all, parts of a stack, or stacked for it.

x, x, x                      Shared       x itself: it is broadcast
y[0], y[1], y[2]             StackItems   y, which an earlier group computed
x[:, 0], x[:, 1], x[:, 2]    Slices       a view of x
v(a), v(b), v(c)             Viewed       the same view of what stands for a, b, c
a, b, c                      Gathered     torch.stack([a, b, c]), the only one that copies
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import torch
from torch.fx import Graph, Node

from hotrows.fx.batching.views import Slice, TensorView, slice_of, stack_slices, view_of, view_stack
from hotrows.fx.nodes import result


@dataclass(frozen=True)
class StackItem:
    """A node whose value is `stack[index]`, one of `num`."""

    stack: Node
    index: int
    num: int


@dataclass(frozen=True)
class Shared:
    node: Node


@dataclass(frozen=True)
class StackItems:
    stack: Node
    start: int
    num: int
    num_in_stack: int


@dataclass(frozen=True)
class Slices:
    first: Slice
    num: int


@dataclass(frozen=True)
class Viewed:
    view: TensorView
    base: Operand
    num: int


@dataclass(frozen=True)
class Gathered:
    nodes: tuple[Node, ...]


Operand: TypeAlias = "Shared | StackItems | Slices | Viewed | Gathered"


def operand_of(nodes: Sequence[Node], parts: Mapping[Node, StackItem]) -> Operand:
    """The operand that stands for `nodes`, one of each member, all of one shape."""
    if len(set(nodes)) == 1:
        return Shared(nodes[0])
    items = [parts.get(node) for node in nodes]
    if items[0] is not None and _are_neighbours(items):
        return StackItems(items[0].stack, items[0].index, len(nodes), items[0].num)
    views = [view_of(node) for node in nodes]
    if views[0] is not None and len({view and (view.base, view.key) for view in views}) == 1:
        return Shared(nodes[0])
    slices = [slice_of(node) for node in nodes]
    if slices[0] is not None and _are_neighbours(slices):
        return Slices(slices[0], len(nodes))
    if views[0] is not None and all(view and view.key == views[0].key for view in views):
        base = operand_of([view.base for view in views if view is not None], parts)
        if isinstance(base, Shared):
            return Shared(nodes[0])
        if not gathered(base) or num_bytes(views[0].base) <= num_bytes(nodes[0]):
            return Viewed(views[0], base, len(nodes))
    return Gathered(tuple(nodes))


def _are_neighbours(pieces: Sequence[Any]) -> bool:
    """Whether slices or stack items are of one tensor, equal but for their index, which counts up."""
    start = pieces[0].index
    return list(pieces) == [replace(pieces[0], index=start + i) for i in range(len(pieces))]


def gathered(operand: Operand) -> tuple[Node, ...]:
    """The nodes that are copied for an operand."""
    if isinstance(operand, Viewed):
        return gathered(operand.base)
    return operand.nodes if isinstance(operand, Gathered) else ()


def build(graph: Graph, operand: Operand, stacks: dict[tuple[Node, ...], Node]) -> Node:
    """The node of an operand: [G, ...], or the shared one.

    stacks: those made so far, by the nodes that they hold; a new one is added.
    """
    if isinstance(operand, Shared):
        return operand.node
    if isinstance(operand, StackItems):
        if operand.num == operand.num_in_stack:
            return operand.stack
        rows = slice(operand.start, operand.start + operand.num)
        return graph.call_function(operator.getitem, (operand.stack, rows))
    if isinstance(operand, Slices):
        return stack_slices(graph, operand.first, operand.num)
    if isinstance(operand, Viewed):
        base = build(graph, operand.base, stacks)
        return view_stack(graph, operand.view, base, operand.num)
    if operand.nodes not in stacks:
        stacks[operand.nodes] = graph.call_function(torch.stack, (operand.nodes,))
    return stacks[operand.nodes]


def num_bytes(node: Node) -> int:
    """Bytes of a node's tensor; where a size is not fixed, of the size that was seen."""
    value = result(node)
    count = value.element_size()
    for size in value.shape:
        count *= seen(size)
    return count


def seen(size: int | torch.SymInt) -> int:
    """A size, or what it was in the batch that is compiled for."""
    if isinstance(size, int):
        return size
    hint = getattr(size.node, "hint", None)
    return int(hint) if hint is not None else _UNSEEN


_UNSEEN = 8192  # a size of which nothing is known: a batch's
