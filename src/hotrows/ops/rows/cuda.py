"""The ops on CUDA tensors: kernels in Triton, which is imported when the first of them runs.

Where there is no Triton, CUDA tensors take the reference, whose sums have no one order there. First
values are computed on the host wherever the records are, so that a row begins with the same bits on
every device.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

_TRITON = (
    *("resolve", "unique_padded", "pool", "sum_gradients", "update", "copy_rows"),
    *("feed_rows", "touch_slots", "rank_slots", "take_slots"),
)
_CHUNK_BYTES = 64 << 20  # of first values on their way


def kernels() -> dict[str, Callable[..., Any]]:
    """The ops to register for CUDA tensors, by name."""
    by_name: dict[str, Callable[..., Any]] = {"initialize": initialize}
    if importlib.util.find_spec("triton") is not None:
        by_name.update({name: _in_triton(name) for name in _TRITON})
    return by_name


def _in_triton(name: str) -> Callable[..., Any]:
    @functools.cache
    def kernel() -> Callable[..., Any]:
        return getattr(importlib.import_module("hotrows.ops.triton"), name)

    def run(*args: Any, **kwargs: Any) -> Any:
        device = next(arg.device for arg in args if isinstance(arg, Tensor) and arg.is_cuda)
        with torch.cuda.device(device):
            return kernel()(*args, **kwargs)

    return run


def initialize(
    records: Tensor,
    layout: list[int],
    rows: Tensor,
    first_rows: Tensor,
    pieces: Tensor,
    kind: str,
    scale: float,
    state: list[float],
) -> None:
    chunk = max(_CHUNK_BYTES // records.shape[1], 1)
    rows, first_rows, pieces = rows.cpu(), first_rows.cpu(), pieces.cpu()
    for begin in range(0, len(records), chunk):
        part, part_rows = records[begin : begin + chunk], rows[begin : begin + chunk]
        host = torch.empty(part.shape, dtype=torch.uint8)
        torch.ops.hotrows.initialize(host, layout, part_rows, first_rows, pieces, kind, scale, state)
        part.copy_(host)
