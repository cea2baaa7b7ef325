"""An additive model of log odds, fitted without each of K folds of the samples at once, and on all.

An effect of each id, of each combination of ids that was added, of each of 16 quantile bins of a number,
and a line in the numbers. A value whose samples have the sums S of y - p and H of p (1 - p) gets the
effect

    u <- (S + H u) / (H + tau)

and tau, the samples that 0 counts as, is the best of each column on the samples that a model lacks. Sums
for fold k come from model k: with residuals of samples' own folds good combinations were not admitted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from hotrows.models.effects import FOLDS

_TAUS = (1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0)
_BINS, _RIDGE = 16, 10.0
_ENTERS = 2.0  # standard errors of its gain that a column has
_LARGEST = 500.0  # logit whose exponential is finite
MOST_NUMBERS = 64  # of a sample that are looked at; none of more


@dataclass(frozen=True)
class FittedSamples:
    """Ids by name [N], numbers [N, D], labels and weights [N] of samples."""

    ids: dict[str, np.ndarray]
    numbers: np.ndarray
    labels: np.ndarray
    weights: np.ndarray

    @property
    def num(self) -> int:
        return len(self.labels)


@dataclass(eq=False)
class EffectColumn:
    """A column of the additive model: a code of each sample, and effects by code and model.

    names: of the features whose ids it is; none of a number. codes: [N]; a combination's code 0, of those
    that occur once, has no effect. tau: 0 where the column says nothing.
    """

    names: tuple[str, ...]
    codes: np.ndarray
    num_values: int
    tau: float = 0.0
    gain: float = 0.0
    effects: np.ndarray | None = None  # [num_values, K + 1]

    @property
    def is_combined(self) -> bool:
        return len(self.names) > 1


def combination(names: tuple[str, ...], keys: np.ndarray) -> tuple[EffectColumn, np.ndarray]:
    """A column of the combinations that occur twice or more, and their keys by code."""
    values, codes, counts = np.unique(keys, return_inverse=True, return_counts=True)
    often = counts > 1
    places = np.where(often, often.cumsum(), 0)
    column = EffectColumn(names, places[codes], int(often.sum()) + 1)
    return column, np.concatenate([values[:1], values[often]])


class Additive:
    """The models without each fold, and the one of all samples: logits z [K + 1, N]."""

    def __init__(self, samples: FittedSamples, fold: np.ndarray) -> None:
        self.samples, self._fold, self._y = samples, fold, samples.labels
        self._signs = 1 - 2 * self._y
        num = len(fold)
        self._place, self._weights = np.arange(num), samples.weights / max(samples.weights.mean(), 1e-9)
        self._kept = np.broadcast_to(self._weights, (FOLDS + 1, num)).copy()
        self._kept[fold, self._place] = 0
        rates = self._kept @ self._y / np.maximum(self._kept.sum(1), 1e-9)
        self.is_defined = bool(((rates > 0) & (rates < 1)).all())
        rates = np.clip(rates, 1e-6, 1 - 1e-6)
        self.z = np.repeat(np.log(rates / (1 - rates))[:, None], num, 1)
        self.columns: list[EffectColumn] = []
        self._slopes = np.zeros((FOLDS + 1, self._inputs.shape[1]))

    @cached_property
    def _inputs(self) -> np.ndarray:
        """Numbers in standard units, [N, D]; none of a schema that has too many."""
        numbers = self.samples.numbers.astype(np.float64)
        spread = numbers.std(0)
        if numbers.shape[1] > MOST_NUMBERS:
            return numbers[:, :0]
        numbers = numbers[:, spread > 1e-9]
        return np.clip((numbers - numbers.mean(0)) / spread[spread > 1e-9], -5, 5)

    @property
    def single(self) -> list[EffectColumn]:
        """The columns of single features that say something."""
        return [column for column in self.columns if len(column.names) == 1 and column.tau]

    def fit_columns(self) -> None:
        """Fits the numbers' line, and the effects of all single columns, the most telling ones first."""
        self._line(3)
        columns = [
            EffectColumn((name,), ids, int(ids.max()) + 1) for name, ids in self.samples.ids.items()
        ]
        for numbers in self._inputs.T:
            edges = np.unique(np.quantile(numbers, np.linspace(0, 1, _BINS + 1)[1:-1]))
            if len(edges) > 1:
                codes = np.searchsorted(edges, numbers, side="right")
                columns.append(EffectColumn((), codes, len(edges) + 1))
        parts = self._residuals()
        for column in columns:
            column.gain = self._measured(column, parts, _TAUS)[0]
        self.columns = sorted(columns, key=lambda column: -column.gain)
        for column in self.columns:
            self._update(column, chooses=True)
        self.sweep()
        self.sweep(chooses=True)
        self.sweep()

    def add(self, column: EffectColumn) -> None:
        """Fits the effects of a combination, and again those of columns that it is made of."""
        self.columns.append(column)
        self._update(column, chooses=True)
        for other in self.columns:
            if other.tau and set(other.names) & set(column.names):
                self._update(other)
        self._center()

    def sweep(self, chooses: bool = False) -> None:
        """Fits all effects once more; chooses: also tau of each column."""
        self._line(1)
        for column in self.columns:
            if column.tau or chooses:
                self._update(column, chooses)
        self._center()

    def gain_of(self, column: EffectColumn) -> float:
        """The nats that the samples would lose without this column, by models that lack them."""
        z = self._held_out(self.z)
        assert column.effects is not None
        without = z - column.effects[column.codes, self._fold]
        return float((self._weights * (self._losses(without) - self._losses(z))).sum())

    def best_of(
        self, columns: Iterable[EffectColumn], errors: float, most: int = 1 << 20
    ) -> list[EffectColumn]:
        """Columns that would gain more than so many standard errors now, the best ones first."""
        parts, best = self._residuals(), list[tuple[float, EffectColumn]]()
        for column in columns:
            gain, in_errors = self._measured(column, parts, _TAUS[1:-1])
            if gain > 0 and in_errors > errors:
                best.append((gain, column))
                best.sort(key=lambda pair: -pair[0])
                del best[most:]
        return [column for _, column in best]

    def _measured(
        self, column: EffectColumn, parts: tuple[np.ndarray, np.ndarray], taus: Sequence[float]
    ) -> tuple[float, float]:
        sums, weights = (self._sums(column, of_models[:FOLDS]) for of_models in parts)
        s, h = (a[column.codes, self._fold] for a in (sums, weights))
        z, best = self._held_out(self.z), (-np.inf, 0.0)
        before = self._losses(z)
        for tau in taus:
            gain = self._weights * (before - self._losses(z + s / (h + tau)))
            best = max(best, _with_error(gain))
        return best

    def _update(self, column: EffectColumn, chooses: bool = False) -> None:
        """Newton's step of the effects of one column."""
        if column.effects is None:
            column.effects = np.zeros((column.num_values, FOLDS + 1))
        old = column.effects
        s, h = (self._sums(column, of_models) for of_models in self._residuals())
        s += h * old
        if chooses:
            z = self._held_out(self.z) - old[column.codes, self._fold]
            before, best = self._losses(z), (-np.inf, 0.0)
            column.tau = 0.0
            for tau in _TAUS:
                changed = (s / (h + tau))[column.codes, self._fold]
                gain, errors = _with_error(self._weights * (before - self._losses(z + changed)))
                if gain > best[0]:
                    best, column.tau = (gain, errors), tau
            if best[1] <= _ENTERS:
                column.tau = 0.0
        column.effects = s / (h + column.tau) if column.tau else np.zeros_like(old)
        self.z += (column.effects - old).T[:, column.codes]

    def _line(self, steps: int) -> None:
        """Newton's steps of the line in the numbers."""
        x = self._inputs
        for _ in range(steps if x.shape[1] else 0):
            for k, (residuals, spreads) in enumerate(zip(*self._residuals(), strict=True)):
                slopes = self._slopes[k]
                curvature = (x.T * spreads) @ x + _RIDGE * np.eye(len(slopes))
                change = np.linalg.solve(curvature, residuals @ x - _RIDGE * slopes)
                slopes += change
                self.z[k] += x @ change

    def _center(self) -> None:
        residuals, spreads = self._residuals()
        self.z += (residuals.sum(1) / spreads.sum(1))[:, None]

    def _residuals(self) -> tuple[np.ndarray, np.ndarray]:
        """y - p and p (1 - p) of each model's samples, [K + 1, N], times their weights."""
        p = 1 / (1 + np.exp(-self.z))
        return (self._y - p) * self._kept, p * (1 - p) * self._kept

    def _sums(self, column: EffectColumn, of_models: np.ndarray) -> np.ndarray:
        """Sums over the samples of each code, [num_values, models]."""
        sums = [np.bincount(column.codes, values, column.num_values) for values in of_models]
        if column.is_combined:
            for of_model in sums:
                of_model[0] = 0
        return np.stack(sums, 1)

    def _held_out(self, of_models: np.ndarray) -> np.ndarray:
        """Each sample's value of the model that lacks it, [N]."""
        return of_models[self._fold, self._place]

    def _losses(self, z: np.ndarray) -> np.ndarray:
        return np.log1p(np.exp(np.minimum(self._signs * z, _LARGEST)))


def _with_error(gains: np.ndarray) -> tuple[float, float]:
    """The sum of gains [N], and the sum in its standard errors."""
    return float(gains.sum()), float(gains.sum() / (gains.std() * np.sqrt(len(gains)) + 1e-12))
