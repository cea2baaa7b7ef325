"""Views of equal meaning: a view of each member, as one view of their stack.

A view launches nothing, so it is no gain by itself to make many of them one. It is worth knowing how,
because a chain of layers has views in it: the stack of `x_i.transpose(0, 1)` is
`stack(x_i).transpose(1, 2)`, and where stack(x_i) is there already, nothing is copied.

Also known is when views are the slices of one tensor, next to each other: then their stack is a view.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.fx import Graph, Node

from hotrows.fx.nodes import is_idle_dropout, result, storage_of

KEPT = "hotrows_kept"
"""Says in the meta of a view that it is read itself, never what it is a view of: others hold it and may
ask for its gradient, or it copied what changes later."""

_IDENTITIES = ("contiguous", "float", "to", "type_as", "dropout")
_PARTS = ("unbind", "chunk", "split")


@dataclass(frozen=True)
class TensorView:
    """A view of `base`: a name from `_STACKED` and the arguments of the call."""

    name: str
    base: Node
    args: tuple[Any, ...]

    @property
    def key(self) -> str:
        """Equal for views of equal meaning, of whatever tensors of one shape."""
        args = [_plain(element) for element in self.args]
        return f"{self.name} {args} {tuple(result(self.base).shape)}"


@dataclass(frozen=True)
class Slice:
    """One of the equal pieces of `base` along `dim`: number `index`, `length` wide; 0: a selected one."""

    base: Node
    dim: int
    length: int
    index: int


def name_of(node: Node) -> str:
    """The name of what a call calls, a function or a method."""
    if node.op == "call_method":
        return str(node.target)
    return getattr(node.target, "__name__", "") if node.op == "call_function" else ""


def view_of(node: Node) -> TensorView | None:
    """`node` as a view, where the view of a stack that stands for it is known."""
    name = name_of(node)
    if not node.args or not isinstance(node.args[0], Node) or not isinstance(result(node), Tensor):
        return None
    if node.meta.get(KEPT):
        return None
    base, args = node.args[0], node.args[1:]
    if name == "getitem" and isinstance(result(base), tuple | list):
        return _part_as_view(base, args[0])
    if not isinstance(result(base), Tensor):
        return None
    if name in _IDENTITIES:
        same = storage_of(node) is not None and storage_of(node) == storage_of(base)
        return TensorView("same", base, ()) if same or is_idle_dropout(node) else None
    if name == "getattr":
        name, args = str(args[0]), ()
    if name not in _STACKED:
        return None
    args = _flat(args) if name in _TAKES_SIZES else (*args, *node.kwargs.values())
    view = TensorView(name, base, args)
    return view if _is_understood(view, node) else None


def only_looks(node: Node) -> bool:
    """Whether a call computes nothing: a view, a size, a tensor as it was."""
    name = name_of(node)
    if name == "contiguous":  # a copy only where dimensions were moved
        return name_of(node.all_input_nodes[0]) != "movedim"
    return name in _STACKED or name in _LOOKS or view_of(node) is not None


def _part_as_view(parts: Node, index: Any) -> TensorView | None:
    name, base = name_of(parts), parts.args[0] if parts.args else None
    if name not in _PARTS or not isinstance(base, Node) or not isinstance(result(base), Tensor):
        return None
    place = 1 if name == "unbind" else 2
    dim = parts.args[place] if place < len(parts.args) else parts.kwargs.get("dim", 0)
    assert isinstance(dim, int)
    count = () if name == "unbind" else parts.args[1:2]
    if isinstance(index, int) and (name == "unbind" or count):
        return TensorView("part", base, (name, *count, dim, index))
    return None


def _is_understood(view: TensorView, node: Node) -> bool:
    if view.name == "getitem":
        return all(isinstance(element, int | slice | None) for element in _index(view.args[0]))
    if view.name in ("T", "t"):
        return result(view.base).dim() == 2
    if view.name in ("squeeze", "unsqueeze"):
        return len(view.args) == 1 and isinstance(view.args[0], int)
    return not node.kwargs


def _flat(args: Sequence[Any]) -> tuple[Any, ...]:
    """x.view(2, 3) and x.view((2, 3)) alike."""
    return tuple(args[0]) if len(args) == 1 and isinstance(args[0], tuple | list) else tuple(args)


def _index(index: Any) -> tuple[Any, ...]:
    return index if isinstance(index, tuple) else (index,)


def _plain(value: Any) -> str:
    if not isinstance(value, Node):
        return repr(value)
    return value.name if result(value) is None else str(result(value))


# The view of a stack


def view_stack(graph: Graph, view: TensorView, stack: Node, num_members: int) -> Node:
    """The stack of a view of each member, from the stack of the members."""
    if view.name == "same":
        return stack
    if view.name == "part":
        name, *count, dim, index = view.args
        parts = graph.call_method(name, (stack, *count, shifted(dim)))
        return graph.call_function(operator.getitem, (parts, index))
    if view.name == "getitem":
        index = (slice(None), *_index(view.args[0]))
        return graph.call_function(operator.getitem, (stack, index))
    dims = result(view.base).dim()
    if view.name == "expand":
        stack = aligned(graph, stack, dims, len(view.args))
    name, args = _STACKED[view.name](view.args, dims, num_members)
    return graph.call_method(name, (stack, *args))


def shifted(dim: int) -> int:
    """A member's dimension, in the stack."""
    return dim + 1 if dim >= 0 else dim


def aligned(graph: Graph, stack: Node, dims: int, to: int) -> Node:
    """A stack of tensors of `dims` dimensions, so that it broadcasts as one of `to` dimensions does."""
    for _ in range(to - dims):
        stack = graph.call_method("unsqueeze", (stack, 1))
    return stack


def _transposed(args: tuple, dims: int, num: int) -> tuple[str, tuple]:
    return "transpose", tuple(map(shifted, args))


def _permuted(args: tuple, dims: int, num: int) -> tuple[str, tuple]:
    return "permute", (0, *(dim % dims + 1 for dim in args))


def _reshaped(args: tuple, dims: int, num: int) -> tuple[str, tuple]:
    return "reshape", (num, *args)


def _flattened(args: tuple, dims: int, num: int) -> tuple[str, tuple]:
    return "flatten", tuple(map(shifted, (*args, *(0, -1)[len(args) :])))


_STACKED: dict[str, Any] = {
    "getitem": None,
    "expand": lambda args, dims, num: ("expand", (num, *args)),
    "view": _reshaped,
    "reshape": _reshaped,
    "permute": _permuted,
    "transpose": _transposed,
    "t": lambda args, dims, num: ("transpose", (1, 2)),
    "T": lambda args, dims, num: ("transpose", (1, 2)),
    "mT": lambda args, dims, num: ("transpose", (-2, -1)),
    "flatten": _flattened,
    "unsqueeze": lambda args, dims, num: ("unsqueeze", (shifted(args[0]),)),
    "squeeze": lambda args, dims, num: ("squeeze", (shifted(args[0]),)),
    "select": lambda args, dims, num: ("select", (shifted(args[0]), *args[1:])),
    "narrow": lambda args, dims, num: ("narrow", (shifted(args[0]), *args[1:])),
    "unflatten": lambda args, dims, num: ("unflatten", (shifted(args[0]), *args[1:])),
}
_TAKES_SIZES = ("view", "reshape", "expand", "permute")
_LOOKS = (*_PARTS, "getattr", "size", "movedim")


# Slices of one tensor


def slice_of(node: Node) -> Slice | None:
    """`node` as one of equal pieces of another tensor, where sizes are fixed."""
    view = view_of(node)
    if view is None:
        return None
    if view.name == "part":
        return _part_as_slice(node, view)
    if view.name == "getitem":
        return _getitem_as_slice(view)
    if view.name == "select" and all(isinstance(element, int) for element in view.args):
        dim, index = view.args
        return Slice(view.base, dim % result(view.base).dim(), 0, index) if index >= 0 else None
    return None


def _part_as_slice(node: Node, view: TensorView) -> Slice | None:
    name, *_, dim, index = view.args
    dim, parts = dim % result(view.base).dim(), node.args[0]
    assert isinstance(parts, Node)
    if name == "unbind":
        return Slice(view.base, dim, 0, index) if index >= 0 else None
    lengths = {part.shape[dim] for part in result(parts) if isinstance(part.shape[dim], int)}
    if len(lengths) != 1 or index < 0:
        return None
    return Slice(view.base, dim, lengths.pop(), index)


def _getitem_as_slice(view: TensorView) -> Slice | None:
    index = _index(view.args[0])
    chosen = [dim for dim, element in enumerate(index) if element != slice(None)]
    if len(chosen) != 1 or index[chosen[0]] is None:
        return None
    dim, one = chosen[0], index[chosen[0]]
    if isinstance(one, int):
        return Slice(view.base, dim, 0, one) if one >= 0 else None
    size = result(view.base).shape[dim]
    start = 0 if one.start is None else one.start
    stop = size if one.stop is None else one.stop
    if not (isinstance(start, int) and isinstance(stop, int)) or one.step not in (None, 1):
        return None
    length = stop - start
    if start < 0 or length < 1 or start % length or not isinstance(size, int) or stop > size:
        return None
    return Slice(view.base, dim, length, start // length)


def stack_slices(graph: Graph, first: Slice, num: int) -> Node:
    """The stack of `num` neighbouring slices, of which `first` is the first."""
    length = max(first.length, 1)
    stack = graph.call_method("narrow", (first.base, first.dim, first.index * length, num * length))
    if first.length:
        stack = graph.call_method("unflatten", (stack, first.dim, (num, length)))
    return graph.call_method("movedim", (stack, first.dim, 0))
