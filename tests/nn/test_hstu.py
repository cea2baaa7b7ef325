"""HSTU's layer: native against reference, jagged against the paper's formula, forward and backward."""

import itertools

import pytest
import torch
from torch.nn import functional
from torch.testing import assert_close

from hotrows.engine.shared_lists import SharedLists
from hotrows.models.nn.hstu import TransductionLayer
from hotrows.ops.layers import hstu
from hotrows.ops.layers.padded import PaddedLists
from hotrows.runtime import native
from tests.support.transduction import formula

LISTS = [[3, 0, 1, 7, 2], [0, 0], [], [300, 1], [5] * 40, [0, 16, 17, 33, 0]]
SIZES = [(1, 1, 2), (2, 8, 5), (2, 16, 51), (3, 5, 400), (1, 33, 20)]  # heads, width of one, places


def wide(arguments):
    return [t.double() if isinstance(t, torch.Tensor) and t.is_floating_point() else t for t in arguments]


def inputs(lengths, size, causal, timed):
    """Arguments of the op, whose rows are parts of wider ones, as a layer has them."""
    heads, width, places = size
    offsets = torch.tensor([0, *lengths]).cumsum(0)
    counts = [i * 7 % 4 for i in range(len(lengths))]
    starts = None if causal else torch.tensor([0, *counts]).cumsum(0)
    num = int(offsets[-1])
    num_queries = num if causal else int(starts[-1])
    both = heads * width
    queries, keys = torch.randn(num_queries, 4 * both)[:, both : 2 * both], torch.randn(num, 3 * both)
    times = [None] * 3
    if timed:
        seconds = torch.randint(0, 100_000, (num,))
        of_queries = seconds if causal else torch.randint(0, 100_000, (num_queries,))
        times = [of_queries, seconds, torch.randn(heads, hstu.INTERVALS)]
    return [queries, keys[:, both:], starts, offsets, torch.randn(heads, places), *times]


@pytest.mark.parametrize("lengths", LISTS, ids=lambda lengths: f"{len(lengths)} lists")
@pytest.mark.parametrize("timed", [False, True], ids=["distances", "times too"])
@pytest.mark.parametrize("causal", [True, False], ids=["elements", "candidates"])
def test_the_core_equals_the_reference(lengths, causal, timed):
    for size in SIZES:
        arguments = inputs(lengths, size, causal, timed)
        assert native.takes(*arguments[:2])
        result = hstu.pointwise_attention(*arguments)
        expected = hstu.pointwise_attention_reference(*wide(arguments))
        assert_close(result.double(), expected, rtol=1e-4, atol=1e-5)
        grad = torch.randn_like(result)
        grads = hstu.pointwise_attention_backward(grad, *arguments)
        expected = hstu.pointwise_attention_backward_reference(grad.double(), *wide(arguments))
        for one, other in zip(grads[: 4 if timed else 3], expected, strict=False):
            scale = other.abs().max().clamp(min=1) if other.numel() else 1
            assert_close(one.double() / scale, other / scale, rtol=0, atol=2e-5)
        assert (grads[3] is None) == (not timed)


def test_intervals_are_two_for_each_power_of_two():
    seconds = torch.tensor([-5, 0, 1, 2, 3, 4, 5, 6, 86_400, 2**40])
    bias = torch.zeros(1, 2)
    of_intervals = 8.0 + torch.arange(float(hstu.INTERVALS))[None]  # silu(s) is s, nearly
    keys = torch.cat([torch.zeros(10, 1), torch.ones(10, 1)], 1)
    lists = torch.arange(11)
    for compute in (hstu.pointwise_attention, hstu.pointwise_attention_reference):
        out = compute(
            torch.zeros(10, 1), keys, lists, lists, bias, seconds, torch.zeros_like(seconds), of_intervals
        )
        assert (2 * out.flatten() - 8).round().tolist() == [0, 0, 0, 2, 3, 4, 4, 5, 32, 63]


def random_layer(by_time=False, **options):
    layer = TransductionLayer(6, **{"heads": 2, "length": 4, "by_time": by_time, **options}).double()
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return layer


@pytest.mark.parametrize("by_time", [False, True], ids=["distances", "times too"])
def test_a_candidate_has_the_state_of_the_last_element_of_its_list(by_time):
    """Two layers over the history once, against the formula over the history and each candidate."""
    layers = [random_layer(by_time) for _ in range(2)]
    lists = SharedLists(torch.tensor([0, 3, 3, 10]), torch.tensor([0, 2, 3, 6]))
    past = torch.randn(10, 6, dtype=torch.float64, requires_grad=True)
    candidates = torch.randn(6, 6, dtype=torch.float64, requires_grad=True)
    now, then = torch.randint(2**20, 2**21, (6,)), torch.randint(0, 2**20, (10,)).sort()[0]
    times = (now, then) if by_time else None
    states, elements = layers[0](candidates, past, lists, times)
    result = layers[1].last(states, elements, lists, times)
    expected = []
    for r, (begin, end) in enumerate(itertools.pairwise(lists.offsets.tolist())):
        for b in range(int(lists.starts[r]), int(lists.starts[r + 1])):
            x = torch.cat([past[begin:end], candidates[b : b + 1]])
            seconds = torch.cat([then[begin:end], now[b : b + 1]]) if by_time else None
            for layer in layers:
                x = formula(layer, x, seconds)
            expected.append(x[-1])
    expected = torch.stack(expected)
    assert_close(result, expected)
    leaves = [past, candidates, *(p for layer in layers for p in layer.parameters())]
    weights = torch.randn_like(result)
    pairs = zip(
        torch.autograd.grad((result * weights).sum(), leaves),
        torch.autograd.grad((expected * weights).sum(), leaves),
        strict=True,
    )
    for one, other in pairs:
        assert_close(one, other)


@pytest.mark.parametrize("causal", [True, False], ids=["elements", "candidates"])
def test_padded_lists_give_what_lists_end_to_end_give(causal):
    layer, lengths = random_layer().float(), torch.tensor([3, 0, 1, 6])
    past, candidates = torch.randn(10, 6), torch.randn(4, 6)
    offsets = functional.pad(lengths.cumsum(0), (1, 0))
    mask = torch.arange(7) < lengths[:, None]
    padded = torch.full((4, 7, 6), 7.0)
    padded[mask] = past
    shown = layer(candidates, padded.flatten(0, 1), PaddedLists(lengths, 7))
    expected = layer(candidates, past, offsets)
    got = shown[1][mask.flatten()] if causal else shown[0]
    assert_close(got, expected[1 if causal else 0], rtol=1e-4, atol=1e-5)


def test_a_list_does_not_depend_on_its_neighbours():
    layer = random_layer().float()
    past, candidates = torch.randn(9, 6), torch.randn(3, 6)
    together = layer(candidates, past, torch.tensor([0, 4, 4, 9]))
    alone = layer(candidates[2:], past[4:], torch.tensor([0, 5]))
    assert_close(together[0][2:], alone[0])
    assert_close(together[1][4:], alone[1])


def test_the_number_of_threads_changes_no_bit(threads):
    lengths = torch.randint(0, 60, (100,)).tolist()
    for causal in (True, False):
        arguments, ways = inputs(lengths, (2, 8, 51), causal, timed=True), []
        grad = torch.randn_like(arguments[0])
        for count in (1, 2):
            threads(count)
            grads = hstu.pointwise_attention_backward(grad, *arguments)
            ways.append([hstu.pointwise_attention(*arguments), *grads])
        assert all(torch.equal(one, two) for one, two in zip(*ways, strict=True))


def test_arguments_that_make_no_layer_are_refused():
    for options in ({"heads": 4}, {"heads": 0}, {"length": 0}):
        with pytest.raises(ValueError, match="heads that divide the width of an element, 6"):
            TransductionLayer(6, **options)
    layer, x = TransductionLayer(6), torch.zeros(2, 6)
    timed, seconds = TransductionLayer(6, by_time=True), torch.zeros(2).long()
    for case, times in (
        (layer, (seconds, seconds)), (timed, None), (timed, (seconds, seconds[:1])),
        (timed, (seconds.float(), seconds)),
    ):  # fmt: skip
        with pytest.raises(ValueError, match="times, int64 of each .* go with by_time=True"):
            case(x, x, torch.tensor([0, 1, 2]), times)
