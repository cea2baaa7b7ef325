"""Random bits from counters, and rounding by them: the specification of kernels and native core.

A stream is named by a key; its bits are those of splitmix64 (Steele, Lea, Flood 2014) at an index,
so they depend on key and index alone: not on order, threads or device.
"""

from __future__ import annotations

import torch
from torch import Tensor

_GOLDEN = 0x9E3779B97F4A7C15 - (1 << 64)
_MIX = (0xBF58476D1CE4E5B9 - (1 << 64), 0x94D049BB133111EB - (1 << 64))
ROUNDING_STREAM = 0x6A09E667F3BCC908
"""Added to keys: sets the random bits of stochastic rounding apart from those of initialization."""
FLOAT16_MAX = 65504.0
_FLOAT16_LEAST_NORMAL = 2.0**-14
_FLOAT16_STEP = 2.0**-24
"""Between neighbouring subnormal numbers of float16."""


def mix64(x: Tensor | int) -> Tensor:
    """The finalizer of splitmix64, on int64 as 64 plain bits."""
    x = torch.as_tensor(x)
    x = (x ^ _shift(x, 30)) * _MIX[0]
    x = (x ^ _shift(x, 27)) * _MIX[1]
    return x ^ _shift(x, 31)


def random_bits(key: Tensor, index: Tensor) -> Tensor:
    """The 64 random bits of element `index` of the stream `key`."""
    return mix64(key + (index + 1) * _GOLDEN)


def unit(bits: Tensor) -> Tensor:
    """64 random bits to a float64 in [0, 1), from the upper 24 of them."""
    return _shift(bits, 40).double() * 2.0**-24


def row_keys(rows: Tensor, first_rows: Tensor, pieces: Tensor) -> Tensor:
    """The random stream of each row: of its table's key and its id there."""
    place = piece_of(rows, first_rows)
    key, first_id, id_step = pieces[place, 0], pieces[place, 1], pieces[place, 2]
    return mix64(key ^ mix64(first_id + (rows - first_rows[place]) * id_step))


def piece_of(rows: Tensor, first_rows: Tensor) -> Tensor:
    """The piece [R] of a store that holds each row; first_rows: [K + 1]."""
    return torch.searchsorted(first_rows, rows, right=True) - 1


def round_by_bits(x: Tensor, bits: Tensor, dtype: torch.dtype) -> Tensor:
    """x float32 as bfloat16, float16 or, of any other dtype, an int8: away from 0 with the probability of
    the part cut off, so that the mean is x. A finite number never becomes a float16 infinity; infinities
    and NaN stay. For an int8 x is from -127 to 127."""
    if not dtype.is_floating_point:
        floor = x.abs().floor()
        return (floor + (unit(bits).float() < x.abs() - floor)).copysign(x).to(torch.int8)
    return _to_bfloat16(x, bits) if dtype == torch.bfloat16 else _to_float16(x, bits)


def _to_bfloat16(x: Tensor, bits: Tensor) -> Tensor:
    bits_of_x = x.contiguous().view(torch.int32)
    noise = torch.where(x.isfinite(), _shift(bits, 48).int(), 0)
    return ((bits_of_x + noise) & -65536).view(torch.float32).bfloat16()


def _to_float16(x: Tensor, bits: Tensor) -> Tensor:
    magnitude = x.abs()
    # Normal numbers lose 13 bits of their mantissa; subnormal ones are whole steps of one size.
    noise = _shift(bits, 51).int()
    normal = ((magnitude.contiguous().view(torch.int32) + noise) & -8192).view(torch.float32)
    steps = magnitude * (1 / _FLOAT16_STEP)
    part = steps - steps.floor()
    subnormal = (steps.floor() + (unit(bits).float() < part).float()) * _FLOAT16_STEP
    rounded = torch.where(magnitude < _FLOAT16_LEAST_NORMAL, subnormal, normal)
    rounded = rounded.clamp(max=FLOAT16_MAX).copysign(x)
    return torch.where(x.isfinite(), rounded, x).half()


def _shift(x: Tensor, by: int) -> Tensor:
    """x >> by without the sign."""
    return (x >> by) & ((1 << (64 - by)) - 1)
