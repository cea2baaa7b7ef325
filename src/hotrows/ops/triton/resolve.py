"""Ids of a batch to rows of a pack, where every bag has one id and the rows are here."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from hotrows.ops.rows import reference
from hotrows.ops.triton import launch


def resolve(
    ids: Tensor,
    offsets: Tensor | None,
    batch_size: int,
    features: Tensor,
    first_rows: Tensor,
    num_rows: Tensor,
    num_columns: int,
    routes: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """A bad id gets row -1, padding: nothing is read or written for it before the host hears of it.

    Bags of several ids, and rows among ranks, take the reference; the former wait for a count.
    """
    if offsets is not None or routes is not None:
        return reference.resolve(
            ids, offsets, batch_size, features, first_rows, num_rows, num_columns, routes
        )
    ids, num_ids = ids.contiguous(), features.numel() * batch_size
    rows = ids.new_empty(num_ids)
    bad = ids.new_full((1,), -1)
    tables, sizes = (features, first_rows, num_rows), (batch_size, num_columns, num_ids)
    _resolve[(launch.cdiv(num_ids, launch.LANES),)](
        ids, *tables, rows, bad, *sizes, LANES=launch.LANES, **launch.OPTIONS
    )
    return rows, ids.new_empty(0), ids.new_empty(0, dtype=torch.int32), bad


@triton.jit(do_not_specialize=["batch_size", "num_columns", "num_ids"])
def _resolve(
    p_ids, p_features, p_first_rows, p_num_rows, p_rows, p_bad, batch_size, num_columns, num_ids,
    LANES: tl.constexpr,
):  # fmt: skip
    o_out = tl.program_id(0).to(tl.int64) * LANES + tl.arange(0, LANES)
    m_out = o_out < num_ids
    m_pooled = o_out < num_columns.to(tl.int64) * batch_size
    b_columns = tl.where(m_pooled, num_columns, 1)
    b_column = tl.where(m_pooled, o_out % b_columns, o_out // batch_size)
    b_sample = tl.where(m_pooled, o_out // b_columns, o_out % batch_size)
    b_feature = tl.load(p_features + b_column, mask=m_out, other=0)
    b_id = tl.load(p_ids + b_feature * batch_size + b_sample, mask=m_out, other=0)
    b_first = tl.load(p_first_rows + b_column, mask=m_out, other=0)
    b_size = tl.load(p_num_rows + b_column, mask=m_out, other=0)
    m_bad = m_out & ((b_id < 0) | (b_id >= b_size))
    tl.store(p_rows + o_out, tl.where(m_bad, -1, b_first + b_id), mask=m_out)

    first_bad = tl.min(tl.where(m_bad, o_out, num_ids.to(tl.int64)), axis=0)
    if first_bad < num_ids:  # as 64 plain bits, -1 (none) is above every place
        p_least = p_bad.to(tl.pointer_type(tl.uint64), bitcast=True)
        tl.atomic_min(p_least, first_bad.to(tl.uint64), sem="relaxed")
