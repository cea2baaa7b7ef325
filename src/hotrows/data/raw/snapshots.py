"""Tables of Iceberg and Delta Lake, as they were at one snapshot.

    iceberg:[CATALOG/]NAMESPACE.NAME[@SNAPSHOT]    of a catalog that pyiceberg's configuration names
    delta:PATH[@VERSION]                           a folder, or a URL such as s3://bucket/table

Without a snapshot it is the newest one when the table is opened. Deleted rows are left out. Data files
are read one after the other, in the order of their paths: every pass has the same rows in one order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeGuard

from hotrows.data.raw.arrow import ROWS_PER_CHUNK, columns_of_tables
from hotrows.data.raw.cells import Columns, Reading, check_present
from hotrows.data.raw.files import pyarrow
from hotrows.data.raw.typed_files import sampled_batches, slices
from hotrows.pipeline.prefetch import prefetch
from hotrows.runtime.suggestions import one_line
from hotrows.schema import Schema

Batches = Iterator[Any]  # record batches


@dataclass(frozen=True)
class SnapshotInput:
    """A table at a snapshot.

    name: with its snapshot; names: of its columns; size: its rows; files: those of its data; read: yields
    the record batches of a file, of these columns.
    """

    name: str
    names: tuple[str, ...]
    size: int
    files: Sequence[Any]
    read: Callable[[Any, list[str]], Batches]

    @property
    def stamp(self) -> list:
        return [self.name, self.size]

    def chunks(self, how: Reading, skip: int) -> Iterator[tuple[int, Columns | int]]:
        names = check_present(how.schema, self.name, self.names, how.for_training, how.kept)
        batches = (batch for file in self.files for batch in self._batches(file, list(names)))
        tables = map(pyarrow().Table.from_batches, ([batch] for batch in batches))
        return columns_of_tables(prefetch(tables, 1), self.name, how, skip)

    def count_rows(self, schema: Schema) -> int:
        return self.size

    def sample_rows(self, limit: Callable[[int], int]) -> tuple[Any, bool]:
        def batches(file: int, num_rows: int) -> Batches:
            whole = self._batches(self.files[file], list(self.names))
            return (piece for batch in whole for piece in slices(batch, num_rows))

        sizes = len(self.files), self.size, limit(len(self.names))
        chosen, is_all = sampled_batches(*sizes, batches)
        return pyarrow().Table.from_batches(chosen) if chosen else pyarrow().table({}), is_all

    def _batches(self, file: Any, names: list[str]) -> Batches:
        with _explained(f"{self.name} cannot be read"):
            yield from self.read(file, names)


def is_snapshot(item: object) -> TypeGuard[str]:
    """True if an input names a table of Iceberg or Delta Lake."""
    return isinstance(item, str) and item.startswith(("iceberg:", "delta:"))


def open_snapshot(item: str) -> SnapshotInput:
    """Opens `iceberg:NAME@SNAPSHOT` or `delta:PATH@VERSION`; a ValueError says why it cannot be."""
    kind, _, place = item.partition(":")
    name, _, number = place.rpartition("@")
    if not (name and number.isdigit()):
        name, number = place, ""
    with _explained(f"{item} cannot be opened"):
        return _OPEN[kind](name, int(number) if number else None)


@contextmanager
def _explained(problem: str) -> Iterator[None]:
    try:
        yield
    except ImportError as error:
        package = f"pip install {str(error.name).partition('.')[0]}"
        raise ImportError(f"{problem}: {one_line(error)}; {package}") from None
    except Exception as error:  # each catalog and file system has errors of its own
        raise ValueError(f"{problem}: {one_line(error)}") from error


def _iceberg(name: str, number: int | None) -> SnapshotInput:
    from pyiceberg.catalog import load_catalog
    from pyiceberg.io.pyarrow import ArrowScan

    catalog, _, of_catalog = name.rpartition("/")
    table = load_catalog(catalog or None).load_table(of_catalog)
    newest = table.current_snapshot()
    if number is None and newest is not None:
        number = newest.snapshot_id
    if number is None or table.snapshot_by_id(number) is None:
        known = [snapshot.snapshot_id for snapshot in table.snapshots()[-5:]]
        raise ValueError(f"expected one of its snapshots, the last ones of which are {known}")
    scan = table.scan(snapshot_id=number)
    files = sorted(scan.plan_files(), key=lambda task: task.file.file_path)

    def read(task: Any, names: list[str]) -> Batches:
        chosen = scan.select(*names)
        arrow = ArrowScan(table.metadata, table.io, chosen.projection(), chosen.row_filter)
        return (batch.select(names) for batch in arrow.to_record_batches([task]))

    names = tuple(scan.projection().column_names)
    return SnapshotInput(f"iceberg:{name}@{number}", names, scan.count(), files, read)


def _delta(path: str, number: int | None) -> SnapshotInput:
    from deltalake import DeltaTable

    table = DeltaTable(path, version=number)
    dataset = table.to_pyarrow_dataset()  # which refuses what it cannot leave out, deletion vectors
    files = sorted(dataset.get_fragments(), key=lambda fragment: fragment.path)

    def read(fragment: Any, names: list[str]) -> Batches:
        return fragment.to_batches(schema=dataset.schema, columns=names, batch_size=ROWS_PER_CHUNK)

    names, size = tuple(dataset.schema.names), dataset.count_rows()
    return SnapshotInput(f"delta:{path}@{table.version()}", names, size, files, read)


_OPEN = {"iceberg": _iceberg, "delta": _delta}
