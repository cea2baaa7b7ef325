"""Target attention as one function of the core, on each level of instructions, beside float64."""

import copy
import ctypes
import itertools
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

from hotrows.engine.shared_lists import SharedLists
from hotrows.models.nn import TargetAttention
from hotrows.runtime import native

CORES = sorted(Path(native.load()._name).parent.glob("core_*.so"))
# Within a tile of 64, over its end, and just full; from 24 on in lanes, with each kind of last tile.
LENGTHS = [3, 0, 70, 1, 64, 130, 9, 50, 24, 23]
EACH, SHARED = None, torch.tensor([0, 1, 3, 4, 7, 8, 9, 11, 12, 22, 23])


@pytest.fixture(params=CORES, ids=lambda path: path.stem)
def core(request, monkeypatch):
    """Calls go to one level of instructions."""
    library = ctypes.CDLL(str(request.param))
    monkeypatch.setattr(native, "load", lambda: library)


def lists_of(lengths, starts):
    offsets = torch.tensor([0, *lengths]).cumsum(0)
    return offsets if starts is None else SharedLists(offsets, starts)


def inputs(dim, lengths, starts=EACH, seed=0):
    generator = torch.Generator().manual_seed(seed)
    num = len(lengths) if starts is None else int(starts[-1])
    queries, keys = (torch.randn(n, dim, generator=generator) for n in (num, sum(lengths)))
    return queries, keys, lists_of(lengths, starts)


def run(layer, queries, keys, lists, pooled=True):
    """What it returns, and the gradients of queries, keys and parameters."""
    queries, keys = (
        t.detach().to(next(layer.parameters()).dtype).requires_grad_() for t in (queries, keys)
    )
    out = (layer if pooled else layer.scores)(queries, keys, lists)
    layer.zero_grad()
    (out * torch.linspace(-1, 2, out.numel()).view_as(out)).sum().backward()
    return [out.detach(), queries.grad, keys.grad, *(p.grad.clone() for p in layer.parameters())]


def assert_near(got, expected, tolerance=2e-5):
    for one, two in zip(got, expected, strict=True):
        scale = two.abs().max().clamp(min=0.1) if two.numel() else 1.0
        assert_close(one.double() / scale, two / scale, rtol=0, atol=tolerance)


@pytest.mark.usefixtures("core")
@pytest.mark.parametrize("dim", [1, 3, 7, 16, 17, 64, 100])
@pytest.mark.parametrize(
    ("hidden", "activation"),
    [((80, 40), "sigmoid"), ((17, 33, 2), "prelu"), ((5,), "tanh"), ((16, 16), "relu"), ((3,), "none")],
    ids=str,
)
def test_values_and_gradients_are_those_of_the_layers_in_float64(dim, hidden, activation):
    torch.manual_seed(dim)
    for starts in (EACH, SHARED):
        for normalize in (True, False):
            layer = TargetAttention(dim, hidden, activation, normalize)
            plain = copy.deepcopy(layer).double()
            data = inputs(dim, LENGTHS, starts)
            for pooled in (True, False):
                assert layer._is_one_function(*data) and not plain._is_one_function(
                    data[0].double(), *data[1:]
                )
                assert_near(run(layer, *data, pooled), run(plain, *data, pooled))


@pytest.mark.usefixtures("core")
@pytest.mark.parametrize("is_training", [True, False])
@pytest.mark.parametrize("hidden", [(36,), (5,), (80,), (6, 4)], ids=str)
def test_dice_has_the_values_and_gradients_of_the_layers_in_float64(hidden, is_training):
    torch.manual_seed(0)
    for starts, normalize in ((EACH, False), (SHARED, True)):
        layer = TargetAttention(16, hidden, "dice", normalize).train(is_training)
        torch.nn.init.normal_(layer.activation.alpha)
        layer.activation.running_mean.uniform_()
        plain, data = copy.deepcopy(layer).double(), inputs(16, LENGTHS, starts)
        assert (layer._last_behind_dice(data[0]) is not None) == (len(hidden) == 1)
        assert plain._last_behind_dice(data[0].double()) is None
        assert_near(run(layer, *data), run(plain, *data))
        for name, average in layer.named_buffers():
            assert_close(average.double(), plain.get_buffer(name), rtol=1e-5, atol=1e-6)


@pytest.mark.usefixtures("core")
@pytest.mark.parametrize("lengths", [[], [0], [0, 0], [1], [5000], [1] * 300], ids=lambda x: f"{x[:2]}")
def test_no_list_empty_lists_one_event_and_a_long_one(lengths):
    layer = TargetAttention(8, (6, 4))
    data = inputs(8, lengths)
    assert_near(run(layer, *data), run(copy.deepcopy(layer).double(), *data))


@pytest.mark.usefixtures("core")
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_not_finite_stays_with_its_sample(value):
    layer = TargetAttention(16, (8, 4))
    queries, keys, offsets = inputs(16, LENGTHS)
    clean = run(layer, queries, keys, offsets)[0]
    keys[offsets[4] + 3, 5] = value  # of sample 4, which fills a tile with the end of sample 2
    out = layer(queries, keys, offsets)
    assert not out[4].isfinite().all()
    others = torch.arange(len(LENGTHS)) != 4
    assert torch.equal(out[others], clean[others])


@pytest.mark.usefixtures("core")
def test_the_sigmoid_is_within_two_units_in_the_last_place():
    layer = TargetAttention(1, (1,), normalize=False)
    with torch.no_grad():
        layer.first.weight.copy_(torch.tensor([[0.0, 1.0, 0.0, 0.0]]))  # a key's score is its sigmoid
        for parameter, value in zip([*layer.parameters()][1:], (0.0, 1.0, 0.0), strict=True):
            parameter.fill_(value)
        x = torch.linspace(-87, 100, 200_001)
        got = layer.scores(torch.zeros(1, 1), x[:, None], torch.tensor([0, len(x)]))
    expected = x.double().sigmoid()
    unit = torch.finfo(torch.float32).eps * 2.0 ** expected.log2().floor().clamp(min=-126)
    assert ((got.double() - expected).abs() <= 2 * unit).all()


def test_the_number_of_threads_changes_no_bit(threads):
    layer, data = TargetAttention(16, (80, 40)), inputs(16, LENGTHS * 40)
    results = []
    for number in (1, 3):
        threads(number)
        results.append(run(layer, *data))
    assert all(torch.equal(*pair) for pair in zip(*results, strict=True))


def test_hooks_and_dice_see_every_layer():
    data = inputs(4, [2, 3])
    assert not TargetAttention(4, (5, 3), "dice")._is_one_function(*data)
    layers = TargetAttention(4, (5, 3)), TargetAttention(4, (5,), "dice")
    for layer, name in itertools.product(layers, ("rest", "rest.layers.0")):
        expected, seen = layer(*data), []
        hooked = layer.get_submodule(name)
        handle = hooked.register_forward_hook(lambda *arguments, seen=seen: seen.append(arguments))
        assert_close(layer(*data), expected)
        assert len(seen) == 1
        handle.remove()
    assert layers[0]._is_one_function(*data)


def test_narrow_vectors_are_computed_in_float32():
    layer = TargetAttention(4, (5, 3))
    queries, keys, offsets = inputs(4, [2, 3])
    with torch.autocast("cpu", torch.bfloat16):
        out = layer(queries.bfloat16(), keys.bfloat16(), offsets)
    assert out.dtype == torch.float32
    assert torch.equal(out, layer(queries.bfloat16().float(), keys.bfloat16().float(), offsets))


def test_vectors_that_do_not_match_are_refused():
    queries, keys, offsets = inputs(4, [2, 3])
    with pytest.raises(ValueError, match="dim=5 needs queries"):
        TargetAttention(5, (3,))(queries, keys, offsets)
    with pytest.raises(ValueError, match="offsets of 2 samples"):
        TargetAttention(4, (3,))(queries, keys, offsets + 1)
