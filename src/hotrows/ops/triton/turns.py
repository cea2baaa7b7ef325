"""The last program of several to come to a place: it puts together what all have stored, in one order.

A second kernel, which would do the same, is not launched. Which program is the last one differs from time
to time, what it reads and adds up does not.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

_counts: dict[torch.device, torch.Tensor] = {}


def counts(num: int, device: torch.device) -> torch.Tensor:
    """[num or more] int32 zeros, which kernels that come one after the other leave as they find them."""
    if device not in _counts or len(_counts[device]) < num:
        _counts[device] = torch.zeros(max(num, 256), dtype=torch.int32, device=device)
    return _counts[device]


@triton.jit
def is_last(p_count, num_programs):
    """True if all other programs have come here: it may read what they stored before. p_count: theirs."""
    tl.debug_barrier()  # the stores of all threads come before the count
    count = tl.atomic_add(p_count, 1, sem="acq_rel")
    if count == num_programs - 1:
        tl.store(p_count, 0)
    return count == num_programs - 1
