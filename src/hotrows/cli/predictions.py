"""Files of predictions: a probability, or a number, for each row, alone or beside columns of the input.

lines      predictions alone, of several labels with tabs between, without a header
CSV, TSV   a header, kept columns, `probability` (of a number `prediction`); of several labels
           `probability_LABEL`
Parquet    these columns, in the types of the input
"""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TextIO

from hotrows.runtime.arrow import pa
from hotrows.runtime.atomic_files import STDOUT, output

if TYPE_CHECKING:
    from torch import Tensor

Write = Callable[["Tensor", Any], None]  # of the probabilities of a batch, and its kept columns or None
_DELIMITERS = {".csv": ",", ".tsv": "\t"}
_PARQUET = (".parquet", ".pq")
_ROWS_PER_GROUP = 1 << 18
FORMATS = (*_DELIMITERS, *_PARQUET)


@contextmanager
def predictions_to(out: Path | None, names: Sequence[str], beside: bool) -> Iterator[Write]:
    """Yields a function that writes predictions to a file, by its suffix, or to standard output.

    A file is there once all went well. names: of the columns of predictions. beside: whether columns
    are kept; standard output is then CSV.
    """
    if out is None:
        yield _rows(sys.stdout, names, ",") if beside else _lines(sys.stdout)
        sys.stdout.flush()
        return
    suffix = ".csv" if beside and out == STDOUT else out.suffix.lower()
    with output(out) as sink:
        if suffix in _PARQUET:
            with _parquet(sink, names) as write:
                yield write
            return
        with io.TextIOWrapper(sink, "utf-8", newline="") as file:
            yield _rows(file, names, _DELIMITERS[suffix]) if suffix in _DELIMITERS else _lines(file)


def _lines(file: TextIO) -> Write:
    def write(probabilities: Tensor, kept: Any) -> None:
        rows = probabilities.reshape(len(probabilities), -1).tolist()
        file.write("".join("\t".join(map(_number, row)) + "\n" for row in rows))

    return write


def _rows(file: TextIO, names: Sequence[str], delimiter: str) -> Write:
    # Between tabs nothing is quoted, as `prepare` reads them.
    quotes: dict[str, Any] = {} if delimiter == "," else {"quotechar": None, "quoting": csv.QUOTE_NONE}
    writer = csv.writer(file, delimiter=delimiter, lineterminator="\n", **quotes)
    header = list[str]()

    def write(probabilities: Tensor, kept: Any) -> None:
        if not header:
            header.extend([*(kept.column_names if kept is not None else ()), *_free(names, kept)])
            writer.writerow(header)
        columns = [] if kept is None else [column.to_pylist() for column in kept.columns]
        for name, column in zip(header, columns, strict=False):
            if any(isinstance(value, list | dict) for value in column):
                raise ValueError(
                    f"column {name!r} has lists, which CSV has not: write --out FILE.parquet"
                )
        of_labels = probabilities.reshape(len(probabilities), -1).T.tolist()
        try:
            writer.writerows(zip(*columns, *(map(_number, values) for values in of_labels), strict=True))
        except csv.Error:
            raise ValueError(
                "a value has a tab or a line end, which a .tsv file has not: write --out FILE.csv"
            ) from None

    return write


@contextmanager
def _parquet(sink: IO[bytes], names: Sequence[str]) -> Iterator[Write]:
    tables: list[Any] = []
    writers: list[Any] = []

    def flush() -> None:
        if tables:
            table = pa.concat_tables(tables)
            if not writers:
                writers.append(pa.parquet.ParquetWriter(sink, table.schema))
            writers[0].write_table(table)
            tables.clear()

    # Every table gets the schema of the first.
    def write(probabilities: Tensor, kept: Any) -> None:
        columns = {} if kept is None else dict(zip(kept.column_names, kept.columns, strict=True))
        of_labels = probabilities.reshape(len(probabilities), -1).T.numpy()
        table = pa.table(columns | dict(zip(_free(names, kept), of_labels, strict=True)))
        first = tables[0].schema if tables else writers[0].schema if writers else table.schema
        if table.schema != first:
            try:
                table = table.cast(first)
            except (pa.ArrowException, ValueError) as error:
                raise ValueError(
                    f"the inputs have different columns or types, which one Parquet file has not "
                    f"({error}); predict them one by one"
                ) from None
        tables.append(table)
        if sum(map(len, tables)) >= _ROWS_PER_GROUP:
            flush()

    try:
        yield write
        flush()
    finally:
        for writer in writers:
            writer.close()


def _free(names: Sequence[str], kept: Any) -> list[str]:
    """The names of the probabilities, with a line below them where the input has columns of that name."""
    taken = set() if kept is None else set(kept.column_names)
    return [name + "_" * (name in taken) for name in names]


def _number(probability: float) -> str:
    return f"{probability:.7g}"
