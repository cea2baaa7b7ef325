"""Cross-entropy of logits on the GPU, in one pass each way. Formulas: `ops.layers.log_loss`."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from hotrows.ops.triton import launch


def log_loss(logits: Tensor, labels: Tensor, weights: Tensor | None) -> Tensor:
    return _launched(None, logits, labels, weights)


def log_loss_backward(grad: Tensor, logits: Tensor, labels: Tensor, weights: Tensor | None) -> Tensor:
    return _launched(grad.contiguous(), logits, labels, weights)


def _launched(grad: Tensor | None, logits: Tensor, labels: Tensor, weights: Tensor | None) -> Tensor:
    logits, labels = logits.contiguous(), labels.contiguous()
    weights, num_weights = (None, 1) if weights is None else (weights.contiguous(), weights.numel())
    out = torch.empty_like(logits)
    if out.numel() > 0:
        _losses[(triton.cdiv(out.numel(), launch.LANES),)](
            grad, logits, labels, weights, out, out.numel(), num_weights, LANES=launch.LANES
        )
    return out


@triton.jit(do_not_specialize=["num", "num_weights"])
def _losses(p_grad, p_logits, p_labels, p_weights, p_out, num, num_weights, LANES: tl.constexpr):
    """Losses, or with the gradient of these that of the logits."""
    o = tl.program_id(0).to(tl.int64) * LANES + tl.arange(0, LANES)
    m = o < num
    b_x, b_label = tl.load(p_logits + o, mask=m, other=0.0), tl.load(p_labels + o, mask=m, other=0.0)
    if p_grad is None:
        b_power = tl.exp(-tl.abs(b_x))
        b_sum = 1.0 + b_power  # log(1 + power) to the last bits, also where the power is small
        b_rounded = tl.where(b_sum == 1.0, 1.0, b_sum - 1.0)
        b_log = tl.where(b_sum == 1.0, b_power, tl.log(b_sum) * (b_power / b_rounded))
        b_out = tl.maximum(b_x, 0.0) - b_x * b_label + b_log
    else:
        b_out = (tl.sigmoid(b_x) - b_label) * tl.load(p_grad + o, mask=m, other=0.0)
    if p_weights is not None:
        b_out = b_out * tl.load(p_weights + o % num_weights, mask=m, other=0.0)
    tl.store(p_out + o, b_out, mask=m)
