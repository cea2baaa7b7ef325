"""What a group of calls reads, as one operand: shared by all, parts of a stack, or stacked for it.

x, x, x                      Shared       x itself: it is broadcast
y[0], y[1], y[2]             Parts        y, which an earlier group computed
x[:, 0], x[:, 1], x[:, 2]    Slices       a view of x
v(a), v(b), v(c)             Viewed       the same view of what stands for a, b, c
a, b, c                      Gathered     torch.stack([a, b, c]), the only one that copies
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch.fx import Graph, Node

from hotrows.graph_nodes import result
from hotrows.nn.batching.views import Slice, View, slice_of, stack_slices, view_of, view_stack


@dataclass(frozen=True)
class Part:
    """What is known of a node: its value is `stack[index]`, one of `num`."""

    stack: Node
    index: int
    num: int


@dataclass(frozen=True)
class Shared:
    node: Node


@dataclass(frozen=True)
class Parts:
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
    view: View
    of: Operand
    num: int


@dataclass(frozen=True)
class Gathered:
    nodes: tuple[Node, ...]


Operand: TypeAlias = "Shared | Parts | Slices | Viewed | Gathered"


def operand_of(nodes: Sequence[Node], parts: Mapping[Node, Part]) -> Operand:
    """What stands for `nodes`, one of each member, all of one shape."""
    if len(set(nodes)) == 1:
        return Shared(nodes[0])
    if (found := parts_of(nodes, parts)) is not None:
        return found
    views = [view_of(node) for node in nodes]
    if _are_equal(views):
        return Shared(nodes[0])
    slices = [slice_of(node) for node in nodes]
    if all(slices) and _are_neighbours(slices):  # type: ignore[arg-type]
        assert slices[0] is not None
        return Slices(slices[0], len(nodes))
    if views[0] is not None and all(view and view.key == views[0].key for view in views):
        of = operand_of([view.of for view in views if view is not None], parts)
        if isinstance(of, Shared):
            return Shared(nodes[0])
        if not gathered(of) or num_bytes(views[0].of) <= num_bytes(nodes[0]):
            return Viewed(views[0], of, len(nodes))
    return Gathered(tuple(nodes))


def _are_equal(views: Sequence[View | None]) -> bool:
    """Whether all are the same view of the same tensor."""
    return views[0] is not None and all(
        view is not None and (view.of, view.key) == (views[0].of, views[0].key) for view in views
    )


def parts_of(nodes: Sequence[Node], parts: Mapping[Node, Part]) -> Parts | None:
    """`nodes` as neighbouring parts of one stack, in order."""
    found = [parts.get(node) if isinstance(node, Node) else None for node in nodes]
    first = found[0]
    if first is None:
        return None
    for place, part in enumerate(found):
        if part is None or (part.stack, part.index) != (first.stack, first.index + place):
            return None
    return Parts(first.stack, first.index, len(nodes), first.num)


def _are_neighbours(slices: Sequence[Slice]) -> bool:
    first = slices[0]
    return all(
        (each.of, each.dim, each.length, each.index)
        == (first.of, first.dim, first.length, first.index + place)
        for place, each in enumerate(slices)
    )


def gathered(operand: Operand) -> tuple[Node, ...]:
    """The nodes that are copied for an operand."""
    if isinstance(operand, Viewed):
        return gathered(operand.of)
    return operand.nodes if isinstance(operand, Gathered) else ()


def build(graph: Graph, operand: Operand, made: dict[tuple[Node, ...], Node]) -> Node:
    """The node of an operand: [G, ...], or the shared one; `made`: stacks that are there already."""
    if isinstance(operand, Shared):
        return operand.node
    if isinstance(operand, Parts):
        if operand.num == operand.num_in_stack:
            return operand.stack
        rows = slice(operand.start, operand.start + operand.num)
        return graph.call_function(operator.getitem, (operand.stack, rows))
    if isinstance(operand, Slices):
        return stack_slices(graph, operand.first, operand.num)
    if isinstance(operand, Viewed):
        of = build(graph, operand.of, made)
        return view_stack(graph, operand.view, of, operand.num)
    if operand.nodes not in made:
        made[operand.nodes] = graph.call_function(torch.stack, (operand.nodes,))
    return made[operand.nodes]


def num_bytes(node: Node) -> int:
    """Of a node's tensor; where a size is not fixed, of the size that was seen."""
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
