"""Lists that samples share: repeated, summed, and computed once."""

import pytest
import torch
from torch.testing import assert_close

from hotrows.models.nn import GRU, AttentionalGRU, BilinearAttention, SharedLists, TargetAttention
from hotrows.ops.layers import attention, jagged
from hotrows.runtime import native

CASES = {
    "uneven": ([3, 0, 2, 1], [2, 3, 1, 4]),
    "one sample each": ([2, 1], [1, 1]),
    "empty lists": ([0, 0], [2, 1]),
    "nothing": ([], []),
    "one request": ([5], [7]),
}
cases = pytest.mark.parametrize("lengths, samples", CASES.values(), ids=CASES)


def lists_of(lengths, samples):
    return SharedLists(*(torch.tensor([0, *sizes]).cumsum(0) for sizes in (lengths, samples)))


def test_each_sample_of_a_request_gets_its_list():
    lists = lists_of([2, 1], [2, 1])
    values = torch.tensor([[1.0], [2.0], [3.0]], requires_grad=True)
    repeated = lists.repeated(values)
    assert repeated.flatten().tolist() == [1, 2, 1, 2, 3]
    assert lists.sample_offsets.tolist() == [0, 2, 4, 5]
    repeated.backward(torch.tensor([[1.0], [2.0], [10.0], [20.0], [5.0]]))
    assert values.grad.flatten().tolist() == [11, 22, 5]
    assert lists.of_samples(torch.tensor([[7.0], [8.0]])).flatten().tolist() == [7, 7, 8]


@cases
@pytest.mark.parametrize("width", [1, 16, 19])
def test_the_core_equals_plain_pytorch(lengths, samples, width, monkeypatch):
    lists = lists_of(lengths, samples)
    values, arguments = torch.randn(sum(lengths), width), (lists.offsets, lists.starts)
    repeated = jagged.repeat_lists(values, *arguments)
    grad = torch.randn_like(repeated)
    summed = jagged.sum_lists(grad, *arguments)
    assert native.takes(values)
    assert torch.equal(repeated, jagged.repeat_lists_reference(values, *arguments))
    assert_close(summed, jagged.sum_lists_reference(grad, *arguments))
    assert len(repeated) == int(lists.sample_offsets[-1])


@cases
@pytest.mark.parametrize("kind", ["augru", "augru_code", "agru"])
def test_a_gru_of_shared_lists_is_that_of_every_sample(lengths, samples, kind):
    lists, layer = lists_of(lengths, samples), AttentionalGRU(6, 6, kind)
    attention = torch.rand(int(lists.sample_offsets[-1]))
    done = []
    for shared in (True, False):
        past, weights = (t.clone().requires_grad_() for t in (torch.ones(sum(lengths), 6), attention))
        past.data.copy_(torch.linspace(-1, 1, past.numel()).view_as(past))
        layer.zero_grad()
        if shared:
            states = layer(past, weights, lists)
        else:
            states = layer(lists.repeated(past), weights, lists.sample_offsets)
        states.sin().sum().backward()
        done.append([states, past.grad, weights.grad, *(p.grad.clone() for p in layer.parameters())])
    for one, other in zip(*done, strict=True):
        assert_close(one, other, rtol=1e-5, atol=1e-6)


@cases
@pytest.mark.parametrize("dim", [6, 16])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("kind", ["target", "bilinear"])
def test_attention_to_shared_lists_is_that_to_every_sample_s(lengths, samples, dim, dtype, kind):
    """The core reads the list of a request for each of its samples; elsewhere it is repeated."""
    lists = lists_of(lengths, samples)
    layer = (TargetAttention(dim, (16, 3)) if kind == "target" else BilinearAttention(dim, dim)).to(dtype)
    queries, past = (
        torch.randn(sum(samples), dim, dtype=dtype),
        torch.randn(sum(lengths), dim, dtype=dtype),
    )
    done = []
    for shared in (True, False):
        q, k = (t.clone().requires_grad_() for t in (queries, past))
        layer.zero_grad()
        out = layer(q, k, lists) if shared else layer(q, lists.repeated(k), lists.sample_offsets)
        out.sin().sum().backward()
        done.append([out, q.grad, k.grad, *(p.grad.clone() for p in layer.parameters())])
    for one, other in zip(*done, strict=True):
        assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_the_number_of_threads_changes_no_bit_of_shared_lists(threads):
    lists = lists_of(torch.randint(0, 60, (100,)).tolist(), torch.randint(1, 9, (100,)).tolist())
    past, queries = torch.randn(int(lists.offsets[-1]), 16), torch.randn(int(lists.starts[-1]), 16)
    weight, grad, ways = torch.randn(33, 64), torch.randn(int(lists.sample_offsets[-1]), 33), []
    arguments, starts = (queries, past, lists.offsets), lists.starts
    for count in (1, 2):
        threads(count)
        ways.append(
            [
                attention.target_projection(*arguments, weight, None, starts),
                *attention.target_projection_backward(grad, *arguments, weight, None, starts),
                attention.jagged_dot(*arguments, starts),
                *attention.jagged_dot_backward(grad[:, 0].contiguous(), *arguments, starts),
            ]
        )
    assert all(torch.equal(one, two) for one, two in zip(*ways, strict=True))


def test_a_gru_before_the_repetition_has_the_bits_of_one_behind_it():
    lists, layer = lists_of([3, 0, 2], [2, 1, 3]), GRU(4, 4)
    past = torch.randn(5, 4)
    once = lists.repeated(layer(past, lists.offsets))
    assert torch.equal(once, layer(lists.repeated(past), lists.sample_offsets))
