"""Chosen paths of linear layers against plain PyTorch."""

import copy
import json

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from hotrows.models.nn import MLP, PathLinear, choose_linear_paths, use_linear_paths
from hotrows.ops.layers import products
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
    for number in range(3):
        yield {
            f"{product} {dtype} {k}x{n}": names[number % len(names)]
            for k, n in shapes
            for product in products.BY_PRODUCT
            for names in [products.paths_for(product, DTYPES[dtype])]
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


# Vendor, PyTorch's instructions, dtype, inputs, outputs -> forward, input gradient, weight gradient.
AMD, INTEL = "AuthenticAMD", "GenuineIntel"
RULE = [
    (AMD, "AVX512", "float32", 367, 512, ("onednn", "onednn", "onednn")),
    (AMD, "AVX512", "float32", 64, 64, ("onednn", "onednn", "onednn")),
    (AMD, "AVX512", "float32", 13, 512, ("onednn", "onednn", "onednn_turned")),
    (AMD, "AVX512", "float32", 64, 16, ("torch", "torch", "torch")),
    (AMD, "AVX512", "float32", 5000, 1, ("torch", "torch", "torch")),
    (AMD, "AVX512", "bfloat16", 367, 512, ("onednn", "torch", "torch")),
    (AMD, "AVX2", "float32", 367, 512, ("torch", "torch", "torch")),
    (INTEL, "AVX512", "float32", 367, 512, ("torch", "torch", "torch")),
    (INTEL, "AVX512", "bfloat16", 16, 8, ("onednn", "torch", "torch")),
    ("", "DEFAULT", "float32", 367, 512, ("torch", "torch", "torch")),
]


@pytest.mark.parametrize(("vendor", "level", "dtype", "inputs", "outputs", "paths"), RULE, ids=str)
def test_the_rule_of_each_kind_of_processor(vendor, level, dtype, inputs, outputs, paths, monkeypatch):
    monkeypatch.setattr(products, "vendor", lambda: vendor)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: level)
    monkeypatch.setattr(products, "has_onednn", lambda dtype: True)
    products.paths_of.cache_clear()
    choices = choose_linear_paths(nn.Linear(inputs, outputs), DTYPES[dtype])
    products.paths_of.cache_clear()
    assert choices == {
        f"{product} {dtype} {inputs}x{outputs}": path
        for product, path in zip(products.BY_PRODUCT, paths, strict=True)
    }
    use_linear_paths(nn.Linear(inputs, outputs), json.loads(json.dumps(choices)))


def test_a_path_that_only_an_earlier_version_measured_is_plain():
    plain, layer = nn.Linear(33, 1), nn.Linear(33, 1)
    layer.load_state_dict(plain.state_dict())
    names = zip(products.BY_PRODUCT, ("sum", "outer", "chunked"), strict=True)
    use_linear_paths(layer, {f"{product} float32 33x1": path for product, path in names})
    x = torch.randn(7, 33)
    assert all(map(torch.equal, run(layer, x, "float32"), run(plain, x, "float32")))


def test_a_path_that_this_torch_lacks_is_refused_and_not_chosen(monkeypatch):
    monkeypatch.setattr(products, "has_onednn", lambda dtype: False)
    with pytest.raises(ValueError, match="'onednn' for 'forward float32 4x4' is not offered"):
        use_linear_paths(nn.Linear(4, 4), {"forward float32 4x4": "onednn"})
    products.paths_of.cache_clear()
    assert set(choose_linear_paths(nn.Linear(400, 400)).values()) == {"torch"}
    products.paths_of.cache_clear()


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
