"""write_encoded: batches that are already encoded, into the same shards that `prepare` writes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
from torch import Tensor

from hotrows.batch import Batch
from hotrows.data.aside import written_aside
from hotrows.data.columns import MISSING_LABEL
from hotrows.data.encoded import EncodedData, write_manifest
from hotrows.data.encoding import owners_of, readers_of
from hotrows.data.shards import Rows, ShardWriter
from hotrows.data.split import NAMES
from hotrows.data.vocabulary import Values, write_values
from hotrows.schema import FIRST_UNKNOWN, Schema, is_list


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

    The schema's features that carry ids must say their `rows`; batches must have what the schema
    declares: labels (nan where one of several is missing), offsets where features are lists, sample
    weights and groups. Such data trains and is described like any; it has no encoder for raw rows.
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
                rows = _checked(schema, f"part {name!r}", row, batch)
                writer.append(rows)
                row += batch.size
                for f, owner in enumerate(owners if name == "train" else ()):
                    counts[owner].add(rows.values(f))
            written[name] = writer.close()
        write_manifest(folder, schema, written, _save_counts(folder, schema, counts))
    return EncodedData.open(out)


def _check(schema: Schema, parts: Mapping[str, Iterable[Batch]]) -> None:
    unknown = sorted(set(parts) - set(NAMES))
    if unknown or "train" not in parts:
        raise ValueError(f"parts must be 'train' and perhaps {NAMES[1:]}, not {sorted(parts)}")


def _checked(schema: Schema, part: str, first_row: int, batch: Batch) -> Rows:
    """The rows of a batch; an error where it does not fit the schema."""
    _check_fields(schema, f"{part} row {first_row}", batch)
    offsets = _offsets(schema, f"{part} row {first_row}", batch)
    columns = zip(schema.id_features, _columns(batch, offsets), offsets, strict=True)
    for feature, ids, of in columns:
        wrong = np.flatnonzero((ids < 0) | (ids >= schema.rows_of(feature.name)))
        if len(wrong):
            n = int(wrong[0])
            row = first_row + (n if of is None else int(np.searchsorted(of, n, "right")) - 1)
            raise ValueError(
                f"feature {feature.name!r}: expected ids from 0 to "
                f"{schema.rows_of(feature.name) - 1:,}, found {int(ids[n])} in row {row} of {part}; "
                f"declare more rows, or map it to an unknown id ({FIRST_UNKNOWN})"
            )
    assert batch.labels is not None
    return Rows(
        ids=tuple(_columns(batch, offsets)),
        offsets=tuple(offsets),
        dense=batch.dense.numpy(),
        labels=_labels(schema, part, first_row, batch.labels.numpy()),
        weights=_array(batch.sample_weights, np.float32),
        groups=_array(batch.groups, np.int64),
    )


def _check_fields(schema: Schema, where: str, batch: Batch) -> None:
    """An error where a batch lacks something that is declared, or has more."""
    names = tuple(feature.name for feature in schema.id_features)
    if batch.features != names or batch.dense.shape[1] != len(schema.dense):
        raise ValueError(
            f"{where}: expected the id features {names} and {len(schema.dense)} dense ones, found "
            f"{batch.features} and {batch.dense.shape[1]}"
        )
    if batch.weights is not None:
        raise ValueError(f"{where}: shards store no weights of single ids; pass batches without")
    labels = len(schema.labels)
    asked = {
        "labels": (batch.labels, (batch.size,) if labels == 1 else (batch.size, labels)),
        "sample_weights": (batch.sample_weights, schema.weight and (batch.size,)),
        "groups": (batch.groups, schema.group and (batch.size,)),
    }
    for name, (found, shape) in asked.items():
        if (tuple(found.shape) if found is not None else None) != (shape or None):
            raise ValueError(
                f"{where}: expected {name} of shape {shape or None}, as the schema declares, found "
                f"{None if found is None else tuple(found.shape)}"
            )


def _offsets(schema: Schema, where: str, batch: Batch) -> list[np.ndarray | None]:
    """Of every feature: the offsets into its own ids where it is a list, else None."""
    features, size = schema.id_features, batch.size
    if batch.offsets is None:
        return [np.arange(size + 1) if is_list(feature) else None for feature in features]
    of_all = batch.offsets.numpy()
    lengths = np.diff(of_all)
    if len(lengths) and (of_all[0] != 0 or of_all[-1] != len(batch.ids) or lengths.min() < 0):
        raise ValueError(f"{where}: expected offsets that rise from 0 to {len(batch.ids)}")
    for f, feature in enumerate(features):
        wrong = np.flatnonzero(lengths[f * size : (f + 1) * size] != 1)
        if len(wrong) and not is_list(feature):
            raise ValueError(
                f"{where}: feature {feature.name!r} has {int(lengths[f * size + wrong[0]])} ids in "
                f"row {int(wrong[0])} of the batch, expected one; declare it many=True"
            )
    starts = [of_all[f * size : (f + 1) * size + 1] for f in range(len(features))]
    pairs = zip(features, starts, strict=True)
    return [of - of[0] if is_list(feature) else None for feature, of in pairs]


def _columns(batch: Batch, offsets: list[np.ndarray | None]) -> list[np.ndarray]:
    """The ids of each feature, in the order of its samples."""
    sizes = [batch.size if of is None else int(of[-1]) for of in offsets]
    return np.split(batch.ids.numpy(), np.cumsum(sizes)[:-1]) if sizes else []


def _labels(schema: Schema, part: str, first_row: int, labels: np.ndarray) -> np.ndarray:
    missing = np.isnan(labels) & (len(schema.labels) > 1)
    wrong = np.argwhere((labels != 0) & (labels != 1) & ~missing)
    if len(wrong):
        raise ValueError(
            f"expected labels 0 or 1, found {float(labels[tuple(wrong[0])])} in row "
            f"{first_row + int(wrong[0][0])} of {part}"
        )
    return np.where(missing, MISSING_LABEL, labels).astype(np.uint8)


def _array(given: Tensor | None, dtype) -> np.ndarray | None:
    return None if given is None else given.numpy().astype(dtype)


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
