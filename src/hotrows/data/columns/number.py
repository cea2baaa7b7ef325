"""Numbers: one a sample, transformed by statistics of the training part, side by side in `dense`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hotrows.data.raw.cells import Cells
from hotrows.data.raw.values import Bad
from hotrows.data.rows import Arrays, RawRows, Section
from hotrows.runtime.native import call
from hotrows.schema import Dense, Schema, column_of

_LARGEST_LOG = 330.0  # of numbers whose squares have a finite sum, too
MISSING = "missing"  # the section that shards do not have: [rows, numbers and vectors] bool


@dataclass(frozen=True)
class Statistics:
    """Mean and (population) deviation of a column over the training part."""

    mean: float = 0.0
    deviation: float = 1.0


class NumberColumns:
    """The single numbers of a schema. statistics: by feature, of those that are `standard`."""

    def __init__(self, schema: Schema, statistics: Mapping[str, Statistics] | None = None) -> None:
        self.features = schema.dense
        self.standard = [p for p, f in enumerate(self.features) if f.transform == "standard"]
        self._indicators = [p for p, f in enumerate(self.features) if f.transform == "missing"]
        self._logs = np.array([feature.transform == "log" for feature in self.features], np.uint8)
        known, none = statistics or {}, Statistics()
        scales = [known.get(f.name, none) if f.transform == "standard" else none for f in self.features]
        self._shift = np.array([scale.mean for scale in scales], np.float64)
        self._divisor = np.array([scale.deviation for scale in scales], np.float64)
        shared = tuple(p for p, f in enumerate(self.features) if f.name in schema.shared)
        width = len(self.features)
        names = tuple(feature.name for feature in self.features)
        self.sections = (
            Section("dense", np.dtype(np.float32), width, shared_places=shared, names=names),
        )
        self.numeric = tuple(map(column_of, self.features))

    def read(self, cells: Cells, values: dict[str, Any]) -> Iterable[Bad | None]:
        dense = values["dense"] = np.full((len(self.features), cells.num_rows), np.nan)
        for into, column in zip(dense, self.numeric, strict=True):
            if cells.has(column):
                into[:] = cells.number(column)[0]
        return (cells.bad_number,)

    def encode(self, raw: RawRows, arrays: Arrays, threads: int) -> None:
        numbers = raw.values["dense"]
        arrays["dense"] = self.transformed(numbers, threads)
        arrays[MISSING] = np.ascontiguousarray(np.isnan(numbers).T)

    def transformed(self, values: np.ndarray, threads: int) -> np.ndarray:
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


class ColumnMoments:
    """Count, mean and sum of squared differences of columns, chunk by chunk (Welford 1962)."""

    def __init__(self, num_features: int) -> None:
        self._moments = np.zeros((num_features, 3))

    def add(self, values: np.ndarray, threads: int) -> None:
        """Adds rows of values, [features, rows] float64; NaN is absent."""
        every = np.ones(values.shape[1], np.uint8)
        call("add_moments", np.ascontiguousarray(values), *values.shape, every, self._moments, threads)

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


def ranges_of(features: Sequence[Dense], numbers: np.ndarray) -> dict[str, tuple[float, float]]:
    """The least and the greatest number of features under `log` and `none`."""
    ranges = {}
    for of_feature, feature in zip(numbers, features, strict=True):
        if feature.transform in ("log", "none") and len(of_feature):
            low, high = float(np.fmin.reduce(of_feature)), float(np.fmax.reduce(of_feature))
            if low <= high:
                ranges[feature.name] = low, high
    return ranges
