"""Counts of rows by label and by feature, which data.json has of each part."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from hotrows.data.columns.label import missing_labels
from hotrows.data.columns.of_schema import SchemaColumns, missing_of
from hotrows.data.rows import Rows
from hotrows.runtime.sums import Summed


@dataclass(frozen=True)
class Tally(Summed):
    """Counts of rows, int64: [T] per label, [F] per feature that carries ids.

    clicks, labelled: rows whose label is 1, and rows that have one; dense_missing: by number and vector,
        rows that lack it; missing, unknown: ids of missing and of unknown values; values: ids in all;
        empty: rows with an empty list.
    """

    clicks: np.ndarray
    labelled: np.ndarray
    dense_missing: np.ndarray
    missing: np.ndarray
    unknown: np.ndarray
    values: np.ndarray
    empty: np.ndarray

    def to_json(self) -> dict[str, list[int]]:
        return {name: counts.tolist() for name, counts in vars(self).items()}

    @staticmethod
    def from_json(stored: dict[str, list[int]]) -> Tally:
        return Tally(**{name: np.array(counts, np.int64) for name, counts in stored.items()})


def tally_of(rows: Rows, columns: SchemaColumns) -> Tally:
    """Counts rows."""
    values = [rows.values(f"ids/{column.name}") for column in columns.ids]
    pairs = list(zip(columns.ids, values, strict=True))
    bounds = [rows.bounds.get(column.name) for column in columns.ids]
    labels = rows.arrays["labels"].reshape(len(rows), len(columns.schema.labels))
    missing = missing_of(rows, columns)
    return Tally(
        clicks=np.count_nonzero(labels == 1, axis=0),
        labelled=np.count_nonzero(~missing_labels(labels), axis=0),
        dense_missing=_counts(map(np.count_nonzero, np.ascontiguousarray(missing.T))),
        missing=_counts(np.count_nonzero(ids == c.lookup.missing) for c, ids in pairs),
        unknown=_counts(np.count_nonzero(c.is_unknown(ids)) for c, ids in pairs),
        values=_counts(map(len, values)),
        empty=_counts(0 if o is None else np.sum(o[1:] == o[:-1]) for o in bounds),
    )


def no_tally(columns: SchemaColumns) -> Tally:
    """The counts of no rows."""
    labels, features = len(columns.schema.labels), len(columns.ids)
    sizes = (labels, labels, len(columns.schema.dense_places), features, features, features, features)
    return Tally(*(np.zeros(size, np.int64) for size in sizes))


def _counts(numbers: Iterable[Any]) -> np.ndarray:
    return np.array([int(number) for number in numbers], np.int64)
