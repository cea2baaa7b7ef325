"""Sums along runs: short ones, long ones over several windows, and padding."""

import pytest
import torch
from torch.testing import assert_close

from hotrows.ops import triton as kernels
from hotrows.ops.rows import reference
from tests.ops.triton.cases import DIMS, IDS, hot_ids, on, one_ulp, runs_of


@pytest.mark.parametrize("ids", IDS.values(), ids=IDS)
@pytest.mark.parametrize("bagged", [False, True])
def test_runs_of_any_length_equal_the_reference(ids, bagged, device):
    _, order, starts = runs_of(ids)
    n = len(ids)
    grad = torch.randn(7 if bagged else n, 3)
    bags = torch.randint(0, 7, (n,)).int() if bagged else None
    args = (grad, order, starts, bags, torch.rand(n) if bagged else None)
    sums = kernels.sum_gradients(*on(device, *args)).cpu()
    assert_close(sums, reference.sum_gradients(*args), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dim", DIMS)
def test_the_error_is_at_most_twice_that_of_plain_float32(dim, device):
    _, order, starts = runs_of(hot_ids())
    grad, weights = torch.randn(len(order), dim), torch.rand(len(order))
    runs = (order, starts, None)
    exact = reference.sum_gradients(grad.double(), *runs, weights.double())
    plain = reference.sum_gradients(grad, *runs, weights)
    sums = kernels.sum_gradients(*on(device, grad, *runs, weights)).cpu()
    error, plain_error = ((sum_of - exact).abs().max() for sum_of in (sums, plain))
    assert error <= 2 * (plain_error + one_ulp(exact))


@pytest.mark.parametrize("bagged", [False, True])
def test_gradients_in_bfloat16_are_summed_in_float32(bagged, device):
    _, order, starts = runs_of(hot_ids())
    n = len(order)
    grad = torch.randn(7 if bagged else n, 3).bfloat16()
    runs = (order, starts, torch.randint(0, 7, (n,)).int() if bagged else None, None)
    sums = kernels.sum_gradients(*on(device, grad, *runs)).cpu()
    assert torch.equal(sums, kernels.sum_gradients(*on(device, grad.float(), *runs)).cpu())
    assert_close(reference.sum_gradients(grad, *runs), sums, rtol=1e-5, atol=1e-5)


def test_short_runs_give_the_bits_of_the_reference(device):
    _, order, starts = runs_of(torch.randint(0, 30, (64,)))
    args = (torch.randn(64, 17), order, starts, None, torch.rand(64))
    expected = reference.sum_gradients(*args)
    assert torch.equal(kernels.sum_gradients(*on(device, *args)).cpu(), expected)


def test_some_of_the_runs_equal_those_among_all(device):
    _, order, starts = runs_of(torch.randint(0, 6, (300,)))
    grad = torch.randn(300, 8)
    order, starts, grad = on(device, order, starts, grad)
    everything = kernels.sum_gradients(grad, order, starts, None, None)
    some = kernels.sum_gradients(grad, order, starts[2:5], None, None)
    assert torch.equal(some, everything[2:4])


def test_twice_gives_the_same_bits(device):
    _, order, starts = runs_of(hot_ids())
    args = on(device, torch.randn(200, 16), order, starts, None, None)
    first, second = kernels.sum_gradients(*args), kernels.sum_gradients(*args)
    assert torch.equal(first, second)
