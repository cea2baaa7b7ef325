"""Encoders: raw rows into ids and numbers, by vocabularies and statistics of the training part.

An encoder is stored with the data it encoded, and encodes raw rows for prediction into its ids.

**Keys** are the raw values of dynamic features as int64 numbers, without a vocabulary.

A value that is the canonical text of an int64 number (42, -7; not 007, +1 or 1e5) is that number. Other
text is hashed to 64 bits (`values.hash_values`), so that two of n distinct texts share a key with a
probability of about n^2 / 2^65: 3e-5 for 33.8 million, 0.03 for a billion. A missing value is
`MISSING_KEY`, the least int64, which no value becomes.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hotrows.data.encode.rates import RateCounter, ValueRates, usual_of
from hotrows.data.encode.split import numbers_of
from hotrows.data.encode.vocabulary import Values, Vocabularies, open_values
from hotrows.data.raw.cells import Columns, Reading, missing_labels, no_labels
from hotrows.data.raw.inputs import inputs_of, stream
from hotrows.data.raw.values import TEXT_RULE, RawIds, groups_of, hash_values, no_values
from hotrows.data.stored.encoded import EncodedData, Statistics, StoredVocabulary
from hotrows.data.stored.part import Part
from hotrows.data.stored.rows import Rows, ends_of, lengths_of, vector_type
from hotrows.data.stored.user_histories import UserHistories
from hotrows.runtime.json_file import shown
from hotrows.runtime.machine import num_threads
from hotrows.runtime.native import call
from hotrows.runtime.suggestions import did_you_mean
from hotrows.schema import FIRST_UNKNOWN, MISSING_KEY, Dense, IdFeature, Schema, vocabulary_of

if TYPE_CHECKING:
    from hotrows.batch import Batch

_LARGEST_LOG = 330.0  # of numbers whose squares have a finite sum, too
_MOST_DIGITS = 18  # longer numbers are looked at one by one: some are beyond int64
_ZERO, _MINUS = ord("0"), ord("-")


class Encoder:
    """Encodes raw rows by the vocabularies and statistics of a schema.

    values: by vocabulary, in the order of `readers_of`.
    memory: bytes that may be used to look values up faster than in their files (default: 1 GiB).
    parts: of the prepared data, whose rates of unknown and missing values are usual (default: none is
    known).

    >>> encoder = Encoder.open(data.path)
    >>> (batch,) = encoder.encode(frame)
    >>> batch.features
    ('user', 'item', 'history')
    """

    def __init__(
        self,
        schema: Schema,
        values: Mapping[str, Values],
        statistics: Mapping[str, Statistics],
        threads: int | None = None,
        memory: int | None = None,
        parts: Iterable[Part] = (),
    ) -> None:
        self._folder: Path | None = None
        self.threads = num_threads(threads)
        self._parts = tuple(parts)
        self.statistics = dict(statistics)
        readers = readers_of(schema)
        num_unknown = {name: features[0].num_unknown for name, features in readers.items()}
        rows = {
            name: FIRST_UNKNOWN + num_unknown[name] + len(values[name])
            if first.dynamic is None
            else schema.rows_of(first.name)
            for name, (first, *_) in readers.items()
        }
        self.schema = schema.with_rows(rows)
        self._vocabularies = Vocabularies(
            [values[name] for name in readers],
            owners_of(schema),
            list(num_unknown.values()),
            self.threads,
            memory,
        )
        of_dense = [self.statistics.get(feature.name, Statistics()) for feature in schema.dense]
        self._transform = Transform(schema.dense, of_dense)

    @staticmethod
    def open(
        path: Path | str, threads: int | None = None, memory: int | None = None, checked: bool = True
    ) -> Encoder:
        """Opens the encoder that is stored with prepared data.

        checked: compare vocabularies with their checksums, for which they are read whole.
        """
        data = EncodedData.open(path)
        values, parts = stored_values(data, checked), data.parts.values()
        encoder = Encoder(data.schema, values, data.statistics, threads, memory, parts)
        encoder._folder = data.path
        return encoder

    @cached_property
    def histories(self) -> UserHistories | None:
        """The events of users that are stored with it, if any."""
        return None if self._folder is None else UserHistories.open(self._folder, self.schema)

    def encode(
        self,
        raw: Any,
        batch_size: int = 8192,
        columns: tuple[str, ...] | None = (),
        require_columns: bool = False,
    ) -> EncodedBatches:
        """Yields batches of at most `batch_size` raw rows, in their order.

        raw: what `prepare` reads: paths, tables, frames, dicts of columns. Labels may be
        absent; they are then None. Columns of features that are absent count as missing, values
        never seen become unknown ids. The `rates` of what is returned are those of such values; a
        warning, after the last batch, names features where they are far from those of the prepared data.
        columns: which of the input to keep beside the batches, as they are; None: all.
        require_columns: refuse an input without the column of a feature.
        """
        how = Reading(self.schema, self.threads, False, columns, requires_features=require_columns)
        counter, kept = self.rate_counter(), deque[Any]()
        return EncodedBatches(self._batches(raw, batch_size, how, counter, kept), counter, kept)

    def rate_counter(self) -> RateCounter:
        """The checks of encoded rows against the prepared data."""
        return RateCounter(self.schema, usual_of(self._parts))

    def check_columns(self, names: Iterable[str]) -> None:
        """Refuses names that the schema does not read: ValueError names the first one.

        `encode` takes no notice of such columns, and counts absent ones as missing: a misspelt field
        of a request would change its prediction in silence.
        """
        check_columns(names, self.schema.raw_columns)

    def _batches(
        self, raw: Any, batch_size: int, how: Reading, counter: RateCounter, kept: deque[Any]
    ) -> Iterator[Batch]:
        for _, columns in stream(inputs_of(raw), how):
            rows = self.encode_columns(columns)
            counter.add(columns, rows)
            for first in range(0, columns.num_rows, batch_size):
                part, has_labels = rows[first : first + batch_size], columns.labels is not None
                if columns.kept is not None:
                    kept.append(columns.kept.slice(first, batch_size))
                yield batch_of(part, self.schema.id_features, columns.first_row + first, has_labels)
        counter.rates().warn()

    def encode_columns(self, columns: Columns) -> Rows:
        """Encodes the rows of a chunk; ids are int64."""
        labels, requests = columns.labels, columns.requests
        numbers = None if requests is None else numbers_of(requests, columns.first_row)
        if labels is None:
            shape = (len(self.schema.labels), columns.num_rows)
            labels = no_labels(shape, self.schema.has_numbers)
        features = self.schema.id_features
        weighted = [columns.ids[features.index(feature)].offsets for feature in self.schema.weighted]
        return Rows(
            ids=(*self.encode_ids(columns), *columns.id_weights),
            offsets=(*(raw.offsets for raw in columns.ids), *weighted),
            dense=self._transform.apply(columns.dense, self.threads),
            vectors=self._stored_vectors(columns),
            labels=labels[0] if len(labels) == 1 else np.ascontiguousarray(labels.T),
            weights=columns.weights,
            groups=numbers if columns.groups is None else groups_of(columns.groups),
            times=columns.times if self.schema.keeps_times else None,
            requests=numbers,
        )

    def encode_ids(self, columns: Columns) -> list[np.ndarray]:
        """Encodes the values of each feature with ids, of a list all of them: int64."""
        features = self.schema.id_features
        ids = self._vocabularies.encode(without_keys(self.schema, columns.ids))
        for f, (feature, raw, encoded) in enumerate(zip(features, columns.ids, ids, strict=True)):
            if feature.dynamic is not None:
                ids[f] = keys_of(raw)
            elif feature.num_unknown == 0:
                _check_known(feature, raw, encoded, columns)
        return ids

    def _stored_vectors(self, columns: Columns) -> np.ndarray | None:
        """The vectors side by side as they are stored; zeros where one is missing."""
        if not columns.vectors:
            return None
        vectors = np.concatenate(columns.vectors, 1, dtype=vector_type(self.schema), casting="same_kind")
        return np.nan_to_num(vectors, copy=False)


class EncodedBatches(Iterator["Batch"]):
    """The batches of raw rows, in order, and the rates of their missing and unknown values.

    kept: the columns that are kept, as an Arrow table for each batch, to be taken from the left.
    """

    def __init__(self, batches: Iterator[Batch], counter: RateCounter, kept: deque[Any]) -> None:
        self._batches, self._counter, self.kept = batches, counter, kept

    def __next__(self) -> Batch:
        return next(self._batches)

    @property
    def rates(self) -> ValueRates:
        """Rates of missing and unknown values by feature, of the rows encoded so far."""
        return self._counter.rates()


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


class Transform:
    """Transforms dense columns: log, standard, none, or an indicator, per feature."""

    def __init__(self, features: Sequence[Dense], statistics: Sequence[Statistics]) -> None:
        scales = [
            scale if feature.transform == "standard" else Statistics(0.0, 1.0)
            for feature, scale in zip(features, statistics, strict=True)
        ]
        self._logs = np.array([feature.transform == "log" for feature in features], np.uint8)
        self._indicators = [f for f in range(len(features)) if features[f].transform == "missing"]
        self._shift = np.array([scale.mean for scale in scales], np.float64)
        self._divisor = np.array([scale.deviation for scale in scales], np.float64)

    def apply(self, values: np.ndarray, threads: int) -> np.ndarray:
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


def check_columns(names: Iterable[str], known: Sequence[str]) -> None:
    """Refuses a name that is none of the known columns; ValueError names the first one."""
    for name in (name for name in names if name not in known):
        hint = did_you_mean(name, known) or ": " + ", ".join(known)
        raise ValueError(f"no column {shown(name)} is read{hint}")


def stored_values(data: EncodedData, checked: bool = True) -> dict[str, Values]:
    """Opens the vocabularies of prepared data; an error if it has none. checked: see `open_values`."""
    if not data.encodes_raw:
        raise ValueError(
            f"{data.path} was written from encoded batches and has no vocabularies to encode raw "
            f"rows with; encode them as you did before"
        )
    values = {}
    for name, vocabulary in data.vocabularies.items():
        values[name] = open_values(data.path / vocabulary.file, vocabulary.header, checked)
        if values[name].index is None:
            raise ValueError(
                f"{data.path / vocabulary.file} is damaged: it has no index to look values up in; "
                f"prepare the data again"
            )
    return values


def stored_encoders(
    vocabularies: Mapping[str, StoredVocabulary], statistics: Mapping[str, Statistics]
) -> dict[str, Any]:
    """The fields of an encoder in a manifest."""
    return {
        "vocabularies": {name: asdict(stored) for name, stored in vocabularies.items()},
        "statistics": {name: asdict(entry) for name, entry in statistics.items()},
        "encodes_raw": True,
        "text_rule": TEXT_RULE,
    }


def opened_encoder(
    schema: Schema, folder: Path, stored: Mapping[str, Any], threads: int, memory: int
) -> Encoder:
    """The encoder whose files are in a folder. stored: its fields, as `stored_encoders` gives them."""
    values = {name: open_values(folder / v["file"]) for name, v in stored["vocabularies"].items()}
    statistics = {name: Statistics(**fields) for name, fields in stored["statistics"].items()}
    return Encoder(schema, values, statistics, threads, memory)


def batch_of(
    rows: Rows, features: Sequence[IdFeature], first_sample: int = 0, has_labels: bool = True
) -> Batch:
    """Copies encoded rows into a batch. features: those of their ids."""
    import torch

    from hotrows.batch import Batch

    # 1. Ids end to end, and where lists end.
    ids, offsets = [rows.values(f) for f in range(len(features))], None
    if any(bounds is not None for bounds in rows.offsets):
        pairs = list(zip(rows.ids, rows.offsets, strict=True))[: len(features)]
        one = np.ones(len(rows), np.int64)
        lengths = [one if bounds is None else lengths_of(bounds, len(column)) for column, bounds in pairs]
        offsets = ends_of(np.concatenate(lengths))
    # 2. Weights of ids: 1 where a feature has none.
    id_weights = [rows.values(f) for f in range(len(features), len(rows.ids))]
    remaining = iter(id_weights)
    weights = [
        np.ones(len(values), np.float32) if getattr(f, "weights", None) is None else next(remaining)
        for f, values in zip(features, ids, strict=True)
        if id_weights
    ]
    # 3. Labels: NaN where one is missing.
    labels = rows.labels.astype(np.float32)
    if (absent := missing_labels(rows.labels)).any():
        labels[absent] = np.nan
    return Batch(
        features=tuple(feature.name for feature in features),
        ids=torch.from_numpy(np.concatenate([np.zeros(0, np.int64), *ids])),
        dense=torch.from_numpy(rows.dense.copy() if rows.vectors is None else rows.all_dense),
        labels=torch.from_numpy(labels) if has_labels else None,
        offsets=None if offsets is None else torch.from_numpy(offsets),
        weights=torch.from_numpy(np.concatenate(weights)) if weights else None,
        first_sample=first_sample,
        sample_weights=None if rows.weights is None else torch.from_numpy(rows.weights.copy()),
        groups=None if rows.groups is None else torch.from_numpy(rows.groups.copy()),
        times=None if rows.times is None else torch.from_numpy(rows.times.copy()),
    )


def readers_of(schema: Schema) -> dict[str, list[IdFeature]]:
    """Lists the features that read each vocabulary; an error if they disagree about it."""
    readers: dict[str, list[IdFeature]] = {}
    for feature in schema.id_features:
        readers.setdefault(vocabulary_of(feature), []).append(feature)
    for name, (first, *others) in readers.items():
        for other in others:
            for what in ("min_count", "num_unknown", "dynamic"):
                if getattr(first, what) != getattr(other, what):
                    raise ValueError(
                        f"features {first.name!r} and {other.name!r} share vocabulary {name!r} but "
                        f"differ in {what}; give both the same"
                    )
    return readers


def without_keys(schema: Schema, columns: Sequence[RawIds]) -> list[RawIds]:
    """The columns that vocabularies count and encode: those of dynamic features have no values."""
    pairs = zip(schema.id_features, columns, strict=True)
    return [raw if f.dynamic is None else no_values(len(raw), raw.offsets) for f, raw in pairs]


def owners_of(schema: Schema) -> list[int]:
    """Returns per feature with ids the index of its vocabulary in the schema."""
    places = {name: place for place, name in enumerate(readers_of(schema))}
    return [places[vocabulary_of(feature)] for feature in schema.id_features]


def _check_known(feature: IdFeature, raw: RawIds, ids: np.ndarray, columns: Columns) -> None:
    """Raises an error for a value that the vocabulary lacks; for num_unknown=0."""
    unknown = np.flatnonzero(ids < 0)
    if not len(unknown):
        return
    n = int(unknown[0])
    row = n if raw.offsets is None else int(np.searchsorted(raw.offsets, n, side="right")) - 1
    value = raw.value(n)[:60].decode("utf-8", "backslashreplace")
    raise ValueError(
        f"{columns.where(row)}, feature {feature.name!r}: {value!r} was never seen in training, and "
        f"num_unknown=0 gives such values no id; correct the row, or prepare with num_unknown=1"
    )


def keys_of(values: RawIds) -> np.ndarray:
    """The key of each value, [N] int64.

    "42", "-7", "007", ""  ->  42, -7, the hash of "007", MISSING_KEY
    """
    keys = hash_values(values).view(np.int64)
    keys[keys == MISSING_KEY] = MISSING_KEY + 1
    numbers, is_number = _numbers(values)
    keys[is_number] = numbers[is_number]
    for n in np.flatnonzero(values.lengths > _MOST_DIGITS).tolist():
        if (number := _long_number(values.value(n))) is not None:
            keys[n] = number
    keys[values.lengths == 0] = MISSING_KEY
    return keys


def _numbers(values: RawIds) -> tuple[np.ndarray, np.ndarray]:
    """The number that each value of at most 18 bytes spells, and whether it spells one: [N], [N]."""
    lengths = values.lengths.astype(np.int64)
    short = np.flatnonzero((lengths > 0) & (lengths <= _MOST_DIGITS))
    numbers, is_number = np.zeros(len(lengths), np.int64), np.zeros(len(lengths), bool)
    starts, lengths = values.starts[short].astype(np.int64), lengths[short]
    first = values.text[starts] if len(short) else np.zeros(0, np.uint8)
    negative = (first == _MINUS) & (lengths > 1)
    starts, lengths = starts + negative, lengths - negative
    first = values.text[starts] if len(short) else first
    legal = (first != _ZERO) | ((lengths == 1) & ~negative)  # no leading zero, and no -0
    total = np.zeros(len(short), np.int64)
    for place in range(int(lengths.max(initial=0))):
        longer = np.flatnonzero(lengths > place)
        digits = values.text[starts[longer] + place].astype(np.int64) - _ZERO
        legal[longer] &= (digits >= 0) & (digits <= 9)
        total[longer] = total[longer] * 10 + digits
    numbers[short] = np.where(negative, -total, total)
    is_number[short] = legal
    return numbers, is_number


def _long_number(value: bytes) -> int | None:
    """The int64 that a value spells as canonical text; None: it is another text, or the missing key."""
    digits = value.removeprefix(b"-")
    if len(digits) > 19 or not digits.isdigit() or digits.startswith(b"0"):
        return None
    number = int(value)
    return number if MISSING_KEY < number < 1 << 63 else None
