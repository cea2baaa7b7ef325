"""Rows that are requests, with lists of candidates: a row for each candidate is made of them.

    request  history  item     label                request  history  item  label
    r1       a|b      [x, y]   [0, 1]       ->      r1       a|b      x     0
                                                    r1       a|b      y     1

So tables and typed files are read, Parquet for one, where the first label is a list and the schema has
requests. What the schema says is shared is there once in a row; any other column is too, or is a list as
long as that of the label, of lists where the feature is one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from hotrows.schema import Schema, column_of, is_list


def rows_of_candidates(
    batch: Any, schema: Schema, name: str, first_row: int, most: int
) -> Iterator[tuple[Any, np.ndarray | None]]:
    """Yields record batches of about `most` rows at most, and of each row its number in the file; None:
    the batch has no lists of candidates and is as it was.

    batch: an Arrow record batch, the first row of which is `first_row` of the file `name`.
    """
    label = column_of(schema.labels[0])
    if schema.request is None or label not in batch.schema.names or not _is_list(batch.column(label)):
        yield batch, None
        return
    lengths = _lengths(batch.column(label))
    ends = np.concatenate([[0], lengths.cumsum()])
    first = 0
    while first < batch.num_rows:
        end = max(int(np.searchsorted(ends, ends[first] + most, side="right")) - 1, first + 1)
        place = first_row + first
        yield _exploded(batch.slice(first, end - first), schema, label, name, place)
        first = end


def _exploded(
    batch: Any, schema: Schema, label: str, name: str, first_row: int
) -> tuple[Any, np.ndarray]:
    import pyarrow as pa

    lengths = _lengths(batch.column(label))
    row = np.repeat(np.arange(batch.num_rows), lengths)
    shared = {schema.column_of(f) for f in schema.features if f.name in schema.shared}
    of_lists = {schema.column_of(f) for f in schema.features if is_list(f)}
    columns = []
    for column in batch.schema.names:
        values = batch.column(column)
        is_of_candidates = _is_list(values) and column not in shared
        if is_of_candidates and column in of_lists:
            is_of_candidates = _is_list(values.flatten())
        if not is_of_candidates:
            columns.append(values.take(pa.array(row)))
            continue
        num = _lengths(values)
        if len(wrong := np.flatnonzero(num != lengths)):
            place = int(wrong[0])
            raise ValueError(
                f"{name} row {first_row + place:,}, column {column!r}: expected a list of "
                f"{lengths[place]:,}, as many candidates as {label!r} has, found {num[place]:,}; correct "
                f"the row, or say in shared that the column is of requests"
            )
        columns.append(values.flatten())
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names), row + first_row


def _is_list(values: Any) -> bool:
    import pyarrow as pa

    types, kind = pa.types, values.type
    return types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)


def _lengths(values: Any) -> np.ndarray:
    """The length of each list, [rows] int64; of a null 0."""
    import pyarrow as pa

    return (
        pa.compute.list_value_length(values).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    )
