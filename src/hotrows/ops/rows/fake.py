"""Results of each op without their values: sizes, dtypes and devices, for tracing and compiling."""

from __future__ import annotations

import torch
from torch import Tensor


def resolve(ids, offsets, batch_size, features, first_rows, num_rows, num_columns, routes=None):
    bad = ids.new_empty(1)
    num_pooled = num_columns * batch_size
    if offsets is None:
        rows = ids.new_empty(features.numel() * batch_size)
        return rows, ids.new_empty(0), ids.new_empty(0, dtype=torch.int32), bad
    num_ids, num_bags = _unknown(), num_pooled
    if features.numel() > num_columns:
        num_bags = num_pooled + _unknown()
    starts = ids.new_empty(num_bags + 1, dtype=torch.int32)
    return ids.new_empty(num_ids), ids.new_empty(num_ids), starts, bad


def unique(rows: Tensor):
    return _runs(rows, _unknown())


def unique_padded(rows: Tensor, num_rows=None):
    return _runs(rows, rows.numel())


def pool(records, layout, slots, inverse, bag_starts, weights, narrow=False):
    num_bags = inverse.numel() if bag_starts is None else bag_starts.numel() - 1
    dtype = torch.bfloat16 if narrow else torch.float32
    return records.new_empty(num_bags, layout[0], dtype=dtype)


def sum_gradients(grad, order, starts, bags, weights):
    dtype = torch.float32 if grad.dtype == torch.bfloat16 else grad.dtype
    return grad.new_empty(starts.numel() - 1, grad.shape[1], dtype=dtype)


def update(*args, **kwargs) -> None:
    """Only writes."""


def initialize(*args, **kwargs) -> None:
    """Only writes."""


def copy_rows(*args, **kwargs) -> None:
    """Only writes."""


feed_rows = touch_slots = rank_slots = take_slots = copy_rows


def _runs(rows: Tensor, num_distinct):
    inverse, order = (rows.new_empty(rows.numel(), dtype=torch.int32) for _ in range(2))
    starts = rows.new_empty(num_distinct + 1, dtype=torch.int32)
    return rows.new_empty(num_distinct), inverse, order, starts


def _unknown():
    """A size that the ids decide."""
    return torch.library.get_ctx().new_dynamic_size()
