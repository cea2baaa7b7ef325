"""Sums over lists of uneven length in plain PyTorch: nothing waits, and no order is left to chance.

A jagged batch is [N, ...] values and [B + 1] int64 offsets: sample b has
values[offsets[b] : offsets[b + 1]]. A segment's values are added up one after the other, on a GPU too,
where `index_add` would add them as they come.
"""

from __future__ import annotations

import torch
from torch import Tensor


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
