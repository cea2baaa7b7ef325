"""Lists of vectors: jagged equals padded with a mask, and an obvious loop, forward and backward."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hotrows.models.nn import pool_jagged, pool_padded, to_padded
from hotrows.models.nn.jagged import POOLINGS
from tests.support.choice import examples


def jagged(lengths, dim=3):
    offsets = torch.tensor([0, *lengths]).cumsum(0)
    return torch.randn(int(offsets[-1]), dim, dtype=torch.float64, requires_grad=True), offsets


def slow(vectors, offsets, pooling):
    rows = []
    for first, end in pairwise(offsets):
        sample = vectors[first:end]
        if not len(sample):
            rows.append(torch.zeros(vectors.shape[1], dtype=vectors.dtype))
        else:
            rows.append({"sum": sample.sum(0), "mean": sample.mean(0), "max": sample.amax(0)}[pooling])
    return torch.stack(rows)


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(st.integers(0, 5), min_size=1, max_size=8), st.sampled_from(POOLINGS))
def test_pooling_equals_a_loop_and_the_padded_form(lengths, pooling):
    vectors, offsets = jagged(lengths)
    expected = slow(vectors, offsets, pooling)
    weights = torch.randn_like(expected)
    (wanted,) = torch.autograd.grad((expected * weights).sum() + 0 * vectors.sum(), vectors)
    padded, mask = to_padded(vectors, offsets)
    assert mask.sum(1).tolist() == lengths
    for pooled in (pool_jagged(vectors, offsets, pooling), pool_padded(padded, mask, pooling)):
        torch.testing.assert_close(pooled, expected)
        (grad,) = torch.autograd.grad((pooled * weights).sum(), vectors, retain_graph=True)
        torch.testing.assert_close(grad, wanted)


def test_a_padded_place_changes_nothing():
    vectors, offsets = jagged([2, 0, 3])
    padded, mask = to_padded(vectors, offsets, length=5)
    poisoned = padded.masked_fill(~mask[:, :, None], torch.nan)
    for pooling in POOLINGS:
        torch.testing.assert_close(
            pool_padded(poisoned, mask, pooling), pool_jagged(vectors, offsets, pooling)
        )


def test_longer_lists_keep_their_last():
    vectors, offsets = jagged([3, 1], dim=1)
    padded, mask = to_padded(vectors, offsets, length=2)
    assert mask.tolist() == [[True, True], [True, False]]
    torch.testing.assert_close(padded[0], vectors[1:3])


def test_other_poolings_are_refused():
    vectors, offsets = jagged([1])
    with pytest.raises(ValueError, match="pooling must be one of sum, mean, max, not 'min'"):
        pool_jagged(vectors, offsets, "min")
