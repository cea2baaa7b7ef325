"""Row optimizers: what a training step does to the rows of tables.

Each is a frozen value, whose `numbers` are those of a step; the arithmetic lives in `ops.update` and
`ops.deferred`. Gradients of equal rows
are summed before the optimizer sees them.

`SGD`, `Adagrad`, `RowWiseAdagrad`, `LazyAdam` and `FTRL` are lazy: a row that a batch does not read keeps
its weights and its state, so weight decay and the decay of moments act on the rows read, when they are
read. `DenseAdam`, `DenseAdamW` and `DenseSGD` are those of `torch.optim` on a whole table: every row
makes every step, with a gradient of zero where the batch did not read it. Such a row makes the steps that
it missed when it is next read (`ops.deferred`), so that a step costs what the rows of its batch cost.

With `decay_by_count` the weight decay of a row is divided by how often its id occurs in the training
data: the mini-batch aware regularisation of DIN (Zhou et al. 2018, eq. 6). A frequent row, read in
many batches, is then pulled to zero about once an epoch in all, and a rare one as much each time as
L2 over the whole table would. Of weights of single ids (tables of the role `linear`) it is divided by the
number of batches in which a training expects the id, so that frequent ones decay as much.
"""

from __future__ import annotations

import dataclasses
import sys
from dataclasses import dataclass
from typing import Any, ClassVar


class _Checked:
    """Base of the optimizers: defaults, and checks of the numbers when one is made.

    kind: its name in settings. state_names: names of its state, `dim` numbers each unless `state_width`
    says otherwise. per_row_step: whether a record counts the updates of its row. initial_accumulator: the
    first value of the first state. first_step: the int32 in the record of a new row; -1: it has made no
    step of a dense optimizer. l2_term: l2 of a term of the loss, if any.
    """

    kind: ClassVar[str]
    state_names: ClassVar[tuple[str, ...]] = ()
    first_step: ClassVar[int] = 0
    per_row_step: bool = False
    decay_by_count: bool = False
    initial_accumulator: float = 0.0

    @property
    def l2_term(self) -> float:
        return 0.0

    def state_width(self, dim: int) -> int:
        return len(self.state_names) * dim

    def numbers(self, step: int, lr: float) -> list[float]:
        """The numbers of the update after `step` others. Those of a lazy optimizer begin with lr and the
        weight decay (0.0: none), which is added to the gradient before the formula sees it."""
        raise NotImplementedError

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            if getattr(value, "shape", None) == ():  # a number of NumPy, such as that of a grid
                object.__setattr__(self, field.name, value := value.item())
            _check(self.kind, field, value)


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
    """Stochastic gradient descent on rows: w -= lr * (g + weight_decay * w).

    >>> hotrows.TrainConfig(row_optimizer=SGD(lr=0.1)).row_optimizer
    SGD(lr=0.1, weight_decay=0.0, decay_by_count=False)
    """

    lr: float = 0.05
    weight_decay: float = 0.0
    decay_by_count: bool = False
    kind: ClassVar[str] = "sgd"

    def numbers(self, step: int, lr: float) -> list[float]:
        return [lr, self.weight_decay]


@dataclass(frozen=True)
class Adagrad(_Checked):
    """Adagrad on rows (Duchi et al. 2011): s += g^2; w -= lr * g / (sqrt(s) + eps), by element.

    >>> hotrows.TrainConfig(row_optimizer=Adagrad(lr=0.05)).row_optimizer.lr
    0.05
    """

    lr: float = 0.02
    eps: float = 1e-10
    initial_accumulator: float = 0.0
    weight_decay: float = 0.0
    decay_by_count: bool = False
    kind: ClassVar[str] = "adagrad"
    state_names: ClassVar[tuple[str, ...]] = ("sum_of_squares",)

    def numbers(self, step: int, lr: float) -> list[float]:
        return [lr, self.weight_decay, self.eps]


@dataclass(frozen=True)
class RowWiseAdagrad(_Checked):
    """Adagrad with one sum per row: s += mean(g^2); w -= lr * g / (sqrt(s) + eps).

    >>> RowWiseAdagrad(lr=0.05).state_width(dim=16)  # numbers of state beside 16 weights
    1
    """

    lr: float = 0.02
    eps: float = 1e-10
    initial_accumulator: float = 0.0
    weight_decay: float = 0.0
    decay_by_count: bool = False
    kind: ClassVar[str] = "rowwise_adagrad"
    state_names: ClassVar[tuple[str, ...]] = ("sum_of_squares",)

    def state_width(self, dim: int) -> int:
        return 1

    def numbers(self, step: int, lr: float) -> list[float]:
        return [lr, self.weight_decay, self.eps]


@dataclass(frozen=True)
class LazyAdam(_Checked):
    """Adam on the rows that a batch reads (Kingma and Ba 2015; torch.optim.SparseAdam).

    per_row_step: the bias correction counts the updates of each row (an int32 in its record)
    instead of the updates of the model.

    >>> LazyAdam(lr=0.001).state_width(dim=16)
    32
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

    def numbers(self, step: int, lr: float) -> list[float]:
        # beta^t by repeated rounding would drift: Python's pow on float64 is the one source.
        corrections = [1 - self.beta1 ** (step + 1), 1 - self.beta2 ** (step + 1)]
        return [lr, self.weight_decay, self.beta1, self.beta2, self.eps, *corrections]


def Adam(*_: Any, **__: Any) -> None:
    """Is refused: the name is that of `torch.optim.Adam`, and no row optimizer decides which is meant."""
    raise ValueError(
        "expected a row optimizer: LazyAdam, which changes the rows that a batch reads (SparseAdam of "
        "PyTorch), or DenseAdam, which changes all rows (torch.optim.Adam); Adam may mean both"
    )


@dataclass(frozen=True)
class FTRL(_Checked):
    """FTRL-Proximal (McMahan et al. 2013): sparse weights through l1; for wide, linear parts.

    n' = n + g^2; z += g - (sqrt(n') - sqrt(n)) / lr * w;
    w = 0 where |z| <= l1, else (sign(z) * l1 - z) / ((beta + sqrt(n')) / lr + l2).

    >>> FTRL(l1=0.001).state_width(dim=16)
    32
    """

    lr: float = 0.05
    l1: float = 0.0
    l2: float = 0.0
    beta: float = 1.0
    initial_accumulator: float = 0.0
    kind: ClassVar[str] = "ftrl"
    state_names: ClassVar[tuple[str, ...]] = ("n", "z")

    def numbers(self, step: int, lr: float) -> list[float]:
        return [lr, 0.0, self.l1, self.l2, self.beta]


@dataclass(frozen=True)
class DenseAdam(_Checked):
    """torch.optim.Adam on whole tables: moments fade and weights move in rows that no batch reads.

    l2: of a term l2 / 2 * |W|^2 of the loss over the whole table (whose value is not in the loss shown):
        l2 times its weight is in the gradient of every row.
    weight_decay: its multiple of the weight is added to the gradient as well, behind clipping.

    >>> hotrows.TrainConfig(row_optimizer=DenseAdam(lr=0.001, l2=1e-5)).row_optimizer.l2
    1e-05
    """

    lr: float = 1e-3
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.0
    l2: float = 0.0
    kind: ClassVar[str] = "dense_adam"
    first_step: ClassVar[int] = -1
    deferred: ClassVar[str] = "adam"
    state_names: ClassVar[tuple[str, ...]] = ("first_moment", "second_moment")
    per_row_step = True

    @property
    def l2_term(self) -> float:
        return self.l2

    def numbers(self, step: int, lr: float) -> list[float]:
        return [
            *adam_numbers(step + 1, lr, self.beta1, self.beta2, self.eps, self.weight_decay + self.l2)
        ]


@dataclass(frozen=True)
class DenseAdamW(DenseAdam):
    """torch.optim.AdamW on whole tables: each step multiplies every row by 1 - lr * weight_decay.

    l2: of a term of the loss, as in `DenseAdam`.

    >>> DenseAdamW(lr=0.001, weight_decay=0.01).weight_decay
    0.01
    """

    weight_decay: float = 1e-2
    kind: ClassVar[str] = "dense_adamw"

    def numbers(self, step: int, lr: float) -> list[float]:
        return [
            *adam_numbers(
                step + 1, lr, self.beta1, self.beta2, self.eps, self.l2, 1 - lr * self.weight_decay
            )
        ]


@dataclass(frozen=True)
class DenseSGD(_Checked):
    """torch.optim.SGD on whole tables: momentum and weight decay move rows that no batch reads.

    l2: of a term of the loss, as in `DenseAdam`.

    >>> DenseSGD(lr=0.1, momentum=0.9).state_width(dim=16)
    16
    """

    lr: float = 0.05
    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0
    l2: float = 0.0
    kind: ClassVar[str] = "dense_sgd"
    first_step: ClassVar[int] = -1
    deferred: ClassVar[str] = "sgd"
    state_names: ClassVar[tuple[str, ...]] = ("momentum_buffer",)
    per_row_step = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.nesterov and not self.momentum:
            raise ValueError("dense_sgd's nesterov needs a momentum above 0")

    @property
    def l2_term(self) -> float:
        return self.l2

    def state_width(self, dim: int) -> int:
        return dim if self.momentum else 0

    def numbers(self, step: int, lr: float) -> list[float]:
        return [*sgd_numbers(lr, self.momentum, 1.0, self.nesterov, self.weight_decay + self.l2)]


DenseRowOptimizer = DenseAdam | DenseAdamW | DenseSGD
RowOptimizer = SGD | Adagrad | RowWiseAdagrad | LazyAdam | FTRL | DenseRowOptimizer
BY_NAME: dict[str, type] = {
    kind.kind: kind
    for kind in (SGD, Adagrad, RowWiseAdagrad, LazyAdam, FTRL, DenseAdam, DenseAdamW, DenseSGD)
}
Numbers = tuple[float, ...]  # of a step of a dense optimizer: 8, as `ops.deferred` takes them


def hyper_parameters(optimizer: RowOptimizer, step: int, lr_scale: float = 1.0) -> list[float]:
    """The numbers of the update kernel, in the order of `ops.reference.update`.

    step: updates made before this one; lr_scale: the factor of the rate by a schedule.
    """
    return optimizer.numbers(step, optimizer.lr * lr_scale)


def adam_numbers(
    t: int, lr: float, beta1: float, beta2: float, eps: float, c: float, shrink: float = 1.0
) -> Numbers:
    """The numbers of Adam's step t (from 1): the gradient is g + c * w, and w *= shrink comes first."""
    return padded(c, shrink, lr / (1 - beta1**t), beta1, beta2, eps, (1 - beta2**t) ** 0.5)


def sgd_numbers(lr: float, momentum: float, undamped: float, nesterov: bool, c: float) -> Numbers:
    """The numbers of a step of SGD, whose gradient is g + c * w; undamped: 1 - dampening."""
    return padded(c, 1.0, lr, momentum, undamped, float(nesterov))


def padded(*numbers: float) -> Numbers:
    """The numbers of a step, 8 with zeros behind.

    >>> padded(1, 2)
    (1.0, 2.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    """
    return (*(float(number) for number in numbers), *(0.0,) * (8 - len(numbers)))


def initial_state(optimizer: RowOptimizer, dim: int) -> list[float]:
    """The state of a new row: S numbers, of which only the first accumulator may begin above 0.

    >>> initial_state(Adagrad(lr=0.1), dim=3)
    [0.0, 0.0, 0.0]
    """
    width = optimizer.state_width(dim)
    first = width // max(len(optimizer.state_names), 1)
    return [optimizer.initial_accumulator] * first + [0.0] * (width - first)


def replaced(optimizer: RowOptimizer, changes: dict) -> RowOptimizer:
    """The optimizer with other numbers, by name.

    >>> replaced(SGD(lr=0.1), {'lr': 0.2}).lr
    0.2
    """
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
