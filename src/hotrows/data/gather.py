"""Rows of columns in any order: natively, and the same in NumPy.

A pool is shuffled column by column: the blocks of one column are put end to end, small enough to stay
in the processor's cache, and read in the new order.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hotrows import native
from hotrows.data.foreign import call


class Room:
    """Arrays that are used again and again: fresh memory costs more than what is written into it.

    An array is valid until the next one of its name is asked for.
    """

    def __init__(self) -> None:
        self._kept: dict[str, np.ndarray] = {}

    def array(self, name: str, shape: tuple[int, ...], dtype: np.dtype | type) -> np.ndarray:
        count = int(np.prod(shape))
        size = count * np.dtype(dtype).itemsize
        if name not in self._kept or len(self._kept[name]) < size:
            self._kept[name] = np.empty(size + size // 8, np.uint8)
        return self._kept[name][:size].view(dtype).reshape(shape)


class Gathering:
    """Takes the rows `order` [n] of columns that stand in pieces, into a room."""

    def __init__(self, order: np.ndarray, room: Room) -> None:
        assert order.dtype == np.int64
        self._order = order
        self._room = room

    def column(self, name: str, pieces: Sequence[np.ndarray]) -> np.ndarray:
        """[n, ...]: rows of a column, which may have several values each."""
        values = self._joined(pieces)
        out = self._room.array(name, (len(self._order), *values.shape[1:]), values.dtype)
        return take(values, self._order, out)

    def lists(
        self, name: str, ids: Sequence[np.ndarray], offsets: Sequence[np.ndarray]
    ) -> tuple[np.ndarray, np.ndarray]:
        """The ids of lists, end to end, and their offsets [n + 1] int64. ids: of each piece alone."""
        values, bounds = self._joined(ids), joined_offsets(offsets)
        ends = ends_of(measured(bounds, len(values), self._order))
        out = self._room.array(name, (int(ends[-1]),), values.dtype)
        return take_lists(values, bounds, self._order, ends, out), ends

    def _joined(self, pieces: Sequence[np.ndarray]) -> np.ndarray:
        if len(pieces) == 1:
            return np.ascontiguousarray(pieces[0])
        rows = sum(map(len, pieces))
        scratch = self._room.array("scratch", (rows, *pieces[0].shape[1:]), pieces[0].dtype)
        return np.concatenate(pieces, out=scratch)


def take(column: np.ndarray, order: np.ndarray, out: np.ndarray) -> np.ndarray:
    """out[i] = column[order[i]]."""
    library = native.load()
    if library is None:
        out[:] = column[order]
    else:
        bytes_per_row = int(np.prod(column.shape[1:])) * column.itemsize
        call(library, "take", column, bytes_per_row, order, len(order), out)
    return out


def interleave(columns: Sequence[np.ndarray], out: np.ndarray) -> np.ndarray:
    """out[i, c] = columns[c][i], float32."""
    library = native.load()
    if library is None:
        return np.stack(columns, axis=1, out=out)
    places = np.array([column.ctypes.data for column in columns], np.int64)
    call(library, "interleave", places, len(columns), len(out), out)
    return out


def measured(offsets: np.ndarray, size: int, order: np.ndarray) -> np.ndarray:
    """[n] int64, how many ids the lists `order` have; size: how many ids the column has."""
    library = native.load()
    lengths = np.empty(len(order), np.int64)
    if library is None:
        starts, ends = (of[order].astype(np.int64) for of in (offsets[:-1], offsets[1:]))
        lengths[:] = ends - starts
        legal = not ((starts < 0) | (lengths < 0) | (ends > size)).any()
    else:
        of = (offsets, offsets.itemsize, size, order, len(order), lengths)
        legal = call(library, "measure_lists", *of) == 0
    if not legal:
        raise ValueError(DAMAGED)
    return lengths


def lengths_of(offsets: np.ndarray, size: int) -> np.ndarray:
    """[n] int64, how many ids n consecutive lists have; checked like `measured`."""
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
    library = native.load()
    if library is None:
        starts = offsets[:-1][order].astype(np.int64)
        out[:] = ids[np.arange(ends[-1]) + np.repeat(starts - ends[:-1], np.diff(ends))]
    else:
        of = (ids, ids.itemsize, offsets, offsets.itemsize)
        call(library, "take_lists", *of, order, len(order), ends, out)
    return out


def ends_of(lengths: np.ndarray) -> np.ndarray:
    """[n + 1] int64, the offsets of n lists of these lengths: 3 0 1  ->  0 3 3 4."""
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def joined_offsets(offsets: Sequence[np.ndarray]) -> np.ndarray:
    """The offsets of lists that are put end to end: 0 3 3 | 5 6  ->  0 3 3 4."""
    if len(offsets) == 1 and offsets[0][0] == 0:
        return offsets[0]
    lengths = [of[1:].astype(np.int64) - of[:-1] for of in offsets]
    return ends_of(np.concatenate(lengths))


DAMAGED = (
    "expected offsets of lists that rise within the ids of their shard, found others: the file is "
    "damaged (EncodedData.check() says which); prepare the data again"
)
