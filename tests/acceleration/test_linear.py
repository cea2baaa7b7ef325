"""Linear layers of an accelerated model on other paths: equal up to rounding, or plain where need be."""

import contextlib
import copy

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import hotrows
from hotrows.acceleration import linear
from hotrows.ops.layers import products
from hotrows.ops.layers.products import Paths

pytestmark = pytest.mark.skipif(not products.has_onednn(torch.float32), reason="PyTorch without oneDNN")
_calls = []


@pytest.fixture(autouse=True)
def rule(monkeypatch):
    """A rule of every processor: oneDNN, for layers of several outputs."""
    forward = products.forward_onednn
    _calls.clear()
    other = Paths("onednn", "onednn", "onednn_turned")
    monkeypatch.setattr(
        linear, "paths_of", lambda inputs, outputs, dtype: other if outputs > 1 else Paths()
    )
    noted = lambda *arguments: _calls.append(1) or forward(*arguments)  # noqa: E731
    monkeypatch.setitem(products.FORWARD, "onednn", noted)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.items, self.users = nn.Embedding(50, 4), nn.Embedding(60, 4)
        self.deep = nn.Sequential(
            nn.Linear(8, 5), nn.Tanh(), nn.Linear(5, 3, bias=False), nn.Linear(3, 1)
        )

    def forward(self, ids):
        return self.deep(torch.cat([self.items(ids[0]), self.users(ids[1])], -1))


def mlp():
    return nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 1))


def trained(model, inputs, **options):
    model = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if options.pop("accelerated", True):
        model, optimizer = hotrows.accelerate(model, optimizer, **options, always=True)
    for _ in range(3):
        optimizer.zero_grad()
        model(inputs).square().sum().backward()
        optimizer.step()
    return {name: value.clone() for name, value in model.state_dict().items()}


@pytest.mark.parametrize(
    ("make", "inputs"),
    [
        (Net, torch.tensor([[1, 2, 3, 1], [4, 5, 4, 4]])),
        (Net, torch.tensor([[[1, 2], [3, 1]], [[4, 5], [4, 4]]])),  # [.., 2, 8] into the layers
        (mlp, torch.randn(7, 6)),  # without any table
    ],
    ids=["tables", "three dimensions", "no table"],
)
def test_weights_are_those_of_plain_training_up_to_rounding(make, inputs):
    torch.manual_seed(0)
    model = make()
    plain = trained(model, inputs, accelerated=False)
    assert_close(trained(model, inputs), plain)
    assert _calls, "no layer was swapped"
    _calls.clear()
    off = trained(model, inputs, linear_paths=False)
    assert not _calls
    assert all(torch.equal(off[name], value) for name, value in plain.items())


def test_gradients_of_gradients_and_frozen_layers():
    torch.manual_seed(0)
    results = []
    for product in (nn.functional.linear, linear.linear):
        x = torch.linspace(-1, 1, 12, dtype=torch.float32).view(3, 4).requires_grad_()
        weight = (torch.arange(20.0).view(5, 4) / 20).requires_grad_()
        bias = torch.ones(5, requires_grad=True)
        (grad,) = torch.autograd.grad(product(x, weight, bias).pow(3).sum(), x, create_graph=True)
        grad.square().sum().backward()
        frozen = product(x.detach(), weight.detach(), bias)
        results.append([x.grad, weight.grad, *torch.autograd.grad(frozen.sum(), bias)])
    assert_close(results[1], results[0])


@pytest.mark.filterwarnings("ignore:`torch.jit.script`")
@pytest.mark.parametrize("case", ["autocast", "vmap", "jvp", "float64", "subclass", "empty"])
def test_what_is_more_than_a_product_is_pytorchs_own(case):
    class Own(torch.Tensor):
        pass

    x, weight = torch.randn(3, 4), torch.randn(5, 4)
    if case == "float64":
        x, weight = x.double(), weight.double()
    if case == "subclass":
        weight = weight.as_subclass(Own)
    x = x[:0] if case == "empty" else x
    autocast = torch.autocast("cpu", torch.bfloat16, enabled=case == "autocast")
    with contextlib.ExitStack() as stack:
        stack.enter_context(autocast)
        if case == "vmap":
            got, expected = (
                torch.func.vmap(f, (0, None))(x, weight) for f in (linear.linear, nn.functional.linear)
            )
        elif case == "jvp":
            got, expected = (
                torch.func.jvp(lambda t, f=f: f(t, weight), (x,), (x,))[1]
                for f in (linear.linear, nn.functional.linear)
            )
        else:
            got, expected = linear.linear(x, weight), nn.functional.linear(x, weight)
    assert not _calls and type(got) is type(expected) and torch.equal(got, expected)
