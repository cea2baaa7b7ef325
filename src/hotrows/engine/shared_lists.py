"""Lists that several samples share: those of a request, for each of its samples."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.nn import functional

from hotrows.ops.layers import jagged as ops


@dataclass(frozen=True)
class SharedLists:
    """R lists, [N] elements in all, of B samples: all samples of a request have its list.

    offsets: [R + 1], request r has the elements offsets[r] .. offsets[r + 1] - 1; starts: [R + 1], and
    the samples starts[r] .. starts[r + 1] - 1.

        elements a b | c   offsets 0 2 3   starts 0 2 3   ->   of the samples: a b, a b, c
    """

    offsets: Tensor
    starts: Tensor

    @cached_property
    def sample_offsets(self) -> Tensor:
        """The offsets of the samples' lists: [B + 1]."""
        lengths = self.offsets.diff().repeat_interleave(self.starts.diff())
        return functional.pad(lengths.cumsum(0), (1, 0))

    @cached_property
    def one_sample_each(self) -> bool:
        """True if no list is shared, so that what is repeated is the lists as they are."""
        return int(self.starts[-1]) == len(self.starts) - 1

    def repeated(self, values: Tensor) -> Tensor:
        """The lists of all samples, end to end: [N, D] -> [N', D]."""
        if self.one_sample_each:
            return values
        return _Repeated.apply(values, self.offsets, self.starts)

    def of_samples(self, values: Tensor) -> Tensor:
        """One value of each request, for each of its samples: [R, K] -> [B, K]."""
        if self.one_sample_each:
            return values
        return _Repeated.apply(values, torch.arange(len(values) + 1), self.starts)


class _Repeated(torch.autograd.Function):
    @staticmethod
    def forward(ctx, values, offsets, starts):
        ctx.save_for_backward(offsets, starts)
        return ops.repeat_lists(values, offsets, starts)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad):
        return ops.sum_lists(grad, *ctx.saved_tensors), None, None
