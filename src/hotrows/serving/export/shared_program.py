"""A program of one user and many candidates, which computes what all samples share once.

    inputs of shared features    [1, ..]    a user, his history
    all others                   [B, ..]    candidates

The graph of a model's ordinary program is run once more, node by node, while `torch.export` traces it.
What follows from shared inputs alone has one sample and stays so. Where it meets values of B samples it
is repeated; and a linear layer over both, side by side, is a sum of two:

    linear([user, item], [U I])  =  linear(user, U) + linear(item, I)
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree

from hotrows.serving.bundle import ProgramInput
from hotrows.serving.export.program import PlainModel

aten = torch.ops.aten
_LINEAR, _CAT, _SIZE = aten.linear.default, aten.cat.default, aten.sym_size.int
_FLATTENING = (aten.flatten.using_ints, aten.reshape.default, aten.view.default)
_CREATING = (aten.zeros.default, aten.ones.default, aten.full.default)
_PRODUCTS = (aten.matmul.default, aten.bmm.default)
_ELEMENTWISE = (aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor)


@dataclass(frozen=True)
class _Once:
    """A value of one sample, which stands for B; place: of the dimension that would be B times as long,
    None where there is none."""

    tensor: Tensor
    place: int | None


@dataclass(frozen=True)
class _Each:
    """A value of B samples."""

    tensor: Tensor


@dataclass(frozen=True)
class _Both:
    """Both side by side along dimension 1: column j is column `columns[j]` of [once, by_sample]."""

    once: Tensor
    by_sample: Tensor
    columns: tuple[int, ...]

    def split(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        """The columns of a weight for `once`, and those for `by_sample`."""
        places = sorted(range(len(self.columns)), key=self.columns.__getitem__)
        first = self.once.shape[1]
        return _selected(weight, places[:first]), _selected(weight, places[first:])


@dataclass(frozen=True)
class _Size:
    """A size, of B samples and of one; None where nothing of one sample has it."""

    by_sample: Any
    once: Any


class SharedModel(nn.Module):
    """A model whose forward takes the tensors of `inputs`, those of shared features of one sample.

    program: of `plain`; shared: names of features; dense: of all dense features, in order.
    """

    def __init__(
        self,
        plain: PlainModel,
        program: torch.export.ExportedProgram,
        shared: Collection[str],
        dense: Sequence[str],
    ) -> None:
        super().__init__()
        self.model, self._plain = plain.model, (plain,)
        self._module = (program.module(),)  # not a part: its parameters are those of the model
        # The layers that ran over the elements of shared lists; a set, as an export resets attributes.
        self.once: set[str] = set()
        self._pieces = [_pieces(entry, shared, dense) for entry in plain.inputs]
        self.inputs = tuple(piece for pieces in self._pieces for piece, _ in pieces)

    def forward(self, *tensors: Tensor) -> Tensor:
        remaining = iter(tensors)
        values = [_joined([(next(remaining), *piece) for piece in pieces]) for pieces in self._pieces]
        sizes = [t.shape[0] for t, entry in zip(tensors, self.inputs, strict=True) if not entry.shared]
        return _Run(self, sizes[0]).result(values)

    def attribute(self, name: str) -> Any:
        """A parameter of the model, or a constant or a subgraph of the program."""
        owner = self if name.startswith("model.") else self._module[0]
        return operator.attrgetter(name)(owner)

    @property
    def graph(self) -> fx.Graph:
        return self._module[0].graph

    def examples(self) -> tuple[Tensor, ...]:
        """Tensors to trace with."""
        by_name = dict(
            zip((e.name for e in self._plain[0].inputs), self._plain[0].examples(), strict=True)
        )
        tensors = []
        for entry in self.inputs:
            example = by_name[entry.name.removesuffix(_OF_USER)]
            width = len(entry.reads) if entry.kind in ("pooled", "dense") else example.shape[-1]
            example = example[:1] if entry.shared else example
            if entry.kind == "lengths":
                example = torch.full_like(example, 2) if entry.shared else example
            tensors.append(example if entry.kind in ("sequence", "lengths") else example[:, :width])
        return tuple(tensors)


_OF_USER = ".shared"


def shared_program(shared: SharedModel) -> torch.export.ExportedProgram:
    """The program of such a model, for any number of samples, and of places in sequences from 2 on."""
    samples, places = torch.export.Dim("samples", min=1), torch.export.Dim("places", min=2)
    sizes: list[dict[int, Any]] = []
    for entry in shared.inputs:
        sizes.append({} if entry.shared else {0: samples})
        if entry.kind == "sequence":
            sizes[-1][1] = places
    with torch.no_grad():
        return torch.export.export(
            shared, shared.examples(), dynamic_shapes=(tuple(sizes),), strict=False,
            prefer_deferred_runtime_asserts_over_guards=True,
        )  # fmt: skip


class _Run:
    """Runs the nodes of the program of a `SharedModel` on its values; size: B."""

    def __init__(self, shared: SharedModel, size: Any) -> None:
        self._shared, self._size = shared, size
        self._values: dict[fx.Node, Any] = {}

    def result(self, inputs: Sequence[Any]) -> Tensor:
        remaining = iter(inputs)
        for node in self._shared.graph.nodes:
            if node.op == "placeholder":
                self._symbol = self._symbol_of(node)
                self._values[node] = next(remaining)
            elif node.op == "get_attr":
                self._values[node] = self._shared.attribute(node.target)
            elif node.op == "call_function":
                self._values[node] = self._computed(node)
            elif node.op == "output":
                (value,) = pytree.tree_leaves(self._arguments(node)[0])
                return self._each(value)
        raise AssertionError("a graph ends with its output")

    def _symbol_of(self, node: fx.Node) -> Any:
        """The symbol of the number of samples, which the first dimension of all inputs is."""
        return node.meta["val"].shape[0].node.expr

    def _arguments(self, node: fx.Node) -> tuple[Any, Any]:
        return fx.node.map_arg((node.args, node.kwargs), lambda n: self._values[n])

    def _computed(self, node: fx.Node) -> Any:
        name = str(node.target)
        if "assert" in name or "sym_constrain" in name:
            return None
        arguments, named = self._arguments(node)
        leaves = pytree.tree_leaves((arguments, named), is_leaf=_is_value)
        if node.target is _SIZE:
            return self._sizes(node, *arguments)
        if node.target is operator.getitem:
            return operator.getitem(*arguments)
        if not any(isinstance(leaf, _Once | _Each | _Both | Tensor) for leaf in leaves):
            return self._of_sizes(node, arguments, named, leaves)
        special = self._side_by_side(node, arguments, leaves)
        if special is not None:
            return special
        if any(isinstance(leaf, _Each | _Both) for leaf in leaves) or self._joins_samples(
            node, arguments
        ):
            result = _call(node, self._all_each(arguments), self._all_each(named))
            return pytree.tree_map_only(Tensor, _Each, result)
        result = _call(node, _all_once(arguments), _all_once(named))
        if not any(isinstance(leaf, _Once) for leaf in leaves):
            return result  # of parameters alone
        places = pytree.tree_map(self._place, node.meta["val"])
        if node.target in (_LINEAR, *_PRODUCTS) and result.shape[places] != 1:
            self._shared.once.add(node.name)
        return pytree.tree_map(_Once, result, places, is_leaf=lambda x: x is None)

    def _sizes(self, node: fx.Node, value: Any, dim: int) -> Any:
        expression = node.meta["val"]
        if self._has_samples(expression) and expression.node.expr == self._symbol:
            return _Size(self._size, 1)
        if isinstance(value, _Both):
            return len(value.columns) if dim == 1 else value.once.shape[dim]
        size = value.tensor.shape[dim] if isinstance(value, _Once | _Each) else value.shape[dim]
        if not self._has_samples(expression):
            return size
        if isinstance(value, _Each):
            return _Size(size, None)  # lists of samples of their own, end to end
        return _Size(size * self._size, size)

    def _of_sizes(self, node: fx.Node, arguments: Any, named: Any, leaves: Sequence[Any]) -> Any:
        """A value that follows from sizes alone: another size, or a tensor of this shape."""
        if not any(isinstance(leaf, _Size) for leaf in leaves):
            return _call(node, arguments, named)
        if isinstance(node.meta.get("val"), Tensor):
            if node.target in _CREATING:  # of equal values
                tensor = _call(node, _all_once(arguments), _all_once(named))
                return _Once(tensor, self._place(node.meta["val"]))
            return _Each(_call(node, self._all_each(arguments), self._all_each(named)))
        by_sample = _call(node, self._all_each(arguments), self._all_each(named))
        if any(isinstance(leaf, _Size) and leaf.once is None for leaf in leaves):
            return _Size(by_sample, None)
        return _Size(by_sample, _call(node, _all_once(arguments), _all_once(named)))

    def _side_by_side(self, node: fx.Node, arguments: Any, leaves: Sequence[Any]) -> Any:
        """Keeps values of one sample and of B apart: None where they are to be repeated."""
        kinds = {type(leaf) for leaf in leaves if _is_value(leaf)}
        are_apart = _Both in kinds or {_Once, _Each} <= kinds
        if node.target is _CAT and are_apart and _dim_of_cat(node, arguments) == 1:
            return _cat([_Each(p) if isinstance(p, Tensor) else p for p in arguments[0]])
        if node.target in _PRODUCTS and kinds == {_Once, _Each}:
            return _product(*arguments)
        if node.target in _ELEMENTWISE and kinds == {_Once, _Each} and not node.kwargs:
            return self._broadcast(node, arguments)
        if not (arguments and isinstance(arguments[0], _Both)):
            return None
        both = arguments[0]
        if node.target is _LINEAR and both.once.dim() == 2:
            of_once, of_each = both.split(arguments[1])
            bias = arguments[2] if len(arguments) > 2 else None
            once = nn.functional.linear(both.once, of_once, bias)
            return _Each(nn.functional.linear(both.by_sample, of_each) + once)
        shape: Sequence[Any] = getattr(node.meta["val"], "shape", ())
        is_flat = len(shape) == 2 and self._has_samples(shape[0]) and shape[0].node.expr == self._symbol
        if node.target in _FLATTENING and both.once.dim() == 3 and is_flat:
            dim = both.once.shape[2]
            columns = tuple(column * dim + i for column in both.columns for i in range(dim))
            return _Both(both.once.flatten(1), both.by_sample.flatten(1), columns)
        return None

    def _joins_samples(self, node: fx.Node, arguments: Sequence[Any]) -> bool:
        """True if values are joined along the dimension of samples: all B of one, then all of another."""
        return node.target is _CAT and self._place(node.meta["val"]) == _dim_of_cat(node, arguments)

    def _broadcast(self, node: fx.Node, arguments: Sequence[Any]) -> _Each | None:
        """A sum or product of values of equal rank, one of them of one sample."""
        left, right, *others = arguments
        once = left if isinstance(left, _Once) else right
        if others or once.place is None or once.tensor.shape[once.place] != 1:
            return None
        if left.tensor.dim() != right.tensor.dim():
            return None
        return _Each(_call(node, (left.tensor, right.tensor), {}))

    # ---- values of B samples

    def _has_samples(self, size: Any) -> bool:
        return isinstance(size, torch.SymInt) and self._symbol in size.node.expr.free_symbols

    def _place(self, value: Any) -> int | None:
        """The dimension of a value that the number of samples is in."""
        if not isinstance(value, Tensor):
            return None
        return next((i for i, size in enumerate(value.shape) if self._has_samples(size)), None)

    def _each(self, value: Any) -> Any:
        if isinstance(value, _Once):
            if value.place is None:
                return value.tensor
            apart = value.tensor.unsqueeze(value.place)
            sizes = [-1] * apart.dim()
            sizes[value.place] = self._size
            return apart.expand(sizes).flatten(value.place, value.place + 1)
        if isinstance(value, _Both):
            once = value.once.expand(self._size, *value.once.shape[1:])
            return _selected(torch.cat([once, value.by_sample], 1), value.columns)
        return value.by_sample if isinstance(value, _Size) else getattr(value, "tensor", value)

    def _all_each(self, tree: Any) -> Any:
        return pytree.tree_map(self._each, tree, is_leaf=_is_value)


def _product(left: Any, right: Any) -> _Each | None:
    """[.., B, 1, D] of samples times the one [.., 1, D, T]: a product of all B at once."""
    if not isinstance(left, _Each) or right.place != right.tensor.dim() - 3:
        return None
    if left.tensor.dim() != right.tensor.dim():
        return None
    if left.tensor.shape[-2] != 1 or right.tensor.shape[-3] != 1:
        return None
    return _Each((left.tensor.squeeze(-2) @ right.tensor.squeeze(-3)).unsqueeze(-2))


def _dim_of_cat(node: fx.Node, arguments: Sequence[Any]) -> int:
    return (arguments[1] if len(arguments) > 1 else 0) % node.meta["val"].dim()


def _is_value(leaf: Any) -> bool:
    return isinstance(leaf, _Once | _Each | _Both | _Size)


def _all_once(tree: Any) -> Any:
    def once(value: Any) -> Any:
        return value.once if isinstance(value, _Size) else getattr(value, "tensor", value)

    return pytree.tree_map(once, tree, is_leaf=_is_value)


def _selected(values: Tensor, columns: Sequence[int]) -> Tensor:
    """The columns of values, dimension 1, in this order."""
    if list(columns) == list(range(values.shape[1])):
        return values
    return values.index_select(1, torch.tensor(columns))


def _cat(pieces: Sequence[Any]) -> _Both:
    """Values beside each other, along dimension 1."""
    once: list[Tensor] = []
    by_sample: list[Tensor] = []
    columns: list[int] = []
    num_once = sum(_width(piece, _Once) for piece in pieces)
    first_once, first_each = 0, num_once
    for piece in pieces:
        if isinstance(piece, _Both):
            width = piece.once.shape[1]
            firsts = (first_each - width, first_once)
            columns += [column + firsts[column < width] for column in piece.columns]
            once.append(piece.once)
            by_sample.append(piece.by_sample)
        else:
            (once if isinstance(piece, _Once) else by_sample).append(piece.tensor)
            first = first_once if isinstance(piece, _Once) else first_each
            columns += range(first, first + piece.tensor.shape[1])
        first_once, first_each = first_once + _width(piece, _Once), first_each + _width(piece, _Each)
    return _Both(torch.cat(once, 1), torch.cat(by_sample, 1), tuple(columns))


def _call(node: fx.Node, arguments: Any, named: Any) -> Any:
    target: Any = node.target
    return target(*arguments, **named)


def _width(piece: Any, kind: type[_Once | _Each]) -> int:
    if isinstance(piece, _Both):
        return (piece.once if kind is _Once else piece.by_sample).shape[1]
    return piece.tensor.shape[1] if isinstance(piece, kind) else 0


def _pieces(
    entry: ProgramInput, shared: Collection[str], dense: Sequence[str]
) -> list[tuple[ProgramInput, list[int]]]:
    """An input in one or two: that of shared features and that of all others, with their columns."""
    reads = tuple((name, "") for name in dense) if entry.kind == "dense" else entry.reads
    pieces = []
    for is_shared in (True, False):
        places = [i for i, (feature, _) in enumerate(reads) if (feature in shared) == is_shared]
        if places:
            name = entry.name + _OF_USER if is_shared else entry.name
            of_places = tuple(reads[i] for i in places)
            pieces.append(
                (dataclasses.replace(entry, name=name, reads=of_places, shared=is_shared), places)
            )
    return pieces


def _joined(pieces: Sequence[tuple[Tensor, ProgramInput, list[int]]]) -> Any:
    """The value of an input of the ordinary program, of its pieces."""
    values = [_Once(t, 0) if entry.shared else _Each(t) for t, entry, _ in pieces]
    if len(values) == 1:
        return values[0]
    both = _cat(values)
    places = [place for _, _, of_piece in pieces for place in of_piece]
    by_place = dict(zip(places, both.columns, strict=True))
    return dataclasses.replace(both, columns=tuple(by_place[place] for place in sorted(places)))
