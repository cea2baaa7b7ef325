"""Deferred dense optimizers over tables that lie anywhere in memory (`ops.deferred`).

A line of 12 numbers says where a table is, as `csrc/deferred_rows.h` has them: addresses, strides, and
which steps it has made. A row finds its table by a search in the bounds, and its steps in a list on the
device, [K, 16] (`ops.deferred.history.DeviceSteps`). Rows beyond the last bound are padding.

A row that is behind makes one step after the other with its elements in registers, and stops early where
none of the steps left can move its weights: their states then shrink by all of them at once.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from hotrows.ops.deferred.reference import Target
from hotrows.ops.triton import launch
from hotrows.ops.triton.runs import sum_runs, sum_windows
from hotrows.ops.triton.search import last_at_most

ELEMENTS = 256
"""Of a tile of rows: few, since all of them wait for the one that is furthest behind."""

CHECK = 16
"""Steps between two looks whether a row can still move."""

_FEW = {**launch.OPTIONS, "num_warps": 2}
_LINE = tl.constexpr(12)
_WIDTH = tl.constexpr(16)  # of a step


def catch_up(
    kind: str, targets: Sequence[Target], slots: Tensor | None, bounds: Tensor, squares: Tensor | None
) -> None:
    _caught_up(kind, targets, _lines(targets), slots, bounds, squares)


def _caught_up(
    kind: str, targets: Sequence[Target], lines: Tensor, slots: Tensor | None, bounds: Tensor,
    squares: Tensor | None,
) -> None:  # fmt: skip
    num_rows = sum(len(target.last) for target in targets) if slots is None else slots.numel()
    if not num_rows:
        return
    changes = _changes(num_rows, bounds, squares)
    sizes, tile = _sizes(kind, targets, ELEMENTS)
    _catch_up[(launch.cdiv(num_rows, tile["ROWS"]),)](
        lines, slots, bounds, changes, *sizes, **tile, **_FEW, CHECK=CHECK,
        TINY=torch.finfo(targets[0].weights.dtype).eps / 16,
    )  # fmt: skip
    _add_changes(changes, bounds, squares)


def update(
    kind: str,
    targets: Sequence[Target],
    slots: Tensor,
    bounds: Tensor,
    order: Tensor,
    starts: Tensor,
    bags: Tensor | None,
    weights: Tensor | None,
    grad: Tensor,
    scales: Tensor,
    squares: Tensor | None,
) -> None:
    if not slots.numel():
        return
    lines = _lines(targets)
    if any(target.now > target.first for target in targets):
        _caught_up(kind, targets, lines, slots, bounds, squares)
    grad = grad.contiguous()
    heads, tails = sum_windows(grad, order, starts, bags, weights)
    changes = _changes(slots.numel(), bounds, squares)
    sizes, tile = _sizes(kind, targets, launch.BAG_ELEMENTS)
    _step[(launch.cdiv(slots.numel(), tile["ROWS"]),)](
        lines, slots, bounds, grad, order, starts, bags, weights, heads, tails,
        scales, changes, *sizes, **tile, **launch.OPTIONS, WINDOW=launch.WINDOW, UNROLL=launch.UNROLL,
    )  # fmt: skip
    _add_changes(changes, bounds, squares)


def lookup(
    targets: Sequence[Target],
    slots: Tensor,
    bounds: Tensor,
    inverse: Tensor,
    bag_starts: Tensor | None,
    weights: Tensor | None,
) -> Tensor:
    table = targets[0].weights
    num_bags = inverse.numel() if bag_starts is None else bag_starts.numel() - 1
    out = table.new_empty(num_bags, table.shape[1])
    elements = launch.GATHER_ELEMENTS if bag_starts is None else launch.BAG_ELEMENTS
    sizes, tile = _sizes("none", targets, elements)
    if num_bags:
        _look_up[(launch.cdiv(num_bags, tile["ROWS"]),)](
            _lines(targets), slots, bounds, inverse, bag_starts, weights, out, num_bags,
            *sizes, **tile, **launch.OPTIONS, UNROLL=launch.UNROLL,
        )  # fmt: skip
    return out


def _lines(targets: Sequence[Target]) -> Tensor:
    """[T, 12] int64 on the device of the targets."""
    numbers = array("q")
    for target in targets:
        numbers.extend(target.line())
    lines, device = torch.frombuffer(numbers, dtype=torch.int64), targets[0].weights.device
    return lines.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else lines


def _sizes(kind: str, targets: Sequence[Target], elements: int) -> tuple[tuple, dict]:
    """Numbers and constants that all kernels take."""
    table = targets[0].weights
    rows, columns = launch.tile(table.shape[1], elements, launch.GATHER_COLUMNS)
    float_type = tl.float64 if table.dtype == torch.float64 else tl.float32
    tile = {"KIND": kind, "STATES": len(targets[0].states), "D": table.shape[1], "T": float_type}
    sizes = len(targets), (len(targets) + 1).bit_length()
    return sizes, {**tile, "ROWS": rows, "COLUMNS": columns}


def _changes(num_rows: int, bounds: Tensor, squares: Tensor | None) -> Tensor | None:
    """[U] float64, to take the change of each row's sum of squares; None: nobody wants it."""
    if squares is None:
        return None
    return torch.empty(num_rows, dtype=torch.float64, device=bounds.device)


def _add_changes(changes: Tensor | None, bounds: Tensor, squares: Tensor | None) -> None:
    if changes is not None and squares is not None:
        _sum_changes[(squares.numel(),)](changes, bounds, squares, BLOCK=1024, **launch.OPTIONS)


@triton.jit
def _sum_changes(p_changes, p_bounds, p_squares, BLOCK: tl.constexpr):
    """Of one table's rows, in one order."""
    i_table = tl.program_id(0)
    begin, end = tl.load(p_bounds + i_table), tl.load(p_bounds + i_table + 1)
    b_sum = tl.zeros([BLOCK], dtype=tl.float64)
    for first in range(begin, end, BLOCK):
        o_row = first + tl.arange(0, BLOCK)
        b_sum += tl.load(p_changes + o_row, mask=o_row < end, other=0.0)
    tl.store(p_squares + i_table, tl.load(p_squares + i_table) + tl.sum(b_sum, 0))


@triton.jit
def _table_of(p_bounds, num_tables, num_searches, o_row):
    """The table of each row, -1 for padding and for rows of other calls."""
    b_table = last_at_most(p_bounds, num_tables, num_searches, o_row)
    return tl.where(o_row < tl.load(p_bounds + num_tables), b_table, -1)


@triton.jit
def _row_of(p_line, place: tl.constexpr, b_slot, m_row):
    """The address of each row in the memory whose address and stride are at `place` of its line."""
    b_address = tl.load(p_line + place, mask=m_row, other=0)
    return b_address + b_slot * tl.load(p_line + place + 1, mask=m_row, other=0)


@triton.jit
def _state_of(p_line, state: tl.constexpr, b_slot, m_row):
    b_address = tl.load(p_line + 2 + state, mask=m_row, other=0)
    return b_address + b_slot * tl.load(p_line + 4, mask=m_row, other=0)


@triton.jit
def _at(b_address, o_d, T: tl.constexpr):
    return b_address.to(tl.pointer_type(T))[:, None] + o_d[None, :]


@triton.jit
def _places_of(p_line, b_slot, m_row, o_d, T: tl.constexpr):
    """Where the weights and both states of each row are."""
    p_w = _at(_row_of(p_line, 0, b_slot, m_row), o_d, T)
    p_first = _at(_state_of(p_line, 0, b_slot, m_row), o_d, T)
    return p_w, p_first, _at(_state_of(p_line, 1, b_slot, m_row), o_d, T)


@triton.jit
def _load(p_w, p_first, p_second, m, STATES: tl.constexpr):
    """The weights and both states of each row; zeros for states that there are none of."""
    b_w = tl.load(p_w, mask=m, other=0.0)
    b_first, b_second = tl.zeros_like(b_w), tl.zeros_like(b_w)
    if STATES > 0:
        b_first = tl.load(p_first, mask=m, other=0.0)
    if STATES > 1:
        b_second = tl.load(p_second, mask=m, other=0.0)
    return b_w, b_first, b_second


@triton.jit
def _store(p_w, p_first, p_second, b_w, b_first, b_second, m, STATES: tl.constexpr):
    tl.store(p_w, b_w, mask=m)
    if STATES > 0:
        tl.store(p_first, b_first, mask=m)
    if STATES > 1:
        tl.store(p_second, b_second, mask=m)


@triton.jit
def _change_of(b_old, b_new, m):
    """How much each row's sum of squared weights grows."""
    b_old, b_new = b_old.to(tl.float64), b_new.to(tl.float64)
    return tl.sum(tl.where(m, b_new * b_new - b_old * b_old, 0.0), axis=1)


@triton.jit
def _divided(b_x, b_y):
    """Rounded as the reference rounds."""
    return b_x / b_y if b_x.dtype == tl.float64 else tl.div_rn(b_x, b_y)


@triton.jit
def _root(b_x):
    return tl.sqrt(b_x) if b_x.dtype == tl.float64 else tl.sqrt_rn(b_x)


@triton.jit
def _moved(
    b_w, b_first, b_second, b_g, p_step, m_step, KIND: tl.constexpr, STATES: tl.constexpr, T: tl.constexpr
):
    """Weights and states after a step with gradients b_g; p_step: of each row, its numbers."""
    b_c = tl.load(p_step, mask=m_step, other=0.0).to(T)[:, None]
    b_shrink = tl.load(p_step + 1, mask=m_step, other=1.0).to(T)[:, None]
    b_rate = tl.load(p_step + 2, mask=m_step, other=0.0).to(T)[:, None]
    b_third = tl.load(p_step + 3, mask=m_step, other=1.0)[:, None]
    b_fourth = tl.load(p_step + 4, mask=m_step, other=1.0)[:, None]
    b_fifth = tl.load(p_step + 5, mask=m_step, other=1.0).to(T)[:, None]
    b_g = b_g + b_c * b_w
    if KIND == "sgd":
        if STATES:
            b_first = b_first * b_third.to(T) + b_fourth.to(T) * b_g
            b_g = tl.where(b_fifth != 0, b_g + b_third.to(T) * b_first, b_first)
        b_move = b_rate * b_g
    elif KIND == "adagrad":
        b_first = b_first + b_g * b_g
        b_move = _divided(b_rate * b_g, _root(b_first) + b_third.to(T))
    elif KIND == "rmsprop":
        b_first = b_first * b_third.to(T) + (1 - b_third).to(T) * (b_g * b_g)
        b_move = _divided(b_rate * b_g, _root(b_first) + b_fourth.to(T))
    else:
        tl.static_assert(KIND == "adam", "unknown optimizer")
        b_correction = tl.load(p_step + 6, mask=m_step, other=1.0).to(T)[:, None]
        b_first = b_first + (1 - b_third).to(T) * (b_g - b_first)
        b_second = b_second * b_fourth.to(T) + (1 - b_fourth).to(T) * (b_g * b_g)
        b_root = _divided(_root(b_second), b_correction) + b_fifth
        b_move = _divided(b_rate * b_first, b_root)
    return b_w * b_shrink - b_move, b_first, b_second


@triton.jit
def _rests(
    b_w, b_first, b_second, b_at, b_begin, p_before, p_newest, m_row, KIND: tl.constexpr,
    STATES: tl.constexpr, T: tl.constexpr, TINY: tl.constexpr,
):  # fmt: skip
    """True if no step from b_at on can move a row's weights, but for what they shrink by.

    p_before: of each row, the numbers of the step before; p_newest: of the last one on record, whose
    column 11 says from which step on nothing decays, and column 12 how far all steps to come can move
    weights at most, as a multiple of the move before its rate. TINY: of a weight, what does not move it.
    """
    m_fades = m_row & (b_at.to(tl.float64) >= tl.load(p_newest + 11, mask=m_row, other=0.0))
    if KIND == "adam" or (KIND == "sgd" and STATES > 0):
        b_reach = tl.load(p_newest + 12, mask=m_row, other=0.0)[:, None]
        b_move = tl.abs(b_first).to(tl.float64)
        if KIND == "adam":
            m_made = m_row & (b_at > b_begin)
            b_eps = tl.load(p_before + 5, mask=m_made, other=1.0).to(T)[:, None]
            b_correction = tl.load(p_before + 6, mask=m_made, other=1.0).to(T)[:, None]
            b_move = b_move / (_root(b_second) + b_eps * b_correction).to(tl.float64)
            m_fades = m_fades & m_made
        m_moves = (b_move * b_reach <= TINY * tl.abs(b_w).to(tl.float64)) == 0  # so where it is no number
        m_fades = m_fades & (tl.max(m_moves.to(tl.int32), axis=1) == 0)
    return m_fades


@triton.jit
def _left(p_before, p_newest, column: tl.constexpr, m_row, m_made, T: tl.constexpr):
    """The factor by which the steps that are left shrink something."""
    b_made = tl.load(p_before + column, mask=m_row & m_made, other=0.0)
    b_all = tl.load(p_newest + column, mask=m_row, other=0.0)
    return tl.exp(b_all - b_made).to(T)[:, None]


@triton.jit(do_not_specialize=["num_tables", "num_searches"])
def _catch_up(
    p_lines, p_slots, p_bounds, p_changes, num_tables, num_searches, KIND: tl.constexpr,
    STATES: tl.constexpr, D: tl.constexpr, T: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    CHECK: tl.constexpr, TINY: tl.constexpr,
):  # fmt: skip
    # Which rows these are, and from which step to which one they are behind.
    o_row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    b_table = _table_of(p_bounds, num_tables, num_searches, o_row)
    m_row = b_table >= 0
    p_line = p_lines + b_table * _LINE
    if p_slots is None:  # every row of the tables, laid end to end
        b_slot = o_row - tl.load(p_bounds + b_table, mask=m_row, other=0)
    else:
        b_slot = tl.load(p_slots + o_row, mask=m_row, other=0)
    p_last = _row_of(p_line, 5, b_slot, m_row).to(tl.pointer_type(tl.int32))
    b_last = tl.load(p_last, mask=m_row, other=0).to(tl.int64)
    b_first_step = tl.load(p_line + 9, mask=m_row, other=0)
    b_now = tl.load(p_line + 10, mask=m_row, other=0)
    b_begin = tl.where(b_last < 0, tl.load(p_line + 11, mask=m_row, other=0), b_last)
    b_begin = tl.maximum(b_begin, b_first_step)
    m_behind = m_row & (b_begin < b_now)
    b_change = tl.zeros([ROWS], dtype=tl.float64)
    if tl.max(m_behind.to(tl.int32), axis=0) > 0:
        b_steps = tl.load(p_line + 8, mask=m_row, other=0).to(tl.pointer_type(tl.float64))
        p_newest = b_steps + (b_now - 1 - b_first_step) * _WIDTH
        for column in range(0, D, COLUMNS):
            o_d = column + tl.arange(0, COLUMNS)
            m = m_behind[:, None] & (o_d < D)[None, :]
            p_w, p_first, p_second = _places_of(p_line, b_slot, m_row, o_d, T)
            b_w, b_first, b_second = _load(p_w, p_first, p_second, m, STATES)
            b_before = b_w
            b_at = tl.where(m_behind, b_begin, b_now)
            left = tl.max(b_now - b_at, axis=0)
            while left > 0:
                p_made = b_steps + (b_at - 1 - b_first_step) * _WIDTH
                m_on = m_behind & (b_at < b_now)
                # A row that only shrinks from here on takes all steps that are left at once.
                m_rests = _rests(
                    b_w, b_first, b_second, b_at, b_begin, p_made, p_newest, m_on, KIND, STATES, T,
                    TINY,
                )  # fmt: skip
                m_made = b_at > b_first_step
                b_shrink = _left(p_made, p_newest, 10, m_rests, m_made, T)
                b_w = tl.where(m_rests[:, None], b_w * b_shrink, b_w)
                if STATES > 0:
                    b_factor = _left(p_made, p_newest, 8, m_rests, m_made, T)
                    b_first = tl.where(m_rests[:, None], b_first * b_factor, b_first)
                if STATES > 1:
                    b_factor = _left(p_made, p_newest, 9, m_rests, m_made, T)
                    b_second = tl.where(m_rests[:, None], b_second * b_factor, b_second)
                b_at = tl.where(m_rests, b_now, b_at)
                for _ in range(CHECK):
                    m_on = m_behind & (b_at < b_now)
                    p_step = b_steps + (b_at - b_first_step) * _WIDTH
                    b_new, b_new_first, b_new_second = _moved(
                        b_w, b_first, b_second, tl.zeros_like(b_w), p_step, m_on, KIND, STATES, T
                    )
                    b_w = tl.where(m_on[:, None], b_new, b_w)
                    b_first = tl.where(m_on[:, None], b_new_first, b_first)
                    b_second = tl.where(m_on[:, None], b_new_second, b_second)
                    b_at = tl.where(m_on, b_at + 1, b_at)
                left = tl.max(b_now - b_at, axis=0)
            _store(p_w, p_first, p_second, b_w, b_first, b_second, m, STATES)
            if p_changes is not None:
                b_change += _change_of(b_before, b_w, m)
        tl.debug_barrier()  # each row's number is read by many threads and written by one
        tl.store(p_last, b_now.to(tl.int32), mask=m_behind)
    if p_changes is not None:
        tl.store(p_changes + o_row, b_change, mask=m_row)


@triton.jit(do_not_specialize=["num_tables", "num_searches"])
def _step(
    p_lines, p_slots, p_bounds, p_grad, p_order, p_starts, p_bags, p_weights, p_heads, p_tails, p_scales,
    p_changes, num_tables, num_searches, KIND: tl.constexpr, STATES: tl.constexpr, D: tl.constexpr,
    T: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, WINDOW: tl.constexpr,
    UNROLL: tl.constexpr,
):  # fmt: skip
    o_row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    b_table = _table_of(p_bounds, num_tables, num_searches, o_row)
    m_row = b_table >= 0
    p_line = p_lines + b_table * _LINE
    b_slot = tl.load(p_slots + o_row, mask=m_row, other=0)
    b_now = tl.load(p_line + 10, mask=m_row, other=0)
    b_steps = tl.load(p_line + 8, mask=m_row, other=0).to(tl.pointer_type(tl.float64))
    p_step = b_steps + (b_now - tl.load(p_line + 9, mask=m_row, other=0)) * _WIDTH
    b_scale = tl.load(p_scales + b_table, mask=m_row, other=0.0).to(T)[:, None]
    b_change = tl.zeros([ROWS], dtype=tl.float64)
    for column in range(0, D, COLUMNS):
        o_d = column + tl.arange(0, COLUMNS)
        m_d = (o_d < D)[None, :]
        m = m_row[:, None] & m_d
        b_g = sum_runs(
            p_grad, p_order, p_starts, p_bags, p_weights, p_heads, p_tails, o_row, m_row, o_d, m_d,
            D, WINDOW, UNROLL,
        )  # fmt: skip
        p_w, p_first, p_second = _places_of(p_line, b_slot, m_row, o_d, T)
        b_w, b_first, b_second = _load(p_w, p_first, p_second, m, STATES)
        b_new, b_first, b_second = _moved(
            b_w, b_first, b_second, b_g * b_scale, p_step, m_row, KIND, STATES, T
        )
        _store(p_w, p_first, p_second, b_new, b_first, b_second, m, STATES)
        if p_changes is not None:
            b_change += _change_of(b_w, b_new, m)
    p_last = _row_of(p_line, 5, b_slot, m_row).to(tl.pointer_type(tl.int32))
    tl.store(p_last, (b_now + 1).to(tl.int32), mask=m_row)
    if p_changes is not None:
        tl.store(p_changes + o_row, b_change, mask=m_row)


@triton.jit(do_not_specialize=["num_bags", "num_tables", "num_searches"])
def _look_up(
    p_lines, p_slots, p_bounds, p_inverse, p_bag_starts, p_weights, p_out, num_bags, num_tables,
    num_searches, KIND: tl.constexpr, STATES: tl.constexpr, D: tl.constexpr, T: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    o_bag = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    m_bag = o_bag < num_bags
    for column in range(0, D, COLUMNS):
        o_d = column + tl.arange(0, COLUMNS)
        m_d = (o_d < D)[None, :]
        if p_bag_starts is None:
            b_sum = _weighted(
                p_lines, p_slots, p_bounds, p_inverse, p_weights, o_bag, m_bag, o_d, m_d, num_tables,
                num_searches, T,
            )  # fmt: skip
        else:
            b_begin = tl.load(p_bag_starts + o_bag, mask=m_bag, other=0).to(tl.int64)
            b_length = tl.load(p_bag_starts + o_bag + 1, mask=m_bag, other=0).to(tl.int64) - b_begin
            b_sum = tl.zeros([ROWS, COLUMNS], dtype=T)
            for i in range(0, tl.max(b_length, axis=0), UNROLL):
                for j in tl.static_range(UNROLL):
                    b_sum += _weighted(
                        p_lines, p_slots, p_bounds, p_inverse, p_weights, b_begin + i + j,
                        m_bag & (i + j < b_length), o_d, m_d, num_tables, num_searches, T,
                    )  # fmt: skip
        tl.store(p_out + o_bag[:, None] * D + o_d[None, :], b_sum, mask=m_bag[:, None] & m_d)


@triton.jit
def _weighted(
    p_lines, p_slots, p_bounds, p_inverse, p_weights, o_id, m_id, o_d, m_d, num_tables, num_searches,
    T: tl.constexpr,
):  # fmt: skip
    """The weighted row of each id; zeros for padding and where there is none."""
    b_distinct = tl.load(p_inverse + o_id, mask=m_id, other=-1).to(tl.int64)
    b_table = _table_of(p_bounds, num_tables, num_searches, b_distinct)
    m_id = m_id & (b_distinct >= 0) & (b_table >= 0)
    b_slot = tl.load(p_slots + b_distinct, mask=m_id, other=0)
    p_row = _at(_row_of(p_lines + b_table * _LINE, 0, b_slot, m_id), o_d, T)
    b_row = tl.load(p_row, mask=m_id[:, None] & m_d, other=0.0)
    if p_weights is not None:
        b_row = b_row * tl.load(p_weights + o_id, mask=m_id, other=0.0)[:, None]
    return b_row
