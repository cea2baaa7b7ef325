"""Tables of Iceberg and Delta Lake, as they were at one snapshot.

    iceberg:[CATALOG/]NAMESPACE.NAME[@SNAPSHOT]    of a catalog that pyiceberg's configuration names
    delta:PATH[@VERSION]                           a folder, or a URL such as s3://bucket/table

Without a snapshot it is the newest one when the table is opened, with the columns of the table then;
a snapshot has columns of its own. Deleted rows are left out. Data files are read one after the other, in
the order of their paths: every pass has the same rows in one order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from hotrows.data.raw.cells import ROWS_PER_CHUNK, Cells
from hotrows.data.raw.files import pyarrow
from hotrows.data.raw.reading import Reading
from hotrows.data.raw.typed_files import Groups, slices
from hotrows.runtime.suggestions import one_line
from hotrows.schema import Schema

KINDS = ("iceberg:", "delta:")
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
            yield from pyarrow().Table.from_batches([batch]).cast(kinds).select(names).to_batches()

    schema = scan.projection().as_arrow()
    return _snapshot(f"iceberg:{name}@{number}", schema, scan.count(), files, read)


def _delta(path: str, number: int | None) -> SnapshotInput:
    from deltalake import DeltaTable
    from pyarrow.dataset import ParquetReadOptions

    table = DeltaTable(path, version=number)
    if (mapping := table.metadata().configuration.get(_MAPPING, "none")) != "none":
        raise ValueError(
            f"it has {_MAPPING}={mapping}, by which deltalake finds no values; copy it to a table without"
        )
    int96 = ParquetReadOptions(coerce_int96_timestamp_unit="us")  # as Spark writes times
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
