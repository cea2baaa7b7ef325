"""Rows whose columns have types, group by group, one of which is read at a time.

A group is what is stored together: a row group of Parquet, a record batch of Arrow IPC (Feather version
2), a stripe of ORC, or a data file of a table of Iceberg or Delta Lake, which is read as it was at one
snapshot:

    iceberg:[CATALOG/]NAMESPACE.NAME[@SNAPSHOT]    of a catalog that pyiceberg's configuration names
    delta:PATH[@VERSION]                           a folder, or a URL such as s3://bucket/table

Without a snapshot it is the newest one when the table is opened, with the columns of the table then;
a snapshot has columns of its own. Deleted rows are left out. Data files are read one after the other, in
the order of their paths: every pass has the same rows in one order.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from hotrows.data.raw.arrow_arrays import first_line, value_at
from hotrows.data.raw.cells import ROWS_PER_CHUNK, Cells, cells_of, rows_per_chunk
from hotrows.data.raw.files import BLOCKS, File, by_path
from hotrows.data.raw.reading import Reading, check_present
from hotrows.engine.pipeline.prefetch import prefetch
from hotrows.runtime.arrow import pa
from hotrows.runtime.suggestions import one_line
from hotrows.runtime.user_warnings import warn
from hotrows.schema import Schema

NO_VALUE = "__HIVE_DEFAULT_PARTITION__"  # in the path of rows whose value is missing


@dataclass(frozen=True)
class Groups:
    """Rows that are stored in groups.

    schema: of the columns, as Arrow has them. count: counts the rows of all groups. batches: called with
    a group, columns and a number of rows, yields record batches of at most so many rows.
    """

    schema: Any
    num_groups: int
    count: Callable[[], int]
    batches: Callable[[int, Sequence[str], int], Iterator[Any]]

    def chunks(self, name: str, size: int, how: Reading, skip: int) -> Iterator[tuple[int, Cells | int]]:
        """See `inputs`. size: of all groups, of which each has an equal share of the progress."""
        first_row = 0
        for number, (read, batch) in enumerate(prefetch(self._batches(name, how), 1)):
            cells = cells_of(batch, name, first_row, how)
            yield int(read / self.num_groups * size), cells.num_rows if number < skip else cells
            first_row += batch.num_rows

    def _batches(self, name: str, how: Reading) -> Iterator[tuple[int, Any]]:
        """Yields (groups that were read, record batch)."""
        columns = check_present(how, name, tuple(self.schema.names))
        for group in range(self.num_groups):
            for batch in self.batches(group, columns, rows_per_chunk(how.schema)):
                yield group + 1, batch

    def sample(self, limit: Callable[[int], int]) -> tuple[Any, bool]:
        """A table of at most `limit(columns)` rows, from all groups or BLOCKS of them; and whether it has
        all rows. Of fewer groups than BLOCKS each is read through."""
        names, num_rows = self.schema.names, self.count()
        most = limit(len(names))
        is_all, num_of_block = num_rows <= most, most // BLOCKS
        at_once = ROWS_PER_CHUNK if is_all else min(ROWS_PER_CHUNK, max(num_of_block, num_rows // BLOCKS))
        step, few = (
            (self.num_groups // BLOCKS, 1) if self.num_groups >= BLOCKS and not is_all else (1, None)
        )
        chosen = [
            batch
            if is_all
            else batch.take(np.arange(min(num_of_block, batch.num_rows)))  # a slice would hold all
            for group in range(0, self.num_groups, step)
            for batch in islice(self.batches(group, names, at_once), few)
        ]
        if not is_all:
            chosen = [chosen[len(chosen) * i // BLOCKS] for i in range(min(BLOCKS, len(chosen)))]
        return pa.Table.from_batches(chosen) if chosen else pa.table({}), is_all


@dataclass(frozen=True)
class TypedFileInput(File):
    """A Parquet, Arrow or ORC file; its progress counts its groups, by their share of the bytes."""

    kind: str = "Parquet"

    @property
    def groups(self) -> Groups:
        """The file, opened: checked, and with the columns that its path holds as `key=value`."""
        opened = open_typed_file(self, self.kind)
        with explained(f"{self.name} is damaged"):
            schema, inside = opened.schema, set(opened.schema.names)
        for name in by_path(self, inside):
            schema = schema.append(pa.field(name, pa.string()))

        def batches(group: int, columns: Sequence[str], num_rows: int) -> Iterator[Any]:
            with explained(f"{self.name} is damaged"):
                for batch in opened.batches(group, [c for c in columns if c in inside], num_rows):
                    yield _with_partitions(checked(batch, self.name, self.kind), columns, self)

        def count() -> int:
            with explained(f"{self.name} is damaged"):
                return opened.count()

        return Groups(schema, opened.num_groups, count, batches)

    def chunks(self, how: Reading, skip: int) -> Iterator[tuple[int, Cells | int]]:
        return self.groups.chunks(self.name, self.size, how, skip)

    def count_rows(self, schema: Schema) -> int:
        return self.groups.count()

    def sample_rows(self, limit: Callable[[int], int]) -> tuple[Any, bool]:
        return self.groups.sample(limit)


def open_typed_file(file: File, kind: str) -> Groups:
    if kind == "Parquet":
        return _parquet(open_parquet_file(file))
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
        return pa.parquet.ParquetFile(source, coerce_int96_timestamp_unit="us", **options)


def _mapped(file: File) -> Any:
    return pa.memory_map(os.fsencode(file.path))


def checked(batch: Any, name: str, kind: str) -> Any:
    """The batch; an error where offsets of a damaged file `name`, or indices of its dictionaries, point
    elsewhere: Arrow reads without a look, and hands out the buffers of its own files as they are."""
    is_arrow = kind.startswith("Arrow")
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


@contextmanager
def explained(problem: str) -> Iterator[None]:
    """Turns errors of Arrow into one that names the file."""
    try:
        yield
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        said, advice = first_line(error), "write it again"
        if "all lists to be of size" in said:
            advice += ", or, if a list of fixed size is missing there, upgrade pyarrow: 26 reads it"
        raise ValueError(f"{problem} ({said}); {advice}") from error


def _parquet(file: Any) -> Groups:
    def batches(group: int, columns: Sequence[str], num_rows: int) -> Iterator[Any]:
        return file.iter_batches(batch_size=num_rows, row_groups=[group], columns=list(columns))

    return Groups(file.schema_arrow, file.num_row_groups, lambda: file.metadata.num_rows, batches)


def _ipc(source: Any) -> Groups:
    """An Arrow IPC file; of compressed ones only the columns that are read are decompressed."""
    ipc = pa.ipc
    file = ipc.open_file(source)
    names = file.schema.names

    def batch_of(group: int, columns: Sequence[str]) -> Any:
        wanted = set(columns)
        places = [place for place, name in enumerate(names) if name in wanted]
        opened = ipc.open_file(source, options=ipc.IpcReadOptions(included_fields=places))
        return opened.get_batch(group)

    def batches(group: int, columns: Sequence[str], num_rows: int) -> Iterator[Any]:
        return slices(batch_of(group, columns).select(list(columns)), num_rows)

    def count() -> int:
        return sum(batch_of(group, names[:1]).num_rows for group in range(file.num_record_batches))

    return Groups(file.schema, file.num_record_batches, count, batches)


def _ipc_stream(source: Any) -> Groups:
    """An Arrow stream, as one group: record batches until its end."""

    def opened() -> Any:
        source.seek(0)
        return pa.ipc.open_stream(source)

    def batches(group: int, columns: Sequence[str], num_rows: int) -> Iterator[Any]:
        return (piece for b in opened() for piece in slices(b.select(list(columns)), num_rows))

    return Groups(opened().schema, 1, lambda: sum(batch.num_rows for batch in opened()), batches)


def _orc(source: Any) -> Groups:
    file = pa.orc.ORCFile(source)

    def batches(group: int, columns: Sequence[str], num_rows: int) -> Iterator[Any]:
        stripe = file.read_stripe(group, columns=list(columns))
        return slices(stripe.select(list(columns)), num_rows)

    return Groups(file.schema, file.nstripes, lambda: file.nrows, batches)


def slices(batch: Any, num_rows: int) -> Iterator[Any]:
    """A record batch in pieces of at most so many rows."""
    return (batch.slice(first, num_rows) for first in range(0, batch.num_rows, num_rows))


def warn_of_folders(file: File, arrays: Mapping[str, Any]) -> None:
    """Warns if columns begin with other values than the path of their file has: Spark reads those."""
    for name, array in arrays.items():
        value = value_at(array, 0) if len(array) else file.partitions[name]
        if file.partitions[name].lower() != (NO_VALUE if value is None else str(value).lower()):
            warn(
                f"column {name!r} has other values in files than in the names of folders ({name}=..): "
                f"those of the files are read; Spark reads those of the folders"
            )


def _with_partitions(batch: Any, columns: Sequence[str], file: File) -> Any:
    """Appends the columns that the path of the file holds as `key=value`."""
    stored = set(batch.schema.names)
    warn_of_folders(file, {name: batch.column(name) for name in file.partitions if name in stored})
    for name in (name for name in columns if name not in stored):
        text = file.partitions[name]
        value = pa.array([None if text == NO_VALUE else text], pa.string())
        which = pa.array(np.zeros(batch.num_rows, np.int32))
        batch = batch.append_column(name, pa.DictionaryArray.from_arrays(which, value))
    return batch


_OPEN: dict[str, Callable[[Any], Groups]] = {"Arrow IPC": _ipc, "Arrow stream": _ipc_stream, "ORC": _orc}

SNAPSHOTS = ("iceberg:", "delta:")
_MAPPING = "delta.columnMapping.mode"  # other names in files than in the table


@dataclass(frozen=True)
class SnapshotInput:
    """A table at a snapshot, which its name ends with. size: its rows; groups: the files of its data."""

    name: str
    size: int
    groups: Groups

    @property
    def stamp(self) -> list:
        return [self.name, self.size, *self.groups.schema.names]

    def chunks(self, how: Reading, skip: int) -> Iterator[tuple[int, Cells | int]]:
        return self.groups.chunks(self.name, self.size, how, skip)

    def count_rows(self, schema: Schema) -> int:
        return self.size

    def sample_rows(self, limit: Callable[[int], int]) -> tuple[Any, bool]:
        return self.groups.sample(limit)


def open_snapshot(item: str) -> SnapshotInput:
    """Opens `iceberg:NAME@SNAPSHOT` or `delta:PATH@VERSION`; a ValueError says why it cannot be."""
    kind, _, place = item.partition(":")
    name, _, number = place.rpartition("@")
    if not (name and number.isdigit()):
        name, number = place, ""
    with _explained(f"{item} cannot be opened"):
        return (_iceberg if kind == "iceberg" else _delta)(name, int(number) if number else None)


@contextmanager
def _explained(problem: str) -> Iterator[None]:
    try:
        yield
    except ImportError as error:
        package = str(error.name).partition(".")[0]
        raise ImportError(f"{problem}: {one_line(error)}; pip install {package}") from None
    except Exception as error:  # each catalog and file system has errors of its own
        raise ValueError(f"{problem}: {one_line(error)}") from error


def _iceberg(name: str, number: int | None) -> SnapshotInput:
    from pyiceberg.catalog import load_catalog
    from pyiceberg.io.pyarrow import ArrowScan

    catalog, _, of_catalog = name.rpartition("/")
    table = load_catalog(catalog or None).load_table(of_catalog)
    known = [snapshot.snapshot_id for snapshot in table.snapshots()]
    newest = table.current_snapshot()
    scan = table.scan(snapshot_id=number)
    number = newest.snapshot_id if number is None and newest else number
    if number not in known:
        raise ValueError(f"expected one of its snapshots, the last ones of which are {known[-5:]}")
    files = sorted(scan.plan_files(), key=lambda task: task.file.file_path)

    def read(task: Any, names: list[str]) -> Iterator[Any]:
        chosen = table.scan(snapshot_id=scan.snapshot_id, selected_fields=tuple(names))
        arrow = ArrowScan(table.metadata, table.io, chosen.projection(), chosen.row_filter)
        kinds = chosen.projection().as_arrow()  # which files from before a column was added lack
        for batch in arrow.to_record_batches([task]):
            yield from pa.Table.from_batches([batch]).cast(kinds).select(names).to_batches()

    schema = scan.projection().as_arrow()
    return _snapshot(f"iceberg:{name}@{number}", schema, scan.count(), files, read)


def _delta(path: str, number: int | None) -> SnapshotInput:
    from deltalake import DeltaTable

    table = DeltaTable(path, version=number)
    if (mapping := table.metadata().configuration.get(_MAPPING, "none")) != "none":
        raise ValueError(
            f"it has {_MAPPING}={mapping}, by which deltalake finds no values; copy it to a table without"
        )
    int96 = pa.dataset.ParquetReadOptions(coerce_int96_timestamp_unit="us")  # as Spark writes times
    # It refuses what it cannot leave out, deletion vectors.
    dataset = table.to_pyarrow_dataset(parquet_read_options=int96)
    files = sorted(dataset.get_fragments(), key=lambda fragment: fragment.path)

    def read(fragment: Any, names: list[str]) -> Iterator[Any]:
        return fragment.to_batches(schema=dataset.schema, columns=names, batch_size=ROWS_PER_CHUNK)

    size = dataset.count_rows()
    return _snapshot(f"delta:{path}@{table.version()}", dataset.schema, size, files, read)


def _snapshot(
    name: str,
    schema: Any,
    size: int,
    files: Sequence[Any],
    read: Callable[[Any, list[str]], Iterator[Any]],
) -> SnapshotInput:
    """read: yields the record batches of a file, of these columns."""

    def batches(file: int, columns: Sequence[str], num_rows: int) -> Iterator[Any]:
        with _explained(f"{name} cannot be read"):
            for batch in read(files[file], list(columns)):
                yield from slices(batch, num_rows)

    return SnapshotInput(name, size, Groups(schema, len(files), lambda: size, batches))
