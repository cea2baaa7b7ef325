"""Rates of missing and unknown values, and whether they are far from those of the prepared data.

Rows that are spelled otherwise than those of the training (another format, another unit, a column that
was moved) are encoded without an error: their values become unknown or missing. A rate is **far** where

- it differs by more than FAR from the rates of all parts of the prepared data, those between included
  (fewer unknown values than usual are never far, nor are hours and weekdays that training did not cover);
- and chance is no explanation: rows drawn at the nearest of these rates q would show such a rate p with
  a probability below CHANCE, by Chernoff's bound exp(-n KL(p, q)) for n values. q counts one value more
  of either kind than the part had, so that few rows, here or there, are far from nothing.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from hotrows.data.columns.number import MISSING
from hotrows.data.columns.of_schema import SchemaColumns, missing_of
from hotrows.data.raw.reading import show
from hotrows.data.rows import RawRows, Rows
from hotrows.data.stored.part import Part
from hotrows.data.stored.shards import Written, no_tally, tally_of, written_of
from hotrows.runtime.sums import Summed
from hotrows.runtime.user_warnings import warn
from hotrows.schema import TIME_TRANSFORMS

FAR = 0.05
CHANCE = 1e-6
KINDS = ("unknown", "missing")
_NAMED = 10  # features that one warning names


@dataclass(frozen=True)
class ValueCounts(Summed):
    """Values of a feature: their number, and how many of them are missing or unknown.

    An empty list counts as one missing value. lists: how many there are; 0: one value a sample.
    """

    values: int = 0
    missing: int = 0
    unknown: int = 0
    lists: int = 0

    def count(self, kind: str) -> tuple[int, int]:
        """How many are "missing" or "unknown", and of how many: of missing ones of lists, the lists."""
        if kind == "missing" and self.lists:
            return min(self.missing, self.lists), self.lists
        return getattr(self, kind), self.values

    def rate(self, kind: str) -> float:
        """The share of the values that are of a kind; "missing" of lists: of the lists that are empty."""
        number, total = self.count(kind)
        return number / max(total, 1)


@dataclass(frozen=True)
class UsualCounts:
    """These counts of every part of the prepared data that has rows. closed: features of a fixed set of
    values, such as hours, of which an unknown one is only not covered."""

    parts: tuple[Mapping[str, ValueCounts], ...] = ()
    closed: frozenset[str] = frozenset()

    @cached_property
    def ranges(self) -> dict[tuple[str, str], tuple[float, float]]:
        """By feature and kind the lowest and the highest rate; see above for what they count."""
        rates: dict[tuple[str, str], list[float]] = {}
        for name, counts in ((name, counts) for part in self.parts for name, counts in part.items()):
            for kind in KINDS if counts.values else ():
                number, total = counts.count(kind)
                rate = (number + 1) / (total + 2)
                if kind != "unknown" or name not in self.closed:
                    rates.setdefault((name, kind), []).append(rate)
        return {key: (min(of_parts), max(of_parts)) for key, of_parts in rates.items()}


@dataclass(frozen=True)
class ValueRates:
    """Missing and unknown values of some rows by feature.

    usual: of the prepared data, if there is any; examples: a value of each
    feature that is unknown, as it was found, where that is known.
    """

    rows: int
    features: Mapping[str, ValueCounts]
    usual: UsualCounts = UsualCounts()
    examples: Mapping[str, bytes] = field(default_factory=dict)

    @staticmethod
    def of_parts(parts: Iterable[Part], usual: Iterable[Part]) -> ValueRates:
        """The rates of some parts together, compared with those of the parts `usual`."""
        parts = list(parts)
        counts = [_counts_of(part, part.rows) for part in parts]
        features = {name: sum((some[name] for some in counts), ValueCounts()) for name in counts[0]}
        return ValueRates(sum(part.rows for part in parts), features, usual_of(usual))

    @property
    def far(self) -> tuple[str, ...]:
        """Says of each feature whose rates are far from the usual ones what they are and were."""
        distances = [(abs(p - q), text) for p, q, text in self._far()]
        return tuple(text for _, text in sorted(distances, key=lambda pair: -pair[0]))

    def summary(self) -> str:
        """The rates over all features and the largest ones, in a line."""
        total = sum(self.features.values(), ValueCounts())
        words = [f"{self.rows:,} samples"]
        for kind in ("missing", "unknown"):
            name = max(self.features, key=lambda name: self.features[name].rate(kind))
            most = self.features[name].rate(kind)
            where = f", most in {name!r} ({most:.1%})" if most else ""
            words.append(
                f"{kind}: {getattr(total, kind) / max(total.values, 1):.1%} of the values{where}"
            )
        return "; ".join(words)

    def warn(self) -> None:
        """Warns, in a line, of the features whose rates are far from the usual ones."""
        if far := self.far:
            warn(warning_of(far))

    def _far(self) -> Iterator[tuple[float, float, str]]:
        """Yields rate, nearest usual rate and description of every rate that is far."""
        for name, counts in self.features.items():
            for kind in KINDS:
                nearest = _nearest(counts, kind, self.usual.ranges.get((name, kind)))
                if nearest is None:
                    continue
                example = self.examples.get(name) if kind == "unknown" else None
                such_as = f" (such as {show(example)})" if example else ""
                rates = sorted(p[name].rate(kind) for p in self.usual.parts if p[name].values)
                expected = " to ".join(dict.fromkeys(f"{rate:.1%}" for rate in (rates[0], rates[-1])))
                text = f"{name!r} {counts.rate(kind):.1%} {kind}{such_as}, expected {expected}"
                yield counts.rate(kind), nearest, text


class RateCounter:
    """Counts the missing and unknown values of rows as they are encoded."""

    def __init__(self, columns: SchemaColumns, usual: UsualCounts) -> None:
        self._columns, self._usual = columns, usual
        self._dense = columns.schema.dense_places
        self._rows, self._tally = 0, no_tally(columns)
        self._numbers = np.zeros(len(self._dense), np.int64)
        self._examples: dict[str, bytes] = {}

    def add(self, raw: RawRows, rows: Rows, once: np.ndarray | None = None) -> None:
        """Counts rows. once: [numbers and vectors] bool, where all rows have one in common, which counts
        as one (default: nowhere)."""
        if once is not None:
            missing = missing_of(rows, self._columns).copy()
            missing[1:, once] = False
            rows = rows.with_arrays({MISSING: missing}, {})
        self._numbers += len(rows) if once is None else np.where(once, 1, len(rows))
        tally = tally_of(rows, self._columns)
        for f, column in enumerate(self._columns.ids):
            if tally.unknown[f] and column.name not in self._examples:
                section = f"ids/{column.name}"
                place = int(column.is_unknown(rows.values(section)).argmax())
                self._examples[column.name] = raw.values[section].value(place)
        self._rows += len(rows)
        self._tally += tally

    def rates(self) -> ValueRates:
        written = written_of((), self._tally, self._columns)
        numbers = dict(zip(self._dense, self._numbers.tolist(), strict=True))
        written = dataclasses.replace(written, values={**written.values, **numbers})
        features = _counts_of(written, self._rows)
        return ValueRates(self._rows, features, self._usual, dict(self._examples))


def warning_of(far: Sequence[str]) -> str:
    """The line that warns of features; far: what is said of each."""
    more = f"; and {len(far) - _NAMED:,} more" if len(far) > _NAMED else ""
    return (
        f"values differ from those that the data was prepared from: "
        f"{'; '.join(far[:_NAMED])}{more}; is the column the same, and written as it was there?"
    )


def usual_of(parts: Iterable[Part]) -> UsualCounts:
    """The counts of every part that has rows."""
    parts = [part for part in parts if part.rows]
    closed = {f.name for part in parts for f in part.schema.sparse if f.transform in TIME_TRANSFORMS}
    return UsualCounts(tuple(_counts_of(part, part.rows) for part in parts), frozenset(closed))


def _counts_of(counted: Part | Written, rows: int) -> dict[str, ValueCounts]:
    counts = {}
    for name, missing in counted.missing.items():
        empty, lists = counted.empty.get(name, 0), rows * (name in counted.empty)
        values = counted.values.get(name, rows) + empty  # of a number, one a row
        counts[name] = ValueCounts(values, missing + empty, counted.unknown.get(name, 0), lists)
    return counts


def _nearest(counts: ValueCounts, kind: str, usual: tuple[float, float] | None) -> float | None:
    """The usual rate from which a rate is far; None if it is not. usual: the lowest and the highest."""
    if not counts.values or usual is None:
        return None
    rate = counts.rate(kind)
    nearest = min(max(rate, usual[0]), usual[1])
    if kind == "unknown" and rate < nearest:
        return None
    if abs(rate - nearest) <= FAR:
        return None
    return None if is_chance(counts.count(kind)[1], rate, nearest) else nearest


def is_chance(values: int, rate: float, usual: float) -> bool:
    """True if so many values may show a rate by chance where another one is usual."""
    sides = ((rate, usual), (1 - rate, 1 - usual))
    divergence = sum(p * math.log(p / q) for p, q in sides if p > 0)  # KL of two coins
    return values * divergence <= -math.log(CHANCE)
