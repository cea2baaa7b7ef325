"""Mean cross-entropy of logits on the GPU, in one pass each way. Formulas: `ops.layers.log_loss`."""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from hotrows.ops.triton import launch
from hotrows.ops.triton.functions import log_one_more
from hotrows.ops.triton.turns import counts, is_last


def log_loss(logits: Tensor, labels: Tensor, weights: Tensor | None) -> Tensor:
    mean = logits.new_empty(()) if logits.numel() else logits.new_full((), math.nan)
    parts = logits.new_empty(launch.cdiv(logits.numel(), launch.LANES))
    return _launched(None, parts, mean, logits, labels, weights)


def log_loss_backward(grad: Tensor, logits: Tensor, labels: Tensor, weights: Tensor | None) -> Tensor:
    return _launched(grad, None, torch.empty_like(logits), logits, labels, weights)


def _launched(
    grad: Tensor | None,
    parts: Tensor | None,
    out: Tensor,
    logits: Tensor,
    labels: Tensor,
    weights: Tensor | None,
) -> Tensor:
    logits, labels, num = logits.contiguous(), labels.contiguous(), logits.numel()
    weights, num_weights = (None, 1) if weights is None else (weights.contiguous(), weights.numel())
    if num > 0:
        _losses[(launch.cdiv(num, launch.LANES),)](
            grad, logits, labels, weights, parts, out, counts(1, logits.device), num, num_weights,
            LANES=launch.LANES,
        )  # fmt: skip
    return out


@triton.jit(do_not_specialize=["num", "num_weights"])
def _losses(
    p_grad, p_logits, p_labels, p_weights, p_parts, p_out, p_count, num, num_weights,
    LANES: tl.constexpr,
):  # fmt: skip
    """The mean loss, or with the gradient of it that of the logits."""
    o = tl.program_id(0).to(tl.int64) * LANES + tl.arange(0, LANES)
    m = o < num
    b_x, b_label = tl.load(p_logits + o, mask=m, other=0.0), tl.load(p_labels + o, mask=m, other=0.0)
    if p_grad is None:
        b_out = tl.maximum(b_x, 0.0) - b_x * b_label + log_one_more(tl.exp(-tl.abs(b_x)))
    else:
        b_out = (tl.sigmoid(b_x) - b_label) * (tl.load(p_grad) / num)
    if p_weights is not None:
        b_out = b_out * tl.load(p_weights + o % num_weights, mask=m, other=0.0)
    if p_grad is not None:
        tl.store(p_out + o, b_out, mask=m)
    else:
        tl.store(p_parts + tl.program_id(0), tl.sum(tl.where(m, b_out, 0.0), 0))
        if is_last(p_count, tl.num_programs(0)):
            b_sum = tl.zeros([LANES], tl.float32)
            for first in range(0, tl.num_programs(0), LANES):
                o_part = first + tl.arange(0, LANES)
                b_sum += tl.load(p_parts + o_part, mask=o_part < tl.num_programs(0), other=0.0)
            tl.store(p_out, tl.sum(b_sum, 0) / num)
