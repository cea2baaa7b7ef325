"""An additive model of log odds, fitted without each of K folds of the samples at once, and on all.

An effect of each id, of each combination of ids that was added, of each of 16 quantile bins of a number,
and a line in the numbers. A value whose samples have the sums S of y - p and H of p (1 - p) gets the
effect

    u <- (S + H u) / (H + tau)

and tau, the samples that 0 counts as, is the best of each column on the samples that a model lacks. Sums
for fold k come from model k: with residuals of samples' own folds good combinations were not admitted.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from hotrows.models.effects import BINS, FEW_BINS, FOLDS

_TAUS = (1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0)
_RIDGE, _MOST_CURVED = 10.0, 12
_ENTERS = 2.0  # standard errors of its gain that a column has
_LARGEST = 500.0  # logit whose exponential is finite


@dataclass(frozen=True)
class FittedSamples:
    """Ids and numbers by name, labels and weights of samples: [N] each."""

    ids: dict[str, np.ndarray]
    numbers: dict[str, np.ndarray]
    labels: np.ndarray
    weights: np.ndarray

    @property
    def num(self) -> int:
        return len(self.labels)


class Bins:
    """Quantile bins of a number: at most BINS, each in one of at most FEW_BINS.

    edges: lowest numbers of all bins but the first. codes: the bin of each sample. few: by bin.
    """

    def __init__(self, numbers: np.ndarray) -> None:
        self.edges, edges = (
            np.unique(np.quantile(numbers, np.linspace(0, 1, num + 1)[1:-1]).astype(np.float32))
            for num in (BINS, FEW_BINS)
        )
        self.codes = np.searchsorted(self.edges, numbers, side="right")
        self.few = np.concatenate([[0], np.searchsorted(edges, self.edges, side="right")])

    def codes_of(self, most: int) -> np.ndarray:
        return self.codes if most == BINS else self.few[self.codes]


@dataclass(eq=False)
class EffectColumn:
    """A column of the additive model: a code of each sample, and effects by code and model.

    names: of its features. codes: [N]; a combination's code 0, of those that occur once, has no effect.
    bins: of its numbers, at most; 0 of ids alone. tau: 0 where the column says nothing.
    """

    names: tuple[str, ...]
    codes: np.ndarray
    num_values: int
    bins: int = 0
    tau: float = 0.0
    gain: float = 0.0
    errors: float = 0.0  # standard errors that the gain has, when tau was chosen
    effects: np.ndarray | None = None  # [num_values, K + 1]

    @property
    def is_combined(self) -> bool:
        return len(self.names) > 1


def combination(
    names: tuple[str, ...], keys: np.ndarray, bins: int = 0
) -> tuple[EffectColumn, np.ndarray]:
    """A column of the combinations that occur twice or more, and their keys by code."""
    values, codes, counts = np.unique(keys, return_inverse=True, return_counts=True)
    often = counts > 1
    places = np.where(often, often.cumsum(), 0)
    column = EffectColumn(names, places[codes], int(often.sum()) + 1, bins)
    return column, np.concatenate([values[:1], values[often]])


class Additive:
    """The models without each fold, and the one of all samples: logits z [K + 1, N].

    with_numbers: numbers are to have effects, in bins of both kinds; else ids are fitted beside them.
    kept: weights [K + 1, N] of samples, 0 of those that a model lacks.
    """

    def __init__(self, samples: FittedSamples, fold: np.ndarray, with_numbers: bool = True) -> None:
        self.with_numbers = with_numbers
        self.samples, self._fold, self._y = samples, fold, samples.labels
        self._signs = 1 - 2 * self._y
        num = len(fold)
        self._place, self._weights = np.arange(num), samples.weights / max(samples.weights.mean(), 1e-9)
        self.kept = np.broadcast_to(self._weights, (FOLDS + 1, num)).copy()
        self.kept[fold, self._place] = 0
        rates = self.kept @ self._y / np.maximum(self.kept.sum(1), 1e-9)
        self.is_defined = bool(((rates > 0) & (rates < 1)).all())
        rates = np.clip(rates, 1e-6, 1 - 1e-6)
        self._begin = np.repeat(np.log(rates / (1 - rates))[:, None], num, 1)
        self.z = self._begin.copy()
        self.columns: list[EffectColumn] = []
        self._slopes = np.zeros((FOLDS + 1, self._inputs.shape[1]))

    @cached_property
    def _inputs(self) -> np.ndarray:
        """Numbers in standard units, [N, D]."""
        return np.stack([*self._standard.values()] or [self._y], 1)[:, : len(self._standard)]

    @cached_property
    def _standard(self) -> dict[str, np.ndarray]:
        """The numbers that are not all equal, in standard units."""
        numbers = {name: self.samples.numbers[name].astype(np.float64) for name in self.bins}
        return {
            name: np.clip((x - x.mean()) / x.std(), -5, 5)
            for name, x in numbers.items()
            if x.std() > 1e-9
        }

    @cached_property
    def bins(self) -> dict[str, Bins]:
        return {name: Bins(numbers) for name, numbers in self.samples.numbers.items()}

    def combined(self, names: Sequence[str], bins: int) -> tuple[EffectColumn, np.ndarray]:
        """A column of a number's bins with those of another, or with an id, and keys by code."""
        ids = self.samples.ids
        first, second = (ids[name] if name in ids else self.bins[name].codes_of(bins) for name in names)
        return combination(tuple(names), first * bins + second, bins)

    @property
    def single(self) -> list[EffectColumn]:
        """The columns of single features that have effects."""
        single = [column for column in self.columns if len(column.names) == 1 and column.tau]
        return [column for column in single if self.with_numbers or not column.bins]

    def fit_columns(self) -> None:
        """Fits the numbers' line, and the effects of all single columns, the most telling ones first."""
        ids = [EffectColumn((name,), x, int(x.max()) + 1) for name, x in self.samples.ids.items()]
        few, many = (
            [
                EffectColumn((n,), b.codes_of(m), int(b.codes_of(m).max()) + 1, m)
                for n, b in self.bins.items()
            ]
            for m in (FEW_BINS, BINS)
        )
        few = [column for column in few if column.num_values > 2]
        self._rank(few)  # by all that numbers say
        self._line(3)
        self._rank(ids)
        self.columns = sorted((*ids, *few), key=lambda column: -column.gain)
        if self.with_numbers:
            self.columns += [column for column in many if column.num_values > FEW_BINS]
        for column in self.columns:
            self._update(column, chooses=True)
        self.sweep()
        self.sweep(chooses=True)
        self.sweep()

    def _rank(self, columns: Sequence[EffectColumn]) -> None:
        parts = self.residuals(self.z)
        for column in columns:
            column.gain = self._measured(column, parts, _TAUS)[0]

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

    def gain_of(self, column: EffectColumn, beside_curve: bool = False) -> float:
        """The nats that the samples would lose without this column, by models that lack them;
        beside_curve: with a curve in its place, of a column of numbers."""
        assert column.effects is not None
        without = self.z - column.effects.T[:, column.codes]
        before = self._before(column, without) if beside_curve else self._losses(self._held_out(without))
        return float((self._weights * (before - self._losses(self._held_out(self.z)))).sum())

    def line_gain(self) -> float:
        """The nats that the samples would lose without the line in the numbers."""
        z = self._held_out(self.z)
        without = z - (self._inputs * self._slopes[self._fold]).sum(1)
        return float((self._weights * (self._losses(without) - self._losses(z))).sum())

    def of_columns(self, columns: Iterable[EffectColumn]) -> np.ndarray:
        """The logits of these columns alone, [K + 1, N]."""
        z = self._begin.copy()
        for column in columns:
            assert column.effects is not None
            z += column.effects.T[:, column.codes]
        return z

    def held_out_effects(self, column: EffectColumn) -> np.ndarray:
        """The effect of each sample by the model that lacks it, [N]."""
        assert column.effects is not None
        return column.effects[column.codes, self._fold]

    def held_out_losses(self, z: np.ndarray) -> np.ndarray:
        """The loss of each sample by the model that lacks it, [N], of logits [K + 1, N]."""
        return self._weights * self._losses(self._held_out(z))

    def smooth_losses(self) -> np.ndarray:
        """`held_out_losses` with what a network learns by itself: products of the numbers that slope
        most, and a scale of all logits."""
        most = np.argsort(-abs(self._slopes[FOLDS]))[:_MOST_CURVED]
        pairs = itertools.combinations_with_replacement(self._inputs[:, most].T, 2)
        products = [first * second for first, second in pairs]
        curves, z = np.reshape(products, (len(products), self.samples.num)), self.z.copy()
        curves -= curves.mean(1, keepdims=True)
        for of_model, residuals, spreads in zip(z, *self.residuals(z), strict=True):
            curvature = (curves * spreads) @ curves.T + _RIDGE * np.eye(len(curves))
            of_model += np.linalg.solve(curvature, curves @ residuals) @ curves
        held_out = self._held_out(z)
        for _ in range(3):
            p = 1 / (1 + np.exp(-held_out))
            slope = (self._weights * (self._y - p)) @ held_out
            held_out *= 1 + slope / ((self._weights * p * (1 - p)) @ held_out**2 + 1)
        return self._weights * self._losses(held_out)

    def best_of(
        self, columns: Iterable[EffectColumn], errors: float, most: int = 1 << 20
    ) -> list[EffectColumn]:
        """Columns that would gain more than so many standard errors now, the best ones first."""
        parts, best = self.residuals(self.z), list[tuple[float, EffectColumn]]()
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
        before = self._before(column, self.z)
        for tau in taus:
            gain = self._weights * (before - self._losses(z + s / (h + tau)))
            best = max(best, with_error(gain))
        return best

    def _update(self, column: EffectColumn, chooses: bool = False) -> None:
        """Newton's step of the effects of one column."""
        if column.effects is None:
            column.effects = np.zeros((column.num_values, FOLDS + 1))
        old = column.effects
        s, h = (self._sums(column, of_models) for of_models in self.residuals(self.z))
        s += h * old
        if chooses:
            without = self.z - old.T[:, column.codes]
            z, before, best = self._held_out(without), self._before(column, without), (-np.inf, 0.0)
            column.tau = 0.0
            for tau in _TAUS:
                changed = (s / (h + tau))[column.codes, self._fold]
                gain, errors = with_error(self._weights * (before - self._losses(z + changed)))
                if gain > best[0]:
                    best, column.tau = (gain, errors), tau
            column.errors = best[1]
            if best[1] <= _ENTERS:
                column.tau = 0.0
        column.effects = s / (h + column.tau) if column.tau else np.zeros_like(old)
        self.z += (column.effects - old).T[:, column.codes]

    def _before(self, column: EffectColumn, z: np.ndarray) -> np.ndarray:
        """Losses [N] of models [K + 1, N] that lack a column; of numbers alone, with the square of its
        number or the product of two, if that is better. A network learns such curves by itself."""
        numbers = [self._standard[name] for name in column.names if name in self._standard]
        before = self._losses(self._held_out(z))
        if len(numbers) < len(column.names):
            return before
        curve = numbers[0] * numbers[-1]
        curve -= curve.mean()
        residuals, spreads = self.residuals(z)
        slopes = (residuals @ curve) / (spreads @ curve**2 + _RIDGE)
        with_curve = self._losses(self._held_out(z) + slopes[self._fold] * curve)
        return with_curve if (self._weights * (before - with_curve)).sum() > 0 else before

    def _line(self, steps: int) -> None:
        """Newton's steps of the line in the numbers."""
        x = self._inputs
        for _ in range(steps if x.shape[1] else 0):
            for k, (residuals, spreads) in enumerate(zip(*self.residuals(self.z), strict=True)):
                slopes = self._slopes[k]
                curvature = (x.T * spreads) @ x + _RIDGE * np.eye(len(slopes))
                change = np.linalg.solve(curvature, residuals @ x - _RIDGE * slopes)
                slopes += change
                self.z[k] += x @ change

    def _center(self) -> None:
        residuals, spreads = self.residuals(self.z)
        self.z += (residuals.sum(1) / spreads.sum(1))[:, None]

    def residuals(self, z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """y - p and p (1 - p) of each model's samples, [K + 1, N], times their weights."""
        p = 1 / (1 + np.exp(-z))
        return (self._y - p) * self.kept, p * (1 - p) * self.kept

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


def with_error(gains: np.ndarray) -> tuple[float, float]:
    """The sum of gains [N], and the sum in its standard errors."""
    return float(gains.sum()), float(gains.sum() / (gains.std() * np.sqrt(len(gains)) + 1e-12))
