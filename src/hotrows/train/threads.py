"""How many threads compute a step: one where it is short.

Threads wait for one another dozens of times in a step, and beside other programs each time may be one in
which a core is theirs. What decides is the batch and the model, no clock: sums of products are rounded
otherwise with another number of threads, and a run should not learn otherwise beside other programs.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from hotrows.batch import Batch

_WORTH = 1 << 27  # multiply-adds of a forward pass that each thread should have
_ROW = 1000  # multiply-adds in whose time a row is read and updated


def num_threads(batch: Batch, weights: int, available: int) -> int:
    """The number of threads for a step on this batch, at most those available.

    weights: of the model's matrices. Each element of a list counts as a sample: of a sequence, models
    multiply each, of other lists it is too many.
    """
    elements = batch.size + max(len(batch.ids) - batch.size * len(batch.features), 0)
    work = elements * weights + len(batch.ids) * _ROW
    return min(max(work // _WORTH, 1), available)


@contextmanager
def limited(batch: Batch, weights: int) -> Iterator[None]:
    """Lets a step on this batch compute on as many threads as it is worth."""
    available = torch.get_num_threads()
    num = num_threads(batch, weights, available)
    if num == available:
        yield
        return
    torch.set_num_threads(num)
    try:
        yield
    finally:
        torch.set_num_threads(available)
