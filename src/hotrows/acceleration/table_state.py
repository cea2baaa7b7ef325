"""TableState: the entry of a table in `optimizer.state`, which is made when somebody reads it.

the table steps      its states are its own, and the entry may have older ones
somebody reads       every row is brought up to date, and the entry has what it has in plain PyTorch;
                     from here on it is lent: others may write it
the next step        begins with what the entry has by then
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from hotrows.acceleration.rules import BY_OPTIMIZER, Rule

Values = Mapping[str, Any]


class TableState(dict[str, Any]):
    """An entry. present: what it has in plain PyTorch now, given what it has of its last reading.

    is_lent: it has been read since the table's last step.
    """

    def __init__(self, values: Values, present: Callable[[Values], Values]) -> None:
        super().__init__(values)
        self._present, self.is_lent = present, False

    def lend(self) -> None:
        """Brings the entry up to date, for a reader who may write it."""
        if not self.is_lent:
            self.is_lent = True  # it reads itself
            try:
                super().update(self._present(self))
            except BaseException:
                self.is_lent = False
                raise

    def forget(self, names: Iterable[str]) -> None:
        """Ends a loan, and frees the values of these names."""
        for name in names:
            super().pop(name, None)
        self.is_lent = False

    def __reduce_ex__(self, protocol: Any) -> Any:
        return dict, (), None, None, iter(self.items())


def _of_reader(name: str) -> Callable[..., Any]:
    method = getattr(dict, name)

    def lends_and_calls(self: TableState, *args: Any, **kwargs: Any) -> Any:
        self.lend()
        return method(self, *args, **kwargs)

    return lends_and_calls


for _name in (
    "__contains__", "__delitem__", "__eq__", "__getitem__", "__ior__", "__iter__", "__len__", "__ne__",
    "__or__", "__repr__", "__reversed__", "__ror__", "__setitem__", "clear", "copy", "get", "items",
    "keys", "pop", "popitem", "setdefault", "update", "values",
):  # fmt: skip
    setattr(TableState, _name, _of_reader(_name))


def divided(values: Values, rule: Rule) -> tuple[dict[str, Tensor], dict[str, Any], int]:
    """Divides an entry into the states of rows, what rows share, and the number of steps."""
    of_rows = {name: x for name, x in values.items() if isinstance(x, Tensor) and x.dim() == 2}
    num_steps = int(values["step"]) if "step" in values else int(bool(of_rows))
    if rule.kind == BY_OPTIMIZER:
        return of_rows, {name: x for name, x in values.items() if name not in of_rows}, num_steps
    return {name: of_rows[name] for name in rule.states if name in of_rows}, {}, num_steps


def is_known(values: Values, states: Values, rule: Rule, optimizer: Optimizer, weights: Tensor) -> bool:
    """Whether a rule can step rows with what `optimizer.state` has; if not, PyTorch steps, or says why.

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
    """Whether a state lies in memory as kernels take it."""
    if type(state) is not Tensor:
        return False
    is_alike = (state.shape, state.dtype, state.device) == (weights.shape, weights.dtype, weights.device)
    return is_alike and (state.shape[1] == 1 or state.stride(1) == 1)


def counted(now: int, optimizer: Optimizer, weight: Tensor) -> int | Tensor:
    """The number of steps as the optimizer has it: a tensor, beside the weight if it is fused."""
    if isinstance(optimizer, torch.optim.SparseAdam):
        return now
    groups = (group for group in optimizer.param_groups if any(p is weight for p in group["params"]))
    is_fused = any(group.get("fused") for group in groups)
    return torch.tensor(float(now)).to(weight.device if is_fused else "cpu")
