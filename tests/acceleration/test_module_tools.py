"""What others do with an accelerated module: hooks that come and go, signatures, traces, exports."""

import copy
import inspect

import pytest
import torch
from torch import nn

import hotrows


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.top = nn.Embedding(300, 8), nn.Embedding(50, 8), nn.Linear(16, 1)

    def forward(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        """Scores pairs."""
        return self.top(torch.cat([self.a(x[:, 0]), self.b(x[:, 1])], 1)).squeeze(1) * scale


def make(accelerated, **settings):
    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    if accelerated:
        hotrows.accelerate(model, optimizer, **settings, always=True)
    return model, optimizer


def train(model, optimizer, steps=1):
    draw = torch.Generator().manual_seed(1)
    for _ in range(steps):
        optimizer.zero_grad()
        ids = torch.randint(0, 50, (16, 2), generator=draw)
        (model(ids) - 1).square().mean().backward()
        optimizer.step()


def patched(model):
    plain = model.top.forward
    model.top.forward = lambda x: plain(x) * 2
    return lambda: model.top.__dict__.pop("forward")


HOOKS = {
    "forward": lambda m: m.top.register_forward_hook(lambda module, args, out: out * 2).remove,
    "forward, of a table": lambda m: m.a.register_forward_hook(lambda module, args, out: out * 2).remove,
    "forward pre": lambda m: m.top.register_forward_pre_hook(lambda module, args: args[0] * 2).remove,
    "with kwargs": lambda m: (
        m.top.register_forward_hook(lambda module, args, kwargs, out: out * 2, with_kwargs=True).remove
    ),
    "always call": lambda m: (
        m.top.register_forward_hook(lambda module, args, out: out * 2, always_call=True).remove
    ),
    "backward": lambda m: (
        m.top.register_full_backward_hook(
            lambda module, into, out: tuple(grad * 2 for grad in into)
        ).remove
    ),
    "backward pre": lambda m: (
        m.top.register_full_backward_pre_hook(lambda module, out: tuple(grad * 2 for grad in out)).remove
    ),
    "of every module": lambda m: (
        nn.modules.module.register_module_forward_hook(
            lambda module, args, out: out * 2 if isinstance(module, nn.Linear) else None
        ).remove
    ),
    "a forward patched": patched,
}


@pytest.mark.few(4)
@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("hook", HOOKS)
def test_hooks_may_come_and_go_between_calls(hook, first):
    """A captured graph was not checked for hooks: those registered behind the first call never ran."""
    weights = []
    for accelerated in (False, True):
        model, optimizer = make(accelerated)
        if not first:
            train(model, optimizer, 2)
        remove = HOOKS[hook](model)
        train(model, optimizer, 2)
        remove()
        train(model, optimizer, 2)
        weights.append([p.detach().clone() for p in model.parameters()])
    torch.testing.assert_close(weights[1], weights[0], rtol=1e-4, atol=1e-5)


def test_forward_keeps_its_signature():
    plain, (fast, _) = Model(), make(True)
    assert inspect.signature(fast.forward) == inspect.signature(plain.forward)
    assert fast.forward.__doc__ == plain.forward.__doc__


@pytest.mark.filterwarnings("ignore:`torch.jit")
def test_a_trace_is_that_of_the_plain_model():
    """It ended in "Cannot insert a Tensor that requires grad as a constant", and a table's numbers."""
    model, optimizer = make(True)
    train(model, optimizer, 2)
    traced = torch.jit.trace(model, torch.zeros(4, 2, dtype=torch.int64))
    plain = torch.jit.trace(copy.deepcopy(model), torch.zeros(4, 2, dtype=torch.int64))
    assert len(list(traced.graph.nodes())) == len(list(plain.graph.nodes()))  # no step is traced
    ids = torch.stack([torch.arange(300), torch.arange(300) % 50], 1)
    torch.testing.assert_close(traced(ids), copy.deepcopy(model)(ids))


def test_an_exported_program_has_the_present_rows():
    model, optimizer = make(True)
    train(model, optimizer, 3)
    shapes = {"x": {0: torch.export.Dim("samples")}}
    program = torch.export.export(model, (torch.zeros(4, 2, dtype=torch.int64),), dynamic_shapes=shapes)
    ids = torch.stack([torch.arange(300), torch.arange(300) % 50], 1)
    torch.testing.assert_close(program.module()(ids), copy.deepcopy(model)(ids))


@pytest.mark.filterwarnings("ignore:`torch.jit")
@pytest.mark.parametrize("way", ["script", "trace"])
def test_what_cannot_read_a_model_names_restore(way):
    model, _ = make(True, fast_memory="20KiB")
    args = (torch.zeros(4, 2, dtype=torch.int64),) if way == "trace" else ()
    with pytest.raises(RuntimeError, match=r"hotrows\.restore\(model\) first"):
        getattr(torch.jit, way)(model, *args)


def test_parametrized_weights_are_not_computed():
    """A read of a weight is a step of spectral_norm: training ended elsewhere than in plain PyTorch."""
    model = Model()
    for module in (model.a, model.top):
        nn.utils.parametrizations.spectral_norm(module)
    before = copy.deepcopy(model.state_dict())
    hotrows.accelerate(model, torch.optim.Adam(model.parameters()), always=True)
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)


@pytest.mark.parametrize("settings", [{}, {"fast_memory": "20KiB"}], ids=["memory", "cache"])
def test_a_table_does_not_become_another_parameter(settings):
    model, _ = make(True, **settings)
    with pytest.raises(RuntimeError, match=r"table a\.weight cannot become another parameter"):
        nn.Embedding.from_pretrained(model.a.weight)
    copied = nn.Embedding.from_pretrained(model.a.weight.detach().clone())
    assert torch.equal(copied.weight, copy.deepcopy(model).a.weight)
