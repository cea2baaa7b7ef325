"""Forecast: whether row updates and packed lookups are expected to pay, by the sizes of the tables.

PyTorch's dense optimizers pass over all weights in each step, so that a step takes longer the more rows
there are. hotrows works on the rows of a batch, for a price of each step and each table. Both were
measured on CPUs, in `benchmarks/break_even.py`, where the ratio of the two moves less than either.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from torch import nn

from hotrows.acceleration.rules import Rule
from hotrows.runtime.units import format_bytes

# Nanoseconds of a step of PyTorch for each weight, by the kind of rule, and by how many states it has.
_ADAM = 12.5
_OF_A_WEIGHT = {("sgd", 0): 2.3, ("sgd", 1): 5.0, ("adagrad", 1): 9.5, ("rmsprop", 1): 9.5}
_MEASURED = ("cpu",)
_OF_A_STEP, _OF_A_TABLE = 6e6, 0.5e6  # nanoseconds that hotrows adds, rows of usual batches included


@dataclass(frozen=True)
class Forecast:
    """What is expected of a model's tables. ratio: the time that a step's work on them takes with
    hotrows, over that with PyTorch, up to what is the same in both."""

    tables: int
    rows: int
    bytes: int
    optimizers: tuple[str, ...]
    ratio: float

    @property
    def pays(self) -> bool:
        """True if hotrows is expected to be faster."""
        return self.ratio < 1

    def __str__(self) -> str:
        size = f"{self.rows:,} rows, {format_bytes(self.bytes)}"
        tables = f"{self.tables:,} table{'s' if self.tables > 1 else ''} ({size})"
        under = f"as PyTorch for {tables} under {', '.join(self.optimizers)}"
        if self.pays:
            return f"hotrows is about {1 / self.ratio:.1f} times as fast {under}"
        return f"hotrows takes about {self.ratio:.1f} times as long {under}"


def forecast(tables: Iterable[tuple[nn.Parameter, Rule, str, bool]]) -> Forecast | None:
    """Expects the cost of tables: weight, rule, name of the optimizer, and whether gradients are sparse.

    None where nothing was measured: on a GPU, with sparse gradients, and without a table.
    """
    tables = list(tables)
    if not tables or any(w.device.type not in _MEASURED or sparse for w, _, _, sparse in tables):
        return None
    plain = sum(
        weight.numel() * _OF_A_WEIGHT.get((rule.kind, len(rule.states)), _ADAM)
        for weight, rule, *_ in tables
    )
    weights = [weight for weight, *_ in tables]
    return Forecast(
        len(tables),
        sum(len(weight) for weight in weights),
        sum(weight.numel() * weight.element_size() for weight in weights),
        tuple(dict.fromkeys(name for *_, name, _ in tables)),
        (_OF_A_STEP + _OF_A_TABLE * len(tables)) / max(plain, 1.0),
    )
