"""The order of a graph's nodes that must stay, beyond the values that calls hand to one another."""

from __future__ import annotations

from collections import defaultdict

from torch.fx import Graph, Node

from hotrows.fx import nodes


def predecessors(graph: Graph) -> dict[Node, set[Node]]:
    """The nodes that each node must stay behind.

    These are the nodes that it reads; those that change memory that it touches, and where it changes
    memory itself, those that touch it; the random draw before it; and the last node that nothing may
    cross (`nodes.is_wall`: a mode that changes, a call of unknown effect).
    """
    before: dict[Node, set[Node]] = {}
    touched: dict[int | None, list[Node]] = defaultdict(list)
    wrote: dict[int | None, Node] = {}
    wall: Node | None = None
    draw: Node | None = None
    since: list[Node] = []
    for node in graph.nodes:
        after = set(node.all_input_nodes)
        after |= {other for other in (wall, draw if draws(node) else None) if other is not None}
        memory = set(nodes.storages(node))
        after |= {wrote[storage] for storage in memory if storage in wrote}
        for storage in _memory_written(node):
            after.update(touched[storage])
            wrote[storage] = node
        if nodes.is_wall(node) or node.op == "output":
            after.update(since)
            wall, since = node, []
        for storage in memory:
            touched[storage].append(node)
        draw = node if draws(node) else draw
        since.append(node)
        before[node] = after - {node}
    return before


def draws(node: Node) -> bool:
    """Whether a node draws random numbers."""
    return nodes.is_random(node) and not nodes.is_idle_dropout(node)


def has_effects(node: Node) -> bool:
    """Whether a node does more than to compute its result, or may do."""
    return nodes.is_wall(node) or any(True for _ in nodes.written_by(node))


def watched_memory(graph: Graph) -> set[int | None]:
    """Memory that something changes in place, or hands to a call of unknown effect."""
    memory: set[int | None] = {None}
    for node in graph.nodes:
        memory |= _memory_written(node)
        if nodes.is_wall(node):
            memory |= set(nodes.storages(node))
    return memory


def _memory_written(node: Node) -> set[int | None]:
    """The memory of tensors that `node` changes, and None, as memory that is not known may be theirs."""
    written = {nodes.storage_of(tensor) for tensor in nodes.written_by(node)}
    return written | {None} if written else written
