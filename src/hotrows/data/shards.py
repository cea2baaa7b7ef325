"""Shards: the rows of a part, column after column, in files that are mapped and never read whole.

Sections of a shard: `labels` uint8, [rows] or of several labels [rows, T]; `dense` [rows, num_dense]
float32; `ids/NAME` for every feature that carries ids, in the narrowest of uint8, uint16, uint32 and
int64 that holds them; `offsets/NAME` [rows + 1] for those that are lists, in uint32 or int64; and
where the schema has them `weights` [rows] float32 and `groups` [rows] int64. Lists stand end to end:

    row 0: 7 8 9   row 1: (none)   row 2: 4          ids 7 8 9 4    offsets 0 3 3 4
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from hotrows.data.columns import MISSING_LABEL
from hotrows.data.gather import Gathering, Room
from hotrows.data.sections import Sections, open_sections, write_sections
from hotrows.schema import FIRST_UNKNOWN, MISSING, Schema, is_list

ROWS_PER_SHARD = 1 << 19


@dataclass(frozen=True)
class Rows:
    """Encoded rows.

    ids: integers, one array per feature that carries ids; offsets: per such feature, None where every
        row has one id, so that ids are [rows]; else [rows + 1], row r has ids[o[r] : o[r + 1]].
    dense: [rows, num_dense] float32.
    labels: [rows] uint8, of several labels [rows, T], 255 where missing.
    weights: [rows] float32; groups: [rows] int64; None where the schema has none.
    """

    ids: tuple[np.ndarray, ...]
    offsets: tuple[np.ndarray | None, ...]
    dense: np.ndarray
    labels: np.ndarray
    weights: np.ndarray | None = None
    groups: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, chosen: slice) -> Rows:
        """Consecutive rows, without a copy; the ids of lists stay whole, under fewer offsets."""
        first, end, step = chosen.indices(len(self))
        assert step == 1
        end = max(first, end)
        pairs = zip(self.ids, self.offsets, strict=True)
        return Rows(
            ids=tuple(ids[first:end] if of is None else ids for ids, of in pairs),
            offsets=tuple(None if of is None else of[first : end + 1] for of in self.offsets),
            dense=self.dense[first:end],
            labels=self.labels[first:end],
            weights=None if self.weights is None else self.weights[first:end],
            groups=None if self.groups is None else self.groups[first:end],
        )

    def take(self, order: np.ndarray) -> Rows:
        """The rows `order` [n], copied."""
        return gathered([self], order, Room())

    def values(self, f: int) -> np.ndarray:
        """The ids of feature f of all rows, end to end."""
        of = self.offsets[f]
        return self.ids[f] if of is None else self.ids[f][int(of[0]) : int(of[-1])]


def gathered(pieces: Sequence[Rows], order: np.ndarray, room: Room) -> Rows:
    """The rows `order` [n] of one or more pieces, counted through them; copied into `room`."""
    of = Gathering(order, room)
    first, ids, offsets = pieces[0], [], []
    for f, bounds in enumerate(first.offsets):
        values = [piece.values(f) for piece in pieces]
        if bounds is None:
            taken, ends = of.column(f"ids {f}", values), None
        else:
            given = [piece.offsets[f] for piece in pieces]
            taken, ends = of.lists(f"ids {f}", values, [one for one in given if one is not None])
        ids.append(taken)
        offsets.append(ends)
    others = {
        name: of.column(name, [getattr(piece, name) for piece in pieces])
        for name in ("dense", "labels", "weights", "groups")
        if getattr(first, name) is not None
    }
    return Rows(ids=tuple(ids), offsets=tuple(offsets), **others)


@dataclass(frozen=True)
class Tally:
    """What is counted of rows: [T] per label, [F] per feature that carries ids, all int64.

    clicks, labelled: rows whose label is 1, and rows that have one; dense_missing: [num_dense], rows
    whose number is missing; missing, unknown: ids that say so; values: ids in all; empty: rows
    with an empty list.
    """

    clicks: np.ndarray
    labelled: np.ndarray
    dense_missing: np.ndarray
    missing: np.ndarray
    unknown: np.ndarray
    values: np.ndarray
    empty: np.ndarray

    def __add__(self, other: Tally) -> Tally:
        names = (field.name for field in fields(self))
        return Tally(*(getattr(self, name) + getattr(other, name) for name in names))

    def to_json(self) -> dict[str, list[int]]:
        return {name: of.tolist() for name, of in vars(self).items()}

    @staticmethod
    def from_json(given: dict[str, list[int]]) -> Tally:
        return Tally(**{name: np.array(of, np.int64) for name, of in given.items()})


@dataclass(frozen=True)
class Written:
    """What a writer wrote: its shards as (file, rows), and what stands in them.

    clicks: rows whose label is 1; labelled: rows that have the label; one of each per label.
    missing: per dense feature the rows, per other feature the ids that are missing; unknown: ids
    not in the vocabulary; values: ids in all; empty: of lists alone, rows that have no id.
    """

    shards: tuple[tuple[str, int], ...]
    clicks: tuple[int, ...]
    labelled: tuple[int, ...]
    missing: dict[str, int]
    unknown: dict[str, int]
    values: dict[str, int]
    empty: dict[str, int]


class ShardWriter:
    """Collects the rows of one part and writes a shard whenever one is full.

    A shard is written aside and put in place whole. `state()` says what shards there are; a writer
    that is resumed from it ends as if there had been no break.
    """

    def __init__(self, folder: Path, part: str, schema: Schema, rows: int = ROWS_PER_SHARD) -> None:
        self._folder = folder
        self._part = part
        self._schema = schema
        self._rows_per_shard = rows
        self._filling = _Filling(schema, rows)
        self._shards: list[tuple[str, int]] = []
        self._of_shards = self._of_filling = _no_tally(schema)
        self._to_drop = 0

    @staticmethod
    def resume(
        folder: Path, part: str, schema: Schema, state: dict[str, Any], already: int = 0
    ) -> ShardWriter:
        """A writer that goes on behind the shards that `state` names.

        already: how many of the rows in them, the last ones, are appended again: these are dropped.
        """
        assert 0 <= already <= state["rows"]
        writer = ShardWriter(folder, part, schema, state["rows_per_shard"])
        writer._shards = [(file, rows) for file, rows in state["shards"]]
        writer._of_shards = Tally.from_json(state["tally"])
        writer._to_drop = already
        for file, rows in writer._shards:
            check_rows(folder / file, len(open_shard(folder / file, schema)), rows)
        return writer

    @property
    def rows_in_shards(self) -> int:
        return sum(rows for _, rows in self._shards)

    def state(self) -> dict[str, Any]:
        """The shards that are written, `rows` in all, and what was counted of them; JSON-able."""
        return {
            "rows": sum(rows for _, rows in self._shards),
            "rows_per_shard": self._rows_per_shard,
            "shards": [list(shard) for shard in self._shards],
            "tally": self._of_shards.to_json(),
        }

    def append(self, rows: Rows, missing: np.ndarray | None = None) -> None:
        """Adds rows, whose ids may be of any integer type.

        missing: [num_dense, rows] bool, where a number was missing; None: nowhere.
        """
        if missing is None:
            missing = np.broadcast_to(False, (len(self._schema.dense), len(rows)))
        assert missing.shape == (len(self._schema.dense), len(rows)), (
            "[num_dense, rows], not counts"
        )
        done = min(self._to_drop, len(rows))
        self._to_drop -= done
        while done < len(rows):
            end = min(len(rows), done + self._filling.room)
            self._filling.append(rows[done:end])
            self._of_filling += _tally(rows[done:end], missing[:, done:end], self._schema)
            done = end
            if self._filling.room == 0:
                self._write()

    def close(self) -> Written:
        """Writes the last shard."""
        if self._filling.size:
            self._write()
        of = self._of_shards
        dense, ids = self._schema.dense, self._schema.id_features
        unlisted = [f.name for f in ids if not is_list(f)]
        empty = _by_name(ids, of.empty)
        return Written(
            shards=tuple(self._shards),
            clicks=tuple(of.clicks.tolist()),
            labelled=tuple(of.labelled.tolist()),
            missing=_by_name(dense, of.dense_missing) | _by_name(ids, of.missing),
            unknown=_by_name(ids, of.unknown),
            values=_by_name(ids, of.values),
            empty={name: num for name, num in empty.items() if name not in unlisted},
        )

    def _write(self) -> None:
        name = f"{self._part}-{len(self._shards):05d}.shard"
        header = {"kind": "shard", "rows": self._filling.size}
        aside = self._folder / f"{name}.part"
        write_sections(aside, header, _arrays(self._filling.rows(), self._schema))
        os.replace(aside, self._folder / name)
        self._shards.append((name, self._filling.size))
        self._of_shards += self._of_filling
        self._of_filling = _no_tally(self._schema)
        self._filling.clear()


def open_shard(path: Path, schema: Schema) -> Rows:
    """Maps the rows of a shard; an error where it does not hold what the schema asks for."""
    sections = open_sections(path)
    features = schema.id_features
    optional = {"weights": schema.weight, "groups": schema.group}
    rows = Rows(
        ids=tuple(sections[f"ids/{f.name}"] for f in features),
        offsets=tuple(sections[f"offsets/{f.name}"] if is_list(f) else None for f in features),
        dense=sections["dense"],
        labels=sections["labels"],
        **{name: sections[name] for name, asked in optional.items() if asked is not None},
    )
    _check_shapes(sections, rows, schema)
    return rows


def check_rows(path: Path, found: int, expected: int) -> None:
    if found != expected:
        raise ValueError(
            f"{path} has {found:,} rows, data.json says {expected:,}; prepare the data again"
        )


def width_of(rows: int) -> np.dtype:
    """The narrowest stored integer that holds ids below `rows`."""
    for dtype in (np.uint8, np.uint16, np.uint32):
        if rows <= np.iinfo(dtype).max + 1:
            return np.dtype(dtype)
    return np.dtype(np.int64)


class _Filling:
    """The rows of a shard while it fills; the ids of lists in arrays that grow."""

    def __init__(self, schema: Schema, rows: int) -> None:
        self.size = 0
        self._capacity = rows
        features = schema.id_features
        widths = [width_of(schema.rows_of(f.name)) for f in features]
        self._offsets = [np.zeros(rows + 1, np.int64) if is_list(f) else None for f in features]
        self._ids = [
            np.empty(rows if of is None else 0, width)
            for of, width in zip(self._offsets, widths, strict=True)
        ]
        self._dense = np.empty((rows, len(schema.dense)), np.float32)
        self._labels = np.empty((rows, len(schema.labels)), np.uint8)
        if len(schema.labels) == 1:
            self._labels = self._labels[:, 0]
        self._weights = None if schema.weight is None else np.empty(rows, np.float32)
        self._groups = None if schema.group is None else np.empty(rows, np.int64)

    @property
    def room(self) -> int:
        return self._capacity - self.size

    def append(self, rows: Rows) -> None:
        to = slice(self.size, self.size + len(rows))
        for f, given in enumerate(rows.offsets):
            if given is None:
                self._ids[f][to] = rows.ids[f]
            else:
                self._append_lists(f, rows.values(f), given)
        self._dense[to] = rows.dense
        self._labels[to] = rows.labels
        for into, values in ((self._weights, rows.weights), (self._groups, rows.groups)):
            if into is not None:
                assert values is not None
                into[to] = values
        self.size = to.stop

    def _append_lists(self, f: int, values: np.ndarray, given: np.ndarray) -> None:
        offsets, first = self._offsets[f], self.size
        assert offsets is not None
        start = int(offsets[first])
        end = start + len(values)
        if end > len(self._ids[f]):
            grown = np.empty(max(end, 2 * len(self._ids[f])), self._ids[f].dtype)
            grown[:start] = self._ids[f][:start]
            self._ids[f] = grown
        self._ids[f][start:end] = values
        lengths = given[1:].astype(np.int64) - int(given[0])
        offsets[first + 1 : first + len(given)] = start + lengths

    def rows(self) -> Rows:
        """What was appended."""
        end = self.size
        pairs = list(zip(self._ids, self._offsets, strict=True))
        return Rows(
            ids=tuple(ids[: end if of is None else int(of[end])] for ids, of in pairs),
            offsets=tuple(None if of is None else of[: end + 1] for of in self._offsets),
            dense=self._dense[:end],
            labels=self._labels[:end],
            weights=None if self._weights is None else self._weights[:end],
            groups=None if self._groups is None else self._groups[:end],
        )

    def clear(self) -> None:
        self.size = 0


def _arrays(rows: Rows, schema: Schema) -> dict[str, np.ndarray]:
    """The sections of a shard."""
    arrays = {"labels": rows.labels, "dense": rows.dense}
    for feature, ids in zip(schema.id_features, rows.ids, strict=True):
        arrays[f"ids/{feature.name}"] = ids
    for feature, of in zip(schema.id_features, rows.offsets, strict=True):
        if of is not None:
            narrow = int(of[-1]) <= np.iinfo(np.uint32).max
            arrays[f"offsets/{feature.name}"] = of.astype(np.uint32 if narrow else np.int64)
    if rows.weights is not None:
        arrays["weights"] = rows.weights
    if rows.groups is not None:
        arrays["groups"] = rows.groups
    return arrays


def _check_shapes(sections: Sections, rows: Rows, schema: Schema) -> None:
    """An error where the sections do not fit each other, or the schema."""
    num, labels = len(rows.dense), len(schema.labels)
    expected = {
        "dense": ("f4", (num, len(schema.dense))),
        "labels": ("u1", (num,) if labels == 1 else (num, labels)),
        "weights": ("f4", (num,)),
        "groups": ("i8", (num,)),
    }
    wrong = [
        name
        for name, (dtype, shape) in expected.items()
        if (of := getattr(rows, name)) is not None
        and (of.shape != shape or of.dtype != np.dtype(dtype))
    ]
    for feature, ids, of in zip(schema.id_features, rows.ids, rows.offsets, strict=True):
        if ids.ndim != 1 or ids.dtype.str[1:] not in ("u1", "u2", "u4", "i8"):
            wrong.append(f"ids/{feature.name}")
        elif not (len(ids) == num if of is None else _fits(of, num, len(ids))):
            wrong.append(f"{'ids' if of is None else 'offsets'}/{feature.name}")
    if wrong:
        raise ValueError(
            f"{sections.path}: sections {wrong} do not have the rows and types that the schema "
            f"asks for; prepare the data again"
        )


def _fits(offsets: np.ndarray, num_rows: int, num_ids: int) -> bool:
    """Whether offsets have the right form and ends; a loader checks those that it reads between."""
    return (
        offsets.shape == (num_rows + 1,)
        and offsets.dtype.str[1:] in ("u4", "i8")
        and (int(offsets[0]), int(offsets[-1])) == (0, num_ids)
    )


def _tally(rows: Rows, missing: np.ndarray, schema: Schema) -> Tally:
    features = schema.id_features
    values = [rows.values(f) for f in range(len(features))]
    labels = rows.labels.reshape(len(rows), -1)
    ends = [FIRST_UNKNOWN + f.num_unknown for f in features]
    return Tally(
        clicks=np.count_nonzero(labels == 1, axis=0),
        labelled=np.count_nonzero(labels != MISSING_LABEL, axis=0),
        dense_missing=np.count_nonzero(missing, axis=1),
        missing=_counts(np.count_nonzero(of == MISSING) for of in values),
        unknown=_counts(
            np.count_nonzero((of >= FIRST_UNKNOWN) & (of < end))
            for of, end in zip(values, ends, strict=True)
        ),
        values=_counts(len(of) for of in values),
        empty=_counts(0 if of is None else np.sum(of[1:] == of[:-1]) for of in rows.offsets),
    )


def _no_tally(schema: Schema) -> Tally:
    labels, features = len(schema.labels), len(schema.id_features)
    sizes = (labels, labels, len(schema.dense), features, features, features, features)
    return Tally(*(np.zeros(size, np.int64) for size in sizes))


def _counts(of) -> np.ndarray:
    return np.array([int(count) for count in of], np.int64)


def _by_name(features: Sequence, counts: np.ndarray) -> dict[str, int]:
    return dict(zip((f.name for f in features), counts.tolist(), strict=True))
