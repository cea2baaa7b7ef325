"""GRUs over jagged lists: against torch.nn.GRU, an obvious cell, and the native core's twin."""

import itertools
from functools import partial

import pytest
import torch
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.testing import assert_close

from hotrows.models.nn import GRU, AttentionalGRU, last_of, to_padded
from hotrows.ops.layers.recurrent import (
    KINDS,
    RESETS,
    recurrent,
    recurrent_backward,
    recurrent_backward_reference,
    recurrent_reference,
)
from hotrows.runtime import native

LISTS = ([], [0, 0], [3, 0, 1, 5, 2], [2] * 40, [1, 40])
every_cell = pytest.mark.parametrize(("kind", "reset"), [*itertools.product(KINDS, RESETS)])


def offsets_of(lengths):
    return torch.tensor([0, *lengths]).cumsum(0)


def layer(kind, reset, *sizes, **options):
    if kind == "gru":
        return GRU(*sizes, reset=reset, **options)
    return AttentionalGRU(*sizes, kind=kind, reset=reset, **options)


def sample(kind, lengths, dim, dtype=torch.float64):
    """x, attention and offsets, as the layer of this kind takes them."""
    offsets = offsets_of(lengths)
    x = torch.randn(int(offsets[-1]), dim, dtype=dtype, requires_grad=True)
    attention = torch.rand(len(x), dtype=dtype, requires_grad=True)
    return (x, offsets) if kind == "gru" else (x, attention, offsets)


def slow(cell, kind, reset, x, attention, offsets):
    """One position after the other, by the formulas of the papers."""
    u_r, u_z, u_n = cell.weight_hh.chunk(3)
    c_r, c_z, c_n = cell.bias_hh.chunk(3)
    states = []
    for first, end in itertools.pairwise(offsets.tolist()):
        h = x.new_zeros(cell.hidden_size)
        for place in range(first, end):
            x_r, x_z, x_n = (cell.weight_ih @ x[place] + cell.bias_ih).chunk(3)
            r = torch.sigmoid(x_r + u_r @ h + c_r)
            z = torch.sigmoid(x_z + u_z @ h + c_z)
            inner = r * (u_n @ h + c_n) if reset == "after" else u_n @ (r * h) + c_n
            n = torch.tanh(x_n + inner)
            a = None if attention is None else attention[place]
            if kind == "gru":
                h = z * h + (1 - z) * n
            elif kind == "augru":
                h = (1 - a * z) * h + a * z * n
            elif kind == "augru_code":
                keep = (1 - a) * z
                h = keep * h + (1 - keep) * n
            else:
                h = (1 - a) * h + a * n
            states.append(h)
    return torch.stack(states)


@every_cell
def test_states_and_gradients_are_those_of_an_obvious_loop(kind, reset):
    cell = layer(kind, reset, 4, 3).double()
    inputs = sample(kind, [3, 0, 1, 5], 4)
    states = cell(*inputs)
    x, attention = inputs[0], None if kind == "gru" else inputs[1]
    expected = slow(cell, kind, reset, x, attention, inputs[-1])
    assert_close(states, expected)
    leaves = [*inputs[:-1], *cell.parameters()]
    grad = torch.randn_like(states)
    gradients = torch.autograd.grad(expected, leaves, grad, materialize_grads=True)
    for got, wanted in zip(torch.autograd.grad(states, leaves, grad), gradients, strict=True):
        assert_close(got, wanted)


@every_cell
def test_gradients_are_those_of_finite_differences(kind, reset):
    cell = layer(kind, reset, 2, 3).double()
    names, parameters = zip(*cell.named_parameters(), strict=True)
    inputs = sample(kind, [2, 0, 3], 2)

    def states(*leaves):
        values = dict(zip(names, leaves[: len(names)], strict=True))
        return torch.func.functional_call(cell, values, (*leaves[len(names) :], inputs[-1]))

    assert torch.autograd.gradcheck(states, (*parameters, *inputs[:-1]))


@pytest.mark.parametrize(("dim", "hidden"), [(5, 3), (18, 36), (16, 16)])
def test_weights_of_torch_load_and_packed_sequences_give_the_same(dim, hidden):
    peer = torch.nn.GRU(dim, hidden, batch_first=True)
    ours = GRU(dim, hidden)
    ours.load_state_dict({k.removesuffix("_l0"): v for k, v in peer.state_dict().items()})
    lengths = torch.tensor([3, 1, 40, 7, 12])
    offsets = offsets_of(lengths.tolist())
    x = torch.randn(int(offsets[-1]), dim, requires_grad=True)
    padded, mask = to_padded(x, offsets)
    packed = pack_padded_sequence(padded, lengths, batch_first=True, enforce_sorted=False)
    expected = pad_packed_sequence(peer(packed)[0], batch_first=True)[0][mask]
    states = ours(x, offsets)
    assert_close(states, expected, rtol=1e-4, atol=1e-5)
    grad = torch.randn_like(states)
    wanted = torch.autograd.grad(expected, [x, *peer.parameters()], grad)
    for got, want in zip(torch.autograd.grad(states, [x, *ours.parameters()], grad), wanted, strict=True):
        assert_close(got, want, rtol=1e-4, atol=1e-4)


@every_cell
def test_native_equals_the_reference(kind, reset):
    for hidden, lengths in itertools.product((1, 3, 16, 17, 64), LISTS):
        offsets = offsets_of(lengths)
        parts = torch.randn(int(offsets[-1]), 3 * hidden)
        attention = None if kind == "gru" else torch.rand(len(parts))
        weight, bias = torch.randn(3 * hidden, hidden) / hidden**0.5, torch.randn(3 * hidden)
        assert native.takes(parts, attention, weight, bias)
        expected = recurrent_reference(parts, attention, offsets, weight, bias, kind, reset)
        got = recurrent(parts, attention, offsets, weight, bias, kind, reset)
        grad = torch.randn(len(parts), hidden)
        inputs = attention, offsets, weight, kind, reset
        expected += recurrent_backward_reference(grad, *expected, *inputs)
        got += recurrent_backward(grad, *got, *inputs)
        for one, two in zip(got, expected, strict=True):
            if two is not None:
                assert_close(one, two, rtol=1e-4, atol=2e-4)


def test_saturated_gates_and_nan_are_as_in_torch():
    parts = torch.tensor([[200.0, -200.0, 200.0], [-200.0, 200.0, -200.0], [0, float("nan"), 1e-6]])
    offsets, zeros = torch.arange(4), torch.zeros(3)
    inputs = None, offsets, zeros[:, None], zeros, "gru", "after"
    expected = recurrent_reference(parts, *inputs)
    got = recurrent(parts.clone(), *inputs)
    for one, two in zip(got, expected, strict=True):
        assert_close(one, two, rtol=1e-6, atol=1e-30, equal_nan=True)


@every_cell
def test_the_number_of_threads_changes_no_bit(threads, kind, reset):
    cell = layer(kind, reset, 8, 20)
    lengths = torch.randint(0, 9, (150,)).tolist()
    inputs = sample(kind, lengths, 8, torch.float32)
    leaves = [*inputs[:-1], *cell.parameters()]
    results = []
    for count in (1, 2):
        threads(count)
        states = cell(*inputs)
        results.append([states, *torch.autograd.grad(states.square().sum(), leaves)])
    assert all(torch.equal(one, two) for one, two in zip(*results, strict=True))


def test_a_sample_does_not_see_the_others():
    cell = AttentionalGRU(4, 17)
    lengths = [3, 0, 70, 1] * 10
    x, attention, offsets = sample("augru", lengths, 4, torch.float32)
    together = cell(x, attention, offsets)
    for first, end in itertools.pairwise(offsets.tolist()):
        positions = slice(first, end)
        alone = cell(x[positions], attention[positions], torch.tensor([0, end - first]))
        assert_close(together[positions], alone, rtol=1e-5, atol=1e-6)


def test_one_forward_may_be_walked_back_twice():
    cell = GRU(3, 4)
    x, offsets = sample("gru", [2, 3], 3, torch.float32)
    loss = cell(x, offsets).sum()
    (once,) = torch.autograd.grad(loss, x, retain_graph=True)
    assert torch.equal(once, torch.autograd.grad(loss, x)[0])


def test_without_attention_the_state_stays():
    x, _, offsets = sample("augru", [4], 3, torch.float32)
    for kind in ("augru", "agru"):
        states = AttentionalGRU(3, 5, kind=kind)(x, torch.zeros(4), offsets)
        assert torch.equal(states, torch.zeros(4, 5))
    plain = AttentionalGRU(3, 5, kind="augru_code")
    gru = GRU(3, 5)
    gru.load_state_dict(plain.state_dict())
    assert_close(plain(x, torch.zeros(4), offsets), gru(x, offsets))


def test_under_autocast_it_computes_in_float32():
    cell = GRU(3, 4)
    x, offsets = sample("gru", [2, 3], 3, torch.float32)
    expected = cell(x.bfloat16().float(), offsets)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        leaf = x.detach().bfloat16().requires_grad_()
        states = cell(leaf, offsets)
        states.sum().backward()
    assert torch.equal(states, expected)
    assert leaf.grad.dtype == torch.bfloat16


def test_gates_may_start_as_in_tensorflow():
    cell = GRU(3, 2, gate_bias=1.0)
    assert (cell.bias_ih + cell.bias_hh).tolist() == [1, 1, 1, 1, 0, 0]
    assert GRU(3, 4).weight_hh.abs().max() <= 0.5


def test_the_last_state_of_each_list():
    offsets = torch.tensor([0, 2, 2, 3])
    assert last_of(torch.tensor([[1.0], [3.0], [5.0]]), offsets).tolist() == [[3], [0], [5]]
    states = torch.randn(3, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(partial(last_of, offsets=offsets), (states,))
    assert last_of(torch.empty(0, 2), torch.zeros(1, dtype=torch.int64)).shape == (0, 2)


def test_what_is_wrong_is_said():
    with pytest.raises(ValueError, match="kind must be one of augru, augru_code, agru, not 'gru'"):
        AttentionalGRU(3, 4, kind="gru")
    with pytest.raises(ValueError, match="reset must be one of before, after, not 'never'"):
        GRU(3, 4, reset="never")
    x, offsets = torch.zeros(2, 3), torch.tensor([0, 2])
    with pytest.raises(ValueError, match=r"x must be \[N, 4\].* not \[2, 3\]"):
        GRU(4, 4)(x, offsets)
    with pytest.raises(ValueError, match=r"one weight for each of the 2 positions, not \[2, 1\]"):
        AttentionalGRU(3, 4)(x, torch.zeros(2, 1), offsets)
