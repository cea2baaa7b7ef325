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

from hotrows.acceleration.exclusive import exclusive

Values = Mapping[str, Any]


class TableState(dict[str, Any]):
    """An entry. present: what it has in plain PyTorch now, given what it has of its last reading.

    is_lent: it has been read since the table's last step.
    """

    def __init__(self, values: Values, present: Callable[[Values], Values]) -> None:
        super().__init__(values)
        self._present, self.is_lent = present, False

    @exclusive
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


def counted(now: int, optimizer: Optimizer, weight: Tensor) -> int | Tensor:
    """The number of steps as the optimizer has it: a tensor, beside the weight if it is fused."""
    if isinstance(optimizer, torch.optim.SparseAdam):
        return now
    groups = (group for group in optimizer.param_groups if any(p is weight for p in group["params"]))
    is_fused = any(group.get("fused") for group in groups)
    return torch.tensor(float(now)).to(weight.device if is_fused else "cpu")
