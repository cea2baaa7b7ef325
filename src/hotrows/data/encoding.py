"""Encoders: what turns raw rows into ids and numbers, learned from the training part.

An encoder is stored with the data it encoded, so that raw rows for prediction get the same ids.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hotrows.batch import Batch
from hotrows.data.columns import MISSING_LABEL, Columns, RawIds
from hotrows.data.encoded import EncodedData, StoredVocabulary
from hotrows.data.foreign import num_threads
from hotrows.data.gather import ends_of
from hotrows.data.inputs import Reading, inputs_of, stream
from hotrows.data.shards import Rows
from hotrows.data.transform import Statistics, Transform
from hotrows.data.values import hash_values
from hotrows.data.vocabulary import Values, open_values, vocabularies
from hotrows.schema import FIRST_UNKNOWN, Schema, Sequence, Sparse, vocabulary_of


class Encoder:
    """Encodes raw rows by the vocabularies and statistics of a schema.

    values: by vocabulary, in the order of `readers_of`; memory: bytes that may be spent to look them
    up faster than in their files, None: as many as seem sensible.
    """

    def __init__(
        self,
        schema: Schema,
        values: Mapping[str, Values],
        statistics: Mapping[str, Statistics],
        threads: int | None = None,
        memory: int | None = None,
    ) -> None:
        self.threads = num_threads(threads)
        self.statistics = dict(statistics)
        readers = readers_of(schema)
        num_unknown = {name: features[0].num_unknown for name, features in readers.items()}
        rows = {name: FIRST_UNKNOWN + num_unknown[name] + len(values[name]) for name in readers}
        self.schema = schema.with_rows(rows)
        self._vocabularies = vocabularies(
            [values[name] for name in readers],
            owners_of(schema),
            list(num_unknown.values()),
            self.threads,
            memory,
        )
        of_dense = [self.statistics.get(feature.name, Statistics()) for feature in schema.dense]
        self._transform = Transform(schema.dense, of_dense)

    @staticmethod
    def open(path: Path | str, threads: int | None = None, memory: int | None = None) -> Encoder:
        """The encoder that is stored with prepared data."""
        data = EncodedData.open(path)
        values = stored_values(data)
        return Encoder(data.schema, values, data.statistics, threads, memory)

    def encode(self, raw: Any, batch_size: int = 8192) -> Iterator[Batch]:
        """Batches of at most `batch_size` raw rows, in their order.

        raw: a path, glob, folder or URL, an Arrow table, a frame, or a list of these. Labels may be
        absent; they are then None. Columns of features that are absent count as missing, values
        never seen become unknown ids.
        """
        how = Reading(self.schema, self.threads, for_training=False)
        for _, columns in stream(inputs_of(raw), how):
            rows = self.encode_columns(columns)
            for first in range(0, columns.num_rows, batch_size):
                part = rows[first : min(first + batch_size, columns.num_rows)]
                has_labels = columns.labels is not None
                yield batch_of(part, self.schema, columns.first_row + first, has_labels)

    def encode_columns(self, columns: Columns) -> Rows:
        """The encoded rows of a chunk; ids are int64."""
        ids = self._vocabularies.encode(columns.ids)
        for feature, raw, found in zip(self.schema.id_features, columns.ids, ids, strict=True):
            if feature.num_unknown == 0:
                _check_known(feature, raw, found, columns)
        labels = columns.labels
        if labels is None:
            labels = np.full((len(self.schema.labels), columns.num_rows), MISSING_LABEL, np.uint8)
        return Rows(
            ids=tuple(ids),
            offsets=tuple(raw.offsets for raw in columns.ids),
            dense=self._transform.apply(columns.dense, self.threads),
            labels=labels[0] if len(labels) == 1 else np.ascontiguousarray(labels.T),
            weights=columns.weights,
            groups=None if columns.groups is None else hash_values(columns.groups).view(np.int64),
        )


def stored_values(data: EncodedData) -> dict[str, Values]:
    """The vocabularies of prepared data; an error where it has none."""
    if not data.encodes_raw:
        raise ValueError(
            f"{data.path} was written from encoded batches and has no vocabularies to encode raw "
            f"rows with; encode them as you did before"
        )
    found = {}
    for name, of in data.vocabularies.items():
        found[name] = open_values(data.path / of.file)
        if found[name].index is None:
            raise ValueError(
                f"{data.path / of.file} has no index to look values up in: an older hotrows wrote it; "
                f"prepare the data again"
            )
    return found


def stored_encoders(
    vocabularies: Mapping[str, StoredVocabulary], statistics: Mapping[str, Statistics]
) -> dict[str, Any]:
    """What the manifest says of an encoder."""
    return {
        "vocabularies": {name: asdict(of) for name, of in vocabularies.items()},
        "statistics": {name: asdict(of) for name, of in statistics.items()},
        "encodes_raw": True,
    }


def batch_of(rows: Rows, schema: Schema, first_sample: int = 0, has_labels: bool = True) -> Batch:
    """The batch of encoded rows, copied."""
    features = schema.id_features
    ids = [rows.values(f) for f in range(len(features))]
    lengths = [np.ones(len(rows), np.int64) if of is None else np.diff(of) for of in rows.offsets]
    offsets = ends_of(np.concatenate(lengths)) if any(o is not None for o in rows.offsets) else None
    labels = rows.labels.astype(np.float32)
    labels[rows.labels == MISSING_LABEL] = np.nan
    return Batch(
        features=tuple(feature.name for feature in features),
        ids=torch.from_numpy(np.concatenate([np.zeros(0, np.int64), *ids])),
        dense=torch.from_numpy(rows.dense.copy()),
        labels=torch.from_numpy(labels) if has_labels else None,
        offsets=None if offsets is None else torch.from_numpy(offsets),
        first_sample=first_sample,
        sample_weights=None if rows.weights is None else torch.from_numpy(rows.weights.copy()),
        groups=None if rows.groups is None else torch.from_numpy(rows.groups.copy()),
    )


def readers_of(schema: Schema) -> dict[str, list[Sparse | Sequence]]:
    """The features that read each vocabulary; an error where they disagree about it."""
    readers: dict[str, list[Sparse | Sequence]] = {}
    for feature in schema.id_features:
        readers.setdefault(vocabulary_of(feature), []).append(feature)
    for name, (first, *others) in readers.items():
        for other in others:
            if (first.min_count, first.num_unknown) != (other.min_count, other.num_unknown):
                raise ValueError(
                    f"features {first.name!r} and {other.name!r} share vocabulary {name!r} but "
                    f"differ in min_count or num_unknown; give both the same"
                )
    return readers


def owners_of(schema: Schema) -> list[int]:
    """For each feature with ids, the place of its vocabulary among those of the schema."""
    places = {name: place for place, name in enumerate(readers_of(schema))}
    return [places[vocabulary_of(feature)] for feature in schema.id_features]


def _check_known(
    feature: Sparse | Sequence, raw: RawIds, found: np.ndarray, columns: Columns
) -> None:
    """With num_unknown=0 a value that the vocabulary lacks is an error."""
    unknown = np.flatnonzero(found < 0)
    if not len(unknown):
        return
    n = int(unknown[0])
    row = n if raw.offsets is None else int(np.searchsorted(raw.offsets, n, side="right")) - 1
    value = raw.value(n)[:60].decode("utf-8", "backslashreplace")
    raise ValueError(
        f"{columns.where(row)}, feature {feature.name!r}: {value!r} was never seen in training, and "
        f"num_unknown=0 gives such values no id; correct the row, or prepare with num_unknown=1"
    )
