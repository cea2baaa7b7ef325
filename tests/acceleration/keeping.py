"""A model whose tables are kept behind a cache, trained beside one whose tables are in memory."""

import warnings

import torch
from torch import nn

import hotrows
from hotrows.acceleration.accelerate import acceleration_of
from hotrows.acceleration.lookup import Lookup, lookup

ROWS, DIM, FIELDS, SIZE = 60, 4, 4, 12


class Model(nn.Module):
    """Vectors of two widths, a bag, padding, and a table that is read twice; looked up at once.

    Its forward asks for all vectors before anything else, as a captured one does.
    """

    def __init__(self):
        super().__init__()
        self.vectors = nn.ModuleList(nn.Embedding(ROWS + f, DIM) for f in range(FIELDS))
        self.linear = nn.ModuleList(nn.Embedding(ROWS + f, 1) for f in range(FIELDS))
        self.bag = nn.EmbeddingBag(ROWS, DIM, mode="mean")
        self.norm = nn.BatchNorm1d(2)
        self.mlp = nn.Sequential(nn.Linear((FIELDS + 1) * DIM + 2, 8), nn.ReLU(), nn.Linear(8, 1))

    def forward(self, ids, dense=None):
        weights = [self.bag.weight, *(table.weight for table in (*self.vectors, *self.linear))]
        lookups = [Lookup("mean"), *[Lookup()] * (FIELDS - 1), Lookup(None, 3), *[Lookup()] * FIELDS]
        columns = [ids[:, :3], *ids.T, *ids.T]
        bag, *vectors = lookup(lookups, weights, columns, [None] * len(columns), [None] * len(columns))
        dense = torch.zeros(len(ids), 2) if dense is None else self.norm(dense)
        deep = self.mlp(torch.cat([bag, *vectors[:FIELDS], dense], 1))
        return (deep + sum(vectors[FIELDS:])).squeeze(1)

    def l2(self):
        squares = sum(torch.sum(1e-2 * torch.square(table.weight)) for table in self.vectors)
        return squares + sum(5e-3 * torch.norm(table.weight, 2) ** 2 for table in self.linear)


class Single(Model):
    """The same, with lookups made one by one."""

    def forward(self, ids, dense=None):
        bag = self.bag(ids[:, :3])
        vectors = [table(ids[:, f]) for f, table in enumerate(self.vectors)]
        deep = self.mlp(torch.cat([bag, *vectors, torch.zeros(len(ids), 2)], 1))
        return (deep + sum(table(ids[:, f]) for f, table in enumerate(self.linear))).squeeze(1)


OPTIMIZERS = {
    "sgd": (torch.optim.SGD, {"lr": 0.05}),
    "momentum": (torch.optim.SGD, {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.01}),
    "adagrad": (torch.optim.Adagrad, {"lr": 0.1, "initial_accumulator_value": 0.1}),
    "adam": (torch.optim.Adam, {"lr": 0.01}),
    "adam, decay": (torch.optim.Adam, {"lr": 0.01, "weight_decay": 0.1}),
    "adamw": (torch.optim.AdamW, {"lr": 0.01, "weight_decay": 0.1}),
    "rmsprop": (torch.optim.RMSprop, {"lr": 0.01}),
}
ADAM = OPTIMIZERS["adam"]
LEAST = 4 * (1 + 1 + 2 * 1) + 4 * (DIM + 1 + 2 * DIM)
"""Bytes of one row of each width, under Adam: each has one slot."""


def build(optimizer=ADAM, model=Model, **options):
    """A model and its optimizer, accelerated."""
    torch.manual_seed(0)
    kind, settings = optimizer
    model = model()
    optimizer = kind(model.parameters(), **settings)
    return hotrows.accelerate(model, optimizer, packing=False, **options, always=True)


def batches(num=20, size=SIZE, seed=1):
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, 3 * ROWS, (num, size, FIELDS), generator=generator)
    return list(ids.fmod(ROWS).unbind())


def step(model, optimizer, ids, l2=False, clip=False):
    optimizer.zero_grad()
    loss = nn.functional.softplus(model(ids)).mean()
    loss = loss + model.l2() if l2 else loss
    loss.backward()
    if clip:
        nn.utils.clip_grad_norm_(model.parameters(), 0.05)
    optimizer.step()
    return float(loss.detach())


def quietly(batches):
    """Batches, without being told that training waits."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "training waits for its rows|most lookups of this model")
        yield from batches


def state_of(model, optimizer):
    """Everything that a model and its optimizer hold, by name."""
    tensors = dict(model.state_dict())
    for key, state in optimizer.state_dict()["state"].items():
        tensors.update({f"{key} {name}": x for name, x in state.items() if x is not None})
    return {name: torch.as_tensor(x).clone() for name, x in tensors.items()}


def assert_same(one, other):
    """Bit by bit."""
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        assert torch.equal(tensor, other[name]), name


def assert_near(one, other):
    """To rounding."""
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        torch.testing.assert_close(tensor, other[name], rtol=1e-5, atol=1e-7)


def counts(model):
    """How rows came to lookups, over all cached groups."""
    groups = acceleration_of(model).groups
    return {name: sum(group.counts[name] for group in groups) for name in groups[0].counts}
