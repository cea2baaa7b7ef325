"""DynamicEmbedding: a key trains as a row of a table does; the row begins anew with another key."""

import copy
import io

import pytest
import torch
from torch import nn
from torch.nn import functional

import hotrows
from hotrows import Constant, Dynamic, DynamicEmbedding, Normal

DIM = 4
OPTIMIZERS = {
    "sgd": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}),
    "adam": (torch.optim.Adam, {"lr": 0.01}),
    "adamw": (torch.optim.AdamW, {"lr": 0.01, "weight_decay": 0.1}),
    "adagrad": (torch.optim.Adagrad, {"lr": 0.1, "initial_accumulator_value": 0.1}),
    "amsgrad": (torch.optim.Adam, {"lr": 0.01, "amsgrad": True}),
}


class Model(nn.Module):
    def __init__(self, dynamic, keys=200):
        super().__init__()
        torch.manual_seed(0)
        self.shops = nn.Embedding(5, DIM)
        self.items = DynamicEmbedding(DIM, dynamic, num_unknown=2, seed=7) if dynamic else None
        self.static = None if dynamic else nn.Embedding(keys, DIM)
        self.top = nn.Linear(DIM, 1)

    def forward(self, shops, items):
        vectors = (self.items or self.static)(items)
        return self.top(torch.tanh(self.shops(shops) + vectors)).squeeze(1)


def batches(num=25, size=16, keys=200, spread=40):
    draw = torch.Generator().manual_seed(1)
    for number in range(num):
        items = torch.randint(0, spread, (size,), generator=draw) + number * (keys - spread) // num
        yield torch.randint(0, 5, (size,), generator=draw), items, torch.rand(size, generator=draw)


def train(model, optimizer, stream):
    losses = []
    for shops, items, labels in stream:
        optimizer.zero_grad()
        loss = functional.mse_loss(model(shops, items), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def made(name, dynamic):
    kind, settings = OPTIMIZERS[name]
    model = Model(dynamic)
    optimizer = kind(model.parameters(), **settings)
    if dynamic:
        model.items.follow(optimizer)
    return model, optimizer


def test_where_nothing_is_evicted_it_trains_as_a_table_with_a_row_for_every_key():
    model, optimizer = made("adagrad", Dynamic(capacity=200))
    static, other = made("adagrad", None)
    static.top.load_state_dict(model.top.state_dict())
    with torch.no_grad():
        static.static.weight.copy_(model.items._first_values(torch.arange(200)))
    assert train(model, optimizer, batches()) == train(static, other, batches())
    ids = model.items.keys.find(torch.arange(200))
    live = ids >= 4
    assert live.sum() > 100
    assert torch.equal(model.items.weight[ids[live]], static.static.weight[live.nonzero().squeeze(1)])


@pytest.mark.parametrize("name, packing", [*((name, False) for name in OPTIMIZERS), ("adam", True)])
def test_accelerated_training_is_that_of_plain_pytorch(name, packing):
    dynamic = Dynamic(capacity=45, evict="lru")
    plain, optimizer = made(name, dynamic)
    fast, other = made(name, dynamic)
    hotrows.accelerate(fast, other, packing=packing, always=True)
    torch.testing.assert_close(
        train(fast, other, batches()), train(plain, optimizer, batches()), rtol=1e-5, atol=1e-6
    )
    assert plain.items.keys.growth()["evicted"] > 50
    hotrows.restore(fast)
    torch.testing.assert_close(fast.items.weight, plain.items.weight)


def test_a_key_that_comes_back_begins_as_a_new_one():
    items = DynamicEmbedding(DIM, Dynamic(capacity=2, evict="lru"), seed=3)
    optimizer = torch.optim.Adam(items.parameters(), lr=0.1)
    items.follow(optimizer)

    def step(*keys):
        vectors = items(torch.tensor(keys))
        vectors.sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        return vectors.detach()

    first = step(-5)
    again = step(-5)
    assert not torch.equal(first, again)
    step(2**62, 0)
    assert torch.equal(step(-5), first)
    row = items.keys.find(torch.tensor([-5]))
    assert float(optimizer.state[items.weight]["exp_avg"][row].abs().max()) == pytest.approx(0.1)


def test_evaluation_changes_nothing_and_reads_unknown_rows():
    items = DynamicEmbedding(DIM, Dynamic(capacity=3), initializer=Constant(0.5))
    items.follow(torch.optim.SGD(items.parameters(), lr=1.0))
    items(torch.tensor([[7, 8]])).sum().backward()
    for looks in (items.eval(), items.train()):
        with torch.no_grad():
            vectors = looks(torch.tensor([[7, 9], [10, 11]]))
    assert vectors.shape == (2, 2, DIM) and (vectors == 0.5).all()
    assert items.keys.num_live == 2


def test_keys_travel_with_the_state_and_with_copies():
    model, optimizer = made("adagrad", Dynamic(capacity=45, evict="lru"))
    train(model, optimizer, batches())
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    other = Model(Dynamic(capacity=45, evict="lru"))
    other.load_state_dict(torch.load(file))
    keys = torch.arange(200)
    for same in (other, copy.deepcopy(model)):
        assert torch.equal(same.eval().items(keys), model.eval().items(keys))
    assert same.items._optimizers == []


def test_what_it_cannot_do_is_said():
    for dynamic, match in (
        (Dynamic(), "needs a capacity"),
        (Dynamic(capacity=3, evict="ahead"), "knows no batch ahead"),
    ):
        with pytest.raises(ValueError, match=match):
            DynamicEmbedding(DIM, dynamic)
    items = DynamicEmbedding(DIM, Dynamic(capacity=2, evict="lru"), initializer=Normal(0.1))
    with pytest.raises(ValueError, match=r"DynamicEmbedding.follow\(optimizer\), before training"):
        items(torch.tensor([1]))
    items.follow(torch.optim.SGD(items.parameters(), lr=1.0))
    items(torch.tensor([1, 2]))
    with pytest.raises(ValueError, match="1 keys that this step has read would lose their rows"):
        items(torch.tensor([3]))
