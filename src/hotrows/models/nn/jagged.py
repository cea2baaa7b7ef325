"""Lists of vectors of uneven length: pooled, their last ones, beside their sample's, or padded.

A jagged batch is [N, D] vectors and [B + 1] offsets: sample b has vectors[offsets[b] : offsets[b + 1]].
Nothing is padded until a layer needs it.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from hotrows.models.nn.jagged_products import Lists, weighted_sum, widened
from hotrows.ops.layers import attention
from hotrows.ops.layers import jagged as ops
from hotrows.ops.layers import padded as padded_ops
from hotrows.ops.layers.padded import PaddedLists

POOLINGS = ("sum", "mean", "max")


def pool_jagged(vectors: Tensor, offsets: Lists, pooling: str = "mean") -> Tensor:
    """[B, D]: the sum, mean or maximum of each sample's vectors; zeros where it has none.

    >>> vectors = torch.tensor([[1.0], [3.0], [5.0]])
    >>> pool_jagged(vectors, torch.tensor([0, 2, 2, 3])).T
    tensor([[2., 0., 5.]])
    """
    if pooling not in POOLINGS:
        raise ValueError(f"pooling must be one of {', '.join(POOLINGS)}, not {pooling!r}")
    if isinstance(offsets, PaddedLists):
        return pool_padded(offsets.apart(vectors), offsets.mask, pooling)
    if pooling == "max":
        pooled = vectors.new_zeros(len(offsets), vectors.shape[1])  # and what is of no sample
        index = ops.samples_of(offsets, len(vectors))[:, None].expand_as(vectors)
        return pooled.scatter_reduce(0, index, vectors, "amax", include_self=False)[:-1]
    pooled = weighted_sum(vectors.new_ones(len(vectors)), vectors, offsets)
    return pooled / offsets.diff().clamp(min=1)[:, None] if pooling == "mean" else pooled


def last_of(states: Tensor, offsets: Lists) -> Tensor:
    """[B, H]: the vector at each sample's last position; zeros where it has none.

    >>> states = torch.tensor([[1.0], [3.0], [5.0]])
    >>> last_of(states, torch.tensor([0, 2, 2, 3])).T
    tensor([[3., 0., 5.]])
    """
    if isinstance(offsets, PaddedLists):
        return padded_ops.last(states, offsets)
    return _LastOf.apply(states, offsets)


def to_padded(vectors: Tensor, offsets: Lists, length: int | None = None) -> tuple[Tensor, Tensor]:
    """[B, L, D] vectors with zeros behind the last of each sample, and [B, L] bool, True where one is.

    length: L, the longest list by default, for which a GPU is waited for; of longer lists the last L
    vectors stay.
    """
    if isinstance(offsets, PaddedLists):
        return padded_ops.latest(vectors, offsets, offsets.longest if length is None else length)
    lengths = offsets.diff()
    if length is None:
        length = int(lengths.max()) if len(lengths) else 0
    skipped = (lengths - length).clamp(min=0)
    place = torch.arange(length, device=offsets.device)
    mask = place < (lengths - skipped)[:, None]
    position = (offsets[:-1] + skipped)[:, None] + place
    and_one = functional.pad(vectors, (0, 0, 0, 1))  # for positions behind the end
    padded = and_one[position.clamp(max=len(vectors))]
    return padded.masked_fill(~mask[:, :, None], 0), mask


def copied_to_lists(values: Tensor, offsets: Lists, num: int) -> Tensor:
    """[num, D]: each sample's vector beside every element of its list, [B, D] in; num: N.

    >>> values = torch.tensor([[1.0], [2.0], [3.0]])
    >>> copied_to_lists(values, torch.tensor([0, 2, 2, 3]), num=3).T
    tensor([[1., 1., 3.]])
    """
    if isinstance(offsets, PaddedLists):
        return values[:, None].expand(-1, offsets.longest, -1).flatten(0, 1)
    return _CopiedToLists.apply(widened(values), offsets, num)


def ages_in_lists(offsets: Lists, num: int) -> Tensor:
    """[num] int64: how many elements of the sample's list came after each; num: N.

    offsets = [0, 3, 3, 4]  ->  [2, 1, 0, 0]; in a padded list places behind the end have 0
    """
    if isinstance(offsets, PaddedLists):
        places = torch.arange(offsets.longest, device=offsets.lengths.device)
        return (offsets.lengths[:, None] - 1 - places).clamp(min=0).flatten()
    ends = offsets[1:][ops.samples_of(offsets, num)]
    return ends - 1 - torch.arange(num, device=offsets.device)


def latest_at_end(vectors: Tensor, offsets: Lists, length: int) -> Tensor:
    """[B, length, D]: the last `length` vectors of each sample, the very last one at the last place, and
    zeros in front of shorter lists.

    vectors = [[1.], [3.], [5.]], offsets = [0, 2, 2, 3], length = 2
        ->  [[[1.], [3.]], [[0.], [0.]], [[0.], [5.]]]
    """
    if isinstance(offsets, PaddedLists):
        place = torch.arange(length, device=vectors.device)
        source = place + (offsets.lengths - length)[:, None]  # [B, length]
        index = source.clamp(0, offsets.longest - 1)[:, :, None].expand(-1, -1, vectors.shape[1])
        return offsets.apart(vectors).gather(1, index).masked_fill((source < 0)[:, :, None], 0.0)
    return _LatestAtEnd.apply(vectors, offsets, length)


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


class _LastOf(torch.autograd.Function):
    @staticmethod
    def forward(ctx, states, offsets):
        ctx.save_for_backward(offsets)
        ctx.length = len(states)
        return ops.last_of(states, offsets)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad):
        (offsets,) = ctx.saved_tensors
        return ops.last_of_backward(grad, offsets, ctx.length), None


class _CopiedToLists(torch.autograd.Function):
    @staticmethod
    def forward(ctx, values, offsets, num):
        ctx.save_for_backward(offsets)
        return attention.weighted_copies(values.new_ones(num), values, offsets)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad):
        (offsets,) = ctx.saved_tensors
        return attention.weighted_sum(grad.new_ones(len(grad)), grad, offsets), None, None


class _LatestAtEnd(torch.autograd.Function):
    @staticmethod
    def forward(ctx, vectors, offsets, length):
        ctx.save_for_backward(offsets)
        ctx.num = len(vectors)
        place = torch.arange(length, device=vectors.device)
        source = place + (offsets[1:] - length)[:, None]  # [B, length]
        absent = (source < offsets[:-1, None])[:, :, None]
        and_one = functional.pad(vectors, (0, 0, 0, 1))  # for samples without a list
        return and_one[source.clamp(min=0)].masked_fill(absent, 0)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad):
        """A gather, too: every vector knows its sample and its place there, if it has one."""
        (offsets,) = ctx.saved_tensors
        length = grad.shape[1]
        ages = ages_in_lists(offsets, ctx.num)
        of_vector = grad[ops.samples_of(offsets, ctx.num), (length - 1 - ages).clamp(min=0)]
        return of_vector.masked_fill((ages >= length)[:, None], 0), None, None
