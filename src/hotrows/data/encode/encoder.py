"""Encoders: raw rows into ids and numbers, by vocabularies and statistics of the training part.

An encoder is stored with the data it encoded, and encodes raw rows for prediction into its ids.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hotrows.data.columns.number import Statistics
from hotrows.data.columns.of_schema import SchemaColumns, batch_of
from hotrows.data.columns.stream import stream
from hotrows.data.encode.rates import RateCounter, ValueRates, usual_of
from hotrows.data.encode.vocabulary import Values, Vocabularies, open_values
from hotrows.data.raw.inputs import inputs_of
from hotrows.data.raw.reading import Reading
from hotrows.data.raw.values import TEXT_RULE
from hotrows.data.rows import RawRows, Rows
from hotrows.data.stored.encoded import EncodedData, StoredVocabulary
from hotrows.data.stored.part import Part
from hotrows.data.stored.user_histories import UserHistories
from hotrows.runtime.json_file import shown
from hotrows.runtime.machine import num_threads
from hotrows.runtime.suggestions import did_you_mean
from hotrows.schema import FIRST_UNKNOWN, IdFeature, Schema, vocabulary_of

if TYPE_CHECKING:
    from hotrows.batch import Batch


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
        self.statistics, self.values = dict(statistics), dict(values)
        readers = readers_of(schema)
        num_unknown = {name: features[0].num_unknown for name, features in readers.items()}
        rows = {
            name: FIRST_UNKNOWN + num_unknown[name] + len(values[name])
            if name not in schema.dynamic_vocabularies
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
        self.columns = self.columns_with()

    def columns_with(self, histories: str = "lists", events: Any = None) -> SchemaColumns:
        """The columns of the schema. histories: what rows have in place of histories, see `Reading`;
        events: of all users, which references are into."""
        return SchemaColumns(self.schema, self.statistics, histories, events)

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
        return RateCounter(self.columns, usual_of(self._parts))

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
            rows = self.encode_rows(columns)
            counter.add(columns, rows)
            for first in range(0, columns.num_rows, batch_size):
                part, has_labels = rows[first : first + batch_size], columns.get("labels") is not None
                if columns.kept is not None:
                    kept.append(columns.kept.slice(first, batch_size))
                yield batch_of(self.columns, part, columns.first_row + first, has_labels)
        counter.rates().warn()

    def encode_rows(self, raw: RawRows, columns: SchemaColumns | None = None) -> Rows:
        """Encodes the rows of a chunk; ids are int64. columns: by which they were read (default: its
        own)."""
        return (columns or self.columns).encode(raw, self._vocabularies.encode, self.threads)

    def encode_ids(self, raw: RawRows) -> dict[str, np.ndarray]:
        """The ids of the values of each feature, of a list all of them: int64."""
        ids = self.columns.encode_ids(raw, self._vocabularies.encode)
        return {column.name: of_column for column, of_column in zip(self.columns.ids, ids, strict=True)}


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


def owners_of(schema: Schema) -> list[int]:
    """Returns per feature with ids the index of its vocabulary in the schema."""
    places = {name: place for place, name in enumerate(readers_of(schema))}
    return [places[vocabulary_of(feature)] for feature in schema.id_features]
