"""Lookup calls, and the bags of ids that they pool: lengths, starts, and factors of each id's vector."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional


@dataclass(frozen=True)
class Lookup:
    """The options of a call of `F.embedding` or `F.embedding_bag`, without its tensors.

    mode: None: the vector of each id, as `F.embedding`; `sum`, `mean` or `max`: of each bag of ids.
    padding_idx: not negative. All other fields have their meaning in PyTorch.
    """

    mode: str | None = None
    padding_idx: int | None = None
    max_norm: float | None = None
    norm_type: float = 2.0
    scale_grad_by_freq: bool = False
    sparse: bool = False
    include_last_offset: bool = False

    @property
    def is_packable(self) -> bool:
        return self.mode != "max" and not self.scale_grad_by_freq and self.max_norm is None


@dataclass(frozen=True)
class LookupCall:
    """One lookup with its tensors; samples: the `per_sample_weights`. is_plain: PyTorch must make it."""

    lookup: Lookup
    weight: Tensor
    ids: Tensor
    offsets: Tensor | None = None
    samples: Tensor | None = None
    is_plain: bool = False

    @property
    def num_bags(self) -> int:
        """The number of vectors that it returns."""
        if self.lookup.mode is None:
            return self.ids.numel()
        if self.offsets is None:
            return self.ids.shape[0]
        return self.offsets.numel() - self.lookup.include_last_offset

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of its result, without the width of a vector."""
        return tuple(self.ids.shape) if self.lookup.mode is None else (self.num_bags,)


def with_last_end(call: LookupCall) -> LookupCall:
    """A lookup without ids behind the last of its offsets, which PyTorch's kernels take in three ways.

    Sums of float32 on the host leave them out; elsewhere they belong to the last bag. Means of float32
    on the host count them without adding them: PyTorch itself makes those.
    """
    options, offsets = call.lookup, call.offsets
    if not options.include_last_offset or offsets is None or not offsets.numel():
        return call
    if not offsets.is_cuda:
        end = int(offsets[-1])
        if not 0 <= end < call.ids.numel():
            return call  # whether it is an error, `bag_lengths` says
        is_quick = call.weight.dtype == torch.float32 and options.padding_idx is None
        if is_quick and options.mode == "mean":
            return replace(call, is_plain=True)
        if is_quick and options.mode == "sum":
            samples = None if call.samples is None else call.samples[:end]
            return replace(call, ids=call.ids[:end], samples=samples)
    return replace(call, lookup=replace(options, include_last_offset=False), offsets=offsets[:-1])


def bags_of(
    calls: Sequence[LookupCall], dtype: torch.dtype
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Returns the first id of each bag [M + 1], the bag of each id [N], and each vector's factor [N].

    None: one id per bag; None for the factors: all are 1.
    """
    if all(call.lookup.mode is None for call in calls):
        return None, None, None
    lengths = torch.cat([bag_lengths(call) for call in calls])
    starts = functional.pad(lengths.cumsum(0), (1, 0)).int()
    bags = bag_of_each_id(starts, sum(call.ids.numel() for call in calls))
    factors = None
    if any(map(_has_factors, calls)):
        factors = torch.cat([_factors(call, dtype) for call in calls])
    return starts, bags, factors


def bag_of_each_id(starts: Tensor, num_ids: int) -> Tensor:
    """[N] int32: the bag of each id, from the first id of each bag, [M + 1]; waits for no device."""
    ids = torch.arange(num_ids, dtype=torch.int32, device=starts.device)
    bags = torch.searchsorted(starts, ids, right=True, out_int32=True) - 1
    return bags.clamp_(0, max(starts.numel() - 2, 0))  # of a device's offsets nobody has checked


def bag_lengths(call: LookupCall) -> Tensor:
    """[bags] int64: the number of ids of each bag of a lookup."""
    if call.lookup.mode is None:
        return torch.ones(call.ids.numel(), dtype=torch.int64, device=call.ids.device)
    if call.offsets is None:
        return torch.full((call.ids.shape[0],), call.ids.shape[1], device=call.ids.device)
    ends = call.offsets.long()
    if not call.lookup.include_last_offset:
        ends = functional.pad(ends, (0, 1), value=call.ids.numel())
    if ends.is_cuda:  # which nobody waits for: bags that are none are empty, as PyTorch's kernels have it
        return ends.clamp(0, call.ids.numel()).cummax(0).values.diff()
    lengths = ends.diff()
    if (lengths < 0).any() or int(ends[0]) != 0 or int(ends[-1]) != call.ids.numel():
        raise ValueError(
            f"offsets of a bag must begin at 0 and rise to the number of ids, {call.ids.numel()}, "
            f"but they go from {int(ends[0])} to {int(ends[-1])}"
            f"{' and fall between' if (lengths < 0).any() else ''}"
        )
    return lengths


def gradient_factors(
    calls: Sequence[LookupCall], factors: Tensor | None, dtype: torch.dtype
) -> Tensor | None:
    """[N]: factors of the gradients, 0 for padding; None: they are the factors of the vectors."""
    paddings = [call.lookup.padding_idx if call.lookup.mode is None else None for call in calls]
    if all(padding is None for padding in paddings):
        return None
    of_calls = [
        torch.ones_like(ids, dtype=dtype) if padding is None else (ids != padding).to(dtype)
        for ids, padding in zip((call.ids.reshape(-1) for call in calls), paddings, strict=True)
    ]
    trains = torch.cat(of_calls)
    return trains if factors is None else trains * factors


def _has_factors(call: LookupCall) -> bool:
    lookup = call.lookup
    has_padding = lookup.mode is not None and lookup.padding_idx is not None
    return call.samples is not None or lookup.mode == "mean" or has_padding


def _factors(call: LookupCall, dtype: torch.dtype) -> Tensor:
    """[N]: the factor of each id's vector in its bag."""
    counts = torch.ones(call.ids.numel(), dtype=dtype, device=call.ids.device)
    if call.lookup.mode is None:
        return counts
    if call.lookup.padding_idx is not None:
        counts = (call.ids.reshape(-1) != call.lookup.padding_idx).to(dtype)
    if call.lookup.mode == "mean":
        lengths = bag_lengths(call)
        bags = bag_of_each_id(functional.pad(lengths.cumsum(0), (1, 0)), counts.numel())
        sizes = counts.new_zeros(lengths.numel()).index_add_(0, bags, counts)
        return counts / sizes.clamp(min=1)[bags.long()]
    return counts if call.samples is None else counts * call.samples.detach().reshape(-1).to(dtype)
