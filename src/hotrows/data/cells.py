"""Cells: the raw columns of a chunk by name; and what a schema makes of them.

A reader gives `Cells`; `columns_of` reads labels, numbers, ids and times off them, the same for all
readers. Of everything that is wrong in a chunk the smallest row is reported, whatever the number of
threads; within a row labels come first, then numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from hotrows.data import values
from hotrows.data.columns import MISSING_LABEL, Columns, RawIds
from hotrows.data.values import MISSING_TIME
from hotrows.schema import TIME_TRANSFORMS, Label, Schema, Sparse, column_of, is_list

ZERO_OR_ONE = "label 0 or 1"
_LOG, _BUCKET = "log", "bucket"


@dataclass(frozen=True)
class Bad:
    """A value that is not what a column must hold."""

    row: int
    column: str
    expected: str


class Cells(Protocol):
    """The columns of a chunk. `raw` and `lists` are cut and trimmed as the schema says."""

    @property
    def num_rows(self) -> int: ...

    def has(self, column: str) -> bool: ...

    def raw(self, column: str) -> RawIds:
        """The values of a column, one per row."""
        ...

    def lists(self, column: str, separator: str) -> RawIds:
        """The values of a column of lists, with offsets."""
        ...

    def numbers(self, columns: Sequence[str]) -> tuple[np.ndarray, Bad | None]:
        """[columns, rows] float64, NaN where missing; and the first value that is no number."""
        ...

    def times(self, column: str, format: str) -> tuple[np.ndarray, Bad | None]:
        """[rows] int64 seconds since 1970; and the first value that is no time."""
        ...

    def where(self, row: int) -> str:
        """Where a row stands: "train.csv line 17"."""
        ...

    def shown(self, row: int, column: str) -> str:
        """A value as a message shows it."""
        ...


def columns_of(cells: Cells, schema: Schema, for_training: bool = True) -> Columns:
    """What the schema reads of a chunk; ValueError names the first row with something wrong.

    for_training: labels must be there, and group and weight; else they are left out where absent.
    """
    labels = [label for label in schema.labels if for_training or cells.has(column_of(label))]
    numbers, found_bad = _numbers(cells, schema, labels)
    times, bad_time = _times(cells, schema)
    found_labels, bad_labels = _labels(cells, schema, numbers) if labels else (None, [])
    weights, bad_weight = _weights(cells, schema, numbers)
    problems = [*bad_labels, found_bad, bad_weight, bad_time]
    _raise_first(cells, [bad for bad in problems if bad is not None])
    group = schema.group if schema.group and cells.has(schema.group) else None
    return Columns(
        first_row=0,
        num_rows=cells.num_rows,
        ids=tuple(_ids(cells, schema, feature, numbers, times) for feature in schema.id_features),
        dense=_dense(cells, schema, numbers),
        labels=found_labels,
        where=cells.where,
        weights=weights,
        groups=None if group is None else cells.raw(group),
        times=times,
    )


def _numbers(
    cells: Cells, schema: Schema, labels: Sequence[Label]
) -> tuple[dict[str, np.ndarray], Bad | None]:
    """The numbers of every column that is read as one."""
    of_ids = [f for f in schema.sparse if f.transform in (_LOG, _BUCKET)]
    asked = [column_of(label) for label in labels if not label.positive]
    asked += [column_of(feature) for feature in schema.dense]
    asked += [column_of(feature) for feature in of_ids]
    asked += [schema.weight] if schema.weight else []
    columns = [column for column in dict.fromkeys(asked) if cells.has(column)]
    found, bad = cells.numbers(columns)
    plain = [column_of(label) for label in labels if label.at_least is None]
    if bad is not None and bad.column in plain:
        bad = Bad(bad.row, bad.column, ZERO_OR_ONE)
    return dict(zip(columns, found, strict=True)), bad


def _dense(cells: Cells, schema: Schema, numbers: dict[str, np.ndarray]) -> np.ndarray:
    dense = np.full((len(schema.dense), cells.num_rows), np.nan)
    for into, feature in zip(dense, schema.dense, strict=True):
        if (column := column_of(feature)) in numbers:
            into[:] = numbers[column]
    return dense


def _labels(
    cells: Cells, schema: Schema, numbers: dict[str, np.ndarray]
) -> tuple[np.ndarray, list[Bad]]:
    found = np.full((len(schema.labels), cells.num_rows), MISSING_LABEL, np.uint8)
    problems = []
    for into, label in zip(found, schema.labels, strict=True):
        column = column_of(label)
        if not cells.has(column):
            continue
        if label.positive:
            raw = cells.raw(column)
            into[:] = values.is_one_of(raw, label.positive)
            absent, wrong, expected = raw.lengths == 0, np.zeros(0, np.int64), "label"
        else:
            given = numbers[column]
            absent = np.isnan(given)
            if label.at_least is None:
                wrong, expected = np.flatnonzero(~absent & (given != 0) & (given != 1)), ZERO_OR_ONE
                into[:] = given == 1
            else:
                wrong, expected = np.zeros(0, np.int64), "number"
                into[:] = given >= label.at_least
        into[absent] = MISSING_LABEL
        if len(schema.labels) == 1:
            wrong = np.sort(np.concatenate([wrong, np.flatnonzero(absent)]))
        if len(wrong):
            problems.append(Bad(int(wrong[0]), column, expected))
    return found, problems


def _weights(
    cells: Cells, schema: Schema, numbers: dict[str, np.ndarray]
) -> tuple[np.ndarray | None, Bad | None]:
    if schema.weight is None or schema.weight not in numbers:
        return None, None
    given = numbers[schema.weight]
    wrong = np.flatnonzero(~(given >= 0))
    bad = Bad(int(wrong[0]), schema.weight, "weight of at least 0") if len(wrong) else None
    with np.errstate(over="ignore"):  # behind a bad value anything may stand
        return given.astype(np.float32), bad


def _times(cells: Cells, schema: Schema) -> tuple[np.ndarray | None, Bad | None]:
    if schema.time is None or not cells.has(schema.time.column):
        return None, None
    return cells.times(schema.time.column, schema.time.format)


def _ids(
    cells: Cells,
    schema: Schema,
    feature,
    numbers: dict[str, np.ndarray],
    times: np.ndarray | None,
) -> RawIds:
    column = schema.column_of(feature)
    if not cells.has(column):
        nothing = values.no_values(cells.num_rows)
        return values.cut_lists(nothing, feature.separator, 1) if is_list(feature) else nothing
    if is_list(feature):
        return values.keep_last(cells.lists(column, feature.separator), feature.max_length)
    if feature.transform == "none":
        return cells.raw(column)
    if feature.transform in TIME_TRANSFORMS:
        assert times is not None and schema.time is not None
        return values.integers(_of_time(feature, times, schema.time.utc_offset))
    return values.integers(_of_number(feature, numbers[column]))


def _of_number(feature: Sparse, given: np.ndarray) -> np.ndarray:
    """[rows] float64: floor(log(x)^2) above 2 and floor(x) else, or the bucket; NaN where missing."""
    if feature.transform == _BUCKET:
        found = np.searchsorted(feature.boundaries, given, side="right").astype(np.float64)
        return np.where(np.isnan(given), np.nan, found)
    logarithm = np.log(np.where(given > 2, given, 1.0))
    whole = np.clip(given, -(2.0**62), 2.0)
    return np.floor(np.where(given > 2, logarithm**2, whole))


def _of_time(feature: Sparse, times: np.ndarray, utc_offset: float) -> np.ndarray:
    present = times != MISSING_TIME
    seconds = np.where(present, times, 0) + round(utc_offset * 3600)
    days = seconds // 86400
    weekdays = (days + 3) % 7  # 1970 began on a Thursday
    if feature.transform == "hour":
        found = seconds // 3600 % 24
    elif feature.transform == "weekday":
        found = weekdays
    elif feature.transform == "weekend":
        found = (weekdays >= 5).astype(np.int64)
    else:
        dates = days.astype("datetime64[D]")
        found = (dates - dates.astype("datetime64[M]")).astype(np.int64) + 1
    return np.where(present, found, np.nan)


def _raise_first(cells: Cells, problems: list[Bad]) -> None:
    """Raises what is wrong in the smallest row; problems of one row in their order."""
    if not problems:
        return
    bad = min(problems, key=lambda problem: problem.row)
    raise ValueError(
        f"{cells.where(bad.row)}, column {bad.column!r}: expected a {bad.expected}, found "
        f"{cells.shown(bad.row, bad.column)}; correct the row, or the schema"
    )


def show(value: bytes) -> str:
    """A value for a message: cut where it is long."""
    text = value[:60].decode("utf-8", "backslashreplace")
    return repr(text + ("..." if len(value) > 60 else "")) if value else "nothing"
