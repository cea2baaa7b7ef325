"""Counts of encoded rows: of labels, and of missing and unknown values."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from hotrows.data.raw.cells import missing_labels
from hotrows.data.stored.rows import Rows, missing_id
from hotrows.schema import FIRST_UNKNOWN, Schema


@dataclass(frozen=True)
class Tally:
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

    def __add__(self, other: Tally) -> Tally:
        return Tally(*map(np.add, vars(self).values(), vars(other).values()))

    def to_json(self) -> dict[str, list[int]]:
        return {name: counts.tolist() for name, counts in vars(self).items()}

    @staticmethod
    def from_json(stored: dict[str, list[int]]) -> Tally:
        return Tally(**{name: np.array(counts, np.int64) for name, counts in stored.items()})


def tally_of(rows: Rows, missing: np.ndarray, schema: Schema) -> Tally:
    """Counts rows; missing: [numbers and vectors, rows] bool, where one was missing."""
    features = schema.id_features
    values = [rows.values(f) for f in range(len(features))]
    labels = rows.labels.reshape(len(rows), len(schema.labels))
    ends = [FIRST_UNKNOWN + f.num_unknown for f in features]
    return Tally(
        clicks=np.count_nonzero(labels == 1, axis=0),
        labelled=np.count_nonzero(~missing_labels(labels), axis=0),
        dense_missing=np.count_nonzero(missing, axis=1),
        missing=_counts(
            np.count_nonzero(ids == missing_id(f)) for ids, f in zip(values, features, strict=True)
        ),
        unknown=_counts(
            np.count_nonzero((ids >= FIRST_UNKNOWN) & (ids < end)) if f.dynamic is None else 0
            for ids, end, f in zip(values, ends, features, strict=True)
        ),
        values=_counts(map(len, values)),
        empty=_counts(0 if o is None else np.sum(o[1:] == o[:-1]) for o in rows.offsets[: len(features)]),
    )


def no_tally(schema: Schema) -> Tally:
    """The counts of no rows."""
    labels, features = len(schema.labels), len(schema.id_features)
    sizes = (labels, labels, len(schema.dense_places), features, features, features, features)
    return Tally(*(np.zeros(size, np.int64) for size in sizes))


def _counts(numbers: Iterable[Any]) -> np.ndarray:
    return np.array([int(number) for number in numbers], np.int64)
