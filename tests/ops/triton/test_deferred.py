"""Deferred optimizers over tables: the kernels against the reference, and against dense training."""

import itertools
from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close

from hotrows.ops.deferred import reference
from hotrows.ops.deferred.history import DeviceSteps
from hotrows.ops.triton import deferred as kernels
from tests.support.choice import everything
from tests.support.deferred import (
    CASES,
    batches,
    copies,
    dense,
    read_of,
    step_of,
    tables,
    target_of,
    train,
    values,
)  # fmt: skip


class Kernels:
    """The kernels, called as the reference is."""

    def __init__(self, device):
        self.device = device

    def catch_up(self, kind, targets, slots, bounds, squares=None):
        self._run(kernels.catch_up, kind, targets, slots, bounds, squares)

    def catch_up_all(self, kind, targets, squares=None):
        bounds = torch.tensor([0, *itertools.accumulate(len(target.last) for target in targets)])
        self._run(kernels.catch_up, kind, targets, None, bounds, squares)

    def update(self, kind, targets, *args):
        self._run(kernels.update, kind, targets, *args)

    def lookup(self, targets, *args):
        return kernels.lookup(*_on(self.device, targets, *args)).cpu()

    def _run(self, kernel, kind, targets, *args):
        """On copies on the device, which are read back."""
        followed = [_followed(kind, target) for target in targets]
        there, *others = _on(self.device, followed, *args)
        kernel(kind, there, *others)
        for target, changed in zip(targets, there, strict=True):
            for one, other in zip(values([target]), values([changed]), strict=True):
                one.copy_(other)
        if args[-1] is not None:
            args[-1].copy_(others[-1])


def _followed(kind, target):
    steps = DeviceSteps(kind, torch.device("cpu"), target.first)
    return replace(target, steps=steps.follow(target.steps, min(len(target.steps), target.now + 1), 1))


def _on(device, targets, *others):
    there = [
        replace(
            target,
            weights=target.weights.to(device),
            states=tuple(state.to(device) for state in target.states),
            last=target.last.to(device),
            steps=target.steps.to(device),
        )
        for target in targets
    ]
    return there, *(x.to(device) if isinstance(x, torch.Tensor) else x for x in others)


ALL = ["sgd dampened", "adagrad l2", "rmsprop decay", "adam decay", "adamw"]
SOME = ALL if everything() else ALL[::3]
ODD = [1, 3, 20, 300] if everything() else [3]


@pytest.mark.few(3)
@pytest.mark.pairs
@pytest.mark.parametrize("bagged", [True, False])
@pytest.mark.parametrize("dim", ODD)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", SOME)
def test_kernels_equal_the_reference_over_several_tables(name, dtype, dim, bagged, device):
    case = CASES[name]
    fast = tables(case, dim, dtype, num_steps=24, sizes=(20, 0, 3, 40), now=18)
    slow, read = copies(fast), read_of(fast, per_table=12)
    grad = torch.randn(len(read.inverse), dim, dtype=dtype)
    changes = [torch.zeros(4, dtype=torch.float64) for _ in range(2)]
    outs = [
        step_of(module, case, targets, read, grad, bagged, squares)
        for module, targets, squares in zip(
            (Kernels(device), reference), (fast, slow), changes, strict=True
        )
    ]
    slack = {"rtol": 2e-4, "atol": 2e-6} if dtype == torch.float32 else {"rtol": 1e-10, "atol": 1e-12}
    assert_close(*outs, **slack)
    for one, other in zip(values(fast), values(slow), strict=True):
        assert_close(one, other, **slack)
    assert_close(*changes, rtol=1e-3 if dtype == torch.float32 else 1e-9, atol=1e-4)


@pytest.mark.few(2)
@pytest.mark.parametrize("name", CASES if everything() else ["sgd nesterov", "rmsprop l2"])
def test_float64_equals_dense_training(name, device):
    case, steps = CASES[name], batches(90 if everything() else 12, 9, 2)
    start = torch.randn(9, 2, dtype=torch.float64) * 0.1
    if name == "adam without eps":  # a weight of 0 is 0 / 0 there, in torch.optim too
        start = start.abs() + 0.1
    got = train(Kernels(device), case, start, steps).weights
    assert_close(got, dense(case, start, steps), rtol=1e-10, atol=1e-12)


LONG = [
    ("adam", torch.float32, 300),
    *(
        pytest.param(name, *others, marks=pytest.mark.slow)
        for name in ("adam", "adamw", "sgd momentum", "rmsprop")
        for others in ((torch.float32, 300), (torch.float64, 550))
    ),
]


@pytest.mark.parametrize(("name", "dtype", "poisoned_from"), LONG)
def test_rows_long_behind_stop_where_no_step_moves_them(name, dtype, poisoned_from, device, monkeypatch):
    """They do not read the numbers of steps so much later; states shrink by these all the same."""
    case, num_steps = CASES[name], poisoned_from + 50
    slow = target_of(case, torch.randn(3, 2, dtype=dtype), num_steps, num_steps)
    slow.last[:] = torch.tensor([3, 9, 0])
    for state in slow.states:
        state.copy_(torch.rand_like(state) * 1e-2)
    (fast,) = copies([slow])
    reference.catch_up_all(case.kind, [slow])
    fast = _followed(case.kind, fast)
    fast.steps[poisoned_from:num_steps, :8] = float("nan")
    monkeypatch.setattr(kernels, "CHECK", 64)
    (there,) = _on(device, [fast])[0]
    bounds = torch.tensor([0, 3], device=device)
    kernels.catch_up(case.kind, [there], None, bounds, None)
    tiny = 4e-6 if dtype == torch.float32 else 1e-12
    for one, other in zip(values([there]), values([slow]), strict=True):
        assert_close(one.cpu(), other, rtol=tiny, atol=tiny)


def test_rows_outside_of_the_bounds_and_padding_are_left_alone(device):
    case = CASES["adam decay"]
    targets = tables(case, 4, torch.float32, num_steps=9, sizes=(8, 8, 8), now=8)
    before, expected = copies(targets), copies(targets)
    slots, bounds = torch.tensor([1, 5, 0, 6, 7, -1, -1]), torch.tensor([0, 2, 4, 5])
    order, starts = torch.arange(7).int(), torch.tensor([0, 1, 2, 3, 4, 5, 5, 5]).int()
    grad, one = torch.randn(7, 4), torch.ones(1, dtype=torch.float64)
    middle = bounds[1:3]
    for module, mine in ((Kernels(device), targets), (reference, expected)):
        module.update(case.kind, [mine[1]], slots, middle, order, starts, None, None, grad, one, None)
    assert_close(values(targets), values(expected), rtol=1e-5, atol=1e-6)
    assert_close(values(targets[::2]), values(before[::2]), rtol=0, atol=0)
    inverse = torch.tensor([0, -1, 4, -1]).int()
    got = Kernels(device).lookup(targets, slots, bounds, inverse, None, None)
    rows = torch.stack([targets[0].weights[1], torch.zeros(4), targets[2].weights[7], torch.zeros(4)])
    assert_close(got, rows, rtol=0, atol=0)


def test_nothing_to_do(device):
    case = CASES["adam"]
    targets = tables(case, 3, torch.float32, num_steps=5, sizes=(4, 0), now=4)
    before, none = copies(targets), torch.empty(0, dtype=torch.int64)
    bounds, starts = torch.zeros(3, dtype=torch.int64), torch.zeros(1, dtype=torch.int32)
    run, ids = Kernels(device), none.int()
    run.catch_up(case.kind, targets, none, bounds)
    ones = torch.ones(2, dtype=torch.float64)
    run.update(case.kind, targets, none, bounds, ids, starts, None, None, torch.empty(0, 3), ones, None)
    assert run.lookup(targets, none, bounds, ids, None, None).shape == (0, 3)
    bags = torch.zeros(3, dtype=torch.int32)
    assert_close(run.lookup(targets, none, bounds, ids, bags, None), torch.zeros(2, 3))
    assert_close(values(targets), values(before), rtol=0, atol=0)
