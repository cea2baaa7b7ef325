"""Files whose columns have types: Parquet, Arrow IPC (Feather version 2) and ORC, group by group.

A group is what a file stores together: a row group, a record batch, a stripe. One is read at a time.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol

import numpy as np

from hotrows.data.raw.arrow import ROWS_PER_CHUNK, cells_of, rows_per_chunk
from hotrows.data.raw.arrow_arrays import first_line
from hotrows.data.raw.cells import Cells
from hotrows.data.raw.files import BLOCKS, File, pyarrow
from hotrows.data.raw.reading import Reading, check_present
from hotrows.engine.pipeline.prefetch import prefetch
from hotrows.schema import Schema


@dataclass(frozen=True)
class TypedFileInput(File):
    """A Parquet, Arrow or ORC file; its progress counts its groups, by their share of the bytes."""

    kind: str = "Parquet"

    def chunks(self, how: Reading, skip: int) -> Iterator[tuple[int, Cells | int]]:
        size, batches = self.size, prefetch(_batches(self, self.kind, how), 1)
        for number, (share, first_row, batch) in enumerate(batches):
            cells = cells_of(batch, self.name, first_row, how)
            yield int(share * size), cells.num_rows if number < skip else cells

    def count_rows(self, schema: Schema) -> int:
        opened = open_typed_file(self, self.kind)
        with explained(f"{self.name} is damaged"):
            return opened.num_rows

    def sample_rows(self, limit: Callable[[int], int]) -> tuple[Any, bool]:
        opened = open_typed_file(self, self.kind)
        names, columns = opened.schema.names, _with_names_of_path(opened, self)

        def batches(group: int, num_rows: int) -> Iterator[Any]:
            read = (checked(b, self.name, self.kind) for b in opened.batches(group, names, num_rows))
            return (with_partitions(batch, columns, self) for batch in read)

        with explained(f"{self.name} is damaged"):
            return sampled_batches(opened.num_groups, opened.num_rows, limit(len(columns)), batches)


def sampled_batches(
    num_groups: int, num_rows: int, most: int, batches: Callable[[int, int], Iterator[Any]]
) -> tuple[Any, bool]:
    """A table of at most `most` rows, from all groups or BLOCKS of them; and whether it has all rows.

    num_rows: of all groups; batches: called with a group and a number of rows, yields record batches of
    at most so many. Of fewer groups than BLOCKS each is read through.
    """
    is_all, num_of_block = num_rows <= most, most // BLOCKS
    at_once = ROWS_PER_CHUNK if is_all else min(ROWS_PER_CHUNK, max(num_of_block, num_rows // BLOCKS))
    step, few = (num_groups // BLOCKS, 1) if num_groups >= BLOCKS and not is_all else (1, None)
    chosen = [
        batch
        if is_all
        else batch.take(np.arange(min(num_of_block, batch.num_rows)))  # a slice would hold all
        for group in range(0, num_groups, step)
        for batch in islice(batches(group, at_once), few)
    ]
    if not is_all:
        chosen = [chosen[len(chosen) * i // BLOCKS] for i in range(min(BLOCKS, len(chosen)))]
    return pyarrow().Table.from_batches(chosen) if chosen else pyarrow().table({}), is_all


class TypedFile(Protocol):
    """An open file of a kind."""

    @property
    def schema(self) -> Any:
        """The columns, as Arrow has them."""
        ...

    @property
    def num_groups(self) -> int: ...

    @property
    def num_rows(self) -> int: ...

    def batches(self, group: int, columns: Sequence[str], num_rows: int) -> Iterator[Any]:
        """Yields the columns of a group as record batches of at most so many rows."""
        ...


def open_typed_file(file: File, kind: str) -> TypedFile:
    """Opens a file of a kind; an error if it is damaged."""
    if kind == "Parquet":
        return _Parquet(open_parquet_file(file))
    with explained(f"{file.name} is no whole {kind} file"):
        source = _mapped(file) if file.system is None else file.open()
        return _OPEN[kind](source)


def open_parquet_file(file: File, **options: Any) -> Any:
    """Opens a Parquet file; an error if it is none. options: of `pyarrow.parquet.ParquetFile`."""
    with explained(f"{file.name} is no whole Parquet file"):
        is_utf8 = file.path.encode(errors="ignore").decode() == file.path  # as Arrow needs paths to be
        local = file.path if is_utf8 else _mapped(file)
        source = local if file.system is None else file.open()
        # INT96 reaches the year 9999, nanoseconds do not.
        return pyarrow().parquet.ParquetFile(source, coerce_int96_timestamp_unit="us", **options)


def _mapped(file: File) -> Any:
    return pyarrow().memory_map(os.fsencode(file.path))


def _batches(file: File, kind: str, how: Reading) -> Iterator[tuple[float, int, Any]]:
    """Yields (share of the groups that was read, number of the first row, record batch)."""
    opened = open_typed_file(file, kind)
    with explained(f"{file.name} is damaged"):
        names = _with_names_of_path(opened, file)
        columns = check_present(how, file.name, names)
        inside = set(opened.schema.names)
        stored = [column for column in columns if column in inside]
        first_row = 0
        for group in range(opened.num_groups):
            for batch in opened.batches(group, stored, rows_per_chunk(how.schema)):
                read = with_partitions(checked(batch, file.name, kind), columns, file)
                yield (group + 1) / opened.num_groups, first_row, read
                first_row += batch.num_rows


def checked(batch: Any, name: str, kind: str) -> Any:
    """The batch; an error where offsets of a damaged file `name`, or indices of its dictionaries, point
    elsewhere: Arrow reads without a look, and hands out the buffers of its own files as they are."""
    pa, is_arrow = pyarrow(), kind.startswith("Arrow")
    if is_arrow:
        batch.validate()
    for column_name, column in zip(batch.schema.names, batch.columns, strict=True):
        if not pa.types.is_dictionary(column.type):
            continue
        size, indices = len(column.dictionary), pa.compute.min_max(column.indices).as_py()
        wrong = [index for index in indices.values() if index is not None and not 0 <= index < size]
        if wrong:
            raise ValueError(
                f"{name} is damaged: column {column_name!r} has a dictionary of {size:,} values and the "
                f"index {wrong[0]}; write it again"
            )
    if is_arrow:
        batch.validate(full=True)
    return batch


def _with_names_of_path(opened: TypedFile, file: File) -> tuple[str, ...]:
    """Names of the columns in a file, and of those that its path holds as `key=value`."""
    names = opened.schema.names
    return (*names, *(name for name in file.partitions if name not in names))


@contextmanager
def explained(problem: str) -> Iterator[None]:
    """Turns errors of Arrow into one that names the file."""
    pa = pyarrow()
    try:
        yield
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{problem} ({first_line(error)}); write it again") from error


@dataclass(frozen=True)
class _Parquet:
    file: Any

    @property
    def schema(self) -> Any:
        return self.file.schema_arrow

    @property
    def num_groups(self) -> int:
        return self.file.num_row_groups

    @property
    def num_rows(self) -> int:
        return self.file.metadata.num_rows

    def batches(self, group: int, columns: Sequence[str], num_rows: int) -> Iterator[Any]:
        return self.file.iter_batches(batch_size=num_rows, row_groups=[group], columns=list(columns))


class _Ipc:
    """An Arrow IPC file; of compressed ones only the columns that are read are decompressed."""

    def __init__(self, source: Any) -> None:
        self._source = source
        self._file = pyarrow().ipc.open_file(source)
        self.schema = self._file.schema
        self.num_groups = self._file.num_record_batches

    @property
    def num_rows(self) -> int:
        narrow = self._of_columns(self.schema.names[:1])
        return sum(narrow.get_batch(group).num_rows for group in range(self.num_groups))

    def batches(self, group: int, columns: Sequence[str], num_rows: int) -> Iterator[Any]:
        batch = self._of_columns(columns).get_batch(group)
        return slices(batch.select(list(columns)), num_rows)

    def _of_columns(self, columns: Sequence[str]) -> Any:
        ipc = pyarrow().ipc
        wanted = set(columns)
        places = [place for place, name in enumerate(self.schema.names) if name in wanted]
        return ipc.open_file(self._source, options=ipc.IpcReadOptions(included_fields=places))


class _IpcStream:
    """An Arrow stream, as one group: record batches until its end."""

    def __init__(self, source: Any) -> None:
        self._source = source
        self.schema = self._opened().schema
        self.num_groups = 1

    @property
    def num_rows(self) -> int:
        return sum(batch.num_rows for batch in self._opened())

    def batches(self, group: int, columns: Sequence[str], num_rows: int) -> Iterator[Any]:
        for batch in self._opened():
            yield from slices(batch.select(list(columns)), num_rows)

    def _opened(self) -> Any:
        self._source.seek(0)
        return pyarrow().ipc.open_stream(self._source)


class _Orc:
    def __init__(self, source: Any) -> None:
        from pyarrow import orc

        self._file = orc.ORCFile(source)
        self.schema = self._file.schema
        self.num_groups = self._file.nstripes
        self.num_rows = self._file.nrows

    def batches(self, group: int, columns: Sequence[str], num_rows: int) -> Iterator[Any]:
        batch = self._file.read_stripe(group, columns=list(columns))
        return slices(batch.select(list(columns)), num_rows)


def slices(batch: Any, num_rows: int) -> Iterator[Any]:
    """A record batch in pieces of at most so many rows."""
    return (batch.slice(first, num_rows) for first in range(0, batch.num_rows, num_rows))


def with_partitions(batch: Any, columns: Sequence[str], file: File) -> Any:
    """Appends the columns that the path of the file holds as `key=value`."""
    pa, stored = pyarrow(), set(batch.schema.names)
    for name in (name for name in columns if name not in stored):
        text = file.partitions[name]
        value = pa.array([None if text == "__HIVE_DEFAULT_PARTITION__" else text], pa.string())
        which = pa.array(np.zeros(batch.num_rows, np.int32))
        batch = batch.append_column(name, pa.DictionaryArray.from_arrays(which, value))
    return batch


_OPEN: dict[str, Callable[[Any], TypedFile]] = {
    "Arrow IPC": _Ipc,
    "Arrow stream": _IpcStream,
    "ORC": _Orc,
}
