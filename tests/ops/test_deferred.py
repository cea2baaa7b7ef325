"""Deferred updates against dense training with torch.optim: the same weights, once caught up."""

import math
from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close

from hotrows.ops import deferred
from hotrows.ops.deferred import Target
from hotrows.ops.deferred import reference as reference_deferred
from hotrows.ops.deferred.history import DeviceSteps, StepHistory
from tests.support.deferred import (
    CASES,
    Case,
    batches,
    copies,
    dense,
    read_of,
    step_of,
    tables,
    target_of,
    train,
    values,
)

SEVERAL = ["sgd dampened", "adagrad l2", "rmsprop decay", "adam", "adam decay", "adamw"]


MODULES = [pytest.param(deferred, id="core"), pytest.param(reference_deferred, id="reference")]


@pytest.mark.few(25)
@pytest.mark.parametrize("module", MODULES)
@pytest.mark.parametrize("name", CASES)
def test_float64_equals_dense_training(name, module):
    case, steps = CASES[name], batches(90, 24, 5)
    start = torch.randn(24, 5, dtype=torch.float64) * 0.1
    if name == "adam without eps":  # a weight of 0 is 0 / 0 there, in torch.optim too
        start = start.abs() + 0.1
    got = train(module, case, start, steps).weights
    assert_close(got, dense(case, start, steps), rtol=1e-11, atol=1e-13)


@pytest.mark.few(8)
@pytest.mark.parametrize("name", CASES)
def test_float32_errs_at_most_twice_as_much_as_dense_training(name):
    case, steps = CASES[name], batches(250, 60, 16)
    start = torch.randn(60, 16, dtype=torch.float64) * 0.1
    start = start.float().double()
    if name == "adam without eps":
        start = start.abs() + 0.1
    exact = dense(case, start, steps)
    plain = dense(case, start.float(), steps).double() - exact
    ours = train(deferred, case, start.float(), steps).weights.double() - exact
    floor = 2.0**-24 * exact.abs().max()
    assert ours.square().mean().sqrt() <= 2 * plain.square().mean().sqrt() + floor
    assert ours.abs().max() <= 2 * plain.abs().max() + 2 * floor


@pytest.mark.parametrize("dim", [1, 3, 16, 20, 64, 100])
@pytest.mark.parametrize("name", ["sgd nesterov", "adagrad decay", "rmsprop l2", "adam", "adam decay"])
def test_updates_alone_catch_up_too_at_any_width(name, dim):
    case, steps = CASES[name], batches(60, 30, dim)
    start = torch.randn(30, dim, dtype=torch.float64)
    got = train(deferred, case, start, steps, reads=False).weights
    assert_close(got, dense(case, start, steps), rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize(("dtype", "bagged"), [(torch.float32, True), (torch.float64, False)])
@pytest.mark.parametrize("dim", [1, 3, 16, 20, 64, 100])
@pytest.mark.parametrize("name", SEVERAL)
def test_the_core_equals_the_reference_over_several_tables(name, dim, dtype, bagged):
    case = CASES[name]
    fast = tables(case, dim, dtype)
    slow, read = copies(fast), read_of(fast)
    grad = torch.randn(len(read.inverse), dim, dtype=dtype)
    changes = [torch.zeros(4, dtype=torch.float64) for _ in range(2)]
    outs = [
        step_of(module, case, targets, read, grad, bagged, squares)
        for module, targets, squares in zip(
            (deferred, reference_deferred), (fast, slow), changes, strict=True
        )
    ]
    slack = {"rtol": 2e-4, "atol": 2e-6} if dtype == torch.float32 else {"rtol": 1e-10, "atol": 1e-12}
    assert_close(*outs, **slack)
    for one, other in zip(values(fast), values(slow), strict=True):
        assert_close(one, other, **slack)
    assert_close(*changes, rtol=1e-3 if dtype == torch.float32 else 1e-9, atol=1e-4)


@pytest.mark.parametrize("name", ["sgd nesterov", "adagrad decay", "rmsprop", "adam", "adam decay"])
def test_one_thread_equals_two_bit_for_bit(name, threads):
    case = CASES[name]
    targets = tables(case, 16, torch.float32, sizes=(3000, 0, 3, 5000))
    read = read_of(targets, per_table=2500)
    grad = torch.randn(len(read.inverse), 16)
    results = []
    for count in (1, 2):
        threads(count)
        mine, squares = copies(targets), torch.zeros(4, dtype=torch.float64)
        out = step_of(deferred, case, mine, read, grad, True, squares)
        for k, target in enumerate(mine):
            later = replace(target, now=75, first_decay=min(75, case.first_decay(80)))
            deferred.catch_up_all(case.kind, [later], squares[k : k + 1])
        results.append([out, squares, *values(mine)])
    for one, other in zip(*results, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("module", MODULES)
@pytest.mark.parametrize("dim", [1, 3, 16])
@pytest.mark.parametrize("name", ["sgd momentum", "adagrad decay", "adam", "adamw l2"])
def test_all_rows_of_several_tables_catch_up_as_those_of_each(name, dim, module):
    case = CASES[name]
    alone = tables(case, dim, torch.float32, sizes=(300, 0, 1, 2500))
    together, changes = copies(alone), torch.zeros(2, 4, dtype=torch.float64)
    before = module.sums_of_squares(alone)
    for k, target in enumerate(alone):
        module.catch_up_all(case.kind, [target], changes[0, k : k + 1])
    module.catch_up_all(case.kind, together, changes[1])
    for one, other in zip(values(alone), values(together), strict=True):
        assert torch.equal(one, other)
    assert torch.equal(*changes)
    assert_close(torch.tensor(module.sums_of_squares(alone)), torch.tensor(before) + changes[0].float())
    assert module.sums_of_squares([]) == []


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("dim", [1, 5, 16])
def test_products_of_gradients_and_weights_are_the_reference_s(dim, dtype):
    targets = tables(CASES["adam"], dim, dtype)
    read = read_of(targets)
    sums = torch.randn(len(read.slots), dim, dtype=dtype)
    fast = deferred.products(targets, read.slots, read.bounds, sums)
    slow = reference_deferred.products(targets, read.slots, read.bounds, sums)
    assert_close(torch.tensor(fast), torch.stack(slow).float(), rtol=1e-5, atol=1e-5)
    assert_close(deferred.sums_of_squares(targets), reference_deferred.sums_of_squares(targets))


@pytest.mark.parametrize("module", MODULES)
@pytest.mark.parametrize("name", ["sgd decay", "adam", "adam decay", "adamw", "adagrad decay"])
def test_squares_follow_the_sum_of_squared_weights(name, module):
    case, steps = CASES[name], batches(40, 30, 3)
    start = torch.randn(30, 3)
    squares = start.double().square().sum().view(1)
    target = train(module, case, start, steps, squares)
    assert_close(squares[0], target.weights.double().square().sum(), rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("module", MODULES)
@pytest.mark.parametrize("name", ["sgd momentum", "adagrad", "rmsprop", "adam"])
def test_rows_never_touched_stay_untouched_without_decay(name, module):
    case = CASES[name]
    target = target_of(case, torch.randn(9, 4), 50, 60)
    before = [x.clone() for x in values([target])]
    module.catch_up_all(case.kind, [target])
    for one, other in zip(values([target]), before, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("module", MODULES)
def test_untouched_rows_follow_decay_from_the_first_step_that_decays(module):
    case = Case("Adam", l2s=(0.0,) * 30 + (0.1,) * 70)
    steps = [(torch.empty(0).long(), torch.empty(0, 3))] * 90
    start = torch.randn(7, 3, dtype=torch.float64)
    target = target_of(case, start, 90, 90)
    assert target.first_decay == 30
    module.catch_up_all("adam", [target])
    assert target.last.tolist() == [90] * 7
    assert_close(target.weights, dense(case, start, steps), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("v", [0.0, 1e-45, 1e-40, 1e-30, 1e30, 3e38, math.inf])
@pytest.mark.parametrize("name", ["adam", "adam decay", "adamw l2"])
def test_no_second_moment_makes_a_weight_nan(name, v):
    case = CASES[name]
    fast = target_of(case, torch.linspace(-1, 1, 32).view(2, 16), 200, 200)
    fast.states[1].fill_(v)
    fast.last.fill_(100)
    slow = copies([fast])[0]
    deferred.catch_up_all("adam", [fast])
    reference_deferred.catch_up_all("adam", [slow])
    assert fast.weights.isfinite().all()
    assert_close(fast.weights, slow.weights, rtol=1e-5, atol=1e-7)


def test_zero_weights_and_moments_stay_zero_and_what_is_left_of_the_squares_fades():
    case = CASES["adam decay"]
    target = target_of(case, torch.zeros(3, 16), 400, 400)
    target.states[1].fill_(1.0)
    target.last.fill_(10)
    deferred.catch_up_all("adam", [target])
    assert not target.weights.any() and not target.states[0].any()
    assert_close(target.states[1], torch.full((3, 16), 0.999**390), rtol=1e-5, atol=0)


def test_adam_without_decay_leaves_out_only_steps_that_move_nothing():
    case = Case("Adam", lrs=(1e-4,) * 300 + (10.0,) * 100)  # a rate that grows late must not be missed
    fast = target_of(case, torch.randn(20, 16) * 0.1, 400, 400)
    fast.states[0].normal_()
    fast.states[1].uniform_(0.1, 1)
    fast.last.copy_(torch.arange(20) * 19)
    slow = target_of(case, fast.weights.double(), 400, 400)
    slow = replace(slow, states=tuple(s.double() for s in fast.states), last=fast.last.clone())
    deferred.catch_up_all("adam", [fast])
    reference_deferred.catch_up_all("adam", [slow])
    assert_close(fast.weights.double(), slow.weights, rtol=1e-5, atol=1e-7)
    assert_close(fast.states[1].double(), slow.states[1], rtol=1e-5, atol=0)


def test_packed_targets_are_the_targets():
    case = CASES["adam decay"]
    plain = tables(case, 4, torch.float32)
    read, kept = read_of(plain), copies(plain)
    packed = deferred.pack_targets(kept)
    deferred.catch_up("adam", plain, read.slots, read.bounds)
    deferred.catch_up("adam", packed, read.slots, read.bounds)
    for one, other in zip(values(plain), values(kept), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("module", MODULES)
def test_a_frozen_table_is_looked_up_and_never_moves(module):
    table = torch.randn(5, 3)
    steps, last = torch.empty(0, 8, dtype=torch.float64), torch.full((5,), -1, dtype=torch.int32)
    target = Target(table, (), last, steps, 0, 4, 0)
    slots, bounds = torch.tensor([1, 4]), torch.tensor([0, 2])
    module.catch_up("none", [target], slots, bounds)
    module.catch_up_all("none", [target])
    inverse = torch.tensor([1, 0, 1]).int()
    assert torch.equal(module.lookup([target], slots, bounds, inverse, None, None), table[[4, 1, 4]])


@pytest.mark.parametrize("module", MODULES)
def test_no_rows_and_no_tables(module):
    target = tables(CASES["adam"], 4, torch.float32)[0]
    none, order = torch.empty(0).long(), torch.empty(0).int()
    zero, starts = torch.tensor([0, 0]), torch.zeros(1).int()
    one = torch.ones(1, dtype=torch.float64)
    module.catch_up("adam", [target], none, zero)
    module.update("adam", [target], none, zero, order, starts, None, None, torch.empty(0, 4), one)
    assert module.lookup([target], none, zero, order, None, None).shape == (0, 4)
    bags = torch.zeros(4).int()
    assert torch.equal(module.lookup([target], none, zero, order, bags, None), torch.zeros(3, 4))
    module.catch_up("adam", [], none, torch.tensor([0]))


def test_a_device_forgets_the_numbers_of_a_step_that_failed_and_was_recorded_again():
    host, history = torch.device("cpu"), StepHistory()
    followed = DeviceSteps("adam", host, 0)

    def record(rate, is_made=True):
        history.record((0.0, 1.0, rate, 0.9, 0.999, 1e-8, 1.0, 1.0))
        history.now += is_made

    def follow(steps):
        return steps.follow(history.steps, history._num_written, history._num_records)

    record(0.1)
    record(0.2, is_made=False)  # it fails once the device has its numbers
    follow(followed)
    record(0.3)
    record(0.4)
    expected = follow(DeviceSteps("adam", host, 0))[:3]
    assert_close(follow(followed)[:3], expected, rtol=0, atol=0, equal_nan=True)
    assert expected[:, 2].tolist() == [0.1, 0.3, 0.4]
