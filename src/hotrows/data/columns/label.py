"""Labels: 0 and 1, or numbers, by what a schema says counts as 1 and how it is learned.

They are side by side in `labels`: uint8, 255 where missing, or, where one of them is a number, float32,
NaN where missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from hotrows.data.raw import values as raw_values
from hotrows.data.raw.cells import Cells
from hotrows.data.raw.values import Bad, canonical_words
from hotrows.data.rows import Arrays, RawRows, Section
from hotrows.schema import Label, Schema, column_of

MISSING_LABEL = 255  # of labels that are 0 or 1; NaN where labels are numbers


class LabelColumns:
    """The labels of a schema; the only one must be in every row that trains."""

    def __init__(self, schema: Schema) -> None:
        self.labels = schema.labels
        of_numbers = not all(label.values.binary for label in self.labels)
        self._nothing: Any = np.float32(np.nan) if of_numbers else np.uint8(MISSING_LABEL)
        self._width = None if len(self.labels) == 1 else len(self.labels)
        self.sections = (Section("labels", self._nothing.dtype, self._width),)
        self.numeric = tuple(column_of(label) for label in self.labels if not label.positive)

    def read(self, cells: Cells, values: dict[str, Any]) -> Iterable[Bad | None]:
        if not (cells.how.for_training or any(cells.has(column_of(label)) for label in self.labels)):
            return ()
        labels = np.full((len(self.labels), cells.num_rows), self._nothing)
        values["labels"] = labels
        problems: list[Bad] = []
        for into, label in zip(labels, self.labels, strict=True):
            if cells.has(column_of(label)):
                problems += self._read(cells, label, into)
        return problems

    def _read(self, cells: Cells, label: Label, into: np.ndarray) -> Iterable[Bad]:
        column = column_of(label)
        # Compare text with the words for 1, and numbers with what the label may be.
        if label.positive:
            raw = cells.ids(column)
            into[:] = raw_values.is_one_of(raw, canonical_words(label.positive))
            absent, wrong = raw.lengths == 0, np.zeros(0, bool)
        else:
            numbers, bad = cells.number(column)
            if bad is not None:
                yield _bad(label, bad.row)
            absent = np.isnan(numbers)
            if label.at_least is None:
                wrong = ~absent & label.values.wrong(numbers)
                with np.errstate(over="ignore", invalid="ignore"):  # of wrong ones
                    into[:] = numbers == 1 if label.values.binary else numbers
            else:
                wrong = np.zeros(0, bool)
                into[:] = numbers >= label.at_least
        # A label that is absent does not count.
        into[absent] = self._nothing
        # Name the first row that is wrong.
        places = np.flatnonzero(wrong)
        if len(self.labels) == 1 and column not in cells.how.optional:
            places = np.sort(np.concatenate([places, np.flatnonzero(absent)]))
        if len(places):
            first = _bad(label, int(places[0]))
            if absent[first.row]:
                rows = f"leave rows without it out (of a frame: frame.dropna(subset=[{column!r}]))"
                alone = f"leave out the column {column!r} to predict rows without labels"
                first = replace(first, remedy=rows if cells.how.for_training else alone)
            yield first

    def encode(self, raw: RawRows, arrays: Arrays, threads: int) -> None:
        labels = raw.get("labels")
        if labels is None:
            labels = np.full((len(self.labels), raw.num_rows), self._nothing)
        arrays["labels"] = labels[0] if self._width is None else np.ascontiguousarray(labels.T)

    def of_batch(self, stored: np.ndarray) -> np.ndarray:
        """Labels as a batch has them: float32, NaN where missing."""
        labels = stored.astype(np.float32)
        if (absent := missing_labels(stored)).any():
            labels[absent] = np.nan
        return labels

    def stored(self, labels: np.ndarray, where: Callable[[int], str]) -> np.ndarray:
        """Labels of a batch as they are stored; ValueError names the first that may not be. where: names
        a row."""
        absent = np.isnan(labels) & (len(self.labels) > 1)
        columns = labels.reshape(len(labels), len(self.labels)).T
        pairs = zip(self.labels, columns, strict=True)
        is_wrong = np.stack([label.values.wrong(column) for label, column in pairs], 1)
        wrong = np.argwhere(is_wrong.reshape(labels.shape) & ~absent)
        if len(wrong):
            row, *place = wrong[0].tolist()
            label, value = self.labels[place[0] if place else 0], float(labels[tuple(wrong[0])])
            raise ValueError(
                f"label {label.name!r}: expected a {label.values.words}, found {value} in {where(row)}"
            )
        stored = np.full(labels.shape, self._nothing)
        stored[~absent] = labels[~absent]
        return stored


def missing_labels(labels: np.ndarray) -> np.ndarray:
    return np.isnan(labels) if labels.dtype.kind == "f" else labels == MISSING_LABEL


def means_of_labels(
    pieces: Iterable[tuple[np.ndarray, np.ndarray | None]], num_labels: int
) -> tuple[float | None, ...]:
    """The mean of each label over all pieces of (labels as they are stored, weights [rows] or None).

    A row counts as much as its weight, and not at all where it lacks the label. None: no row counts.
    """
    sums, totals = np.zeros(num_labels), np.zeros(num_labels)
    for labels, weights in pieces:
        by_label = labels.reshape(len(labels), num_labels).T  # [T, rows]
        present = ~missing_labels(by_label)
        counts = present * (1.0 if weights is None else weights.astype(np.float64))
        totals += counts.sum(1)
        sums += (counts * np.where(present, by_label, 0)).sum(1)
    pairs = zip(sums.tolist(), totals.tolist(), strict=True)
    return tuple(value / total if total else None for value, total in pairs)


def _bad(label: Label, row: int) -> Bad:
    if label.positive or label.at_least is not None:
        return Bad(row, column_of(label), "label" if label.positive else "number")
    if not label.values.binary:
        return Bad(row, column_of(label), label.values.words)
    name = f"Label({label.name!r}, "
    remedy = (
        f"correct the row, or say in the schema what a 1 is: {name}positive=('VALUE',)) or {name}"
        f"at_least=NUMBER), or how a number is learned: {name}loss='squared'); several classes are not "
        f"learned as one label, but each of them can be one"
    )
    return Bad(row, column_of(label), label.values.words, remedy)
