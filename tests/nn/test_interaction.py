"""The native interactions against their specification, forward and backward."""

import itertools

import pytest
import torch
from torch.testing import assert_close

from hotrows.models.nn import DotInteraction, FactorizationMachine
from hotrows.ops.layers import interaction

DTYPES = [
    (torch.float32, torch.float32),
    (torch.bfloat16, torch.float32),
    (torch.bfloat16, torch.bfloat16),
]
SHAPES = list(itertools.product((0, 1, 7), (0, 1, 26, 27), (1, 3, 16, 17, 64)))


def tolerance(dtype):
    return {"rtol": 2e-2, "atol": 2e-2} if dtype == torch.bfloat16 else {"rtol": 1e-4, "atol": 1e-4}


def sample(size, count, width, bottom_dtype, vectors_dtype):
    leaf = torch.randn(size, count * width + 5)  # samples stand apart
    vectors = leaf[:, : count * width].unflatten(1, (count, width)).to(vectors_dtype)
    return torch.randn(size, width).to(bottom_dtype), vectors


@pytest.mark.parametrize("dtypes", DTYPES, ids=str)
def test_native_dot_interaction_equals_the_reference(dtypes):
    for size, count, width in SHAPES:
        bottom, vectors = sample(size, count, width, *dtypes)
        assert interaction.takes(bottom, vectors)
        got = interaction.dot_interaction(bottom, vectors)
        expected = interaction.dot_interaction_reference(bottom, vectors)
        assert_close(got, expected, **tolerance(dtypes[0]))
        grad = torch.randn(expected.shape).to(dtypes[0])
        got = interaction.dot_interaction_backward(grad, bottom, vectors)
        expected = interaction.dot_interaction_backward_reference(grad, bottom, vectors)
        assert_close(got, expected, **tolerance(dtypes[0]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_native_second_order_equals_the_reference(dtype):
    for size, count, width in SHAPES:
        _, vectors = sample(size, count, width, dtype, dtype)
        assert interaction.takes(vectors)
        got = interaction.second_order(vectors)
        assert_close(got, interaction.second_order_reference(vectors), rtol=1e-4, atol=1e-3)
        grad = torch.randn(size)
        got = interaction.second_order_backward(grad, vectors)
        expected = interaction.second_order_backward_reference(grad, vectors)
        assert_close(got, expected, **tolerance(dtype))


def test_gradients_are_those_of_the_function():
    bottom = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
    vectors = torch.randn(3, 4, 5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(DotInteraction(), (bottom, vectors))
    assert torch.autograd.gradcheck(FactorizationMachine(), (vectors,))


def test_the_triangle_comes_row_after_row():
    bottom, vectors = torch.tensor([[1.0, 2.0]]), torch.tensor([[[3.0, 4.0], [5.0, 6.0]]])
    assert DotInteraction()(bottom, vectors).tolist() == [[1, 2, 11, 17, 39]]
    assert FactorizationMachine()(vectors).tolist() == [39]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_number_of_threads_changes_no_bit(threads, dtype):
    bottom, vectors = sample(100, 26, 16, dtype, torch.float32)
    grad = torch.randn(100, 16 + 351).to(dtype)
    results = []
    for count in (1, 2):
        threads(count)
        results.append(
            [
                interaction.dot_interaction(bottom, vectors),
                *interaction.dot_interaction_backward(grad, bottom, vectors),
                interaction.second_order(vectors),
            ]
        )
    assert all(torch.equal(one, two) for one, two in zip(*results, strict=True))


def test_bfloat16_is_rounded_to_nearest_even_and_keeps_nan_and_infinity():
    values = torch.tensor([1.00390625, 1.01171875, float("nan"), float("inf"), -3.1415927])
    bottom = torch.ones(5, 1, dtype=torch.bfloat16)
    got = interaction.dot_interaction(bottom, values.view(5, 1, 1))
    assert_close(got[:, 1], values.bfloat16(), rtol=0, atol=0, equal_nan=True)


def test_what_the_core_does_not_take_falls_back_to_the_reference():
    bottom, vectors = torch.randn(2, 3), torch.randn(2, 4, 3).bfloat16()
    assert not interaction.takes(bottom, vectors)
    expected = interaction.dot_interaction_reference(bottom, vectors)
    assert torch.equal(interaction.dot_interaction(bottom, vectors), expected)


@pytest.mark.parametrize("padding", [1, 7])
def test_zeros_follow_where_padding_is_wanted(padding):
    bottom, vectors = sample(12, 5, 7, torch.float16, torch.float16)
    bottom.requires_grad_()
    plain, padded = (interaction.dot_interaction(bottom, vectors, n) for n in (0, padding))
    assert torch.equal(padded, torch.nn.functional.pad(plain, (0, padding)))
    grad = torch.randn(padded.shape).half()
    (got,) = torch.autograd.grad(padded, bottom, grad)
    (expected,) = torch.autograd.grad(plain, bottom, grad[:, :-padding])
    assert torch.equal(got, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_core_reads_no_gradient_of_padding(dtype):
    """It would take each sample's for the begin of the next one's."""
    bottom, vectors = torch.randn(5, 4), torch.randn(5, 3, 4)
    grad = torch.randn(5, 4 + 6 + 2)
    expected = torch.ops.hotrows.dot_interaction_backward(grad[:, :-2].contiguous(), bottom, vectors)
    got = torch.ops.hotrows.dot_interaction_backward(grad, bottom.to(dtype), vectors.to(dtype))
    for one, other in zip(got, expected, strict=True):
        torch.testing.assert_close(one.float(), other, rtol=0.05, atol=0.05)


@pytest.mark.few(2)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_the_ops_are_what_pytorch_asks_of_ops(dtype):
    """Schema, autograd, shapes for tracing, and ahead-of-time autograd."""
    bottom, vectors = sample(3, 4, 5, dtype, dtype)
    grad = torch.randn(3, 5 + 10).to(dtype)
    leaves = bottom.clone().requires_grad_(), vectors.clone().requires_grad_()
    wide = dtype if dtype == torch.float64 else torch.float32
    for op, arguments in [
        (torch.ops.hotrows.dot_interaction, leaves),
        (torch.ops.hotrows.dot_interaction_backward, (grad, bottom, vectors)),
        (torch.ops.hotrows.second_order, leaves[1:]),
        (torch.ops.hotrows.second_order_backward, (torch.randn(3, dtype=wide), vectors)),
    ]:
        torch.library.opcheck(op, arguments)


def test_a_second_derivative_is_refused():
    leaves = torch.randn(2, 3, requires_grad=True), torch.randn(2, 4, 3, requires_grad=True)
    for out in (interaction.dot_interaction(*leaves), interaction.second_order(leaves[1])):
        (first,) = torch.autograd.grad(out.square().sum(), leaves[1], create_graph=True)
        with pytest.raises(RuntimeError, match="differentiated once, not twice"):
            first.sum().backward()
