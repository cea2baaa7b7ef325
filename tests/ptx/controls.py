"""Kernels that are right tile by tile, as the interpreter runs them, and wrong as threads run them.

python -m pytest -p tests.ptx.plugin tests/ptx/controls.py
"""

import ctypes

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from tests.ptx import orders
from tests.ptx.instructions import _fma32, _fma64, _high
from tests.ptx.machine import PtxError
from tests.ptx.turned import turned


@triton.jit
def products(p_x, p_y, p_out, BLOCK: tl.constexpr):
    o = tl.arange(0, 16)[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    b_sum = tl.sum(tl.load(p_x + o) * tl.load(p_y + o), axis=1)
    tl.store(p_out + tl.arange(0, 16), b_sum)


@triton.jit
def numbered(p_out, STEP: tl.constexpr, BLOCK: tl.constexpr):
    o = tl.program_id(0) * STEP + tl.arange(0, BLOCK)
    tl.store(p_out + o, o * 0 + tl.program_id(0))


@triton.jit
def added(p_x, p_out, ATOMIC: tl.constexpr):
    if ATOMIC:
        tl.atomic_min(p_out, tl.load(p_x + tl.program_id(0)), sem="relaxed")
    else:
        tl.store(p_out, tl.minimum(tl.load(p_out), tl.load(p_x + tl.program_id(0))))


def test_a_store_that_another_thread_reads_needs_a_barrier():
    x, y = torch.arange(1024), torch.zeros(1024, dtype=torch.int64)
    turned[(1,)](x.clone(), y, True, 1024)
    words = r"turned, line \d+ of its PTX \(ld.global.*, turned.py:\d+:\d+: a race: 0x\w+ \(byte"
    with pytest.raises(PtxError, match=words):
        turned[(1,)](x, y, False, 1024)


def test_copies_of_a_sum_are_the_same_bits_without_fused_multiply_add():
    x, y = torch.randn(16, 8), torch.randn(16, 8)
    out = torch.empty(16)
    products[(1,)](x, y, out, 8, enable_fp_fusion=False)
    torch.testing.assert_close(out, (x * y).sum(1))
    with pytest.raises(PtxError, match="two threads write other values"):
        products[(1,)](x, y, out, 8)


def test_memory_ends_where_it_ends_and_belongs_to_one_program():
    out = torch.zeros(64, dtype=torch.int64)
    numbered[(2,)](out, 32, 32)
    assert out.tolist() == [0] * 32 + [1] * 32
    with pytest.raises(PtxError, match="of 8 bytes is out of bounds: nearest is arg"):
        numbered[(3,)](out, 32, 32)
    with pytest.raises(PtxError, match="a race|two threads write other values"):
        numbered[(2,)](out, 16, 32)


def test_atomics_are_of_any_order():
    x, out = torch.tensor([5, 3, 4]), torch.tensor([9])
    added[(3,)](x, out, True)
    assert out.item() == 3
    with pytest.raises(PtxError, match="a race|two threads write other values"):
        added[(3,)](x, torch.tensor([9]), False)


def test_any_order_of_warps_and_programs_gives_the_same_bits():
    assert orders.differences(12) == 0


def test_arithmetic_rounds_as_the_machine_does():
    draw, libm = np.random.default_rng(0), ctypes.CDLL("libm.so.6")
    for kind, emulated, exact, of_c in (
        (np.float32, _fma32, libm.fmaf, ctypes.c_float), (np.float64, _fma64, libm.fma, ctypes.c_double),
    ):  # fmt: skip
        exact.restype, exact.argtypes = of_c, [of_c] * 3
        scale = 2.0 ** draw.integers(-12, 12, (3, 2000))
        x, y, z = (draw.standard_normal((3, 2000)) * scale).astype(kind)
        z[:500] = -(x * y)[:500]
        expected = list(map(exact, x.tolist(), y.tolist(), z.tolist()))
        assert emulated(x, y, z).tolist() == expected
    a, b = draw.integers(-(2**63), 2**63 - 1, (2, 500))
    with np.errstate(over="ignore"):
        assert _high(a, b).tolist() == [x * y >> 64 for x, y in zip(a.tolist(), b.tolist(), strict=True)]
