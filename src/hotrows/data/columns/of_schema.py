"""The columns of a schema, kind by kind: how its rows are read, encoded, and made into batches.

    cells  --read_rows-->  RawRows  --encode-->  Rows (sections)  --batch_of-->  Batch

A kind of column is chosen here, once, by how its feature is declared; elsewhere none is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from hotrows.data.columns.group import GroupColumns
from hotrows.data.columns.history import USERS, HistoryColumn, ReferenceColumns
from hotrows.data.columns.id import IdColumn
from hotrows.data.columns.label import LabelColumns
from hotrows.data.columns.list import AddedValue, ListColumn
from hotrows.data.columns.number import MISSING, NumberColumns, Statistics
from hotrows.data.columns.time import TimeColumn
from hotrows.data.columns.vector import VectorColumns
from hotrows.data.columns.weight import WeightColumn
from hotrows.data.raw.cells import Cells
from hotrows.data.raw.values import Bad, RawIds
from hotrows.data.rows import Arrays, RawRows, Rows, Section, ends_of, lengths_of
from hotrows.schema import Schema, is_list

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hotrows.batch import Batch

_SHARED = "sample_weights", "groups", "times"  # fields that are in the memory of rows
StoredIds = Callable[[IdColumn], tuple[np.ndarray, np.ndarray | None]]
LookUp = Callable[[Sequence[RawIds]], list[np.ndarray]]


class Kind(Protocol):
    """The columns of one kind of a schema, all of which are read and encoded together: a chunk has few
    rows where it has many columns.

    sections: those that rows have of them; numeric: the raw columns that are read as numbers.
    """

    @property
    def sections(self) -> tuple[Section, ...]: ...

    @property
    def numeric(self) -> tuple[str, ...]: ...

    def read(self, cells: Cells, values: dict[str, Any]) -> Iterable[Bad | None]:
        """Reads the columns into values; returns the first wrong value of each."""
        ...

    def encode(self, raw: RawRows, arrays: Arrays, threads: int) -> None:
        """Adds the sections of raw values."""
        ...


class SchemaColumns:
    """All columns of a schema.

    statistics: of numbers that are `standard`. histories: what is in place of histories, see `Reading`.
    events: of all users, which references are into; None: rows are not encoded, or have lists.
    """

    def __init__(
        self,
        schema: Schema,
        statistics: Mapping[str, Statistics] | None = None,
        histories: str = "lists",
        events: Any = None,
    ) -> None:
        self.schema = schema
        self.labels, self.vectors = LabelColumns(schema), VectorColumns(schema)
        self.numbers = NumberColumns(schema, statistics)
        self._user = None if histories == "lists" else schema.user
        of_histories = {"references": HistoryColumn, "lines": AddedValue}.get(histories, ListColumn)
        self.ids = tuple(
            of_histories(schema, f)
            if f.name in schema.histories
            else (ListColumn if is_list(f) else IdColumn)(schema, f)
            for f in schema.id_features
        )
        is_stored = histories == "references" and events is not None
        self._histories = ReferenceColumns(schema, events) if is_stored else None
        others = WeightColumn(schema), GroupColumns(schema), TimeColumn(schema)
        self.kinds: tuple[Kind, ...] = self.labels, self.numbers, self.vectors, *others
        single = [column for column in self.ids if not column.is_list and column.transform == "none"]
        self._single = tuple(dict.fromkeys(column.column for column in single))
        numeric = [name for kind in self.kinds for name in kind.numeric]
        numeric += [name for column in self.ids for name in column.numeric]
        self._numeric = tuple(dict.fromkeys(numeric))

    @property
    def sections(self) -> tuple[Section, ...]:
        """The sections of encoded rows, in the order of shards."""
        by_name = {section.name: section for kind in self.kinds for section in kind.sections}
        first = [by_name.pop(name) for name in ("labels", "dense")]
        columns = [section for column in self.ids for section in column.sections]
        if self._histories is not None:  # behind features of one id
            place = sum(len(column.sections) for column in self.ids[: len(self.schema.sparse)])
            columns[place:place] = self._histories.sections
        columns.sort(key=lambda section: section.name.startswith("weights/"))
        return (*first, *columns, *by_name.values())

    @property
    def of_lists(self) -> set[str]:
        """The raw columns of which a value is a list."""
        names = {name for column in self.ids if column.is_list for name in column.columns}
        return names | {self.schema.column_of(feature) for feature in self.vectors.features}

    @property
    def of_features(self) -> list[str]:
        """The raw columns that predictions are made from."""
        columns = [self.schema.column_of(feature) for feature in self.schema.features]
        columns += [name for column in self.ids for name in column.columns[1:]]
        if self._user is not None and self.schema.time is not None:
            columns += [self._user, self.schema.time.column]
        return columns

    @property
    def shared(self) -> set[str]:
        """The raw columns that rows of a request have in common."""
        schema, names = self.schema, set(self.schema.shared)
        columns = {schema.column_of(f) for f in schema.features if f.name in names}
        return columns | {name for c in self.ids if c.shared for name in c.columns}

    def read(self, cells: Cells) -> RawRows:
        """Reads the columns from a chunk; ValueError names the first bad row.

        Of all errors in a chunk the one in the smallest row is reported, whatever the number of threads;
        within a row labels come first, then numbers.
        """
        cells, values = self._read_others(cells)
        cells.raise_first([bad for column in self.ids for bad in column.read(cells, values)])
        if self._user is not None and cells.has(self._user):
            values[USERS] = cells.ids(self._user)
        if cells.problem is not None:
            raise cells.problem
        return RawRows(0, cells.num_rows, values, cells.where, cells.kept)

    def as_stored(self, cells: Cells, ids_of: StoredIds) -> Rows:
        """Encodes a chunk whose columns of ids have ids already, which `ids_of` gives and checks."""
        cells, values = self._read_others(cells)
        arrays = self._encode_others(RawRows(0, cells.num_rows, values, cells.where), 1)
        bounds: Arrays = {}
        for column in self.ids:
            arrays[f"ids/{column.name}"], ends = ids_of(column)
            bounds |= {} if ends is None else {column.name: ends}
        return Rows(cells.num_rows, arrays, bounds)

    def _read_others(self, cells: Cells) -> tuple[Cells, dict[str, Any]]:
        of_labels = frozenset(self.labels.numeric)
        cells = replace(cells, numeric=self._numeric, single=self._single, of_labels=of_labels)
        values: dict[str, Any] = {}
        cells.raise_first([bad for kind in self.kinds for bad in kind.read(cells, values)])
        return cells, values

    def _encode_others(self, raw: RawRows, threads: int) -> Arrays:
        arrays: Arrays = {}
        for kind in self.kinds:
            kind.encode(raw, arrays, threads)
        return arrays

    def encode(self, raw: RawRows, look_up: LookUp, threads: int) -> Rows:
        """Encodes raw rows. look_up: gives the ids of values of each feature."""
        arrays, bounds = self._encode_others(raw, threads), dict[str, np.ndarray]()
        for column, ids in zip(self.ids, self.encode_ids(raw, look_up), strict=True):
            column.encode(raw.values, ids, arrays, bounds)
        if self._histories is not None:
            self._histories.encode(raw, arrays)
        return Rows(raw.num_rows, arrays, bounds)

    def encode_ids(self, raw: RawRows, look_up: LookUp) -> Iterator[np.ndarray]:
        """The ids of the values of each feature, of a list all of them: int64."""
        for column, ranked in zip(self.ids, look_up(self.words(raw)), strict=True):
            yield column.lookup.ids(raw.values[f"ids/{column.name}"], ranked, raw.where)

    def words(self, raw: RawRows) -> list[RawIds]:
        return [column.lookup.words(raw.values[f"ids/{column.name}"]) for column in self.ids]

    def dense(self, rows: Rows) -> np.ndarray:
        """The dense values of rows, copied: [rows, num_dense] float32."""
        if (numbers := rows.get("dense")) is None:
            return np.zeros((len(rows), 0), np.float32)
        vectors = rows.get("vectors")
        both = [numbers] if vectors is None else [numbers, vectors]
        return np.concatenate(both, 1, dtype=np.float32)

    def joined(self, raw: RawRows, once: RawRows, names: set[str]) -> RawRows:
        """Raw rows with the values of raw columns `names` from the one row that all have in common."""
        values = dict(raw.values)
        shared = (column.name for column in self.ids if column.column in names)
        sections = [f"{kind}/{name}" for name in shared for kind in ("ids", "weights")]
        sections += [USERS] if self._user in names else []
        sections += [] if "times" in values else ["times"]
        values |= {section: once.values[section] for section in sections if section in once.values}
        values["dense"] = raw.values["dense"].copy()
        for into, column, number in zip(
            values["dense"], self.numbers.numeric, once.values["dense"], strict=True
        ):
            if column in names:
                into[:] = number
        pairs = zip(self.vectors.features, raw.values["vectors"], once.values["vectors"], strict=True)
        values["vectors"] = [
            np.broadcast_to(one, of_rows.shape) if self.schema.column_of(f) in names else of_rows
            for f, of_rows, one in pairs
        ]
        return replace(raw, values=values)

    def among(self, rows: Rows) -> list[IdColumn]:
        """The columns of ids that rows have."""
        return [column for column in self.ids if f"ids/{column.name}" in rows.arrays]


def histories_of(schema: Schema) -> list[ListColumn]:
    """The columns of a schema's histories, as lists."""
    return [ListColumn(schema, f) for f in schema.sequences if f.name in schema.histories]


def batch_of(columns: SchemaColumns, rows: Rows, first_sample: int = 0, has_labels: bool = True) -> Batch:
    """Copies encoded rows into a batch, with those of the columns that they have."""
    import torch

    from hotrows.batch import Batch

    # Ids end to end, and where lists end; weights of ids: 1 where a feature has none.
    features = columns.among(rows)
    ids = [rows.values(f"ids/{column.name}") for column in features]
    offsets, weights = None, None
    if rows.bounds:
        every = [rows.bounds.get(column.name) for column in features]
        one = np.ones(len(rows), np.int64)
        sizes = [len(rows.arrays[f"ids/{column.name}"]) for column in features]
        pairs = zip(every, sizes, strict=True)
        lengths = [one if bounds is None else lengths_of(bounds, size) for bounds, size in pairs]
        offsets = ends_of(np.concatenate(lengths))
    of_features = [f"weights/{column.name}" for column in features]
    if any(name in rows.arrays for name in of_features):
        ones = (np.ones(len(values), np.float32) for values in ids)
        pieces = zip(of_features, ones, strict=True)
        weights = np.concatenate([rows.values(n) if n in rows.arrays else one for n, one in pieces])
    labels, groups = rows.get("labels"), rows.get("groups")
    fields = {
        "ids": np.concatenate([np.zeros(0, np.int64), *ids]),
        "dense": columns.dense(rows),
        "labels": columns.labels.of_batch(labels) if labels is not None and has_labels else None,
        "offsets": offsets,
        "weights": weights,
        "sample_weights": rows.get("weights"),
        "groups": rows.get("requests") if groups is None else groups,
        "times": rows.get("times"),
    }
    tensors: dict[str, Any] = {
        name: None if array is None else torch.from_numpy(array.copy() if name in _SHARED else array)
        for name, array in fields.items()
    }
    return Batch(tuple(column.name for column in features), first_sample=first_sample, **tensors)


def missing_of(rows: Rows, columns: SchemaColumns) -> np.ndarray:
    """[rows, numbers and vectors] bool, which are missing: none where rows were not encoded here."""
    nowhere = np.broadcast_to(False, (len(rows), len(columns.schema.dense_places)))
    return rows.arrays.get(MISSING, nowhere)
