"""The kernels of `step_cache`, with the results of its formulas in PyTorch."""

import torch
import triton
import triton.language as tl
from torch import Tensor

_ROWS = 64  # of a program that looks for rows in sets
_CHOSEN = 8  # rows of a program that compares the ages of all pairs of a set
_MOVED = 8  # rows of a program that moves records
_WORD = 4  # bytes: records of row-wise Adagrad are no multiple of 8


def find(rows: Tensor, sets: Tensor, row_of: Tensor, last_use: Tensor, time: int) -> Tensor:
    slots = torch.empty_like(rows)
    _find[(triton.cdiv(len(rows), _ROWS),)](
        rows, sets, row_of, last_use, slots, time, len(rows), WAYS=row_of.shape[1], ROWS=_ROWS
    )
    return slots


def replace(
    records: Tensor, host: Tensor, rows: Tensor, slots: Tensor, of_set: Tensor, order: Tensor,
    rank: Tensor, row_of: Tensor, last_use: Tensor, time: int,
) -> None:  # fmt: skip
    num_sets, ways = row_of.shape
    old = torch.empty_like(rows)
    moment = time, num_sets, len(rows)
    _choose[(triton.cdiv(len(rows), _CHOSEN),)](
        of_set, order, rank, row_of, last_use, slots, old, *moment, WAYS=ways, ROWS=_CHOSEN
    )
    near, far, tile = _words(records, host)
    moment = time, num_sets, num_sets * ways, len(rows)
    _swap[(triton.cdiv(len(rows), _MOVED),)](
        near, far, rows, slots, of_set, order, old, row_of, last_use, *moment, **tile
    )


def put_back(records: Tensor, host: Tensor, rows: Tensor, slots: Tensor, first_slot: int) -> None:
    near, far, tile = _words(records, host)
    _put_back[(triton.cdiv(len(rows), _MOVED),)](near, far, rows, slots, first_slot, len(rows), **tile)


def _words(records: Tensor, host: Tensor) -> tuple[Tensor, Tensor, dict[str, int]]:
    """Records on the device and on the host as words, and the tiles in which they are moved."""
    near, far, words = records.view(torch.int32), host.view(torch.int32), host.shape[1] // _WORD
    strides = {"NEAR": near.stride(0), "FAR": far.stride(0)}
    tile = {"WORDS": words, "ROWS": _MOVED, "COLUMNS": triton.next_power_of_2(words)}
    return near, far, {**strides, **tile}


@triton.jit(do_not_specialize=["time", "num_rows"])
def _find(
    p_rows, p_sets, p_row_of, p_last_use, p_slots, time, num_rows, WAYS: tl.constexpr, ROWS: tl.constexpr
):
    o_row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    m_row = o_row < num_rows
    b_row = tl.load(p_rows + o_row, mask=m_row, other=-1)
    b_set = tl.load(p_sets + o_row, mask=m_row, other=0)
    o_way = tl.arange(0, WAYS)
    b_held = tl.load(p_row_of + b_set[:, None] * WAYS + o_way[None, :])  # [ROWS, WAYS]
    m_hit = (b_held == b_row[:, None]) & (b_row >= 0)[:, None]
    b_way = tl.max(tl.where(m_hit, o_way[None, :], -1), axis=1)
    b_slot = tl.where(b_way >= 0, b_set * WAYS + b_way, -1)
    tl.store(p_slots + o_row, b_slot, mask=m_row)
    tl.store(p_last_use + b_slot, time, mask=m_row & (b_slot >= 0))


@triton.jit(do_not_specialize=["time", "num_sets", "num_rows"])
def _choose(
    p_of_set, p_order, p_rank, p_row_of, p_last_use, p_slots, p_old, time, num_sets, num_rows,
    WAYS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """The slot of each missing row: of its set, the one that stands at its rank by age."""
    o_row, m_row, b_set, b_place = _missing(p_of_set, p_order, num_sets, num_rows, ROWS)
    b_rank = tl.load(p_rank + o_row, mask=m_row, other=0)
    o_way = tl.arange(0, WAYS)
    o_slot = tl.where(m_row, b_set, 0)[:, None] * WAYS + o_way[None, :]
    b_age = tl.load(p_last_use + o_slot).to(tl.int64) * WAYS + o_way[None, :]  # [ROWS, WAYS], distinct
    b_before = tl.sum((b_age[:, None, :] < b_age[:, :, None]).to(tl.int32), axis=2)
    m_chosen = (b_before == b_rank[:, None]) & (b_age < time.to(tl.int64) * WAYS)
    b_way = tl.max(tl.where(m_chosen, o_way[None, :], -1), axis=1)
    b_slot = tl.where(b_way >= 0, b_set * WAYS + b_way, num_sets.to(tl.int64) * WAYS + b_place)
    b_old = tl.load(p_row_of + b_slot, mask=m_row & (b_way >= 0), other=-1)
    tl.store(p_slots + b_place, b_slot, mask=m_row)
    tl.store(p_old + o_row, b_old, mask=m_row)


@triton.jit(do_not_specialize=["time", "num_sets", "num_slots", "num_rows"])
def _swap(
    p_near, p_far, p_rows, p_slots, p_of_set, p_order, p_old, p_row_of, p_last_use, time, num_sets,
    num_slots, num_rows, WORDS: tl.constexpr, NEAR: tl.constexpr, FAR: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """The old row of a slot goes to host memory, and the missing one takes its place."""
    o_row, m_row, _, b_place = _missing(p_of_set, p_order, num_sets, num_rows, ROWS)
    b_slot = tl.load(p_slots + b_place, mask=m_row, other=0)
    b_row = tl.load(p_rows + b_place, mask=m_row, other=0)
    b_old = tl.load(p_old + o_row, mask=m_row, other=-1)
    o_word = tl.arange(0, COLUMNS)[None, :]
    m_in = m_row[:, None] & (o_word < WORDS)
    m_out = m_in & (b_old >= 0)[:, None]
    p_slot = p_near + b_slot[:, None] * NEAR + o_word  # [ROWS, COLUMNS]
    tl.store(p_far + b_old[:, None] * FAR + o_word, tl.load(p_slot, mask=m_out), mask=m_out)
    tl.debug_barrier()  # every element is out before one comes in
    tl.store(p_slot, tl.load(p_far + b_row[:, None] * FAR + o_word, mask=m_in), mask=m_in)
    m_kept = m_row & (b_slot < num_slots)
    tl.store(p_row_of + b_slot, b_row, mask=m_kept)
    tl.store(p_last_use + b_slot, time, mask=m_kept)


@triton.jit
def _missing(p_of_set, p_order, num_sets, num_rows, ROWS: tl.constexpr):
    """Of missing rows in the order of their sets: which are real, their sets, places in the batch."""
    o_row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    b_set = tl.load(p_of_set + o_row, mask=o_row < num_rows, other=num_sets)
    m_row = (o_row < num_rows) & (b_set < num_sets)
    return o_row, m_row, b_set, tl.load(p_order + o_row, mask=m_row, other=0)


@triton.jit(do_not_specialize=["first_slot", "num_rows"])
def _put_back(
    p_near, p_far, p_rows, p_slots, first_slot, num_rows,
    WORDS: tl.constexpr, NEAR: tl.constexpr, FAR: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):  # fmt: skip
    o_row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    b_slot = tl.load(p_slots + o_row, mask=o_row < num_rows, other=-1)
    b_row = tl.load(p_rows + o_row, mask=o_row < num_rows, other=0)
    o_word = tl.arange(0, COLUMNS)[None, :]
    m = ((b_slot >= first_slot) & (b_slot >= 0))[:, None] & (o_word < WORDS)
    b_word = tl.load(p_near + b_slot[:, None] * NEAR + o_word, mask=m)
    tl.store(p_far + b_row[:, None] * FAR + o_word, b_word, mask=m)
