"""Rows of columns in any order.

A pool is shuffled column by column: the blocks of one column are joined, small enough to stay in the
processor's cache, and read in the new order.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hotrows.runtime.native import call

DAMAGED = (
    "expected offsets of lists that rise within the ids of their shard, found others: the file is "
    "damaged (EncodedData.check() says which); prepare the data again"
)


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


class Gathering:
    """Copies the rows `order` [n] of columns that consist of pieces, into a room."""

    def __init__(self, order: np.ndarray, room: Room) -> None:
        assert order.dtype == np.int64
        self._order = order
        self._room = room

    def column(self, name: str, pieces: Sequence[np.ndarray]) -> np.ndarray:
        """Returns rows [n, ...] of a column, which may have several values each."""
        values = self._joined(pieces)
        out = self._room.array(name, (len(self._order), *values.shape[1:]), values.dtype)
        return take(values, self._order, out)

    def lists(
        self, name: str, ids: Sequence[np.ndarray], offsets: Sequence[np.ndarray]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns the ids of lists, end to end, and their offsets [n + 1] int64. ids: per piece."""
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
