"""Chosen paths of linear layers against plain PyTorch."""

import copy
import functools
import json
import os

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from hotrows.models.nn import (
    MLP,
    PathLinear,
    choose_linear_paths,
    linear_paths,
    products,
    use_linear_paths,
)
from hotrows.ops.layers.relu import relu_backward, relu_backward_reference
from tests.support import pretend

pytestmark = pytest.mark.usefixtures("one_thread")
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
SHAPES = [(13, 512), (5, 3), (64, 16), (33, 1), (1, 1), (100, 70)]


@pytest.fixture
def one_thread(threads):
    threads(1)  # small problems: a team of threads would only wait for each other


def tolerance(dtype):
    return {"rtol": 3e-2, "atol": 3e-2} if dtype == torch.bfloat16 else {"rtol": 1e-4, "atol": 1e-4}


def every_path(model, dtype):
    """Tables of choices that together use each offered path for every layer of the model."""
    shapes = {(m.in_features, m.out_features) for m in model.modules() if isinstance(m, nn.Linear)}
    for number in range(5):
        yield {
            f"{product} {dtype} {k}x{n}": names[number % len(names)]
            for k, n in shapes
            for product in products.BY_PRODUCT
            for names in [products.paths_for(product, n, DTYPES[dtype])]
        }


def run(model, x, dtype, grad=None):
    """Output, then the gradients of x and of all parameters."""
    x = x.clone().requires_grad_()
    model.zero_grad()
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype == "bfloat16"):
        y = model(x)
    y.backward(torch.ones_like(y) if grad is None else grad.to(y.dtype))
    return [y.detach(), x.grad, *(p.grad for p in model.parameters())]


def assert_same(got, expected, dtype):
    for one, two in zip(got, expected, strict=True):
        scale = two.abs().max().clamp(min=1e-2).float()
        assert one.dtype == two.dtype
        assert_close(one.float() / scale, two.float() / scale, **tolerance(DTYPES[dtype]))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_path_of_a_linear_layer_equals_plain_torch(shape, dtype):
    plain = nn.Linear(*shape)
    for size in (1, 7, 64):
        x, grad = torch.randn(size, shape[0]), torch.randn(size, shape[1])
        expected = run(plain, x, dtype, grad)
        for choices in every_path(plain, dtype):
            layer = copy.deepcopy(plain)
            use_linear_paths(layer, choices)
            assert type(layer) is PathLinear
            assert_same(run(layer, x, dtype, grad), expected, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("last", ["none", "relu"])
def test_a_fused_mlp_equals_its_layers_one_by_one(dtype, last):
    plain = MLP((13, 32, 17, 1), last_activation=last)
    x, grad = torch.randn(50, 13), torch.randn(50, 1)
    expected = run(plain, x, dtype, grad)
    for choices in every_path(plain, dtype):
        fused = copy.deepcopy(plain)
        use_linear_paths(fused, choices)
        assert_same(run(fused, x, dtype, grad), expected, dtype)


def test_without_choices_an_mlp_is_plain_torch():
    mlp = MLP((4, 8, 2))
    plain = nn.Sequential(mlp.layers[0], nn.ReLU(), mlp.layers[1])
    x = torch.randn(6, 4)
    assert torch.equal(mlp(x), plain(x))


@pytest.mark.parametrize(
    "options",
    [
        {"dropout": 0.5},
        {"dropout": 0.5, "batch_norm": True},
        {"batch_norm": True},
        {"activation": "tanh"},
    ],
)
def test_layers_with_more_than_relu_between_them_use_their_paths_too(options):
    plain = MLP((6, 8, 8, 1), **options)
    chosen = copy.deepcopy(plain)
    use_linear_paths(chosen, {})
    x = torch.randn(20, 6)
    results = []
    for model in (plain, chosen):
        torch.manual_seed(1)
        results.append(run(model, x, "float32"))
    assert_same(results[1], results[0], "float32")


def test_choices_survive_json_and_only_measured_layers_leave_the_plain_path():
    model = MLP((13, 64, 1))
    choices = choose_linear_paths(model, batch_size=256, seconds=0.05)
    assert len(choices) == 6 and type(model.layers[0]) is nn.Linear
    copied = copy.deepcopy(model)
    use_linear_paths(model, choices)
    use_linear_paths(copied, json.loads(json.dumps(choices)))
    x = torch.randn(256, 13)
    for one, two in zip(run(model, x, "float32"), run(copied, x, "float32"), strict=True):
        assert torch.equal(one, two)


def test_bfloat16_choices_stand_beside_float32_ones():
    model = MLP((8, 16, 1))
    choices = choose_linear_paths(model, 64, torch.bfloat16, seconds=0.05)
    assert all(key.split(" ")[1] == "bfloat16" for key in choices)
    use_linear_paths(model, choices | choose_linear_paths(model, 64, seconds=0.05))
    assert set(model.layers[0].paths) == set(DTYPES)


def test_a_path_that_computes_something_else_never_wins(monkeypatch):
    monkeypatch.setitem(products.FORWARD, "onednn", lambda x, w, b, relu: x.new_zeros(len(x), len(w)))
    choices = choose_linear_paths(nn.Linear(64, 64), 512, seconds=0.05)
    assert choices["forward float32 64x64"] != "onednn"


def test_a_path_that_this_torch_lacks_is_refused(monkeypatch):
    monkeypatch.setattr(products, "has_onednn", lambda dtype: False)
    with pytest.raises(ValueError, match="'onednn' for 'forward float32 4x4' is not offered"):
        use_linear_paths(nn.Linear(4, 4), {"forward float32 4x4": "onednn"})
    assert set(choose_linear_paths(nn.Linear(4, 4), 8, seconds=0.01).values()) <= {
        "torch",
        "turned",
        "chunked",
    }


@pytest.mark.parametrize(
    ("others", "chosen", "times"), [([0.0], 0, 1), ([1.5, 0.1], 1, 2), ([1.5, 0.3, 0.9], 1, 3)]
)
def test_what_a_busy_machine_measured_is_measured_again(monkeypatch, others, chosen, times):
    """The first measurement of a machine was kept for good, though another program ran beside it."""
    busy, answers = iter(others), iter([{"path": number} for number in range(9)])

    class Used:
        def end(self):
            return {"machine_busy": next(busy) / (os.cpu_count() or 1), "cores_busy": 0.0}

    monkeypatch.setattr(linear_paths, "Utilization", Used)
    assert linear_paths._quietest(lambda: next(answers)) == {"path": chosen}
    assert next(answers) == {"path": times}


def test_load_that_slows_one_path_down_for_a_while_does_not_choose(monkeypatch):
    """Paths take turns and the shortest time of each counts: load during some turns changes nothing."""
    taken = {"onednn": iter([9.0, 9.0, 9.0, *[0.8] * 99]), "torch": iter([1.0] * 99)}
    runs = {name: functools.partial(torch.zeros, 1) for name in taken}
    names = {id(run): name for name, run in runs.items()}
    monkeypatch.setattr(linear_paths, "_time", lambda run: next(taken[names[id(run)]]))
    assert linear_paths._fastest(runs, 0.0, 1e-4) == "onednn"


def test_what_there_is_no_time_to_measure_stays_plain():
    choices = choose_linear_paths(MLP((8, 16, 1)), 64, seconds=0.0)
    assert len(choices) == 6 and set(choices.values()) == {"torch"}


def test_parameters_keep_identity_names_and_optimizers():
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 1, bias=False))
    before = dict(model.named_parameters())
    use_linear_paths(model, {})
    after = dict(model.named_parameters())
    assert list(before) == list(after) and all(before[name] is after[name] for name in before)


def test_leading_dimensions_and_empty_inputs_behave_as_in_nn_linear():
    layer = nn.Linear(4, 3)
    shapes = [(2, 5, 4), (0, 4), (4,)]
    expected = [layer(torch.ones(shape)) for shape in shapes]
    use_linear_paths(layer, {})
    for shape, want in zip(shapes, expected, strict=True):
        assert_close(layer(torch.ones(shape)), want)


def test_frozen_layers_get_no_gradient():
    model = MLP((4, 8, 1))
    use_linear_paths(model, {})
    model.layers[0].requires_grad_(False)
    model(torch.randn(5, 4)).sum().backward()
    assert model.layers[0].weight.grad is None and model.layers[1].weight.grad is not None


def test_bfloat16_parameters_stay_plain():
    layer = nn.Linear(4, 3).bfloat16()
    use_linear_paths(layer, {})
    assert layer(torch.ones(2, 4).bfloat16()).dtype == torch.bfloat16


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
def test_native_relu_backward_equals_the_reference(dtype):
    for size, width in [(0, 3), (1, 1), (31, 17), (100, 64)]:
        grad = torch.randn(size, width).to(dtype)
        activation = torch.randn(size, width).relu().to(dtype)
        for after in (activation, None):
            got = relu_backward(grad.clone(), after, torch.empty_like(grad))
            expected = relu_backward_reference(grad.clone(), after, torch.empty_like(grad))
            assert torch.equal(got[0], expected[0])
            assert_close(got[1], expected[1], rtol=1e-4, atol=1e-4)


def test_measuring_leaves_the_random_state_alone():
    layer, before = nn.Linear(4, 4), torch.get_rng_state()
    choose_linear_paths(layer, 8, seconds=0.01)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("has_zeros", [False, True])
def test_narrow_inputs_of_odd_width_are_padded_on_a_gpu(has_zeros):
    """To whole rows of 16 bytes, by a layer before or by the MLP itself; results and gradients stay."""
    torch.manual_seed(0)
    plain = MLP((13, 8, 1))
    padded, x = copy.deepcopy(plain), torch.randn(5, 13).bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        expected = plain(x)
    expected.float().sum().backward()
    with pretend.gpu():
        padded.to(pretend.CUDA)
        inputs = nn.functional.pad(x, (0, 3 if has_zeros else 0)).to(pretend.CUDA).requires_grad_()
        with torch.autocast("cuda", torch.bfloat16):
            out = padded(inputs)
        out.float().sum().backward()
        torch.testing.assert_close(out.detach().cpu(), expected.detach(), rtol=1e-2, atol=1e-2)
        assert inputs.grad.shape == inputs.shape
        for one, other in zip(padded.parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(one.grad.cpu(), other.grad, rtol=2e-2, atol=2e-2)
