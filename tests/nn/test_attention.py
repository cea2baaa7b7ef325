"""Attention over lists: native against reference, jagged against padded, forward and backward."""

from itertools import pairwise

import pytest
import torch
from torch.testing import assert_close

from hotrows.models.nn import (
    BilinearAttention,
    TargetAttention,
    TargetProjection,
    jagged_dot,
    softmax_jagged,
    to_padded,
    weighted_sum,
)
from hotrows.ops.layers import attention
from hotrows.runtime import native

LENGTHS = [[3, 0, 1, 7, 2], [0, 0], [], [300, 1], [5] * 300, [0, 16, 17, 0]]
SHAPES = [(1, 1), (3, 80), (16, 5), (17, 33), (64, 80), (8, 16)]


def jagged(lengths, dim, dtype=torch.float32):
    offsets = torch.tensor([0, *lengths]).cumsum(0)
    queries = torch.randn(len(lengths), dim, dtype=dtype)
    return queries, torch.randn(int(offsets[-1]), dim, dtype=dtype), offsets


def leaves(*tensors):
    return [t.detach().clone().requires_grad_() for t in tensors]


def assert_near(got, expected, tolerance=5e-6):
    """Equal up to sums of the same terms in another order."""
    for one, two in zip(got, expected, strict=True):
        scale = two.abs().max().clamp(min=1.0) if two.numel() else 1.0
        assert_close(one / scale, two / scale, rtol=0, atol=tolerance)


@pytest.mark.parametrize("lengths", LENGTHS, ids=lambda lengths: f"{len(lengths)} lists")
def test_native_target_projection_equals_the_reference(lengths):
    for dim, width in SHAPES:
        inputs = jagged(lengths, dim)
        weight, bias = torch.randn(width, 4 * dim), torch.randn(width)
        assert native.takes(*inputs[:2], weight, bias)
        for b in (bias, None):
            got = attention.target_projection(*inputs, weight, b)
            assert_near([got], [attention.target_projection_reference(*inputs, weight, b)])
        grad = torch.randn(len(inputs[1]), width)
        for more in (None, torch.randn_like(inputs[1])):
            got = attention.target_projection_backward(grad, *inputs, weight, more)
            expected = attention.target_projection_backward_reference(grad, *inputs, weight, more)
            assert_near(got, expected)


@pytest.mark.parametrize("lengths", LENGTHS, ids=lambda lengths: f"{len(lengths)} lists")
@pytest.mark.parametrize("dim", [1, 3, 16, 17, 64, 100])
def test_native_sums_over_lists_equal_the_reference(lengths, dim):
    queries, keys, offsets = jagged(lengths, dim)
    scores, grad = 10 * torch.randn(len(keys)), torch.randn(len(keys))
    weights = attention.softmax_jagged_reference(scores, offsets)
    assert native.takes(queries, keys, scores, grad, weights)
    for name, arguments in {
        "softmax_jagged": (scores, offsets),
        "softmax_jagged_backward": (grad, weights, offsets),
        "weighted_sum": (weights, keys, offsets),
        "jagged_dot": (queries, keys, offsets),
        "weighted_copies": (weights, queries, offsets),
    }.items():
        reference = getattr(attention, f"{name}_reference")
        assert_near([getattr(attention, name)(*arguments)], [reference(*arguments)])


def test_gradients_are_those_of_the_functions():
    queries, keys, offsets = jagged([3, 0, 2], 3, torch.float64)
    first = TargetProjection(3, 2).double()
    inputs = leaves(queries, keys)
    assert torch.autograd.gradcheck(lambda q, k: first(q, k, offsets), inputs)
    assert torch.autograd.gradcheck(
        lambda w, b: torch.func.functional_call(
            first, {"weight": w, "bias": b}, (queries, keys, offsets)
        ),
        leaves(first.weight, first.bias),
    )
    weights = leaves(torch.randn(5, dtype=torch.float64))
    assert torch.autograd.gradcheck(lambda s: softmax_jagged(s, offsets), weights)
    assert torch.autograd.gradcheck(lambda w, k: weighted_sum(w, k, offsets), [*weights, inputs[1]])
    assert torch.autograd.gradcheck(lambda q, k: jagged_dot(q, k, offsets), inputs)


def padded_attention(layer, queries, keys, offsets):
    """Target attention as the authors write it: every input built, padding masked by -2^32 + 1."""
    padded, mask = to_padded(keys, offsets)
    q = queries[:, None].expand_as(padded)
    x = torch.cat([q, padded, q - padded, q * padded], dim=2)
    x = layer.activation(x.flatten(0, 1) @ layer.first.weight.t() + layer.first.bias)
    scores = layer.rest(x).view(mask.shape)
    if layer.normalize:
        scores = scores.masked_fill(~mask, -(2.0**32) + 1) / queries.shape[1] ** 0.5
        scores = scores.softmax(1)
    return (scores * mask)[:, None] @ padded


@pytest.mark.parametrize("activation", ["sigmoid", "relu", "prelu"])
@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5)], ids=str)
def test_target_attention_equals_the_padded_form(activation, normalize, dtype, tolerance):
    layer = TargetAttention(5, (6, 4), activation, normalize).to(dtype)
    queries, keys, offsets = jagged([3, 0, 1, 9], 5, dtype)
    ways = []
    for run in (layer, lambda *inputs: padded_attention(layer, *inputs).squeeze(1)):
        layer.zero_grad()
        q, k = leaves(queries, keys)
        out = run(q, k, offsets)
        out.square().sum().backward()
        ways.append([out, q.grad, k.grad, *(p.grad for p in layer.parameters())])
    assert_near(*ways, tolerance)


def test_dice_sees_positions_and_no_padding():
    layer = TargetAttention(5, (6,), "dice")
    queries, keys, offsets = jagged([3, 0, 4], 5)
    hidden = layer.first(queries, keys, offsets)
    layer(queries, keys, offsets)
    assert_close(layer.activation.running_mean, 0.1 * hidden.mean(0))


def test_a_sample_does_not_depend_on_its_neighbours():
    layer = TargetAttention(4, (8, 3)).eval()
    queries, keys, offsets = jagged([2, 0, 5, 1], 4)
    out = layer(queries, keys, offsets)
    lists = [keys[first:end] for first, end in pairwise(offsets)]
    order = [3, 2, 0, 1]
    lengths = torch.tensor([0] + [len(lists[b]) for b in order])
    turned = layer(queries[order], torch.cat([lists[b] for b in order]), lengths.cumsum(0))
    assert_close(turned, out[order])
    assert out[1].tolist() == [0] * 4
    weights = layer.scores(queries, keys, offsets)
    assert_close(weighted_sum(weights, torch.ones(8, 1), offsets).flatten(), (offsets.diff() > 0) + 0.0)


def test_bilinear_attention_equals_a_loop():
    for normalize in (True, False):
        layer = BilinearAttention(3, 5, normalize)
        queries, _, _ = jagged([2, 0, 3], 3)
        _, keys, offsets = jagged([2, 0, 3], 5)
        out = layer(queries, keys, offsets)
        for b, q in enumerate(queries):
            list_keys = keys[offsets[b] : offsets[b + 1]]
            weights = list_keys @ (layer.weight @ q)
            weights = weights.softmax(0) if normalize else weights
            assert_close(out[b], weights @ list_keys)


def test_large_scores_do_not_overflow():
    scores = torch.tensor([1e4, 1e4 - 1, -1e4, 3e38])
    weights = softmax_jagged(scores, torch.tensor([0, 3, 4]))
    assert_close(weights, torch.tensor([0.7310586, 0.2689414, 0.0, 1.0]))


def test_the_number_of_threads_changes_no_bit(threads):
    queries, keys, offsets = jagged(torch.randint(0, 60, (100,)).tolist(), 16)
    weight, grad = torch.randn(33, 64), torch.randn(len(keys), 33)
    ways = []
    for count in (1, 2):
        threads(count)
        weights = attention.softmax_jagged(grad[:, 0], offsets)
        ways.append(
            [
                attention.target_projection(queries, keys, offsets, weight, None),
                *attention.target_projection_backward(grad, queries, keys, offsets, weight),
                weights,
                attention.weighted_sum(weights, keys, offsets),
                attention.jagged_dot(queries, keys, offsets),
            ]
        )
    assert all(torch.equal(one, two) for one, two in zip(*ways, strict=True))


def test_autocast_computes_sums_over_lists_in_float32():
    layer = TargetAttention(8, (16, 4))
    queries, keys, offsets = jagged([4, 0, 6], 8)
    q, k = leaves(queries.bfloat16(), keys.bfloat16())
    with torch.autocast("cpu", torch.bfloat16):
        out = layer(q, k, offsets)
    out.sum().backward()
    assert out.dtype == torch.float32
    assert q.grad.dtype == k.grad.dtype == torch.bfloat16
    assert_close(out, layer(q.float(), k.float(), offsets), rtol=2e-2, atol=2e-2)


def test_offsets_that_do_not_fit_are_refused():
    queries, keys, _ = jagged([2, 3], 4)
    for wrong in ([0, 2, 6], [0, 7, 5], [1, 2, 5], [0, 5]):
        with pytest.raises(ValueError, match="must be 3 int64 values that rise from 0 to 5"):
            jagged_dot(queries, keys, torch.tensor(wrong))


def test_vectors_that_do_not_match_are_refused():
    queries, keys, offsets = jagged([2, 3], 4)
    with pytest.raises(ValueError, match="one weight for each vector"):
        weighted_sum(torch.ones(4), keys, offsets)
    with pytest.raises(ValueError, match="queries and keys of one width"):
        jagged_dot(queries[:, :3], keys, offsets)


def test_arguments_that_make_no_attention_are_refused():
    with pytest.raises(ValueError, match="at least one hidden layer"):
        TargetAttention(4, ())
    with pytest.raises(ValueError, match="activation must be one of"):
        TargetAttention(4, activation="swish")
    with pytest.raises(ValueError, match="needs queries \\[B, 4\\]"):
        TargetAttention(4)(torch.zeros(1, 4), torch.zeros(2, 3), torch.tensor([0, 2]))
