"""The cross networks against their formulas."""

import pytest
import torch
from torch.testing import assert_close

from hotrows.models.nn import CrossNetwork, CrossNetworkMixture


@pytest.mark.parametrize("rank", [None, 2])
def test_each_layer_multiplies_with_the_input_and_adds_what_came(rank):
    cross = CrossNetwork(6, num_layers=2, rank=rank)
    x0 = torch.randn(4, 6)
    x = x0
    for place in range(2):
        weight = cross.layers[place].weight
        if rank is not None:
            weight = weight @ cross.narrow[place].weight
        x = x0 * (x @ weight.t() + cross.layers[place].bias) + x
    assert_close(cross(x0), x)


def test_a_rank_that_is_no_rank_is_refused():
    with pytest.raises(ValueError, match="rank from 1 to 6"):
        CrossNetwork(6, rank=7)


@pytest.mark.parametrize("gate", ["softmax", "sigmoid"])
def test_each_layer_mixes_low_rank_experts_by_its_gates(gate):
    cross = CrossNetworkMixture(6, num_layers=2, rank=3, num_experts=4, gate=gate)
    for parameter in cross.parameters():
        torch.nn.init.normal_(parameter)
    x0 = torch.randn(5, 6)
    x = x0
    for down, within, up in zip(cross.down, cross.within, cross.up, strict=True):
        scores = x @ cross.gates.weight.t()
        gates = scores.softmax(1) if gate == "softmax" else scores.sigmoid()
        total = torch.zeros_like(x)
        for e, (v, u) in enumerate(zip(down.weight.chunk(4), up.weight.chunk(4, 1), strict=True)):
            inner = torch.tanh(torch.tanh(x @ v.t()) @ within[e].t())
            total += gates[:, e : e + 1] * x0 * (inner @ u.t() + up.bias)
        x = total + x
    assert_close(cross(x0), x, rtol=1e-4, atol=1e-4)


def test_the_gradients_of_a_mixture_are_those_of_the_function():
    cross = CrossNetworkMixture(4, num_layers=2, rank=2, num_experts=3).double()
    x0 = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(cross, (x0,))


def test_the_number_of_threads_changes_no_bit(threads):
    cross, results = CrossNetworkMixture(40, rank=8), []
    x0 = torch.randn(500, 40, requires_grad=True)
    for count in (1, 2):
        threads(count)
        out = cross(x0)
        results.append([out, *torch.autograd.grad(out.square().sum(), [x0, *cross.parameters()])])
    assert all(torch.equal(one, two) for one, two in zip(*results, strict=True))


def test_experts_begin_as_if_they_stood_alone():
    cross = CrossNetworkMixture(64, num_layers=1, rank=32, num_experts=8)
    std = (2 / (64 + 32)) ** 0.5
    for weight in (cross.down[0].weight, cross.up[0].weight):
        assert weight.std().item() == pytest.approx(std, rel=0.05)


def test_what_a_mixture_cannot_be_is_refused():
    for options in ({"rank": 7}, {"num_experts": 0}, {"num_layers": 0}):
        with pytest.raises(ValueError, match="a rank from 1 to 6, not"):
            CrossNetworkMixture(6, **{"rank": 2, **options})
    with pytest.raises(ValueError, match="'softmax' or 'sigmoid', not 'relu'"):
        CrossNetworkMixture(6, rank=2, gate="relu")
