"""The slot map of a cache on a device: few launches a batch, none of which waits for a count.

Rows and slots of a batch are distinct, so each element is written by one lane, or by several that
write the same. What is looked for is compacted by running sums, which have one result.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from hotrows.ops.rows.reference_slots import LATER, SEARCHED
from hotrows.ops.triton import launch


def feed_rows(coming: Tensor, rows: Tensor, batch: int) -> None:
    if n := rows.numel():
        _feed_rows[_grid(n)](coming, rows, batch, n, LANES=launch.LANES, **launch.OPTIONS)


def touch_slots(slot_of: Tensor, last_use: Tensor, rows: Tensor, batch: int) -> None:
    if n := rows.numel():
        _touch_slots[_grid(n)](slot_of, last_use, rows, batch, n, LANES=launch.LANES, **launch.OPTIONS)


def rank_slots(
    row_of: Tensor, last_use: Tensor, coming: Tensor, ranking: Tensor, progress: Tensor, batch: int,
    in_flight: int,
) -> None:  # fmt: skip
    num_slots = ranking.numel()
    keys, unneeded = torch.empty_like(ranking), torch.empty_like(ranking)
    _age_slots[_grid(num_slots)](
        row_of, last_use, coming, keys, unneeded, batch, max(batch - in_flight, -1), num_slots,
        LATER=LATER, LANES=launch.LANES, **launch.OPTIONS,
    )  # fmt: skip
    ranking.copy_(torch.sort(keys, stable=True).indices)
    progress[0].zero_()
    progress[1].copy_(unneeded.sum())


def take_slots(
    slot_of: Tensor, row_of: Tensor, last_use: Tensor, coming: Tensor, ranking: Tensor,
    progress: Tensor, rows: Tensor, batch: int, in_flight: int, slots: Tensor, moves: Tensor,
    counts: Tensor,
) -> None:  # fmt: skip
    num_rows, num_slots = rows.numel(), ranking.numel()
    if not num_rows:
        counts.zero_()
        return
    options = {"LANES": launch.LANES, **launch.OPTIONS}
    misses = torch.empty(num_rows, dtype=torch.int64, device=rows.device)
    _find_slots[_grid(num_rows)](slot_of, last_use, rows, slots, misses, batch, num_rows, **options)
    misses = misses.cumsum(0)
    num_searched = min(SEARCHED * num_rows, num_slots)
    may_go = torch.empty(num_searched, dtype=torch.int64, device=rows.device)
    _search_ranking[_grid(num_searched)](
        row_of, last_use, coming, ranking, progress, may_go, batch, max(batch - in_flight, -1),
        num_searched, num_slots, **options,
    )  # fmt: skip
    may_go = may_go.cumsum(0)
    before, taken = progress.clone(), torch.empty_like(moves[0])
    _vacate_slots[_grid(num_searched)](
        slot_of, row_of, ranking, before, progress, misses, may_go, taken, moves, counts,
        num_rows, num_searched, num_slots, moves.stride(0), **options,
    )  # fmt: skip
    _fill_slots[_grid(num_rows)](
        slot_of, row_of, last_use, rows, slots, misses, may_go, taken, moves, batch, num_rows,
        num_searched, moves.stride(0), **options,
    )  # fmt: skip


@triton.jit(do_not_specialize=["batch", "num_rows"])
def _feed_rows(p_coming, p_rows, batch, num_rows, LANES: tl.constexpr):
    o_row = tl.program_id(0).to(tl.int64) * LANES + tl.arange(0, LANES)
    b_row = tl.load(p_rows + o_row, mask=o_row < num_rows, other=-1)
    tl.store(p_coming + b_row, tl.zeros([LANES], tl.int32) + batch, mask=b_row >= 0)


@triton.jit(do_not_specialize=["batch", "num_rows"])
def _touch_slots(p_slot_of, p_last_use, p_rows, batch, num_rows, LANES: tl.constexpr):
    o_row = tl.program_id(0).to(tl.int64) * LANES + tl.arange(0, LANES)
    b_row = tl.load(p_rows + o_row, mask=o_row < num_rows, other=-1)
    b_slot = tl.load(p_slot_of + b_row, mask=b_row >= 0, other=-1)
    tl.store(p_last_use + b_slot, tl.zeros([LANES], tl.int32) + batch, mask=b_slot >= 0)


@triton.jit(do_not_specialize=["batch", "oldest", "num_slots"])
def _age_slots(
    p_row_of, p_last_use, p_coming, p_keys, p_unneeded, batch, oldest, num_slots,
    LATER: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    o_slot = tl.program_id(0).to(tl.int64) * LANES + tl.arange(0, LANES)
    m_slot = o_slot < num_slots
    b_row = tl.load(p_row_of + o_slot, mask=m_slot, other=-1)
    b_coming = tl.load(p_coming + b_row, mask=b_row >= 0, other=-1)
    b_use = tl.load(p_last_use + o_slot, mask=m_slot, other=0)
    m_needed, m_kept = (b_row >= 0) & (b_coming >= batch), b_use > oldest
    b_key = tl.where(m_kept, 2147483647, b_use + tl.where(m_needed, LATER, 0))
    tl.store(p_keys + o_slot, b_key, mask=m_slot)
    tl.store(p_unneeded + o_slot, tl.where(m_needed | m_kept, 0, 1), mask=m_slot)


@triton.jit(do_not_specialize=["batch", "num_rows"])
def _find_slots(p_slot_of, p_last_use, p_rows, p_slots, p_misses, batch, num_rows, LANES: tl.constexpr):
    """2^32 for a row, and 1 where it has no slot: one running sum then counts both."""
    o_row = tl.program_id(0).to(tl.int64) * LANES + tl.arange(0, LANES)
    m_in = o_row < num_rows
    b_row = tl.load(p_rows + o_row, mask=m_in, other=-1)
    m_row = b_row >= 0
    b_slot = tl.load(p_slot_of + b_row, mask=m_row, other=0)
    m_hit = m_row & (b_slot >= 0)
    tl.store(p_last_use + b_slot, tl.zeros([LANES], tl.int32) + batch, mask=m_hit)
    tl.store(p_slots + o_row, b_slot.to(tl.int64), mask=m_in)
    b_missing = (m_row & (b_slot < 0)).to(tl.int64)
    tl.store(p_misses + o_row, (m_row.to(tl.int64) << 32) + b_missing, mask=m_in)


@triton.jit(do_not_specialize=["batch", "oldest", "num_searched", "num_slots"])
def _search_ranking(
    p_row_of, p_last_use, p_coming, p_ranking, p_progress, p_may_go, batch, oldest, num_searched,
    num_slots, LANES: tl.constexpr,
):  # fmt: skip
    """1 where a slot may go, and 2^32 where it may if the batch is drained."""
    o_searched = tl.program_id(0).to(tl.int64) * LANES + tl.arange(0, LANES)
    m_in = o_searched < num_searched
    o_place = tl.load(p_progress) + o_searched
    b_slot = tl.load(p_ranking + o_place % num_slots, mask=m_in, other=0)
    b_use = tl.load(p_last_use + b_slot, mask=m_in, other=batch)
    m_old = m_in & (o_place < num_slots) & (b_use <= oldest)
    b_row = tl.load(p_row_of + b_slot, mask=m_old, other=-1)
    b_coming = tl.load(p_coming + b_row, mask=b_row >= 0, other=-1)
    m_goes = m_old & ((b_coming < batch) | (o_place >= tl.load(p_progress + 1)))
    b_drained = (b_use != batch).to(tl.int64) << 32
    tl.store(p_may_go + o_searched, b_drained + m_goes.to(tl.int64), mask=m_in)


@triton.jit
def _case(p_misses, p_may_go, num_rows, num_searched):
    """Rows and missing ones of a batch, and how it gets slots for these: 0, DRAINED or BYPASSES."""
    rows_and_missing = tl.load(p_misses + num_rows - 1)
    num_missing = rows_and_missing & 0xFFFFFFFF
    may_go = tl.load(p_may_go + num_searched - 1)
    drained = ((may_go & 0xFFFFFFFF) < num_missing).to(tl.int64)
    bypasses = ((may_go >> 32) < num_missing).to(tl.int64) * drained
    return rows_and_missing >> 32, num_missing, drained + bypasses


@triton.jit(do_not_specialize=["num_rows", "num_searched", "num_slots", "stride"])
def _vacate_slots(
    p_slot_of, p_row_of, p_ranking, p_before, p_progress, p_misses, p_may_go, p_taken, p_moves,
    p_counts, num_rows, num_searched, num_slots, stride, LANES: tl.constexpr,
):  # fmt: skip
    num_real, num_missing, case = _case(p_misses, p_may_go, num_rows, num_searched)
    in_use, shift = tl.load(p_before + 2), tl.where(case == 1, 32, 0).to(tl.int64)
    num_in = tl.where(case == 2, 0, num_missing)
    num_free = tl.minimum(num_in, num_slots - in_use)  # ranked before all others
    o_searched = tl.program_id(0).to(tl.int64) * LANES + tl.arange(0, LANES)
    m_in = o_searched < num_searched
    b_rank = (tl.load(p_may_go + o_searched, mask=m_in, other=0) >> shift) & 0xFFFFFFFF
    b_rank_before = tl.load(p_may_go + o_searched - 1, mask=m_in & (o_searched > 0), other=0)
    m_goes = m_in & (b_rank > ((b_rank_before >> shift) & 0xFFFFFFFF)) & (b_rank <= num_in)
    o_place = tl.load(p_before) + o_searched
    b_slot = tl.load(p_ranking + o_place % num_slots, mask=m_goes, other=0)
    b_row = tl.load(p_row_of + b_slot, mask=m_goes, other=-1)
    m_out = b_row >= 0
    tl.store(p_taken + b_rank - 1, b_slot.to(tl.int64), mask=m_goes)
    tl.store(p_slot_of + b_row, tl.full([LANES], -1, tl.int32), mask=m_out)
    p_out = p_moves + 2 * stride + b_rank - 1 - num_free
    tl.store(p_out, b_row.to(tl.int64), mask=m_out)
    tl.store(p_out + stride, b_slot.to(tl.int64), mask=m_out)
    next_place = tl.max(tl.where(m_goes & (b_rank == num_in), o_place + 1, 0), axis=0)
    if next_place > 0:
        tl.store(p_progress, tl.minimum(next_place, num_slots))
    if tl.program_id(0) == 0:
        tl.store(p_progress + 2, in_use + num_free)
        tl.store(p_counts, num_real)
        tl.store(p_counts + 1, num_missing)
        tl.store(p_counts + 2, num_in - num_free)
        tl.store(p_counts + 3, case)


@triton.jit(do_not_specialize=["batch", "num_rows", "num_searched", "stride"])
def _fill_slots(
    p_slot_of, p_row_of, p_last_use, p_rows, p_slots, p_misses, p_may_go, p_taken, p_moves, batch,
    num_rows, num_searched, stride, LANES: tl.constexpr,
):  # fmt: skip
    _, _, case = _case(p_misses, p_may_go, num_rows, num_searched)
    if case < 2:
        o_row = tl.program_id(0).to(tl.int64) * LANES + tl.arange(0, LANES)
        m_in = o_row < num_rows
        b_slot = tl.load(p_slots + o_row, mask=m_in, other=0)
        m_missing = b_slot < 0
        b_rank = (tl.load(p_misses + o_row, mask=m_missing, other=1) & 0xFFFFFFFF) - 1
        b_slot = tl.load(p_taken + b_rank, mask=m_missing, other=0)
        b_row = tl.load(p_rows + o_row, mask=m_missing, other=0)
        tl.store(p_slot_of + b_row, b_slot.to(tl.int32), mask=m_missing)
        tl.store(p_row_of + b_slot, b_row.to(tl.int32), mask=m_missing)
        tl.store(p_last_use + b_slot, tl.zeros([LANES], tl.int32) + batch, mask=m_missing)
        tl.store(p_slots + o_row, b_slot, mask=m_missing)
        tl.store(p_moves + b_rank, b_row, mask=m_missing)
        tl.store(p_moves + stride + b_rank, b_slot, mask=m_missing)


def _grid(num: int) -> tuple[int]:
    return (launch.cdiv(num, launch.LANES),)
