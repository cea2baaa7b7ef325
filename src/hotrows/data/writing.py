"""write_encoded: batches that are already encoded, into the same shards that `prepare` writes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from hotrows.batch import Batch
from hotrows.data.aside import written_aside
from hotrows.data.encoded import EncodedData, write_manifest
from hotrows.data.encoding import owners_of, readers_of, write_values
from hotrows.data.shards import ShardWriter
from hotrows.data.split import NAMES
from hotrows.data.vocabulary import Values
from hotrows.schema import FIRST_UNKNOWN, Schema


class IdCounts:
    """How often each id was seen, in memory that grows with the number of distinct ids."""

    def __init__(self) -> None:
        self._ids = np.zeros(0, np.int64)
        self._counts = np.zeros(0, np.int64)
        self._pending: list[np.ndarray] = []
        self._num_pending = 0

    def add(self, ids: np.ndarray) -> None:
        self._pending.append(ids.copy())
        self._num_pending += len(ids)
        if self._num_pending > max(1 << 20, len(self._ids)):
            self.merged()

    def merged(self) -> tuple[np.ndarray, np.ndarray]:
        """The distinct ids, ascending, and their counts."""
        new, new_counts = np.unique(
            np.concatenate([self._ids[:0], *self._pending]), return_counts=True
        )
        both = np.concatenate([self._ids, new])
        self._ids, place = np.unique(both, return_inverse=True)
        counts = np.zeros(len(self._ids), np.int64)
        np.add.at(counts, place, np.concatenate([self._counts, new_counts]))
        self._counts, self._pending, self._num_pending = counts, [], 0
        return self._ids, self._counts


def write_encoded(
    out: Path | str, schema: Schema, parts: Mapping[str, Iterable[Batch]]
) -> EncodedData:
    """Writes the batches of each part ("train", "validation", "test") into the new folder `out`.

    The schema's sparse features must say their `rows`; a batch has one id per feature and sample,
    and labels. Such data trains and is described like any; it has no encoder for raw rows.
    """
    _check(schema, parts)
    out = Path(out)
    owners = owners_of(schema)
    counts = [IdCounts() for _ in set(owners)]
    with written_aside(out) as folder:
        written = {}
        for name in NAMES:
            writer = ShardWriter(folder, name, schema)
            row = 0
            for batch in parts.get(name, ()):
                ids, labels = _checked(schema, name, row, batch)
                writer.append(ids, batch.dense.numpy(), labels, [0] * len(schema.dense))
                row += batch.size
                for owner, column in zip(owners if name == "train" else (), ids, strict=False):
                    counts[owner].add(column)
            written[name] = writer.close()
        write_manifest(folder, schema, written, _save_counts(folder, schema, counts))
    return EncodedData.open(out)


def _check(schema: Schema, parts: Mapping[str, Iterable[Batch]]) -> None:
    unknown = sorted(set(parts) - set(NAMES))
    if unknown or "train" not in parts:
        raise ValueError(f"parts must be 'train' and perhaps {NAMES[1:]}, not {sorted(parts)}")
    if schema.sequences:
        names = [feature.name for feature in schema.sequences]
        raise ValueError(f"sequences are not yet stored in shards: {names}; leave them out")


def _checked(
    schema: Schema, part: str, first_row: int, batch: Batch
) -> tuple[np.ndarray, np.ndarray]:
    """[F, B] ids and [B] labels of a batch; an error where it does not fit the schema."""
    names = tuple(feature.name for feature in schema.sparse)
    if batch.features != names or batch.dense.shape[1] != len(schema.dense):
        raise ValueError(
            f"part {part!r} row {first_row}: expected the id features {names} and "
            f"{len(schema.dense)} dense ones, found {batch.features} and {batch.dense.shape[1]}"
        )
    if batch.offsets is not None or batch.weights is not None or batch.labels is None:
        raise ValueError(
            f"part {part!r} row {first_row}: shards store one id per feature and sample, without "
            f"weights, and a label; pass batches with labels, without offsets and weights"
        )
    ids = batch.ids.numpy().reshape(len(names), batch.size)
    for feature, column in zip(schema.sparse, ids, strict=True):
        rows = schema.rows_of(feature.name)
        wrong = np.flatnonzero((column < 0) | (column >= rows))
        if len(wrong):
            raise ValueError(
                f"feature {feature.name!r}: expected ids from 0 to {rows - 1:,}, found "
                f"{int(column[wrong[0]])} in row {first_row + int(wrong[0])} of part {part!r}; "
                f"declare more rows, or map it to an unknown id ({FIRST_UNKNOWN})"
            )
    return ids, _labels(part, first_row, batch.labels.numpy())


def _labels(part: str, first_row: int, labels: np.ndarray) -> np.ndarray:
    wrong = np.flatnonzero((labels != 0) & (labels != 1))
    if len(wrong):
        raise ValueError(
            f"expected labels 0 or 1, found {float(labels[wrong[0]])} in row "
            f"{first_row + int(wrong[0])} of part {part!r}"
        )
    return labels.astype(np.uint8)


def _save_counts(folder: Path, schema: Schema, counts: Sequence[IdCounts]) -> dict:
    """Stores how often each id that is not reserved was read, most frequent first."""
    stored = {}
    for v, (name, readers) in enumerate(readers_of(schema).items()):
        ids, of = counts[v].merged()
        seen = np.sort(of[ids >= FIRST_UNKNOWN + readers[0].num_unknown])[::-1]
        values = Values(seen, np.zeros(0, np.int64), np.zeros(0, np.uint8), len(seen))
        file = f"vocabulary-{v:05d}.values"
        write_values(folder / file, name, values)
        stored[name] = {"file": file, "num_distinct": len(seen)}
    return {"vocabularies": stored, "statistics": {}, "encodes_raw": False}
