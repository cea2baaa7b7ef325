"""Tables in memory, and datasets of Ray, whose blocks are tables.

**Tables** are what holds columns. Columns of Python objects that Arrow would change in silence, by what
else the column has, are refused.

**Datasets of Ray** are rows in blocks, which the machines of a cluster hold. Ray is not imported to
recognise one. A dataset that is not materialized is executed whenever its blocks are read, and Ray is
told to keep their order, however their tasks overtake one another. Its readers may still give files'
rows in another order.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import date, datetime
from itertools import chain, islice
from numbers import Number
from typing import Any

import numpy as np

from hotrows.data.raw.arrow_arrays import first_line, is_list, is_pickled
from hotrows.data.raw.cells import Cells, cells_of_tables
from hotrows.data.raw.files import BLOCKS
from hotrows.data.raw.reading import Reading
from hotrows.runtime.arrow import pa
from hotrows.runtime.user_warnings import warn
from hotrows.schema import Schema


@dataclass(frozen=True)
class TableInput:
    """An Arrow table in memory."""

    table: Any
    name: str = "the table"
    stamp: list | None = None

    @property
    def size(self) -> int:
        return self.table.num_rows

    def chunks(self, how: Reading, skip: int) -> Iterator[tuple[int, Cells | int]]:
        return cells_of_tables([self.table], self.name, how, skip)

    def count_rows(self, schema: Schema) -> int:
        return self.table.num_rows

    def sample_rows(self, limit: Callable[[int], int]) -> tuple[Any, bool]:
        rows, size = limit(self.table.num_columns), self.table.num_rows
        if size <= rows:
            return self.table, True
        blocks = (self.table.slice(size * i // BLOCKS, rows // BLOCKS) for i in range(BLOCKS))
        return pa.concat_tables(blocks), False


def as_table(data: Any) -> Any:
    """Converts what holds columns to an Arrow table: what has the Arrow protocol (`__arrow_c_stream__`),
    as frames do; dicts of columns; lazy frames, which are collected; Hugging Face data sets; arrays of
    two dimensions, whose columns are called x0, x1 and so on."""
    if isinstance(data, pa.Table):
        return data
    if isinstance(data, pa.RecordBatch):
        return pa.Table.from_batches([data])
    if isinstance(data, Mapping):
        tables = [str(name) for name, value in data.items() if hasattr(value, "column_names")]
        if tables:
            raise ValueError(
                f"expected a dict of columns, found one of data sets ({', '.join(tables)}): give one of "
                f"them, and to `prepare` others as validation= and test="
            )
        return _table_of_columns(data)
    if isinstance(data, np.ndarray) and data.dtype.names:  # as frame.to_records() has them
        return _table_of_columns({name: data[name] for name in data.dtype.names})
    if isinstance(data, np.ndarray) and data.ndim == 2:
        return _table_of_columns({f"x{number}": column for number, column in enumerate(data.T)})
    if hasattr(data, "__arrow_c_stream__"):
        try:
            return check_frame(data, pa.table(data))
        except (pa.ArrowException, TypeError, OverflowError) as error:
            if hasattr(data, "columns") and hasattr(data, "items"):
                dtypes = data.dtypes.items()
                if dense := {name: kind.subtype for name, kind in dtypes if hasattr(kind, "fill_value")}:
                    return as_table(data.astype(dense))  # as of get_dummies(sparse=True)
                _table_of_columns(dict(data.items()))  # its error names the column
            raise ValueError(
                f"expected columns, found {type(data).__name__} ({first_line(error)}); of a series, or "
                f"one row, make a frame"
            ) from None
    if hasattr(data, "to_arrow"):  # Polars before 1.3 has no such protocol
        return as_table(data.to_arrow())
    if hasattr(data, "collect_schema") and hasattr(data, "collect"):
        return as_table(data.collect())
    if hasattr(data, "with_format") and hasattr(data, "column_names") and hasattr(data, "__len__"):
        return as_table(data.with_format("arrow")[:])
    parts = ": name one of its parts, such as data.parts['test']" if hasattr(data, "parts") else ""
    raise ValueError(
        f"expected paths, an Arrow table, a pandas or Polars frame, a dict of columns, an array of two "
        f"dimensions, or a Hugging Face data set, not {type(data).__name__}{parts}"
    )


def _table_of_columns(columns: Mapping[str, Any]) -> Any:
    """A dict of columns (lists, arrays, tensors, series of equal length) as a table."""
    arrays = {}
    first, frame = next(iter(columns.items()), ("", None))
    for name, column in columns.items():
        check_order(f"column {name!r}", column, frame, f"column {first!r}")
        if isinstance(column, str | bytes) or not hasattr(column, "__len__"):
            raise ValueError(
                f"expected a dict of columns, found {type(column).__name__} for {name!r}; give lists or "
                f"arrays of equal length, for one row too: {{{name!r}: [...]}}; of a list of rows make a "
                f"frame"
            )
        try:
            arrays[str(name)] = check_objects(column, _column_array(column))
        except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
            raise ValueError(f"column {name!r} {_why_unread(column, error, name)}") from error
    lengths = {name: len(array) for name, array in arrays.items()}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"the columns of a dict must have equal lengths, not {lengths}")
    return pa.table(arrays)


def _column_array(column: Any) -> Any:
    if hasattr(column, "__arrow_c_stream__"):
        return pa.chunked_array(column)
    if hasattr(column, "to_arrow"):
        return column.to_arrow()
    if getattr(column, "ndim", 1) == 2:
        flat = pa.array(np.asarray(column).reshape(-1))
        return pa.FixedSizeListArray.from_arrays(flat, column.shape[1])
    is_foreign = hasattr(column, "__array__") and not hasattr(column, "__arrow_c_array__")
    values = np.asarray(column) if is_foreign else column
    try:
        return pa.array(values)
    except OverflowError:  # such as hashes of 64 bits
        is_of_lists = any(hasattr(value, "__len__") for value in values)
        return pa.array(values, pa.list_(pa.uint64()) if is_of_lists else pa.uint64())
    except (pa.ArrowException, ValueError):
        return pa.array(values, from_pandas=True)  # NaN among text, or NaT, is missing, as in a frame


def _why_unread(column: Any, error: Exception, name: str) -> str:
    is_of_arrow = isinstance(error, pa.ArrowException)
    kinds = set(map(type, np.asarray(column, object).flat)) if is_of_arrow else set()
    if isinstance(error, OverflowError):
        what = "has whole numbers beyond int64"
    elif str in kinds and any(issubclass(kind, Number) for kind in kinds):
        what = "mixes text and numbers"
    else:
        kind = str(getattr(column, "dtype", "object"))
        of_type = "" if kind == "object" else f", found {kind}"
        return f"is no column of values: {first_line(error)}{of_type}"
    how = f"of a pandas frame: frame[{name!r}].astype('string'); in JSON: \"7\" in place of 7"
    return f"{what}; convert it to text ({how})"


def check_order(name: str, values: Any, frame: Any, other: str = "X") -> None:
    """Warns where values have the index of a frame, or of a column called `other`, in another order."""
    index: Any = getattr(values, "index", None)
    theirs: Any = getattr(frame, "index", None)
    if not hasattr(index, "equals") or not hasattr(theirs, "isin") or index.equals(theirs):
        return
    if len(index) == len(theirs) and index.isin(theirs).all() and theirs.isin(index).all():
        warn(
            f"the index of {name} is that of {other} in another order: values are taken by position, not "
            f"by index; bring them into one order first, such as with .loc[{other}.index]"
        )


def check_frame(frame: Any, table: Any) -> Any:
    """Checks the columns of a pandas or Polars frame; returns the table that Arrow made of it."""
    if hasattr(frame, "get_columns"):
        columns = [(column.name, column) for column in frame.get_columns()]
    else:
        columns = list(frame.items()) if hasattr(frame, "dtypes") and hasattr(frame, "items") else []
    for place, ((name, column), array) in enumerate(zip(columns, table.columns, strict=False)):
        try:
            checked = check_objects(column, array)
        except ValueError as error:
            raise ValueError(f"column {name!r} {error}") from None
        if checked is not array:
            table = table.set_column(place, table.column_names[place], checked)
    return table


def check_objects(column: Any, array: Any) -> Any:
    """Refuses objects of Polars, whose addresses Arrow gets; moments of several types or zones: Arrow
    cuts off their time, or moves them to the first zone; and booleans among floats: 1.0 in Arrow, they
    have another id. Returns the array; with the zone of categories, which Arrow before 25 loses."""
    kind = str(getattr(column, "dtype", "object"))
    of_lists, is_floating = is_list(array.type), pa.types.is_floating
    is_plain = kind == "object" and hasattr(column, "__iter__")
    if is_plain and is_floating(array.type.value_type if of_lists else array.type):
        values = chain.from_iterable(x for x in column if hasattr(x, "__iter__")) if of_lists else column
        if not {bool, np.bool_}.isdisjoint(map(type, values)):
            raise ValueError("mixes numbers and booleans; convert it to text")
    if kind == "Object":
        raise ValueError("has Python objects, which are no values of Arrow; convert it to text")
    if kind == "object" and str(array.type).startswith(("date", "timestamp")):
        moments = (x for x in column if isinstance(x, date) and x == x)  # NaT is not equal to itself
        if len({(isinstance(x, datetime), str(getattr(x, "tzinfo", None))) for x in moments}) > 1:
            raise ValueError("mixes dates with times, or times of several zones; convert it to text")
    zone = getattr(getattr(getattr(column, "dtype", None), "categories", None), "tz", None)
    moments = getattr(array.type, "value_type", array.type)
    if zone is not None and moments.tz is None:
        return array.cast(moments).cast(pa.timestamp(moments.unit, pa.lib.tzinfo_to_string(zone)))
    return array


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
