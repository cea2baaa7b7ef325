"""The ops on the native core; names, arguments and results are those of `reference`.

Float16 weights are for devices: the core has no kernels for them, and such records take the reference.
"""

from __future__ import annotations

from collections.abc import Callable
from ctypes import Array, c_double, c_float, c_int64
from typing import Any

import torch
from torch import Tensor

from hotrows.ops.record import RecordLayout, dtype_of
from hotrows.ops.rows import reference
from hotrows.runtime import native
from hotrows.runtime.native import call

_KINDS = native.codes("row_optimizer", "sgd", "adagrad", "rowwise_adagrad", "adam", "ftrl")
_INITIALIZERS = native.codes("initializer", "constant", "uniform", "normal")
_LAYOUT = native.codes("record_layout", *RecordLayout.FIELDS)
_PIECE = native.codes("piece", "key", "first_id", "id_step", "first_column", "num_columns")
_ROUTE = native.codes("route", *reference.ROUTE)
_MAX_IDS = 2**31 - 1


def kernels() -> dict[str, Callable[..., Any]]:
    """The ops to register for CPU tensors, by name."""
    native_ops = (resolve, unique, pool, sum_gradients, update, initialize, copy_rows)
    return {kernel.__name__: kernel for kernel in native_ops}


def resolve(ids, offsets, batch_size, features, first_rows, num_rows, num_columns, routes=None):
    ids, features = ids.contiguous(), features.contiguous()
    num_ranks = 0 if routes is None else routes.shape[1] - len(_ROUTE)
    tables = features, first_rows, num_rows, routes, num_ranks, features.numel(), num_columns
    if offsets is None:
        rows = torch.empty(features.numel() * batch_size, dtype=torch.int64)
        bad = call("resolve_single", ids, batch_size, *tables, rows)
        empty = torch.empty(0, dtype=torch.int64), torch.empty(0, dtype=torch.int32)
        return rows, *empty, torch.tensor([bad])
    num_ids, num_sequence_ids = _count(offsets, batch_size, features, num_columns)
    rows = torch.empty(num_ids, dtype=torch.int64)
    source = torch.empty(num_ids, dtype=torch.int64)
    num_bags = num_columns * batch_size + num_sequence_ids
    bag_starts = torch.empty(num_bags + 1, dtype=torch.int32)
    bad = call("resolve_jagged", ids, offsets.contiguous(), batch_size, *tables, rows, source, bag_starts)
    return rows, source, bag_starts, torch.tensor([bad])


def unique(rows: Tensor):
    n = rows.numel()
    results = _results_of_unique(n)
    return _cut(results, call("unique", rows.contiguous(), n, *results))


def _results_of_unique(n: int) -> tuple[Tensor, ...]:
    """Memory for distinct, inverse, order and starts of n rows."""
    if n > _MAX_IDS:
        raise ValueError(f"a batch may hold at most {_MAX_IDS:,} ids in a pack, not {n:,}")
    of_ids = (torch.empty(n, dtype=torch.int32) for _ in range(2))
    return torch.empty(n, dtype=torch.int64), *of_ids, torch.empty(n + 1, dtype=torch.int32)


def _cut(runs: tuple[Tensor, ...], num_distinct: int) -> tuple[Tensor, ...]:
    distinct, inverse, order, starts = runs
    return distinct[:num_distinct].clone(), inverse, order, starts[: num_distinct + 1].clone()


def unique_of_columns(ids, batch_size, features, first_rows, num_rows):
    results = _results_of_unique(features.numel() * batch_size)
    num_distinct = call(
        "unique_of_columns", ids.contiguous(), batch_size,
        features, first_rows, num_rows, features.numel(), *results,
    )  # fmt: skip
    return *_cut(results, max(num_distinct, 0)), -1 - min(num_distinct, 0)


def pool(records, layout, slots, inverse, bag_starts, weights, narrow=False):
    if dtype_of(layout) == torch.float16 or narrow:
        return reference.pool(records, layout, slots, inverse, bag_starts, weights, narrow)
    num_bags = inverse.numel() if bag_starts is None else bag_starts.numel() - 1
    out = torch.empty(num_bags, layout[0])
    scratch = torch.empty(slots.numel(), layout[0])
    call(
        "pool", records, _layout(records, layout), slots, slots.numel(),
        inverse, inverse.numel(), bag_starts, weights, num_bags, scratch, out,
    )  # fmt: skip
    return out


def collect(records, layout, slots):
    if dtype_of(layout) == torch.float16 or not records.is_cpu:
        return reference.collect(records, layout, slots)
    out = torch.empty(slots.numel(), layout[0])
    call(
        "pool", records, _layout(records, layout), slots, slots.numel(),
        torch.empty(0, dtype=torch.int32), 0, None, None, 0, out, out,
    )  # fmt: skip
    return out


def sum_gradients(grad, order, starts, bags, weights):
    grad = grad.float().contiguous()
    num_rows = starts.numel() - 1
    out = torch.empty(num_rows, grad.shape[1])
    call("sum_gradients", grad, grad.shape[1], order, starts, num_rows, bags, weights, out)
    return out


def update(
    records, layout, slots, rows, order, starts, bags, weights, grad, kind, hyper, first_rows,
    pieces, decay=None, mean_squares=None,
):  # fmt: skip
    runs = order, starts, bags, weights, grad.float().contiguous()
    if dtype_of(layout) == torch.float16 or kind not in _KINDS:
        reference.update(
            records, layout, slots, rows, *runs, kind, hyper, first_rows, pieces, decay, mean_squares
        )
        return
    if hyper.dtype != torch.float64 or not hyper.is_contiguous():
        raise ValueError(f"expected contiguous float64 numbers of a RowRule, not {hyper.dtype}")
    call(
        "update", records, _layout(records, layout), slots, rows, rows.numel(),
        *runs, _KINDS[kind], hyper[1:], int(hyper[0]), first_rows, _checked(pieces), len(pieces),
        decay, mean_squares,
    )  # fmt: skip


def initialize(records, layout, rows, first_rows, pieces, kind, scale, state):
    if dtype_of(layout) == torch.float16:
        reference.initialize(records, layout, rows, first_rows, pieces, kind, scale, state)
        return
    call(
        "initialize", records, _layout(records, layout), rows, rows.numel(),
        first_rows, _checked(pieces), len(pieces),
        _INITIALIZERS[kind], c_double(scale), (c_float * len(state))(*state),
    )  # fmt: skip


def copy_rows(source, source_rows, target, target_rows):
    count = next(len(rows) for rows in (source_rows, target_rows, source) if rows is not None)
    call(
        "copy_rows", source, source.stride(0), source_rows, target, target.stride(0), target_rows,
        count, source.shape[1],
    )  # fmt: skip


def _count(offsets: Tensor, batch_size: int, features: Tensor, num_columns: int) -> tuple[int, int]:
    """How many ids the pack's features have in this batch, and how many of them in sequences."""
    ends = offsets[features * batch_size + batch_size] - offsets[features * batch_size]
    return int(ends.sum()), int(ends[num_columns:].sum())


def _layout(records: Tensor, layout: list[int]) -> Array[c_int64]:
    """The layout as the core reads it, with the distance of these records from each other."""
    *sizes, _, _ = layout
    return (c_int64 * 6)(*sizes, records.stride(0))


def _checked(pieces: Tensor) -> Tensor:
    if pieces.dim() != 2 or pieces.shape[1] != len(_PIECE) or not pieces.is_contiguous():
        raise ValueError(f"expected pieces [K, {len(_PIECE)}], contiguous, not {list(pieces.shape)}")
    return pieces
