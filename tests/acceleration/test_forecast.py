"""Models whose tables are too small to gain stay plain, with one line; larger ones do not."""

import warnings

import pytest
import torch
from torch import nn

import hotrows
from hotrows.acceleration.accelerate import acceleration_of
from hotrows.acceleration.parameter import TableParameter


class Two(nn.Module):
    def __init__(self, rows, sparse=False):
        super().__init__()
        self.a, self.b = (nn.Embedding(rows, 8, sparse=sparse) for _ in range(2))

    def forward(self, ids):
        return (self.a(ids) * self.b(ids)).sum(1)


def optimizer_of(model, kind=torch.optim.Adam):
    return kind(model.parameters(), lr=0.1)


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.SGD])
def test_a_small_model_stays_plain_with_one_line_and_trains_on(kind):
    model, plain = Two(500), Two(500)
    plain.load_state_dict(model.state_dict())
    optimizer, other = optimizer_of(model, kind), optimizer_of(plain, kind)
    with pytest.warns(
        UserWarning, match="leaves the model plain: hotrows takes about .* as long"
    ) as told:
        hotrows.accelerate(model, optimizer)
    assert len(told) == 1 and f"2 tables (1,000 rows, 31.2 KiB) under {kind.__name__}" in str(
        told[0].message
    )
    ids = torch.arange(40).view(8, 5) % 7
    for one, steps in ((model, optimizer), (plain, other)):
        for row in ids:
            steps.zero_grad()
            one(row).sum().backward()
            steps.step()
    assert type(model.a.weight) is nn.Parameter
    assert all(map(torch.equal, model.parameters(), plain.parameters()))
    account = str(hotrows.explain(model, ids[0]))
    assert "left as it is: a.weight (the forecast expects PyTorch to be faster)" in account
    assert account.splitlines()[-1].startswith("  forecast: hotrows takes about ")
    assert type(hotrows.restore(model)) is Two


@pytest.mark.parametrize(
    ("rows", "how"),
    [(500, {"always": True}), (500, {"lazy": True}), (500, {"fast_memory": "1MiB"}), (40_000, {})],
)
def test_tables_that_gain_or_that_are_asked_for_are_handled(rows, how):
    model = Two(rows)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        hotrows.accelerate(model, optimizer_of(model), **how)
    assert isinstance(model.a.weight, TableParameter)
    state = acceleration_of(model)
    assert state.forecast.pays == (rows > 500)
    if rows > 500:
        assert "forecast: hotrows is about 1.1 times as fast as PyTorch" in str(
            hotrows.explain(model, torch.arange(4))
        )


def test_what_was_not_measured_has_no_forecast():
    model = Two(500, sparse=True)
    hotrows.accelerate(model, torch.optim.SparseAdam(model.parameters()))
    assert isinstance(model.a.weight, TableParameter) and acceleration_of(model).forecast is None
    model = Two(500, sparse=True)
    hotrows.accelerate(model, optimizer_of(model, torch.optim.SGD))
    assert isinstance(model.a.weight, TableParameter)


def test_more_rows_and_dearer_optimizers_pay_sooner():
    def ratio(rows, kind):
        model = Two(rows)
        hotrows.accelerate(model, optimizer_of(model, kind), always=True)
        return acceleration_of(model).forecast.ratio

    assert ratio(500, torch.optim.SGD) > ratio(500, torch.optim.Adagrad) > ratio(500, torch.optim.Adam)
    assert ratio(5000, torch.optim.Adam) == pytest.approx(ratio(500, torch.optim.Adam) / 10)
