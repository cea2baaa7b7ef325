"""Dropout whose mask follows from a key and an element's place: drawn again on the way back.

Element n is dropped where the n-th 16 random bits of the key's stream are below `dropped`; the
others are multiplied with 65536 / (65536 - dropped).
"""

from __future__ import annotations

from ctypes import c_float, c_int64, c_uint64

import torch
from torch import Tensor

from hotrows import native
from hotrows.native import pointer

LEVELS = 1 << 16


def takes(x: Tensor) -> bool:
    """Whether the native core drops from this tensor; PyTorch's own dropout does elsewhere."""
    on_core = x.device.type == "cpu" and x.dtype in (torch.float32, torch.bfloat16)
    return on_core and native.load() is not None


def dropout(x: Tensor, key: int, dropped: int) -> Tensor:
    core, x = native.load(), x.contiguous()
    assert core is not None and 0 <= dropped < LEVELS
    out = torch.empty_like(x)
    core.hotrows_dropout(
        pointer(x), c_int64(x.numel()), c_uint64(key), dropped,
        c_float(LEVELS / (LEVELS - dropped)), x.itemsize, pointer(out),
    )  # fmt: skip
    return out
