"""Datasets of Ray Data: rows in blocks, which the machines of a cluster hold.

Ray is not imported to recognise one. A dataset that is not materialized is executed whenever its blocks
are read, and Ray is told to keep their order, however their tasks overtake one another. Its readers may
still give files' rows in another order.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import Any

import numpy as np

from hotrows.data.raw.arrow_arrays import is_pickled
from hotrows.data.raw.cells import Cells, cells_of_tables
from hotrows.data.raw.reading import Reading
from hotrows.data.raw.tables import as_table
from hotrows.runtime.arrow import pa
from hotrows.schema import Schema


def is_ray_dataset(rows: Any) -> bool:
    return any((kind.__module__, kind.__name__) == _DATASET for kind in type(rows).__mro__)


_DATASET = ("ray.data.dataset", "Dataset")


@dataclass(frozen=True)
class RayBlock:
    """Rows of a dataset that are kept together. ref: where the cluster keeps them, an Arrow table or a
    frame; cut: which of these rows belong to the dataset, None: all; rows, size: their number and bytes.
    """

    ref: Any
    rows: int
    size: int
    cut: slice | None = None


def table_of(block: Any, cut: slice | None) -> Any:
    """The Arrow table of a block as Ray stores it; what it made a tensor, or pickled, are lists again."""
    for name, kind in getattr(block, "dtypes", {}).items():
        if type(kind).__name__ == "TensorDtype":
            block = block.assign(**{name: [np.asarray(cell).tolist() for cell in block[name]]})
    table = as_table(block)
    for place, column in enumerate(table.columns):
        name = table.column_names[place]
        if is_pickled(table.schema.field(place)):  # lists of several lengths in batches of NumPy
            cells = [cell.tolist() if hasattr(cell, "tolist") else cell for cell in column.to_pylist()]
            table = table.set_column(place, name, as_table({name: cells}).column(0))
        elif isinstance(column.type, pa.BaseExtensionType):
            lists = [chunk.storage for chunk in column.chunks]
            if pa.types.is_struct(column.type.storage_type):  # of different lengths
                lists = [chunk.field("data") for chunk in lists]
            table = table.set_column(place, name, pa.chunked_array(lists))
    return table if cut is None else table.slice(cut.start, cut.stop - cut.start)


@dataclass(frozen=True)
class RayInput:
    """A dataset of Ray Data."""

    dataset: Any
    name: str = "the Ray dataset"
    stamp: list | None = None
    size: int = 0  # unknown before the first pass

    def blocks(self, columns: Collection[str] | None = None) -> Iterator[RayBlock]:
        """Executes the dataset; yields its blocks that have rows, in the order in which Ray gives them.
        columns: that are read, None: all."""
        with self._in_order(columns) as dataset:
            bundles = iter(dataset.iter_internal_ref_bundles())
            first = list(islice(bundles, 1))  # from here on the execution has this order
        for bundle in chain(first, bundles):
            for block, piece in zip(bundle.blocks, bundle.slices, strict=True):
                cut = piece and slice(piece.start_offset, piece.end_offset)
                rows = cut.stop - cut.start if cut else block.metadata.num_rows
                if rows:
                    yield RayBlock(block.ref, rows, block.metadata.size_bytes, cut)

    def kept(self, columns: Collection[str]) -> RayInput:
        """These columns of the dataset, which is executed once: the cluster keeps the blocks."""
        with self._in_order(columns) as dataset:
            return replace(self, dataset=dataset.materialize())

    @contextmanager
    def _in_order(self, columns: Collection[str] | None) -> Iterator[Any]:
        """The dataset with these columns (None: all), whose blocks have the order of the rows."""
        dataset, options = self.dataset, self.dataset.context.execution_options
        before = options.preserve_order
        if columns is not None and type(dataset).__name__ != "MaterializedDataset":
            dataset = dataset.select_columns([c for c in self.names if c in columns])
        options.preserve_order = dataset.context.execution_options.preserve_order = True
        try:
            yield dataset
        finally:
            options.preserve_order = before

    @property
    def names(self) -> tuple[str, ...]:
        schema = self.dataset.schema()
        return () if schema is None else tuple(schema.names)

    def chunks(self, how: Reading, skip: int) -> Iterator[tuple[int, Cells | int]]:
        """Reads the blocks on this machine, one after the other."""
        import ray

        tables = (table_of(ray.get(block.ref), block.cut) for block in self.blocks())
        for _, cells in cells_of_tables(tables, self.name, how, skip):
            yield 0, cells

    def count_rows(self, schema: Schema) -> int:
        return self.dataset.count()

    def sample_rows(self, limit: Callable[[int], int]) -> tuple[Any, bool]:
        rows = limit(len(self.names))
        table = table_of(self.dataset.limit(rows + 1).to_pandas(), None)
        return table.slice(0, rows), table.num_rows <= rows
