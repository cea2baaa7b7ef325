"""Requests: raw rows, encoded into ids and numbers; what all rows of a request share is encoded once.

A user with 500 candidates sends one history 500 times, or once as `shared`. Columns that are equal in all
rows of a request are recognized, and encoded and looked up as one row.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hotrows.data.columns.history import USERS
from hotrows.data.encode.encoder import Encoder
from hotrows.data.raw.cells import cells_of
from hotrows.data.raw.reading import Reading, check_histories
from hotrows.data.raw.tables import as_table
from hotrows.data.raw.values import MISSING_TIME, hash_values, mix64
from hotrows.data.rows import RawRows, Rows
from hotrows.data.stored.histories import NEWEST
from hotrows.data.stored.user_histories import ShortLists, UserHistories
from hotrows.runtime.arrow import pa
from hotrows.runtime.json_file import shown
from hotrows.runtime.suggestions import did_you_mean
from hotrows.schema import Schema
from hotrows.serving.served_values import ServedValues
from hotrows.table import Cross

MOST_ROWS = 65_536  # of one request: longer inputs are cut
_REQUIRED = "all fields are required here; send null where a value is not known"


@dataclass(frozen=True)
class Request:
    """The ids and dense values of B rows.

    ids: by feature, [N], or [1] where all B rows have the one id; of dynamic features keys. offsets: of a
    feature with lists [B + 1], or [2] where all B rows have the one list; None: one id a row.
    dense: [B, num_dense] float32, transformed. shared: the features that all rows have in common.
    Weights of a feature's ids are among the ids and offsets, by `weights_of(feature)`.
    users: [B] or [1], hashes where histories are those that a version has, before times, [B] or [1]; of
    these there are offsets, and ids from `with_histories` on.
    """

    size: int
    ids: Mapping[str, np.ndarray]
    offsets: Mapping[str, np.ndarray | None]
    dense: np.ndarray
    shared: frozenset[str] = frozenset()
    users: np.ndarray | None = None
    times: np.ndarray | None = None

    def with_histories(self, histories: UserHistories | None, short: ShortLists) -> Request:
        """The request with the lists of its users in place of none. short: counts those of its lists."""
        if histories is None or self.users is None or self.times is None:
            return self
        lists, num_short = histories.lists(*np.broadcast_arrays(self.users, self.times))
        short.add(num_short, histories)
        ids = {name: ids for name, (ids, _) in lists.items()}
        offsets = {name: offsets for name, (_, offsets) in lists.items()}
        once = lists.keys() if len(next(iter(offsets.values()))) == 2 else ()
        return dataclasses.replace(
            self,
            ids={**self.ids, **ids},
            offsets={**self.offsets, **offsets},
            shared=self.shared.union(once),
            users=None,
        )

    def lengths(self, feature: str) -> np.ndarray:
        """[B], or [1] where all rows have one list: how many ids each has."""
        offsets = self.offsets[feature]
        return np.ones(self.size, np.int64) if offsets is None else np.diff(offsets)


def weights_of(feature: str) -> str:
    """The name of the weights of a feature's ids in a request, which no feature can have."""
    return f"\0weights of {feature}"


class RequestEncoder:
    """Encodes raw rows as the training data was.

    encoder: of the prepared data; crosses, equal_lengths: of the bundle. histories: gives those of users
    that the present version has, None if it has none. extra_fields, require_all: see
    `Scorer`.
    """

    def __init__(
        self,
        encoder: Encoder,
        crosses: Sequence[Cross] = (),
        equal_lengths: Sequence[Sequence[str]] = (),
        histories: Callable[[], UserHistories | None] = lambda: None,
        extra_fields: str = "refuse",
        require_all: bool = False,
    ) -> None:
        self.schema: Schema = encoder.schema
        self.statistics, self.values = encoder.statistics, encoder.values
        self._encoder, self._crosses, self._equal_lengths = encoder, crosses, equal_lengths
        self._histories, self._has_histories = histories, histories() is not None
        self._lists = encoder.schema.histories  # names of columns, too, that have them as lists
        how = "either" if self._has_histories else "lists"
        self._of_schema = encoder.columns_with(how)
        self._how = Reading(self.schema, encoder.threads, False, histories=how)
        self._by_name = {feature.name: feature for feature in self.schema.features}
        self._columns = dict.fromkeys(self._of_schema.of_features)
        self.stored = frozenset(self._lists if self._has_histories else ())
        required = tuple(name for name in self._columns if name not in self.stored) if require_all else ()
        # `Names`: the names of columns that objects may have.
        self.names = Names(self.schema.raw_columns, tuple(self._columns), required, extra_fields)
        self.value_counts = ServedValues(encoder)

    def encode(self, rows: Any, shared: Any = None, counted: bool = True) -> list[Request]:
        """Raw rows as requests of at most MOST_ROWS rows, in order.

        rows: a list of objects, or what `Encoder.encode` takes as a table: Arrow, frames, dicts of
        columns. shared: values by column that all rows have, or an Arrow table of one row. Columns that
        are left out are missing; names of `shared` and of a list of objects that no feature reads are
        refused, as a misspelt one would change scores in silence, unless `Scorer` has
        extra_fields="ignore". counted: whether `value_counts` counts the values.
        """
        table = table_of_rows(rows, self.names) if isinstance(rows, list | tuple) else as_table(rows)
        if not isinstance(shared, pa.Table):
            shared = table_of_shared(shared or {}, self.names)
        names = table.column_names
        if twice := sorted(set(shared.column_names) & set(names)):
            raise ValueError(f"{twice[0]!r} is in `shared` and in the rows; send it once")
        counts = Counter(names)
        if twice := sorted(name for name in self._columns if counts[name] > 1):
            raise ValueError(f"the rows have the field {twice[0]!r} twice; rename one")
        read = [name for name in self._columns if name in counts]
        if not read and not shared.num_columns and names != [""]:
            raise ValueError(
                f"the request has none of the fields that the model reads: "
                f"{', '.join(self._columns)}; it has {', '.join(names) or 'none'}"
            )
        columns = {*read, *shared.column_names}
        if absent := [name for name in self.names.required if name not in columns]:
            raise ValueError(f"the request lacks the field {absent[0]!r}; {_REQUIRED}")
        of_users = columns & {*self._lists, self.schema.user}
        if not self._has_histories or of_users != {self.schema.user}:
            check_histories(self.schema, "the request", columns)
        table = table.select(read or names[:1]).combine_chunks()  # without a column it has no rows
        parts = (table.slice(first, MOST_ROWS) for first in range(0, table.num_rows, MOST_ROWS))
        return [self._request(part, shared, counted, n * MOST_ROWS) for n, part in enumerate(parts)]

    def without(self, requests: Sequence[Request]) -> Iterator[tuple[str, list[Request]]]:
        """Yields, by name, requests as if a field were left out; lists of equal lengths go together."""
        (nothing,) = self.encode([dict.fromkeys(self._columns)], counted=False)
        together = {name: names for names in self._equal_lengths for name in names}
        fields: dict[str, set[str]] = {}
        for feature in self.schema.features:
            names = together.get(feature.name, (feature.name,))
            columns = dict.fromkeys(self.schema.column_of(self._by_name[name]) for name in names)
            fields.setdefault(" + ".join(columns), set()).update(names)
        for field, names_of_field in fields.items():
            yield field, [self._without(request, names_of_field, nothing) for request in requests]

    def _without(self, request: Request, features: set[str], nothing: Request) -> Request:
        ids, offsets, dense = dict(request.ids), dict(request.offsets), request.dense.copy()
        for name in features:
            if (places := self.schema.dense_places.get(name)) is not None:
                dense[:, places] = nothing.dense[:, places]
            for key in (name, weights_of(name)):
                if key in nothing.ids:
                    ids[key], offsets[key] = nothing.ids[key], nothing.offsets[key]
        shared = request.shared | features
        changed: dict[str, Any] = {
            "ids": ids | self._crossed(ids),
            "offsets": offsets,
            "dense": dense,
            "shared": shared,
        }
        return dataclasses.replace(request, **changed)

    def _request(self, table: Any, shared: Any, counted: bool, first_row: int) -> Request:
        size, names = table.num_rows, shared.column_names
        once = dict(zip(shared.column_names, shared.columns, strict=True))
        arrays = (table.to_batches() or [table])[0].columns
        together = {name for c in self._of_schema.ids if c.has_weights for name in c.columns}
        for name, column in zip(table.column_names, arrays, strict=True) if size > 1 else ():
            if name in together:
                continue
            same_ends = column[0].equals(column[size - 1])  # in most columns that differ they do
            if same_ends and column.slice(1).equals(column.slice(0, size - 1)):
                once[name], table = column.slice(0, 1), table.drop_columns([name])
        raw = self._read(table if table.num_columns else pa.table({"": pa.nulls(size)}), first_row + 1)
        if once:
            once_read = self._read(pa.table(once), first_row + 1)
            raw = self._of_schema.joined(raw, once_read, set(once))
        users = self._users(raw, {*table.column_names, *once})
        encoded = self._encoder.encode_rows(raw, self._of_schema)
        given_once = {f.name for f in self.schema.features if self.schema.column_of(f) in names}
        if counted:
            self.value_counts.add(raw, encoded if users is None else self._uncounted(encoded), given_once)
        ids, offsets = {}, {}
        for column in self._of_schema.ids:
            for section, name in (("ids", column.name), ("weights", weights_of(column.name))):
                if (values := encoded.get(f"{section}/{column.name}")) is not None:
                    ids[name], offsets[name] = values, encoded.bounds.get(column.name)
        if users is not None and (histories := self._histories()) is not None:
            offsets |= histories.offsets_of(*np.broadcast_arrays(*users))
        request = Request(
            size,
            ids | self._crossed(ids),
            offsets | {x.name: None for x in self._crosses},
            self._of_schema.dense(encoded),
            frozenset(f.name for f in self.schema.features if self.schema.column_of(f) in once),
            *(users or ()),
        )
        self._check_lengths(request)
        return request

    def _users(self, raw: RawRows, names: set[str]) -> tuple[np.ndarray, np.ndarray] | None:
        """Users and times whose histories a version has; None where there are lists."""
        if not self._has_histories or names & {*self._lists}:
            return None
        times = raw.get("times")
        times = np.array([NEWEST]) if times is None else times
        return hash_values(raw.values[USERS]), np.where(times == MISSING_TIME, NEWEST, times)

    def _uncounted(self, rows: Rows) -> Rows:
        """Encoded rows whose histories are not counted as empty: a version has them."""
        ids = {f"ids/{name}": np.zeros(0, np.int64) for name in self._lists}
        return rows.with_arrays(ids, dict.fromkeys(self._lists, np.zeros(1, np.int64)))

    def _read(self, table: Any, first_row: int) -> RawRows:
        (batch,) = table.combine_chunks().to_batches()
        return self._of_schema.read(cells_of(batch, "the request", first_row, self._how))

    def _crossed(self, ids: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {
            cross.name: bucket_of([ids[name] for name in cross.features], cross.rows)
            for cross in self._crosses
        }

    def _check_lengths(self, request: Request) -> None:
        for first, *others in self._equal_lengths:
            lengths = request.lengths(first)
            for other in others:
                if not (lengths == request.lengths(other)).all():
                    raise ValueError(
                        f"the lists {first!r} and {other!r} belong together and differ in length in a "
                        f"row; send as many values in both"
                    )


@dataclass(frozen=True)
class Names:
    """Names of columns: all that a schema knows, those of them that features read, and those that a
    request must have. extra: whether to `refuse` or to `ignore` other names."""

    known: tuple[str, ...]
    read: tuple[str, ...]
    required: tuple[str, ...] = ()
    extra: str = "refuse"

    def checked(self, names: Iterable[str]) -> list[str]:
        """Those of the names that are known; ValueError names the first other one, if it is refused."""
        names = list(names)
        for name in (name for name in names if name not in self.known and self.extra == "refuse"):
            hint = did_you_mean(name, self.read) or f"; it reads {', '.join(self.read)}"
            raise ValueError(f"the model reads no field {shown(name)}{hint}")
        return [name for name in names if name in self.known]


def table_of_rows(rows: Sequence[Any], names: Names) -> Any:
    """A list of objects as an Arrow table; ValueError names the first row that is no object."""
    if not rows:
        raise ValueError("expected rows, an object of fields each, found no row")
    for place, row in enumerate(rows):
        if not isinstance(row, Mapping):
            what = "null" if row is None else type(row).__name__
            raise ValueError(
                f"expected rows, an object of fields each, found {what} as row {place + 1:,}"
            )
    columns = names.checked(dict.fromkeys(name for row in rows for name in row))
    for name in (name for name in columns if name in names.required):
        for place in (place for place, row in enumerate(rows, 1) if name not in row):
            raise ValueError(f"row {place:,} lacks the field {name!r}; {_REQUIRED}")
    # Rows that have all values missing are those of a column without a name.
    return as_table({name: [row.get(name) for row in rows] for name in columns or [""]})


def table_of_shared(shared: Mapping[str, Any], names: Names) -> Any:
    """Makes an Arrow table of one row of what all rows have in common, of columns that features read."""
    known = names.checked(shared)
    return as_table({name: [shared[name]] for name in known if name in names.read})


def bucket_of(ids: Sequence[np.ndarray], rows: int) -> np.ndarray:
    """The bucket below `rows` of each sample's ids, [B] or [1], as `engine.planning.crosses`.

    ids = [[3, 4], [4, 3]], rows = 1000  ->  [133, 418]
    """
    bits = np.zeros(1, np.uint64)
    for feature_ids in ids:
        index = feature_ids.astype(np.uint64) + np.uint64(1)
        bits = mix64(bits + index * np.uint64(0x9E3779B97F4A7C15))
    return bits.view(np.int64) % rows
