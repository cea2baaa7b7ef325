"""Prepared data without a row, of a schema that needs none: for a stream from its first event on."""

from __future__ import annotations

from pathlib import Path

from hotrows.data.encode.encoding import owners_of, readers_of, stored_encoders
from hotrows.data.encode.vocabulary import Counts
from hotrows.data.stored.encoded import EncodedData, StoredVocabulary, write_manifest
from hotrows.data.stored.part import NAMES
from hotrows.data.stored.shards import ShardWriter
from hotrows.runtime.atomic_files import new_folder
from hotrows.schema import Schema

_MEMORY = 1 << 20  # bytes, of counts that stay empty


def prepare_schema(schema: Schema, out: Path | str) -> EncodedData:
    """Writes prepared data of no rows into the new folder `out`.

    schema: all features with ids are dynamic, and no number is `standard`: others need rows to count.
    """
    for feature in schema.id_features:
        if feature.dynamic is None:
            raise ValueError(
                f"feature {feature.name!r} needs rows, whose values make its vocabulary: give `prepare` "
                f"some, or the feature dynamic ids"
            )
    for number in schema.dense:
        if number.transform == "standard":
            raise ValueError(
                f"feature {number.name!r} needs rows, of whose numbers it takes the mean: give `prepare` "
                f"some, or the feature transform 'log' or 'none'"
            )
    readers = readers_of(schema)
    with new_folder(Path(out)) as folder:
        counts, stored = Counts(owners_of(schema), folder, _MEMORY, 1), {}
        for v, name in enumerate(readers):
            stored[name] = StoredVocabulary(f"vocabulary-{v:05d}.values", 0)
            counts.write(v, folder / stored[name].file, name, 1)
        of_readers = {name: schema.rows_of(first.name) for name, (first, *_) in readers.items()}
        rows = schema.with_rows(of_readers)
        written = {name: ShardWriter(folder, name, rows).close() for name in NAMES}
        write_manifest(folder, rows, written, stored_encoders(stored, {}))
    return EncodedData.open(out)
