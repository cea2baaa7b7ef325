"""Distinct rows and the runs of equal ones, in fixed sizes: sort, count, fill."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from hotrows.ops.triton import launch


def unique_padded(rows: Tensor, num_rows: int | None = None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    n = rows.numel()
    narrow = num_rows is not None and num_rows < torch.iinfo(torch.int32).max
    key = torch.int32 if narrow else torch.int64
    last = torch.iinfo(key).max
    keys, places = torch.sort(torch.where(rows < 0, last, rows).to(key), stable=True)
    distinct = rows.new_empty(n)
    inverse, order = (rows.new_empty(n, dtype=torch.int32) for _ in range(2))
    starts = rows.new_empty(n + 1, dtype=torch.int32)
    if not n:
        return distinct, inverse, order, starts.zero_()
    grid = (launch.cdiv(n + 1, launch.LANES),)
    counts = rows.new_empty(n)
    options = {"LAST": last, "LANES": launch.LANES, **launch.OPTIONS}
    _count[grid](keys, counts, n, **options)
    counts = counts.cumsum(0)
    _fill[grid](keys, places, counts, distinct, inverse, order, starts, n, **options)
    return distinct, inverse, order, starts


@triton.jit(do_not_specialize=["num_ids"])
def _count(p_keys, p_counts, num_ids, LAST: tl.constexpr, LANES: tl.constexpr):
    """2^32 where a run begins, and 1 for every real id: one running sum then counts both."""
    o_id = tl.program_id(0).to(tl.int64) * LANES + tl.arange(0, LANES)
    m_id = o_id < num_ids
    b_key = tl.load(p_keys + o_id, mask=m_id, other=LAST)
    b_before = tl.load(p_keys + o_id - 1, mask=m_id & (o_id > 0), other=LAST)
    m_real = b_key != LAST
    m_begins = m_real & ((o_id == 0) | (b_key != b_before))
    tl.store(p_counts + o_id, (m_begins.to(tl.int64) << 32) + m_real.to(tl.int64), mask=m_id)


@triton.jit(do_not_specialize=["num_ids"])
def _fill(
    p_keys, p_places, p_counts, p_distinct, p_inverse, p_order, p_starts, num_ids,
    LAST: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    o_id = tl.program_id(0).to(tl.int64) * LANES + tl.arange(0, LANES)
    m_id = o_id < num_ids
    b_key = tl.load(p_keys + o_id, mask=m_id, other=LAST)
    b_run = (tl.load(p_counts + o_id, mask=m_id, other=0) >> 32) - 1
    b_run_before = (tl.load(p_counts + o_id - 1, mask=m_id & (o_id > 0), other=0) >> 32) - 1
    m_real = b_key != LAST
    b_place = tl.load(p_places + o_id, mask=m_id, other=0)
    tl.store(p_order + o_id, b_place.to(tl.int32), mask=m_id)
    tl.store(p_inverse + b_place, tl.where(m_real, b_run, -1).to(tl.int32), mask=m_id)

    m_begins = m_real & (b_run != b_run_before)
    tl.store(p_distinct + b_run, b_key.to(tl.int64), mask=m_begins)
    tl.store(p_starts + b_run, o_id.to(tl.int32), mask=m_begins)

    # Beyond the last run: no distinct rows, and the end of the last run.
    total = tl.load(p_counts + num_ids - 1)
    num_runs, num_real = total >> 32, total & 0xFFFFFFFF
    m_after = o_id >= num_runs
    tl.store(p_distinct + o_id, tl.full([LANES], -1, tl.int64), mask=m_id & m_after)
    b_end = tl.zeros([LANES], tl.int32) + num_real.to(tl.int32)
    tl.store(p_starts + o_id, b_end, mask=(o_id <= num_ids) & m_after)
