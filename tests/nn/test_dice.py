"""Dice and PReLU: native against reference, statistics against BatchNorm, in an MLP."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from hotrows.models.nn import MLP, Dice, PReLU
from hotrows.ops.layers import batch_norm
from hotrows.ops.layers import dice as ops
from hotrows.ops.layers.prelu import prelu_backward, prelu_backward_reference
from tests.support import pretend

SHAPES = [(1, 1), (2, 17), (64, 16), (65, 3), (3000, 40), (1037, 36), (70, 511)]


def plain_dice(x, alpha, eps=1e-9):
    """The formula, for autograd to derive."""
    var, mean = torch.var_mean(x, 0, correction=0)
    p = torch.sigmoid((x - mean) / (var + eps).sqrt())
    return p * x + alpha * (1 - p) * x


def backward(sums_of, to_x, grad, x, *statistics, of_batch, weight=None):
    """Gradients of x and alpha, and of the weight of a layer behind it, in two passes."""
    sums = sums_of(grad, x, *statistics, weight)
    grad_x = to_x(grad, x, *statistics, sums[:2], len(x) if of_batch else 0, weight=weight)
    return grad_x, *sums[2:]


@pytest.mark.parametrize("is_before_one", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_native_dice_equals_the_reference(shape, is_before_one):
    """is_before_one: a layer of one output behind it is part of it."""
    x, alpha = 3 * torch.randn(shape) + 1, torch.randn(shape[1])
    grad, weight = torch.randn(shape[0]), torch.randn(shape[1])
    if not is_before_one:
        grad, weight = torch.randn(shape), None
    mean, var = ops.moments(x)
    for got, expected in zip((mean, var), ops.moments_reference(x.double()), strict=True):
        assert_close(got, expected.float(), rtol=1e-5, atol=1e-6)
    arguments = (x, mean, (var + 1e-9).rsqrt(), alpha)
    wide = [None if t is None else t.double() for t in (*arguments, weight)]
    expected = ops.dice_reference(*wide).float()
    assert_close(ops.dice(*arguments, weight), expected, rtol=1e-5, atol=1e-5 * shape[1] ** 0.5)
    for of_batch in (True, False):
        got = backward(ops.dice_sums, ops.dice_to_x, grad, *arguments, of_batch=of_batch, weight=weight)
        references = ops.dice_sums_reference, ops.dice_to_x_reference
        expected = backward(*references, grad.double(), *wide[:-1], of_batch=of_batch, weight=wide[-1])
        for one, two in zip(got, expected, strict=True):
            scale = two.abs().max()
            assert_close(one / scale, (two / scale).float(), rtol=1e-4, atol=1e-5)


def test_gradients_are_those_of_the_formula_with_its_statistics():
    layer = Dice(3).double()
    nn.init.normal_(layer.alpha)
    x = torch.randn(7, 3, dtype=torch.float64, requires_grad=True)
    assert_close(layer(x), plain_dice(x, layer.alpha))
    weights = torch.randn_like(x)
    got = torch.autograd.grad((layer(x) * weights).sum(), (x, layer.alpha))
    expected = torch.autograd.grad((plain_dice(x, layer.alpha) * weights).sum(), (x, layer.alpha))
    assert_close(got, expected)
    layer.eval()
    assert torch.autograd.gradcheck(layer, (x,))


def test_running_statistics_are_those_of_batch_norm():
    layer, norm = Dice(5), nn.BatchNorm1d(5, eps=1e-9, affine=False)
    for _ in range(3):
        x = 2 * torch.randn(20, 5) + 4
        layer(x)
        norm(x)
    assert_close(layer.running_mean, norm.running_mean)
    assert_close(layer.running_var, norm.running_var)
    x = torch.randn(4, 5)
    assert_close(layer.eval()(x), torch.sigmoid(norm.eval()(x)) * x)


def test_statistics_of_the_batch_serve_evaluation_where_asked():
    layer, x = Dice(5, statistics="batch").eval(), torch.randn(9, 5)
    assert_close(layer(x), plain_dice(x, layer.alpha))
    assert layer.running_mean.tolist() == [0] * 5


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("num_rows", [0, 1])
def test_no_rows_and_one_row_are_no_accident(num_rows, dtype):
    layer = Dice(3).to(dtype)
    x = torch.randn(num_rows, 3, dtype=dtype, requires_grad=True)
    out = layer(x)
    out.sum().backward()
    assert_close(out, x / 2)
    assert_close(x.grad, torch.full_like(x, 0.5))
    assert layer.alpha.grad.isfinite().all()
    assert layer.running_var.tolist() == [1] * 3


def test_variance_survives_a_large_mean_and_an_outlier_in_front():
    x = torch.randn(5000, 3, dtype=torch.float64) + torch.tensor([0, 1e4, -1e5])
    x[0] = 1e6
    x = x.float()
    mean, var = ops.moments(x)
    assert_close(mean, x.double().mean(0).float())
    assert_close(var, x.double().var(0, correction=0).float())
    assert ops.moments(torch.full((999, 2), 0.1))[1].tolist() == [0, 0]


@pytest.mark.parametrize("shape", [(0, 3), *SHAPES], ids=str)
def test_native_prelu_backward_equals_the_reference(shape):
    grad, x, slope = torch.randn(shape), torch.randn(shape), torch.randn(shape[1])
    x[x.abs() < 0.1] = 0
    got, expected = prelu_backward(grad, x, slope), prelu_backward_reference(grad, x, slope)
    assert torch.equal(got[0], expected[0])
    assert_close(got[1], expected[1], rtol=1e-4, atol=1e-4)


def test_prelu_is_that_of_pytorch():
    ours, theirs = PReLU(4).double(), nn.PReLU(4).double()
    x = torch.randn(6, 4, dtype=torch.float64, requires_grad=True)
    assert_close(ours(x), theirs(x))
    assert torch.autograd.gradcheck(ours, (x,))


def test_the_number_of_threads_changes_no_bit(threads):
    x, grad, alpha = torch.randn(5000, 17), torch.randn(5000, 17), torch.randn(17)
    ways = []
    for count in (1, 2):
        threads(count)
        mean, var = ops.moments(x)
        arguments = (x, mean, var.rsqrt(), alpha)
        ways.append(
            [
                mean,
                var,
                ops.dice(*arguments),
                *backward(ops.dice_sums, ops.dice_to_x, grad, *arguments, of_batch=True),
                ops.dice(*arguments, alpha),
                ops.dice_sums(grad[:, 0], *arguments, alpha),
                *prelu_backward(grad, x, alpha)[:2],
            ]
        )
    assert all(torch.equal(one, two) for one, two in zip(*ways, strict=True))


@pytest.mark.parametrize("name", ["dice", "prelu", "sigmoid"])
def test_an_mlp_on_a_gpu_has_the_gradients_of_one_on_the_host(name):
    """There a bias has its gradient from the activation behind it, and one output is a kernel."""

    def gradients(place):
        torch.manual_seed(1)
        mlp = MLP((6, 5, 4, 1), activation=name).to(place)
        x = torch.randn(9, 6).to(place).requires_grad_()
        (mlp(x) * torch.randn(9, 1).to(place)).sum().backward()
        return [t.grad.cpu() for t in (x, *mlp.parameters())]

    with pretend.gpu():
        got = gradients(pretend.CUDA)
    for one, two in zip(got, gradients("cpu"), strict=True):
        assert_close(one, two, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["dice", "prelu"])
def test_an_mlp_has_activations_that_learn_one_per_layer(name):
    model = MLP((6, 5, 4, 1), activation=name)
    shapes = [tuple(p.shape) for key, p in model.named_parameters() if key.startswith("after")]
    assert shapes == [(5,), (4,)]
    x = torch.randn(20, 6)
    hidden = model.after[0](model.layers[0](x))
    expected = model.layers[2](model.after[1](model.layers[1](hidden)))
    assert_close(model(x), expected)
    with torch.autocast("cpu", torch.bfloat16):
        out = model(x)
    out.float().sum().backward()
    assert out.dtype == torch.bfloat16
    assert all(p.grad.dtype == torch.float32 for p in model.parameters())


def test_an_mlp_without_them_keeps_the_names_of_its_parameters():
    names = [f"layers.{place}.{part}" for place in (0, 1) for part in ("weight", "bias")]
    assert list(MLP((3, 2, 1)).state_dict()) == names


def test_other_statistics_and_shapes_are_refused():
    with pytest.raises(ValueError, match="statistics must be one of"):
        Dice(3, statistics="moving")
    with pytest.raises(ValueError, match="Dice needs \\[M, 3\\] values"):
        Dice(3)(torch.zeros(2, 4))


@pytest.mark.parametrize("kind", [Dice, PReLU])
def test_a_slope_that_stands_apart_in_memory_counts_as_any_other(kind):
    layer, x = kind(5).train(), torch.randn(7, 5, requires_grad=True)
    name = next(iter(dict(layer.named_parameters())))
    apart = torch.rand(1).expand(5)  # one number, five times
    results = []
    for slope in (apart, apart.clone()):
        leaf = slope.detach().requires_grad_()
        out = torch.func.functional_call(layer, {name: leaf}, (x,))
        results.append((out, *torch.autograd.grad(out.square().sum(), [x, leaf])))
    for one, other in zip(*results, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("real", [0, 1, 2, 137, 200])
def test_rows_behind_those_that_count_change_nothing(real):
    """As in a captured step, where the number is a tensor, and what is behind is no number."""
    x, grad = 2 * torch.randn(200, 5) + 3, torch.randn(200, 5)
    x[real:], grad[real:] = torch.nan, 0
    num, first = torch.tensor([real]), slice(real)
    averages = [[torch.ones(5), torch.ones(5), torch.tensor(3)] for _ in range(2)]
    mean, rstd = ops.moments_remembered(x, *averages[0], 0.1, 1e-5, num)
    assert_close(mean, x[first].mean(0) if real else torch.zeros(5))
    if real > 1:
        expected = ops.moments_remembered(x[first], *averages[1], 0.1, 1e-5)
        assert_close((mean, rstd), expected)
    assert_close(averages[0], averages[1])
    factors, sums = (mean, rstd, torch.rand(5)), torch.randn(2, 5)
    for to_x in (ops.dice_to_x_reference, batch_norm.batch_norm_to_x):
        got = to_x(grad, x, *factors, sums, len(x), num)
        assert_close(got[first], to_x(grad[first], x[first], *factors, sums, max(real, 1)))
        assert not got[real:].any()
