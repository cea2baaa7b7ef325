"""Accelerated models whose forward is captured: what graphs, breaks and other compilers do to tables."""

import copy
import threading

import pytest
import torch
from torch import nn

import hotrows
from hotrows.acceleration.gradient import RowGradient
from hotrows.acceleration.parameter import CAPTURING, capturing
from tests.support.accelerated import Model, assert_equal_training, train


class Two(nn.Module):
    """Two tables; `how` says what is done with the first one's vectors."""

    def __init__(self, how):
        super().__init__()
        self.a, self.b, self.how = nn.Embedding(10, 4), nn.Embedding(10, 4), how

    def forward(self, ids):
        return self.how(self, ids, self.a(ids))


def whole_read(model, ids, vectors):
    scores = (vectors + model.b(ids)) @ model.a.weight.detach().t()
    return scores.square().sum()


def dependent(model, ids, vectors):
    return (vectors + model.b(vectors.argmax(-1))).square().sum()


def squared_behind_a_break(model, ids, vectors):
    torch._dynamo.graph_break()
    return (vectors * model.b(ids)).sum() + torch.sum(model.a.weight**2, dim=1).sum()


def l2_behind_a_break(model, ids, vectors):
    torch._dynamo.graph_break()
    return (vectors * model.b(ids)).sum() + torch.sum(0.1 * torch.square(model.a.weight))


class Twice(nn.Module):
    """Parts behind one another: dynamo gives the loop up, and each part is run as plain Python."""

    def __init__(self, how):
        super().__init__()
        self.parts = nn.ModuleList(Two(how) for _ in range(2))

    def forward(self, ids):
        total = 0
        for part in self.parts:
            torch._dynamo.graph_break()
            total = total + part(ids)
        return total


@pytest.mark.few(4)
@pytest.mark.parametrize("model", [Two, Twice])
@pytest.mark.parametrize("how", [whole_read, dependent, squared_behind_a_break, l2_behind_a_break])
def test_graphs_read_rows_that_are_up_to_date(model, how):
    """A graph that ran with interception off read rows as they were stored, four steps old."""
    torch.manual_seed(0)
    plain = model(how).double()
    fast = copy.deepcopy(plain)
    losses = []
    for model in (plain, fast):
        optimizer = torch.optim.Adam(model.parameters(), 0.1)
        if model is fast:
            hotrows.accelerate(model, optimizer, always=True)
        losses.append([])
        for ids in ([0, 1], [2, 3], [2, 3], [0, 9], [4, 4]):
            optimizer.zero_grad()
            loss = model(torch.tensor(ids))
            loss.backward()
            assert all((type(p.grad) is RowGradient) == (model is fast) for p in model.parameters())
            optimizer.step()
            losses[-1].append(loss.item())
    assert losses[1] == pytest.approx(losses[0], rel=1e-9)


@pytest.mark.parametrize("optimizer", ["adam, decay", "momentum"])
def test_training_a_captured_model_equals_plain_pytorch(optimizer):
    from tests.support.accelerated import OPTIMIZERS, build

    plain = build(optimizer=OPTIMIZERS[optimizer])
    fast = build(optimizer=OPTIMIZERS[optimizer])
    hotrows.accelerate(*fast, always=True)
    for seed, settings in enumerate(({}, {"l2": True}, {"clip": "norm", "l2": True})):
        train(*plain, steps=5, seed=seed, **settings)
        train(*fast, steps=5, seed=seed, **settings)
    assert len(fast[0]._hotrows.report.graphs[0].packs[0]) == 13
    assert_equal_training(plain, fast)


@pytest.mark.parametrize("compiled", ["model", "part", "by hotrows"])
def test_tables_within_what_others_compile(compiled):
    """Another backend must not take a table for a plain tensor: it would read rows as they are stored."""

    class Part(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(30, 4)

        def forward(self, ids):
            return self.table(ids).relu() * 2

    class Whole(nn.Module):
        def __init__(self):
            super().__init__()
            self.part, self.other = Part(), nn.Embedding(30, 4)

        def forward(self, ids):
            return (self.part(ids[:, 0]) * self.other(ids[:, 1])).sum(1)

    weights = []
    for accelerated in (False, True):
        torch.manual_seed(0)
        model = Whole().double()
        optimizer = torch.optim.Adam(model.parameters(), 0.01)
        if accelerated:
            hotrows.accelerate(model, optimizer, always=True)
        called = model
        if compiled == "part":
            model.part = torch.compile(model.part, backend="aot_eager")
        else:
            backend = "hotrows" if compiled == "by hotrows" else "aot_eager"
            called = torch.compile(model, backend=backend)
        draw = torch.Generator().manual_seed(1)
        for _ in range(6):
            optimizer.zero_grad()
            called(torch.randint(0, 30, (8, 2), generator=draw)).square().mean().backward()
            optimizer.step()
        weights.append([weight.detach().clone() for weight in model.parameters()])
    torch.testing.assert_close(weights[1], weights[0], rtol=1e-9, atol=1e-12)


def test_a_plain_model_is_packed_by_torch_compile():
    torch.manual_seed(0)
    model = Model()
    packed = torch.compile(copy.deepcopy(model), backend="hotrows")
    ids = torch.randint(0, 30, (8, 5))
    for called in (model, packed):
        called(ids).square().sum().backward()
    torch.testing.assert_close(packed(ids), model(ids))
    for (name, p), q in zip(model.named_parameters(), packed.parameters(), strict=True):
        assert type(q.grad) is torch.Tensor, name
        torch.testing.assert_close(q.grad, p.grad)


def test_threads_do_not_switch_each_others_capture_off():
    entered, left, seen = threading.Event(), threading.Event(), []

    def other():
        seen.append(CAPTURING.is_on)
        with capturing():
            entered.set()
            left.wait(10)
            seen.append(CAPTURING.is_on)

    thread = threading.Thread(target=other)
    with capturing():
        thread.start()
        assert entered.wait(10)
    assert not CAPTURING.is_on
    left.set()
    thread.join()
    assert seen == [False, True] and not CAPTURING.is_on
