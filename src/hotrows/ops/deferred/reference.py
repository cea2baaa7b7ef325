"""Deferred dense optimizers in plain PyTorch: the specification of `ops.deferred`, in any float dtype.

A row that is behind makes every step that it has missed, one after the other, with the gradient
c * w. All rows of a target make a step together; those whose first missed step is later are masked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from hotrows.ops.rows.reference import bags_of, sum_gradients


@dataclass(frozen=True)
class Target:
    """The memory of one table's rows, and the steps that they may have to catch up with.

    weights: [R, D] float32 or float64; columns contiguous, any stride between rows.
    states: one [R, D] tensor for each state of the kind, in the dtype of the weights, with equal strides.
    last: [R] int32, number of steps that each row has made; -1: no gradient has reached it (its states
        have their initial values, and only decay can have moved it).
    steps: [K, 8] float64, the numbers of steps first, first + 1, ...; there may be more than needed. On a
        device, `history.DeviceSteps`.
    now: number of steps that the table has made.
    first_decay: the first step that moves an untouched row (c != 0 or shrink != 1); `now` if none does.
    """

    weights: Tensor
    states: tuple[Tensor, ...]
    last: Tensor
    steps: Tensor
    first: int
    now: int
    first_decay: int

    LINE: ClassVar[tuple[str, ...]] = (
        *("weights", "weights_stride", "first_state", "second_state", "states_stride", "lasts"),
        *("lasts_stride", "num_rows", "steps", "first", "now", "first_decay"),
    )

    def until(self, step: int) -> Target:
        """The table as it was when it had made `step` steps, for rows that have made no more."""
        return replace(self, now=step, first_decay=min(self.first_decay, step))

    def line(self) -> tuple[int, ...]:
        """The numbers of `LINE`, which the core reads: addresses, strides in bytes, counts of steps."""
        weights, states, last = self.weights, self.states, self.last
        size = weights.element_size()
        return (
            weights.data_ptr(),
            weights.stride(0) * size,
            states[0].data_ptr() if states else 0,
            states[1].data_ptr() if len(states) > 1 else 0,
            states[0].stride(0) * size if states else 0,
            last.data_ptr(),
            last.stride(0) * 4,
            last.shape[0],
            self.steps.data_ptr(),
            self.first,
            self.now,
            self.first_decay,
        )


def catch_up(
    kind: str, targets: Sequence[Target], slots: Tensor, bounds: Tensor, squares: Tensor | None = None
) -> None:
    for t, target in enumerate(targets):
        rows = slots[int(bounds[t]) : int(bounds[t + 1])]
        _catch_up(kind, target, rows, None if squares is None else squares[t])


def catch_up_all(kind: str, targets: Sequence[Target], squares: Tensor | None = None) -> None:
    for t, target in enumerate(targets):
        rows = torch.arange(len(target.last), device=target.last.device)
        _catch_up(kind, target, rows, None if squares is None else squares[t])


def sums_of_squares(targets: Sequence[Target]) -> list[float]:
    norms = [torch.linalg.vector_norm(target.weights, dtype=torch.float64) for target in targets]
    return torch.stack(norms).square().cpu().tolist() if norms else []


def products(targets: Sequence[Target], slots: Tensor, bounds: Tensor, sums: Tensor) -> list[Tensor]:
    begin, ends = int(bounds[0]), bounds - bounds[0]
    rows = [slots[int(bounds[t]) : int(bounds[t + 1])] for t in range(len(targets))]
    weights = torch.cat(
        [target.weights[of_table] for target, of_table in zip(targets, rows, strict=True)]
    )
    sums = sums[begin : begin + len(weights)].double()
    both = [(sums * other).sum(1) for other in (sums, weights.double())]  # [U] each
    return [torch.cat([x.new_zeros(1), x.cumsum(0)])[ends].diff() for x in both]


def update(
    kind: str,
    targets: Sequence[Target],
    slots: Tensor,
    bounds: Tensor,
    order: Tensor,
    starts: Tensor,
    bags: Tensor | None,
    weights: Tensor | None,
    grad: Tensor,
    scales: Tensor,
    squares: Tensor | None = None,
) -> None:
    catch_up(kind, targets, slots, bounds, squares)
    for t, target in enumerate(targets):
        begin, end = int(bounds[t]), int(bounds[t + 1])
        rows = slots[begin:end]
        if begin == end:
            continue
        g = sum_gradients(grad, order, starts[begin : end + 1], bags, weights)  # [U, D] of this target
        g = g * scales[t].to(grad.dtype)
        numbers = target.steps[target.now - target.first].tolist()
        before = target.weights[rows]
        states = [state[rows] for state in target.states]
        w = _STEPS[kind](numbers, before, states, g)
        _write(target, rows, w, states)
        target.last[rows] = target.now + 1
        if squares is not None:
            squares[t] += _change(before, w)


def lookup(
    targets: Sequence[Target],
    slots: Tensor,
    bounds: Tensor,
    inverse: Tensor,
    bag_starts: Tensor | None,
    weights: Tensor | None,
) -> Tensor:
    parts = [
        target.weights[slots[int(bounds[t]) : int(bounds[t + 1])]] for t, target in enumerate(targets)
    ]
    num_padding = slots.numel() - int(bounds[-1]) + 1  # rows behind the last bound, and -1, read zeros
    distinct = torch.cat([*parts, parts[0].new_zeros(num_padding, parts[0].shape[1])])  # [U + 1, D]
    rows = distinct[inverse.long()]  # [N, D]
    if weights is not None:
        rows = rows * weights[:, None]
    if bag_starts is None:
        return rows
    out = rows.new_zeros(bag_starts.numel() - 1, rows.shape[1])
    return out.index_add_(0, bags_of(bag_starts), rows)


def _catch_up(kind: str, target: Target, rows: Tensor, square: Tensor | None) -> None:
    if kind == "none":
        return
    last = target.last[rows].long()
    begun = torch.where(last < 0, target.first_decay, last).clamp(min=target.first)
    behind = begun < target.now
    rows, begun = rows[behind], begun[behind]
    if not len(rows):
        return
    before = w = target.weights[rows]
    states = [state[rows] for state in target.states]
    for t in range(int(begun.min()), target.now):
        moved = [state.clone() for state in states]
        stepped = _STEPS[kind](target.steps[t - target.first].tolist(), w, moved, w.new_zeros(()))
        has_begun = (begun <= t)[:, None]
        w = torch.where(has_begun, stepped, w)
        states = [torch.where(has_begun, new, old) for new, old in zip(moved, states, strict=True)]
    _write(target, rows, w, states)
    target.last[rows] = target.now
    if square is not None:
        square += _change(before, w)


def _write(target: Target, rows: Tensor, w: Tensor, states: list[Tensor]) -> None:
    target.weights[rows] = w
    for state, new in zip(target.states, states, strict=True):
        state[rows] = new


def _change(before: Tensor, after: Tensor) -> Tensor:
    return after.double().square().sum() - before.double().square().sum()


# One step: numbers, w [U, D], states (changed in place), gradient -> w. As torch.optim writes it.


def _sgd(numbers: list[float], w: Tensor, states: list[Tensor], g: Tensor) -> Tensor:
    c, shrink, lr, momentum, undamped, nesterov = numbers[:6]
    g = g + c * w
    if states:
        buffer = states[0].mul_(momentum).add_(g, alpha=undamped)
        g = g + momentum * buffer if nesterov else buffer
    return w * shrink - lr * g


def _adagrad(numbers: list[float], w: Tensor, states: list[Tensor], g: Tensor) -> Tensor:
    c, shrink, lr, eps = numbers[:4]
    g = g + c * w
    total = states[0].addcmul_(g, g)
    return (w * shrink).addcdiv(g, total.sqrt().add_(eps), value=-lr)


def _rmsprop(numbers: list[float], w: Tensor, states: list[Tensor], g: Tensor) -> Tensor:
    c, shrink, lr, alpha, eps = numbers[:5]
    g = g + c * w
    average = states[0].mul_(alpha).addcmul_(g, g, value=1 - alpha)
    return (w * shrink).addcdiv(g, average.sqrt().add_(eps), value=-lr)


def _adam(numbers: list[float], w: Tensor, states: list[Tensor], g: Tensor) -> Tensor:
    c, shrink, step_size, beta1, beta2, eps, correction = numbers[:7]
    g = g + c * w
    average = states[0].lerp_(g, 1 - beta1)
    square = states[1].mul_(beta2).addcmul_(g, g, value=1 - beta2)
    return (w * shrink).addcdiv(average, (square.sqrt() / correction).add_(eps), value=-step_size)


_STEPS: dict[str, Callable[[list[float], Tensor, list[Tensor], Tensor], Tensor]] = {
    "sgd": _sgd,
    "adagrad": _adagrad,
    "rmsprop": _rmsprop,
    "adam": _adam,
}
