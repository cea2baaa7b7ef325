"""Prepared data that is made of no raw rows: of encoded batches, or of a schema alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from hotrows.data.encode.encoder import owners_of, readers_of, stored_encoders
from hotrows.data.encode.vocabulary import Counts, IdCounts, Values, write_values
from hotrows.data.raw.cells import no_labels
from hotrows.data.stored.encoded import EncodedData, StoredVocabulary, write_manifest
from hotrows.data.stored.histories import check_no_histories
from hotrows.data.stored.part import NAMES
from hotrows.data.stored.rows import Rows, vector_type
from hotrows.data.stored.shards import ShardWriter
from hotrows.runtime.atomic_files import new_folder
from hotrows.schema import FIRST_UNKNOWN, Schema, is_list

if TYPE_CHECKING:
    from torch import Tensor

    from hotrows.batch import Batch

_NO_MEMORY = 1 << 20  # bytes, of counts that stay empty


def write_encoded(out: Path | str, schema: Schema, parts: Mapping[str, Iterable[Batch]]) -> EncodedData:
    """Writes the batches of each part ("train", "validation", "test") into the new folder `out`.

    The schema's features that carry ids must declare their `rows`; batches must have what the schema
    declares: labels (nan where one of several is missing), offsets where features are lists, sample
    weights, groups and times. Those without `requests` have all features in every sample, and shared ones
    are stored once where neighbours of a group agree. Such data has no encoder for raw rows.

    >>> schema = Schema((hotrows.Sparse("user", rows=100),), label="click")
    >>> ids, labels = torch.tensor([3, 4]), torch.tensor([1.0, 0.0])
    >>> batch = hotrows.Batch(("user",), ids, torch.zeros(2, 0), labels)
    >>> write_encoded(f"{folder}/written", schema, {"train": [batch]}).parts["train"].rows
    2
    """
    check_no_histories(schema, "write_encoded")
    if set(parts) - set(NAMES) or "train" not in parts:
        raise ValueError(f"parts must be 'train' and perhaps {NAMES[1:]}, not {sorted(parts)}")
    owners = owners_of(schema)
    counts = [IdCounts() for _ in set(owners)]
    with new_folder(Path(out)) as folder:
        written = {}
        for name in NAMES:
            writer = ShardWriter(folder, name, schema)
            row = 0
            for batch in parts.get(name, ()):
                rows = _checked(schema, f"part {name!r}", row, batch)
                writer.append(rows)
                row += batch.size
                for f, owner in enumerate(owners if name == "train" else ()):
                    if schema.id_features[f].dynamic is None:
                        counts[owner].add(rows.values(f))
            written[name] = writer.close()
        write_manifest(folder, schema, written, _save_counts(folder, schema, counts))
    return EncodedData.open(out)


def prepare_schema(schema: Schema, out: Path | str) -> EncodedData:
    """Writes prepared data of no rows into the new folder `out`, for a stream from its first event on.

    schema: all features with ids are dynamic, and no number is `standard`: others need rows to count.

    >>> user = hotrows.Sparse("user", dynamic=hotrows.Dynamic(capacity=1000, evict="lru"))
    >>> prepare_schema(Schema((user,), label="click"), f"{folder}/empty").parts["train"].rows
    0
    """
    check_no_histories(schema, "prepare_schema")
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
        counts, stored = Counts(owners_of(schema), folder, _NO_MEMORY, 1), {}
        for v, name in enumerate(readers):
            stored[name] = StoredVocabulary(f"vocabulary-{v:05d}.values", 0)
            counts.write(v, folder / stored[name].file, name, 1)
        of_readers = {name: schema.rows_of(first.name) for name, (first, *_) in readers.items()}
        rows = schema.with_rows(of_readers)
        written = {name: ShardWriter(folder, name, rows).close() for name in NAMES}
        write_manifest(folder, rows, written, stored_encoders(stored, {}))
    return EncodedData.open(out)


def _checked(schema: Schema, part: str, first_row: int, batch: Batch) -> Rows:
    """Converts a batch to rows; an error if it does not fit the schema."""
    # 1. Samples of requests stand by themselves.
    requests = _requests(schema, first_row, batch)
    if schema.group is None and batch.groups is None:
        batch = replace(batch, groups=requests)
    names = [feature.name for feature in schema.id_features]
    batch = batch.expanded(names if set(names) == set(batch.all_features) else None)
    _check_fields(schema, f"{part} row {first_row}", batch)
    # 2. Ids and weights by feature; ids must have rows.
    offsets = _offsets(schema, f"{part} row {first_row}", batch)
    columns, id_weights = _columns(batch.ids, batch, offsets), []
    if batch.weights is not None:
        id_weights = _columns(batch.weights, batch, offsets)
    weighted = [place for place, f in enumerate(schema.id_features) if f in schema.weighted]
    stray = any((w != 1).any() for place, w in enumerate(id_weights) if place not in weighted)
    if stray or bool(weighted) != bool(id_weights):
        raise ValueError(
            f"{part} row {first_row}: shards store no weights of single ids but those that features "
            f"declare (weights=COLUMN), which all batches must have; found others"
        )
    for feature, ids, bounds in zip(schema.id_features, columns, offsets, strict=True):
        wrong = np.flatnonzero((ids < 0) | (ids >= schema.rows_of(feature.name)))
        if len(wrong) and feature.dynamic is None:
            n = int(wrong[0])
            row = first_row + (n if bounds is None else int(np.searchsorted(bounds, n, "right")) - 1)
            raise ValueError(
                f"feature {feature.name!r}: expected ids from 0 to "
                f"{schema.rows_of(feature.name) - 1:,}, found {int(ids[n])} in row {row} of {part}; "
                f"declare more rows, or map it to an unknown id ({FIRST_UNKNOWN})"
            )
    # 3. Dense values and vectors, as they are stored.
    assert batch.labels is not None
    numbers, vectors = batch.dense.tensor_split([len(schema.dense)], 1)
    with np.errstate(over="ignore"):
        stored = vectors.numpy().astype(vector_type(schema))
    if len(wrong := np.flatnonzero(~np.isfinite(stored).all(1))):
        raise ValueError(
            f"{part} row {first_row + int(wrong[0])}: expected vectors of {stored.dtype}, found a number "
            f"that it cannot hold"
        )
    return Rows(
        ids=(*columns, *(id_weights[place] for place in weighted)),
        offsets=(*offsets, *(offsets[place] for place in weighted)),
        dense=np.ascontiguousarray(numbers),
        vectors=stored if schema.vectors else None,
        labels=_labels(schema, part, first_row, batch.labels.numpy()),
        weights=_array(batch.sample_weights, np.float32),
        groups=_array(batch.groups, np.int64),
        times=_array(batch.times, np.int64),
        requests=None if requests is None else _array(requests, np.int64),
    )


def _requests(schema: Schema, first_row: int, batch: Batch) -> Tensor | None:
    """A number of the request of each sample: its group, or the row where the request begins."""
    if schema.request is None:
        return None
    if batch.requests is None or (schema.group is None and batch.groups is not None):
        return batch.groups
    starts, of_samples = batch.requests.starts, batch.requests.of_samples
    return first_row + starts[:-1][of_samples]


def _check_fields(schema: Schema, where: str, batch: Batch) -> None:
    """Raises an error if a batch lacks a declared field, or has another."""
    names = tuple(feature.name for feature in schema.id_features)
    if batch.features != names or batch.dense.shape[1] != schema.num_dense:
        raise ValueError(
            f"{where}: expected the id features {names} and {schema.num_dense} dense columns, found "
            f"{batch.features} and {batch.dense.shape[1]}"
        )
    labels = len(schema.labels)
    expected = {
        "labels": (batch.labels, (batch.size,) if labels == 1 else (batch.size, labels)),
        "sample_weights": (batch.sample_weights, schema.weight and (batch.size,)),
        "groups": (batch.groups, schema.grouping and (batch.size,)),
        "times": (batch.times, schema.keeps_times and (batch.size,)),
    }
    for name, (tensor, shape) in expected.items():
        if (tuple(tensor.shape) if tensor is not None else None) != (shape or None):
            raise ValueError(
                f"{where}: expected {name} of shape {shape or None}, as the schema declares, found "
                f"{None if tensor is None else tuple(tensor.shape)}"
            )


def _offsets(schema: Schema, where: str, batch: Batch) -> list[np.ndarray | None]:
    """Returns per feature the offsets into its ids if it is a list, else None."""
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
    return [bounds - bounds[0] if is_list(feature) else None for feature, bounds in pairs]


def _columns(values: Tensor, batch: Batch, offsets: list[np.ndarray | None]) -> list[np.ndarray]:
    """Splits the ids of a batch, or their weights, by feature."""
    sizes = [batch.size if bounds is None else int(bounds[-1]) for bounds in offsets]
    return np.split(values.numpy(), np.cumsum(sizes)[:-1]) if sizes else []


def _labels(schema: Schema, part: str, first_row: int, labels: np.ndarray) -> np.ndarray:
    missing = np.isnan(labels) & (len(schema.labels) > 1)
    columns = labels.reshape(len(labels), len(schema.labels)).T
    ranges = [label.values for label in schema.labels]
    is_wrong = np.stack([admits.wrong(column) for admits, column in zip(ranges, columns, strict=True)], 1)
    wrong = np.argwhere(is_wrong.reshape(labels.shape) & ~missing)
    if len(wrong):
        row, *label = wrong[0].tolist()
        raise ValueError(
            f"label {schema.labels[label[0] if label else 0].name!r}: expected a "
            f"{ranges[label[0] if label else 0].words}, found {float(labels[tuple(wrong[0])])} in row "
            f"{first_row + row} of {part}"
        )
    stored = no_labels(labels.shape, schema.has_numbers)
    stored[~missing] = labels[~missing]
    return stored


def _array(tensor: Tensor | None, dtype) -> np.ndarray | None:
    return None if tensor is None else tensor.numpy().astype(dtype)


def _save_counts(folder: Path, schema: Schema, counts: Sequence[IdCounts]) -> dict:
    """Stores the counts of the ids that are not reserved, in falling order."""
    stored = {}
    for v, (name, readers) in enumerate(readers_of(schema).items()):
        ids, id_counts = counts[v].merged()
        seen = np.sort(id_counts[ids >= FIRST_UNKNOWN + readers[0].num_unknown])[::-1]
        values = Values(seen, np.zeros(0, np.int64), np.zeros(0, np.uint8), len(seen))
        file = f"vocabulary-{v:05d}.values"
        write_values(folder / file, name, values)
        stored[name] = {"file": file, "num_distinct": len(seen)}
    return {"vocabularies": stored, "statistics": {}, "encodes_raw": False}
