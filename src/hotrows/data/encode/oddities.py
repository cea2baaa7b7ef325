"""Oddities of prepared data: what every user would want to be warned of, a line each.

They come from the counts of `prepare`, from the extremes of its raw numbers and times, and from a sample
of every part, so that they cost little and bounded memory.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from datetime import datetime, timezone

import numpy as np

from hotrows.data.columns.of_schema import SchemaColumns
from hotrows.data.encode.vocabulary import open_values
from hotrows.data.raw.list_order import NEWEST_FIRST, are_newest_first
from hotrows.data.raw.values import UNIX, mix64
from hotrows.data.rows import Rows
from hotrows.data.stored.encoded import EncodedData
from hotrows.data.stored.part import Part
from hotrows.schema import FIRST_UNKNOWN, Schema, vocabulary_of

_CELLS, _MOST_ROWS, _LEAST_ROWS = 4_000_000, 1 << 15, 1 << 11  # of a sample
_BLOCKS = 16
_LEAST = 100  # rows from which on different values in all rows say something
_COPIED = 0.01  # share of rows of a part in training, beyond what chance gives, that is said
_EARLIEST, _LATEST = 1990, 2100  # years of the times of samples
_NAMED = 10  # columns that one line names
_TOLD = 0.99  # share of the rarer label that values tell, or AUC, from which on that is said
_OF_EACH = 20  # rows of each label from which on that is looked for
_LOOKED_AT = 200  # values of lists
_IN_BRACKETS = re.compile(r"^[\[({]|[\]}]$")
_CUT = re.compile(rf"{_IN_BRACKETS.pattern}|\S[,;|\t ]+\S")
_SEEN = 5  # rows of a value from which on it counts by itself


def oddities(data: EncodedData) -> Iterator[str]:
    """Says what is odd about the data, a line each."""
    samples = {name: _sample(part) for name, part in data.parts.items() if part.rows}
    yield from _constant_labels(data)
    if "train" in samples:
        yield from _constant_columns(data, samples["train"])
        yield from _row_numbers(data)
        yield from _tell_the_label(data.schema, samples["train"])
        yield from _newest_first(data.parts["train"].columns, samples["train"])
        yield from _uncut_lists(data, samples["train"])
    yield from _extremes(data)
    for name in ("validation", "test"):
        if name in samples and "train" in samples:
            yield from _copied(name, samples[name], samples["train"], data.parts["train"].rows)


def lost_digits(data: EncodedData) -> Iterator[str]:
    """Names the dense features whose neighbouring numbers become one in float32, a line each."""
    logs = {feature.name for feature in data.schema.dense if feature.transform == "log"}
    for name, (low, high) in data.extremes.ranges.items():
        largest = max(high, -low)
        if (low if name in logs else largest) >= 1 << 24:
            yield (
                f"{name!r} has numbers beyond 2^24 (up to {largest:.10g}), neighbours of which become "
                f"equal in float32: 'standard' keeps them apart; declare ids as Sparse, times as Time"
            )


def _sample(part: Part) -> Rows:
    schema = part.schema
    columns = len(schema.id_features) + schema.num_dense + len(schema.labels)
    rows = min(_MOST_ROWS, max(_LEAST_ROWS, _CELLS // columns))
    return part.sample(_BLOCKS, rows // _BLOCKS)


def _constant_labels(data: EncodedData) -> Iterator[str]:
    for name, part in data.parts.items():
        for label, value in part.constant_labels.items():
            what = "nothing can be learned of it" if name == "train" else "it has no AUC there"
            rows = f"{part.rows:,} samples of {name}"
            if value is None:
                what = what.replace("has no AUC", "cannot be measured")
                weight = data.schema.weight and f" with a weight ({data.schema.weight!r}) above 0"
                yield f"none of the {rows} has the label {label!r}{weight or ''}: {what}"
            else:
                yield f"label {label!r} is {value} in all {rows}: {what}"


def _constant_columns(data: EncodedData, rows: Rows) -> Iterator[str]:
    """Columns with one value in all rows of training, or where that is not known, in a sample of it."""
    if len(rows) < 2:
        return
    schema, train = data.schema, data.parts["train"]
    readers = Counter(map(vocabulary_of, schema.id_features))
    names = [f.name for d, f in enumerate(schema.dense) if np.ptp(rows.arrays["dense"][:, d]) == 0]
    for column in train.columns.ids:
        name, vocabulary = column.name, vocabulary_of(column.feature)
        reserved = train.missing[name] + train.unknown[name]
        several = readers[vocabulary] == 1 and data.vocabularies[vocabulary].num_distinct > 1
        several = 0 < reserved < train.rows or (several and not reserved)
        ids = rows.values(f"ids/{name}").astype(np.int64)
        if not column.is_list and not several and np.ptp(ids) == 0:
            names.append(name)
    if names:
        more = f" and {len(names) - _NAMED:,} more" if len(names) > _NAMED else ""
        listed = ", ".join(map(repr, names[:_NAMED]))
        yield f"one value in all rows looked at: {listed}{more}; such columns say nothing"


def _row_numbers(data: EncodedData) -> Iterator[str]:
    schema, train = data.schema, data.parts["train"]
    readers = Counter(map(vocabulary_of, schema.id_features))
    for column in train.columns.ids:
        name = vocabulary_of(column.feature)
        distinct = data.vocabularies[name].num_distinct
        single = readers[name] == 1 and not column.is_list
        if single and train.rows == train.values[column.name] == distinct >= _LEAST:
            yield (
                f"{column.name!r} has another value in each of the {train.rows:,} training samples (a "
                f"row number?): leave it out"
            )


def _tell_the_label(schema: Schema, rows: Rows) -> Iterator[str]:
    """Features that alone tell a label of 0 and 1: most are known only after it."""
    columns = {feature.name: rows.arrays["dense"][:, d] for d, feature in enumerate(schema.dense)}
    for feature in schema.id_features:
        bounds = rows.bounds.get(feature.name)  # of lists, whose lengths are looked at
        ids = rows.arrays[f"ids/{feature.name}"]
        columns[feature.name] = ids if bounds is None else np.diff(bounds.astype(np.int64))
    all_labels = rows.arrays["labels"].reshape(len(rows), -1).T
    for label, labels in zip(schema.labels, all_labels, strict=True):
        known = (labels == 0) | (labels == 1)
        ones = int((labels == 1).sum())
        if not label.values.binary or min(ones, int(known.sum()) - ones) < _OF_EACH:
            continue
        for name, values in columns.items():
            if _tells(values[known], labels[known] == 1):
                yield (
                    f"feature {name!r} alone tells the label {label.name!r}: is it known before the "
                    f"label is?"
                )


def _tells(values: np.ndarray, labels: np.ndarray) -> bool:
    """True if the size of a value tells its label, or nearly all rows of a value have one label; values
    of a few rows count as one, so that what is only set beside one label is found."""
    _, which = np.unique(values, return_inverse=True)
    counts, ones = np.bincount(which), np.bincount(which, labels)
    zeros = counts - ones
    num_ones, num_zeros = ones.sum(), zeros.sum()
    auc = (ones * (zeros.cumsum() - zeros / 2)).sum() / (num_ones * num_zeros)
    rare = counts < _SEEN
    ones, zeros = (np.append(c[~rare], c[rare].sum()) for c in (ones, zeros))
    mistaken = np.minimum(ones, zeros).sum()
    return max(auc, 1 - auc) > _TOLD or mistaken < (1 - _TOLD) * min(num_ones, num_zeros)


def _newest_first(columns: SchemaColumns, rows: Rows) -> Iterator[str]:
    """Lists whose order matters, and whose newest item seems to be the first."""
    for column in (column for column in columns.ids if column.has_order):
        bounds = rows.bounds[column.name].astype(np.int64)
        if are_newest_first(rows.values(f"ids/{column.name}"), bounds - bounds[0]):
            yield f"{column.name!r}: {NEWEST_FIRST}"


def _uncut_lists(data: EncodedData, rows: Rows) -> Iterator[str]:
    """Lists whose values look like lists: in brackets, or with a separator if no list has two values."""
    for column in data.parts["train"].columns.ids:
        stored = data.vocabularies.get(vocabulary_of(column.feature))
        if not column.is_list or stored is None:
            continue
        ranks = rows.values(f"ids/{column.name}").astype(np.int64) - FIRST_UNKNOWN
        ranks = ranks[ranks >= column.feature.num_unknown] - column.feature.num_unknown
        values = open_values(data.path / stored.file)
        ranks = ranks[ranks < len(values)][:_LOOKED_AT]  # dynamic ids are keys
        texts = [values.value(int(rank)).decode("utf-8", "replace") for rank in ranks]
        are_single = np.diff(rows.bounds[column.name].astype(np.int64)).max(initial=0) < 2
        lists = [text for text in texts if (_CUT if are_single else _IN_BRACKETS).search(text)]
        if 2 * len(lists) > len(texts):
            yield (
                f"{column.name!r} has values such as {lists[0][:40]!r}, one id each: are they lists? "
                f"Write lists in text as a|b, without brackets, or set the schema's separator"
            )


def _extremes(data: EncodedData) -> Iterator[str]:
    for name, value in data.extremes.least.items():
        yield (
            f"{name!r} has values below 0 (down to {value:g}), which transform='log' makes 0; 'standard' "
            f"keeps them apart"
        )
    time = data.schema.time
    if time is None or not data.extremes.times or time.format not in UNIX:
        return
    first, last = data.extremes.times
    if _year(last) >= _EARLIEST and _year(first) <= _LATEST:
        return
    numbers = [second * UNIX[time.format] for second in (first, last)]
    fitting = [
        format
        for format, unit in UNIX.items()
        if _year(numbers[0] // unit) >= _EARLIEST and _year(numbers[1] // unit) <= _LATEST
    ]
    advice = f"is its format {fitting[0]!r}?" if fitting else "is it a time?"
    yield (
        f"the time {time.column!r} as {time.format!r} is of the years {_year(first)} to {_year(last)}: "
        f"{advice}"
    )


def _year(second: int) -> int:
    """The year of a second since 1970, as far as years have four digits."""
    try:
        return datetime.fromtimestamp(second, timezone.utc).year
    except (ValueError, OverflowError, OSError):
        return 10_000 if second > 0 else 0


def _copied(name: str, rows: Rows, train: Rows, num_train: int) -> Iterator[str]:
    """Rows of a part that stand in training, more often than rows of training stand there twice.

    Of a sample of training, a share of the copies is seen; both rates are scaled by it.
    """
    trained, counts = np.unique(row_hashes(train), return_counts=True)
    hits = np.isin(row_hashes(rows), trained)
    twice = counts[counts > 1].sum() / len(train)
    seen = len(train) / num_train
    if len(rows) >= _LEAST and hits.mean() > max(2 * twice, _COPIED * seen) and hits.sum() >= 10:
        share = min(1.0, hits.mean() / seen)
        yield (
            f"about {share:.0%} of the samples of {name} are in training too, label and all: measured on "
            f"them, a model seems better than it is on new samples"
        )


def row_hashes(rows: Rows) -> np.ndarray:
    """A hash of each row, [rows] uint64: of its ids, lists, numbers and labels."""
    hashes = np.zeros(len(rows), np.uint64)
    with np.errstate(over="ignore"):
        for name in (name for name in rows.arrays if "/" in name):
            values, bounds = _bits(rows.values(name)), rows.bounds_of(name)
            if bounds is not None:
                bounds = bounds.astype(np.int64) - int(bounds[0])
                lengths = np.diff(bounds)
                place = (np.arange(len(values)) - np.repeat(bounds[:-1], lengths)).astype(np.uint64)
                sums = np.append(np.uint64(0), np.cumsum(mix64(values * np.uint64(31) + place)))
                values = sums[bounds[1:]] - sums[bounds[:-1]] + lengths.astype(np.uint64)
            hashes = _mixed(hashes, values)
        for name in ("dense", "vectors", "labels"):
            if name in rows.arrays:
                for column in rows.arrays[name].reshape(len(rows), -1).T:
                    hashes = _mixed(hashes, _bits(column))
    return hashes


def _bits(values: np.ndarray) -> np.ndarray:
    """Numbers as uint64, of floats their bits."""
    values = np.ascontiguousarray(values)
    return (values.view(f"u{values.itemsize}") if values.dtype.kind == "f" else values).astype(np.uint64)


def _mixed(hashes: np.ndarray, values: np.ndarray) -> np.ndarray:
    hashes = (hashes ^ values) * np.uint64(0x9E3779B97F4A7C15)
    return hashes ^ (hashes >> np.uint64(29))
