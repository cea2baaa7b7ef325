"""Slices of a sample: its rows by the values of a column.

Numbers are cut into fifths. Of ids, each of the most frequent values is a slice, and so are unknown ones,
missing ones and all others; a row with a list of values is in the slice of each. A history is cut by its
length, the column of groups by their size, and `unknown` by the number of unknown values in a row.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from hotrows.data import EncodedData
from hotrows.data.columns.id import IdColumn
from hotrows.data.columns.of_schema import SchemaColumns
from hotrows.data.encode.vocabulary import Values
from hotrows.losses import NO_GROUP
from hotrows.runtime.suggestions import did_you_mean
from hotrows.schema import Schema, vocabulary_of
from hotrows.tools.report.quality import MetricInterval, Quality, measure
from hotrows.train.telling.row_sample import RowSample, ScoredRows

UNKNOWN, OTHERS = "unknown", "(other values)"
_TIMES = 40  # resamples
_VALUES, _FIFTHS = 8, 5
_COUNTS = (0, 1, 2, 5, 10, 20, 50, 100)  # where slices by a count begin
_LISTED = 3  # values of a list that a cell shows
_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_LEAST = 30  # rows of a slice that is measured


@dataclass(frozen=True)
class RowSlice:
    """Rows of a sample. name: of their values; rows: their numbers [n]."""

    name: str
    rows: Tensor


@dataclass(frozen=True)
class MeasuredSlice:
    """Samples of a label in a slice, and how good predictions of them are; None: too few to tell."""

    name: str
    samples: int
    quality: Quality | None

    def estimate(self, metric: str) -> MetricInterval | None:
        return self.quality.estimates.get(metric) if self.quality else None


class Slicer:
    """Cuts a sample of prepared data into slices. values: raw values by vocabulary, where known."""

    def __init__(
        self, sample: RowSample, data: EncodedData, values: Mapping[str, Values] | None = None
    ) -> None:
        self._sample, self._schema, self._values = sample, data.schema, values or {}
        columns = SchemaColumns(data.schema, data.statistics)
        self._numbers = columns.numbers
        self._ids = {column.name: column for column in columns.ids}
        numbers = {feature.name for feature in columns.numbers.features}
        self._features = [f.name for f in data.schema.features if f.name in {*self._ids, *numbers}]

    @property
    def columns(self) -> tuple[str, ...]:
        """The names by which a sample can be cut."""
        group = self._schema.grouping
        return tuple(dict.fromkeys((*self._features, *([group] if group else []), UNKNOWN)))

    def check(self, columns: Sequence[str]) -> None:
        """Raises ValueError for the first name that is none of `columns`."""
        for column in columns:
            if column not in self.columns:
                names, hint = ", ".join(self.columns), did_you_mean(column, self.columns)
                raise ValueError(f"--slice takes a column of {names}, not {column!r}{hint}")

    def slices(self, column: str) -> list[RowSlice]:
        """Cuts the sample by a column; ValueError where there is none of this name."""
        self.check((column,))
        if (ids := self._ids.get(column)) is not None:
            lengths = self._sample.ids[column][1]
            return list(_by_count(lengths, "ids") if ids.is_sequence else self._by_value(ids))
        if column in self._features:
            number = [feature.name for feature in self._numbers.features].index(column)
            values = self._sample.rows.dense[:, number].numpy()
            return list(_fifths(self._numbers.inverse(number, values)))
        groups = self._sample.rows.groups
        if column == self._schema.grouping and groups is not None:
            _, places, sizes = groups.unique(return_inverse=True, return_counts=True)
            return list(_by_count(sizes[places].where(groups != NO_GROUP, 1), "rows"))
        return list(_by_count(self._num_unknown(), "unknown values"))

    def _by_value(self, column: IdColumn) -> Iterator[RowSlice]:
        ids, lengths, _ = self._sample.ids[column.name]
        rows = torch.arange(len(lengths)).repeat_interleave(lengths)
        known, counts = ids.unique(return_counts=True)
        lookup = column.lookup
        reserved = {lookup.missing, *lookup.unknown}
        falling = known[counts.argsort(descending=True, stable=True)].tolist()
        frequent = [one for one in falling if one not in reserved][:_VALUES]
        for one in frequent:
            yield RowSlice(self._name(column, one), rows[ids == one].unique())
        unknown = torch.from_numpy(column.is_unknown(ids.numpy()))
        absent = torch.cat([rows[ids == lookup.missing], (lengths == 0).nonzero()[:, 0]])
        yield RowSlice("(unknown)", rows[unknown].unique())
        yield RowSlice("(missing)", absent.unique())
        left = torch.ones(len(lengths), dtype=torch.bool)
        left[rows[torch.isin(ids, torch.tensor([*frequent, *reserved]))]] = False
        left[absent] = False
        yield RowSlice(OTHERS, left.nonzero()[:, 0])

    def _name(self, column: IdColumn, number: int) -> str:
        values, lookup = self._values.get(vocabulary_of(column.feature)), column.lookup
        rank = number - lookup.unknown.stop
        if not lookup.has_values or values is None or values.index is None or rank >= len(values):
            return f"{'id' if lookup.has_values else 'key'} {number}"
        text = values.value(rank).decode(errors="replace")
        return clock_name(getattr(column.feature, "transform", "none"), text)

    def value(self, feature: str, row: int) -> str:
        """The value of a feature in a row of the sample, for people."""
        if feature in self._ids:
            column, (ids, lengths, _) = self._ids[feature], self._sample.ids[feature]
            first = int(lengths[:row].sum())
            of_row = ids[first : first + int(lengths[row])].tolist()
            reserved = {column.lookup.missing: "missing"} | dict.fromkeys(
                column.lookup.unknown, "unknown"
            )
            is_history = column.is_sequence
            shown = of_row[-_LISTED:] if is_history else of_row[:_LISTED]  # the newest are last
            names = ", ".join(reserved.get(one) or self._name(column, one) for one in shown) or "none"
            cut = len(of_row) > _LISTED
            return "… " * (cut and is_history) + names + " …" * (cut and not is_history)
        if feature not in self._features:
            return ""
        number = [one.name for one in self._numbers.features].index(feature)
        values = self._sample.rows.dense[row : row + 1, number].numpy()
        return _number(float(self._numbers.inverse(number, values)[0]))

    def _num_unknown(self) -> Tensor:
        counts = torch.zeros(len(self._sample), dtype=torch.int64)
        for column in self._ids.values():
            ids, lengths, _ = self._sample.ids[column.name]
            rows = torch.arange(len(lengths)).repeat_interleave(lengths)
            unknown = torch.from_numpy(column.is_unknown(ids.numpy()))
            counts += rows[unknown].bincount(minlength=len(counts))
        return counts


def measured(scored: ScoredRows, slices: Sequence[RowSlice], seed: int = 0) -> list[MeasuredSlice]:
    """Measures the slices that are not empty."""
    results = []
    for one in slices:
        among = scored.among(one.rows)
        if len(among):
            quality = measure(among, times=_TIMES, seed=seed) if len(among) >= _LEAST else None
            results.append(MeasuredSlice(one.name, len(among), quality))
    return results


def clock_name(transform: str, text: str) -> str:
    """A value of a feature of time as people name it: 10 is 10:00, or Monday.

    >>> clock_name("hour", "9"), clock_name("weekday", "0"), clock_name("none", "9")
    ('9:00', 'Monday', '9')
    """
    if transform == "hour":
        return f"{text}:00"
    if transform == "weekday" and text.isdigit() and int(text) < len(_DAYS):
        return _DAYS[int(text)]
    return {"0": "Monday to Friday", "1": "weekend"}.get(text, text) if transform == "weekend" else text


def default_columns(important: Sequence[str], schema: Schema) -> tuple[str, ...]:
    """The columns to cut by where none is named: the most important features, and unknown values."""
    return tuple(dict.fromkeys((*important[:4], *([UNKNOWN] if schema.counted_features else []))))


def _fifths(values: np.ndarray) -> Iterator[RowSlice]:
    edges = np.unique(np.quantile(values, np.linspace(0, 1, _FIFTHS + 1)[1:-1]))
    places = torch.from_numpy(np.searchsorted(edges, values, side="left"))
    for place in range(len(edges) + 1):
        rows = (places == place).nonzero()[:, 0]
        if len(rows):
            low, high = values[rows].min(), values[rows].max()
            name = _number(low) if low == high else f"{_number(low)} to {_number(high)}"
            yield RowSlice(name, rows)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value == round(value) and abs(value) < 1e15 else f"{value:,.6g}"


def _by_count(counts: Tensor, unit: str) -> Iterator[RowSlice]:
    """unit: what is counted."""
    for first, end in zip(_COUNTS, (*_COUNTS[1:], None), strict=True):
        rows = ((counts >= first) & (counts < (end or counts.max() + 1))).nonzero()[:, 0]
        name = (
            f"{first}"
            if end == first + 1
            else f"{first} or more"
            if end is None
            else f"{first} to {end - 1}"
        )
        yield RowSlice(f"{name} {unit}", rows)
