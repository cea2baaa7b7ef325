"""Deferred dense optimizers, whose rows move when they are read: catch-up, update and lookup over tables.

A dense optimizer moves every row at every step, with or without a gradient: moments fade, weight decay
and L2 terms pull. A row that no batch reads may make these steps later, all at once, as long as it has
made them before it is read: `catch_up`. The result is that of the dense optimizer, to rounding.

    row 7    touched . . . . . . . read       last = 3: it has made steps 0, 1, 2
    step        2    3 4 5 6 7 8 9            now = 9: steps 3 to 8 are made when it is read

All rows of a table make a step with one set of numbers: the gradient is g + c * w, with g = 0 for rows
that the batch did not read; then w *= shrink; then the rule of torch.optim.

    kind       numbers of a step, 8 float64 (those not named are 0)             states
    "sgd"      c, shrink, lr, momentum, 1 - dampening, nesterov (0 or 1)        buffer, or none
    "adagrad"  c, shrink, lr / (1 + step * lr_decay), eps                       sum
    "rmsprop"  c, shrink, lr, alpha, eps                                        square_avg
    "adam"     c, shrink, lr / bias_correction1, beta1, beta2, eps,
               sqrt(bias_correction2)                                           exp_avg, exp_avg_sq
    "none"     nothing is ever deferred

c is weight_decay plus the coefficients of L2 terms; shrink is the factor of decoupled weight decay (1
without it). SGD's first step takes the gradient undamped: its 1 - dampening is 1.

CPU tensors of float32 or float64 go to the native core, those of a GPU to Triton kernels (`on_device`),
all other tensors to the reference (`deferred.reference`). csrc/replay.h says what a deferred step costs
in the core, and when a row needs no further ones.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hotrows.ops.deferred import on_device, reference
from hotrows.ops.deferred.reference import Target
from hotrows.runtime import native

_KINDS = native.codes("deferred_rule", "sgd", "adagrad", "rmsprop", "adam")
_DTYPES = (torch.float32, torch.float64)
_TARGET = native.codes("deferred_target", *Target.LINE)
_NO_NUMBERS = torch.empty(0, dtype=torch.int64)

__all__ = [
    "PackedTargets",
    "Target",
    "catch_up",
    "catch_up_all",
    "lookup",
    "pack_targets",
    "products",
    "sums_of_squares",
    "update",
]


@dataclass(frozen=True)
class PackedTargets:
    """Targets in the form that the core reads, made once for several calls; see `pack_targets`."""

    targets: tuple[Target, ...]
    numbers: Tensor  # [T, 12] int64
    on_core: bool  # False: these tensors are the reference's, or those of a GPU

    @property
    def slow(self) -> Any:
        """The implementation for tensors that the core does not compute on."""
        return on_device if self.targets[0].weights.is_cuda else reference


def pack_targets(targets: Sequence[Target] | PackedTargets) -> PackedTargets:
    """Packs targets as every function of this module does first: about 2 microseconds a table.

    A caller that stores the result saves that time in later calls; it is valid while the tensors
    keep their memory.
    """
    if isinstance(targets, PackedTargets):
        return targets
    if targets and targets[0].weights.is_cuda:
        return PackedTargets(tuple(targets), _NO_NUMBERS, False)
    numbers = array("q")
    for target in targets:
        numbers.extend(target.line())
    packed = torch.frombuffer(numbers, dtype=torch.int64) if numbers else _NO_NUMBERS
    tensors = [t for target in targets[:1] for t in (target.weights, target.last)]
    return PackedTargets(tuple(targets), packed.view(-1, len(_TARGET)), _on_core(*tensors))


def catch_up(
    kind: str,
    targets: Sequence[Target] | PackedTargets,
    slots: Tensor,
    bounds: Tensor,
    squares: Tensor | None = None,
) -> None:
    """Brings the rows that are read to `now`.

    slots: [U] int64, distinct rows of the targets: those of target t are slots[bounds[t]:bounds[t + 1]].
    bounds: [T + 1] int64.
    squares: [T] float64, or None: the change of each target's sum of squared weights is added to it.
    """
    packed = pack_targets(targets)
    if kind == "none" or not packed.targets:
        return
    if not packed.on_core:
        packed.slow.catch_up(kind, packed.targets, slots, bounds, squares)
        return
    native.call("deferred_catch_up", _KINDS[kind], *_tables(packed), slots, bounds, squares)


def catch_up_all(
    kind: str, targets: Sequence[Target] | PackedTargets, squares: Tensor | None = None
) -> None:
    """Brings every row of the targets to `now`. squares: as in `catch_up`."""
    packed = pack_targets(targets)
    if kind == "none" or not packed.targets:
        return
    if not packed.on_core:
        packed.slow.catch_up_all(kind, packed.targets, squares)
        return
    native.call("deferred_catch_up_all", _KINDS[kind], *_tables(packed), squares)


def sums_of_squares(targets: Sequence[Target] | PackedTargets) -> list[float]:
    """By target, the sum of its squared weights, of every row as it is stored."""
    packed = pack_targets(targets)
    if not packed.targets or not packed.on_core:
        return reference.sums_of_squares(packed.targets)
    squares = torch.zeros(len(packed.targets), dtype=torch.float64)
    native.call("deferred_squares", *_tables(packed), squares)
    return squares.tolist()


def products(
    targets: Sequence[Target] | PackedTargets, slots: Tensor, bounds: Tensor, sums: Tensor
) -> list[list[float]]:
    """By target, the sum of sums * sums, and of sums * weights: of rows [U, D] and as they are stored.

    slots, bounds: as in `catch_up`. The targets must not be empty.
    """
    packed = pack_targets(targets)
    if not packed.on_core:
        return [x.cpu().tolist() for x in reference.products(packed.targets, slots, bounds, sums)]
    both = torch.zeros(2, len(packed.targets), dtype=torch.float64)
    sums = sums.to(packed.targets[0].weights.dtype).contiguous()
    native.call("deferred_products", *_tables(packed), slots, bounds, sums, *both)
    return both.tolist()


def update(
    kind: str,
    targets: Sequence[Target] | PackedTargets,
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
    """Brings the rows to `now` and makes step `now` with their gradients; then last = now + 1.

    order [N], starts [U + 1], bags [N] or None, int32, and weights [N] or None as in `PackPlan`: the
    gradient of row u is the sum over its run of weights[n] * grad[bag of n], times scales[t] of its
    target. grad: [M, D], weights: of the tables' dtype; scales: [T] float64. slots, bounds, squares:
    as in `catch_up`; rows before the first bound or behind the last one are left alone.
    """
    packed = pack_targets(targets)
    if not packed.targets:
        return
    dtype = packed.targets[0].weights.dtype
    grad = grad.to(dtype).contiguous()
    weights = None if weights is None else weights.to(dtype).contiguous()
    if not packed.on_core:
        packed.slow.update(
            kind, packed.targets, slots, bounds, order, starts, bags, weights, grad, scales, squares
        )
        return
    native.call(
        "deferred_update", _KINDS[kind], *_tables(packed), slots, bounds,
        order, starts, bags, weights, grad, scales, squares,
    )  # fmt: skip


def lookup(
    targets: Sequence[Target] | PackedTargets,
    slots: Tensor,
    bounds: Tensor,
    inverse: Tensor,
    bag_starts: Tensor | None,
    weights: Tensor | None,
) -> Tensor:
    """Returns the vector of each bag, [M, D]: the sum of weights[n] * row slots[inverse[n]].

    inverse [N] int32, bag_starts [M + 1] int32 or None (one id per bag), weights [N] or None as in
    `PackPlan`. Rows are read as stored: call `catch_up` before. On a device, ids of -1 and those of rows
    behind the last bound are padding, and read zeros.
    """
    packed = pack_targets(targets)
    table = packed.targets[0].weights
    weights = None if weights is None else weights.to(table.dtype).contiguous()
    if not packed.on_core:
        return packed.slow.lookup(packed.targets, slots, bounds, inverse, bag_starts, weights)
    num_bags = inverse.numel() if bag_starts is None else bag_starts.numel() - 1
    scratch = table.new_empty(slots.numel(), table.shape[1])
    out = table.new_empty(num_bags, table.shape[1])
    native.call(
        "deferred_look_up", *_tables(packed), slots, bounds, inverse, inverse.numel(),
        bag_starts, weights, num_bags, scratch, out,
    )  # fmt: skip
    return out


def _tables(packed: PackedTargets) -> tuple[int, int, Tensor, int]:
    weights = packed.targets[0].weights
    return weights.element_size(), weights.shape[1], packed.numbers, len(packed.targets)


def _on_core(*tensors: Tensor) -> bool:
    return all(t.device.type == "cpu" for t in tensors) and all(t.dtype in _DTYPES for t in tensors[:1])
