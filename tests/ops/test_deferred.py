"""Deferred updates against dense training with torch.optim: the same weights, once caught up."""

import math
from dataclasses import dataclass, field, replace
from types import SimpleNamespace

import pytest
import torch
from torch.testing import assert_close

from hotrows import ops
from hotrows.ops import deferred
from hotrows.ops.deferred import Target
from hotrows.ops.deferred import reference as reference_deferred
from hotrows.runtime import native

needs_core = pytest.mark.skipif(native.load() is None, reason="the native core was not built")
NEVER = 2**30
SEVERAL = ["sgd dampened", "adagrad l2", "rmsprop decay", "adam", "adam decay", "adamw"]


@dataclass(frozen=True)
class Case:
    """An optimizer of torch.optim with its options, and what changes from step to step."""

    name: str
    options: dict = field(default_factory=dict)
    lrs: tuple[float, ...] = (0.01,)
    l2s: tuple[float, ...] = (0.0,)  # coefficients of an L2 term's gradient

    @property
    def kind(self) -> str:
        return "adam" if self.name == "AdamW" else self.name.lower()

    def lr(self, t: int) -> float:
        return self.lrs[t % len(self.lrs)]

    def l2(self, t: int) -> float:
        return self.l2s[t % len(self.l2s)]

    def optimizer(self, w):
        return getattr(torch.optim, self.name)([w], lr=self.lr(0), foreach=False, **self.options)

    def num_states(self) -> int:
        if self.name == "SGD":
            return int(self.options.get("momentum", 0) != 0)
        return 2 if self.kind == "adam" else 1

    def numbers(self, t: int) -> list[float]:
        get, lr, decay = self.options.get, self.lr(t), self.options.get("weight_decay", 0)
        c, shrink = self.l2(t) + (0 if self.name == "AdamW" else decay), 1.0
        if self.name == "SGD":
            undamped = 1 if t == 0 else 1 - get("dampening", 0)
            rule = [lr, get("momentum", 0), undamped, float(get("nesterov", False))]
        elif self.name == "Adagrad":
            rule = [lr / (1 + t * get("lr_decay", 0)), get("eps", 1e-10)]
        elif self.name == "RMSprop":
            rule = [lr, get("alpha", 0.99), get("eps", 1e-8)]
        else:
            beta1, beta2 = get("betas", (0.9, 0.999))
            correction = math.sqrt(1 - beta2 ** (t + 1))
            rule = [lr / (1 - beta1 ** (t + 1)), beta1, beta2, get("eps", 1e-8), correction]
            shrink = 1 - lr * decay if self.name == "AdamW" else 1.0
        numbers = [c, shrink, *rule]
        return numbers + [0.0] * (8 - len(numbers))

    def first_decay(self, num_steps: int) -> int:
        moves = (t for t in range(num_steps) if self.numbers(t)[0] != 0 or self.numbers(t)[1] != 1)
        return next(moves, NEVER)


CASES = {
    "sgd": Case("SGD"),
    "sgd decay": Case("SGD", {"weight_decay": 0.1}, lrs=(0.1, 0.05)),
    "sgd momentum": Case("SGD", {"momentum": 0.9}),
    "sgd dampened": Case("SGD", {"momentum": 0.8, "dampening": 0.3, "weight_decay": 0.05}),
    "sgd nesterov": Case("SGD", {"momentum": 0.9, "nesterov": True}, (0.1, 0.0, 0.02), (0.01, 0)),
    "adagrad": Case("Adagrad", {"lr_decay": 0.1}),
    "adagrad decay": Case("Adagrad", {"weight_decay": 0.1, "initial_accumulator_value": 0.1}),
    "adagrad l2": Case("Adagrad", l2s=(0.1, 0.0, 0.0), lrs=(0.1, 0.2)),
    "rmsprop": Case("RMSprop"),
    "rmsprop decay": Case("RMSprop", {"weight_decay": 0.1, "alpha": 0.9}),
    "rmsprop l2": Case("RMSprop", l2s=(0.0, 0.0, 0.1)),
    "adam": Case("Adam"),
    "adam short memory": Case("Adam", {"betas": (0.5, 0.9)}, lrs=(0.01, 0.1)),
    "adam long memory": Case("Adam", {"betas": (0.95, 0.9)}),
    "adam warms up": Case("Adam", lrs=tuple(0.001 * t for t in range(50))),
    "adam decay": Case("Adam", {"weight_decay": 1e-2}),
    "adam slight decay": Case("Adam", {"weight_decay": 1e-7}, lrs=(1e-3,)),
    "adam decay warms up": Case("Adam", {"weight_decay": 1e-2}, tuple(1e-3 * t for t in range(9))),
    "adam l2 now and then": Case("Adam", l2s=(0.0,) * 25 + (0.1,) * 20 + (0.2, 0.0)),
    "adam l2 clipped": Case("Adam", l2s=tuple(1e-2 / (1 + t * t % 37) for t in range(40))),
    "adam l2 of any size": Case("Adam", l2s=(0.1,) * 13 + (1e-3, 1e-8) * 9 + (1e-12,) * 3),
    "adamw l2 clipped": Case("AdamW", {"weight_decay": 0.1}, l2s=(0.05, 0.01, 0.02) * 9),
    "adam without eps": Case("Adam", {"weight_decay": 0.1, "eps": 0.0}),
    "adamw": Case("AdamW", {"weight_decay": 0.1}, lrs=(0.01, 0.02)),
    "adamw l2": Case("AdamW", {"weight_decay": 0.1}, l2s=(0.01,)),
}


def batches(num_steps, num_rows, dim, often=6):
    """The ids and the gradient of each of their vectors, step by step: some rows never, some often."""
    made = []
    for t in range(num_steps):
        ids = torch.randint(0, max(1, num_rows * 3 // 4), (often,))
        ids = ids[: t % (often + 1)]
        made.append((ids, torch.randn(len(ids), dim, dtype=torch.float64)))
    return made


def dense(case, start, steps):
    """Plain training with torch.optim in the dtype of `start`."""
    w = torch.nn.Parameter(start.clone())
    optimizer = case.optimizer(w)
    for t, (ids, grad) in enumerate(steps):
        optimizer.param_groups[0]["lr"] = case.lr(t)
        g = torch.zeros_like(w).index_add_(0, ids, grad.to(w.dtype))
        w.grad = g if case.l2(t) == 0 else g.add(w.detach(), alpha=case.l2(t))
        optimizer.step()
    return w.detach()


def target_of(case, start, now, num_steps):
    fill = case.options.get("initial_accumulator_value", 0.0)
    states = tuple(torch.full_like(start, fill) for _ in range(case.num_states()))
    steps = torch.tensor([case.numbers(t) for t in range(num_steps)], dtype=torch.float64)
    last = torch.full((len(start),), -1, dtype=torch.int32)
    return Target(start.clone(), states, last, steps, 0, now, min(now, case.first_decay(num_steps)))


def moved(case, target, now, num_steps):
    return replace(target, now=now, first_decay=min(now, case.first_decay(num_steps)))


def run_of(ids, num_rows):
    """Distinct rows, order and starts of one table's ids."""
    rows, _, order, starts = ops.unique(ids)
    return rows, order, starts, torch.tensor([0, len(rows)])


def train(module, case, start, steps, squares=None, reads=True):
    """Deferred training; before each update the rows of the batch are read, as a model would."""
    num_steps = len(steps)
    target = target_of(case, start, 0, num_steps)
    for t, (ids, grad) in enumerate(steps):
        target = moved(case, target, t, num_steps)
        rows, order, starts, bounds = run_of(ids, len(start))
        if reads:
            module.catch_up(case.kind, [target], rows, bounds, squares)
        one = torch.ones(1, dtype=torch.float64)
        module.update(
            case.kind, [target], rows, bounds, order, starts, None, None,
            grad.to(start.dtype), one, squares,
        )  # fmt: skip
    target = moved(case, target, num_steps, num_steps)
    module.catch_up_all(case.kind, target, squares)
    return target


MODULES = [
    pytest.param(deferred, marks=needs_core, id="core"),
    pytest.param(reference_deferred, id="reference"),
]


@pytest.mark.parametrize("module", MODULES)
@pytest.mark.parametrize("name", CASES)
def test_float64_equals_dense_training(name, module):
    case, steps = CASES[name], batches(90, 24, 5)
    start = torch.randn(24, 5, dtype=torch.float64) * 0.1
    if name == "adam without eps":  # a weight of 0 is 0 / 0 there, in torch.optim too
        start = start.abs() + 0.1
    got = train(module, case, start, steps).weights
    assert_close(got, dense(case, start, steps), rtol=1e-11, atol=1e-13)


@needs_core
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


@needs_core
@pytest.mark.parametrize("dim", [1, 3, 16, 20, 64, 100])
@pytest.mark.parametrize("name", ["sgd nesterov", "adagrad decay", "rmsprop l2", "adam", "adam decay"])
def test_updates_alone_catch_up_too_at_any_width(name, dim):
    case, steps = CASES[name], batches(60, 30, dim)
    start = torch.randn(30, dim, dtype=torch.float64)
    got = train(deferred, case, start, steps, reads=False).weights
    assert_close(got, dense(case, start, steps), rtol=1e-11, atol=1e-13)


def records(target):
    """The same rows in one buffer: weights, states, last, and some bytes of others between them."""
    w = target.weights
    size, count, rows = w.element_size(), w.shape[1], len(w)
    parts = 1 + len(target.states)
    stride = (parts * count * size + 4 + 15) // 8 * 8
    buffer = torch.zeros(rows, stride, dtype=torch.uint8)
    views = [buffer[:, k * count * size : (k + 1) * count * size].view(w.dtype) for k in range(parts)]
    last = buffer[:, parts * count * size :][:, :4].view(torch.int32)[:, 0]
    for view, values in zip((*views, last), (w, *target.states, target.last), strict=True):
        view.copy_(values)
    return replace(target, weights=views[0], states=tuple(views[1:]), last=last)


def tables(case, dim, dtype, num_steps=80, sizes=(50, 0, 3, 200), now=70):
    """Targets as training leaves them: rows of any age, some untouched; every other one of records."""
    made = []
    for k, rows in enumerate(sizes):
        target = target_of(case, torch.randn(rows, dim, dtype=dtype) * 0.1, now, num_steps)
        target = replace(target, last=torch.randint(-1, now + 1, (rows,), dtype=torch.int32))
        touched = (target.last >= 0)[:, None]
        for state in target.states:
            state += torch.rand_like(state) * 1e-3 * touched
        made.append(records(target) if k % 2 == 0 else target)
    return made


def read_of(targets, per_table=40):
    """Some rows of each table but the third: slots, bounds, and a lookup of bags over them."""
    slots = [torch.randperm(len(t.last))[:per_table].sort().values for t in targets]
    slots[2] = slots[2][:0]
    bounds = torch.tensor([0, *(len(s) for s in slots)]).cumsum(0)
    slots = torch.cat(slots)
    inverse = torch.cat([torch.arange(len(slots)), torch.randint(0, len(slots), (150,))]).int()
    _, _, order, starts = ops.unique(inverse.long())
    lengths = torch.tensor([0, 5, 0, 100, len(inverse) - 107, 2])
    bag_starts = torch.tensor([0, *lengths]).cumsum(0).int()
    bags = torch.arange(6).repeat_interleave(lengths).int()
    return SimpleNamespace(**locals())


def copies(targets):
    return [
        replace(
            target,
            weights=target.weights.clone(),
            states=tuple(state.clone() for state in target.states),
            last=target.last.clone(),
        )
        for target in targets
    ]


def values(targets):
    return [x for t in targets for x in (t.weights, *t.states, t.last)]


def step_of(module, case, targets, read, grad, bagged, squares):
    module.catch_up(case.kind, targets, read.slots, read.bounds, squares)
    weights = torch.linspace(-1, 2, len(read.inverse), dtype=grad.dtype) if bagged else None
    bag_starts, bags = (read.bag_starts, read.bags) if bagged else (None, None)
    out = module.lookup(targets, read.slots, read.bounds, read.inverse, bag_starts, weights)
    scales = torch.linspace(0.5, 1.5, len(targets), dtype=torch.float64)
    module.update(
        case.kind, targets, read.slots, read.bounds, read.order, read.starts, bags, weights,
        grad[: len(out)], scales, squares,
    )  # fmt: skip
    return out


@needs_core
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


@needs_core
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
            deferred.catch_up_all(case.kind, later, squares[k : k + 1])
        results.append([out, squares, *values(mine)])
    for one, other in zip(*results, strict=True):
        assert torch.equal(one, other)


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
    module.catch_up_all(case.kind, target)
    for one, other in zip(values([target]), before, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("module", MODULES)
def test_untouched_rows_follow_decay_from_the_first_step_that_decays(module):
    case = Case("Adam", l2s=(0.0,) * 30 + (0.1,) * 70)
    steps = [(torch.empty(0).long(), torch.empty(0, 3))] * 90
    start = torch.randn(7, 3, dtype=torch.float64)
    target = target_of(case, start, 90, 90)
    assert target.first_decay == 30
    module.catch_up_all("adam", target)
    assert target.last.tolist() == [90] * 7
    assert_close(target.weights, dense(case, start, steps), rtol=1e-12, atol=1e-14)


@needs_core
@pytest.mark.parametrize("v", [0.0, 1e-45, 1e-40, 1e-30, 1e30, 3e38, math.inf])
@pytest.mark.parametrize("name", ["adam", "adam decay", "adamw l2"])
def test_no_second_moment_makes_a_weight_nan(name, v):
    case = CASES[name]
    fast = target_of(case, torch.linspace(-1, 1, 32).view(2, 16), 200, 200)
    fast.states[1].fill_(v)
    fast.last.fill_(100)
    slow = copies([fast])[0]
    deferred.catch_up_all("adam", fast)
    reference_deferred.catch_up_all("adam", slow)
    assert fast.weights.isfinite().all()
    assert_close(fast.weights, slow.weights, rtol=1e-5, atol=1e-7)


@needs_core
def test_zero_weights_and_moments_stay_zero_and_what_is_left_of_the_squares_fades():
    case = CASES["adam decay"]
    target = target_of(case, torch.zeros(3, 16), 400, 400)
    target.states[1].fill_(1.0)
    target.last.fill_(10)
    deferred.catch_up_all("adam", target)
    assert not target.weights.any() and not target.states[0].any()
    assert_close(target.states[1], torch.full((3, 16), 0.999**390), rtol=1e-5, atol=0)


@needs_core
def test_adam_without_decay_leaves_out_only_steps_that_move_nothing():
    case = Case("Adam", lrs=(1e-4,) * 300 + (10.0,) * 100)  # a rate that grows late must not be missed
    fast = target_of(case, torch.randn(20, 16) * 0.1, 400, 400)
    fast.states[0].normal_()
    fast.states[1].uniform_(0.1, 1)
    fast.last.copy_(torch.arange(20) * 19)
    slow = target_of(case, fast.weights.double(), 400, 400)
    slow = replace(slow, states=tuple(s.double() for s in fast.states), last=fast.last.clone())
    deferred.catch_up_all("adam", fast)
    reference_deferred.catch_up_all("adam", slow)
    assert_close(fast.weights.double(), slow.weights, rtol=1e-5, atol=1e-7)
    assert_close(fast.states[1].double(), slow.states[1], rtol=1e-5, atol=0)


def test_packed_targets_are_the_targets():
    case = CASES["adam decay"]
    plain = tables(case, 4, torch.float32)
    read, shared = read_of(plain), plain[0].steps
    kept = copies(plain)
    packed = deferred.pack_targets(kept).at_steps(shared, 0, 60, [0] * 4).at_steps(shared, 0, 70, 0)
    plain = [replace(target, steps=shared, first_decay=0) for target in plain]
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
    module.catch_up_all("none", target)
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
