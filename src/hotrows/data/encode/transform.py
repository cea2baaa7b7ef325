"""Dense columns: statistics over the training part, and the transforms that a schema declares."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from hotrows.data.stored.encoded import Statistics
from hotrows.runtime.native import call
from hotrows.schema import Dense

_LARGEST_LOG = 330.0  # of numbers whose squares have a finite sum, too


class ColumnMoments:
    """Count, mean and sum of squared differences of columns, chunk by chunk (Welford 1962)."""

    def __init__(self, num_features: int) -> None:
        self._moments = np.zeros((num_features, 3))

    def add(self, values: np.ndarray, chosen: np.ndarray, threads: int) -> None:
        """Adds the chosen rows of values, [features, rows] float64; NaN is absent."""
        arguments = (*values.shape, chosen.view(np.uint8), self._moments, threads)
        call("add_moments", np.ascontiguousarray(values), *arguments)

    def state(self) -> list[list[float]]:
        """The moments as JSON-able numbers, which JSON stores exactly."""
        return self._moments.tolist()

    def restore(self, state: Sequence[Sequence[float]]) -> None:
        self._moments = np.array(state, np.float64).reshape(-1, 3)

    def statistics(self) -> list[Statistics]:
        statistics = []
        for count, mean, squares in self._moments:
            statistics.append(Statistics(float(mean), math.sqrt(squares / count) if squares > 0 else 1.0))
        return statistics


class Transform:
    """Transforms dense columns: log, standard, none, or an indicator, per feature."""

    def __init__(self, features: Sequence[Dense], statistics: Sequence[Statistics]) -> None:
        scales = [
            scale if feature.transform == "standard" else Statistics(0.0, 1.0)
            for feature, scale in zip(features, statistics, strict=True)
        ]
        self._logs = np.array([feature.transform == "log" for feature in features], np.uint8)
        self._indicators = [f for f in range(len(features)) if features[f].transform == "missing"]
        self._shift = np.array([scale.mean for scale in scales], np.float64)
        self._divisor = np.array([scale.deviation for scale in scales], np.float64)

    def apply(self, values: np.ndarray, threads: int) -> np.ndarray:
        """Transforms [features, rows] float64 to [rows, features] float32; 0 where a value is missing."""
        num_features, num_rows = values.shape
        dense = np.zeros((num_rows, num_features), np.float32)
        arguments = (*values.shape, self._logs, self._shift, self._divisor, dense, threads)
        call("transform", np.ascontiguousarray(values), *arguments)
        for f in self._indicators:
            dense[:, f] = np.isnan(values[f])
        return dense

    def inverse(self, f: int, values: np.ndarray) -> np.ndarray:
        """The numbers of feature f as they were, float64, to the digits that float32 has kept; those
        below 0 under `log` are 0, and missing ones what became 0."""
        values = values.astype(np.float64)
        if self._logs[f]:
            return np.expm1(np.minimum(values, _LARGEST_LOG))
        noise = np.maximum(np.abs(values) * 2.0**-23, 2.0**-40) * self._divisor[f]
        scale = 10.0 ** -np.ceil(np.log10(noise))
        return np.round((values * self._divisor[f] + self._shift[f]) * scale) / scale
