"""MLPs in groups against as many of their own, and mixtures of experts against the formula."""

import pytest
import torch
from torch.testing import assert_close

from hotrows.models.nn import ExpertMixture, GroupedMLP, choose_linear_paths, use_linear_paths
from tests.nn.groups import alone


@pytest.fixture(autouse=True)
def one_thread(threads):
    threads(1)


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("sizes", [(5, 1), (3, 7, 4), (16, 17, 3, 2)])
@pytest.mark.parametrize("num_groups", [1, 3])
def test_groups_are_mlps_of_their_own(num_groups, sizes, shared):
    grouped = GroupedMLP(num_groups, sizes, "tanh", last_activation="sigmoid").double()
    mlps = list(alone(grouped, "tanh", "sigmoid"))
    x = torch.randn(*([] if shared else [num_groups]), 6, sizes[0], dtype=torch.float64)
    got_x, expected_x = x.clone().requires_grad_(), x.clone().requires_grad_()
    got = grouped(got_x)
    inputs = [expected_x if shared else expected_x[g] for g in range(num_groups)]
    expected = torch.stack([mlp(x) for mlp, x in zip(mlps, inputs, strict=True)])
    assert got.shape == (num_groups, 6, sizes[-1])
    assert_close(got, expected)
    for out in (got, expected):
        out.square().sum().backward()
    assert_close(got_x.grad, expected_x.grad)
    for g, mlp in enumerate(mlps):
        assert_close(grouped.first.weight.grad.chunk(num_groups)[g], mlp.layers[0].weight.grad)
        for layer, weight, bias in zip(mlp.layers[1:], grouped.weights, grouped.biases, strict=True):
            assert_close(weight.grad[g].t(), layer.weight.grad)
            assert_close(bias.grad[g, 0], layer.bias.grad)


def test_groups_begin_with_different_weights():
    first, second = GroupedMLP(2, (4, 3)).first.weight.chunk(2)
    assert not torch.equal(first, second)


def test_activations_with_parameters_and_empty_shapes_are_refused():
    with pytest.raises(ValueError, match="activation must be one of .* not 'dice'"):
        GroupedMLP(2, (4, 3), "dice")
    with pytest.raises(ValueError, match="at least one group and two positive sizes"):
        GroupedMLP(0, (4, 3))


def test_groups_compute_on_the_chosen_paths():
    grouped, x = GroupedMLP(2, (8, 16, 4)), torch.randn(32, 8)
    expected = grouped(x)
    use_linear_paths(grouped, choose_linear_paths(grouped))
    assert_close(grouped(x), expected, rtol=1e-4, atol=1e-5)


def test_a_mixture_weighs_experts_by_the_gate_of_each_task():
    mixture = ExpertMixture(5, num_tasks=2, num_experts=3, expert_hidden=(6, 4), gate_hidden=(7,))
    x = torch.randn(9, 5)
    experts = [expert(x) for expert in alone(mixture.experts, "relu", "relu")]
    expected = []
    for gate in alone(mixture.gates, "relu", "none"):
        shares = gate(x).softmax(1)
        expected.append(sum(shares[:, e : e + 1] * experts[e] for e in range(3)))
    assert_close(mixture(x), torch.stack(expected))
    assert mixture(x).shape == (2, 9, 4) and all((x >= 0).all() for x in experts)


def test_the_gradients_of_a_mixture_are_those_of_the_function():
    mixture = ExpertMixture(3, 2, 2, expert_hidden=(4,), activation="tanh").double()
    x = torch.randn(3, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(mixture, (x,))


def test_a_sample_does_not_depend_on_the_others():
    mixture, x = ExpertMixture(5, 2, expert_hidden=(8, 4)).double(), torch.randn(9, 5).double()
    order = torch.randperm(9)
    assert_close(mixture(x[order]), mixture(x)[:, order])


def test_the_number_of_threads_changes_no_bit(threads):
    mixture, results, products = ExpertMixture(40, 2), [], []
    x, wide = torch.randn(500, 40, requires_grad=True), torch.randn(500, 4 * 256)
    weight = mixture.experts.first.weight.detach()
    for count in (1, 2):
        threads(count)
        out = mixture(x)
        results.append([out, *torch.autograd.grad(out.square().sum(), [x, *mixture.parameters()])])
        products.append(wide @ weight)
    if not torch.equal(*products):  # PyTorch's own product has other bits, on some processors
        assert_close(results[0].pop(1), results[1].pop(1))
    assert all(torch.equal(one, two) for one, two in zip(*results, strict=True))
