"""LookupNode: a lookup in a captured graph, and the reason why it cannot be packed, if there is one."""

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx import Graph, Node

from hotrows.acceleration import nodes
from hotrows.acceleration.bags import Lookup

_MODES = ("sum", "mean", "max")
_EMBEDDING = tuple(inspect.signature(F.embedding).parameters)
_EMBEDDING_BAG = tuple(inspect.signature(F.embedding_bag).parameters)
_ATEN_EMBEDDING = ("weight", "indices", "padding_idx", "scale_grad_by_freq", "sparse")
_ATEN_BAG = (
    *("weight", "indices", "offsets", "scale_grad_by_freq", "mode", "sparse", "per_sample_weights"),
    *("include_last_offset", "padding_idx"),
)


@dataclass(frozen=True)
class LookupNode:
    """A node of a graph that looks rows up.

    results: the nodes that are its vectors. why_alone: why it cannot be packed; "" if it can.
    """

    node: Node
    options: Lookup
    weight: Any
    ids: Any
    offsets: Any = None
    per_sample_weights: Any = None
    results: tuple[Node, ...] = ()
    why_alone: str = ""


def find_lookups(graph: Graph) -> Iterator[LookupNode]:
    """Yields the calls of F.embedding, F.embedding_bag and their forms under other names, in order."""
    for node in graph.nodes:
        if node.op == "call_function" and (read := _READERS.get(_plain(node.target))) is not None:
            yield read(node)


def _plain(target: Any) -> Any:
    return target.overloadpacket if isinstance(target, torch._ops.OpOverload) else target


def _read_embedding(node: Node) -> LookupNode:
    args = _bind(node, _EMBEDDING)
    return _judged(_lookup(node, args, args["input"], None, (node,)))


def _read_aten_embedding(node: Node) -> LookupNode:
    args = _bind(node, _ATEN_EMBEDDING)
    padding = args.pop("padding_idx", -1)  # aten: a negative one means none
    lookup = _lookup(node, args, args["indices"], None, (node,))
    row = padding if isinstance(padding, int) and padding >= 0 else None
    return _judged(replace(lookup, options=replace(lookup.options, padding_idx=row)))


def _read_bag(node: Node) -> LookupNode:
    args = _bind(node, _EMBEDDING_BAG)
    return _judged(_lookup(node, args, args.get("input"), args.get("mode", "mean"), (node,)))


def _read_aten_bag(node: Node) -> LookupNode:
    args = _bind(node, _ATEN_BAG)
    number = args.get("mode", 0)
    mode = _MODES[number] if number in (0, 1, 2) else "unknown"
    vectors = tuple(user for user in node.users if user.args[1:] == (0,) and _is_getitem(user))
    bag = _lookup(node, args, args.get("indices"), mode, vectors)
    if len(vectors) < len(node.users):
        return alone(bag, "the sizes of its bags are read too")
    return _judged(bag)


def _lookup(
    node: Node, args: dict[str, Any], ids: Any, mode: Any, results: tuple[Node, ...]
) -> LookupNode:
    options = Lookup(
        mode=mode,
        padding_idx=_counted_from_zero(args.get("padding_idx"), args["weight"]),
        max_norm=args.get("max_norm"),
        norm_type=args.get("norm_type", 2.0),
        scale_grad_by_freq=bool(args.get("scale_grad_by_freq")),
        sparse=bool(args.get("sparse")),
        include_last_offset=bool(args.get("include_last_offset")),
    )
    offsets, scales = args.get("offsets"), args.get("per_sample_weights")
    return LookupNode(node, options, args["weight"], ids, offsets, scales, results)


def _is_getitem(node: Node) -> bool:
    return node.op == "call_function" and getattr(node.target, "__name__", "") == "getitem"


def _bind(node: Node, names: Sequence[str]) -> dict[str, Any]:
    return {**dict(zip(names, node.args, strict=False)), **node.kwargs}


def _counted_from_zero(padding_idx: Any, weight: Any) -> int | None:
    """Returns a padding_idx as a row; -1 where the table has no such row."""
    if padding_idx is None or not is_tensor(weight):
        return None
    rows = nodes.result(weight).shape[0]
    if not isinstance(padding_idx, int) or not -rows <= padding_idx < rows:
        return -1
    return padding_idx % rows


_READERS: dict[Any, Callable[[Node], LookupNode]] = {
    F.embedding: _read_embedding,
    F.embedding_bag: _read_bag,
    torch.embedding: _read_aten_embedding,
    torch.embedding_bag: _read_aten_bag,
    torch.ops.aten.embedding: _read_aten_embedding,
    torch.ops.aten.embedding_bag: _read_aten_bag,
    torch.ops.aten._embedding_bag: _read_aten_bag,
}


def alone(lookup: LookupNode, why: str) -> LookupNode:
    return replace(lookup, why_alone=lookup.why_alone or why)


def _judged(lookup: LookupNode) -> LookupNode:
    """Adds the reason why a lookup cannot be packed, as far as its call shows one."""
    for is_so, why in _reasons(lookup):
        if is_so:
            return alone(lookup, why)
    return lookup


def _reasons(lookup: LookupNode) -> Iterator[tuple[bool, str]]:
    """Yields (is it so, reason) in an order in which each test may rely on those before it."""
    options, weight, ids = lookup.options, lookup.weight, lookup.ids
    optional = (lookup.offsets, lookup.per_sample_weights)
    tensors = [x for x in (weight, ids, *optional) if x is not None]
    yield not all(map(is_tensor, tensors)), "an argument is no tensor of the graph"
    yield weight.op not in ("placeholder", "get_attr"), "its table is computed in the model"
    yield nodes.result(weight).dim() != 2, "its table is no matrix"
    yield nodes.result(ids).dtype not in (torch.int64, torch.int32), "its ids are no integers"
    yield options.max_norm is not None, "max_norm changes rows while reading"
    yield options.scale_grad_by_freq, "scale_grad_by_freq"
    yield options.mode == "max", "mode max"
    yield options.mode not in (None, "sum", "mean"), f"its mode is {options.mode}"
    yield options.padding_idx == -1, "its padding_idx is outside the table"
    if options.mode is not None:
        yield from _reasons_of_bag(lookup)


def _reasons_of_bag(lookup: LookupNode) -> Iterator[tuple[bool, str]]:
    dims, scales = nodes.result(lookup.ids).dim(), lookup.per_sample_weights
    yield dims not in (1, 2), f"its ids have {dims} dimensions"
    yield (dims == 1) != (lookup.offsets is not None), "ids and offsets do not go together"
    yield scales is not None and lookup.options.mode != "sum", "per_sample_weights without mode sum"
    trained = scales is not None and nodes.result(scales).requires_grad
    yield trained, "its per_sample_weights are trained"


def is_tensor(value: Any) -> bool:
    return isinstance(value, Node) and isinstance(nodes.result(value), Tensor)
