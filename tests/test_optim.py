"""Row optimizers as values."""

from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch

from hotrows import FTRL, SGD, Adagrad, Batch, Embedding, LazyAdam, RowWiseAdagrad, Table, optim
from hotrows.ops.rows import reference


@pytest.mark.parametrize("kind", [SGD(), Adagrad(lr=1), RowWiseAdagrad(), LazyAdam(), FTRL(l1=2)])
def test_optimizers_round_trip_to_json(kind):
    assert optim.from_json(optim.to_json(kind)) == kind


@pytest.mark.parametrize(
    ("kind", "width"), [(SGD(), 0), (Adagrad(), 7), (RowWiseAdagrad(), 1), (LazyAdam(), 14), (FTRL(), 14)]
)
def test_state_is_as_wide_as_the_initial_state(kind, width):
    assert kind.state_width(7) == width == len(optim.initial_state(kind, 7))


def test_the_accumulator_starts_where_it_is_told():
    assert optim.initial_state(Adagrad(initial_accumulator=0.5), 2) == [0.5, 0.5]
    assert optim.initial_state(FTRL(initial_accumulator=0.5), 2) == [0.5, 0.5, 0.0, 0.0]


def test_numbers_begin_with_the_rate_and_the_weight_decay():
    """`ops.update` reads them there: others would train on wrong numbers, without an error."""
    for kind in optim.BY_NAME.values():
        if not issubclass(kind, optim.DenseRowOptimizer):
            decays = {"weight_decay": 0.25} if hasattr(kind, "weight_decay") else {}
            assert kind(lr=2.0, **decays).numbers(0, 3.0)[:2] == [3.0, decays.get("weight_decay", 0.0)]


def test_a_schedule_scales_the_rate_alone():
    assert optim.hyper_parameters(SGD(lr=2.0, weight_decay=3.0), step=0, lr_scale=0.5) == [1.0, 3.0]


@dataclass(frozen=True)
class RMSprop(optim._Checked):
    """v = alpha * v + (1 - alpha) * g^2; w -= lr * g / (sqrt(v) + eps)."""

    lr: float = 0.05
    alpha: float = 0.9
    eps: float = 1e-8
    kind: ClassVar[str] = "rmsprop"
    state_names: ClassVar[tuple[str, ...]] = ("mean_square",)

    def numbers(self, step, lr):
        return [lr, 0.0, self.alpha, self.eps]


def rmsprop(w, v, g, numbers, steps, mean_squares):
    lr, _, alpha, eps = numbers
    v = alpha * v + (1 - alpha) * g * g
    return w - lr * g / (v.sqrt() + eps), v


def test_a_row_optimizer_is_a_class_and_a_formula_of_the_reference(monkeypatch):
    """Which the core and Triton may make faster; nothing else asks which optimizers there are."""
    monkeypatch.setitem(optim.BY_NAME, "rmsprop", RMSprop)
    monkeypatch.setitem(reference.FORMULAS, "rmsprop", rmsprop)
    optimizer = optim.from_json({"kind": "rmsprop", "lr": 0.1})
    embedding = Embedding([Table("a", 9, 4, ("a",), optimizer=optimizer)], seed=1)
    w, v = embedding.weights("a").clone(), torch.zeros(9, 4)
    for step in range(3):
        plan = embedding.plan(Batch(("a",), torch.tensor([[2, 5, 2]]), torch.zeros(3, 1)), step)
        vectors = embedding.lookup(plan)
        sum((leaf * leaf).sum() for leaf in vectors.leaves).backward()
        embedding.update(plan, vectors)
        g = torch.zeros(9, 4)
        g[2], g[5] = 4 * w[2], 2 * w[5]
        new_w, new_v = rmsprop(w, v, g, optimizer.numbers(step, 0.1), None, None)
        w[[2, 5]], v[[2, 5]] = new_w[[2, 5]], new_v[[2, 5]]
    torch.testing.assert_close(embedding.weights("a"), w)


def test_an_unknown_optimizer_is_named():
    with pytest.raises(ValueError, match="must be one of .*, not 'nosuch'"):
        optim.from_json({"kind": "nosuch"})


def test_options_are_changed_by_name():
    assert optim.replaced(SGD(lr=1.0), {"weight_decay": 0.5}) == SGD(lr=1.0, weight_decay=0.5)
    with pytest.raises(ValueError, match="sgd has no 'momentum'; it has lr, weight_decay"):
        optim.replaced(SGD(), {"momentum": 0.9})
    with pytest.raises(ValueError, match="adagrad's weight_decay must be a number, not 'x'"):
        optim.replaced(Adagrad(), {"weight_decay": "x"})
    with pytest.raises(ValueError, match="decay_by_count must be true or false, not 'maybe'"):
        optim.replaced(Adagrad(), {"decay_by_count": "maybe"})
