"""Cells: the raw columns of a chunk by name, and their conversion into `Columns` by a schema.

Every reader implements `Cells`; `columns_of` reads labels, numbers, ids and times from them. Values of id
columns remain bytes in the reader's buffer: nothing is copied, and no row becomes a Python object. Of all
errors in a chunk the one in the smallest row is reported, whatever the number of threads; within a row
labels come first, then numbers.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hotrows.data.raw import values
from hotrows.data.raw.arrow_arrays import clocks_of
from hotrows.data.raw.cell_source import Bad, Cells
from hotrows.data.raw.values import MISSING_TIME, MISSING_WORDS, Marks, RawIds, canonical, canonical_words
from hotrows.runtime.suggestions import did_you_mean
from hotrows.schema import TIME_TRANSFORMS, Label, Schema, Sparse, column_of, is_list

MISSING_LABEL = 255  # of labels that are 0 or 1; NaN where labels are numbers
log = logging.getLogger("hotrows")


@dataclass(frozen=True)
class Columns:
    """Raw rows, cut into columns and checked.

    first_row: number of the first row, counted from 0 through all inputs.
    ids: one per id feature of the schema, sparse ones first; dense: [num_dense, rows] float64, NaN
    where missing; labels: [num_labels, rows] uint8, 255 where missing, or float32 where the schema
    has numbers, NaN where missing; None without labels.
    weights: [rows] float32; groups, requests: a value per row; times: [rows] int64, seconds since 1970,
    of the schema's clock. None where the schema has no such column. units: those of `Reading.by`.
    id_weights: per feature of `weighted` the weights of its ids, float32, list after list.
    vectors: [rows, width] float32 per vector of the schema; a missing one is NaN.
    kept: columns as they are in the input, an Arrow table; None where none are kept.
    where: function from a row of the chunk to its file and line ("train.csv line 17").
    """

    first_row: int
    num_rows: int
    ids: tuple[RawIds, ...]
    dense: np.ndarray
    labels: np.ndarray | None
    where: Callable[[int], str]
    weights: np.ndarray | None = None
    groups: RawIds | None = None
    times: np.ndarray | None = None
    kept: Any = None
    requests: RawIds | None = None
    vectors: tuple[np.ndarray, ...] = ()
    id_weights: tuple[np.ndarray, ...] = ()
    units: RawIds | None = None

    @property
    def missing(self) -> np.ndarray:
        """[numbers and vectors, rows] bool: which are missing."""
        return np.concatenate([np.isnan(self.dense), *(np.isnan(v[:, :1].T) for v in self.vectors)])


def no_labels(shape: tuple[int, ...], numbers: bool) -> np.ndarray:
    """Labels that are all missing; numbers: whether they are float32, not 0 and 1."""
    return np.full(shape, np.nan, np.float32) if numbers else np.full(shape, MISSING_LABEL, np.uint8)


def missing_labels(labels: np.ndarray) -> np.ndarray:
    """Where labels are missing."""
    return np.isnan(labels) if labels.dtype.kind == "f" else labels == MISSING_LABEL


@dataclass(frozen=True)
class Reading:
    """Settings for reading rows.

    for_training: whether every column of the schema is required; otherwise absent ones are left out.
    kept: columns to keep as they are, beside those of the schema; None: all.
    by: another column to read, whose values split the rows. requires_features: whether the columns of
    features are required in any case.
    """

    schema: Schema
    threads: int
    for_training: bool = True
    kept: tuple[str, ...] | None = ()
    by: str | None = None
    requires_features: bool = False

    @property
    def columns(self) -> tuple[str, ...]:
        """The raw columns that are read, each once, without those to keep."""
        return tuple(dict.fromkeys([*self.schema.raw_columns, *([self.by] if self.by else [])]))

    @property
    def marks(self) -> Marks:
        """The marks in numbers that are written as text."""
        return Marks(self.schema.decimal, self.schema.thousands)

    def text(self, raw: RawIds, *columns: str) -> RawIds:
        """Values as they are counted and looked up, empty where missing. columns: see `blank`."""
        raw = canonical(raw, self.threads)
        self.blank(raw, *columns)
        return raw

    def blank(self, raw: RawIds, *columns: str) -> None:
        """Empties the values that mean missing, in place. columns: whose values they are, of one column
        after the other, equally many of each."""
        if not self.schema.missing or not columns:
            return
        missing = [self.schema.missing_of(column) for column in columns]
        words = [(*some, *canonical_words(some)) for some in missing]
        words = words if len(set(words)) > 1 else words[:1]
        size = len(raw) // len(words)
        for first, some in zip(range(0, size * len(words), size or 1), words, strict=False):
            span = slice(first, first + size)
            column = RawIds(raw.text, raw.starts[span], raw.lengths[span])
            values.blank(column, False, some, self.threads)


def columns_of(cells: Cells, how: Reading) -> Columns:
    """Reads the columns of the schema from a chunk; ValueError names the first bad row."""
    schema = how.schema
    labels = [label for label in schema.labels if how.for_training or cells.has(column_of(label))]
    numbers, bad_number = _numbers(cells, how, labels)
    times, clocks, bad_time = _times(cells, schema)
    label_values, bad_labels = _labels(cells, how, numbers) if labels else (None, [])
    weights, bad_weight = _weights(schema, numbers)
    vectors, bad_vectors = _vectors(cells, schema)
    _raise_first(cells, [*bad_labels, bad_number, *bad_vectors, bad_weight, bad_time])
    ids = [_ids(cells, schema, feature, numbers, clocks) for feature in schema.id_features]
    id_weights, bad_lists = _id_weights(cells, schema, ids)
    _raise_first(cells, bad_lists)
    group, request = (
        name if name and cells.has(name) else None for name in (schema.group, schema.request)
    )
    return Columns(
        first_row=0,
        num_rows=cells.num_rows,
        ids=tuple(ids),
        dense=_dense(cells, schema, numbers),
        labels=label_values,
        where=cells.where,
        weights=weights,
        groups=None if group is None else cells.raw(group),
        times=times,
        kept=cells.kept,
        requests=None if request is None else cells.raw(request),
        vectors=vectors,
        id_weights=id_weights,
        units=None if how.by is None else cells.raw(how.by),
    )


def _numbers(
    cells: Cells, how: Reading, labels: Sequence[Label]
) -> tuple[dict[str, np.ndarray], Bad | None]:
    """Reads every column that is parsed as numbers: {column: [rows] float64}."""
    schema = how.schema
    names = [column_of(label) for label in labels if not label.positive]
    names += [column_of(feature) for feature in schema.dense]
    names += [column_of(feature) for feature in schema.sparse if feature.transform in ("log", "bucket")]
    names += [schema.weight] if schema.weight else []
    columns = [column for column in dict.fromkeys(names) if cells.has(column)]
    numbers, bad = cells.numbers(columns)
    for column, column_numbers in zip(columns, numbers, strict=True):
        values.blank_numbers(column_numbers, schema.missing_of(column))
    if bad is not None:
        plain = [label for label in labels if column_of(label) == bad.column and label.at_least is None]
        bad = _bad_label(plain[0], bad.row) if plain else bad
    return dict(zip(columns, numbers, strict=True)), bad


def _dense(cells: Cells, schema: Schema, numbers: dict[str, np.ndarray]) -> np.ndarray:
    dense = np.full((len(schema.dense), cells.num_rows), np.nan)
    for into, feature in zip(dense, schema.dense, strict=True):
        if (column := column_of(feature)) in numbers:
            into[:] = numbers[column]
    return dense


def _vectors(cells: Cells, schema: Schema) -> tuple[tuple[np.ndarray, ...], list[Bad | None]]:
    vectors, problems = [], []
    for feature in schema.vectors:
        block, bad = np.full((cells.num_rows, feature.width or 0), np.nan, np.float32), None
        if cells.has(column := column_of(feature)):
            block, bad = cells.vectors(column, feature)
        vectors.append(block)
        problems.append(bad)
    return tuple(vectors), problems


def _id_weights(
    cells: Cells, schema: Schema, ids: list[RawIds]
) -> tuple[tuple[np.ndarray, ...], list[Bad]]:
    """The weights of lists of ids, which are shortened with them."""
    id_weights, problems = [], []
    for feature in schema.weighted:
        place, of_ids, column = schema.sparse.index(feature), column_of(feature), str(feature.weights)
        lists = ids[place]
        assert lists.offsets is not None
        if cells.has(of_ids) != cells.has(column):
            raise ValueError(
                f"{cells.where(0)}: expected both columns {of_ids!r} and {column!r}, found one"
            )
        numbers, offsets, bad = np.zeros(0), lists.offsets, None
        if cells.has(column):
            numbers, offsets, bad = cells.list_numbers(column, feature.separator)
        with np.errstate(over="ignore"):
            weights = numbers.astype(np.float32)
        lengths = np.diff(lists.offsets)
        places = np.flatnonzero(~np.isfinite(weights))[:1].tolist() if bad is None else [bad]
        wrong = np.searchsorted(offsets, places, "right") - 1
        unequal = np.flatnonzero(np.diff(offsets) != lengths)[:1]
        if len(rows := np.concatenate([wrong, unequal])):
            row = int(rows.min())
            problems.append(Bad(row, column, f"list of {lengths[row]} numbers, as {of_ids!r} has ids"))
        else:
            kept = values.last_ones(lists.offsets, feature.max_length)
            ids[place] = values.keep_last(lists, feature.max_length)
            weights = weights if kept is None else weights[kept]
        id_weights.append(weights)
    return tuple(id_weights), problems


def _labels(cells: Cells, how: Reading, numbers: dict[str, np.ndarray]) -> tuple[np.ndarray, list[Bad]]:
    schema = how.schema
    labels = no_labels((len(schema.labels), cells.num_rows), schema.has_numbers)
    problems = []
    for into, label in zip(labels, schema.labels, strict=True):
        column = column_of(label)
        if not cells.has(column):
            continue
        # 1. Compare text with the words for 1, and numbers with what the label may be.
        if label.positive:
            raw = cells.raw(column)
            into[:] = values.is_one_of(raw, canonical_words(label.positive))
            absent, wrong = raw.lengths == 0, np.zeros(0, bool)
        else:
            column_values = numbers[column]
            absent = np.isnan(column_values)
            if label.at_least is None:
                wrong = ~absent & label.values.wrong(column_values)
                with np.errstate(over="ignore", invalid="ignore"):  # of wrong ones
                    into[:] = column_values == 1 if label.values.binary else column_values
            else:
                wrong = np.zeros(0, bool)
                into[:] = column_values >= label.at_least
        # 2. A label that is absent does not count.
        into[absent] = no_labels((), schema.has_numbers)
        # 3. Name the first row that is wrong; the only label must be in every row.
        places = np.flatnonzero(wrong)
        if len(schema.labels) == 1:
            places = np.sort(np.concatenate([places, np.flatnonzero(absent)]))
        if len(places):
            bad = _bad_label(label, int(places[0]))
            if absent[bad.row]:
                rows = f"leave rows without it out (of a frame: frame.dropna(subset=[{column!r}]))"
                bad = replace(bad, remedy=rows)
            problems.append(bad)
    return labels, problems


def _bad_label(label: Label, row: int) -> Bad:
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


def _weights(schema: Schema, numbers: dict[str, np.ndarray]) -> tuple[np.ndarray | None, Bad | None]:
    if schema.weight is None or schema.weight not in numbers:
        return None, None
    weights = numbers[schema.weight]
    wrong = np.flatnonzero(~(weights >= 0))
    bad = Bad(int(wrong[0]), schema.weight, "weight of at least 0") if len(wrong) else None
    with np.errstate(over="ignore"):  # values behind a bad one are not checked
        return weights.astype(np.float32), bad


def _times(cells: Cells, schema: Schema) -> tuple[np.ndarray | None, np.ndarray | None, Bad | None]:
    """Seconds since 1970, and those that the schema's clock shows."""
    time = schema.time
    if time is None or not cells.has(time.column):
        return None, None, None
    (seconds, clocks), bad = cells.times(time.column, time.format)
    if time.zone is not None and bad is None:
        clocks = clocks_of(seconds, time.zone)
    elif time.utc_offset is not None:
        clocks = np.where(seconds == MISSING_TIME, seconds, seconds + round(time.utc_offset * 3600))
    return seconds, clocks, bad


def _ids(
    cells: Cells, schema: Schema, feature, numbers: dict[str, np.ndarray], clocks: np.ndarray | None
) -> RawIds:
    column = schema.column_of(feature)
    if not cells.has(column):
        nothing = values.no_values(cells.num_rows)
        return values.cut_lists(nothing, feature.separator, 1) if is_list(feature) else nothing
    if is_list(feature):
        lists = cells.lists(column, feature.separator)
        return lists if feature in schema.weighted else values.keep_last(lists, feature.max_length)
    if feature.transform == "none":
        return cells.raw(column)
    if feature.transform in TIME_TRANSFORMS:
        assert clocks is not None
        return values.integers(_of_time(feature, clocks))
    return values.integers(_of_number(feature, numbers[column]))


def _of_number(feature: Sparse, numbers: np.ndarray) -> np.ndarray:
    """[rows] float64: floor(log(x)^2) above 2 and floor(x) else, or the bucket; NaN where missing."""
    if feature.transform == "bucket":
        buckets = np.searchsorted(feature.boundaries, numbers, side="right").astype(np.float64)
        return np.where(np.isnan(numbers), np.nan, buckets)
    logarithm = np.log(np.where(numbers > 2, numbers, 1.0))
    low = np.clip(numbers, -(2.0**62), 2.0)
    return np.floor(np.where(numbers > 2, logarithm**2, low))


def _of_time(feature: Sparse, clocks: np.ndarray) -> np.ndarray:
    present = clocks != MISSING_TIME
    seconds = np.where(present, clocks, 0)
    days = seconds // 86400
    weekdays = (days + 3) % 7  # 1970 began on a Thursday
    if feature.transform == "hour":
        ids = seconds // 3600 % 24
    elif feature.transform == "weekday":
        ids = weekdays
    elif feature.transform == "weekend":
        ids = (weekdays >= 5).astype(np.int64)
    else:
        dates = days.astype("datetime64[D]")
        ids = (dates - dates.astype("datetime64[M]")).astype(np.int64) + 1
    return np.where(present, ids, np.nan)


def _raise_first(cells: Cells, problems: Sequence[Bad | None]) -> None:
    """Raises the problem of the smallest row; the first of several in one row."""
    bad = min(filter(None, problems), key=lambda problem: problem.row, default=None)
    if bad is None:
        return
    shown, remedy = cells.shown(bad.row, bad.column), bad.remedy
    words = [word for word in MISSING_WORDS if repr(word) == shown]
    if words and bad.expected.startswith(("number", "time")):
        missing = json.dumps({bad.column: words})
        remedy = f'if {shown} means missing, say so in the schema: "missing": {missing}'
    where = f"{cells.where(bad.row)}, column {bad.column!r}"
    raise ValueError(f"{where}: expected a {bad.expected}, found {shown}; {remedy}")


def show(value: bytes) -> str:
    """Formats a value for a message, shortened to 60 bytes."""
    text = value[:60].decode("utf-8", "backslashreplace")
    return repr(text + ("..." if len(value) > 60 else "")) if value else "nothing"


def check_present(how: Reading, where: str, names: tuple[str, ...]) -> list[str]:
    """Returns the columns to read that are among `names`, in the schema's order, and those to keep.

    Checks that required ones are there. where: name of the file or table, for messages.
    """
    schema, for_training, kept = how.schema, how.for_training, how.kept
    # 1. Columns to keep, or to split by, must be there.
    for name in (*(kept or ()), *([how.by] if how.by else ())):
        if name not in names:
            what = "split by" if name == how.by else "keep"
            raise ValueError(
                f"{where} has no column {name!r} to {what}; it has {_shortened(list(names))}"
                f"{did_you_mean(name, names)}"
            )
    # 2. So must those that the schema asks for: all to train, one feature to predict.
    columns = list(how.columns)
    features = {schema.column_of(feature) for feature in schema.features}
    absent = sorted((set(columns) if for_training else features) - set(names))
    if absent and for_training and schema.columns is not None:
        raise ValueError(
            f"{where.removesuffix(': the header')}: expected {len(schema.columns)} columns, found "
            f"{len(names)}: the column of the label, {absent[0]!r}, is missing"
        )
    if absent and (for_training or how.requires_features or not features - set(absent)):
        others = [delimiter for delimiter in ",\t;|" if len(names) == 1 and delimiter in names[0]]
        write = f"Write delimiter={others[0]!r}" if others else "A file without a header needs `columns`"
        hint = f". Is the delimiter {schema.delimiter!r}? {write} in the schema"
        is_unread = "header" in where and not set(columns) & set(names)
        remedy = "; correct the schema" if for_training else "; rename or add them"
        hint = hint if is_unread else remedy
        if set(absent) <= {column_of(label) for label in schema.labels}:
            hint = "; training needs the label, and `hotrows predict` does not"
        advice = did_you_mean(absent[0], names) or hint
        raise ValueError(
            f"{where} lacks the columns [{_shortened(absent)}] that schema {schema.name!r} reads; "
            f"it has {_shortened(list(names))}{advice}"
        )
    # 3. A feature that is absent is missing in every row; not a history, which makes predictions.
    if not for_training:
        check_histories(schema, where, names)
    if lost := sorted(features & set(absent)):
        log.warning(f"{where} lacks the columns [{_shortened(lost)}]: their values count as missing")
    # 4. No column that is read may be there twice.
    columns = list(names if kept is None else dict.fromkeys([*columns, *kept]))
    counts = Counter(names)
    twice = sorted(name for name in columns if counts[name] > 1)
    if twice:
        raise ValueError(f"{where} names the columns [{_shortened(twice)}] twice; rename one")
    return [column for column in columns if column in counts]


def check_histories(schema: Schema, where: str, names: Collection[str]) -> None:
    """Raises ValueError if rows to predict have a history of the schema in no column."""
    if absent := [name for name in schema.histories if name not in names]:
        raise ValueError(
            f"{where} lacks the columns {absent}: rows to predict have a history as a list of the user's "
            f"earlier events, since only `prepare` (--vocab-from, --events) reads an events file; a "
            f"server knows those of the user, column {schema.user!r}, for rows without any such list"
        )


def _shortened(names: list[str]) -> str:
    quoted = [repr(name) for name in names[:12]]  # several letters for one that is not printable
    shown = ", ".join(name if len(name) <= 42 else f"{name[:41]}..." for name in quoted)
    return shown + (f" and {len(names) - 12} more" if len(names) > 12 else "")
