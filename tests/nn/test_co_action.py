"""The co-action unit against a loop over samples, elements and orders, and the core against PyTorch."""

import itertools

import pytest
import torch
from torch.testing import assert_close

from hotrows import native
from hotrows.nn import CoAction
from hotrows.ops import co_action as ops
from hotrows.ops import reference_co_action as reference

needs_core = pytest.mark.skipif(native.load() is None, reason="the native core was not built")
UNITS = [
    ((16, 8, 4), 3, True),
    ((16, 8, 4), 3, False),
    ((3, 5), 2, True),
    ((1, 1, 1, 2), 4, False),
    ((7, 17, 2), 1, True),
]
LENGTHS = [[], [0], [0, 0, 0], [1], [0, 5, 1, 0, 16, 17, 33, 0], [100]]


def sample(lengths, unit, dtype=torch.float32):
    sizes, orders, shared = unit
    layer = CoAction(sizes, orders, shared_orders=shared)
    offsets = torch.tensor([0, *lengths]).cumsum(0)
    weights = torch.randn(len(lengths), layer.num_parameters, dtype=dtype)
    return layer, weights, torch.randn(int(offsets[-1]), sizes[0], dtype=dtype), offsets


def by_hand(weights, inputs, offsets, sizes, orders, shared):
    rows = []
    for b, (begin, end) in enumerate(itertools.pairwise(offsets.tolist())):
        outputs, at = [], 0
        for order in range(1, orders + 1):
            at = 0 if shared else at
            h = inputs[begin:end] ** order
            for place, (num_in, num_out) in enumerate(itertools.pairwise(sizes)):
                h = h @ weights[b, at : at + num_in * num_out].reshape(num_in, num_out)
                h = h if place == len(sizes) - 2 else torch.tanh(h)
                at += num_in * num_out
                outputs.append(h.sum(0))
        rows.append(torch.cat(outputs))
    return torch.stack(rows)


@pytest.mark.parametrize("unit", UNITS, ids=str)
def test_the_reference_is_a_small_mlp_per_sample(unit):
    layer, weights, inputs, offsets = sample([0, 5, 1, 0, 9], unit, torch.float64)
    got = layer(weights, inputs, offsets)
    assert got.shape == (5, layer.num_outputs)
    assert_close(got, by_hand(weights, inputs, offsets, *unit))


@pytest.mark.parametrize("unit", [((2, 2, 1), 3, True), ((2, 2, 1), 2, False)], ids=str)
def test_gradients_are_those_of_the_function(unit):
    layer, weights, inputs, offsets = sample([2, 0, 1], unit, torch.float64)
    leaves = weights.requires_grad_(), inputs.requires_grad_()
    assert torch.autograd.gradcheck(lambda w, x: layer(w, x, offsets), leaves)


@needs_core
@pytest.mark.parametrize("unit", UNITS, ids=str)
@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_the_native_unit_equals_the_reference(unit, lengths):
    _, weights, inputs, offsets = sample(lengths, unit)
    wide = weights.double(), inputs.double(), offsets
    expected = reference.co_action(*wide, *unit)
    assert_close(
        ops.co_action(weights, inputs, offsets, *unit), expected.float(), rtol=1e-4, atol=1e-3
    )
    grad = torch.randn(expected.shape)
    got = ops.co_action_backward(grad, weights, inputs, offsets, *unit)
    for one, other in zip(
        got, reference.co_action_backward(grad.double(), *wide, *unit), strict=True
    ):
        assert_close(one, other.float(), rtol=1e-3, atol=1e-2)


@needs_core
def test_any_number_of_threads_gives_the_same_bits(threads):
    layer, weights, inputs, offsets = sample(torch.randint(0, 40, (50,)).tolist(), UNITS[0])
    results = []
    for count in (1, 2, 3):
        threads(count)
        leaves = weights.clone().requires_grad_(), inputs.clone().requires_grad_()
        out = layer(*leaves, offsets)
        out.square().sum().backward()
        results.append((out.detach(), *(leaf.grad for leaf in leaves)))
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


def test_the_order_of_samples_changes_no_output():
    layer, weights, inputs, offsets = sample([3, 0, 7], UNITS[0])
    turned = torch.tensor([2, 0, 1])
    pieces = [inputs[offsets[b] : offsets[b + 1]] for b in turned]
    again = torch.tensor([0, *(len(piece) for piece in pieces)]).cumsum(0)
    got = layer(weights[turned], torch.cat(pieces), again)
    assert torch.equal(got, layer(weights, inputs, offsets)[turned])


def test_wrong_shapes_are_refused():
    with pytest.raises(ValueError, match="at least two positive sizes"):
        CoAction((16,))
    layer = CoAction()
    with pytest.raises(ValueError, match=r"weights \[B, 160\] and inputs \[N, 16\], not \[2, 16\]"):
        layer(torch.zeros(2, 16), torch.zeros(3, 16), torch.tensor([0, 1, 3]))
