"""Batch normalisation is PyTorch's, and takes batches of one row and of none."""

import pytest
import torch
from torch import nn

from hotrows.nn import MLP, BatchNorm


def test_it_is_pytorchs_where_there_are_rows_enough():
    ours, theirs = BatchNorm(3), nn.BatchNorm1d(3)
    for _ in range(2):
        x = torch.randn(5, 3) * 2 + 1
        assert torch.equal(ours(x), theirs(x))
    ours.eval(), theirs.eval()
    assert torch.equal(ours(x[:1]), theirs(x[:1]))
    assert ours.state_dict().keys() == theirs.state_dict().keys()


@pytest.mark.parametrize("size", [0, 1])
def test_fewer_than_two_rows_are_normalised_by_what_was_seen_before(size):
    layer = BatchNorm(3)
    layer(torch.randn(5, 3) * 2 + 1)
    seen = {name: value.clone() for name, value in layer.state_dict().items()}
    x = torch.randn(size, 3, requires_grad=True)
    normal = layer(x)
    expected = (x - seen["running_mean"]) / (seen["running_var"] + layer.eps).sqrt()
    torch.testing.assert_close(normal, expected)
    assert all(torch.equal(value, seen[name]) for name, value in layer.state_dict().items())
    normal.sum().backward()
    assert x.grad.shape == x.shape and layer.weight.grad is not None


def test_an_mlp_takes_a_batch_of_one_row_in_training():
    assert MLP((4, 3, 1), batch_norm=True)(torch.randn(1, 4)).isfinite().all()
