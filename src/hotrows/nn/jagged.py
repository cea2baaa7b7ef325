"""Lists of vectors of uneven length: pooled, their last ones, or padded with a mask.

A jagged batch is [N, D] vectors and [B + 1] offsets: sample b has vectors[offsets[b] : offsets[b + 1]].
Nothing is padded until a layer asks for it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hotrows.nn.jagged_products import weighted_sum

POOLINGS = ("sum", "mean", "max")


def pool_jagged(vectors: Tensor, offsets: Tensor, pooling: str = "mean") -> Tensor:
    """[B, D]: the sum, mean or maximum of each sample's vectors; zeros where it has none.

    vectors = [[1.], [3.], [5.]], offsets = [0, 2, 2, 3], mean  ->  [[2.], [0.], [5.]]
    """
    if pooling not in POOLINGS:
        raise ValueError(f"pooling must be one of {', '.join(POOLINGS)}, not {pooling!r}")
    if pooling == "max":
        pooled = vectors.new_zeros(len(offsets) - 1, vectors.shape[1])
        index = samples_of(offsets)[:, None].expand_as(vectors)
        return pooled.scatter_reduce(0, index, vectors, "amax", include_self=False)
    pooled = weighted_sum(vectors.new_ones(len(vectors)), vectors, offsets)
    return pooled / offsets.diff().clamp(min=1)[:, None] if pooling == "mean" else pooled


def last_of(states: Tensor, offsets: Tensor) -> Tensor:
    """[B, H]: the vector at each sample's last position; zeros where it has none.

    states = [[1.], [3.], [5.]], offsets = [0, 2, 2, 3]  ->  [[3.], [0.], [5.]]
    """
    return _LastOf.apply(states, offsets)


def to_padded(vectors: Tensor, offsets: Tensor, length: int | None = None) -> tuple[Tensor, Tensor]:
    """[B, L, D] vectors with zeros behind the last of each sample, and [B, L] bool, where one stands.

    length: L, the longest list by default; of longer lists the last L vectors stay.
    """
    lengths = offsets.diff()
    longest = int(lengths.max()) if len(lengths) else 0
    width = longest if length is None else length
    skipped = (lengths - width).clamp(min=0)
    mask = torch.arange(width, device=offsets.device) < (lengths - skipped)[:, None]
    padded = vectors.new_zeros(len(lengths), width, vectors.shape[1])
    sample = samples_of(offsets)
    place = torch.arange(len(vectors), device=offsets.device) - offsets[sample] - skipped[sample]
    kept = place >= 0
    return padded.index_put((sample[kept], place[kept]), vectors[kept]), mask


def pool_padded(padded: Tensor, mask: Tensor, pooling: str = "mean") -> Tensor:
    """[B, D]: what `pool_jagged` gives, of [B, L, D] vectors where the [B, L] mask is set."""
    if pooling not in POOLINGS:
        raise ValueError(f"pooling must be one of {', '.join(POOLINGS)}, not {pooling!r}")
    shown = mask[:, :, None]
    if pooling == "max":
        highest = padded.masked_fill(~shown, -torch.inf).amax(1) if mask.shape[1] else padded.sum(1)
        return highest.masked_fill(~mask.any(1, keepdim=True), 0.0)
    total = padded.masked_fill(~shown, 0.0).sum(1)
    return total if pooling == "sum" else total / mask.sum(1, keepdim=True).clamp(min=1)


def samples_of(offsets: Tensor) -> Tensor:
    """[N] int64: the sample that each vector belongs to."""
    samples = torch.arange(len(offsets) - 1, device=offsets.device)
    return samples.repeat_interleave(offsets.diff())


class _LastOf(torch.autograd.Function):
    """A gather whose way back writes each row once: no two samples share a position."""

    @staticmethod
    def forward(ctx, states, offsets):
        ctx.save_for_backward(offsets)
        ctx.length = len(states)
        filled = offsets.diff() > 0
        last = states.new_zeros(len(filled), states.shape[1])
        last[filled] = states[offsets[1:][filled] - 1]
        return last

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad):
        (offsets,) = ctx.saved_tensors
        filled = offsets.diff() > 0
        grad_states = grad.new_zeros(ctx.length, grad.shape[1])
        grad_states[offsets[1:][filled] - 1] = grad[filled]
        return grad_states, None
