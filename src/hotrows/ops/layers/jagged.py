"""Sums and last ones of lists of uneven length in plain PyTorch: nothing waits, and no order is left to
chance.

A jagged batch is [N, ...] values and [B + 1] int64 offsets: sample b has
values[offsets[b] : offsets[b + 1]]. A segment's values are added up one after the other, on a GPU too,
where `index_add` would add them as they come.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from hotrows.ops.layers.by_device import by_device, gpu_op
from hotrows.runtime.native import call, takes


def samples_of(offsets: Tensor, num: int | None = None) -> Tensor:
    """[N] int64: the sample that each value belongs to. num: N, without which a GPU is waited for; there,
    values behind the last sample's are of sample B, which does not exist."""
    if num is not None and offsets.is_cuda:
        return torch.searchsorted(offsets, torch.arange(num, device=offsets.device), right=True) - 1
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
    if takes(grad):
        out, is_any = grad.new_zeros(num, grad.shape[1]), offsets.diff() > 0
        out[offsets[1:][is_any] - 1] = grad[is_any]
        return out
    return by_device(last_of_backward_reference, grad, offsets, num)


def repeat_lists(values: Tensor, offsets: Tensor, starts: Tensor) -> Tensor:
    """[N', D]: each request's list of values, once for each of its samples, in their order.

    values: [N, D]; offsets: [R + 1], of the lists; starts: [R + 1], request r has the samples starts[r]
    .. starts[r + 1] - 1.
    """
    if not takes(values):
        return repeat_lists_reference(values, offsets, starts)
    values, (ends, offsets, starts) = values.contiguous(), repetitions(offsets, starts)
    out = torch.empty(int(ends[-1]), values.shape[1])
    call("repeat_lists", values, offsets, starts, ends, len(starts) - 1, values.shape[1], out)
    return out


def sum_lists(grad: Tensor, offsets: Tensor, starts: Tensor) -> Tensor:
    """[N, D]: the gradient of `repeat_lists`, of each request summed over its samples in their order."""
    if not takes(grad):
        return sum_lists_reference(grad, offsets, starts)
    grad, (ends, offsets, starts) = grad.contiguous(), repetitions(offsets, starts)
    out = torch.empty(int(offsets[-1]), grad.shape[1])
    call("sum_lists", grad, offsets, starts, ends, len(starts) - 1, grad.shape[1], out)
    return out


def repetitions(offsets: Tensor, starts: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Where what is repeated of each request begins, [R + 1], offsets and starts."""
    ends = functional.pad((offsets.diff() * starts.diff()).cumsum(0), (1, 0))
    return ends, offsets.contiguous(), starts.contiguous()


def repeat_lists_reference(values: Tensor, offsets: Tensor, starts: Tensor) -> Tensor:
    return values[_places(offsets, starts)]


def sum_lists_reference(grad: Tensor, offsets: Tensor, starts: Tensor) -> Tensor:
    out = grad.new_zeros(int(offsets[-1]), grad.shape[1])
    return out.index_add_(0, _places(offsets, starts), grad)


def _places(offsets: Tensor, starts: Tensor) -> Tensor:
    """[N'] int64: the value that each repetition is of."""
    request = samples_of(starts)  # [B]
    lengths = offsets.diff()[request]
    ends = lengths.cumsum(0)
    sample = torch.arange(len(lengths), device=offsets.device).repeat_interleave(lengths)
    return torch.arange(len(sample), device=offsets.device) + (offsets[request] - ends + lengths)[sample]


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
