"""Row optimizers as values."""

import pytest

from hotrows import FTRL, SGD, Adagrad, Adam, RowWiseAdagrad, optim


@pytest.mark.parametrize("kind", [SGD(), Adagrad(lr=1), RowWiseAdagrad(), Adam(), FTRL(l1=2)])
def test_optimizers_round_trip_to_json(kind):
    assert optim.from_json(optim.to_json(kind)) == kind


@pytest.mark.parametrize(
    ("kind", "width"), [(SGD(), 0), (Adagrad(), 7), (RowWiseAdagrad(), 1), (Adam(), 14), (FTRL(), 14)]
)
def test_state_is_as_wide_as_the_initial_state(kind, width):
    assert kind.state_width(7) == width == len(optim.initial_state(kind, 7))


def test_the_accumulator_starts_where_it_is_told():
    assert optim.initial_state(Adagrad(initial_accumulator=0.5), 2) == [0.5, 0.5]
    assert optim.initial_state(FTRL(initial_accumulator=0.5), 2) == [0.5, 0.5, 0.0, 0.0]


def test_a_schedule_scales_the_rate_alone():
    assert optim.hyper_parameters(SGD(lr=2.0, weight_decay=3.0), step=0, lr_scale=0.5) == [1.0, 3.0]


def test_an_unknown_optimizer_is_named():
    with pytest.raises(ValueError, match="must be one of .*, not 'lion'"):
        optim.from_json({"kind": "lion"})


def test_options_are_changed_by_name():
    assert optim.replaced(SGD(lr=1.0), {"weight_decay": 0.5}) == SGD(lr=1.0, weight_decay=0.5)
    with pytest.raises(ValueError, match="sgd has no 'momentum'; it has lr, weight_decay"):
        optim.replaced(SGD(), {"momentum": 0.9})
    with pytest.raises(ValueError, match="adagrad's weight_decay must be a number, not 'x'"):
        optim.replaced(Adagrad(), {"weight_decay": "x"})
    with pytest.raises(ValueError, match="decay_by_count must be true or false, not 'maybe'"):
        optim.replaced(Adagrad(), {"decay_by_count": "maybe"})
