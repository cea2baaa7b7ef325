"""Reading raw tables and writing Parquet files of samples, for the builders.

Large files are processed in blocks. A log larger than memory is cut by user, so that all rows of a user
are in one bucket: a first pass appends every row to the bucket of its user's hash; then memory holds one
bucket after the other, each a 64th of the log.

    log  ->  bucket-00 ... bucket-63  ->  histories of the users of one bucket  ->  samples
"""

from __future__ import annotations

import gzip
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np

from hotrows.data.datasets.dataset import Progress, Samples
from hotrows.data.stored.part import NAMES
from hotrows.runtime.arrow import pa

BLOCK_BYTES = 32 << 20
BLOCK_ROWS = 1 << 19
NUM_BUCKETS = 64
TRAIN, VALIDATION, TEST = 0, 1, 2


def find(raw: Path | None, *names: str) -> Path:
    """Finds the first of these files, plain or .gz, in `raw` or up to two folders below."""
    if raw is None or not raw.is_dir():
        raise ValueError(
            f"expected a folder that holds {names[0]}, got {raw}; name the folder of the raw files "
            f"with --raw"
        )
    for name in names:
        for pattern in (name, f"{name}.gz"):
            for below in ("", "*/", "*/*/"):
                paths = [path for path in sorted(raw.glob(below + pattern)) if path.is_file()]
                if paths:
                    return paths[0]
    names_in_raw = ", ".join(sorted(path.name for path in raw.iterdir())[:10]) or "nothing"
    raise ValueError(
        f"{raw} must hold {' or '.join(names)}, plain or as .gz, but holds {names_in_raw}; get it "
        f"(hotrows data NAME says where) and unpack it there"
    )


def open_bytes(path: Path) -> BinaryIO:
    """Opens the bytes of a file, unpacked if they are gzip."""
    with open(path, "rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
    return cast("BinaryIO", gzip.open(path) if packed else open(path, "rb"))


def csv_blocks(
    path: Path,
    types: Mapping[str, str],
    *,
    columns: Sequence[str] | None = None,
    nulls: Sequence[str] = ("",),
    delimiter: str = ",",
    also: Mapping[str, str] | None = None,
) -> Iterator[Any]:
    """Yields a delimited file as Arrow tables of the columns that `types` names, in blocks.

    types: Arrow's names of types, or `category`: text of few values, which takes little memory.
    columns: of a file without a header line; also: {name in the header: name of the column}.
    Fields may be quoted only in comma-separated files.
    """
    header = columns is None
    columns = columns or _header(path, delimiter, also or {})
    absent = [name for name in types if name not in columns]
    if absent:
        raise ValueError(
            f"{path} lacks the columns {absent}; it has {list(columns)}; give the file as it was "
            f"published"
        )
    category = pa.dictionary(pa.int32(), pa.string())
    how = pa.csv.ConvertOptions(
        column_types={n: category if t == "category" else pa.type_for_alias(t) for n, t in types.items()},
        include_columns=list(types),
        null_values=list(nulls),
        strings_can_be_null=True,
    )
    parsing = pa.csv.ParseOptions(delimiter=delimiter, quote_char='"' if delimiter == "," else False)
    reading = pa.csv.ReadOptions(
        column_names=list(columns), skip_rows=int(header), block_size=BLOCK_BYTES
    )
    try:
        with pa.csv.open_csv(path, reading, parsing, how) as reader:
            for batch in reader:
                yield pa.Table.from_batches([batch])
    except pa.ArrowInvalid as error:
        raise ValueError(
            f"{path} is not laid out as it was published: {error}; expected the columns "
            f"{list(columns)} between {delimiter!r}; download it again"
        ) from error


def read_csv(path: Path, types: Mapping[str, str], **layout: Any) -> Any:
    """Reads a small delimited file as one Arrow table. layout: arguments of `csv_blocks`."""
    blocks = list(csv_blocks(path, types, **layout))
    return pa.concat_tables(blocks).unify_dictionaries().combine_chunks()


def integers(column: Any) -> np.ndarray:
    """Converts a column of whole numbers to int64, without a copy if possible; nulls are an error."""
    if column.null_count:
        raise ValueError(
            f"expected a whole number in every row, got {column.null_count:,} empty fields; give "
            f"the file as it was published"
        )
    return np.asarray(column.to_numpy(), np.int64)


@dataclass(frozen=True)
class Directory:
    """A table indexed by a whole number: ascending keys, and the other columns in their order."""

    keys: np.ndarray
    rows: Any


def directory(table: Any, key: str) -> Directory:
    """Indexes a table by its column `key`; of equal keys the first row counts."""
    keys, first = np.unique(integers(table[key]), return_index=True)
    return Directory(keys, table.drop_columns([key]).take(first).combine_chunks())


def read_directory(path: Path, key: str, types: Mapping[str, str], **layout: Any) -> Directory:
    """Reads a small delimited file with a column `key`. layout: arguments of `csv_blocks`."""
    return directory(read_csv(path, {key: "int64", **types}, **layout), key)


def lookup(directory: Directory, keys: np.ndarray) -> Any:
    """Looks up the row of each key: a table with nulls for absent keys."""
    place = np.minimum(np.searchsorted(directory.keys, keys), max(len(directory.keys) - 1, 0))
    exists = directory.keys[place] == keys if len(directory.keys) else np.zeros(len(keys), bool)
    rows = directory.rows.take(pa.array(place, mask=~exists))
    texts = [
        pa.field(field.name, pa.string()) if pa.types.is_dictionary(field.type) else field
        for field in rows.schema
    ]
    return rows.cast(pa.schema(texts))


def joined(table: Any, directory: Directory, keys: np.ndarray) -> Any:
    """Appends the columns of the directory's rows for `keys` to the table."""
    return beside(table, lookup(directory, keys))


def beside(table: Any, other: Any) -> Any:
    """Joins the columns of two tables with equal numbers of rows."""
    for name in other.column_names:
        table = table.append_column(name, other[name])
    return table


def lists(offsets: np.ndarray, values: Any) -> Any:
    """Builds an Arrow column of lists: values[offsets[r]] .. values[offsets[r + 1] - 1] of row r."""
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), values)


def slices(table: Any) -> Iterator[Any]:
    for start in range(0, len(table), BLOCK_ROWS):
        yield table.slice(start, BLOCK_ROWS)


class PartWriter:
    """Writes rows into train.parquet, validation.parquet and test.parquet as they come."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._writers: dict[int, Any] = {}

    def write(self, table: Any, parts: np.ndarray) -> None:
        for part in np.unique(parts).tolist():
            if part not in self._writers:
                self._writers[part] = pa.parquet.ParquetWriter(
                    self._path(part), table.schema, compression="zstd"
                )
            rows = table.filter(pa.array(parts == part))
            self._writers[part].write_table(rows, row_group_size=BLOCK_ROWS)

    def close(self) -> None:
        for writer in self._writers.values():
            writer.close()

    @property
    def samples(self) -> Samples:
        """The files of parts that have rows."""
        train, validation, test = ((self._path(p),) if p in self._writers else () for p in range(3))
        return Samples(train, validation, test)

    def _path(self, part: int) -> Path:
        return self._folder / f"{NAMES[part]}.parquet"


def written(folder: Path) -> closing[PartWriter]:
    """Opens a writer into `folder` and closes it at the end of a `with` statement."""
    return closing(PartWriter(folder))


def _header(path: Path, delimiter: str, also: Mapping[str, str]) -> list[str]:
    """Reads the names in the first line, without the spaces around them."""
    with pa.input_stream(str(path)) as file:
        line = file.read(1 << 16).split(b"\n", 1)[0].decode()
    names = [name.strip().strip('"').strip() for name in line.lstrip("\ufeff").split(delimiter)]
    return [also.get(name, name) for name in names]


def parts_by_day(seconds: np.ndarray, utc_offset: int, validation: int, test: int) -> np.ndarray:
    """Returns the part of each time: TEST from the day `test`, VALIDATION from the day `validation`.

    Days are counted from 1970-01-01 on the clock `utc_offset` hours ahead of UTC.
    """
    days = (seconds + 3600 * utc_offset) // 86_400
    return np.select([days >= test, days >= validation], [TEST, VALIDATION], TRAIN)


def day(date: str) -> int:
    """Counts the days from 1970-01-01 to a date such as 2017-05-13."""
    return int(np.datetime64(date, "D").astype(np.int64))


def bucket_of(users: np.ndarray, num_buckets: int) -> np.ndarray:
    """Returns the bucket of each user: the high bits of a multiplicative hash."""
    mixed = users.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    return ((mixed >> np.uint64(32)) % np.uint64(num_buckets)).astype(np.int64)


def partition(
    blocks: Iterable[Any],
    user: str,
    folder: Path,
    stage: str,
    progress: Progress,
    num_buckets: int = NUM_BUCKETS,
) -> list[Path]:
    """Cuts blocks (Arrow tables) by their column `user` into Arrow files in `folder`."""
    folder.mkdir(parents=True)
    paths = [folder / f"bucket-{i:02}.arrow" for i in range(num_buckets)]
    done = 0
    with ExitStack() as files:
        writers: list[Any] = []
        for block in blocks:
            if not writers:
                writers = [files.enter_context(pa.ipc.new_stream(path, block.schema)) for path in paths]
            bucket = bucket_of(integers(block[user]), num_buckets)
            order = np.argsort(bucket, kind="stable")
            ordered = block.take(order)
            ends = np.searchsorted(bucket[order], np.arange(num_buckets + 1))
            for i in np.flatnonzero(np.diff(ends)).tolist():
                writers[i].write_table(ordered.slice(ends[i], ends[i + 1] - ends[i]))
            done += len(block)
            progress(stage, done, None)
    return paths


def read_bucket(path: Path) -> Any:
    """Reads the rows of a bucket, in the order of the log."""
    with pa.ipc.open_stream(path) as reader:
        return reader.read_all().combine_chunks()
