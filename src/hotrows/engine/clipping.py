"""Clipping by the norm of all gradients, rows included: `torch.nn.utils.clip_grad_norm_` of a model.

With an L2 term of the loss (`l2` of a dense row optimizer), every row of a table has a gradient:

    |G|^2 = sum over the rows read of |g|^2 + 2 l2 <g, w>   +   l2^2 |W|^2

|W|^2, the sum of all squared weights, is followed as rows change (`DenseRows`); rows that are behind
count as they are stored. So the norm is exact but for l2^2 times what the steps missed would change of
|W|^2: with l2 = 1e-5 and |W|^2 below 1e5, less than the rounding of float32 at any norm that is clipped
at 10. Where nothing is clipped nothing differs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hotrows import ops
from hotrows.engine.distributed.comm import Ranks
from hotrows.engine.packed_tables import PackedTables
from hotrows.ops.plan import Plan
from hotrows.runtime.shapes import Float64


@dataclass(frozen=True)
class Clip:
    """max_norm: of all gradients together; squares: the sum of squares of the dense part's gradients."""

    max_norm: float
    squares: float


def count_squares(tables: PackedTables, ranks: Ranks) -> None:
    """Begins to follow |W|^2, unless a checkpoint has said what it is; collective between ranks."""
    dense = tables.dense_rows
    if not dense.counts_squares:
        dense.count_squares(tables.memory)
        dense.share_squares(ranks)


def clip_factor(
    tables: PackedTables, plan: Plan, grads: Sequence[Tensor | None], clip: Clip, ranks: Ranks
) -> float:
    """Returns what all gradients are multiplied with, 1 at most; collective between ranks.

    grads: of the bags of each pack, as for `PackedTables.update`.
    """
    squares = torch.zeros(1, dtype=torch.float64)
    for p, grad in enumerate(grads):
        if grad is not None and plan.packs[p].num_rows:
            squares += _squares_of_rows(tables, p, plan, grad)
    total = ranks.all_reduce(squares).wait() + tables.dense_rows.l2_squares(ranks) + clip.squares
    factor = (clip.max_norm / (total.sqrt() + 1e-6)).clamp(max=1.0)
    return float(factor.float())  # float32 hides the last bits of |W|^2, whose sum has no one order


def scaled(
    tables: PackedTables,
    grads: Sequence[Tensor | None],
    numbers: Float64[Tensor, "packs _"],
    factor: float,
) -> tuple[Sequence[Tensor | None], Float64[Tensor, "packs _"]]:
    """Returns gradients and hyperparameters with all gradients, L2 terms included, times a factor."""
    if factor == 1:
        return grads, numbers
    numbers = numbers.clone()
    for p, pack in enumerate(tables.packs):
        optimizer = pack.tables[0].optimizer
        assert optimizer is not None
        if optimizer.l2_term:
            numbers[p, 1] -= (1 - factor) * optimizer.l2_term
    return [None if grad is None else grad * factor for grad in grads], numbers


def _squares_of_rows(tables: PackedTables, p: int, plan: Plan, grad: Tensor) -> Float64[Tensor, "1"]:
    """The sum over the rows read of |g|^2 + 2 l2 <g, w>; rows that all ranks hold count on the first."""
    part, shard = plan.packs[p], tables.shards[p]
    sums = ops.sum_gradients(grad, part.order, part.starts, part.bags, part.weights).double()  # [U, d]
    by_row = sums.square().sum(1)
    optimizer = tables.packs[p].tables[0].optimizer
    assert optimizer is not None
    if optimizer.l2_term:
        by_row += 2 * optimizer.l2_term * (sums * tables.rows(p, plan)).sum(1)
    for piece in shard.slices if shard.rank else ():
        if piece.shared:
            end = piece.first_row + piece.num_rows
            by_row[(part.rows >= piece.first_row) & (part.rows < end)] = 0
    return by_row.sum(0, keepdim=True)
