"""The softmax over each list on the GPU, a program of one warp each; formulas: `ops.layers.attention`.

Positions behind the last list, of padding, get zeros.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from hotrows.ops.triton.lists import clear


def softmax_jagged(scores: Tensor, offsets: Tensor) -> Tensor:
    out = torch.empty_like(scores)
    if out.numel() > 0:
        num, size = out.numel(), len(offsets) - 1
        _softmax[(size,)](scores, offsets, out, num, size, BN=32, num_warps=1)
    return out


def softmax_jagged_backward(grad: Tensor, weights: Tensor, offsets: Tensor) -> Tensor:
    out = torch.empty_like(weights)
    if out.numel() > 0:
        num, size = out.numel(), len(offsets) - 1
        _softmax_back[(size,)](grad, weights, offsets, out, num, size, BN=32, num_warps=1)
    return out


@triton.jit(do_not_specialize=["num", "num_samples"])
def _softmax(p_scores, p_offsets, p_out, num, num_samples, BN: tl.constexpr):
    i_b = tl.program_id(0).to(tl.int64)
    begin, end = tl.load(p_offsets + i_b), tl.load(p_offsets + i_b + 1)
    b_highest = tl.full([BN], -float("inf"), tl.float32)
    for first in range(begin, end, BN):
        o_n = first + tl.arange(0, BN)
        b_score = tl.load(p_scores + o_n, mask=o_n < end, other=-float("inf"))
        b_highest = tl.maximum(b_highest, b_score)
    highest = tl.max(b_highest, axis=0)
    b_sum = tl.zeros([BN], tl.float32)
    for first in range(begin, end, BN):
        o_n = first + tl.arange(0, BN)
        b_score = tl.load(p_scores + o_n, mask=o_n < end, other=-float("inf"))
        b_sum += tl.where(o_n < end, tl.exp(b_score - highest), 0.0)
    total = tl.sum(b_sum, axis=0)
    for first in range(begin, end, BN):
        o_n = first + tl.arange(0, BN)
        b_score = tl.load(p_scores + o_n, mask=o_n < end, other=0.0)
        tl.store(p_out + o_n, tl.exp(b_score - highest) / total, mask=o_n < end)
    if i_b == num_samples - 1:
        clear(p_out, end, num.to(tl.int64), BN)


@triton.jit(do_not_specialize=["num", "num_samples"])
def _softmax_back(p_grad, p_weights, p_offsets, p_out, num, num_samples, BN: tl.constexpr):
    i_b = tl.program_id(0).to(tl.int64)
    begin, end = tl.load(p_offsets + i_b), tl.load(p_offsets + i_b + 1)
    b_sum = tl.zeros([BN], tl.float32)
    for first in range(begin, end, BN):
        o_n = first + tl.arange(0, BN)
        b_grad = tl.load(p_grad + o_n, mask=o_n < end, other=0.0)
        b_sum += b_grad * tl.load(p_weights + o_n, mask=o_n < end, other=0.0)
    mean = tl.sum(b_sum, axis=0)
    for first in range(begin, end, BN):
        o_n = first + tl.arange(0, BN)
        b_grad = tl.load(p_grad + o_n, mask=o_n < end, other=0.0)
        b_weight = tl.load(p_weights + o_n, mask=o_n < end, other=0.0)
        tl.store(p_out + o_n, b_weight * (b_grad - mean), mask=o_n < end)
    if i_b == num_samples - 1:
        clear(p_out, end, num.to(tl.int64), BN)
