"""Tables and record batches as chunks of cells."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from hotrows.data.raw.cells import Cells
from hotrows.data.raw.files import pyarrow
from hotrows.data.raw.reading import Reading, check_present
from hotrows.schema import Schema

ROWS_PER_CHUNK = 1 << 16
_NUMBERS_PER_CHUNK = 1 << 23  # of vectors


def cells_of(batch: Any, name: str, first_row: int, how: Reading, unit: str = "row") -> Cells:
    """The cells of a record batch, whose first row is `first_row` of the file `name`."""
    kept = None
    if how.kept != ():
        names = batch.schema.names if how.kept is None else how.kept
        columns = {name: batch.column(name) for name in names}
        is_coded = pyarrow().types.is_dictionary
        plain = {n: c.dictionary_decode() if is_coded(c.type) else c for n, c in columns.items()}
        kept = pyarrow().table(plain)
    return Cells(batch, name, first_row, how, batch.num_rows, unit, kept=kept)


def table_cells(table: Any, name: str, how: Reading, first_row: int = 0) -> Iterator[Cells]:
    """Yields the cells of an Arrow table, up to ROWS_PER_CHUNK rows at a time. first_row: the number
    of its first row in what is called `name`."""
    columns = check_present(how, name, tuple(table.schema.names))
    for batch in table.select(columns).combine_chunks().to_batches(rows_per_chunk(how.schema)):
        yield cells_of(batch, name, first_row, how)
        first_row += batch.num_rows


def rows_per_chunk(schema: Schema) -> int:
    """The rows of a chunk: fewer where they have wide vectors."""
    width = schema.num_dense - len(schema.dense)
    return min(ROWS_PER_CHUNK, max(1, _NUMBERS_PER_CHUNK // max(1, width)))


def cells_of_tables(
    tables: Iterable[Any], name: str, how: Reading, skip: int
) -> Iterator[tuple[int, Cells | int]]:
    """Yields (rows so far, cells) of tables that follow each other; of the first `skip` the number of
    rows."""
    done = first_row = number = 0
    for table in tables:
        for cells in table_cells(table, name, how, first_row):
            done += cells.num_rows
            yield done, cells.num_rows if number < skip else cells
            number += 1
        first_row += table.num_rows
