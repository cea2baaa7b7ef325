"""Batch normalisation is PyTorch's, on any number of threads and in batches of one row or none."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from hotrows.models.nn import MLP, BatchNorm


def randomized(width):
    """Ours and PyTorch's, of equal parameters."""
    ours, theirs = BatchNorm(width), nn.BatchNorm1d(width)
    nn.init.normal_(ours.weight), nn.init.normal_(ours.bias)
    theirs.load_state_dict(ours.state_dict())
    return ours, theirs


@pytest.mark.parametrize("width", [1, 3, 17])
@pytest.mark.parametrize("size", [2, 5, 300])
def test_it_is_pytorchs_where_there_are_rows_enough(size, width):
    layers, runs = randomized(width), []
    batches, grad = torch.randn(2, size, width) * 2 + 1, torch.randn(size, width)
    for layer in layers:
        x = batches[1].clone().requires_grad_()
        layer(batches[0])
        out = layer(x)
        out.backward(grad)
        layer.eval()
        runs.append([out, x.grad, layer.weight.grad, layer.bias.grad, layer(batches[0][:1])])
    for ours, theirs in zip(*runs, strict=True):
        assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
    ours, theirs = (layer.state_dict() for layer in layers)
    assert list(ours) == list(theirs)
    assert_close(ours, theirs)


def test_its_gradients_are_those_of_the_function():
    layer = BatchNorm(3).double()
    x = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(layer, (x,))


def test_the_number_of_threads_changes_no_bit(threads):
    x, grad, runs = torch.randn(3000, 70), torch.randn(3000, 70), []
    for count in (1, 2):
        threads(count)
        layer, leaf = BatchNorm(70), x.clone().requires_grad_()
        out = layer(leaf)
        out.backward(grad)
        runs.append([out, leaf.grad, layer.weight.grad, layer.bias.grad, *layer.buffers()])
    assert all(torch.equal(one, two) for one, two in zip(*runs, strict=True))


def test_narrow_values_are_computed_in_float32():
    layer, x = BatchNorm(3), torch.randn(50, 3).bfloat16()
    assert torch.equal(layer(x), layer(x.float()).bfloat16())


@pytest.mark.parametrize("size", [0, 1])
def test_fewer_than_two_rows_are_normalised_by_what_was_seen_before(size):
    layer = BatchNorm(3)
    layer(torch.randn(5, 3) * 2 + 1)
    seen = {name: value.clone() for name, value in layer.state_dict().items()}
    x = torch.randn(size, 3, requires_grad=True)
    normal = layer(x)
    expected = (x - seen["running_mean"]) / (seen["running_var"] + layer.eps).sqrt()
    assert_close(normal, expected)
    assert all(torch.equal(value, seen[name]) for name, value in layer.state_dict().items())
    normal.sum().backward()
    assert x.grad.shape == x.shape and layer.weight.grad is not None


def test_an_mlp_takes_a_batch_of_one_row_in_training():
    assert MLP((4, 3, 1), batch_norm=True)(torch.randn(1, 4)).isfinite().all()
