"""Layers on padded lists give what they give of the same lists end to end."""

import pytest
import torch
from torch import nn as torch_nn

from hotrows.models import nn
from hotrows.ops.layers.padded import PaddedLists

LENGTHS = torch.tensor([3, 0, 1, 5, 0, 2])
OFFSETS = torch.nn.functional.pad(LENGTHS.cumsum(0), (1, 0))
NUM, SIZE, DIM, PLACES = int(LENGTHS.sum()), len(LENGTHS), 4, 6


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


def padded(values, behind=7.0):
    """[N, ...] values as [B * T, ...], with a number behind the end of each list, and their lists."""
    mask = torch.arange(PLACES) < LENGTHS[:, None]
    out = values.new_full((SIZE, PLACES, *values.shape[1:]), behind)
    out[mask] = values
    return out.flatten(0, 1), PaddedLists(LENGTHS, PLACES)


def positions(values):
    """The values of [B * T, ...] that are in a list: [N, ...]."""
    return values[(torch.arange(PLACES) < LENGTHS[:, None]).flatten()]


def close(one, other):
    torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("pooling", ["sum", "mean", "max"])
def test_pools(pooling):
    values = torch.randn(NUM, DIM)
    close(nn.pool_jagged(*padded(values), pooling), nn.pool_jagged(values, OFFSETS, pooling))


def test_the_last_of_each_and_zeros_where_there_is_none():
    values = torch.randn(NUM, DIM)
    close(nn.last_of(*padded(values)), nn.last_of(values, OFFSETS))


@pytest.mark.parametrize("length", [None, 1, 2, 9])
def test_padded_to_any_length(length):
    values = torch.randn(NUM, DIM)
    shown, mask = nn.to_padded(*padded(values), length)
    expected, expected_mask = nn.to_padded(values, OFFSETS, length or PLACES)
    close(shown, expected)
    assert torch.equal(mask, expected_mask)


def test_softmax_weighted_sum_and_dot():
    scores, values, queries = torch.randn(NUM), torch.randn(NUM, DIM), torch.randn(SIZE, DIM)
    flat, lists = padded(values)
    weights = nn.softmax_jagged(padded(scores, 90.0)[0], lists)
    expected = nn.softmax_jagged(scores, OFFSETS)
    close(positions(weights), expected)
    close(nn.weighted_sum(weights, flat, lists), nn.weighted_sum(expected, values, OFFSETS))
    close(positions(nn.jagged_dot(queries, flat, lists)), nn.jagged_dot(queries, values, OFFSETS))


@pytest.mark.parametrize(
    "layer",
    [
        nn.TargetAttention(DIM, (8, 3)),
        nn.TargetAttention(DIM, (8,), "dice", normalize=False),
        nn.BilinearAttention(DIM, DIM),
    ],
)
def test_attention(layer):
    layer.eval()
    for parameter in layer.parameters():
        torch_nn.init.normal_(parameter)
    queries, keys = torch.randn(SIZE, DIM), torch.randn(NUM, DIM)
    close(layer(queries, *padded(keys)), layer(queries, keys, OFFSETS))


@pytest.mark.parametrize("shared", [True, False])
def test_co_action(shared):
    layer = nn.CoAction((DIM, 3, 2), orders=2, shared_orders=shared)
    weights = torch.randn(SIZE, layer.num_parameters((DIM, 3, 2), 2, shared))
    inputs = torch.randn(NUM, DIM)
    close(layer(weights, *padded(inputs)), layer(weights, inputs, OFFSETS))
    of_each = torch.randn(SIZE, DIM)
    lists = PaddedLists(LENGTHS, PLACES).of_ones()
    close(layer(weights, of_each, lists), layer(weights, of_each, torch.arange(SIZE + 1)))


@pytest.mark.slow
@pytest.mark.parametrize("reset", ["before", "after"])
@pytest.mark.parametrize("kind", ["gru", "augru", "augru_code", "agru"])
def test_recurrences(kind, reset):
    values, attention = torch.randn(NUM, DIM), torch.rand(NUM)
    flat, lists = padded(values)
    with torch.no_grad():
        if kind == "gru":
            layer = nn.GRU(DIM, 3, reset)
            states, expected = layer(flat, lists), layer(values, OFFSETS)
        else:
            layer = nn.AttentionalGRU(DIM, 3, kind, reset)
            states = layer(flat, padded(attention)[0], lists)
            expected = layer(values, attention, OFFSETS)
    close(positions(states), expected)
