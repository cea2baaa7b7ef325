"""Overlay: rows of a table that changed since its file was written, for readers of several versions.

    slot_of  [R]       the slot of a row's latest values; 0: none, they are those of the file
    rows     [C, _]    by slot: the row as stored
    number   [C]       the version that these values came with
    before   [C]       the slot of the values before them; 0: those of the file

Values are appended and never changed, and `slot_of` is set last. A reader of version v takes the latest
slot of a row and goes back while that one came later than v, so it sees all rows as of v, whatever is
written meanwhile; neither waits for the other. Memory that no row has touched is not there: a page of
`slot_of` comes with the first row on it.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

_LEAST = 1024  # slots


class Overlay:
    """The changed rows of a table of `num_rows`, or more; width: bytes of a row; capacity: slots."""

    def __init__(self, num_rows: int, width: int, capacity: int = _LEAST) -> None:
        self._slot_of = np.zeros(num_rows, np.int32)
        self._rows = np.empty((capacity, width), np.uint8)
        self._number = np.zeros(capacity, np.int64)
        self._before = np.zeros(capacity, np.int32)
        self._ids = np.zeros(capacity, np.int64)
        self._used = 1  # slot 0 means: none
        self._newest = 0  # the version that was written last; a copy has none later than its readers'

    @property
    def num_bytes(self) -> int:
        """Bytes of the rows that it has room for."""
        return self._rows.nbytes + self._number.nbytes + self._before.nbytes + self._ids.nbytes

    def write(self, ids: np.ndarray, rows: np.ndarray, number: int) -> Overlay:
        """The overlay with the rows [n, width] of distinct ids as of version `number`, the newest one: it
        itself, or another one where it has no room, or has rows of a later version that was given up."""
        last, num_rows = int(ids.max(initial=-1)), len(self._slot_of)
        was_given_up = self._newest >= number  # a version that was begun, whose rows are none of this one
        if self._used + len(ids) > len(self._rows) or last >= num_rows or was_given_up:
            live = self._live(number - 1)
            num_rows = num_rows if last < num_rows else 2 * (last + 1)
            larger = self._copy(live, 2 * (len(live) + len(ids)) + _LEAST, num_rows)
            return larger.write(ids, rows, number)
        slots = np.arange(self._used, self._used + len(ids), dtype=np.int32)
        self._rows[slots], self._number[slots], self._ids[slots] = rows, number, ids
        self._before[slots] = self._slot_of[ids]
        self._newest = number
        self._slot_of[ids] = slots
        self._used += len(ids)
        return self

    def since(self, number: int, until: int, num_rows: int) -> Overlay:
        """A copy with the rows that changed after version `number`, over a file of that version, as they
        were at version `until`."""
        live = self._live(until)
        return self._copy(live[self._number[live] > number], _LEAST + 2 * len(live), num_rows)

    def read(
        self, ids: np.ndarray, number: int, stored: Callable[[np.ndarray], np.ndarray]
    ) -> np.ndarray:
        """[n, width]: the rows of ids as of version `number`; stored: reads those of the file."""
        slots = self._slot_of.take(ids)
        while self._newest > number and (later := self._number.take(slots) > number).any():
            slots = np.where(later, self._before.take(slots), slots)
        changed = slots > 0
        if not changed.any():
            return stored(ids)
        if changed.all():
            return self._rows.take(slots, 0)
        rows = np.empty((len(ids), self._rows.shape[1]), np.uint8)
        rows[changed] = self._rows.take(slots[changed], 0)
        rows[~changed] = stored(ids[~changed])
        return rows

    def changed_ids(self, number: int) -> np.ndarray:
        """The ids that it has rows of as of version `number`, ascending."""
        return self._ids[self._live(number)]

    def _live(self, number: int) -> np.ndarray:
        """The slots of the values as of version `number`, by ascending id; later ones may be those of a
        delta that could not be applied to the end."""
        slots = np.arange(1, self._used, dtype=np.int32)
        slots = slots[self._number[slots] <= number][::-1]  # the latest of an id first
        return slots[np.unique(self._ids[slots], return_index=True)[1]]

    def _copy(self, slots: np.ndarray, capacity: int, num_rows: int | None = None) -> Overlay:
        copy = Overlay(num_rows or len(self._slot_of), self._rows.shape[1], capacity)
        end = 1 + len(slots)
        copy._rows[1:end], copy._number[1:end] = self._rows[slots], self._number[slots]
        copy._ids[1:end] = self._ids[slots]
        copy._slot_of[self._ids[slots]] = np.arange(1, end, dtype=np.int32)
        copy._used = end
        return copy
