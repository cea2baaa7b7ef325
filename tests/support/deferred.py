"""Deferred optimizers: cases, dense training with torch.optim, tables whose rows are of any age."""

import math
from dataclasses import dataclass, field, replace
from types import SimpleNamespace

import torch

from hotrows import ops
from hotrows.ops.deferred import Target

NEVER = 2**30


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
    module.catch_up_all(case.kind, [target], squares)
    return target


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
