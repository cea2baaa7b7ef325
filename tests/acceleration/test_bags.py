"""Bags of accelerated models whose offsets end before their ids do."""

import copy

import pytest
import torch
from torch import nn

import hotrows


class Bags(nn.Module):
    def __init__(self, **options):
        super().__init__()
        self.a = nn.EmbeddingBag(300, 8, include_last_offset=True, **options)
        self.b = nn.EmbeddingBag(50, 8, include_last_offset=True, **options)

    def forward(self, ids, offsets, weights=None):
        return (self.a(ids, offsets, weights) * self.b(ids % 50, offsets, weights)).sum(1)


CASES = [
    {"mode": "sum"},
    {"mode": "sum", "dtype": torch.float64},
    {"mode": "sum", "padding_idx": 37},
    {"mode": "mean"},
    {"mode": "mean", "padding_idx": 37},
    {"mode": "mean", "dtype": torch.float64},
    {"mode": "max"},
]


@pytest.mark.parametrize("options", CASES, ids=str)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("end", [50, 64])
def test_ids_behind_the_last_offset_are_as_in_plain_pytorch(options, weighted, end):
    """They were an error. In sums of float32, PyTorch's gradients of them are whatever memory held."""
    if weighted and options["mode"] != "sum":
        return
    torch.manual_seed(0)
    plain = Bags(**options)
    fast = copy.deepcopy(plain)
    hotrows.accelerate(fast, torch.optim.Adam(fast.parameters()), packing=False, always=True)
    ids, offsets = torch.arange(64) * 37 % 300, torch.tensor([0, 3, 3, 10, end])
    weights = torch.rand(64, dtype=plain.a.weight.dtype) if weighted else None
    exact = {"rtol": 1e-5, "atol": 1e-4}  # sums of some dozen numbers, in another order
    torch.testing.assert_close(fast(ids, offsets, weights), plain(ids, offsets, weights), **exact)
    for model in (plain, fast):
        model(ids, offsets, weights).square().sum().backward()
    actual = fast.a.weight.grad.to_dense()
    if end < 64 and options == {"mode": "sum"}:
        assert not actual[ids[end:]].any()
    else:
        torch.testing.assert_close(actual, plain.a.weight.grad, **exact)


def test_two_dimensions_have_no_last_offset():
    torch.manual_seed(0)
    plain = Bags(mode="sum")
    fast = copy.deepcopy(plain)
    hotrows.accelerate(fast, torch.optim.Adam(fast.parameters()), packing=False, always=True)
    ids = torch.arange(64).view(8, 8)
    torch.testing.assert_close(fast(ids, None), plain(ids, None))


@pytest.mark.parametrize("offsets", [[0, 3, 70], [0, 5, 3, 50], [1, 64]])
def test_offsets_that_are_no_bags_are_refused(offsets):
    fast = Bags(mode="sum")
    hotrows.accelerate(fast, torch.optim.Adam(fast.parameters()), packing=False, always=True)
    with pytest.raises(ValueError, match="offsets of a bag must begin at 0 and rise"):
        fast(torch.arange(64) * 37 % 300, torch.tensor(offsets))
