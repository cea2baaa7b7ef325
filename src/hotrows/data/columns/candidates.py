"""Rows that are requests, with lists of candidates: a row for each candidate is made of them.

    request  history  item     label                request  history  item  label
    r1       a|b      [x, y]   [0, 1]       ->      r1       a|b      x     0
                                                    r1       a|b      y     1

So they are read where the first label is a list and the schema has requests. What the schema says is
shared is there once in a row; any other column is too, or is a list as long as that of the label, of
lists where the feature is one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from hotrows.data.columns.of_schema import SchemaColumns
from hotrows.data.raw.arrow import cells_of, rows_per_chunk
from hotrows.data.raw.arrow_arrays import is_list, lengths_of
from hotrows.data.raw.cells import Cells
from hotrows.schema import column_of


def rows_of_candidates(cells: Cells, columns: SchemaColumns) -> Iterator[Cells]:
    """Yields the cells of a row for each candidate, of about as many rows as a chunk has at most; cells
    without lists of candidates are as they were."""
    schema = columns.schema
    label = column_of(schema.labels[0])
    is_plain = schema.request is None or cells.fields is not None or not cells.has(label)
    if is_plain or not is_list(cells.batch.column(label).type):
        yield cells
        return
    lengths, most = lengths_of(cells.batch.column(label)), rows_per_chunk(schema)
    ends = np.concatenate([[0], lengths.cumsum()])
    first = 0
    while first < cells.num_rows:
        end = max(int(np.searchsorted(ends, ends[first] + most, side="right")) - 1, first + 1)
        part = cells.batch.slice(first, end - first)
        yield _exploded(replace(cells, batch=part, first_row=cells.first_row + first), columns, label)
        first = end


def _exploded(cells: Cells, columns: SchemaColumns, label: str) -> Cells:
    import pyarrow as pa

    batch, lengths = cells.batch, lengths_of(cells.batch.column(label))
    row = np.repeat(np.arange(batch.num_rows), lengths)
    arrays = []
    for column in batch.schema.names:
        values = batch.column(column)
        is_of_candidates = is_list(values.type) and column not in columns.shared
        if is_of_candidates and column in columns.of_lists:
            is_of_candidates = is_list(values.flatten().type)
        if not is_of_candidates:
            arrays.append(values.take(pa.array(row)))
            continue
        num = lengths_of(values)
        if len(wrong := np.flatnonzero(num != lengths)):
            place = int(wrong[0])
            raise ValueError(
                f"{cells.where(place)}, column {column!r}: expected a list of "
                f"{lengths[place]:,}, as many candidates as {label!r} has, found {num[place]:,}; correct "
                f"the row, or say in shared that the column is of requests"
            )
        arrays.append(values.flatten())
    exploded = pa.RecordBatch.from_arrays(arrays, names=batch.schema.names)
    read = cells_of(exploded, cells.name, cells.first_row, cells.how, cells.unit)
    return replace(read, rows=row + cells.first_row)
