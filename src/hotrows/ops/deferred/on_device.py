"""The functions of `ops.deferred` on CUDA tensors, as ops of the dispatcher.

They are Triton kernels where Triton is installed, else the reference. Kernels wait for no device.
"""

from __future__ import annotations

import importlib
import importlib.util
import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from hotrows.ops.deferred import reference
from hotrows.ops.deferred.reference import Target

_TARGETS = (
    "Tensor({0}!)[] weights, Tensor({1}!)[] states, Tensor({2}!)[] lasts, Tensor[] steps, int[] counts"
)
_MOVED = _TARGETS.format("a", "b", "c")
_SCHEMAS = (
    f"catch_up_tables(str kind, {_MOVED}, Tensor? slots, Tensor bounds, Tensor(d!)? squares) -> ()",
    f"step_tables(str kind, {_MOVED}, Tensor slots, Tensor bounds, Tensor order, Tensor starts, "
    "Tensor? bags, Tensor? factors, Tensor grad, Tensor scales, Tensor(d!)? squares) -> ()",
    "look_up_tables(Tensor[] weights, Tensor slots, Tensor bounds, Tensor inverse, Tensor? bag_starts, "
    "Tensor? factors) -> Tensor",
)


def catch_up(kind: str, targets: Sequence[Target], *reads: Tensor | None) -> None:
    torch.ops.hotrows.catch_up_tables(kind, *_parts(targets), *reads)


def catch_up_all(kind: str, targets: Sequence[Target], squares: Tensor | None = None) -> None:
    ends = [0, *itertools.accumulate(len(target.last) for target in targets)]
    bounds = torch.tensor(ends).to(targets[0].last.device)
    catch_up(kind, targets, None, bounds, squares)


def update(kind: str, targets: Sequence[Target], *reads: Tensor | None) -> None:
    torch.ops.hotrows.step_tables(kind, *_parts(targets), *reads)


def lookup(targets: Sequence[Target], *reads: Tensor | None) -> Tensor:
    return torch.ops.hotrows.look_up_tables([target.weights for target in targets], *reads)


def _parts(targets: Sequence[Target]) -> tuple[list[Tensor], ...]:
    """Targets as the ops take them: lists of tensors, and three counts of each."""
    counts: Any = [n for target in targets for n in (target.first, target.now, target.first_decay)]
    return (
        [target.weights for target in targets],
        [state for target in targets for state in target.states],
        [target.last for target in targets],
        [target.steps for target in targets],
        counts,
    )


def _targets(
    weights: Sequence[Tensor],
    states: Sequence[Tensor],
    lasts: Sequence[Tensor],
    steps: Sequence[Tensor],
    counts: Sequence[int],
) -> list[Target]:
    num = len(states) // len(weights)
    return [
        Target(w, tuple(states[t * num : (t + 1) * num]), lasts[t], steps[t], *counts[3 * t : 3 * t + 3])
        for t, w in enumerate(weights)
    ]


class _Ops:
    """The ops over a module with the functions of `reference`: that one, or the one with kernels."""

    def __init__(self, name: str) -> None:
        self._name = name

    @property
    def _module(self) -> Any:
        return importlib.import_module(self._name)

    def catch_up_tables(self, kind: str, *args: Any) -> None:
        targets, (slots, bounds, squares) = _targets(*args[:5]), args[5:]
        with torch.cuda.device_of(bounds):
            if slots is None and self._name == reference.__name__:
                self._module.catch_up_all(kind, targets, squares)
                return
            self._module.catch_up(kind, targets, slots, bounds, squares)

    def step_tables(self, kind: str, *args: Any) -> None:
        with torch.cuda.device_of(args[5]):
            self._module.update(kind, _targets(*args[:5]), *args[5:])

    def look_up_tables(self, weights: Sequence[Tensor], *args: Any) -> Tensor:
        targets = [Target(table, (), args[1], args[1], 0, 0, 0) for table in weights]
        with torch.cuda.device_of(args[0]):
            return self._module.lookup(targets, *args)


_library = torch.library.Library("hotrows", "FRAGMENT")
for _schema in _SCHEMAS:
    _op = _schema.split("(")[0]
    _library.define(_schema)
    _library.impl(_op, getattr(_Ops(reference.__name__), _op), "CompositeExplicitAutograd")
    if importlib.util.find_spec("triton") is not None:
        _library.impl(_op, getattr(_Ops("hotrows.ops.triton.deferred"), _op), "CUDA")
