"""Pretrained tables: initial values of rows, read from a file by the raw values that ids stand for.

    vectors.parquet, .arrow, .orc    a column of values (of several, `value`), and one of lists of numbers
    vectors.safetensors              `values` [N], whole numbers, and `vectors` [N, dim]
    vectors.npy                      [N, dim]: row i is the vector of the value i, or of the i-th value in
                                     vectors.values.json beside it

A value is looked up in the vocabulary of its table as one of raw rows is. Rows whose value is not in
the file keep what the table's initializer gives them.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.numpy import load_file

from hotrows import optim
from hotrows.data import EncodedData, Encoder
from hotrows.data.encode.encoder import stored_values
from hotrows.data.raw.arrow_arrays import first_line, is_list
from hotrows.data.raw.inputs import kind_of
from hotrows.data.raw.typed_files import TypedFileInput
from hotrows.engine import checkpoint
from hotrows.engine.checkpoint.reshard import ColumnSlice, Places
from hotrows.engine.embedding import Embedding
from hotrows.engine.storage.store import MemoryStore
from hotrows.ops.record import layout_of
from hotrows.optim import SGD
from hotrows.runtime.arrow import pa
from hotrows.runtime.suggestions import did_you_mean
from hotrows.schema import FIRST_UNKNOWN, Schema, Sparse, column_of, vocabulary_of
from hotrows.table import Table

_NPY = b"\x93NUMPY"


@dataclass(frozen=True)
class Coverage:
    """How many rows of a table a file gave values, and how many of its values the table lacks."""

    table: str
    file: str
    rows: int
    table_rows: int
    unused: int

    def __str__(self) -> str:
        return (
            f"{self.table}: {self.rows:,} of {self.table_rows:,} rows from {self.file}"
            f"{f'; {self.unused:,} of its values are not in the vocabulary' if self.unused else ''}"
        )


def frozen(tables: Sequence[Table], names: str | None) -> tuple[Table, ...]:
    """The tables, of which those with these names, with commas between, are not trained.

    Their rows have no optimizer state.
    """
    chosen = [table_named(tables, name.strip()).name for name in names.split(",")] if names else []
    return tuple(
        dataclasses.replace(table, optimizer=SGD(lr=0.0)) if table.name in chosen else table
        for table in tables
    )


def table_named(tables: Sequence[Table], name: str) -> Table:
    """The table of this name, or the one with the vectors of this feature."""
    for table in tables:
        if table.name == name:
            return table
    readers = [table for table in tables if name in table.features and table.role == "vector"]
    if len(readers) == 1:
        return readers[0]
    names = [table.name for table in tables]
    shown = ", ".join(names[:20]) + (", .." if len(names) > 20 else "")
    hint = did_you_mean(name, names)
    raise ValueError(f"no table of the model has the name {name!r}{hint}; it has {shown}")


def fill(embedding: Embedding, data: EncodedData, files: Mapping[str, str]) -> list[Coverage]:
    """Gives the rows of tables, by name, the values in files; collective between ranks."""
    saved: dict[str, list[GivenRows]] = {}
    covered = []
    for name, file in files.items():
        table = table_named(embedding.tables, name)
        if table.name in saved:
            raise ValueError(f"{table.name}: two files of pretrained values; name one")
        values, vectors = read(Path(file))
        if vectors.shape[1] != table.dim:
            raise ValueError(
                f"{file}: vectors of {vectors.shape[1]} numbers, and the rows of table {table.name!r} "
                f"have {table.dim}; train with that dim (--option dim={vectors.shape[1]}), or cut them"
            )
        if table.features[0] in embedding.dynamic.features:
            raise ValueError(
                f"{file}: table {table.name!r} is read by dynamic features, whose rows begin with the "
                f"first values of their keys; give pretrained values to tables with vocabularies"
            )
        ids = _ids_of(data, table, values, file)
        places = np.flatnonzero(ids >= 0)
        places = places[np.argsort(ids[places], kind="stable")]
        _check_once(file, values, ids, places)
        saved[table.name] = [GivenRows(table, ids[places], vectors[places])]
        covered.append(
            Coverage(table.name, Path(file).name, len(places), table.rows, len(ids) - len(places))
        )
    checkpoint.fill_tables(embedding, saved)
    return covered


class GivenRows:
    """The records of rows whose weights are given, as `checkpoint.sources.SavedRecords`.

    Their state is that of new rows.
    """

    def __init__(self, table: Table, ids: np.ndarray, vectors: np.ndarray) -> None:
        self.ids, self.columns = ids, ColumnSlice(layout_of(table), (0, table.dim))
        self._vectors = vectors
        assert table.optimizer is not None
        self._state = torch.tensor(optim.initial_state(table.optimizer, table.dim))
        self._step = table.optimizer.first_step

    def take(self, places: Places) -> np.ndarray:
        vectors = torch.from_numpy(np.ascontiguousarray(self._vectors[places], np.float32))
        store = MemoryStore.empty(self.columns.layout, len(vectors))
        store.records.zero_()
        store.views.write(vectors)
        store.views.state.copy_(self._state.expand_as(store.views.state))
        if store.views.step is not None:
            store.views.step.fill_(self._step)
        return store.records.numpy()


def read(path: Path) -> tuple[Any, np.ndarray]:
    """The values of a file, an Arrow array [N], and their vectors, [N, dim] floats."""
    try:
        with open(path, "rb") as opened:
            begin = opened.read(8)
        if kind := kind_of(begin):
            values, vectors = _typed(path, kind)
        else:
            values, vectors = (_npy if begin.startswith(_NPY) else _safetensors)(path)
    except FileNotFoundError:
        raise ValueError(f"{path}: there is no such file of pretrained values") from None
    except SafetensorError as error:
        raise ValueError(
            f"{path} is no npy, safetensors, Parquet, Arrow or ORC file that can be read "
            f"({first_line(error)}); write it again"
        ) from None
    if vectors.ndim != 2 or vectors.dtype.kind != "f" or len(vectors) != len(values):
        raise ValueError(
            f"{path}: expected vectors of floats, [{len(values):,}, dim], found {vectors.dtype} "
            f"{list(vectors.shape)}"
        )
    with np.errstate(over="ignore"):
        wrong = np.flatnonzero(~np.isfinite(vectors.astype(np.float32)).all(1))
    if len(wrong):
        value = values[int(wrong[0])].as_py()
        raise ValueError(f"{path}: the vector of {value!r} has a number that float32 cannot hold")
    return values, vectors


def _npy(path: Path) -> tuple[Any, np.ndarray]:
    try:
        vectors = np.lib.format.open_memmap(path, mode="r")  # refuses pickled objects
    except (ValueError, EOFError) as error:
        raise ValueError(f"{path} is no npy file of numbers ({first_line(error)})") from None
    beside = path.with_suffix(".values.json")  # which `export --vectors` writes
    if beside.exists():
        return pa.array(json.loads(beside.read_text()), "string"), vectors
    return pa.array(np.arange(len(vectors) if vectors.ndim else 0)), vectors


def _safetensors(path: Path) -> tuple[Any, np.ndarray]:
    tensors = load_file(path)
    values = tensors.get("values")
    if set(tensors) != {"values", "vectors"} or values is None or values.dtype.kind not in "iu":
        shown = ", ".join(f"{name} {t.dtype} {list(t.shape)}" for name, t in sorted(tensors.items()))
        raise ValueError(
            f"{path}: expected the tensors values, of whole numbers, and vectors, found {shown[:200]}; "
            f"rows by id, as `hotrows export` writes them, are those of their own data: begin with that "
            f"run (--init-from)"
        )
    return pa.array(values.reshape(-1)), tensors["vectors"]


def _typed(path: Path, kind: str) -> tuple[Any, np.ndarray]:
    file = TypedFileInput(str(path), str(path), kind=kind)
    table, _ = file.sample_rows(lambda columns: sys.maxsize)
    types = {field.name: field.type for field in table.schema}
    lists = [name for name, type_ in types.items() if is_list(type_)]
    others = [name for name in types if name not in lists]
    others = ["value"] if "value" in others else others
    if len(lists) != 1 or len(others) != 1:
        shown = ", ".join(f"{name} {type_}" for name, type_ in types.items())
        raise ValueError(
            f"{path}: expected a column of values and a column of lists of numbers, found "
            f"{shown[:200] or 'no row'}"
        )
    column = table.column(lists[0]).combine_chunks()
    column = pa.concat_arrays(column.chunks) if isinstance(column, pa.ChunkedArray) else column
    lengths = pa.compute.list_value_length(column).fill_null(0).to_numpy(zero_copy_only=False)
    wrong = np.flatnonzero(lengths != (lengths[0] if len(lengths) else 0))
    if column.null_count or len(wrong):
        row = int(wrong[0]) if len(wrong) else 0
        raise ValueError(
            f"{path} row {row}, column {lists[0]!r}: expected a list of {int(lengths.max())} numbers, "
            f"found one of {int(lengths[row])}"
        )
    flat = column.flatten()
    if flat.null_count:
        raise ValueError(f"{path}, column {lists[0]!r}: {flat.null_count:,} numbers are missing")
    vectors = flat.to_numpy(zero_copy_only=False).reshape(len(column), -1 if len(column) else 0)
    return table.column(others[0]), vectors


def _ids_of(data: EncodedData, table: Table, values: Any, file: str) -> np.ndarray:
    """The id of each value, [N] int64; -1 where the vocabulary lacks it."""
    readers = [f for f in data.schema.id_features if f.name == table.features[0]]
    if not readers:
        raise ValueError(
            f"table {table.name!r} is of a cross of features, which has no values to look up"
        )
    if not data.encodes_raw:
        return _ids_as_stored(table, values, file)
    reader, name = readers[0], vocabulary_of(readers[0])
    feature = Sparse("value", vocabulary=name)  # with one unknown id
    missing = data.schema.missing_of(column_of(reader))
    plain = Schema((feature,), missing=missing, strip=data.schema.strip)
    encoder = Encoder(plain, {name: stored_values(data)[name]}, {})
    batches = encoder.encode(pa.table({"value": values}))
    ids = np.concatenate([np.zeros(0, np.int64), *(batch.ids.numpy() for batch in batches)])
    known = np.where(ids > FIRST_UNKNOWN, ids - 1 + reader.num_unknown, -1)
    return np.where(ids < FIRST_UNKNOWN, ids, known)


def _ids_as_stored(table: Table, values: Any, file: str) -> np.ndarray:
    if not pa.types.is_integer(values.type) or values.null_count:
        raise ValueError(
            f"{file}: the data came encoded, with ids and no values, so values must be ids from 0 to "
            f"{table.rows - 1:,}, whole numbers, not {values.type}"
        )
    ids = values.cast(pa.int64()).to_numpy()
    return np.where((ids >= 0) & (ids < table.rows), ids, -1)


def _check_once(file: str, values: Any, ids: np.ndarray, places: np.ndarray) -> None:
    """places: of the values that have ids, in the order of these."""
    again = np.flatnonzero(np.diff(ids[places]) == 0)
    if len(again):
        first, second = (int(place) for place in places[again[0] : again[0] + 2])
        raise ValueError(
            f"{file}: the value {values[first].as_py()!r} is in rows {first:,} and {second:,}; keep one"
        )
