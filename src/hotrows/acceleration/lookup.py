"""lookup: several calls of `F.embedding` and `F.embedding_bag` at once.

    lookup_plan                          distinct rows of all ids, table by table
    deferred.catch_up                    the rows make the steps that they missed
    deferred.lookup             [M, D]   each distinct row is read once; bags are pooled
    -> one tensor per lookup             over one piece of memory

Backward makes one gradient [M, D] for all, and for each table a `RowGradient` of its rows.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from hotrows import ops
from hotrows.acceleration.bags import Lookup, LookupCall, bag_lengths, bag_of_each_id, with_last_end
from hotrows.acceleration.cached_group import CachedTableGroup
from hotrows.acceleration.errors import refuse_capture
from hotrows.acceleration.exclusive import LOCK, keeping
from hotrows.acceleration.gradient import RowGradient, gradient_of_rows
from hotrows.acceleration.lookup_plan import distinct_weights, pack_calls, plan_pack, table_of
from hotrows.acceleration.moments import catch_up
from hotrows.acceleration.pack_gradient import PackGradient, TableGradient
from hotrows.acceleration.parameter import NO_TORCH_FUNCTION, TableParameter, read_whole
from hotrows.acceleration.rules import BY_OPTIMIZER
from hotrows.acceleration.table import RowTable
from hotrows.acceleration.table_plan import TablePlan
from hotrows.ops import deferred


class PlannedLookups(Exception):
    """Raised by `lookup` where only the ids are wanted: the calls that it got."""

    def __init__(self, calls: Sequence[LookupCall]) -> None:
        super().__init__("the ids are known")
        self.calls = calls

    def packs(self) -> list[list[LookupCall]]:
        """The lookups that `lookup` would make together."""
        return [[self.calls[i] for i in numbers] for numbers in pack_calls(self.calls).values()]


class Planning(threading.local):
    """A switch: while on, models of this thread are run for the ids of their lookups alone."""

    is_on = False


PLANNING = Planning()


def lookup(
    lookups: Sequence[Lookup],
    weights: Sequence[Tensor],
    ids: Sequence[Tensor],
    offsets: Sequence[Tensor | None],
    per_sample_weights: Sequence[Tensor | None],
) -> tuple[Tensor, ...]:
    """Returns the results of several lookups: [*ids.shape, D], or [bags, D] each.

    weights: tables or plain weights, [R, D] each; one may occur several times. ids: int64 or int32;
    offsets, per_sample_weights: of bags, as `F.embedding_bag` takes them.
    """
    columns = zip(lookups, weights, ids, offsets, per_sample_weights, strict=True)
    calls = [with_last_end(LookupCall(*column)) for column in columns]
    if PLANNING.is_on:
        raise PlannedLookups(calls)
    refuse_capture(weights)
    results: list[Tensor | None] = [None] * len(calls)
    with LOCK:
        for (*_, kind, group), numbers in pack_calls(calls).items():
            vectors = _lookup_pack([calls[i] for i in numbers], kind, group)
            for i, result in zip(numbers, vectors, strict=True):
                results[i] = result
        return tuple(
            _lookup_single(call) if result is None else result
            for call, result in zip(calls, results, strict=True)
        )


# ---- one pack: tables of one width, dtype and rule, and of one cached group


def _lookup_pack(
    calls: list[LookupCall], kind: str | None, group: CachedTableGroup | None
) -> tuple[Tensor, ...]:
    weights = distinct_weights(calls)
    with NO_TORCH_FUNCTION():
        tables = [table_of(weight) for weight in weights]
    records = torch.is_grad_enabled() and not torch.is_inference_mode_enabled()
    trains = records and any(weight.requires_grad for weight in weights)
    with keeping():
        plan = plan_pack(calls, tables, weights, group, trains)
        _catch_up(plan, tables, kind)
    numbers = {id(weight): t for t, weight in enumerate(weights)}
    reads = [(numbers[id(call.weight)], call.ids.numel()) for call in calls]
    sizes, shapes = [call.num_bags for call in calls], [call.shape for call in calls]
    sparse = [all(c.lookup.sparse for c in calls if c.weight is weight) for weight in weights]
    pack = _PackLookup(plan, tables, reads, sizes, shapes, sparse)
    if trains:
        return _LookupFunction.apply(pack, *weights)
    return pack.forward()


def _catch_up(plan: TablePlan, tables: Sequence[RowTable | None], kind: str | None) -> None:
    """Brings the rows of a plan up to date."""
    if kind == BY_OPTIMIZER:
        for t, table in enumerate(tables):
            assert table is not None
            table.catch_up_rows(plan.table_rows[plan.ends[t] : plan.ends[t + 1]])
    elif kind is not None and any(table.is_behind for table in tables if table):
        is_copy = plan.locations is not None and plan.locations.is_copy
        moving = [None] * len(tables) if is_copy else tables
        catch_up(kind, moving, plan.targets, plan.pack.slots, plan.bounds)
        if plan.locations is not None:
            plan.locations.changed()


@dataclass(frozen=True)
class _PackLookup:
    """One lookup of a pack: its plan, its tables, and how its vectors are dealt out.

    reads: of each call of the model, the number of its table and of its ids.
    sizes, shapes: of each call, its number of vectors and the shape of its result.
    sparse: of each table, whether all its lookups ask for sparse gradients: else their sum is dense.
    """

    plan: TablePlan
    tables: list[RowTable | None]
    reads: list[tuple[int, int]]
    sizes: list[int]
    shapes: list[tuple[int, ...]]
    sparse: list[bool]

    def forward(self) -> tuple[Tensor, ...]:
        plan, pack = self.plan, self.plan.pack
        vectors = deferred.lookup(
            plan.targets, pack.slots, plan.bounds, pack.inverse, pack.bag_starts, pack.weights
        )  # [M, D]
        dim, begin, results = vectors.shape[1], 0, []
        for size, shape in zip(self.sizes, self.shapes, strict=True):
            # `data`: no views, for autograd would forbid changing one of several in place.
            results.append(vectors[begin : begin + size].view(*shape, dim).data)
            begin += size
        return tuple(results)

    def parts(self, pack: PackGradient, grads: Sequence[Tensor | None]) -> list[TableGradient | None]:
        """The gradient of each table; None, where none of its vectors has one."""
        parts: list[TableGradient | None] = [TableGradient(pack, t) for t in range(len(self.tables))]
        if any(grad is None for grad in grads):
            for t, has_gradient in enumerate(self._rows_with_gradients(grads)):
                parts[t] = _without_empty(TableGradient(pack, t), self.tables[t], has_gradient)
        return parts

    def _rows_with_gradients(self, grads: Sequence[Tensor | None]) -> Iterator[Tensor | None]:
        """By table: None, where none of its vectors has a gradient; else [U] bool, rows that have."""
        inverse = self.plan.pack.inverse
        has_gradient = torch.zeros(self.plan.pack.num_rows, dtype=torch.bool, device=inverse.device)
        begin, tables = 0, set()
        for grad, (t, num_ids) in zip(grads, self.reads, strict=True):
            if grad is not None:
                tables.add(t)
                has_gradient[inverse[begin : begin + num_ids].long()] = True
            begin += num_ids
        ends = self.plan.ends
        for t in range(len(self.tables)):
            yield has_gradient[ends[t] : ends[t + 1]] if t in tables else None


class _LookupFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, pack: _PackLookup, *weights: Tensor) -> tuple[Tensor, ...]:
        ctx.pack, ctx.weights = pack, weights
        ctx.save_for_backward(*pack.plan.choice)  # of which a checkpoint makes those of its second run
        ctx.set_materialize_grads(False)
        return pack.forward()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
        pack: _PackLookup = ctx.pack
        _check_same(pack.plan.choice, ctx.saved_tensors)
        like = pack.plan.targets[0].weights
        dim = like.shape[1]
        pieces = [
            like.new_zeros(size, dim) if grad is None else grad.reshape(size, dim)
            for grad, size in zip(grads, pack.sizes, strict=True)
        ]
        grad = torch.cat(pieces) if len(pieces) > 1 else pieces[0].contiguous()  # [M, D]
        parts = pack.parts(PackGradient(pack.plan, grad, pack.tables), grads)
        results: list[Tensor | None] = [None]
        for t, (part, table) in enumerate(zip(parts, pack.tables, strict=True)):
            if part is None or not ctx.needs_input_grad[1 + t]:
                results.append(None)
            elif table is not None:
                results.append(RowGradient(table, (part,)))
            else:
                values = pack.plan.targets[t].weights
                results.append(_plain_gradient(part, values, pack.sparse[t]))
        return tuple(results)


def _check_same(first: Sequence[Tensor | None], again: Sequence[Tensor | None]) -> None:
    tensors = [(a, b) for a, b in zip(first, again, strict=True) if a is not None and b is not None]
    if not all(a.is_set_to(b) or torch.equal(a, b) for a, b in tensors):
        raise RuntimeError(
            "torch.utils.checkpoint ran a lookup again with ids that were changed in place since the "
            "forward pass, and would get the gradient of another output: give it a copy, ids.clone()"
        )


def _without_empty(
    part: TableGradient, table: RowTable | None, has_gradient: Tensor | None
) -> TableGradient | None:
    """Drops rows whose vectors all have no gradient, where the rule is lazy and would update them."""
    if has_gradient is None:
        return None
    if table is None or not table.rule.lazy or bool(has_gradient.all()):
        return part
    return gradient_of_rows(table, part.rows[has_gradient], part.sums[has_gradient]).parts[0]


def _plain_gradient(part: TableGradient, values: Tensor, sparse: bool) -> Tensor:
    """The gradient of a weight without a table of ours, as PyTorch makes it."""
    if sparse:
        return torch.sparse_coo_tensor(
            part.rows[None], part.sums, tuple(values.shape), is_coalesced=True, check_invariants=False
        )
    return torch.zeros_like(values).index_copy_(0, part.rows, part.sums)


# ---- lookups that no pack can make


def _lookup_single(call: LookupCall) -> Tensor:
    options, samples = call.lookup, call.samples
    if options.max_norm is not None and isinstance(call.weight, TableParameter):
        return _lookup_renormed(call, call.weight)
    is_trained = samples is not None and samples.requires_grad
    if is_trained and options.is_packable and options.mode == "sum" and not call.is_plain:
        return _lookup_weighted(call)
    return read_whole(_plain, (options, call.weight, call.ids, call.offsets, samples), {})


def _lookup_renormed(call: LookupCall, weight: TableParameter) -> Tensor:
    """Cuts rows that are longer than max_norm in place, then looks up."""
    rows = ops.unique(call.ids.reshape(-1).long())[0]
    table, max_norm = weight.table, call.lookup.max_norm or 0.0
    table.catch_up_rows(rows)
    table.before_write()
    with table.writing(rows) as (target, slots):
        torch.embedding_renorm_(target.weights, slots, max_norm, call.lookup.norm_type)
    options = replace(call.lookup, max_norm=None)
    return lookup([options], [weight], [call.ids], [call.offsets], [call.samples])[0]


def _lookup_weighted(call: LookupCall) -> Tensor:
    """A bag whose weights are trained: looks rows up one by one, then weights and sums them."""
    assert call.samples is not None
    lengths, ids = bag_lengths(call), call.ids.reshape(-1)
    single = replace(call.lookup, mode=None, include_last_offset=False)
    vectors = lookup([single], [call.weight], [ids], [None], [None])[0]  # [N, D]
    scale = call.samples.reshape(-1, 1)
    if call.lookup.padding_idx is not None:
        scale = scale * (ids[:, None] != call.lookup.padding_idx)
    bags = bag_of_each_id(functional.pad(lengths.cumsum(0), (1, 0)), ids.numel()).long()
    out = vectors.new_zeros(lengths.numel(), vectors.shape[1])
    return out.index_add(0, bags, vectors * scale)


def _plain(
    options: Lookup, weight: Tensor, ids: Tensor, offsets: Tensor | None, samples: Tensor | None
) -> Tensor:
    if options.mode is None:
        return functional.embedding(
            ids, weight, options.padding_idx,
            options.max_norm, options.norm_type, options.scale_grad_by_freq, options.sparse,
        )  # fmt: skip
    return functional.embedding_bag(
        ids, weight, offsets,
        options.max_norm, options.norm_type, options.scale_grad_by_freq, options.mode, options.sparse,
        samples, options.include_last_offset, options.padding_idx,
    )  # fmt: skip
