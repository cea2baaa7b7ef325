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
from hotrows.ops.reference_random import random_bits

LEVELS = 1 << 16
_PER_DRAW = 4  # a draw of 64 random bits serves four neighbours, the lowest bits the first


def dropout(x: Tensor, key: int, dropped: int) -> Tensor:
    """x with some elements 0 and the others scaled; 0 <= dropped < 65536."""
    core = native.load()
    if core is None or x.device.type != "cpu" or x.dtype not in (torch.float32, torch.bfloat16):
        return dropout_reference(x, key, dropped)
    x = x.contiguous()
    out = torch.empty_like(x)
    core.hotrows_dropout(
        pointer(x), c_int64(x.numel()), c_uint64(key), dropped, c_float(_scale(dropped)),
        x.itemsize, pointer(out),
    )  # fmt: skip
    return out


def dropout_reference(x: Tensor, key: int, dropped: int) -> Tensor:
    n = torch.arange(x.numel(), device=x.device)
    draws = random_bits(torch.tensor(key, device=x.device), n // _PER_DRAW)
    bits = draws >> (n % _PER_DRAW * 16) & (LEVELS - 1)
    return torch.where(bits.view(x.shape) < dropped, 0, x * _scale(dropped))


def _scale(dropped: int) -> float:
    return LEVELS / (LEVELS - dropped)
