"""Rows: encoded samples, column after column."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from hotrows.data.raw.cells import MISSING_LABEL
from hotrows.data.stored.gather import Gathering, Room
from hotrows.schema import MISSING, MISSING_KEY, IdFeature, Schema

OPTIONAL = ("weights", "groups", "times", "requests")  # columns of Rows that a schema may not have


@dataclass(frozen=True)
class Rows:
    """Encoded rows.

    ids: integers, one array per feature that carries ids; offsets: per such feature, None where every
        row has one id, so that ids are [rows]; else [rows + 1], row r has ids[o[r] : o[r + 1]].
    dense: [rows, num_dense] float32.
    labels: [rows] uint8, of several labels [rows, T], 255 where missing; or float32, NaN where missing.
    weights: [rows] float32; groups, times: [rows] int64; requests: [rows] int64, equal for neighbours of
        one request; None where the schema has none.
    """

    ids: tuple[np.ndarray, ...]
    offsets: tuple[np.ndarray | None, ...]
    dense: np.ndarray
    labels: np.ndarray
    weights: np.ndarray | None = None
    groups: np.ndarray | None = None
    times: np.ndarray | None = None
    requests: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, chosen: slice) -> Rows:
        """Returns consecutive rows without a copy; of lists, all ids with fewer offsets."""
        first, end, step = chosen.indices(len(self))
        assert step == 1
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

    def take(self, order: np.ndarray) -> Rows:
        """Copies the rows `order` [n]."""
        return gathered([self], order, Room())

    def values(self, f: int) -> np.ndarray:
        """Returns the ids of feature f of all rows, end to end."""
        offsets = self.offsets[f]
        return self.ids[f] if offsets is None else self.ids[f][int(offsets[0]) : int(offsets[-1])]


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
    """Copies the rows `order` [n] of one or more pieces, counted through all of them, into `room`."""
    gathering = Gathering(order, room)
    first, ids, offsets = pieces[0], [], []
    for f, bounds in enumerate(first.offsets):
        values = [piece.values(f) for piece in pieces]
        if bounds is None:
            taken, ends = gathering.column(f"ids {f}", values), None
        else:
            present = [o for piece in pieces if (o := piece.offsets[f]) is not None]
            taken, ends = gathering.lists(f"ids {f}", values, present)
        ids.append(taken)
        offsets.append(ends)
    others = {
        name: gathering.column(name, [getattr(piece, name) for piece in pieces])
        for name in ("dense", "labels", *OPTIONAL)
        if getattr(first, name) is not None
    }
    return Rows(ids=tuple(ids), offsets=tuple(offsets), **others)


def missing_id(feature: IdFeature) -> int:
    """What stands for a missing value of a feature in data."""
    return MISSING if feature.dynamic is None else MISSING_KEY


def id_type(schema: Schema, feature: IdFeature) -> np.dtype:
    """The stored integer of a feature: the narrowest one that holds its ids, int64 for keys."""
    return np.dtype(np.int64) if feature.dynamic is not None else width_of(schema.rows_of(feature.name))


def width_of(rows: int) -> np.dtype:
    """The narrowest stored integer that holds ids below `rows`."""
    for dtype in (np.uint8, np.uint16, np.uint32):
        if rows <= np.iinfo(dtype).max + 1:
            return np.dtype(dtype)
    return np.dtype(np.int64)
