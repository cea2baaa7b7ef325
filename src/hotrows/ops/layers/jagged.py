"""Sums and last ones of lists of uneven length in plain PyTorch: nothing waits, and no order is left to
chance.

A jagged batch is [N, ...] values and [B + 1] int64 offsets: sample b has
values[offsets[b] : offsets[b + 1]]. A segment's values are added up one after the other, on a GPU too,
where `index_add` would add them as they come.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hotrows.ops.layers.by_device import by_device, gpu_op


def samples_of(offsets: Tensor, num: int | None = None) -> Tensor:
    """[N] int64: the sample that each value belongs to. num: N, without which a GPU is waited for."""
    samples = torch.arange(len(offsets) - 1, device=offsets.device)
    return samples.repeat_interleave(offsets.diff(), output_size=num)


def sum_by_sample(values: Tensor, offsets: Tensor) -> Tensor:
    """[B, ...]: the sum of each sample's values; 0 where it has none."""
    return torch.segment_reduce(values, "sum", offsets=offsets, unsafe=True, initial=0)


def highest_by_sample(values: Tensor, offsets: Tensor) -> Tensor:
    """[B, ...]: the highest of each sample's values; -inf where it has none."""
    return torch.segment_reduce(values, "max", offsets=offsets, unsafe=True, initial=-torch.inf)


def last_of(states: Tensor, offsets: Tensor) -> Tensor:
    """[B, H]: the vector at each sample's last position; zeros where it has none."""
    return by_device(last_of_reference, states, offsets)


def last_of_backward(grad: Tensor, offsets: Tensor, num: int) -> Tensor:
    """[num, H]: each sample's gradient at its last position, zeros elsewhere."""
    return by_device(last_of_backward_reference, grad, offsets, num)


@gpu_op("lists")
def last_of_reference(states: Tensor, offsets: Tensor) -> Tensor:
    if len(states) == 0:
        return states.new_zeros(len(offsets) - 1, states.shape[1])
    last = states[(offsets[1:] - 1).clamp(min=0)]
    return last.masked_fill((offsets.diff() == 0)[:, None], 0)


@gpu_op("lists")
def last_of_backward_reference(grad: Tensor, offsets: Tensor, num: int) -> Tensor:
    """A gather, too: every position knows whether it is its sample's last."""
    sample = samples_of(offsets, num)
    place = torch.arange(num, device=offsets.device)
    is_last = place == offsets[1:][sample] - 1
    return grad[sample].masked_fill(~is_last[:, None], 0)
