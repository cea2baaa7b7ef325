"""Stochastic rounding of numbers of any size: up as often as their place between two others says."""

import pytest
import torch

from hotrows.ops.rows.reference_random import FLOAT16_MAX, random_bits, round_by_bits

NARROW = (torch.bfloat16, torch.float16)
KEY = torch.tensor(7)


def rounded(x, dtype, count=1):
    """[count] roundings of a number, each by bits of its own."""
    x = torch.tensor(x, dtype=torch.float32).expand(count)
    return round_by_bits(x, random_bits(KEY, torch.arange(count)), dtype).float()


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("x", [1.0002, -3.33e-3, 1e-5, -7.7e-7, 3e-8, 500.3])
def test_roundings_keep_the_mean_and_are_neighbours(x, dtype):
    """Also where float16 has subnormal numbers, below 6.1e-5."""
    rounded_x = rounded(x, dtype, 20_000)
    values = rounded_x.unique()
    assert len(values) <= 2 and values.min() <= x <= values.max()
    step = float(values.max() - values.min())
    assert abs(float(rounded_x.double().mean()) - x) < 0.02 * step


@pytest.mark.parametrize("dtype", NARROW)
def test_what_needs_no_rounding_stays(dtype):
    finite = torch.arange(-(2**15), 2**15, dtype=torch.int16).view(dtype)
    finite = finite[finite.isfinite()].float()
    bits = random_bits(KEY, torch.arange(len(finite)))
    assert torch.equal(round_by_bits(finite, bits, dtype).float(), finite)


def test_float16_saturates_and_infinities_stay():
    inf = float("inf")
    assert rounded(65519.0, torch.float16, 100).unique().tolist() == [FLOAT16_MAX]
    assert rounded(-1e30, torch.float16).tolist() == [-FLOAT16_MAX]
    for dtype in NARROW:
        assert rounded(inf, dtype).tolist() == [inf] and rounded(-inf, dtype).tolist() == [-inf]
        assert rounded(float("nan"), dtype).isnan().all()
