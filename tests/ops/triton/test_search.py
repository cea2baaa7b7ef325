"""Searches in ascending numbers, against PyTorch's."""

import pytest
import torch
import triton
import triton.language as tl

from hotrows.ops.triton.search import last_of_two, num_wide_steps


@triton.jit
def _search(p_sorted, p_xs, p_out, size, num_steps, WIDTH: tl.constexpr):
    i = tl.program_id(0)
    x, y = tl.load(p_xs + 2 * i), tl.load(p_xs + 2 * i + 1)
    first, last = last_of_two(p_sorted, size, num_steps, x, y, WIDTH)
    tl.store(p_out + 2 * i, first)
    tl.store(p_out + 2 * i + 1, last)


@pytest.mark.parametrize("width", [4, 128])
@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 15, 16, 17, 127, 128, 129, 300, 20_000])
def test_the_last_number_that_is_at_most_another_is_found(size, width, device):
    """Many equal ones, gaps, and what is below the first or above the last."""
    numbers = torch.randint(0, size, (size,)).sort().values.int() + 3
    xs = torch.cat([torch.tensor([0, 2, size + 9, int(numbers[0])]), torch.randint(0, size + 5, (6,))])
    out = torch.empty(len(xs), dtype=torch.int64)
    expected = torch.searchsorted(numbers, xs, right=True) - 1
    places = [t.to(device) for t in (numbers, xs, out)]
    _search[(len(xs) // 2,)](*places, size, num_wide_steps(size, width), WIDTH=width)
    assert torch.equal(places[2].cpu(), expected)
