"""Lists of ids, which may have a weight each; of longer ones the last `max_length` are used."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from hotrows.data.columns.id import IdColumn, made_of
from hotrows.data.raw import values as raw_values
from hotrows.data.raw.cells import Cells
from hotrows.data.raw.values import Bad, RawIds, keep_last, last_ones
from hotrows.data.rows import Section
from hotrows.schema import IdFeature, Schema, Sequence


class ListColumn(IdColumn):
    """A column of lists of ids, and, where the feature says so, another one of their weights."""

    is_list = True

    def __init__(self, schema: Schema, feature: IdFeature) -> None:
        super().__init__(schema, feature)
        self.separator, self.max_length = feature.separator, feature.max_length
        self.weights: str | None = getattr(feature, "weights", None)
        self.has_weights = self.weights is not None
        self.is_sequence = isinstance(feature, Sequence)
        is_ordered = self.is_sequence or feature.max_length is not None
        self.has_order = is_ordered and feature.name not in schema.histories

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.column, *([self.weights] if self.weights else []))

    @property
    def sections(self) -> tuple[Section, ...]:
        weights = Section(f"weights/{self.name}", np.dtype(np.float32), None, True, self.shared)
        return (*super().sections, *([weights] if self.weights else []))

    def read(self, cells: Cells, values: dict[str, Any]) -> Iterable[Bad]:
        problems: list[Bad] = []
        if cells.has(self.column):
            lists = cells.lists(self.column, self.separator)
            lists, problems = made_of(self.feature, self.column, lists)
        else:
            lists = raw_values.cut_lists(raw_values.no_values(cells.num_rows), self.separator, 1)
        if self.weights is None:
            values[f"ids/{self.name}"] = keep_last(lists, self.max_length)
            return problems
        return self._read_weights(cells, values, lists, self.weights)

    def _read_weights(
        self, cells: Cells, values: dict[str, Any], lists: RawIds, column: str
    ) -> Iterable[Bad]:
        """Reads the weights of lists, float32, one for each id; both are shortened alike."""
        assert lists.offsets is not None
        if cells.has(self.column) != cells.has(column):
            raise ValueError(
                f"{cells.where(0)}: expected both columns {self.column!r} and {column!r}, found one"
            )
        numbers, offsets, bad = np.zeros(0), lists.offsets, None
        if cells.has(column):
            numbers, offsets, bad = cells.list_numbers(column, self.separator)
        with np.errstate(over="ignore"):
            weights = numbers.astype(np.float32)
        lengths = np.diff(lists.offsets)
        places = np.flatnonzero(~np.isfinite(weights))[:1].tolist() if bad is None else [bad]
        wrong = np.searchsorted(offsets, places, "right") - 1
        unequal = np.flatnonzero(np.diff(offsets) != lengths)[:1]
        if len(rows := np.concatenate([wrong, unequal])):
            row = int(rows.min())
            expected = f"list of {lengths[row]} numbers, as {self.column!r} has ids"
            return (Bad(row, column, expected),)
        kept = last_ones(lists.offsets, self.max_length)
        values[f"ids/{self.name}"] = keep_last(lists, self.max_length)
        values[f"weights/{self.name}"] = weights if kept is None else weights[kept]
        return ()

    def absent(self, values: np.ndarray, bounds: np.ndarray | None) -> np.ndarray:
        assert bounds is not None
        return np.diff(bounds.astype(np.int64)) == 0

    def encode(
        self, values: Mapping[str, Any], ids: np.ndarray, arrays: dict[str, Any], bounds: dict[str, Any]
    ) -> None:
        super().encode(values, ids, arrays, bounds)
        if self.weights is not None:
            arrays[f"weights/{self.name}"] = values[f"weights/{self.name}"]


class AddedValue(ListColumn):
    """A history in the lines of a stream: each line has the value that it adds, a list of one."""

    def __init__(self, schema: Schema, feature: IdFeature) -> None:
        super().__init__(schema, feature)
        self.column = feature.column or feature.name

    def read(self, cells: Cells, values: dict[str, Any]) -> Iterable[Bad]:
        raw = cells.ids(self.column) if cells.has(self.column) else raw_values.no_values(cells.num_rows)
        values[f"ids/{self.name}"] = replace(raw, offsets=np.arange(cells.num_rows + 1))
        return ()
