"""Training that acceleration must not change: a model, its optimizers, and how two runs are compared."""

import pytest
import torch
from torch import nn
from torch.nn import functional

import hotrows

ROWS, DIM, FIELDS = 30, 4, 5


class Model(nn.Module):
    """Lists of embeddings of two widths, a bag, padding, and a table that is read three times."""

    def __init__(self):
        super().__init__()
        self.vectors = nn.ModuleList(
            nn.Embedding(ROWS, DIM, padding_idx=0 if f % 2 else None) for f in range(FIELDS)
        )
        self.linear = nn.ModuleList(nn.Embedding(ROWS, 1) for _ in range(FIELDS))
        self.bag = nn.EmbeddingBag(ROWS, DIM, mode="mean")
        self.shared = nn.Embedding(ROWS, DIM)
        self.mlp = nn.Sequential(nn.Linear((FIELDS + 1) * DIM, 8), nn.ReLU(), nn.Linear(8, 1))

    def forward(self, x):
        vectors = [table(x[:, f]) for f, table in enumerate(self.vectors)]
        vectors[0] = vectors[0] * self.shared(x[:, 2]) + self.shared(x[:, 3])
        deep = self.mlp(torch.cat([*vectors, self.bag(x[:, :3])], 1))
        wide = sum(table(x[:, f]) for f, table in enumerate(self.linear))
        return (deep + wide).squeeze(1)

    def l2(self):
        """As DeepCTR-Torch and as FuxiCTR write it."""
        squares = sum(torch.sum(1e-2 * torch.square(table.weight)) for table in self.vectors)
        return squares + sum(5e-3 * torch.norm(table.weight, 2) ** 2 for table in self.linear)


OPTIMIZERS = {
    "sgd": (torch.optim.SGD, {"lr": 0.02}),
    "sgd, decay": (torch.optim.SGD, {"lr": 0.1, "weight_decay": 0.01}),
    "momentum": (torch.optim.SGD, {"lr": 0.01, "momentum": 0.9}),
    "dampened": (torch.optim.SGD, {"lr": 0.01, "momentum": 0.9, "dampening": 0.3, "weight_decay": 0.01}),
    "nesterov": (torch.optim.SGD, {"lr": 0.01, "momentum": 0.9, "nesterov": True}),
    "adagrad": (torch.optim.Adagrad, {"lr": 0.1}),
    "adagrad, decay": (
        torch.optim.Adagrad,
        {"lr": 0.1, "lr_decay": 0.1, "weight_decay": 0.01, "initial_accumulator_value": 0.1},
    ),
    "adam": (torch.optim.Adam, {"lr": 0.01}),
    "adam, decay": (torch.optim.Adam, {"lr": 0.01, "weight_decay": 0.1}),
    "adamw": (torch.optim.AdamW, {"lr": 0.01, "weight_decay": 0.1}),
    "amsgrad": (torch.optim.Adam, {"lr": 0.01, "amsgrad": True}),
    "maximize": (torch.optim.Adam, {"lr": 0.01, "maximize": True, "weight_decay": 0.1}),
    "rmsprop": (torch.optim.RMSprop, {"lr": 0.01}),
    "rmsprop, decay": (torch.optim.RMSprop, {"lr": 0.01, "weight_decay": 0.1}),
    "rmsprop, centered": (torch.optim.RMSprop, {"lr": 0.01, "centered": True, "momentum": 0.5}),
    "nadam": (torch.optim.NAdam, {"lr": 0.01}),
    "radam": (torch.optim.RAdam, {"lr": 0.01}),
    "adamax": (torch.optim.Adamax, {"lr": 0.01}),
    "adadelta": (torch.optim.Adadelta, {}),
}
ADAM = OPTIMIZERS["adam"]


def build(optimizer=ADAM, accelerated=False, dtype=torch.float64, model=Model, **options):
    torch.manual_seed(0)
    kind, settings = optimizer
    model = model().to(dtype)
    optimizer = kind(model.parameters(), **settings)
    if accelerated:
        model, optimizer = hotrows.accelerate(model, optimizer, packing=False, **options, always=True)
    return model, optimizer


def train(model, optimizer, steps=20, seed=1, l2=False, clip=None, passes=1, to_none=True):
    draw = torch.Generator().manual_seed(seed)
    dtype = next(model.parameters()).dtype
    losses = []
    for _ in range(steps):
        optimizer.zero_grad(set_to_none=to_none)
        for _ in range(passes):
            x = torch.randint(0, ROWS, (8, FIELDS), generator=draw)
            y = torch.rand(8, generator=draw).to(dtype)
            loss = functional.mse_loss(model(x), y) + (model.l2() if l2 else 0)
            loss.backward()
        if clip == "norm":
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        if clip == "value":
            nn.utils.clip_grad_value_(model.parameters(), 0.01)
        optimizer.step()
        losses.append(loss.item())
    return losses


def assert_same(one, other, rtol=1e-10, atol=1e-12):
    """Equal states: of models, or of optimizers."""
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for name in one:
            assert_same(one[name], other[name], rtol, atol)
    elif isinstance(one, list | tuple):
        assert len(one) == len(other)
        for a, b in zip(one, other, strict=True):
            assert_same(a, b, rtol, atol)
    elif isinstance(one, torch.Tensor):
        torch.testing.assert_close(other, one, rtol=rtol, atol=atol)
    elif isinstance(one, float):
        assert other == pytest.approx(one, rel=rtol, abs=atol)
    else:
        assert one == other


def assert_equal_training(plain, fast, **tolerance):
    (model, optimizer), (fast_model, fast_optimizer) = plain, fast
    assert_same(dict(model.state_dict()), dict(fast_model.state_dict()), **tolerance)
    assert_same(optimizer.state_dict(), fast_optimizer.state_dict(), **tolerance)
