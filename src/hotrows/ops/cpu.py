"""The ops on the native core: the same names, arguments and results as in `reference`.

Float16 weights are for devices: the core does not know them, and such records take the reference.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from hotrows import native
from hotrows.native import pointer
from hotrows.ops import reference
from hotrows.record import dtype_of

_KINDS = ("sgd", "adagrad", "rowwise_adagrad", "adam", "ftrl")
_INITIALIZERS = ("constant", "uniform", "normal")
_MAX_IDS = 2**31 - 1


def kernels() -> dict[str, Callable[..., Any]]:
    """The ops to register for CPU tensors, by name: none where the core was not built."""
    if native.load() is None:
        return {}
    found = (resolve, unique, pool, sum_gradients, update, initialize, copy_rows)
    return {kernel.__name__: kernel for kernel in found}


def resolve(ids, offsets, batch_size, features, first_rows, num_rows, num_columns, routes=None):
    ids, features = ids.contiguous(), features.contiguous()
    size, count, columns = (ctypes.c_int64(n) for n in (batch_size, features.numel(), num_columns))
    num_ranks = ctypes.c_int64(0 if routes is None else routes.shape[1] - 4)
    tables = (*(pointer(t) for t in (features, first_rows, num_rows, routes)), num_ranks)
    if offsets is None:
        rows = torch.empty(features.numel() * batch_size, dtype=torch.int64)
        bad = _int64(_core().hotrows_resolve_single)(
            pointer(ids), size, *tables, count, columns, pointer(rows)
        )
        empty = torch.empty(0, dtype=torch.int64), torch.empty(0, dtype=torch.int32)
        return rows, *empty, torch.tensor([bad])
    num_ids, num_sequence_ids = _count(offsets, batch_size, features, num_columns)
    rows = torch.empty(num_ids, dtype=torch.int64)
    source = torch.empty(num_ids, dtype=torch.int64)
    num_bags = num_columns * batch_size + num_sequence_ids
    bag_starts = torch.empty(num_bags + 1, dtype=torch.int32)
    bad = _int64(_core().hotrows_resolve_jagged)(
        pointer(ids), pointer(offsets.contiguous()), size, *tables, count, columns,
        pointer(rows), pointer(source), pointer(bag_starts),
    )  # fmt: skip
    return rows, source, bag_starts, torch.tensor([bad])


def unique(rows: Tensor):
    n = rows.numel()
    if n > _MAX_IDS:
        raise ValueError(f"a batch may hold at most {_MAX_IDS:,} ids in a pack, not {n:,}")
    rows = rows.contiguous()
    distinct = torch.empty(n, dtype=torch.int64)
    inverse, order = (torch.empty(n, dtype=torch.int32) for _ in range(2))
    starts = torch.empty(n + 1, dtype=torch.int32)
    found = _int64(_core().hotrows_unique)(
        pointer(rows), ctypes.c_int64(n), *(pointer(t) for t in (distinct, inverse, order, starts))
    )
    return distinct[:found].clone(), inverse, order, starts[: found + 1].clone()


def pool(records, layout, slots, inverse, bag_starts, weights):
    if dtype_of(layout) == torch.float16:
        return reference.pool(records, layout, slots, inverse, bag_starts, weights)
    num_bags = inverse.numel() if bag_starts is None else bag_starts.numel() - 1
    out = torch.empty(num_bags, layout[0])
    scratch = torch.empty(slots.numel(), layout[0])
    _core().hotrows_pool(
        pointer(records), _layout(records, layout), pointer(slots), ctypes.c_int64(slots.numel()),
        pointer(inverse), ctypes.c_int64(inverse.numel()), pointer(bag_starts), pointer(weights),
        ctypes.c_int64(num_bags), pointer(scratch), pointer(out),
    )  # fmt: skip
    return out


def sum_gradients(grad, order, starts, bags, weights):
    grad = grad.contiguous()
    num_rows = starts.numel() - 1
    out = torch.empty(num_rows, grad.shape[1])
    _core().hotrows_sum_gradients(
        pointer(grad), ctypes.c_int64(grad.shape[1]), pointer(order), pointer(starts),
        ctypes.c_int64(num_rows), pointer(bags), pointer(weights), pointer(out),
    )  # fmt: skip
    return out


def update(
    records, layout, slots, rows, order, starts, bags, weights, grad, kind, hyper, first_rows,
    pieces, decay=None, mean_squares=None,
):  # fmt: skip
    if dtype_of(layout) == torch.float16:
        reference.update(
            records, layout, slots, rows, order, starts, bags, weights, grad, kind, hyper, first_rows,
            pieces, decay, mean_squares,
        )  # fmt: skip
        return
    assert hyper.dtype == torch.float64 and hyper.is_contiguous(), "optim.hyper_tensor"
    grad = grad.contiguous()
    _core().hotrows_update(
        pointer(records), _layout(records, layout), pointer(slots), pointer(rows),
        ctypes.c_int64(rows.numel()), pointer(order), pointer(starts), pointer(bags),
        pointer(weights), pointer(grad), ctypes.c_int(_KINDS.index(kind)),
        pointer(hyper[1:]), ctypes.c_int64(int(hyper[0])), pointer(first_rows),
        _pieces(pieces), ctypes.c_int64(len(pieces)), pointer(decay), pointer(mean_squares),
    )  # fmt: skip


def initialize(records, layout, rows, first_rows, pieces, kind, scale, state):
    if dtype_of(layout) == torch.float16:
        reference.initialize(records, layout, rows, first_rows, pieces, kind, scale, state)
        return
    _core().hotrows_initialize(
        pointer(records), _layout(records, layout), pointer(rows), ctypes.c_int64(rows.numel()),
        pointer(first_rows), _pieces(pieces), ctypes.c_int64(len(pieces)),
        ctypes.c_int(_INITIALIZERS.index(kind)), ctypes.c_double(scale),
        (ctypes.c_float * len(state))(*state),
    )  # fmt: skip


def copy_rows(source, source_rows, target, target_rows):
    count = next(len(of) for of in (source_rows, target_rows, source) if of is not None)
    _core().hotrows_copy_rows(
        pointer(source), ctypes.c_int64(source.stride(0)), pointer(source_rows),
        pointer(target), ctypes.c_int64(target.stride(0)), pointer(target_rows),
        ctypes.c_int64(count), ctypes.c_int64(source.shape[1]),
    )  # fmt: skip


def _count(offsets: Tensor, batch_size: int, features: Tensor, num_columns: int) -> tuple[int, int]:
    """How many ids the pack's features have in this batch, and how many of them in sequences."""
    ends = offsets[features * batch_size + batch_size] - offsets[features * batch_size]
    return int(ends.sum()), int(ends[num_columns:].sum())


def _core() -> ctypes.CDLL:
    core = native.load()
    assert core is not None, "these ops are registered only where the core was built"
    return core


def _layout(records: Tensor, layout: list[int]):
    """The layout as the core reads it, with the distance at which these records stand."""
    *sizes, _, _ = layout
    return (ctypes.c_int64 * 6)(*sizes, records.stride(0))


def _pieces(pieces: Tensor) -> ctypes.c_void_p:
    assert pieces.dim() == 2 and pieces.shape[1] == 5 and pieces.is_contiguous(), "[K, 5] int64"
    return pointer(pieces)


def _int64(function):
    function.restype = ctypes.c_int64
    return function
