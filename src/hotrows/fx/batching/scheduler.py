"""The pass: schedules the calls of a graph anew, and makes one call of equal calls that are ready.

A call is ready when all that it must stay behind has been made (`dependencies.predecessors`). Calls that
are ready do not depend on one another, so those of equal key (`calls.key_of`) may be one. The key that
comes next is one with no more members to come; where there is none, the one nearest to the inputs
(Neubig, Goldberg, Dyer: On-the-fly operation batching in dynamic computation graphs, NeurIPS 2017). What
cannot be batched is made as soon as it is ready.

    x ─ linear ─ relu ─ linear ─┐                         ┌ parts, where others read them
    x ─ linear ─ relu ─ linear ─┼─ cat    ->    x ─ linear ─ relu ─ baddbmm ─ flatten
    x ─ linear ─ relu ─ linear ─┘
"""

from __future__ import annotations

import heapq
import operator
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from torch.fx import Graph, Node

from hotrows.fx.batching import calls
from hotrows.fx.batching.batched_call import BY_KIND, Members
from hotrows.fx.batching.dependencies import draws, has_effects, predecessors, watched_memory
from hotrows.fx.batching.gathering import gather, is_gathering
from hotrows.fx.batching.grouping import alike, is_worth_it
from hotrows.fx.batching.operands import Operand, Shared, StackItem, build, operand_of
from hotrows.fx.batching.views import KEPT, name_of, only_looks
from hotrows.fx.nodes import is_idle_dropout, result, storage_of


@dataclass(frozen=True)
class CallGroup:
    """Calls that became one: of what function, how many, each with a result of which shape."""

    call: str
    num: int
    shape: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.num} x {self.call} -> [{', '.join(self.shape)}]"


@dataclass(frozen=True)
class Batching:
    """The result of the pass on a graph; calls are those that compute, views not counted."""

    groups: tuple[CallGroup, ...]
    calls_before: int
    calls_after: int

    def __str__(self) -> str:
        head = f"{self.calls_before} calls became {self.calls_after}"
        return "\n  ".join([head, *map(str, self.groups)])


def batch(graph: Graph) -> Batching:
    """Rewrites a graph of dynamo's in place."""
    sweep(graph, set(graph.nodes))
    before = num_calls(graph)
    groups = tuple(_Scheduler(graph).run())
    graph.lint()
    return Batching(groups, before, num_calls(graph))


def num_calls(graph: Graph) -> int:
    """The calls of a graph that compute something: all but views and reading of sizes."""
    return sum(1 for node in graph.nodes if node.op.startswith("call") and not only_looks(node))


class _Scheduler:
    """A graph being rewritten: calls made so far are in front of `output` in a new order."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.output = next(node for node in reversed(graph.nodes) if node.op == "output")
        self.place = {node: place for place, node in enumerate(graph.nodes)}
        before = predecessors(graph)
        self.num_missing = {node: len(before[node]) for node in graph.nodes}
        self.behind: dict[Node, list[Node]] = defaultdict(list)
        self.depth: dict[Node, int] = {}
        for node, all_before in before.items():
            for earlier in all_before:
                self.behind[earlier].append(node)
            self.depth[node] = 1 + max((self.depth[earlier] for earlier in all_before), default=0)
        self.watched = watched_memory(graph)
        for node in graph.nodes:
            node.meta[KEPT] = self._is_kept(node)
        self.kind = {node: self._kind(node) for node in graph.nodes}
        self.key = {node: calls.key_of(node, kind) for node, kind in self.kind.items() if kind}
        self.num_to_come = Counter(self.key.values())
        self.alone: list[tuple[int, Node]] = []
        self.ready: dict[str, list[Node]] = defaultdict(list)
        self.parts: dict[Node, StackItem] = {}
        self.stacks: dict[tuple[Node, ...], Node] = {}

    def _kind(self, node: Node) -> str:
        """The kind of a call that may be a member of a group.

        What is returned and read again stays alone: the caller may ask for its gradient, and would
        get that of his own use only.
        """
        if node.op not in ("call_function", "call_method") or draws(node):
            return ""
        if self.output in node.users and len(node.users) > 1:
            return ""
        return "" if storage_of(node) in self.watched else calls.kind_of(node)

    def _is_kept(self, node: Node) -> bool:
        """Whether a view must be read itself: others hold it, or it copied what changes later."""
        memory = storage_of(node)
        copied = {storage_of(source) for source in node.all_input_nodes} - {memory, None}
        is_held = any(user is self.output or has_effects(user) for user in node.users)
        return is_held or not copied.isdisjoint(self.watched)

    def run(self) -> list[CallGroup]:
        groups: list[CallGroup] = []
        for node in [node for node, num in self.num_missing.items() if not num]:
            self._is_ready(node)
        with self.graph.inserting_before(self.output):
            while self.alone or self.ready:
                while self.alone:
                    self._make(heapq.heappop(self.alone)[1])
                if self.ready:
                    groups += self._make_all(self.ready.pop(self._next_key()))
        sweep(self.graph, self.place)
        return groups

    def _is_ready(self, node: Node) -> None:
        if self.kind[node] and not is_gathering(node, self.parts):
            self.ready[self.key[node]].append(node)
        else:
            heapq.heappush(self.alone, (self.place[node], node))

    def _next_key(self) -> str:
        def rank(key: str) -> tuple:
            nodes = self.ready[key]
            has_more = len(nodes) < self.num_to_come[key]
            return has_more, sum(self.depth[n] for n in nodes) / len(nodes), self.place[nodes[0]]

        return min(self.ready, key=rank)

    def _make(self, node: Node) -> None:
        """One call: as it was, or read off what a group computed."""
        if node is self.output:
            return
        is_others = self._is_returned(node) or storage_of(node) in self.watched
        replacement = gather(self.graph, node, self.parts, is_others)
        if replacement is None:
            self.output.prepend(node)
            if has_effects(node):
                self.stacks.clear()  # what was stacked may change here
        else:
            self._replace(node, replacement)
        self._done(node)

    def _replace(self, node: Node, replacement: Node) -> None:
        replacement.meta.update(node.meta)
        node.replace_all_uses_with(replacement)
        self.graph.erase_node(node)

    def _done(self, node: Node) -> None:
        if node in self.key:
            self.num_to_come[self.key[node]] -= 1
        for later in self.behind[node]:
            self.num_missing[later] -= 1
            if not self.num_missing[later]:
                self._is_ready(later)

    def _make_all(self, nodes: list[Node]) -> Iterator[CallGroup]:
        """Calls of equal key, in as many groups as are worth it."""
        for members in alike(nodes, self.parts):
            columns = zip(*map(calls.operands_of, members), strict=True)
            operands = [operand_of(column, self.parts) for column in columns]
            if is_worth_it(members, self.kind[members[0]], operands, self.stacks):
                yield self._make_group(members, operands)
            else:
                for node in members:
                    self._make(node)

    def _make_group(self, members: list[Node], operands: Sequence[Operand]) -> CallGroup:
        node, num = members[0], len(members)
        group = CallGroup(name_of(node), num, tuple(map(str, result(node).shape)))
        stacks = [build(self.graph, operand, self.stacks) for operand in operands]
        shared = [isinstance(operand, Shared) for operand in operands]
        out = BY_KIND[self.kind[node]](self.graph, Members(node, stacks, shared, num))
        stack = self.graph.call_method("contiguous", (out,))  # as each member's result was
        split = self.graph.call_method("unbind", (stack, 0))
        for index, member in enumerate(members):
            # PyTorch refuses to change one of several unbound views in place; the caller may
            source = stack if self._is_returned(member) else split
            part = self.graph.call_function(operator.getitem, (source, index))
            self.parts[part] = StackItem(out, index, num)
            self._replace(member, part)
        for member in members:
            self._done(member)
        return group

    def _is_returned(self, node: Node) -> bool:
        """Whether a node, or a view of it, goes to the caller."""
        users = [user for user in node.users if user in self.place]
        return self.output in users or any(
            (storage_of(user) == storage_of(node) or is_idle_dropout(user)) and self._is_returned(user)
            for user in users
        )


def sweep(graph: Graph, theirs: Collection[Node]) -> None:
    """Takes out what nothing reads: all such calls but those of `theirs` that do something besides."""
    for node in reversed(graph.nodes):
        is_unread = node.op.startswith("call") and not node.users
        if is_unread and not (node in theirs and (has_effects(node) or draws(node))):
            graph.erase_node(node)
