"""The co-action unit: against padded products, finite differences, and the native core's twin."""

import itertools

import pytest
import torch
from torch.testing import assert_close

from hotrows.models.nn import CoAction, to_padded
from hotrows.ops.layers import co_action as ops
from hotrows.runtime import native

SIZES = ((16, 8, 4), (5, 3), (3, 17, 2, 20), (1, 1), (64, 16, 1))
LISTS = ([], [0, 0], [3, 0, 1, 100, 17], [5] * 40)
either = pytest.mark.parametrize("shared", [True, False], ids=["shared", "per_order"])


def sample(lengths, sizes, orders, shared, dtype=torch.float32):
    offsets = torch.tensor([0, *lengths]).cumsum(0)
    width = CoAction.num_parameters(sizes, orders, shared)
    weights = torch.randn(len(lengths), width, dtype=dtype) / 2
    inputs = torch.randn(int(offsets[-1]), sizes[0], dtype=dtype) / 2
    return weights.requires_grad_(), inputs.requires_grad_(), offsets


def padded(weights, inputs, offsets, shared):
    """The authors' code: [B, L, D] inputs, and a mask in front of the sum."""
    x, mask = to_padded(inputs, offsets)
    outputs = []
    for order in range(3):
        network = weights[:, :160] if shared else weights[:, 160 * order : 160 * (order + 1)]
        first, second = network[:, :128].view(-1, 16, 8), network[:, 128:].view(-1, 8, 4)
        hidden = torch.tanh(x ** (order + 1) @ first)
        outputs += [hidden, hidden @ second]
    return (torch.cat(outputs, 2) * mask[:, :, None]).sum(1)


@either
def test_it_is_the_authors_padded_form_forward_and_backward(shared):
    inputs = sample([3, 0, 1, 60], (16, 8, 4), 3, shared)
    out, expected = CoAction(shared_orders=shared)(*inputs), padded(*inputs, shared)
    assert_close(out, expected, rtol=1e-4, atol=1e-5)
    grad = torch.randn_like(out)
    got, wanted = (torch.autograd.grad(y, inputs[:2], grad) for y in (out, expected))
    assert_close(got, wanted, rtol=1e-4, atol=1e-4)


@either
def test_gradients_are_those_of_finite_differences(shared):
    unit = CoAction((3, 4, 2, 2), orders=2, shared_orders=shared)
    inputs = sample([2, 0, 3], unit.sizes, 2, shared, torch.float64)
    assert torch.autograd.gradcheck(unit, inputs)


@either
def test_native_equals_the_reference(shared):
    for sizes, lengths in itertools.product(SIZES, LISTS):
        weights, inputs, offsets = sample(lengths, sizes, 3, shared)
        network = offsets, sizes, 3, shared
        assert native.takes(weights, inputs)
        got = ops.co_action(weights, inputs, *network)
        expected = ops.co_action_reference(weights, inputs, *network)
        assert_close(got, expected, rtol=1e-4, atol=1e-3, check_stride=False)
        grad = torch.randn(expected.shape)
        got = ops.co_action_backward(grad, weights, inputs, *network)
        expected = ops.co_action_backward_reference(grad, weights, inputs, *network)
        assert_close(got, expected, rtol=1e-3, atol=1e-3)


def test_the_number_of_threads_changes_no_bit(threads):
    inputs = sample(torch.randint(0, 60, (100,)).tolist(), (16, 8, 4), 3, True)
    results = []
    for count in (1, 2):
        threads(count)
        out = CoAction()(*inputs)
        results.append([out, *torch.autograd.grad(out.square().sum(), inputs[:2])])
    assert all(torch.equal(one, two) for one, two in zip(*results, strict=True))


def test_a_sample_does_not_see_the_others():
    weights, inputs, offsets = sample([3, 0, 70, 1], (16, 8, 4), 3, True)
    together = CoAction()(weights, inputs, offsets)
    for place, (first, end) in enumerate(itertools.pairwise(offsets.tolist())):
        alone = CoAction()(weights[place : place + 1], inputs[first:end], torch.tensor([0, end - first]))
        assert torch.equal(alone[0], together[place])
    assert torch.equal(together[1], torch.zeros(36))


def test_a_small_case_by_hand():
    weights, offsets = torch.tensor([[2.0]]), torch.tensor([0, 2])
    unit = CoAction((1, 1), orders=2)
    assert unit(weights, torch.tensor([[3.0], [1.0]]), offsets).tolist() == [[8, 20]]


def test_widths_and_what_is_wrong_are_said():
    assert CoAction.num_parameters() == 160
    assert CoAction.num_parameters(shared_orders=False) == 480
    assert CoAction.num_outputs() == 36
    with pytest.raises(ValueError, match="at least two positive sizes and one order"):
        CoAction((16,))
    offsets = torch.tensor([0, 1])
    with pytest.raises(ValueError, match=r"weights must be \[1, 160\].* not \[1, 161\]"):
        CoAction()(torch.zeros(1, 161), torch.zeros(1, 16), offsets)
    with pytest.raises(ValueError, match=r"inputs must be \[N, 16\], not \[1, 8\]"):
        CoAction()(torch.zeros(1, 160), torch.zeros(1, 8), offsets)
