"""The slot of each row, in a sorted list of the rows that have one."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from hotrows.ops.triton import launch
from hotrows.ops.triton.search import last_at_most


def find_slots(held_rows: Tensor, held_slots: Tensor, rows: Tensor) -> Tensor:
    rows, num_held = rows.contiguous(), held_rows.numel()
    out = torch.empty_like(rows)
    _find_slots[(triton.cdiv(rows.numel(), launch.LANES),)](
        held_rows, held_slots, rows, out, num_held, num_held.bit_length(), rows.numel(),
        LANES=launch.LANES, **launch.OPTIONS,
    )  # fmt: skip
    return out


@triton.jit(do_not_specialize=["num_held", "num_steps", "num_rows"])
def _find_slots(
    p_held_rows, p_held_slots, p_rows, p_out, num_held, num_steps, num_rows, LANES: tl.constexpr
):
    o_row = tl.program_id(0).to(tl.int64) * LANES + tl.arange(0, LANES)
    m_row = o_row < num_rows
    b_row = tl.load(p_rows + o_row, mask=m_row, other=-1)
    o_held = last_at_most(p_held_rows, num_held, num_steps, b_row)
    m_held = (o_held >= 0) & (b_row >= 0)
    m_found = m_held & (tl.load(p_held_rows + o_held, mask=m_held, other=-1) == b_row)
    b_slot = tl.load(p_held_slots + o_held, mask=m_found, other=-1)
    tl.store(p_out + o_row, b_slot, mask=m_row)
