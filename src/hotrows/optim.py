"""Row optimizers: the arithmetic of an update of a row that a batch has read.

Each is a frozen value; the arithmetic lives in `ops.update`. All are lazy: a row that a batch does
not read keeps its weights and its state, so weight decay and the decay of moments act on the rows
read, when they are read. Gradients of equal rows are summed before the optimizer sees them.

With `decay_by_count` the weight decay of a row is divided by how often its id occurs in the training
data: the mini-batch aware regularisation of DIN (Zhou et al. 2018, eq. 6). A frequent row, read in
many batches, is then pulled to zero about once an epoch in all, and a rare one as much each time as
L2 over the whole table would.
"""

from __future__ import annotations

import dataclasses
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    import torch
    from torch import Tensor


class _Checked:
    """Checks the numbers of an optimizer when it is made."""

    kind: ClassVar[str]

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            _check(self.kind, field, getattr(self, field.name))


def _check(kind: str, field: dataclasses.Field, value: Any) -> None:
    """Raises ValueError unless the value is a finite number of at least 0, of moments also below 1; or a
    switch where the default is one."""
    is_switch = isinstance(field.default, bool)
    if not isinstance(value, int | float) or isinstance(value, bool) != is_switch:
        wanted = "true or false" if is_switch else "a number"
        raise ValueError(f"{kind}'s {field.name} must be {wanted}, not {value!r}")
    if field.name in ("beta1", "beta2") and not 0 <= value < 1:
        raise ValueError(f"{kind}'s {field.name} must be from 0 to below 1, not {value}")
    if not 0 <= value <= sys.float_info.max:
        raise ValueError(f"{kind}'s {field.name} must be a finite number of at least 0, not {value}")


@dataclass(frozen=True)
class SGD(_Checked):
    """w -= lr * (g + weight_decay * w)."""

    lr: float = 0.05
    weight_decay: float = 0.0
    decay_by_count: bool = False
    kind: ClassVar[str] = "sgd"
    state_names: ClassVar[tuple[str, ...]] = ()
    per_row_step: ClassVar[bool] = False
    initial_accumulator: ClassVar[float] = 0.0

    def state_width(self, dim: int) -> int:
        return 0


@dataclass(frozen=True)
class Adagrad(_Checked):
    """s += g^2; w -= lr * g / (sqrt(s) + eps), element by element (Duchi et al. 2011)."""

    lr: float = 0.02
    eps: float = 1e-10
    initial_accumulator: float = 0.0
    weight_decay: float = 0.0
    decay_by_count: bool = False
    kind: ClassVar[str] = "adagrad"
    state_names: ClassVar[tuple[str, ...]] = ("sum_of_squares",)
    per_row_step: ClassVar[bool] = False

    def state_width(self, dim: int) -> int:
        return dim


@dataclass(frozen=True)
class RowWiseAdagrad(_Checked):
    """s += mean(g^2); w -= lr * g / (sqrt(s) + eps): Adagrad with one sum per row."""

    lr: float = 0.02
    eps: float = 1e-10
    initial_accumulator: float = 0.0
    weight_decay: float = 0.0
    decay_by_count: bool = False
    kind: ClassVar[str] = "rowwise_adagrad"
    state_names: ClassVar[tuple[str, ...]] = ("sum_of_squares",)
    per_row_step: ClassVar[bool] = False

    def state_width(self, dim: int) -> int:
        return 1


@dataclass(frozen=True)
class Adam(_Checked):
    """Adam on the rows read (Kingma and Ba 2015; torch.optim.SparseAdam).

    per_row_step: the bias correction counts the updates of each row (an int32 in its record)
    instead of the updates of the model.
    """

    lr: float = 1e-3
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.0
    per_row_step: bool = False
    decay_by_count: bool = False
    kind: ClassVar[str] = "adam"
    state_names: ClassVar[tuple[str, ...]] = ("first_moment", "second_moment")
    initial_accumulator: ClassVar[float] = 0.0

    def state_width(self, dim: int) -> int:
        return 2 * dim


@dataclass(frozen=True)
class FTRL(_Checked):
    """FTRL-Proximal (McMahan et al. 2013): sparse weights through l1; for wide, linear parts.

    n' = n + g^2; z += g - (sqrt(n') - sqrt(n)) / lr * w;
    w = 0 where |z| <= l1, else (sign(z) * l1 - z) / ((beta + sqrt(n')) / lr + l2).
    """

    lr: float = 0.05
    l1: float = 0.0
    l2: float = 0.0
    beta: float = 1.0
    initial_accumulator: float = 0.0
    kind: ClassVar[str] = "ftrl"
    state_names: ClassVar[tuple[str, ...]] = ("n", "z")
    per_row_step: ClassVar[bool] = False
    decay_by_count: ClassVar[bool] = False

    def state_width(self, dim: int) -> int:
        return 2 * dim


RowOptimizer = SGD | Adagrad | RowWiseAdagrad | Adam | FTRL
BY_NAME: dict[str, type] = {kind.kind: kind for kind in (SGD, Adagrad, RowWiseAdagrad, Adam, FTRL)}


def hyper_parameters(optimizer: RowOptimizer, step: int, lr_scale: float = 1.0) -> list[float]:
    """The numbers of the update kernel, in the order of `ops.reference.update`.

    step: updates made before this one; lr_scale: the factor of the rate by a schedule.
    """
    lr = optimizer.lr * lr_scale
    if isinstance(optimizer, SGD):
        return [lr, optimizer.weight_decay]
    if isinstance(optimizer, Adam):
        # beta^t by repeated rounding would drift: Python's pow on float64 is the one source.
        corrections = [1 - optimizer.beta1 ** (step + 1), 1 - optimizer.beta2 ** (step + 1)]
        betas = [optimizer.beta1, optimizer.beta2]
        return [lr, optimizer.weight_decay, *betas, optimizer.eps, *corrections]
    if isinstance(optimizer, FTRL):
        return [lr, 0.0, optimizer.l1, optimizer.l2, optimizer.beta]
    return [lr, optimizer.weight_decay, optimizer.eps]


def hyper_tensor(
    optimizer: RowOptimizer, step: int, lr_scale: float = 1.0, device: torch.device | str | None = None
) -> Tensor:
    """[1 + H] float64: the step, then `hyper_parameters`, for the update kernel to read.

    In memory, not in the call: a captured CUDA graph then reads those of the step that it replays.
    """
    import torch

    numbers = [step, *hyper_parameters(optimizer, step, lr_scale)]
    return torch.tensor(numbers, dtype=torch.float64, device=device)


def initial_state(optimizer: RowOptimizer, dim: int) -> list[float]:
    """The state of a new row: S numbers."""
    if isinstance(optimizer, FTRL):
        return [optimizer.initial_accumulator] * dim + [0.0] * dim
    return [optimizer.initial_accumulator] * optimizer.state_width(dim)


def replaced(optimizer: RowOptimizer, changes: dict) -> RowOptimizer:
    """The optimizer with other numbers, by name."""
    known = dataclasses.asdict(optimizer)
    for name in changes:
        if name not in known:
            raise ValueError(f"{optimizer.kind} has no {name!r}; it has {', '.join(known)}")
    return dataclasses.replace(optimizer, **changes)


def to_json(optimizer: RowOptimizer) -> dict:
    return {"kind": optimizer.kind, **dataclasses.asdict(optimizer)}


def from_json(fields: dict) -> RowOptimizer:
    kind = fields.get("kind") if isinstance(fields, dict) else None
    if not isinstance(kind, str) or kind not in BY_NAME:
        raise ValueError(
            f"the kind of a row optimizer must be one of {sorted(BY_NAME)}, not {kind!r:.60}"
        )
    return replaced(BY_NAME[kind](), {name: value for name, value in fields.items() if name != "kind"})
