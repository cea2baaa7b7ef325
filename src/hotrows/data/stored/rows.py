"""Rows: encoded samples, column after column, and how they are copied in any order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hotrows.data.raw.cells import MISSING_LABEL, missing_labels
from hotrows.runtime.native import call
from hotrows.schema import FIRST_UNKNOWN, MISSING, MISSING_KEY, IdFeature, Schema, is_list

OPTIONAL = ("vectors", "weights", "groups", "times", "requests")  # columns that schemas may lack
DAMAGED = (
    "expected offsets of lists that rise within the ids of their shard, found others: the file is "
    "damaged (EncodedData.check() says which); prepare the data again"
)


@dataclass(frozen=True)
class Rows:
    """Encoded rows.

    ids: integers, one array per feature that carries ids, and behind these weights of ids, float32, one
        array per feature that has some; offsets: per such array, None where every row has one id, so
        that ids are [rows]; else [rows + 1], row r has ids[o[r] : o[r + 1]].
    dense: [rows, num_dense] float32.
    labels: [rows] uint8, of several labels [rows, T], 255 where missing; or float32, NaN where missing.
    vectors: [rows, numbers of all vectors] float32 or float16; weights: [rows] float32; groups, times:
        [rows] int64; requests: [rows] int64, equal for neighbours of one request; None where the schema
        has none.
    """

    ids: tuple[np.ndarray, ...]
    offsets: tuple[np.ndarray | None, ...]
    dense: np.ndarray
    labels: np.ndarray
    vectors: np.ndarray | None = None
    weights: np.ndarray | None = None
    groups: np.ndarray | None = None
    times: np.ndarray | None = None
    requests: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, chosen: slice) -> Rows:
        """Returns consecutive rows without a copy; of lists, all ids with fewer offsets."""
        first, end, step = chosen.indices(len(self))
        if step != 1:
            raise ValueError(f"expected consecutive rows, not every {step}th")
        end = max(first, end)
        pairs = zip(self.ids, self.offsets, strict=True)
        return Rows(
            ids=tuple(ids[first:end] if offsets is None else ids for ids, offsets in pairs),
            offsets=tuple(None if o is None else o[first : end + 1] for o in self.offsets),
            dense=self.dense[first:end],
            labels=self.labels[first:end],
            **{
                name: None if (column := getattr(self, name)) is None else column[first:end]
                for name in OPTIONAL
            },
        )

    @property
    def all_dense(self) -> np.ndarray:
        """The dense values of a batch: [rows, num_dense] float32."""
        if self.vectors is None:
            return self.dense
        return np.concatenate([self.dense, self.vectors], 1, dtype=np.float32)

    def take(self, order: np.ndarray) -> Rows:
        """Copies the rows `order` [n]."""
        return gathered([self], order, Room())

    def values(self, f: int) -> np.ndarray:
        """Returns the ids of feature f of all rows, end to end."""
        offsets = self.offsets[f]
        return self.ids[f] if offsets is None else self.ids[f][int(offsets[0]) : int(offsets[-1])]


class Room:
    """Named arrays whose memory is reused: fresh memory costs more than writing to it.

    An array is valid until the next one of its name is requested.
    """

    def __init__(self) -> None:
        self._buffers: dict[str, np.ndarray] = {}

    def array(self, name: str, shape: tuple[int, ...], dtype: np.dtype | type) -> np.ndarray:
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        if name not in self._buffers or len(self._buffers[name]) < size:
            self._buffers[name] = np.empty(size + size // 8, np.uint8)
        return self._buffers[name][:size].view(dtype).reshape(shape)


def empty_rows(schema: Schema, size: int, array: Callable[..., np.ndarray] | None = None) -> Rows:
    """Rows to fill: of lists, offsets of 0 and no ids yet. array: makes one of a name, a shape and a type
    (default: new ones)."""
    make = array or (lambda name, shape, dtype: np.empty(shape, dtype))
    labels, features = len(schema.labels), schema.id_features
    width = schema.num_dense - len(schema.dense)
    optional: dict[str, tuple[bool, tuple[int, ...], Any]] = {
        "vectors": (bool(schema.vectors), (size, width), vector_type(schema)),
        "weights": (schema.weight is not None, (size,), np.float32),
        "groups": (schema.grouping is not None, (size,), np.int64),
        "times": (schema.keeps_times, (size,), np.int64),
        "requests": (schema.request is not None, (size,), np.int64),
    }
    return Rows(
        ids=tuple(
            make(f"ids {f}", (0 if is_list(feature) else size,), id_type(schema, feature))
            for f, feature in enumerate(features)
        )
        + tuple(make(f"weights {f}", (0,), np.float32) for f in range(len(schema.weighted))),
        offsets=tuple(
            np.zeros(size + 1, np.int64) if is_list(feature) else None
            for feature in (*features, *schema.weighted)
        ),
        dense=make("dense", (size, len(schema.dense)), np.float32),
        labels=make(
            "labels",
            (size, labels) if labels > 1 else (size,),
            np.float32 if schema.has_numbers else np.uint8,
        ),
        **{name: make(name, *how) for name, (exists, *how) in optional.items() if exists},
    )


def means_of_labels(
    pieces: Iterable[tuple[np.ndarray, np.ndarray | None]], num_labels: int
) -> tuple[float | None, ...]:
    """The mean of each label over all pieces of (labels as in `Rows`, weights [rows] or None).

    A row counts as much as its weight, and not at all where it lacks the label. None: no row counts.
    """
    sums, totals = np.zeros(num_labels), np.zeros(num_labels)
    for labels, weights in pieces:
        by_label = labels.reshape(len(labels), num_labels).T  # [T, rows]
        is_number = labels.dtype.kind == "f"
        present = ~np.isnan(by_label) if is_number else by_label != MISSING_LABEL
        counts = present * (1.0 if weights is None else weights.astype(np.float64))
        totals += counts.sum(1)
        sums += (counts * np.where(present, by_label, 0)).sum(1)
    pairs = zip(sums.tolist(), totals.tolist(), strict=True)
    return tuple(value / total if total else None for value, total in pairs)


def gathered(pieces: Sequence[Rows], order: np.ndarray, room: Room) -> Rows:
    """Copies the rows `order` [n] of one or more pieces, counted through all of them, into `room`.

    The pieces of one column are joined, small enough to stay in the processor's cache, and read in the
    new order.
    """
    first = pieces[0]
    ids: list[np.ndarray] = []
    offsets: list[np.ndarray | None] = []
    for f, bounds in enumerate(first.offsets):
        values, ends = [piece.values(f) for piece in pieces], None
        if bounds is None:
            taken = _gathered(f"ids {f}", values, order, room)
        else:
            present = [o for piece in pieces if (o := piece.offsets[f]) is not None]
            taken, ends = _gathered_lists(f"ids {f}", values, present, order, room)
        ids.append(taken)
        offsets.append(ends)
    others = {
        name: _gathered(name, [getattr(piece, name) for piece in pieces], order, room)
        for name in ("dense", "labels", *OPTIONAL)
        if getattr(first, name) is not None
    }
    return Rows(ids=tuple(ids), offsets=tuple(offsets), **others)


def _gathered(name: str, pieces: Sequence[np.ndarray], order: np.ndarray, room: Room) -> np.ndarray:
    """Rows [n, ...] of a column, which may have several values each."""
    if order.dtype != np.int64:
        raise ValueError(f"expected int64 numbers of rows, not {order.dtype}")
    values = _joined(pieces, room)
    return take(values, order, room.array(name, (len(order), *values.shape[1:]), values.dtype))


def _gathered_lists(
    name: str, ids: Sequence[np.ndarray], offsets: Sequence[np.ndarray], order: np.ndarray, room: Room
) -> tuple[np.ndarray, np.ndarray]:
    """The ids of lists, end to end, and their offsets [n + 1] int64. ids: per piece."""
    values, bounds = _joined(ids, room), joined_offsets(offsets)
    ends = ends_of(measured(bounds, len(values), order))
    out = room.array(name, (int(ends[-1]),), values.dtype)
    return take_lists(values, bounds, order, ends, out), ends


def _joined(pieces: Sequence[np.ndarray], room: Room) -> np.ndarray:
    if len(pieces) == 1:
        return np.ascontiguousarray(pieces[0])
    rows = sum(map(len, pieces))
    scratch = room.array("scratch", (rows, *pieces[0].shape[1:]), pieces[0].dtype)
    return np.concatenate(pieces, out=scratch)


def missing_id(feature: IdFeature) -> int:
    """The value that stands for a missing one of a feature."""
    return MISSING if feature.dynamic is None else MISSING_KEY


def id_type(schema: Schema, feature: IdFeature) -> np.dtype:
    """The stored integer of a feature: the narrowest one that holds its ids, int64 for keys."""
    return np.dtype(np.int64) if feature.dynamic is not None else width_of(schema.rows_of(feature.name))


def vector_type(schema: Schema) -> np.dtype:
    """The stored type of vectors: float16 where all of the schema say so."""
    return np.dtype("float16" if {f.stored for f in schema.vectors} == {"float16"} else "float32")


def width_of(rows: int) -> np.dtype:
    """The narrowest stored integer that holds ids below `rows`."""
    for dtype in (np.uint8, np.uint16, np.uint32):
        if rows <= np.iinfo(dtype).max + 1:
            return np.dtype(dtype)
    return np.dtype(np.int64)


def take(column: np.ndarray, order: np.ndarray, out: np.ndarray) -> np.ndarray:
    """out[i] = column[order[i]]."""
    bytes_per_row = int(np.prod(column.shape[1:])) * column.itemsize
    call("take", column, bytes_per_row, order, len(order), out)
    return out


def interleave(columns: Sequence[np.ndarray], out: np.ndarray) -> np.ndarray:
    """out[i, c] = columns[c][i], float32."""
    places = np.array([column.ctypes.data for column in columns], np.int64)
    call("interleave", places, len(columns), len(out), out)
    return out


def measured(offsets: np.ndarray, size: int, order: np.ndarray) -> np.ndarray:
    """Returns the lengths [n] int64 of the lists `order`; size: number of ids in the column."""
    lengths = np.empty(len(order), np.int64)
    if call("measure_lists", offsets, offsets.itemsize, size, order, len(order), lengths):
        raise ValueError(DAMAGED)
    return lengths


def lengths_of(offsets: np.ndarray, size: int) -> np.ndarray:
    """Returns the lengths [n] int64 of n consecutive lists, checked like `measured`."""
    lengths = offsets[1:].astype(np.int64) - offsets[:-1]
    if len(lengths) and (lengths.min() < 0 or offsets[0] < 0 or offsets[-1] > size):
        raise ValueError(DAMAGED)
    return lengths


def take_lists(
    ids: np.ndarray, offsets: np.ndarray, order: np.ndarray, ends: np.ndarray, out: np.ndarray
) -> np.ndarray:
    """out[ends[i] : ends[i + 1]] = the ids of list order[i].

    ids 7 8 9 4, offsets 0 3 3 4, order 2 0, ends 0 1 4  ->  4 7 8 9
    """
    arguments = (ids, ids.itemsize, offsets, offsets.itemsize)
    call("take_lists", *arguments, order, len(order), ends, out)
    return out


def ends_of(lengths: np.ndarray) -> np.ndarray:
    """Returns the offsets [n + 1] int64 of n lists of these lengths: 3 0 1  ->  0 3 3 4."""
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def joined_offsets(offsets: Sequence[np.ndarray]) -> np.ndarray:
    """Returns the offsets of lists that are joined end to end: 0 3 3 | 5 6  ->  0 3 3 4."""
    if len(offsets) == 1 and offsets[0][0] == 0:
        return offsets[0]
    return ends_of(np.concatenate([bounds[1:].astype(np.int64) - bounds[:-1] for bounds in offsets]))


@dataclass(frozen=True)
class Tally:
    """Counts of rows, int64: [T] per label, [F] per feature that carries ids.

    clicks, labelled: rows whose label is 1, and rows that have one; dense_missing: by number and vector,
        rows that lack it; missing, unknown: ids of missing and of unknown values; values: ids in all;
        empty: rows with an empty list.
    """

    clicks: np.ndarray
    labelled: np.ndarray
    dense_missing: np.ndarray
    missing: np.ndarray
    unknown: np.ndarray
    values: np.ndarray
    empty: np.ndarray

    def __add__(self, other: Tally) -> Tally:
        return Tally(*map(np.add, vars(self).values(), vars(other).values()))

    def to_json(self) -> dict[str, list[int]]:
        return {name: counts.tolist() for name, counts in vars(self).items()}

    @staticmethod
    def from_json(stored: dict[str, list[int]]) -> Tally:
        return Tally(**{name: np.array(counts, np.int64) for name, counts in stored.items()})


def tally_of(rows: Rows, missing: np.ndarray, schema: Schema) -> Tally:
    """Counts rows; missing: [numbers and vectors, rows] bool, where one was missing."""
    features = schema.id_features
    values = [rows.values(f) for f in range(len(features))]
    labels = rows.labels.reshape(len(rows), len(schema.labels))
    ends = [FIRST_UNKNOWN + f.num_unknown for f in features]
    return Tally(
        clicks=np.count_nonzero(labels == 1, axis=0),
        labelled=np.count_nonzero(~missing_labels(labels), axis=0),
        dense_missing=np.count_nonzero(missing, axis=1),
        missing=_counts(
            np.count_nonzero(ids == missing_id(f)) for ids, f in zip(values, features, strict=True)
        ),
        unknown=_counts(
            np.count_nonzero((ids >= FIRST_UNKNOWN) & (ids < end)) if f.dynamic is None else 0
            for ids, end, f in zip(values, ends, features, strict=True)
        ),
        values=_counts(map(len, values)),
        empty=_counts(0 if o is None else np.sum(o[1:] == o[:-1]) for o in rows.offsets[: len(features)]),
    )


def no_tally(schema: Schema) -> Tally:
    """The counts of no rows."""
    labels, features = len(schema.labels), len(schema.id_features)
    sizes = (labels, labels, len(schema.dense_places), features, features, features, features)
    return Tally(*(np.zeros(size, np.int64) for size in sizes))


def _counts(numbers: Iterable[Any]) -> np.ndarray:
    return np.array([int(number) for number in numbers], np.int64)
