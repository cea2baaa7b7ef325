"""Dropout whose mask follows from a key and an element's place: drawn again on the way back.

Element n is dropped where the n-th 16 random bits of the key's stream are below `dropped`; the
others are multiplied with 65536 / (65536 - dropped).
"""

from __future__ import annotations

from ctypes import c_float

import torch
from torch import Tensor

from hotrows.ops.rows.reference_random import random_bits
from hotrows.runtime.native import call, takes

LEVELS = 1 << 16
_PER_DRAW = 4  # a draw of 64 random bits serves four neighbours, the lowest bits the first
_DTYPES = (torch.float32, torch.bfloat16)


def dropout(x: Tensor, key: int, dropped: int) -> Tensor:
    """x with some elements 0 and all else scaled; 0 <= dropped < 65536."""
    if not takes(x, dtypes=_DTYPES):
        return dropout_reference(x, key, dropped)
    x = x.contiguous()
    out = torch.empty_like(x)
    scale = c_float(_scale(dropped))
    call("dropout", x, x.numel(), key, dropped, scale, x.itemsize, out)
    return out


def dropout_reference(x: Tensor, key: int, dropped: int) -> Tensor:
    n = torch.arange(x.numel(), device=x.device)
    draws = random_bits(torch.tensor(key, device=x.device), n // _PER_DRAW)
    bits = draws >> (n % _PER_DRAW * 16) & (LEVELS - 1)
    return torch.where(bits.view(x.shape) < dropped, 0, x * _scale(dropped))


def _scale(dropped: int) -> float:
    return LEVELS / (LEVELS - dropped)
