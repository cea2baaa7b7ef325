"""Rows, raw and encoded: samples section after section, and how they are copied in any order.

A section is an array with a value, or several, of each row: `labels`, `dense`, `ids/NAME`. Values of
lists are end to end, and `bounds` say where the list of each row begins; `ids/NAME` and `weights/NAME`
have those of NAME. Which sections there are, the columns of a schema say; nothing here knows a kind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hotrows.runtime.native import call

Arrays = dict[str, np.ndarray]
DAMAGED = (
    "expected offsets of lists that rise within the ids of their shard, found others: the file is "
    "damaged (EncodedData.check() says which); prepare the data again"
)


@dataclass(frozen=True)
class Section:
    """What a section of rows is: `width` values a row (None: one, and no second dimension), or lists.

    shared: whether it is there once for each request; shared_places: of `width` values those that are,
    and `names` the features of all of them (None: it is not divided).
    legal: the types that files may have (default: `dtype` alone).
    """

    name: str
    dtype: np.dtype
    width: int | None = None
    is_list: bool = False
    shared: bool = False
    shared_places: tuple[int, ...] = ()
    names: tuple[str, ...] | None = None
    legal: tuple[str, ...] = ()

    @property
    def owner(self) -> str:
        """The feature whose lists the values are of: the name without `ids/` or `weights/`."""
        return self.name.partition("/")[2]

    def shape(self, rows: int) -> tuple[int, ...]:
        return (rows,) if self.width is None else (rows, self.width)


@dataclass(frozen=True)
class RawRows:
    """Raw rows, read and checked.

    first_row: number of the first row, counted from 0 through all inputs. values: by section, `dense`
    [numbers, rows] float64, NaN where missing; `labels` [labels, rows], absent without labels; values of
    ids, groups, requests and users as bytes; `times` [rows] int64, seconds since 1970, and `clocks`,
    those that the schema's clock shows; `units`, those of `Reading.by`.
    where: function from a row of the chunk to its file and line ("train.csv line 17").
    kept: columns as they are in the input, an Arrow table; None where none are kept.
    """

    first_row: int
    num_rows: int
    values: Mapping[str, Any]
    where: Callable[[int], str] = field(compare=False)
    kept: Any = None

    def get(self, name: str) -> Any:
        return self.values.get(name)


@dataclass(frozen=True)
class Rows:
    """Encoded rows: arrays by the name of their section, and the bounds of lists by feature: [rows + 1],
    row r has the values bounds[r] .. bounds[r + 1] - 1."""

    size: int
    arrays: Mapping[str, np.ndarray]
    bounds: Mapping[str, np.ndarray]

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, chosen: slice) -> Rows:
        """Returns consecutive rows without a copy; of lists, all values with fewer bounds."""
        first, end, step = chosen.indices(self.size)
        if step != 1:
            raise ValueError(f"expected consecutive rows, not every {step}th")
        end = max(first, end)
        arrays = {
            name: array if self.bounds_of(name) is not None else array[first:end]
            for name, array in self.arrays.items()
        }
        return Rows(end - first, arrays, {name: b[first : end + 1] for name, b in self.bounds.items()})

    def get(self, name: str) -> np.ndarray | None:
        return self.arrays.get(name)

    def bounds_of(self, name: str) -> np.ndarray | None:
        """The bounds of the lists of a section; None: every row has one value."""
        return self.bounds.get(name.partition("/")[2]) if self.bounds else None

    def values(self, name: str) -> np.ndarray:
        """The values of a section of all rows, end to end."""
        bounds, array = self.bounds_of(name), self.arrays[name]
        return array if bounds is None else array[int(bounds[0]) : int(bounds[-1])]

    def with_arrays(self, arrays: Mapping[str, np.ndarray], bounds: Mapping[str, np.ndarray]) -> Rows:
        """The rows with other sections, or more."""
        return Rows(self.size, {**self.arrays, **arrays}, {**self.bounds, **bounds})

    def without(self, *names: str) -> Rows:
        return Rows(self.size, {n: a for n, a in self.arrays.items() if n not in names}, self.bounds)

    def take(self, order: np.ndarray) -> Rows:
        """Copies the rows `order` [n]."""
        return gathered([self], order, Room())


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


def empty_rows(
    sections: Iterable[Section], size: int, array: Callable[..., np.ndarray] | None = None
) -> Rows:
    """Rows to fill: of lists, bounds of 0 and no values yet. array: makes one of a name, a shape and a
    type (default: new ones)."""
    make = array or (lambda name, shape, dtype: np.empty(shape, dtype))
    sections = list(sections)
    arrays = {s.name: make(s.name, s.shape(0 if s.is_list else size), s.dtype) for s in sections}
    return Rows(size, arrays, {s.owner: np.zeros(size + 1, np.int64) for s in sections if s.is_list})


def gathered(pieces: Sequence[Rows], order: np.ndarray, room: Room) -> Rows:
    """Copies the rows `order` [n] of one or more pieces, counted through all of them, into `room`.

    The pieces of one section are joined, small enough to stay in the processor's cache, and read in the
    new order.
    """
    if order.dtype != np.int64:
        raise ValueError(f"expected int64 numbers of rows, not {order.dtype}")
    arrays, ends = {}, {}
    for name in pieces[0].arrays:
        if pieces[0].bounds_of(name) is None:
            values = _joined([piece.arrays[name] for piece in pieces], room)
            arrays[name] = take(
                values, order, room.array(name, (len(order), *values.shape[1:]), values.dtype)
            )
            continue
        owner = name.partition("/")[2]
        values = _joined([piece.values(name) for piece in pieces], room)
        bounds = joined_offsets([piece.bounds[owner] for piece in pieces])
        ends[owner] = ends_of(measured(bounds, len(values), order))
        out = room.array(name, (int(ends[owner][-1]),), values.dtype)
        arrays[name] = take_lists(values, bounds, order, ends[owner], out)
    return Rows(len(order), arrays, ends)


def narrowed(rows: Rows, sections: Iterable[Section]) -> Rows:
    """The rows with the types of sections."""
    types = {section.name: section.dtype for section in sections}
    arrays = {n: a.astype(types.get(n, a.dtype), copy=False) for n, a in rows.arrays.items()}
    return Rows(rows.size, arrays, rows.bounds)


def _joined(pieces: Sequence[np.ndarray], room: Room) -> np.ndarray:
    if len(pieces) == 1:
        return np.ascontiguousarray(pieces[0])
    rows = sum(map(len, pieces))
    scratch = room.array("scratch", (rows, *pieces[0].shape[1:]), pieces[0].dtype)
    return np.concatenate(pieces, out=scratch)


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


def lists_between(
    ids: np.ndarray, begins: np.ndarray, ends: np.ndarray, array: Callable[..., np.ndarray] = np.empty
) -> tuple[np.ndarray, np.ndarray]:
    """ids begin .. end - 1 of each row, end to end, and their offsets. array: makes one of a shape and a
    type."""
    bounds = np.stack([begins, ends], 1).reshape(-1)
    order = np.arange(0, len(bounds), 2)
    offsets = ends_of(measured(bounds, len(ids), order))
    return take_lists(ids, bounds, order, offsets, array((int(offsets[-1]),), ids.dtype)), offsets


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
