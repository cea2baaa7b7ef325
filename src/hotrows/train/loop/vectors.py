"""Vectors of a trained model by raw value, for whoever has no ids: nearest neighbours, another service.

    vectors_of(..., "item")

    id      value   vector
    int64   text    fixed-size list of dim float32
    3       "B07"   [0.012, -0.31, ...]

One row for each value that training knows, in the order of ids: the most frequent value first. Reserved
ids (padding, missing, unknown) have no value and no row.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hotrows.data.encode.vocabulary import Values
from hotrows.engine.embedding import Embedding
from hotrows.runtime.arrow import pa
from hotrows.runtime.atomic_files import output, write_text
from hotrows.runtime.suggestions import did_you_mean
from hotrows.schema import FIRST_UNKNOWN, Schema, vocabulary_of
from hotrows.table import Table

_DEFAULT_ROLE = "vector"


def vectors_of(
    embedding: Embedding,
    schema: Schema,
    values: Mapping[str, Values] | None,
    feature: str,
    role: str | None = None,
) -> Any:
    """The vectors of a feature as an Arrow table with the columns `id`, `value` and `vector`.

    values: raw values by vocabulary; None: the data came encoded, so that ids are the values. Of a
    dynamic feature there is a row for each live key, whose value is the key, an int64.
    role: which of the feature's tables (default: `vector`, or the only one that there is).
    """
    table = _table(embedding.tables, schema, feature, role)
    declared = next(known for known in schema.id_features if known.name == feature)
    num_rows = embedding.num_rows()[table.name]
    first, end = 0, num_rows
    live = embedding.dynamic.live(table)
    if live is None and values is not None:
        first = FIRST_UNKNOWN + declared.num_unknown
        end = min(end, first + len(values[vocabulary_of(declared)]))
    ids, keys = (torch.arange(first, end), None) if live is None else live
    weights = torch.empty(num_rows, table.dim)
    done = 0
    for chunk in embedding.weight_chunks(table.name, num_rows):
        weights[done : done + len(chunk)] = chunk
        done += len(chunk)
    flat = pa.array(weights[ids].reshape(-1).numpy())
    value = pa.array((ids if keys is None else keys).numpy())
    if keys is None and values is not None:
        value = _text(values[vocabulary_of(declared)], end - first)
    columns = {
        "id": pa.array(ids.numpy()),
        "value": value,
        "vector": pa.FixedSizeListArray.from_arrays(flat, table.dim),
    }
    return pa.table(columns)


def write_vectors(table: Any, path: Path) -> None:
    """Writes vectors, as `vectors_of` gives them, into a file: .arrow and .parquet have all columns; .npy
    has the vectors [n, dim] alone, and FILE.values.json beside it the value of each."""
    suffix = path.suffix.lower()
    if suffix not in (".npy", ".arrow", ".parquet"):
        raise ValueError(f"vectors are written as FILE.npy, .arrow or .parquet, not {path.name!r}")
    with output(path) as file:
        if suffix == ".npy":
            column = table.column("vector").combine_chunks()
            flat = column.flatten().to_numpy().reshape(len(column), column.type.list_size)
            values = [_shown(value) for value in table.column("value").to_pylist()]
            np.save(file, flat)
            write_text(path.with_suffix(".values.json"), json.dumps(values) + "\n")
        elif suffix == ".arrow":
            with pa.ipc.new_file(file, table.schema) as writer:
                writer.write_table(table)
        else:
            pa.parquet.write_table(table, file)


def _shown(value: Any) -> str:
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)


def _table(tables: tuple[Table, ...], schema: Schema, feature: str, role: str | None) -> Table:
    """The table that a feature reads in a role."""
    names = [known.name for known in schema.id_features]
    if feature not in names:
        hint = did_you_mean(feature, names)
        raise ValueError(f"feature must be one of {', '.join(names)}, not {feature!r}{hint}")
    by_role = {table.role: table for table in tables if feature in table.features}
    if not by_role:
        raise ValueError(f"the model reads no table by feature {feature!r}")
    if role is None:
        role = _DEFAULT_ROLE if _DEFAULT_ROLE in by_role or len(by_role) > 1 else next(iter(by_role))
    if role not in by_role:
        raise ValueError(f"feature {feature!r} is read in the roles {', '.join(by_role)}, not {role!r}")
    return by_role[role]


def _text(values: Values, count: int) -> Any:
    """The first values of a vocabulary as an Arrow array of text, or of bytes where some are no UTF-8."""
    ends = np.concatenate([np.zeros(1, np.int64), values.ends[:count]])
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(np.ascontiguousarray(values.text))]
    text = pa.Array.from_buffers(pa.large_string(), count, buffers)
    try:
        text.validate(full=True)
    except pa.ArrowInvalid:
        return pa.Array.from_buffers(pa.large_binary(), count, buffers)
    return text
