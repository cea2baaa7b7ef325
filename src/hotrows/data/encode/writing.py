"""Prepared data that is made of no raw rows: of encoded batches, or of a schema alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hotrows.data.columns.of_schema import SchemaColumns
from hotrows.data.encode.encoder import owners_of, readers_of, stored_encoders
from hotrows.data.encode.vocabulary import Counts, IdCounts, Values, write_values
from hotrows.data.rows import Rows, ends_of
from hotrows.data.stored.encoded import EncodedData, StoredVocabulary, write_manifest
from hotrows.data.stored.histories import check_no_histories
from hotrows.data.stored.part import NAMES
from hotrows.data.stored.shards import ShardWriter
from hotrows.runtime.atomic_files import new_folder
from hotrows.schema import FIRST_UNKNOWN, Schema, vocabulary_of

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
    columns, readers = SchemaColumns(schema), list(readers_of(schema))
    counts = {name: IdCounts() for name in readers}
    with new_folder(Path(out)) as folder:
        written = {}
        for name in NAMES:
            writer = ShardWriter(folder, name, columns)
            row = 0
            for batch in parts.get(name, ()):
                rows = _checked(columns, f"part {name!r}", row, batch)
                writer.append(rows)
                row += batch.size
                for column in columns.ids if name == "train" else ():
                    ids = rows.values(f"ids/{column.name}")
                    counts[vocabulary_of(column.feature)].add(column.lookup.counted(ids))
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
    for column in SchemaColumns(schema).ids:
        if column.lookup.has_values:
            raise ValueError(
                f"feature {column.name!r} needs rows, whose values make its vocabulary: give `prepare` "
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
        columns = SchemaColumns(rows)
        written = {name: ShardWriter(folder, name, columns).close() for name in NAMES}
        write_manifest(folder, rows, written, stored_encoders(stored, {}))
    return EncodedData.open(out)


def _checked(columns: SchemaColumns, part: str, first_row: int, batch: Batch) -> Rows:
    """Converts a batch to rows; an error if it does not fit the schema."""
    from hotrows.batch import by_feature

    schema = columns.schema

    def where(row: int) -> str:
        return f"{part} row {first_row + row}"

    requests = _requests(schema, first_row, batch)
    if schema.group is None and batch.groups is None:
        batch = replace(batch, groups=requests)
    names = tuple(column.name for column in columns.ids)
    batch = batch.expanded(names if set(names) == set(batch.all_features) else None)
    if batch.features != names or batch.dense.shape[1] != schema.num_dense:
        raise ValueError(
            f"{where(0)}: expected the id features {names} and {schema.num_dense} dense columns, found "
            f"{batch.features} and {batch.dense.shape[1]}"
        )
    # What is of samples, as it is stored.
    arrays = dict(_of_samples(columns, where, batch))
    if requests is not None:
        arrays["requests"] = requests.numpy()
    # Ids and their weights by feature; ids must have rows.
    _check_offsets(where(0), batch)
    bounds, pieces = {}, by_feature(vars(batch))
    is_weighted = any(column.has_weights for column in columns.ids)
    for column in columns.ids:
        ids, lengths, weights = (tensor.numpy() for tensor in pieces[column.name])
        arrays[f"ids/{column.name}"], ends = ids, ends_of(lengths)
        if column.is_list:
            bounds[column.name] = ends
        elif len(wrong_rows := np.flatnonzero(lengths != 1)):
            row = int(wrong_rows[0])
            raise ValueError(
                f"{where(0)}: feature {column.name!r} has {int(lengths[row])} ids in row {row} of the "
                f"batch, expected one; declare it many=True"
            )
        if column.has_weights and batch.weights is not None:
            arrays[f"weights/{column.name}"] = weights
        if (batch.weights is None) == is_weighted or (not column.has_weights and (weights != 1).any()):
            raise ValueError(
                f"{where(0)}: shards store no weights of single ids but those that features "
                f"declare (weights=COLUMN), which all batches must have; found others"
            )
        if (wrong := column.lookup.wrong(ids)) is not None:
            n, expected = wrong
            row = int(np.searchsorted(ends, n, "right")) - 1
            raise ValueError(
                f"feature {column.name!r}: expected {expected}, found {int(ids[n])} in row "
                f"{first_row + row} of {part}; declare more rows, or map it to an unknown id "
                f"({FIRST_UNKNOWN})"
            )
    return Rows(batch.size, arrays, bounds)


def _of_samples(
    columns: SchemaColumns, where: Callable[[int], str], batch: Batch
) -> Iterator[tuple[str, np.ndarray]]:
    """The sections of a batch that have values of samples."""
    # Each must be there if the columns have it, in its shape.
    schema, size = columns.schema, batch.size
    shapes: dict[str, Any] = {s.name: s.shape(size) for s in columns.sections if "/" not in s.name}
    shapes["groups"] = (size,) if schema.grouping else None
    fields = {"labels": "labels", "sample_weights": "weights", "groups": "groups", "times": "times"}
    for field, name in fields.items():
        tensor, shape = getattr(batch, field), shapes.get(name)
        if (held := None if tensor is None else tuple(tensor.shape)) != shape:
            raise ValueError(
                f"{where(0)}: expected {field} of shape {shape}, as the schema declares, found {held}"
            )
        if tensor is not None and (name != "groups" or schema.group is not None):
            values = tensor.numpy()
            is_label = name == "labels"
            yield name, columns.labels.stored(values, where) if is_label else values
    # Dense values are single numbers, and vectors, which their type must hold.
    numbers, vectors = batch.dense.tensor_split([len(columns.numbers.features)], 1)
    yield "dense", np.ascontiguousarray(numbers)
    for section in columns.vectors.sections:
        with np.errstate(over="ignore"):
            stored = vectors.numpy().astype(section.dtype)
        if len(wrong := np.flatnonzero(~np.isfinite(stored).all(1))):
            raise ValueError(
                f"{where(int(wrong[0]))}: expected vectors of {stored.dtype}, found a number that it "
                f"cannot hold"
            )
        yield section.name, stored


def _requests(schema: Schema, first_row: int, batch: Batch) -> Tensor | None:
    """A number of the request of each sample: its group, or the row where the request begins."""
    if schema.request is None:
        return None
    if batch.requests is None or (schema.group is None and batch.groups is not None):
        return batch.groups
    starts, of_samples = batch.requests.starts, batch.requests.of_samples
    return first_row + starts[:-1][of_samples]


def _check_offsets(where: str, batch: Batch) -> None:
    offsets = np.zeros(0) if batch.offsets is None else batch.offsets.numpy()
    if len(offsets) > 1 and (
        offsets[0] != 0 or offsets[-1] != len(batch.ids) or np.diff(offsets).min() < 0
    ):
        raise ValueError(f"{where}: expected offsets that rise from 0 to {len(batch.ids)}")


def _save_counts(folder: Path, schema: Schema, counts: Mapping[str, IdCounts]) -> dict:
    """Stores the counts of the ids that are not reserved, in falling order."""
    stored = {}
    for v, (name, readers) in enumerate(readers_of(schema).items()):
        ids, id_counts = counts[name].merged()
        seen = np.sort(id_counts[ids >= FIRST_UNKNOWN + readers[0].num_unknown])[::-1]
        values = Values(seen, np.zeros(0, np.int64), np.zeros(0, np.uint8), len(seen))
        file = f"vocabulary-{v:05d}.values"
        write_values(folder / file, name, values)
        stored[name] = {"file": file, "num_distinct": len(seen)}
    return {"vocabularies": stored, "statistics": {}, "encodes_raw": False}
