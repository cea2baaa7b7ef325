"""What must come before what in a graph, beyond the values that calls hand to one another."""

from __future__ import annotations

from collections import defaultdict

from torch.fx import Graph, Node

from hotrows import graph_nodes as of


def predecessors(graph: Graph) -> dict[Node, set[Node]]:
    """The nodes that each node must stay behind.

    Those that it reads; those that change memory that it touches, and where it changes memory itself,
    those that touch it; the random draw before it; and the last node that nothing may cross
    (`graph_nodes.is_wall`: a mode that changes, a call of unknown effect).
    """
    before: dict[Node, set[Node]] = {}
    touched: dict[int | None, list[Node]] = defaultdict(list)
    wrote: dict[int | None, Node] = {}
    wall: Node | None = None
    draw: Node | None = None
    since: list[Node] = []
    for node in graph.nodes:
        after = set(node.all_input_nodes)
        after |= {each for each in (wall, draw if draws(node) else None) if each is not None}
        memory = set(of.storages(node))
        after |= {wrote[each] for each in memory if each in wrote}
        for each in _memory_written(node):
            after.update(touched[each])
            wrote[each] = node
        if of.is_wall(node) or node.op == "output":
            after.update(since)
            wall, since = node, []
        for each in memory:
            touched[each].append(node)
        draw = node if draws(node) else draw
        since.append(node)
        before[node] = after - {node}
    return before


def draws(node: Node) -> bool:
    """Whether a node draws random numbers."""
    return of.is_random(node) and not of.is_idle_dropout(node)


def has_effects(node: Node) -> bool:
    """Whether a node does more than to compute its result, or may do."""
    return of.is_wall(node) or any(True for _ in of.written_by(node))


def watched_memory(graph: Graph) -> set[int | None]:
    """Memory that something changes in place, or hands to a call of unknown effect."""
    memory: set[int | None] = {None}
    for node in graph.nodes:
        memory |= _memory_written(node)
        if of.is_wall(node):
            memory |= set(of.storages(node))
    return memory


def _memory_written(node: Node) -> set[int | None]:
    """Of tensors that `node` changes; with None, as memory that is not known may be theirs."""
    written = {of.storage_of(each) for each in of.written_by(node)}
    return written | {None} if written else written
