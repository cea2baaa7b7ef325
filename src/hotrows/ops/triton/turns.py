"""The last program of several to come to a place: it puts together what all have stored, in one order.

A second kernel, which would do the same, is not launched. Which program is the last one differs from time
to time, what it reads and adds up does not.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

_AT_ONCE = 4096
_counts: dict[tuple, torch.Tensor] = {}


def counts(num: int, device: torch.device) -> torch.Tensor:
    """[num or more] int32 zeros, which kernels that come one after the other leave as they find them.

    Every stream has its own, since its kernels are in order, and keeps them: graphs know the address.
    """
    is_there = device.type == "cuda"
    stream = torch.cuda.current_stream(device).cuda_stream if is_there else None
    key = device, stream, max(num, _AT_ONCE)
    if key not in _counts:
        zeros = torch.zeros(key[-1], dtype=torch.int32, device=device)
        if is_there and torch.cuda.is_current_stream_capturing():
            return zeros  # which only the graph makes
        _counts[key] = zeros
    return _counts[key]


@triton.jit
def is_last(p_count, num_programs):
    """True if all other programs have come here: it may read what they stored before. p_count: theirs."""
    tl.debug_barrier()  # the stores of all threads come before the count
    count = tl.atomic_add(p_count, 1, sem="acq_rel")
    if count == num_programs - 1:
        tl.store(p_count, 0)
    return count == num_programs - 1
