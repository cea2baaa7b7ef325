"""The torch.compile backend "hotrows": the lookups of a graph, as far as their ids allow, as one call.

Dynamo hands over what a model does as a graph of PyTorch's own calls, before autograd looks at it. The
backend finds the lookups, moves what their ids need to the front, and makes one `look_up` of them; the
rest of the graph then runs call by call, as PyTorch runs it, so that every other result stays as it was.

    x0 ─ slice ─ embedding ─┐                         x0 ─ slice ─┐
    x1 ─ slice ─ embedding ─┼─ cat ─ linear    ->     x1 ─ slice ─┼─ look_up ─ cat ─ linear ─ ...
    (linear ─ argmax) ─ embedding ─ ...                           └ (the dependent one stays where it is)

A node moves forward only. It stays behind every node that changes memory that it reads, or that changes a
mode (autograd on or off, autocast). So each lookup has an earliest place, and may be answered anywhere
between there and its own place; the fewest calls that answer all of them are found from the left.
"""

import operator
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx import Graph as FxGraph
from torch.fx import GraphModule, Node

from hotrows import graph_nodes as of
from hotrows.capture.lookup import Lookup, look_up
from hotrows.capture.report import Alone, Captured, Read, Report

_MODES = ("sum", "mean", "max")
_EMBEDDING = (
    "input",
    "weight",
    "padding_idx",
    "max_norm",
    "norm_type",
    "scale_grad_by_freq",
    "sparse",
)
_EMBEDDING_BAG = (
    "input", "weight", "offsets", "max_norm", "norm_type", "scale_grad_by_freq", "mode", "sparse",
    "per_sample_weights", "include_last_offset", "padding_idx",
)  # fmt: skip
_ATEN_EMBEDDING = ("weight", "indices", "padding_idx", "scale_grad_by_freq", "sparse")
_ATEN_BAG = (
    "weight", "indices", "offsets", "scale_grad_by_freq", "mode", "sparse", "per_sample_weights",
    "include_last_offset", "padding_idx",
)  # fmt: skip


def hotrows(graph_module: GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    """The backend of `torch.compile(model, backend="hotrows")`."""
    return rewrite(graph_module, example_inputs, Report())


def rewrite(
    graph_module: GraphModule, example_inputs: Sequence[Any], report: Report
) -> Callable[..., Any]:
    """Packs the lookups of a graph; returns what runs it, and writes into `report` what was done."""
    lookups = list(find_lookups(graph_module.graph))
    packs = pack(graph_module.graph, lookups)
    names = _names(graph_module.graph, example_inputs, report)
    report.add(_captured(graph_module, lookups, packs, names))
    if packs:
        graph_module.recompile()
    forward = graph_module.forward
    if any(getattr(type(value), "intercepts_in_graphs", False) for value in example_inputs):
        return _with_intercepts(forward)
    return forward


def _with_intercepts(forward: Callable[..., Any]) -> Callable[..., Any]:
    """`forward` with `__torch_function__` at work in it.

    Dynamo turns it off (from 2.13 on) in graphs for which it traced such a method, as what the
    method does should be in the graph. A class with `intercepts_in_graphs` lets dynamo
    through instead, and acts when the graph runs.
    """

    def run(*inputs: Any) -> Any:
        with torch._C._EnableTorchFunction():
            return forward(*inputs)

    return run


# Finding lookups


@dataclass(frozen=True)
class Found:
    """A call that looks rows up.

    `results`: the nodes that are its vectors. `why_alone`: "" if it may be packed.
    """

    node: Node
    lookup: Lookup
    weight: Any
    ids: Any
    offsets: Any = None
    per_sample_weights: Any = None
    results: tuple[Node, ...] = ()
    why_alone: str = ""


def find_lookups(graph: FxGraph) -> Iterator[Found]:
    """The calls of F.embedding, F.embedding_bag and their forms under other names, in order."""
    for node in graph.nodes:
        if node.op == "call_function" and (read := _READERS.get(_plain(node.target))) is not None:
            yield read(node)


def _plain(target: Any) -> Any:
    return target.overloadpacket if isinstance(target, torch._ops.OpOverload) else target


def _read_embedding(node: Node) -> Found:
    given = _bind(node, _EMBEDDING)
    lookup = Lookup(
        padding_idx=_counted_from_zero(given.get("padding_idx"), given["weight"]),
        max_norm=given.get("max_norm"),
        norm_type=given.get("norm_type", 2.0),
        scale_grad_by_freq=bool(given.get("scale_grad_by_freq")),
        sparse=bool(given.get("sparse")),
    )
    return _judged(Found(node, lookup, given["weight"], given["input"], results=(node,)))


def _read_aten_embedding(node: Node) -> Found:
    given = _bind(node, _ATEN_EMBEDDING)
    padding = given.get("padding_idx", -1)  # here a negative one means none
    lookup = Lookup(
        padding_idx=padding if isinstance(padding, int) and padding >= 0 else None,
        scale_grad_by_freq=bool(given.get("scale_grad_by_freq")),
        sparse=bool(given.get("sparse")),
    )
    return _judged(Found(node, lookup, given["weight"], given["indices"], results=(node,)))


def _read_bag(node: Node) -> Found:
    given = _bind(node, _EMBEDDING_BAG)
    return _judged(_bag(node, given, given.get("input"), given.get("mode", "mean"), (node,)))


def _read_aten_bag(node: Node) -> Found:
    given = _bind(node, _ATEN_BAG)
    number = given.get("mode", 0)
    mode = _MODES[number] if number in (0, 1, 2) else "unknown"
    vectors = tuple(user for user in node.users if user.args[1:] == (0,) and _is_getitem(user))
    found = _bag(node, given, given.get("indices"), mode, vectors)
    if len(vectors) < len(node.users):
        return _alone(found, "the sizes of its bags are read too")
    return _judged(found)


def _bag(
    node: Node, given: dict[str, Any], ids: Any, mode: Any, results: tuple[Node, ...]
) -> Found:
    lookup = Lookup(
        mode=mode,
        padding_idx=_counted_from_zero(given.get("padding_idx"), given["weight"]),
        max_norm=given.get("max_norm"),
        norm_type=given.get("norm_type", 2.0),
        scale_grad_by_freq=bool(given.get("scale_grad_by_freq")),
        sparse=bool(given.get("sparse")),
        include_last_offset=bool(given.get("include_last_offset")),
    )
    offsets, scales = given.get("offsets"), given.get("per_sample_weights")
    return Found(node, lookup, given["weight"], ids, offsets, scales, results)


def _is_getitem(node: Node) -> bool:
    return node.op == "call_function" and getattr(node.target, "__name__", "") == "getitem"


def _bind(node: Node, names: Sequence[str]) -> dict[str, Any]:
    return {**dict(zip(names, node.args, strict=False)), **node.kwargs}


def _counted_from_zero(padding_idx: Any, weight: Any) -> int | None:
    """A padding_idx as a row; -1 where the table has no such row."""
    if padding_idx is None or not _is_tensor(weight):
        return None
    rows = of.result(weight).shape[0]
    if not isinstance(padding_idx, int) or not -rows <= padding_idx < rows:
        return -1
    return padding_idx % rows


_READERS: dict[Any, Callable[[Node], Found]] = {
    F.embedding: _read_embedding,
    F.embedding_bag: _read_bag,
    torch.embedding: _read_aten_embedding,
    torch.embedding_bag: _read_aten_bag,
    torch.ops.aten.embedding: _read_aten_embedding,
    torch.ops.aten.embedding_bag: _read_aten_bag,
    torch.ops.aten._embedding_bag: _read_aten_bag,
}


def _alone(found: Found, why: str) -> Found:
    return replace(found, why_alone=found.why_alone or why)


def _judged(found: Found) -> Found:
    """With the reason why it stays alone, so far as the call itself shows it."""
    for is_so, why in _reasons(found):
        if is_so:
            return _alone(found, why)
    return found


def _reasons(found: Found) -> Iterator[tuple[bool, str]]:
    """In an order in which each may rely on those before it."""
    lookup, weight, ids = found.lookup, found.weight, found.ids
    given = (found.offsets, found.per_sample_weights)
    tensors = [each for each in (weight, ids, *given) if each is not None]
    yield not all(_is_tensor(each) for each in tensors), "an argument is no tensor of the graph"
    yield weight.op not in ("placeholder", "get_attr"), "its table is computed in the model"
    yield of.result(weight).dim() != 2, "its table is no matrix"
    yield of.result(ids).dtype not in (torch.int64, torch.int32), "its ids are no integers"
    yield lookup.max_norm is not None, "max_norm changes rows while reading"
    yield lookup.scale_grad_by_freq, "scale_grad_by_freq"
    yield lookup.mode == "max", "mode max"
    yield lookup.mode not in (None, "sum", "mean"), f"its mode is {lookup.mode}"
    yield lookup.padding_idx == -1, "its padding_idx is outside the table"
    if lookup.mode is not None:
        yield from _reasons_of_bag(found)


def _reasons_of_bag(found: Found) -> Iterator[tuple[bool, str]]:
    dims, scales = of.result(found.ids).dim(), found.per_sample_weights
    yield dims not in (1, 2), f"its ids have {dims} dimensions"
    yield (dims == 1) != (found.offsets is not None), "ids and offsets do not go together"
    yield scales is not None and found.lookup.mode != "sum", "per_sample_weights without mode sum"
    trained = scales is not None and of.result(scales).requires_grad
    yield trained, "its per_sample_weights are trained"


def _is_tensor(value: Any) -> bool:
    return isinstance(value, Node) and isinstance(of.result(value), Tensor)


# Packing


class Packed:
    """The function that a pack calls: `look_up`, with what its lookups ask for."""

    def __init__(self, lookups: Iterable[Lookup]):
        self.lookups = tuple(lookups)
        self.__name__ = self.__qualname__ = "look_up"  # as the code of the graph names it

    def __call__(self, weights: Any, ids: Any, offsets: Any, per_sample_weights: Any) -> Any:
        return look_up(self.lookups, weights, ids, offsets, per_sample_weights)


def pack(graph: FxGraph, lookups: list[Found]) -> list[list[Found]]:
    """Rewrites `graph`, and returns its packs. Writes into `lookups` which stay alone, and why."""
    order = {node: place for place, node in enumerate(graph.nodes)}
    earliest = earliest_places(graph, order)
    origins = _origins(graph, {found.node for found in lookups})
    for place, found in enumerate(lookups):
        lookups[place] = _judged_in_graph(found, origins)
    free = [found for found in lookups if not found.why_alone]
    packs, moved = [], set[Node]()
    for place, members in _stabbed(free, order, earliest):
        _place(graph, place, members, order, moved)
        if len(members) > 1:
            packs.append(members)
    packed = {found.node for members in packs for found in members}
    for place, found in enumerate(lookups):
        if found.node not in packed:
            lookups[place] = _alone(found, "no other lookup to pack it with")
    _remove(graph, packs)
    return packs


def _origins(graph: FxGraph, lookups: set[Node]) -> dict[Node, tuple[bool, bool]]:
    """Of what each node reads: whether a lookup's result is in it, and whether random numbers are."""
    origins: dict[Node, tuple[bool, bool]] = {}
    made_of: dict[Node, tuple[bool, bool]] = {}
    memory: dict[int | None, tuple[bool, bool]] = {}  # what was written into it
    for node in graph.nodes:
        read = [made_of[each] for each in node.all_input_nodes]
        read += [memory.get(each, (False, False)) for each in of.storages(node)]
        origins[node] = any(each[0] for each in read), any(each[1] for each in read)
        made_of[node] = origins[node][0] or node in lookups, origins[node][1] or of.is_random(node)
        for written in of.written_by(node):
            before = memory.get(of.storage_of(written), (False, False))
            memory[of.storage_of(written)] = (
                before[0] or made_of[node][0],
                before[1] or made_of[node][1],
            )
    return origins


def _judged_in_graph(found: Found, origins: dict[Node, tuple[bool, bool]]) -> Found:
    looked_up, random = origins[found.node]
    if looked_up:
        return _alone(found, "its ids depend on another lookup")
    if random:
        return _alone(found, "its ids are made of random numbers")
    return found


def earliest_places(graph: FxGraph, order: dict[Node, int]) -> dict[Node, int]:
    """The place in `order` before which each node may not be moved."""
    places: dict[Node, int] = {}
    wall = 0  # no node behind it may be moved before it
    written: dict[int | None, int] = {}  # memory -> behind its last change
    for node, place in order.items():
        if node.op == "placeholder":
            places[node] = wall = place + 1
            continue
        after = [wall, *(places[each] for each in node.all_input_nodes)]
        if written:
            last = max(written.values())
            after += [last if m is None else written.get(m, 0) for m in of.storages(node)]
        places[node] = max(after)
        if of.is_wall(node):
            places[node] = wall = place + 1
        elif changed := list(of.written_by(node)):
            places[node] = place + 1
            written.update({of.storage_of(each): place + 1 for each in changed})
    return places


def _stabbed(
    lookups: list[Found], order: dict[Node, int], earliest: dict[Node, int]
) -> Iterator[tuple[int, list[Found]]]:
    """The fewest (place, lookups) with each lookup between its earliest and its own place."""
    left = sorted(lookups, key=lambda found: order[found.node])
    while left:
        last = order[left[0].node]
        members = [found for found in left if earliest[found.node] <= last]
        left = [found for found in left if earliest[found.node] > last]
        yield max(earliest[found.node] for found in members), members


def _place(
    graph: FxGraph, place: int, members: list[Found], order: dict[Node, int], moved: set[Node]
) -> None:
    """Moves what `members` need to `place`, and behind it their one call, or the only member itself."""
    before = next(node for node in list(order)[place:] if node not in moved)
    with graph.inserting_before(before):
        call = graph.call_function(Packed(each.lookup for each in members), _columns(members))
    needed = [node for node in _needed(members, order, place) if node not in moved]
    if len(members) == 1:
        needed.append(members[0].node)
    for node in needed:
        call.prepend(node)
    moved.update(needed)
    if len(members) == 1:
        graph.erase_node(call)
    else:
        _hand_out(graph, call, members)


def _hand_out(graph: FxGraph, call: Node, members: list[Found]) -> None:
    """Puts the results of a pack's call in the place of its members' own."""
    with graph.inserting_after(call):
        for place, found in reversed(list(enumerate(members))):
            vectors = graph.call_function(operator.getitem, (call, place))
            for result in found.results:
                vectors.meta.update(result.meta)
                result.replace_all_uses_with(vectors)


def _columns(members: list[Found]) -> tuple[tuple[Any, ...], ...]:
    return (
        tuple(each.weight for each in members),
        tuple(each.ids for each in members),
        tuple(each.offsets for each in members),
        tuple(each.per_sample_weights for each in members),
    )


def _needed(members: list[Found], order: dict[Node, int], place: int) -> list[Node]:
    """The nodes at `place` or behind it that the calls of `members` read, in their order."""
    needed: set[Node] = set()
    todo = [each for found in members for each in found.node.all_input_nodes]
    while todo:
        node = todo.pop()
        if node not in needed and order[node] >= place:
            needed.add(node)
            todo.extend(node.all_input_nodes)
    return sorted(needed, key=order.__getitem__)


def _remove(graph: FxGraph, packs: list[list[Found]]) -> None:
    for found in (each for members in packs for each in members):
        for result in found.results:
            if result is not found.node:
                graph.erase_node(result)
        graph.erase_node(found.node)


# What the report says


def _names(graph: FxGraph, example_inputs: Sequence[Any], report: Report) -> dict[Node, str]:
    """What to call each input: its name in the model, or where dynamo found it."""
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    named = zip(inputs, example_inputs, strict=False)
    return {node: report.name_of(value) or readable(of.source_of(node)) for node, value in named}


def readable(source: str) -> str:
    """L['self']._modules['tables']._modules['0']._parameters['weight'] -> tables.0.weight"""
    parts = re.findall(r"\['(\w+)'\]|\.([A-Za-z]\w*)", source)
    words = [quoted or plain for quoted, plain in parts]
    return ".".join(words[1:] or words)


def _captured(
    graph_module: GraphModule,
    lookups: list[Found],
    packs: list[list[Found]],
    names: dict[Node, str],
) -> Captured:
    reads = {found.node: _read(found, names) for found in lookups}
    packed = {found.node for members in packs for found in members}
    return Captured(
        packs=tuple(tuple(reads[each.node] for each in members) for members in packs),
        alone=tuple(
            Alone(reads[each.node], each.why_alone) for each in lookups if each.node not in packed
        ),
        break_reason=_break_reason(graph_module),
    )


def _read(found: Found, names: dict[Node, str]) -> Read:
    weight = found.weight
    shape = tuple(of.result(weight).shape) if _is_tensor(weight) else ()
    rows, dim = (int(shape[0]), int(shape[1])) if len(shape) == 2 else (0, 0)
    kind = "embedding" if found.lookup.mode is None else f"bag, {found.lookup.mode}"
    return Read(names.get(weight) or str(getattr(weight, "name", "?")), rows, dim, kind)


def _break_reason(graph_module: GraphModule) -> str:
    """Why the graph ends before the function does, in one line; "" where it does not."""
    reason = getattr(graph_module, "compile_subgraph_reason", None)
    if reason is None or not getattr(reason, "graph_break", False):
        return ""
    text = str(getattr(reason, "reason", "")).strip()
    if text.startswith("generic_jump"):
        text = "a branch on the value of a tensor"
    line = next(iter(text.splitlines()), "not known")
    frames = getattr(reason, "user_stack", None)
    return (
        f"{line} (line {frames[-1].lineno} of {Path(frames[-1].filename).name})" if frames else line
    )
