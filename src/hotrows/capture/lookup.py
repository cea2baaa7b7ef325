"""look_up: several calls of `F.embedding` and `F.embedding_bag` at once.

    ids of all lookups          [N]      end to end, as rows of the tables laid end to end
    ops.unique                           distinct rows, and the runs of equal ones
    deferred.catch_up                    the rows go through the steps that they missed
    deferred.look_up            [M, D]   each distinct row is collected once; bags are pooled
    -> one tensor per lookup             over one piece of memory

Backward makes one gradient [M, D] for all, and for each table a `RowGradient` that is its share.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional

from hotrows import ops
from hotrows.capture.gradient import PackGradient, Part, RowGradient, TablePlan, of_rows
from hotrows.capture.history import WIDTH
from hotrows.capture.parameter import NO_TORCH_FUNCTION, TableParameter, handles, read_whole
from hotrows.capture.rules import BY_OPTIMIZER
from hotrows.capture.table import Table, counted_squares
from hotrows.ops import deferred
from hotrows.ops.deferred import Target

if TYPE_CHECKING:
    from hotrows.capture.kept import Keeper, Place

_MODES = ("sum", "mean", "max")
_ID_TYPES = (torch.int64, torch.int32)
_KERNEL_TYPES = (torch.float32, torch.float64)
_NO_LAST = torch.empty(0, dtype=torch.int32)
_NO_STEPS = torch.empty(0, WIDTH, dtype=torch.float64)


@dataclass(frozen=True)
class Lookup:
    """What a call of `F.embedding` or `F.embedding_bag` asks for, without its tensors.

    mode: None: the vector of each id, as `F.embedding`; `sum`, `mean` or `max`: of each bag of ids.
    padding_idx: not negative. The others: as in PyTorch.
    """

    mode: str | None = None
    padding_idx: int | None = None
    max_norm: float | None = None
    norm_type: float = 2.0
    scale_grad_by_freq: bool = False
    sparse: bool = False
    include_last_offset: bool = False

    @property
    def is_packable(self) -> bool:
        return self.mode != "max" and not self.scale_grad_by_freq and self.max_norm is None


class Planned(Exception):
    """Raised by `look_up` where only the ids are wanted: what it was asked."""

    def __init__(
        self, lookups: Any, weights: Any, ids: Any, offsets: Any, per_sample_weights: Any
    ) -> None:
        super().__init__("the ids are known")
        self.lookups, self.weights, self.ids, self.offsets = lookups, weights, ids, offsets
        self.per_sample_weights = per_sample_weights

    def packs(self) -> list[list[Asked]]:
        """The lookups that `look_up` would make together."""
        given = self.lookups, self.weights, self.ids, self.offsets, self.per_sample_weights
        return [[of for _, of in members] for members in _packs(*given).values()]


class Planning(threading.local):
    """Whether models of this thread are run for the ids of their lookups alone."""

    is_on = False


PLANNING = Planning()


def look_up(
    lookups: Sequence[Lookup],
    weights: Sequence[Tensor],
    ids: Sequence[Tensor],
    offsets: Sequence[Tensor | None],
    per_sample_weights: Sequence[Tensor | None],
) -> tuple[Tensor, ...]:
    """The results of several lookups: [*ids.shape, D], or [bags, D] each.

    weights: tables or plain weights, [R, D] each; one may stand several times. ids: int64 or int32;
    offsets, per_sample_weights: of bags, as `F.embedding_bag` takes them.
    """
    if PLANNING.is_on:
        raise Planned(lookups, weights, ids, offsets, per_sample_weights)
    results: list[Tensor | None] = [None] * len(lookups)
    packs = _packs(lookups, weights, ids, offsets, per_sample_weights)
    for (*_, kind, keeper), members in packs.items():
        found = _look_up_pack([of for _, of in members], kind, keeper)
        for (i, _), vectors in zip(members, found, strict=True):
            results[i] = vectors
    for i, result in enumerate(results):
        if result is None:
            results[i] = _alone(lookups[i], weights[i], ids[i], offsets[i], per_sample_weights[i])
    return tuple(results)  # type: ignore[arg-type]


def _packs(
    lookups: Sequence[Lookup],
    weights: Sequence[Tensor],
    ids: Sequence[Tensor],
    offsets: Sequence[Tensor | None],
    per_sample_weights: Sequence[Tensor | None],
) -> dict[tuple, list[tuple[int, Asked]]]:
    """Which lookups are made together; by (dtype, width, kind of rule, keeper)."""
    packs: dict[tuple, list[tuple[int, Asked]]] = {}
    with NO_TORCH_FUNCTION():
        each = zip(lookups, weights, ids, offsets, per_sample_weights, strict=True)
        for i, (lookup, weight, own_ids, own_offsets, samples) in enumerate(each):
            if own_ids.dtype not in _ID_TYPES or _goes_alone(lookup, weight, samples):
                continue
            table = weight.table if isinstance(weight, TableParameter) else None
            kind, keeper = (table.rule.kind, table.keeper) if table else (None, None)
            asked = Asked(lookup, weight, own_ids, own_offsets, samples)
            packs.setdefault((weight.dtype, weight.shape[1], kind, keeper), []).append((i, asked))
    return packs


@dataclass(frozen=True)
class Asked:
    """One lookup with its tensors."""

    lookup: Lookup
    weight: Tensor
    ids: Tensor
    offsets: Tensor | None
    samples: Tensor | None


def _goes_alone(lookup: Lookup, weight: Tensor, samples: Tensor | None) -> bool:
    return (
        not lookup.is_packable
        or weight.dtype not in _KERNEL_TYPES
        or weight.dim() != 2
        or weight.device.type != "cpu"
        or not weight.is_leaf
        or (weight.stride(-1) != 1 and not _is_kept(weight))
        or not weight.numel()
        or (samples is not None and samples.requires_grad)
    )


def _is_kept(weight: Tensor) -> bool:
    return isinstance(weight, TableParameter) and weight.table.keeper is not None


# ---- one pack: tables of one width, dtype and rule, and what keeps them


def _look_up_pack(
    asked: list[Asked], kind: str | None, keeper: Keeper | None
) -> tuple[Tensor, ...]:
    weights = _distinct(asked)
    with NO_TORCH_FUNCTION():
        tables = [w.table if isinstance(w, TableParameter) else None for w in weights]
    learns = torch.is_grad_enabled() and any(w.requires_grad for w in weights)
    plan = _plan(asked, weights, tables, keeper, learns)
    if kind == BY_OPTIMIZER:
        for t, table in enumerate(tables):
            assert table is not None
            table.catch_up_rows(plan.rows[plan.ends[t] : plan.ends[t + 1]])
    elif kind is not None and any(table.is_behind for table in tables if table):
        is_copy = plan.place is not None and plan.place.is_aside
        with counted_squares([] if is_copy else tables) as squares:
            deferred.catch_up(kind, plan.targets, plan.slots, plan.bounds, squares)
        if plan.place is not None:
            plan.place.changed()
    sizes = [_num_bags(of) for of in asked]
    shapes = [_shape(of, size) for of, size in zip(asked, sizes, strict=True)]
    place = {id(weight): t for t, weight in enumerate(weights)}
    reads = [(place[id(of.weight)], of.ids.numel()) for of in asked]
    call = _Call(plan, tables, reads, sizes, shapes, any(of.lookup.sparse for of in asked))
    if learns:
        return _LookUp.apply(call, *weights)
    return call.forward()


@dataclass(frozen=True)
class _Call:
    """One lookup of a pack: its plan, its tables, and how its vectors are dealt out.

    reads: of each call of the model, its table's place and its number of ids.
    """

    plan: TablePlan
    tables: list[Table | None]
    reads: list[tuple[int, int]]
    sizes: list[int]
    shapes: list[tuple[int, ...]]
    is_sparse: bool

    def forward(self) -> tuple[Tensor, ...]:
        plan = self.plan
        vectors = deferred.look_up(
            plan.targets, plan.slots, plan.bounds, plan.inverse, plan.bag_starts, plan.weights
        )
        storage, dim, begin, results = vectors.untyped_storage(), vectors.shape[1], 0, []
        for size, shape in zip(self.sizes, self.shapes, strict=True):
            # No views: autograd would forbid changing one of several in place.
            out = torch.empty(0, dtype=vectors.dtype)
            out.set_(storage, begin * dim, (*shape, dim))  # type: ignore[call-overload]
            results.append(out)
            begin += size
        return tuple(results)

    def learned(self, grads: Sequence[Tensor | None]) -> Iterator[Tensor | None]:
        """Of each table: None, where none of its vectors has a gradient; else [U] bool, rows that do."""
        num_rows = self.plan.rows.numel()
        learned = torch.zeros(num_rows, dtype=torch.bool)
        begin, have = 0, set()
        for grad, (t, num_ids) in zip(grads, self.reads, strict=True):
            if grad is not None:
                have.add(t)
                learned[self.plan.inverse[begin : begin + num_ids].long()] = True
            begin += num_ids
        for t in range(len(self.tables)):
            yield learned[self.plan.ends[t] : self.plan.ends[t + 1]] if t in have else None


class _LookUp(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, call: _Call, *weights: Tensor) -> tuple[Tensor, ...]:
        ctx.call, ctx.weights = call, weights
        ctx.set_materialize_grads(False)
        return call.forward()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
        call: _Call = ctx.call
        plan, like = call.plan, call.plan.targets[0].weights
        dim = like.shape[1]
        pieces = [
            like.new_zeros(size, dim) if grad is None else grad.reshape(size, dim)
            for grad, size in zip(grads, call.sizes, strict=True)
        ]
        pack = PackGradient(plan, torch.cat(pieces) if len(pieces) > 1 else pieces[0].contiguous())
        parts: list[Part | None] = [Part(pack, t) for t in range(len(call.tables))]
        if any(grad is None for grad in grads):
            parts = [
                _learned(Part(pack, t), table, learned)
                for t, (table, learned) in enumerate(
                    zip(call.tables, call.learned(grads), strict=True)
                )
            ]
        found: list[Tensor | None] = [None]
        for t, (part, table) in enumerate(zip(parts, call.tables, strict=True)):
            if part is None or not ctx.needs_input_grad[1 + t]:
                found.append(None)
            elif table is not None:
                found.append(RowGradient(table, (part,)))
            else:
                found.append(_plain_gradient(part, plan.targets[t].weights, call.is_sparse))
        return tuple(found)


def _learned(part: Part, table: Table | None, learned: Tensor | None) -> Part | None:
    """The part without rows whose vectors all have no gradient, where an optimizer can tell."""
    if learned is None:
        return None
    if table is None or not table.rule.lazy or bool(learned.all()):
        return part
    return of_rows(table, part.rows[learned], part.sums[learned]).parts[0]


def _plain_gradient(part: Part, values: Tensor, sparse: bool) -> Tensor:
    """The gradient of a weight that is no table of ours, as PyTorch makes it."""
    if sparse:
        return torch.sparse_coo_tensor(
            part.rows[None], part.sums, tuple(values.shape), is_coalesced=True, check_invariants=False
        )  # fmt: skip
    return torch.zeros_like(values).index_copy_(0, part.rows, part.sums)


# ---- planning


def _distinct(asked: list[Asked]) -> list[Tensor]:
    """The weights that lookups read from, each once; of kept tables, in the order of their rows."""
    weights = list({id(of.weight): of.weight for of in asked}.values())
    with NO_TORCH_FUNCTION():
        if _is_kept(weights[0]):
            weights.sort(key=lambda weight: weight.table.first_row)  # type: ignore[attr-defined]
    return weights


@dataclass(frozen=True)
class Runs:
    """Which rows the ids of lookups name, and where equal ones stand.

    rows: [U] distinct rows of the tables laid end to end, ascending; own: [U], as numbers in their
    tables. bounds, inverse, order, starts: as in `TablePlan`.
    """

    rows: Tensor
    own: Tensor
    bounds: Tensor
    inverse: Tensor
    order: Tensor
    starts: Tensor


def runs_of(asked: list[Asked]) -> Runs:
    """The rows of a pack's lookups; kept tables lie end to end as their keeper has them."""
    weights = _distinct(asked)
    place = {id(weight): t for t, weight in enumerate(weights)}
    sizes = [weight.shape[0] for weight in weights]
    begins = [0, *itertools.accumulate(sizes)][:-1]
    with NO_TORCH_FUNCTION():
        if _is_kept(weights[0]):
            begins = [weight.table.first_row for weight in weights]  # type: ignore[attr-defined]
    read = [place[id(of.weight)] for of in asked]
    rows = _rows(
        asked, torch.tensor([begins[t] for t in read]), torch.tensor([sizes[t] for t in read])
    )
    distinct, inverse, order, starts = ops.unique(rows)
    own = distinct - begins[0] if begins[0] else distinct
    bounds = torch.tensor([0, distinct.numel()])
    if len(weights) > 1:
        first_rows = torch.tensor(begins)
        bounds = torch.searchsorted(distinct, torch.tensor([*begins, begins[-1] + sizes[-1]]))
        own = distinct - first_rows.repeat_interleave(bounds.diff())
    return Runs(distinct, own, bounds, inverse, order, starts)


def _plan(
    asked: list[Asked],
    weights: list[Tensor],
    tables: list[Table | None],
    keeper: Keeper | None,
    learns: bool,
) -> TablePlan:
    """What the lookups of a pack read; learns: their rows may be stepped."""
    place: Place | None = None
    if keeper is None:
        runs = runs_of(asked)
        slots = runs.own
        with NO_TORCH_FUNCTION():
            targets = tuple(
                _target_of(weight.detach()) if table is None else table.target
                for weight, table in zip(weights, tables, strict=True)
            )
    else:
        runs, place = _placed(asked, keeper, learns)
        slots = place.slots
        targets = tuple(table.target_in(place.records) for table in tables)  # type: ignore[union-attr]
    dtype = targets[0].weights.dtype
    bag_starts, bags, bag_weights = _bags(asked, dtype)
    return TablePlan(
        targets, runs.own, slots, runs.bounds, runs.inverse, runs.order, runs.starts, bag_starts,
        bags, bag_weights, _grad_weights(asked, bag_weights, dtype), place,
    )  # fmt: skip


def _placed(asked: list[Asked], keeper: Keeper, learns: bool) -> tuple[Runs, Place]:
    """The rows of lookups in kept tables, and where they are: as planned ahead, or in line."""
    keeper.check()
    coming = keeper.handed
    if coming is not None and coming.is_for(asked):
        assert coming.runs is not None and coming.place is not None
        keeper.counts["ahead"] += 1
        return coming.runs, coming.place
    runs = runs_of(asked)
    return runs, keeper.place(runs.rows, learns)


def _target_of(weights: Tensor) -> Target:
    """A weight that is no table: nothing of it is ever deferred."""
    return Target(weights, (), _NO_LAST, _NO_STEPS, 0, 0, 0)


def _rows(asked: list[Asked], first_rows: Tensor, num_rows: Tensor) -> Tensor:
    """[N] int64: the row of each id, in the tables laid end to end."""
    sizes = [of.ids.numel() for of in asked]
    ids = [of.ids.reshape(-1) for of in asked]
    if len(set(sizes)) == 1:
        spans = [(0, len(asked))]
    else:
        changes = [i for i in range(1, len(sizes)) if sizes[i] != sizes[i - 1]]
        spans = list(itertools.pairwise([0, *changes, len(sizes)]))
    found = []
    for begin, end in spans:
        each = torch.cat(ids[begin:end]) if end - begin > 1 else ids[begin]
        # As sequences of one batch: one bag per id, lookup after lookup.
        rows, _, _, bad = ops.resolve(
            each.long(), None, sizes[begin], torch.arange(end - begin), first_rows[begin:end],
            num_rows[begin:end], 0,
        )  # fmt: skip
        if int(bad) >= 0:
            raise _outside(asked[begin + int(bad) // sizes[begin]], each[int(bad)])
        found.append(rows)
    return torch.cat(found) if len(found) > 1 else found[0]


def _outside(of: Asked, bad: Tensor) -> IndexError:
    name = ""
    if isinstance(of.weight, TableParameter):
        name = f" {of.weight.table.names[0]}"
    return IndexError(
        f"index out of range in self: id {int(bad)} is looked up in table{name} of {len(of.weight)} "
        f"rows, which has ids 0 to {len(of.weight) - 1}"
    )


def _num_bags(of: Asked) -> int:
    if of.lookup.mode is None:
        return of.ids.numel()
    if of.offsets is None:
        return of.ids.shape[0]
    return of.offsets.numel() - of.lookup.include_last_offset


def _shape(of: Asked, size: int) -> tuple[int, ...]:
    return tuple(of.ids.shape) if of.lookup.mode is None else (size,)


def _bags(
    asked: list[Asked], dtype: torch.dtype
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Where each bag begins [M + 1], the bag of each id [N], and what each vector is multiplied with."""
    if all(of.lookup.mode is None for of in asked):
        return None, None, None
    lengths = torch.cat([_lengths(of) for of in asked])
    starts = functional.pad(lengths.cumsum(0), (1, 0)).int()
    bags = torch.arange(lengths.numel(), dtype=torch.int32).repeat_interleave(lengths)
    weights = None
    if any(of.samples is not None or of.lookup.mode == "mean" or _pads(of) for of in asked):
        weights = torch.cat([_weights(of, dtype) for of in asked])
    return starts, bags, weights


def _pads(of: Asked) -> bool:
    return of.lookup.mode is not None and of.lookup.padding_idx is not None


def _lengths(of: Asked) -> Tensor:
    """How many ids each bag of a lookup has."""
    if of.lookup.mode is None:
        return torch.ones(of.ids.numel(), dtype=torch.int64)
    if of.offsets is None:
        return torch.full((of.ids.shape[0],), of.ids.shape[1])
    ends = of.offsets.long()
    if not of.lookup.include_last_offset:
        ends = torch.cat([ends, torch.tensor([of.ids.numel()])])
    lengths = ends.diff()
    if (lengths < 0).any() or int(ends[0]) != 0 or int(ends[-1]) != of.ids.numel():
        raise ValueError(
            f"offsets of a bag must begin at 0 and rise to the number of ids, {of.ids.numel()}, "
            f"but they go from {int(ends[0])} to {int(ends[-1])}"
            f"{' and fall between' if (lengths < 0).any() else ''}"
        )
    return lengths


def _weights(of: Asked, dtype: torch.dtype) -> Tensor:
    """[N]: what the vector of each id is multiplied with in its bag."""
    if of.lookup.mode is None:
        return torch.ones(of.ids.numel(), dtype=dtype)
    counts = torch.ones(of.ids.numel(), dtype=dtype)
    if of.lookup.padding_idx is not None:
        counts = (of.ids.reshape(-1) != of.lookup.padding_idx).to(dtype)
    if of.lookup.mode == "mean":
        lengths = _lengths(of)
        bags = torch.arange(lengths.numel()).repeat_interleave(lengths)
        num = torch.zeros(lengths.numel(), dtype=dtype).index_add_(0, bags, counts)
        return counts / num.clamp(min=1)[bags]
    return counts if of.samples is None else counts * of.samples.detach().reshape(-1).to(dtype)


def _grad_weights(asked: list[Asked], weights: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """[N]: the same for gradients, where padding gets none; None: as in the lookup."""
    pads = [of.lookup.padding_idx if of.lookup.mode is None else None for of in asked]
    if all(pad is None for pad in pads):
        return None
    sizes = torch.tensor([of.ids.numel() for of in asked])
    of_ids = torch.tensor([-1 if pad is None else pad for pad in pads]).repeat_interleave(sizes)
    learns = (torch.cat([of.ids.reshape(-1) for of in asked]) != of_ids).to(dtype)
    return learns if weights is None else learns * weights


# ---- what is not packed


def _alone(
    lookup: Lookup, weight: Tensor, ids: Tensor, offsets: Tensor | None, samples: Tensor | None
) -> Tensor:
    """A single lookup that does not go into a pack."""
    packable = replace(lookup, padding_idx=lookup.padding_idx)
    if lookup.max_norm is not None and isinstance(weight, TableParameter):
        return _renormed(lookup, weight, ids, offsets, samples)
    if (
        samples is not None
        and samples.requires_grad
        and packable.is_packable
        and lookup.mode == "sum"
    ):
        return _weighted(lookup, weight, ids, offsets, samples)
    return read_whole(_plain, (lookup, weight, ids, offsets, samples), {})


def _renormed(lookup: Lookup, weight: TableParameter, *rest: Tensor | None) -> Tensor:
    """Rows that are too long are cut in place, then looked up."""
    ids = rest[0]
    assert ids is not None
    rows = ops.unique(ids.reshape(-1).long())[0]
    table = weight.table
    table.catch_up_rows(rows)
    table.to_be_written()
    with table.held(rows) as (target, slots):
        torch.embedding_renorm_(target.weights, slots, lookup.max_norm or 0.0, lookup.norm_type)
    return look_up([replace(lookup, max_norm=None)], [weight], *([of] for of in rest))[0]  # type: ignore[arg-type]


def _weighted(
    lookup: Lookup, weight: Tensor, ids: Tensor, offsets: Tensor | None, samples: Tensor
) -> Tensor:
    """A bag whose weights learn: rows are looked up one by one, then weighted and summed."""
    lengths = _lengths(Asked(lookup, weight, ids, offsets, samples))
    single = replace(lookup, mode=None, include_last_offset=False)
    vectors = look_up([single], [weight], [ids.reshape(-1)], [None], [None])[0]
    scale = samples.reshape(-1, 1)
    if lookup.padding_idx is not None:
        scale = scale * (ids.reshape(-1, 1) != lookup.padding_idx)
    bags = torch.arange(lengths.numel()).repeat_interleave(lengths)
    out = vectors.new_zeros(lengths.numel(), vectors.shape[1])
    return out.index_add(0, bags, vectors * scale)


def _plain(
    lookup: Lookup, weight: Tensor, ids: Tensor, offsets: Tensor | None, samples: Tensor | None
) -> Tensor:
    common = (lookup.max_norm, lookup.norm_type, lookup.scale_grad_by_freq)
    if lookup.mode is None:
        return functional.embedding(ids, weight, lookup.padding_idx, *common, lookup.sparse)
    return functional.embedding_bag(
        ids, weight, offsets, *common, lookup.mode, lookup.sparse, samples,
        lookup.include_last_offset, lookup.padding_idx,
    )  # fmt: skip


# ---- single calls on a table, wherever they are made


@handles(functional.embedding)
def _embedding(
    input: Tensor,
    weight: Any,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Any:
    if not isinstance(weight, TableParameter) or type(input) is not Tensor:
        return NotImplemented
    padding_idx = _not_negative(padding_idx, weight)
    lookup = Lookup(None, padding_idx, max_norm, norm_type, scale_grad_by_freq, sparse)
    return look_up([lookup], [weight], [input], [None], [None])[0]


@handles(functional.embedding_bag)
def _embedding_bag(
    input: Tensor,
    weight: Any,
    offsets: Tensor | None = None,
    max_norm: float | None = None,
    norm_type: float = 2,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Any:
    if not isinstance(weight, TableParameter) or type(input) is not Tensor or mode not in _MODES:
        return NotImplemented
    if (input.dim() == 2) == (offsets is not None) or input.dim() not in (1, 2):
        return NotImplemented  # PyTorch's own message
    lookup = Lookup(
        mode, _not_negative(padding_idx, weight), max_norm, norm_type, scale_grad_by_freq, sparse,
        include_last_offset,
    )  # fmt: skip
    return look_up([lookup], [weight], [input], [offsets], [per_sample_weights])[0]


@handles(torch.Tensor.__getitem__)
def _getitem(weight: TableParameter, index: Any) -> Any:
    if type(index) is not Tensor or index.dtype not in (torch.int64, torch.int32):
        return NotImplemented
    index = torch.where(index < 0, index + weight.shape[0], index)
    return look_up([Lookup()], [weight], [index], [None], [None])[0]


@handles(torch.index_select, torch.Tensor.index_select)
def _index_select(weight: Any, dim: int, index: Tensor) -> Any:
    if not isinstance(weight, TableParameter) or dim not in (0, -2) or index.dim() != 1:
        return NotImplemented
    return look_up([Lookup()], [weight], [index], [None], [None])[0]


def _not_negative(padding_idx: int | None, weight: Tensor) -> int | None:
    return (
        padding_idx + weight.shape[0]
        if padding_idx is not None and padding_idx < 0
        else padding_idx
    )
