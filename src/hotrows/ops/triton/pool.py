"""The vector of each bag: rows gathered through two indices, weighted and summed in the bag's order.

Vectors are written for later kernels (`.cs`), and gradients read once (`evict_first`): neither may drive
the rows of hot ids out of the L2, which a batch reads again and again (`evict_last`).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from hotrows.ops.record import views
from hotrows.ops.triton import launch
from hotrows.ops.triton.integers import read_weights


def pool(
    records: Tensor,
    layout: list[int],
    slots: Tensor,
    inverse: Tensor,
    bag_starts: Tensor | None,
    weights: Tensor | None,
    narrow: bool = False,
) -> Tensor:
    dim, stored = layout[0], views(records, layout)
    single = bag_starts is None
    num_bags = inverse.numel() if bag_starts is None else bag_starts.numel() - 1
    dtype = torch.bfloat16 if narrow else torch.float32
    out = torch.empty(num_bags, dim, dtype=dtype, device=records.device)
    bags, columns = launch.tile(
        dim, launch.GATHER_ELEMENTS if single else launch.BAG_ELEMENTS, launch.GATHER_COLUMNS
    )
    grid = (launch.cdiv(num_bags, bags), launch.cdiv(dim, columns))
    rows = stored.weights, stored.scale, slots, inverse
    strides = {"STRIDE": stored.weights.stride(0), "SCALE_STRIDE": stored.state.stride(0)}
    tile = {"D": dim, **strides, "BAGS": bags, "COLUMNS": columns, **launch.OPTIONS}
    if single:
        _gather[grid](*rows, weights, out, num_bags, **tile)
    else:
        _pool[grid](*rows, bag_starts, weights, out, num_bags, **tile, UNROLL=launch.UNROLL)
    return out


@triton.jit(do_not_specialize=["num_bags"])
def _gather(
    p_stored, p_scale, p_slots, p_inverse, p_weights, p_out, num_bags, D: tl.constexpr,
    STRIDE: tl.constexpr, SCALE_STRIDE: tl.constexpr, BAGS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    o_bag = tl.program_id(0).to(tl.int64) * BAGS + tl.arange(0, BAGS)
    o_d = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    m_bag, m_d = o_bag < num_bags, (o_d < D)[None, :]
    b_row = _weighted(
        p_stored, p_scale, p_slots, p_inverse, p_weights, o_bag, m_bag, o_d, m_d, STRIDE, SCALE_STRIDE
    )
    p_row = p_out + o_bag[:, None] * D + o_d[None, :]
    b_row = b_row.to(p_out.dtype.element_ty)
    tl.store(p_row, b_row, mask=m_bag[:, None] & m_d, cache_modifier=".cs")


@triton.jit(do_not_specialize=["num_bags"])
def _pool(
    p_stored, p_scale, p_slots, p_inverse, p_bag_starts, p_weights, p_out, num_bags, D: tl.constexpr,
    STRIDE: tl.constexpr, SCALE_STRIDE: tl.constexpr, BAGS: tl.constexpr, COLUMNS: tl.constexpr,
    UNROLL: tl.constexpr,
):  # fmt: skip
    o_bag = tl.program_id(0).to(tl.int64) * BAGS + tl.arange(0, BAGS)
    o_d = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    m_bag, m_d = o_bag < num_bags, (o_d < D)[None, :]
    b_begin = tl.load(p_bag_starts + o_bag, mask=m_bag, other=0).to(tl.int64)
    b_length = tl.load(p_bag_starts + o_bag + 1, mask=m_bag, other=0).to(tl.int64) - b_begin
    b_sum = tl.zeros([BAGS, COLUMNS], dtype=tl.float32)
    for i in range(0, tl.max(b_length, axis=0), UNROLL):
        for j in tl.static_range(UNROLL):
            o_id, m_id = b_begin + i + j, i + j < b_length
            b_sum += _weighted(
                p_stored,
                p_scale,
                p_slots,
                p_inverse,
                p_weights,
                o_id,
                m_id,
                o_d,
                m_d,
                STRIDE,
                SCALE_STRIDE,
            )
    p_row = p_out + o_bag[:, None] * D + o_d[None, :]
    b_sum = b_sum.to(p_out.dtype.element_ty)
    tl.store(p_row, b_sum, mask=m_bag[:, None] & m_d, cache_modifier=".cs")


@triton.jit
def _weighted(
    p_stored, p_scale, p_slots, p_inverse, p_weights, o_id, m_id, o_d, m_d, STRIDE: tl.constexpr,
    SCALE_STRIDE: tl.constexpr,
):  # fmt: skip
    """The weighted row of each id; zeros for padding and where there is none."""
    b_distinct = tl.load(p_inverse + o_id, mask=m_id, other=-1).to(tl.int64)
    m_id = m_id & (b_distinct >= 0)
    b_slot = tl.load(p_slots + b_distinct, mask=m_id, other=0)
    b_row = read_weights(p_stored, b_slot, o_d, m_id, m_d, STRIDE, "evict_last")
    if p_scale is not None:
        b_row = b_row * tl.load(p_scale + b_slot * SCALE_STRIDE, mask=m_id, other=0.0)[:, None]
    if p_weights is not None:
        b_row = b_row * tl.load(p_weights + o_id, mask=m_id, other=0.0)[:, None]
    return b_row
