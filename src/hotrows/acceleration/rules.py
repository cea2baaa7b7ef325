"""Rules: what an optimizer of PyTorch does to a row, as the numbers of each of its steps.

A rule says which states a row has, and turns a parameter group into the eight numbers that the
kernels of `ops.deferred` take for one step. `rule_of` finds the rule of an optimizer, or says why
there is none.

For options without a kernel (amsgrad, centered, maximize ..) and other elementwise optimizers of
PyTorch, the optimizer itself steps the rows alone: slower, and exact (`BY_OPTIMIZER`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from hotrows.optim import Numbers, adam_numbers, padded, sgd_numbers

Group = Mapping[str, Any]

SHARED = (
    "another parameter or buffer has its memory, too: give one of them a copy, weight.detach().clone(), "
    "or make them one parameter"
)
BY_OPTIMIZER = "by_optimizer"  # the kind of rule that runs the optimizer itself on the rows


@dataclass(frozen=True)
class Rule:
    """The update of a row.

    kind: name of the kernel in `ops.deferred`, or `BY_OPTIMIZER`. states: names of a row's states, as in
    `optimizer.state`. numbers: a function of (group, t, c) that returns the numbers of step t (from 1),
    with c times the weight added to the gradient in addition to the group's weight decay.
    lazy: a row that a batch does not touch does not change (SparseAdam).
    """

    kind: str
    states: tuple[str, ...]
    numbers: Callable[[Group, int, float], Numbers] | None = None
    lazy: bool = False


def rule_of(optimizer: Optimizer, group: Group, weight: Tensor, sparse: bool) -> Rule | str:
    """Returns the rule of an optimizer for a table, or the reason why there is none.

    sparse: the table's module makes sparse gradients.
    """
    kind = type(optimizer)
    if kind not in _RULES and kind is not torch.optim.SparseAdam:
        return f"{kind.__name__} does not go element by element, or is not one of PyTorch's own"
    if sparse and kind not in _WITH_SPARSE:
        return f"sparse=True, and {kind.__name__} takes no sparse gradients"
    if weight.dtype not in (torch.float32, torch.float64):
        return f"its weights are {str(weight.dtype).removeprefix('torch.')}, not float32 or float64"
    return rule_of_settings(optimizer, group)


def sharing_memory(model: nn.Module) -> set[int]:
    """The ids of the parameters and buffers whose memory another one has, too, wholly or in part."""
    spans = []
    for tensor in (*model.parameters(), *model.buffers()):
        is_plain = type(tensor) in (Tensor, nn.Parameter) and tensor.layout == torch.strided
        if is_plain and tensor.numel() and not tensor.is_meta:
            last = sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride(), strict=True))
            begin, device = tensor.data_ptr(), str(tensor.device)
            spans.append((device, begin, begin + (last + 1) * tensor.element_size(), id(tensor)))
    shared, ends = set(), ("", 0, 0)  # the span so far that ends last
    for device, begin, end, key in sorted(spans):
        if device == ends[0] and begin < ends[1]:
            shared |= {key, ends[2]}
        ends = max(ends, (device, end, key))
    return shared


def rule_of_settings(optimizer: Optimizer, group: Group) -> Rule | str:
    """Returns the rule of the present settings of an optimizer that has rules, or why there is none."""
    if group.get("differentiable") or group.get("capturable"):
        return "its optimizer is differentiable or capturable"
    if isinstance(optimizer, torch.optim.SparseAdam):
        rule = Rule("adam", ("exp_avg", "exp_avg_sq"), _sparse_adam, lazy=True)
        return "SparseAdam(maximize=True)" if group.get("maximize") else rule
    return _RULES[type(optimizer)](group) or Rule(BY_OPTIMIZER, ())


def _sgd(group: Group) -> Rule | None:
    if group["maximize"]:
        return None
    return Rule("sgd", ("momentum_buffer",) if group["momentum"] else (), _sgd_numbers)


def _sgd_numbers(group: Group, t: int, c: float) -> Numbers:
    # The first gradient fills the buffer undamped; without momentum there is none.
    damped = 1 - group["dampening"] if t > 1 and group["momentum"] else 1.0
    decay = c + group["weight_decay"]
    return sgd_numbers(group["lr"], group["momentum"], damped, group["nesterov"], decay)


def _adagrad(group: Group) -> Rule | None:
    return None if group["maximize"] else Rule("adagrad", ("sum",), _adagrad_numbers)


def _adagrad_numbers(group: Group, t: int, c: float) -> Numbers:
    rate = float(group["lr"]) / (1 + (t - 1) * group["lr_decay"])
    return _numbers(group, c, rate, group["eps"])


def _rmsprop(group: Group) -> Rule | None:
    if group["momentum"] or group["centered"] or group["maximize"]:
        return None
    return Rule("rmsprop", ("square_avg",), _rmsprop_numbers)


def _rmsprop_numbers(group: Group, t: int, c: float) -> Numbers:
    return _numbers(group, c, group["lr"], group["alpha"], group["eps"])


def _adam(group: Group) -> Rule | None:
    if group["amsgrad"] or group["maximize"]:
        return None
    return Rule("adam", ("exp_avg", "exp_avg_sq"), _adam_numbers)


def _adam_numbers(group: Group, t: int, c: float) -> Numbers:
    lr, decay, (beta1, beta2) = float(group["lr"]), group["weight_decay"], group["betas"]
    if group.get("decoupled_weight_decay"):
        return adam_numbers(t, lr, beta1, beta2, group["eps"], c, 1 - lr * decay)
    return adam_numbers(t, lr, beta1, beta2, group["eps"], c + decay)


def _sparse_adam(group: Group, t: int, c: float) -> Numbers:
    beta1, beta2 = group["betas"]
    rate = float(group["lr"]) * (1 - beta2**t) ** 0.5 / (1 - beta1**t)
    return padded(c, 1.0, rate, beta1, beta2, group["eps"], 1.0)


def _numbers(group: Group, c: float, *settings: float) -> Numbers:
    return padded(c + group["weight_decay"], 1.0, *settings)


_RULES: dict[type, Callable[[Group], Rule | None]] = {
    torch.optim.SGD: _sgd,
    torch.optim.Adagrad: _adagrad,
    torch.optim.RMSprop: _rmsprop,
    torch.optim.Adam: _adam,
    torch.optim.AdamW: _adam,
    torch.optim.Adamax: lambda group: None,
    torch.optim.Adadelta: lambda group: None,
    torch.optim.NAdam: lambda group: None,
    torch.optim.RAdam: lambda group: None,
}
_WITH_SPARSE = (torch.optim.SGD, torch.optim.Adagrad, torch.optim.SparseAdam)


@dataclass(frozen=True)
class DeferredStep:
    """One step of an optimizer that is run on rows, to be repeated for rows that were not in its batch.

    group: the optimizer's settings. has_begun: rows had states before it. shared: the state before it
    that all rows have in common. decay: factor with which the weight was added to the gradient.
    """

    group: dict[str, Any]
    has_begun: bool
    shared: dict[str, Any]
    decay: float

    @classmethod
    def with_settings(
        cls, group: Group, has_begun: bool, shared: dict[str, Any], decay: float
    ) -> DeferredStep:
        """Makes the step with the present settings of a group."""
        settings = {
            name: value.clone() if isinstance(value, Tensor) else value  # schedulers write into them
            for name, value in group.items()
            if name != "params"
        }
        return cls(settings, has_begun, shared, decay)


class _ExactCount(dict[str, Any]):
    """A state whose count of steps is float64: while a graph is captured, optimizers compute with the
    tensor, not with its number, and 1 - beta ** step would be off by up to 1e-6 in float32."""

    def __setitem__(self, name: str, value: Any) -> None:
        is_count = name == "step" and isinstance(value, Tensor)
        super().__setitem__(name, value.double() if is_count else value)


def stepped(
    kind: type[Optimizer], step: DeferredStep, weights: Tensor, states: Mapping[str, Tensor], grad: Tensor
) -> tuple[Tensor, dict[str, Tensor], dict[str, Any]]:
    """Returns rows after a step of an optimizer of `kind`: weights [U, D], states, and shared state.

    states: of these rows, [U, D] each. grad: [U, D].
    """
    rows = torch.nn.Parameter(weights.clone())
    alone = kind([rows])  # type: ignore[call-arg]
    alone.param_groups[0].update({**step.group, "params": [rows], "foreach": False})
    alone.state[rows] = _ExactCount()
    for name, value in (*step.shared.items(), *states.items()) if step.has_begun else ():
        alone.state[rows][name] = value.clone() if isinstance(value, Tensor) else value
    rows.grad = grad + step.decay * weights if step.decay else grad
    kind.step.__wrapped__(alone)  # type: ignore[attr-defined]  # without hooks on all optimizers
    after: dict[str, Any] = dict(alone.state[rows])
    if isinstance(count := after.get("step"), Tensor):
        after["step"] = count.float()
    of_rows = {n: x for n, x in after.items() if isinstance(x, Tensor) and x.dim() == 2}
    return rows.detach(), of_rows, {n: x for n, x in after.items() if n not in of_rows}


def divided(values: Mapping[str, Any], rule: Rule) -> tuple[dict[str, Tensor], dict[str, Any], int]:
    """Divides an entry into the states of rows, what rows share, and the number of steps."""
    of_rows = {name: x for name, x in values.items() if isinstance(x, Tensor) and x.dim() == 2}
    num_steps = int(values["step"]) if "step" in values else int(bool(of_rows))
    if rule.kind == BY_OPTIMIZER:
        return of_rows, {name: x for name, x in values.items() if name not in of_rows}, num_steps
    return {name: of_rows[name] for name in rule.states if name in of_rows}, {}, num_steps


def is_known(
    values: Mapping[str, Any],
    states: Mapping[str, Any],
    rule: Rule,
    optimizer: Optimizer,
    weights: Tensor,
) -> bool:
    """True if a rule can step rows with what `optimizer.state` has; if not, PyTorch steps, or says why.

    values: of the entry; states: those of them that rows have.
    """
    if not all(_is_like(state, weights) for state in states.values()):
        return False
    if rule.kind == BY_OPTIMIZER or not values:
        return bool(values) or not isinstance(optimizer, torch.optim.Adagrad)
    missing = set(rule.states) - set(states)
    if rule.kind == "sgd":
        return not missing & set(values)
    return not missing and "step" in values


def _is_like(state: Tensor, weights: Tensor) -> bool:
    """True if a state lies in memory as kernels take it."""
    if type(state) is not Tensor:
        return False
    is_alike = (state.shape, state.dtype, state.device) == (weights.shape, weights.dtype, weights.device)
    return is_alike and (state.shape[1] == 1 or state.stride(1) == 1)
