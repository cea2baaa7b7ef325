"""Encoders: what turns raw rows into ids and numbers, learned from the training part.

An encoder is stored with the data it encoded, so that raw rows for prediction get the same ids.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hotrows.batch import Batch
from hotrows.data.encoded import EncodedData
from hotrows.data.foreign import num_threads
from hotrows.data.rows import parsed
from hotrows.data.sections import open_sections, write_sections
from hotrows.data.text import Fields, Numbers
from hotrows.data.transform import Statistics, Transform
from hotrows.data.vocabulary import Values, vocabularies
from hotrows.schema import FIRST_UNKNOWN, Schema, Sparse, vocabulary_of


class Encoder:
    """Encodes raw rows by the vocabularies and statistics of a schema."""

    def __init__(
        self, schema: Schema, values: dict[str, Values], statistics: dict[str, Statistics]
    ) -> None:
        self._statistics = statistics
        self._values = values
        readers = readers_of(schema)
        self.schema = schema.with_rows(
            {
                name: FIRST_UNKNOWN + readers[name][0].num_unknown + len(of)
                for name, of in values.items()
            }
        )
        self._vocabularies = vocabularies(owners_of(schema))
        for v, (name, of) in enumerate(values.items()):
            self._vocabularies.fill(v, of, readers[name][0].num_unknown)
        of_dense = [statistics.get(feature.name, Statistics()) for feature in schema.dense]
        self._transform = Transform(schema.dense, of_dense)

    @staticmethod
    def open(path: Path | str) -> Encoder:
        """The encoder that is stored with prepared data."""
        data = EncodedData.open(path)
        if not data.encodes_raw:
            raise ValueError(
                f"{path} was written from encoded batches and has no vocabularies to encode raw "
                f"rows with; encode them as you did before"
            )
        values = {
            name: _read_values(data.path / of.file, of.num_distinct)
            for name, of in data.vocabularies.items()
        }
        return Encoder(data.schema, values, data.statistics)

    def encode(
        self, raw: Path | str, batch_size: int = 8192, threads: int | None = None
    ) -> Iterator[Batch]:
        """Batches of at most `batch_size` raw rows, in the order of the file.

        The label column may be absent; labels are then None. Values never seen become unknown ids.
        """
        done = 0
        features = tuple(feature.name for feature in self.schema.sparse)
        for chunk in parsed([Path(raw)], self.schema, num_threads(threads), needs_label=False):
            ids, dense = self.encode_fields(chunk.fields, chunk.numbers)
            labels = chunk.numbers.labels
            for first in range(0, len(dense), batch_size):
                rows = slice(first, first + batch_size)
                yield Batch(
                    features=features,
                    ids=torch.from_numpy(ids[:, rows].reshape(-1).copy()),
                    dense=torch.from_numpy(dense[rows].copy()),
                    labels=None
                    if labels is None
                    else torch.from_numpy(labels[rows].astype(np.float32)),
                    first_sample=done + first,
                )
            done += len(dense)

    def encode_fields(self, fields: Fields, numbers: Numbers) -> tuple[np.ndarray, np.ndarray]:
        """ids [F, rows] int64 and dense [rows, num_dense] float32 of a chunk."""
        dense = self._transform.apply(numbers.dense, fields.threads)
        return self._vocabularies.encode(fields), dense

    def save(self, folder: Path) -> dict[str, Any]:
        """Writes the vocabularies; returns what the manifest says of them."""
        stored = {}
        for v, (name, of) in enumerate(self._values.items()):
            file = f"vocabulary-{v:05d}.values"
            write_values(folder / file, name, of)
            stored[name] = {"file": file, "num_distinct": of.num_distinct}
        statistics = {name: asdict(of) for name, of in self._statistics.items()}
        return {"vocabularies": stored, "statistics": statistics, "encodes_raw": True}


def write_values(path: Path, name: str, values: Values) -> None:
    header = {"kind": "vocabulary", "name": name, "values": len(values)}
    arrays = {"counts": values.counts, "ends": values.ends, "text": values.text}
    write_sections(path, header, arrays)


def readers_of(schema: Schema) -> dict[str, list[Sparse]]:
    """The features that read each vocabulary; an error where they disagree about it."""
    readers: dict[str, list[Sparse]] = {}
    for feature in schema.sparse:
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
    """For each sparse feature, the place of its vocabulary among those of the schema."""
    places = {name: place for place, name in enumerate(readers_of(schema))}
    return [places[vocabulary_of(feature)] for feature in schema.sparse]


def _read_values(path: Path, num_distinct: int) -> Values:
    sections = open_sections(path)
    return Values(sections["counts"], sections["ends"], sections["text"], num_distinct)
