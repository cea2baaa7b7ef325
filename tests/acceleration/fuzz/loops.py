"""Random training loops: an optimizer, and what happens at each step, by name."""

from __future__ import annotations

import copy
import io
import random
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.optimizer import register_optimizer_step_pre_hook

import hotrows
from tests.acceleration.fuzz import gradients
from tests.acceleration.fuzz.models import Model

HOST = torch.device("cpu")


class SharpnessAware(torch.optim.SGD):
    """An optimizer of the user's own, whose step needs the gradients of two points."""

    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        with torch.enable_grad():
            loss = closure()
        moved = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        with torch.no_grad():
            moves = [0.05 * p.grad for p in moved]
            for p, move in zip(moved, moves, strict=True):
                p.add_(move)
            with torch.enable_grad():
                closure()
            for p, move in zip(moved, moves, strict=True):
                p.sub_(move)
        super().step()
        return loss


WITH_CLOSURE = {"LBFGS": torch.optim.LBFGS, "SharpnessAware": SharpnessAware}
"""Optimizers that call their closure several times."""


@dataclass(frozen=True)
class Optimizer:
    """kind: of torch.optim, or `WITH_CLOSURE`. options: of all groups. groups: how parameters are dealt out, and options
    of the second group. apart: the groups are optimizers of their own."""

    kind: str
    options: tuple[tuple[str, Any], ...] = ()
    second: tuple[tuple[str, Any], ...] | None = None
    apart: bool = False


@dataclass(frozen=True)
class Step:
    """One step. size: of each batch. after: what is done behind backward, before the step; then:
    behind the step. penalty: (form, number of a table). reads_late: nobody reads the loss before that."""

    sizes: tuple[int, ...] = (5,)
    zero: str = "none"
    penalty: tuple[tuple[str, int], ...] = ()
    backward: str = "each"
    after: tuple[tuple[str, int], ...] = ()
    how: str = "step"
    reads_late: bool = False
    then: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True)
class Loop:
    seed: int
    optimizer: Optimizer
    steps: tuple[Step, ...]
    scheduler: str = ""
    hooks: tuple[tuple[str, int], ...] = ()
    packing: bool = False
    threads: int = 1


def loop_of(draw: random.Random, model: Model, packing: bool) -> Loop:
    sparse = any(table.sparse for table in model.tables)
    optimizer = _optimizer(draw, sparse)
    penalties: list[tuple[str, int]] = []
    if draw.random() < 0.4:
        penalties = [_of_table(draw, PENALTIES) for _ in range(draw.choice((1, 1, 2, 3)))]
    habit = draw.choice(("none", "none", "zeros", "forget", "mixed"))
    steps = []
    for _ in range(draw.randint(3, 7 if packing else 14)):
        steps.append(_step(draw, habit, penalties))
    hooks = [_of_table(draw, HOOKS) for _ in range(draw.choice((0, 0, 0, 1, 2)))]
    scheduler = draw.choice(("", "", "StepLR", "OneCycleLR", "LambdaLR", "ExponentialLR"))
    loop = Loop(
        draw.randrange(1 << 30), optimizer, tuple(steps), scheduler, tuple(hooks), packing,
        draw.choice((1, 1, 2)),
    )  # fmt: skip
    return replace(loop, steps=tuple(_with_gradients(draw, step) for step in loop.steps))


def _with_gradients(draw: random.Random, step: Step) -> Step:
    more = gradients.drawn(draw)
    backward = more["backward"] if step.backward == "each" else None
    return replace(
        step,
        backward=backward or step.backward,
        after=(*step.after, *more["after"]),
        then=(*step.then, *more["then"]),
    )


def _of_table(draw: random.Random, forms: Any) -> tuple[str, int]:
    return draw.choice(list(forms)), draw.randrange(8)


def _step(draw: random.Random, habit: str, penalties: Sequence[tuple[str, int]]) -> Step:
    def some(forms: Any, chance: float) -> tuple[tuple[str, int], ...]:
        num = 0 if draw.random() > chance else draw.choice((1, 1, 1, 2))
        return tuple(_of_table(draw, forms) for _ in range(num))

    zero = draw.choice(("none", "zeros", "forget")) if habit == "mixed" else habit
    sizes = tuple(draw.choice((1, 2, 3, 5, 8, 5, 8)) for _ in range(draw.choice((1, 1, 1, 2))))
    if draw.random() < 0.03:
        sizes = (0,)
    backward = draw.choices(
        ("each", "together", "twice", "grad", "none", "second"), (12, 2, 1, 0.5, 0.4, 0.2)
    )[0]
    how = draw.choices(("step", "closure", "skip", "twice"), (14, 1, 1, 0.5))[0]
    used = tuple(penalties) if draw.random() < 0.8 else tuple(penalties[:1])
    late = draw.random() < 0.3
    return Step(sizes, zero, used, backward, some(AFTER, 0.3), how, late, some(THEN, 0.3))


def _optimizer(draw: random.Random, sparse: bool) -> Optimizer:
    kinds: dict[str, float] = {
        "SGD": 3, "Adam": 4, "AdamW": 2, "Adagrad": 2, "RMSprop": 1.5, "NAdam": 0.7, "RAdam": 0.7, "Adamax": 0.7,
        "Adadelta": 0.7, "ASGD": 0.3, "Rprop": 0.2,
    }  # fmt: skip
    if sparse and draw.random() < 0.95:
        kinds = {"SGD": 2, "Adagrad": 1}
    elif draw.random() < 0.05:
        kind = draw.choice(list(WITH_CLOSURE))
        return Optimizer(kind, (("lr", 0.1), *([("max_iter", 3)] if kind == "LBFGS" else [])))
    kind = draw.choices(list(kinds), list(kinds.values()))[0]
    options = _options(draw, kind, sparse)
    second = None
    if draw.random() < 0.3:
        second = tuple(item for item in _options(draw, kind, sparse) if draw.random() < 0.7)
    return Optimizer(kind, options, second, second is not None and draw.random() < 0.3)


def _options(draw: random.Random, kind: str, sparse: bool) -> tuple[tuple[str, Any], ...]:
    options: dict[str, Any] = {"lr": draw.choice((0.1, 0.01, 0.03))}
    if kind not in ("SGD", "ASGD", "Rprop"):
        options["eps"] = 1e-2
    if draw.random() < 0.35 and not sparse and kind != "Rprop":
        options["weight_decay"] = draw.choice((0.01, 0.1))
    if kind != "SGD" or not sparse:
        options.update({"foreach": draw.choice((True, False))} if draw.random() < 0.3 else {})
    if kind == "SGD" and draw.random() < 0.5 and not sparse:
        options["momentum"] = draw.choice((0.5, 0.9))
        options.update({"dampening": 0.3} if draw.random() < 0.3 else {"nesterov": draw.random() < 0.3})
    if kind in ("Adam", "AdamW", "Adamax", "NAdam", "RAdam") and draw.random() < 0.3:
        options["betas"] = draw.choice(((0.5, 0.9), (0.0, 0.99), (0.9, 0.99)))
    if kind in ("Adam", "AdamW"):
        options.update({"amsgrad": True} if draw.random() < 0.15 else {})
    if kind == "Adagrad" and draw.random() < 0.4:
        options.update({"lr_decay": 0.1, "initial_accumulator_value": 0.1})
    if kind == "RMSprop" and draw.random() < 0.4:
        options.update({"momentum": 0.5} if draw.random() < 0.5 else {"centered": True})
    if kind in ("NAdam", "RAdam") and draw.random() < 0.3:
        options["decoupled_weight_decay"] = True
    if draw.random() < 0.08 and not sparse:
        options["maximize"] = True
    if (
        draw.random() < 0.05
        and kind in ("SGD", "Adam", "AdamW", "Adagrad")
        and not options.get("foreach")
        and not sparse
    ):
        options["fused"] = True
        options.pop("foreach", None)
    if draw.random() < 0.05 and kind in ("Adam", "AdamW") and not options.get("foreach"):
        options["lr"] = torch.tensor(options["lr"], dtype=torch.float64)
    return tuple(options.items())


# ---- what happens


@dataclass
class Run:
    """A loop that runs: its model and optimizers, and what it has shown so far. place: where it runs."""

    loop: Loop
    model: nn.Module
    optimizers: list[torch.optim.Optimizer]
    accelerated: bool
    seen: list[tuple[str, Any]] = field(default_factory=list)
    schedulers: list[Any] = field(default_factory=list)
    draw: torch.Generator = field(default_factory=torch.Generator)
    place: torch.device = HOST
    handles: list[Any] = field(default_factory=list)  # of late hooks
    losses: deque[Tensor] = field(default_factory=partial(deque, maxlen=3))  # the last ones

    def see(self, what: str, value: Any) -> None:
        self.seen.append((what, _copied(value)))

    def table(self, number: int) -> nn.Module:
        tables = [m for m in self.model.modules() if isinstance(m, nn.Embedding | nn.EmbeddingBag)]
        return tables[number % len(tables)]

    def weight(self, number: int) -> nn.Parameter:
        return self.table(number).weight  # type: ignore[return-value]

    def batch(self, size: int) -> tuple[Tensor, Tensor, Tensor]:
        x = torch.randint(0, 1000, (size, 6), generator=self.draw)
        w = torch.rand(size, 6, generator=self.draw, dtype=torch.float64)
        y = torch.rand(size, 3, generator=self.draw, dtype=torch.float64)
        return x.to(self.place), w.to(self.place), y.to(self.place)


def _copied(value: Any) -> Any:
    if isinstance(value, Tensor):
        value = value.detach()
        return (value.to_dense() if value.is_sparse else value).clone().cpu()
    if isinstance(value, dict):
        return {name: _copied(x) for name, x in value.items()}
    if isinstance(value, list | tuple):
        return [_copied(x) for x in value]
    return value


def start(model: Model, loop: Loop, accelerated: bool, place: torch.device) -> Run:
    torch.manual_seed(loop.seed)
    built = model.build().to(place)
    optimizers = _made(loop.optimizer, built)
    run = Run(loop, built, optimizers, accelerated, place=place)
    run.draw.manual_seed(loop.seed)
    if accelerated:
        hotrows.accelerate(built, optimizers, packing=loop.packing, always=True)
    makers = {
        "StepLR": lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5),
        "OneCycleLR": lambda optimizer: torch.optim.lr_scheduler.OneCycleLR(
            optimizer, 0.1, total_steps=100, cycle_momentum=False
        ),
        "LambdaLR": lambda optimizer: torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda step: step % 3 / 3
        ),
        "ExponentialLR": lambda optimizer: torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.8),
    }
    if loop.scheduler:
        run.schedulers = [makers[loop.scheduler](optimizer) for optimizer in optimizers]
    for name, number in loop.hooks:
        HOOKS[name](run, run.weight(number))
    return run


def _made(settings: Optimizer, model: nn.Module) -> list[torch.optim.Optimizer]:
    kind = WITH_CLOSURE.get(settings.kind) or getattr(torch.optim, settings.kind)
    params = list(model.parameters())
    # Copies, for schedulers write into tensors.
    both = [_copied(dict(group)) for group in (settings.options, settings.second or ())]
    if any(group.get("nesterov") for group in both):
        for group in both:
            group.pop("foreach", None)  # with it, SGD's step adds the momentum to `grad` itself
    options, second = both
    one, other = params[::2], params[1::2]
    if settings.second is None or not other:
        return [kind(params, **options)]
    if settings.apart:
        return [kind(one, **options), kind(other, **{"lr": 0.01, **second})]
    return [kind([{"params": one}, {"params": other, **second}], **options)]


def go(run: Run) -> None:
    """The whole loop; what it shows is in `run.seen`."""
    torch.set_num_threads(run.loop.threads)
    for number, step in enumerate(run.loop.steps):
        torch.manual_seed(run.loop.seed + number)
        run.model.step = number
        _zero(run, step)
        if step.how == "closure" or run.loop.optimizer.kind in WITH_CLOSURE:
            state = run.draw.get_state()
            for optimizer in run.optimizers:
                run.draw.set_state(state)
                run.see("closure", optimizer.step(partial(_closure, run, step)))
        else:
            _backward(run, step)
        for name, which in step.after:
            act = AFTER.get(name) or gradients.AFTER[name]
            run.see(f"after {name}", act(run, run.weight(which)))
        if step.how in ("step", "twice") and run.loop.optimizer.kind not in WITH_CLOSURE:
            for _ in range(1 + (step.how == "twice")):
                for optimizer in run.optimizers:
                    optimizer.step()
        for scheduler in run.schedulers:
            scheduler.step()
        for name, which in step.then:
            act = THEN.get(name) or gradients.THEN[name]
            run.see(f"then {name}", act(run, run.weight(which)))
    run.see("model", dict(run.model.state_dict()))
    run.see("optimizers", [optimizer.state_dict() for optimizer in run.optimizers])


def _zero(run: Run, step: Step) -> None:
    if step.zero != "forget":
        for optimizer in run.optimizers:
            optimizer.zero_grad(set_to_none=step.zero == "none")


def _loss(run: Run, size: int, step: Step) -> Tensor:
    x, w, y = run.batch(size)
    out = run.model(x, w)
    run.see("out", out)
    loss = F.mse_loss(torch.tanh(out), y, reduction="sum")  # bounded, so that rounding stays so
    for form, number in step.penalty:
        loss = loss + PENALTIES[form](run.weight(number))
    if not step.reads_late:
        run.see("loss", loss)
    run.losses.append(loss)
    return loss


def _closure(run: Run, step: Step) -> Tensor:
    _zero(run, step)
    return _backward(run, step).detach()


def _backward(run: Run, step: Step) -> Tensor:
    losses = []
    for size in step.sizes:
        loss = _loss(run, size, step)
        losses.append(loss)
        if step.backward == "each":
            loss.backward()
        elif step.backward == "twice":
            loss.backward(retain_graph=True)
            (2 * loss).backward()
        elif step.backward in gradients.BACKWARD:
            gradients.BACKWARD[step.backward](run.model, loss)
        elif step.backward == "grad":
            params = [p for p in run.model.parameters() if p.requires_grad]
            grads = torch.autograd.grad(loss, params, allow_unused=True)
            for p, grad in zip(params, grads, strict=True):
                run.see("autograd.grad", grad)
                if grad is not None:
                    p.grad = grad if p.grad is None else p.grad + grad
        elif step.backward == "second":
            params = [p for p in run.model.parameters() if p.requires_grad]
            grads = torch.autograd.grad(loss, params, allow_unused=True, create_graph=True)
            (loss + sum(g.square().sum() for g in grads if g is not None)).backward()
    if step.backward == "together":
        sum(losses).backward()  # type: ignore[union-attr]
    return losses[-1]


# ---- penalties


def _in_place(w: Tensor) -> Tensor:
    total = 0.01 * w[0].sum()
    total += 0.01 * w.norm() ** 2
    total *= 0.5
    return total


def _to_zeros(w: Tensor) -> Tensor:
    total = torch.zeros((1,), dtype=w.dtype, device=w.device)
    total += torch.sum(0.01 * torch.square(w))
    return total.sum()


PENALTIES: dict[str, Callable[[Tensor], Tensor]] = {
    "square.sum": lambda w: 0.01 * torch.square(w).sum(),
    "sum(l*square)": lambda w: torch.sum(0.01 * torch.square(w)),
    "pow": lambda w: 0.01 * w.pow(2).sum(),
    "**": lambda w: (0.01 * w**2).sum(),
    "**2.0 /": lambda w: (w**2.0).sum() / 2,
    "w*w": lambda w: 0.02 * torch.sum(w * w),
    "mul": lambda w: torch.mul(w, w).sum() * 0.01,
    "norm": lambda w: 0.1 * w.norm(),
    "norm2": lambda w: 0.1 * torch.norm(w, 2) ** 2,
    "norm p=2": lambda w: 0.1 * torch.norm(w, p=2),
    "fro": lambda w: 0.1 * torch.norm(w, p="fro"),
    "norm.pow": lambda w: w.norm(2).pow(2) * 0.01,
    "linalg.norm": lambda w: torch.linalg.norm(w) * 0.1,
    "linalg.vector_norm": lambda w: torch.linalg.vector_norm(w) ** 2 * 0.1,
    "vector_norm ord=1": lambda w: torch.linalg.vector_norm(w, ord=1) * 0.1,
    "matrix_norm": lambda w: torch.linalg.matrix_norm(w) * 0.1,
    "mean": lambda w: w.square().mean(),
    "torch.mean": lambda w: torch.mean(torch.pow(w, 2)),
    "mean of sums": lambda w: w.square().sum(1).mean() * 0.1,
    "sum dim -1": lambda w: torch.sum(w**2, dim=-1).sum() * 0.1,
    "l1": lambda w: 0.01 * w.abs().sum(),
    "norm 1": lambda w: 0.01 * torch.norm(w, 1),
    "norm(w, 2, 1)": lambda w: 0.1 * torch.norm(w, 2, 1).sum(),
    "norm dim": lambda w: 0.1 * w.norm(dim=-1).sum(),
    "elastic": lambda w: 0.01 * (w.abs() + w.square()).sum(),
    "sum dtype": lambda w: 0.01 * w.square().sum(dtype=torch.float64),
    "mse": lambda w: F.mse_loss(w, torch.zeros_like(w)),
    "negative": lambda w: -0.01 * w.square().sum(),
    "neg inside": lambda w: (-w.square()).sum() * 0.01,
    "plus one": lambda w: (w.square() + 1).sum() * 0.01,
    "sqrt": lambda w: torch.sqrt(torch.sum(w**2) + 1e-3),
    "fraction": lambda w: 1.0 / (1 + w.square().sum()),
    "dot": lambda w: 0.01 * torch.dot(w.reshape(-1), w.reshape(-1)),
    "einsum": lambda w: 0.01 * torch.einsum("ij,ij->", w, w),
    "detach": lambda w: w.square().detach().sum(),
    "some rows": lambda w: 0.1 * w[:2].square().sum(),
    "rows**2": lambda w: 0.1 * w[torch.tensor([0, 1, 1])].square().sum(),
    "stacked": lambda w: torch.stack([w.square().sum(), w.norm()]).sum() * 0.01,
    "list": lambda w: 0.01 * sum(p.square().sum() for p in [w, w]),
    "0 * square": lambda w: 0 * w.square().sum(),
    "0.5 * norm(2)**2 * norm": lambda w: 0.005 * w.norm(2) ** 2 * w.norm(),
    "cube": lambda w: 0.01 * w.pow(3).sum(),
    "half power": lambda w: (
        0.01 * (w**2).pow(0.75).sum() if w.numel() and bool((w != 0).all()) else w.sum()
    ),
    "tensor factor": lambda w: (torch.tensor(0.01, dtype=torch.float64) * w.square()).sum(),
    "no_grad": lambda w: w.detach().square().sum(),
    "parameters_to_vector": lambda w: 0.01 * nn.utils.parameters_to_vector([w]).square().sum(),
    "two of them": lambda w: 0.01 * (w.square() + w.square()).sum(),
    "difference": lambda w: 0.01 * (w - 0.1).square().sum(),
    "functional.normalize": lambda w: 0.01 * F.normalize(w, dim=1, eps=0.1).sum(),
    "max": lambda w: 0.01 * w.square().max(),
    "_foreach_norm": lambda w: 0.01 * torch.stack(torch._foreach_norm([w])).sum(),
    "/ no_grad norm": lambda w: 0.01 * w[:1].sum() / (1 + torch.no_grad()(w.norm)()),
    "* item": lambda w: 0.01 * w[0, 0] * w.square().sum().item(),
    "squares * squares": lambda w: 0.001 * w.square().sum() * (w * w).sum(),
    "1 - squares": lambda w: 1 - 0.01 * (w * w).sum(),
    "in place": _in_place,
    "zeros(1) +=": _to_zeros,
    "logsumexp": lambda w: 0.01 * torch.logsumexp(w.reshape(-1), 0),
    "orthogonal": lambda w: 0.01 * (w.T @ w).square().sum(),
    "cosine": lambda w: 0.01 * F.cosine_similarity(w[:-1], w[1:], eps=0.1).sum(),
    "mean of weight": lambda w: 0.1 * w.mean() ** 2,
    "clamped": lambda w: (0.01 * w.square().sum()).clamp(max=0.5),
    "spectral": lambda w: 0.01 * torch.linalg.norm(w, 2),
}


# ---- hooks


def _post_accumulate(run: Run, w: nn.Parameter) -> None:
    if w.requires_grad:
        w.register_post_accumulate_grad_hook(lambda p: run.see("hook", p.grad))


def _post_accumulate_scale(run: Run, w: nn.Parameter) -> None:
    if w.requires_grad:
        w.register_post_accumulate_grad_hook(lambda p: p.grad.mul_(0.5) and None)


def _gradient_hook(change: Callable[[Tensor], Any]) -> Callable[[Run, nn.Parameter], None]:
    def add(run: Run, w: nn.Parameter) -> None:
        if w.requires_grad:
            w.register_hook(change)

    return add


def _forward_hook(run: Run, w: nn.Parameter) -> None:
    for module in run.model.modules():
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.weight is w:
            module.register_forward_hook(lambda module, args, out: out * 0.5)


def _pre_forward_hook(run: Run, w: nn.Parameter) -> None:
    for module in run.model.modules():
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.weight is w:
            module.register_forward_pre_hook(lambda module, args: (args[0] * 0, *args[1:]))


def _backward_hook(run: Run, w: nn.Parameter) -> None:
    for module in run.model.modules():
        if isinstance(module, nn.Linear):
            module.register_full_backward_hook(lambda module, grad_input, grad_output: None)


HOOKS: dict[str, Callable[[Run, nn.Parameter], None]] = {
    "post accumulate": _post_accumulate,
    "post accumulate, scale": _post_accumulate_scale,
    "grad * 0.5": _gradient_hook(lambda grad: grad * 0.5),
    "grad.clamp": _gradient_hook(lambda grad: grad.clamp(-0.1, 0.1)),
    "grad.tanh": _gradient_hook(lambda grad: grad.tanh()),
    "grad, seen": _gradient_hook(lambda grad: None),
    "-grad": _gradient_hook(lambda grad: -grad),
    "grad.clone": _gradient_hook(lambda grad: grad.clone() / 2),
    "nan_to_num": _gradient_hook(lambda grad: torch.nan_to_num(grad)),
    "grad + 1": _gradient_hook(lambda grad: grad + 0.1),
    "forward": _forward_hook,
    "pre forward": _pre_forward_hook,
    "backward": _backward_hook,
}


# ---- between backward and the step


def _all(run: Run) -> list[nn.Parameter]:
    return list(run.model.parameters())


def _change(change: Callable[[nn.Parameter], Any]) -> Callable[[Run, nn.Parameter], Any]:
    def act(run: Run, w: nn.Parameter) -> Any:
        if w.grad is None:
            return None
        with torch.no_grad():
            change(w)
        return None

    return act


def _set_first(w: nn.Parameter) -> None:
    w.grad[0] = 0.0


def _replace(w: nn.Parameter) -> None:
    w.grad = w.grad * 0.5


def _set_data(w: nn.Parameter) -> None:
    w.grad.data = w.grad.data * 0.5


def _halve_data(run: Run, w: nn.Parameter) -> None:
    """Of a sparse gradient, plain PyTorch loses what is written to `data`."""
    if w.grad is not None and id(w) not in gradients.sparse_weights(run.model):
        w.grad.data.mul_(0.5)


def _drop(w: nn.Parameter) -> None:
    w.grad = None


def _dense(w: nn.Parameter) -> None:
    w.grad = torch.ones(w.shape, dtype=w.dtype)


def _written_between(w: nn.Parameter) -> None:
    w.mul_(0.9)


def _centralized(w: nn.Parameter) -> None:
    w.grad -= w.grad.mean(0, keepdim=True)


def _normalized(w: nn.Parameter) -> None:
    w.grad.div_(w.grad.norm() + 1)


def _ema(w: nn.Parameter) -> None:
    w.grad.lerp_(torch.zeros(w.shape, dtype=w.dtype), 0.5)


def _noise(w: nn.Parameter) -> None:
    w.grad.add_(torch.ones(w.shape, dtype=w.dtype), alpha=0.01)


def _addcmul(w: nn.Parameter) -> None:
    w.grad.addcmul_(w.detach(), w.detach(), value=0.1)


def _decayed(w: nn.Parameter) -> None:
    w.grad.add_(w, alpha=0.1)


def _clip_rows(w: nn.Parameter) -> None:
    w.grad /= w.grad.norm(dim=1, keepdim=True).clamp(min=1)


AFTER: dict[str, Callable[[Run, nn.Parameter], Any]] = {
    "clip norm": lambda run, w: nn.utils.clip_grad_norm_(_all(run), 0.5),
    "clip norm, each": lambda run, w: nn.utils.clip_grad_norm_(_all(run), 0.5, foreach=False),
    "clip norm, foreach": lambda run, w: nn.utils.clip_grad_norm_(_all(run), 0.5, foreach=True),
    "clip norm, inf": lambda run, w: nn.utils.clip_grad_norm_(_all(run), 0.1, norm_type=float("inf")),
    "clip norm, 1": lambda run, w: nn.utils.clip_grad_norm_(_all(run), 1.0, norm_type=1.0),
    "clip norm of one": lambda run, w: nn.utils.clip_grad_norm_(w, 0.1),
    "clip norm twice": lambda run, w: [nn.utils.clip_grad_norm_(_all(run), 0.5) for _ in range(2)],
    "clip value": lambda run, w: nn.utils.clip_grad_value_(_all(run), 0.05),
    "clip value, each": lambda run, w: nn.utils.clip_grad_value_(_all(run), 0.05, foreach=False),
    "get_total_norm": lambda run, w: nn.utils.get_total_norm(
        [p.grad for p in _all(run) if p.grad is not None]
    ),
    "read grads": lambda run, w: [None if p.grad is None else p.grad + 0 for p in _all(run)],
    "read grad norm": lambda run, w: None if w.grad is None else w.grad.norm(),
    "read grad norm 1": lambda run, w: None if w.grad is None else w.grad.norm(1),
    "read grad max": lambda run, w: None if w.grad is None else w.grad.abs().max(),
    "read grad row": lambda run, w: None if w.grad is None else w.grad[1],
    "read grad sum": lambda run, w: (
        None if w.grad is None else [w.grad.sum(), w.grad.mean(0), w.grad.T.sum(1)]
    ),
    "read grad list": lambda run, w: None if w.grad is None else w.grad.to_dense().tolist(),
    "grad numpy": lambda run, w: None if w.grad is None else w.grad.to_dense().numpy().copy().tolist(),
    "grad detach": lambda run, w: None if w.grad is None else w.grad.detach().clone().square().sum(),
    "grad isfinite": lambda run, w: None if w.grad is None else bool(torch.isfinite(w.grad).all()),
    "grad @": lambda run, w: None if w.grad is None else w.grad @ w.grad.t(),
    "grad * w": lambda run, w: None if w.grad is None else (w.grad * w).sum(),
    "grad to float": lambda run, w: None if w.grad is None else w.grad.float().sum(),
    "grad view": lambda run, w: None if w.grad is None else w.grad.reshape(-1)[:3],
    "grad deepcopy": lambda run, w: None if w.grad is None else copy.deepcopy(w.grad).sum(),
    "grad item": lambda run, w: None if w.grad is None else w.grad[0, 0].item(),
    "mul_": _change(lambda w: w.grad.mul_(0.5)),
    "div_": _change(lambda w: w.grad.div_(2)),
    "zero_": _change(lambda w: w.grad.zero_()),
    "detach_": _change(lambda w: w.grad.detach_()),
    "grad[0] = 0": _change(_set_first),
    "grad = grad * 0.5": _change(_replace),
    "grad.data = ": _change(_set_data),
    "grad.data.mul_": _halve_data,
    "grad = None": _change(_drop),
    "grad = ones": _change(_dense),
    "weight.mul_": _change(_written_between),
    "grad -= mean": _change(_centralized),
    "grad / norm": _change(_normalized),
    "lerp_": _change(_ema),
    "add_": _change(_noise),
    "addcmul_": _change(_addcmul),
    "add_ weight": _change(_decayed),
    "clip rows": _change(_clip_rows),
    "tanh_": _change(lambda w: w.grad.tanh_()),
    "copy_": _change(lambda w: w.grad.copy_(w.detach() * 0.1)),
    "clamp_": _change(lambda w: w.grad.clamp_(-0.05, 0.05)),
    "clamp_ above": _change(lambda w: w.grad.clamp_(min=0.01)),
    "nan_to_num_": _change(lambda w: w.grad.nan_to_num_()),
    "masked_fill_": _change(lambda w: w.grad.masked_fill_(w.grad.abs() < 0.01, 0.0)),
    "read weight": lambda run, w: w.detach().sum(),
}


# ---- behind the step


def _eval(run: Run, w: nn.Parameter) -> Any:
    run.model.eval()
    x, weights, _ = run.batch(4)
    with torch.no_grad():
        out = run.model(x, weights)
    run.model.train()
    return out


def _train_no_grad(run: Run, w: nn.Parameter) -> Any:
    x, weights, _ = run.batch(4)
    with torch.no_grad():
        return run.model(x, weights)


def _inference(run: Run, w: nn.Parameter) -> Any:
    x, weights, _ = run.batch(4)
    with torch.inference_mode():
        out = run.model(x, weights)
    return out.tolist()


def _inference_reads(run: Run, w: nn.Parameter) -> Any:
    with torch.inference_mode():
        states = [optimizer.state_dict()["state"] for optimizer in run.optimizers]
        return [w.norm().item(), w.square().sum().item(), dict(run.model.state_dict()), states]


def _inference_writes(run: Run, w: nn.Parameter) -> None:
    with torch.inference_mode():
        w.mul_(0.9)


def _in_thread(run: Run, w: nn.Parameter) -> Any:
    """An evaluation in a thread of its own, as far as a loop that waits for it can show one."""
    x, weights, _ = run.batch(4)
    results: list[Any] = []

    def evaluate() -> None:
        with torch.no_grad():
            results.extend([run.model(x, weights), w.norm().item()])

    thread = threading.Thread(target=evaluate)
    thread.start()
    thread.join()
    return results


def _last_loss(run: Run, w: nn.Parameter) -> Any:
    """The value of the last loss, behind the step."""
    return run.losses[-1].item() if run.losses else None


def _losses(run: Run, w: nn.Parameter) -> Any:
    """The values of the last losses, some of them steps ago."""
    return [loss.item() for loss in run.losses]


def _unused_forward(run: Run, w: nn.Parameter) -> Any:
    x, weights, _ = run.batch(4)
    return run.model(x, weights)


def _reload_model(run: Run, w: nn.Parameter) -> Any:
    state = copy.deepcopy(run.model.state_dict())
    run.model.load_state_dict(
        {name: x * 0.5 if x.is_floating_point() else x for name, x in state.items()}
    )


def _reload_assign(run: Run, w: nn.Parameter) -> Any:
    state = copy.deepcopy(run.model.state_dict())
    run.model.load_state_dict(state)
    return None


def _reload_optimizer(run: Run, w: nn.Parameter) -> Any:
    for optimizer in run.optimizers:
        optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))


def _state_dicts(run: Run, w: nn.Parameter) -> Any:
    return [dict(run.model.state_dict()), [optimizer.state_dict() for optimizer in run.optimizers]]


def _states(run: Run, w: nn.Parameter) -> Any:
    return [optimizer.state_dict()["state"] for optimizer in run.optimizers]


def _copied_model(run: Run, w: nn.Parameter) -> Any:
    other = copy.deepcopy(run.model)
    x, weights, _ = run.batch(4)
    other.eval()
    return other(x, weights)


def _again(run: Run, w: nn.Parameter) -> Any:
    if run.accelerated and getattr(run.model, "_hotrows", None) is not None:
        hotrows.restore(run.model)
        hotrows.accelerate(run.model, run.optimizers, packing=run.loop.packing, always=True)


def _pause(run: Run, w: nn.Parameter) -> Any:
    """Plain until somebody accelerates it again."""
    if run.accelerated and getattr(run.model, "_hotrows", None) is not None:
        hotrows.restore(run.model)


def _go_on(run: Run, w: nn.Parameter) -> Any:
    if run.accelerated and getattr(run.model, "_hotrows", None) is None:
        hotrows.accelerate(run.model, run.optimizers, packing=run.loop.packing, always=True)


def _write(write: Callable[[nn.Parameter], Any]) -> Callable[[Run, nn.Parameter], Any]:
    def act(run: Run, w: nn.Parameter) -> None:
        with torch.no_grad():
            write(w)

    return act


def _assign_row(w: nn.Parameter) -> None:
    w[0] = 0.25


def _assign_data(w: nn.Parameter) -> None:
    w.data = w.data * 0.5


def _assign_data_row(w: nn.Parameter) -> None:
    w.data[1] = 0.5


def _toggle(run: Run, w: nn.Parameter) -> None:
    w.requires_grad_(not w.requires_grad)


def _renorm(w: nn.Parameter) -> None:
    w.copy_(torch.renorm(w, 2, 0, 0.5))


def _learning_rate(run: Run, w: nn.Parameter) -> None:
    for optimizer in run.optimizers:
        for group in optimizer.param_groups:
            group["lr"] = group["lr"] * 0.7


def _decay(run: Run, w: nn.Parameter) -> None:
    sparse = any(getattr(module, "sparse", False) for module in run.model.modules())
    for group in run.optimizers[0].param_groups:
        if "weight_decay" in group and not sparse:  # plain PyTorch would refuse
            group["weight_decay"] = 0.05 if group["weight_decay"] == 0 else 0.0


def _betas(run: Run, w: nn.Parameter) -> None:
    for group in run.optimizers[0].param_groups:
        if "betas" in group:
            group["betas"] = (0.8, 0.95)
        if group.get("momentum"):
            group["momentum"] = 0.3


def _ema_model(run: Run, w: nn.Parameter) -> Any:
    if run.accelerated and getattr(run.model, "_hotrows", None) is None:
        pass
    averaged = [p.detach().clone() for p in run.model.parameters()]
    with torch.no_grad():
        torch._foreach_lerp_(averaged, [p.detach() for p in run.model.parameters()], 0.5)
    return averaged


# ---- the optimizer


def _clear(run: Run, w: nn.Parameter) -> Any:
    for optimizer in run.optimizers:
        optimizer.state.clear()


def _fresh_state(run: Run, w: nn.Parameter) -> Any:
    for optimizer in run.optimizers:
        optimizer.state = defaultdict(dict)


def _drop_state(run: Run, w: nn.Parameter) -> Any:
    for optimizer in run.optimizers:
        optimizer.state.pop(w, None)


def _read_state(run: Run, w: nn.Parameter) -> Any:
    return [dict(optimizer.state.get(w, {})) for optimizer in run.optimizers]


def _read_states(run: Run, w: nn.Parameter) -> Any:
    return [[dict(entry) for entry in optimizer.state.values()] for optimizer in run.optimizers]


def _on_states(change: Callable[[dict[str, Any], str], Any]) -> Callable[[Run, nn.Parameter], Any]:
    def act(run: Run, w: nn.Parameter) -> None:
        for optimizer in run.optimizers:
            for entry in optimizer.state.values():
                for name in list(entry):
                    if isinstance(entry[name], Tensor) and entry[name].dim() == 2:
                        change(entry, name)

    return act


def _assign_state(entry: dict[str, Any], name: str) -> None:
    entry[name] = entry[name] * 0.5 + 0.01


def _step_again(run: Run, w: nn.Parameter) -> None:
    for optimizer in run.optimizers:
        for entry in optimizer.state.values():
            if "step" in entry:
                entry["step"] = torch.ones_like(entry["step"])


def _copied_both(run: Run, w: nn.Parameter) -> None:
    """Goes on with copies, which are plain."""
    run.model, run.optimizers, run.schedulers = copy.deepcopy((run.model, run.optimizers, run.schedulers))


def _pickled_both(run: Run, w: nn.Parameter) -> Any:
    file = io.BytesIO()
    torch.save([optimizer.__getstate__() for optimizer in run.optimizers], file)
    file.seek(0)
    return [list(x["state"].values()) for x in torch.load(file, weights_only=False)]


def _shallow(run: Run, w: nn.Parameter) -> None:
    for optimizer in run.optimizers:
        if run.loop.optimizer.kind not in WITH_CLOSURE:
            copy.copy(optimizer).step()


def _setting(**settings: Any) -> Callable[[Run, nn.Parameter], None]:
    """Puts settings into the groups of optimizers that have them; plain PyTorch refuses some if sparse."""

    def act(run: Run, w: nn.Parameter) -> None:
        if any(getattr(module, "sparse", False) for module in run.model.modules()):
            return
        for optimizer in run.optimizers:
            for group in optimizer.param_groups:
                group.update({name: value for name, value in settings.items() if name in group})

    return act


def _momentum(momentum: float) -> Callable[[Run, nn.Parameter], None]:
    def act(run: Run, w: nn.Parameter) -> None:
        if run.loop.optimizer.kind == "SGD":
            _setting(momentum=momentum, nesterov=False)(run, w)

    return act


def _own_group(run: Run, w: nn.Parameter) -> None:
    for optimizer in run.optimizers:
        group = next((g for g in optimizer.param_groups if any(p is w for p in g["params"])), None)
        if group is not None and len(group["params"]) > 1 and run.loop.optimizer.kind != "LBFGS":
            group["params"] = [p for p in group["params"] if p is not w]
            optimizer.add_param_group({**group, "params": [w], "lr": 0.02})


def _load_edited(run: Run, w: nn.Parameter) -> None:
    for optimizer in run.optimizers:
        state = copy.deepcopy(optimizer.state_dict())
        for group in state["param_groups"]:
            group["lr"] = group["lr"] * 0.9
            group.update({"maximize": not group["maximize"]} if "maximize" in group else {})
        optimizer.load_state_dict(state)


def _halve(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    for group in optimizer.param_groups:
        for p in group["params"]:
            if p.grad is not None:
                p.grad.mul_(0.5)


def _pre_hook(run: Run, w: nn.Parameter) -> None:
    run.handles.append(run.optimizers[0].register_step_pre_hook(_halve))


def _pre_hook_clips(run: Run, w: nn.Parameter) -> None:
    def clip(optimizer: Any, args: Any, kwargs: Any) -> None:
        run.see("norm", nn.utils.clip_grad_norm_(_all(run), 0.3))

    run.handles.append(run.optimizers[0].register_step_pre_hook(clip))


def _post_hook(run: Run, w: nn.Parameter) -> None:
    def see(optimizer: Any, args: Any, kwargs: Any) -> None:
        run.see("weights", [w, [p.grad is None for p in _all(run)]])

    run.handles.append(run.optimizers[0].register_step_post_hook(see))


def _global_hook(run: Run, w: nn.Parameter) -> None:
    def halve(optimizer: Any, args: Any, kwargs: Any) -> None:
        if any(optimizer is one for one in run.optimizers):
            _halve(optimizer, args, kwargs)

    run.handles.append(register_optimizer_step_pre_hook(halve))


def _wrapped_step(run: Run, w: nn.Parameter) -> None:
    optimizer, plain = run.optimizers[0], run.optimizers[0].step

    def step(closure: Any = None) -> Any:
        run.see("gradient in a wrapped step", w.grad is None)
        return plain() if closure is None else plain(closure)

    optimizer.step = step  # type: ignore[method-assign, assignment]


def _detached_write(run: Run, w: nn.Parameter) -> Any:
    w.detach().mul_(0.9)


def _foreach_write(run: Run, w: nn.Parameter) -> Any:
    with torch.no_grad():
        torch._foreach_mul_(list(run.model.parameters()), 0.95)


def _swa(run: Run, w: nn.Parameter) -> Any:
    average = torch.optim.swa_utils.AveragedModel(run.model)
    average.update_parameters(run.model)
    average.update_parameters(run.model)
    return [p.detach() for p in average.module.parameters()]


THEN: dict[str, Callable[[Run, nn.Parameter], Any]] = {
    "eval": _eval,
    "no_grad": _train_no_grad,
    "inference": _inference,
    "inference, reads": _inference_reads,
    "inference, writes": _inference_writes,
    "in a thread": _in_thread,
    "last loss": _last_loss,
    "losses": _losses,
    "norm": lambda run, w: w.norm(),
    "no_grad squares": lambda run, w: torch.no_grad()(lambda: (w * w).sum().item())(),
    "unused forward": _unused_forward,
    "reload model": _reload_model,
    "reload same": _reload_assign,
    "reload optimizer": _reload_optimizer,
    "state dicts": _state_dicts,
    "states": _states,
    "copy": _copied_model,
    "again": _again,
    "pause": _pause,
    "go on": _go_on,
    "mul_": _write(lambda w: w.mul_(0.9)),
    "w[0] =": _write(_assign_row),
    "data =": _write(_assign_data),
    "data[1] =": _write(_assign_data_row),
    "data.mul_": _write(lambda w: w.data.mul_(0.9)),
    "zero_": _write(lambda w: w.zero_()),
    "clamp_": _write(lambda w: w.clamp_(-1, 1)),
    "renorm": _write(_renorm),
    "init": _write(lambda w: nn.init.ones_(w)),
    "toggle": _toggle,
    "lr": _learning_rate,
    "decay": _decay,
    "betas": _betas,
    "clear": _clear,
    "fresh state": _fresh_state,
    "drop state": _drop_state,
    "read state": _read_state,
    "read states": _read_states,
    "state.mul_": _on_states(lambda entry, name: entry[name].mul_(0.5)),
    "state.data": _on_states(lambda entry, name: entry[name].data.add_(0.01)),
    "state =": _on_states(_assign_state),
    "state step": _step_again,
    "go on with copies": _copied_both,
    "pickled": _pickled_both,
    "shallow copy": _shallow,
    "momentum": _momentum(0.9),
    "no momentum": _momentum(0.0),
    "maximize": _setting(maximize=True),
    "minimize": _setting(maximize=False),
    "dampening": _setting(dampening=0.5, nesterov=False),
    "no amsgrad": _setting(amsgrad=False),
    "own group": _own_group,
    "load edited": _load_edited,
    "pre hook": _pre_hook,
    "pre hook, clips": _pre_hook_clips,
    "post hook": _post_hook,
    "global hook": _global_hook,
    "wrapped step": _wrapped_step,
    "averaged": _ema_model,
    "detach().mul_": _detached_write,
    "foreach mul_": _foreach_write,
    "swa": _swa,
    "sum": lambda run, w: w.sum(),
    "row": lambda run, w: w[1],
    "read": lambda run, w: w.detach(),
    "numpy": lambda run, w: w.detach().numpy().tolist(),
    "tolist": lambda run, w: w.tolist(),
    "item": lambda run, w: w[0, 0].item(),
    "data": lambda run, w: w.data.clone(),
    "repr": lambda run, w: len(repr(w)) > 0,
    "isnan": lambda run, w: bool(torch.isnan(w).any()),
    "equal": lambda run, w: torch.equal(w, w.detach()),
    "module": lambda run, w: list(run.model.parameters()),
}
