"""Which calls of equal key become one: those whose operands come from the same tensors, where it pays."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence

from torch.fx import Node

from hotrows.fx.batching import calls
from hotrows.fx.batching.operands import Operand, Shared, StackItem, gathered, num_bytes, seen
from hotrows.fx.batching.views import slice_of, view_of
from hotrows.fx.nodes import result

MAX_FLOPS = 1 << 28
"""Operations of a member's product up to which it is batched. PyTorch needs about 4 us to launch a
kernel, in which an H200 does as many in float32 (67 TFLOP/s): a larger member keeps it busy by itself."""

MAX_BYTES = 1 << 22
"""Bytes of a member's operand up to which it is copied into a stack: read and written, that takes 2 us
at 4.8 TB/s."""

Origin = tuple[Hashable, int]
"""A tensor (and the views of it) that a node is one of several neighbours in, and its place there."""


def alike(nodes: Sequence[Node], parts: Mapping[Node, StackItem]) -> Iterator[list[Node]]:
    """The members of groups: of each, an operand comes from one tensor, and they are in its order."""
    columns = list(zip(*map(calls.operands_of, nodes), strict=True))
    origins = [_origins(column, parts, place == 0) for place, column in enumerate(columns)]
    groups: dict[Hashable, list[tuple[tuple[int, ...], int]]] = defaultdict(list)
    for number, member in enumerate(zip(*origins, strict=True)):
        indices = tuple(index for _, index in member)
        groups[tuple(tensor for tensor, _ in member)].append((indices, number))
    for members in groups.values():
        yield [nodes[number] for _, number in sorted(members)]


def _origins(column: Sequence[Node], parts: Mapping[Node, StackItem], is_first: bool) -> list[Origin]:
    """The origin that each member's operand shares with most others; (None, 0): with nobody.

    A whole tensor counts as an origin where it is the first operand: its readers then share it.
    """
    nobody: Origin = (None, 0)
    candidates = [list(_candidates(node, parts, is_first)) for node in column]
    count = Counter(tensor for origins in candidates for tensor, _ in origins)
    best = [max(origins, key=lambda o: count[o[0]], default=nobody) for origins in candidates]
    return [origin if count[origin[0]] > 1 else nobody for origin in best]


def _candidates(node: Node, parts: Mapping[Node, StackItem], is_first: bool) -> Iterator[Origin]:
    if node in parts:
        yield parts[node].stack, parts[node].index
    if (piece := slice_of(node)) is not None:
        yield (piece.base, piece.dim, piece.length), piece.index
    if (view := view_of(node)) is not None:
        for base, index in _candidates(view.base, parts, is_first):
            yield (view.key, base), index
    elif is_first:
        yield (node,), 0


def is_worth_it(
    members: Sequence[Node],
    kind: str,
    operands: Sequence[Operand],
    stacks: Mapping[tuple[Node, ...], Node],
) -> bool:
    """Whether a group launches less than its members, forward and backward, and these are small.

    Counted against it: the copies of what must be stacked, and the one that takes the gradients of its
    parts together. Gradients of stacked operands are views.
    """
    shared = [isinstance(operand, Shared) for operand in operands]
    copies = {nodes for nodes in map(gathered, operands) if nodes and nodes not in stacks}
    before = len(members) * calls.launches(members[0], kind)
    after = calls.launches_together(members[0], kind, shared) + len(copies) + 1
    if all(shared) or after >= before:
        return False
    is_small = all(num_bytes(nodes[0]) <= MAX_BYTES for nodes in copies)
    return is_small and _flops(members[0], kind) <= MAX_FLOPS


def _flops(node: Node, kind: str) -> int:
    if kind not in ("linear", "product"):
        return 0
    flops = 2 * seen(result(next(calls.operands_of(node))).shape[-1])
    for size in result(node).shape:
        flops *= seen(size)
    return flops
