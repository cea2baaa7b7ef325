"""Raw tables in, Parquet files of samples out: what the builders share.

Everything large passes through in blocks; pyarrow is imported where it is used.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np

from hotrows.data.sets.dataset import Samples

BLOCK_BYTES = 32 << 20
BLOCK_ROWS = 1 << 19
TRAIN, VALIDATION, TEST = 0, 1, 2
PARTS = ("train", "validation", "test")


def find(raw: Path | None, *names: str) -> Path:
    """The first of these files, plain or .gz, in `raw` or up to two folders below."""
    if raw is None or not raw.is_dir():
        raise ValueError(
            f"expected a folder that holds {names[0]}, got {raw}; name the folder of the raw files "
            f"with --raw"
        )
    for name in names:
        for pattern in (name, f"{name}.gz"):
            for below in ("", "*/", "*/*/"):
                found = [path for path in sorted(raw.glob(below + pattern)) if path.is_file()]
                if found:
                    return found[0]
    there = ", ".join(sorted(path.name for path in raw.iterdir())[:10]) or "nothing"
    raise ValueError(
        f"{raw} must hold {' or '.join(names)}, plain or as .gz, but holds {there}; get it "
        f"(hotrows data NAME says where) and unpack it there"
    )


def open_bytes(path: Path) -> BinaryIO:
    """The bytes of a file, unpacked where they are gzip."""
    with open(path, "rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
    return cast(BinaryIO, gzip.open(path) if packed else open(path, "rb"))


def csv_blocks(
    path: Path,
    types: Mapping[str, str],
    *,
    columns: Sequence[str] | None = None,
    nulls: Sequence[str] = ("",),
    delimiter: str = ",",
    also: Mapping[str, str] | None = None,
) -> Iterator[Any]:
    """Blocks of a delimited file as Arrow tables of the columns that `types` names.

    types: Arrow's names of types, or `category`: text of few values, which takes little memory.
    columns: those of a file without a header line; also: other names that columns go by.
    Quotes mean something between commas alone.
    """
    import pyarrow as pa
    from pyarrow import csv

    header = columns is None
    columns = columns or _header(path, delimiter, also or {})
    absent = [name for name in types if name not in columns]
    if absent:
        raise ValueError(
            f"{path} lacks the columns {absent}; it has {list(columns)}; give the file as it was "
            f"published"
        )
    how = csv.ConvertOptions(
        column_types={name: _type(kind) for name, kind in types.items()},
        include_columns=list(types),
        null_values=list(nulls),
        strings_can_be_null=True,
    )
    parsing = csv.ParseOptions(delimiter=delimiter, quote_char='"' if delimiter == "," else False)
    reading = csv.ReadOptions(
        column_names=list(columns), skip_rows=int(header), block_size=BLOCK_BYTES
    )
    try:
        with csv.open_csv(path, reading, parsing, how) as reader:
            for batch in reader:
                yield pa.Table.from_batches([batch])
    except pa.ArrowInvalid as error:
        raise ValueError(
            f"{path} is not laid out as it was published: {error}; expected the columns "
            f"{list(columns)} between {delimiter!r}; download it again"
        ) from error


def read_csv(path: Path, types: Mapping[str, str], **layout: Any) -> Any:
    """A small delimited file as one Arrow table; arguments as of `csv_blocks`."""
    import pyarrow as pa

    blocks = list(csv_blocks(path, types, **layout))
    return pa.concat_tables(blocks).unify_dictionaries().combine_chunks()


def integers(column: Any) -> np.ndarray:
    """A column of whole numbers as int64, without copying where it may; nulls are an error."""
    if column.null_count:
        raise ValueError(
            f"expected a whole number in every row, got {column.null_count:,} empty fields; give "
            f"the file as it was published"
        )
    return np.asarray(column.to_numpy(), np.int64)


@dataclass(frozen=True)
class Directory:
    """Rows of a table by a whole number: keys ascending, and the other columns in that order."""

    keys: np.ndarray
    rows: Any


def directory(table: Any, key: str) -> Directory:
    """A table by its column `key`; of equal keys the first row counts."""
    keys, first = np.unique(integers(table[key]), return_index=True)
    return Directory(keys, table.drop_columns([key]).take(first).combine_chunks())


def look_up(of: Directory, keys: np.ndarray) -> Any:
    """The row of each key: a table; nulls where there is none."""
    import pyarrow as pa

    place = np.minimum(np.searchsorted(of.keys, keys), max(len(of.keys) - 1, 0))
    found = of.keys[place] == keys if len(of.keys) else np.zeros(len(keys), bool)
    rows = of.rows.take(pa.array(place, mask=~found))
    texts = [
        pa.field(field.name, pa.string()) if pa.types.is_dictionary(field.type) else field
        for field in rows.schema
    ]
    return rows.cast(pa.schema(texts))


def joined(table: Any, of: Directory, keys: np.ndarray) -> Any:
    """The table with the columns of the directory's rows at its end."""
    return beside(table, look_up(of, keys))


def beside(table: Any, other: Any) -> Any:
    """The columns of two tables of as many rows."""
    for name in other.column_names:
        table = table.append_column(name, other[name])
    return table


def lists(offsets: np.ndarray, values: Any) -> Any:
    """An Arrow column of lists: values[offsets[r]] .. of row r."""
    import pyarrow as pa

    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), values)


def slices(table: Any) -> Iterator[Any]:
    """The table in blocks of rows."""
    for start in range(0, len(table), BLOCK_ROWS):
        yield table.slice(start, BLOCK_ROWS)


class PartWriter:
    """Writes rows into train.parquet, validation.parquet and test.parquet as they come."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._writers: dict[int, Any] = {}

    def write(self, table: Any, parts: np.ndarray) -> None:
        """Appends each row to its part."""
        import pyarrow as pa

        for part in np.unique(parts).tolist():
            rows = table.filter(pa.array(parts == part))
            self._writer(part, table.schema).write_table(rows, row_group_size=BLOCK_ROWS)

    def close(self) -> None:
        for writer in self._writers.values():
            writer.close()

    @property
    def samples(self) -> Samples:
        """The files that have rows."""
        train, validation, test = (
            (self._path(part),) if part in self._writers else () for part in range(len(PARTS))
        )
        return Samples(train, validation, test)

    def _path(self, part: int) -> Path:
        return self._folder / f"{PARTS[part]}.parquet"

    def _writer(self, part: int, schema: Any) -> Any:
        from pyarrow import parquet

        if part not in self._writers:
            self._writers[part] = parquet.ParquetWriter(
                self._path(part), schema, compression="zstd"
            )
        return self._writers[part]


@contextmanager
def written(folder: Path) -> Iterator[PartWriter]:
    """A writer into `folder` that is closed at the end."""
    writer = PartWriter(folder)
    try:
        yield writer
    finally:
        writer.close()


def _type(kind: str) -> Any:
    import pyarrow as pa

    if kind == "category":
        return pa.dictionary(pa.int32(), pa.string())
    return pa.type_for_alias(kind)


def _header(path: Path, delimiter: str, also: Mapping[str, str]) -> list[str]:
    """The names in the first line, without spaces around them."""
    import pyarrow as pa

    with pa.input_stream(str(path)) as file:
        line = file.read(1 << 16).split(b"\n", 1)[0].decode()
    names = [name.strip().strip('"').strip() for name in line.lstrip("\ufeff").split(delimiter)]
    return [also.get(name, name) for name in names]


def parts_by_day(seconds: np.ndarray, utc_offset: int, validation: int, test: int) -> np.ndarray:
    """Of each time its part: TEST from the day `test` on, VALIDATION from the day `validation` on.

    Days are counted from 1970-01-01 on the clock `utc_offset` hours ahead of UTC.
    """
    days = (seconds + 3600 * utc_offset) // 86_400
    return np.select([days >= test, days >= validation], [TEST, VALIDATION], TRAIN)


def day(date: str) -> int:
    """Days from 1970-01-01 to a date such as 2017-05-13."""
    return int(np.datetime64(date, "D").astype(np.int64))
