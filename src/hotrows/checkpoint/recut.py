"""Records cut otherwise: of other ids, with other columns, than they were written with.

The rows of a table stand in pieces, each with ids and columns of its own. What two pieces have in
common are the ids in both, whose places in either are regular too, and the columns in both:

    saved by rank 1 of 2   ids 1 3 5 7 9 11     wanted by rank 2 of 3   ids 2 5 8 11
    common                 ids 5 11             places 2 5 there, 1 3 here

A record cut to some columns has these columns of its weights and of every number of state that
belongs to a column, and the whole of what belongs to the row (see `hotrows.record`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from hotrows.record import RecordLayout

Ids = range | np.ndarray  # ascending; an array is int64
Places = slice | np.ndarray


@dataclass(frozen=True)
class Cut:
    """Some columns of the rows of a table.

    whole: the record with all columns; columns: the first that is here, and their end.
    """

    whole: RecordLayout
    columns: tuple[int, int]

    @property
    def dim(self) -> int:
        return self.columns[1] - self.columns[0]

    @property
    def per_column(self) -> int:
        """How many numbers of state belong to each column."""
        return self.whole.state_width // self.whole.dim

    @property
    def per_row(self) -> int:
        """How many numbers of state belong to the row; they follow the others."""
        return self.whole.state_width % self.whole.dim

    @property
    def layout(self) -> RecordLayout:
        """Of the records that are here."""
        state_width = self.per_column * self.dim + self.per_row
        return RecordLayout(self.dim, self.whole.dtype, state_width, self.whole.has_step)


def common(a: Ids, b: Ids) -> tuple[Places, Places] | None:
    """Where the ids that are in both stand in a, and where in b, in the same order; None: no id is."""
    if isinstance(a, range) and isinstance(b, range):
        shared = common_range(a, b)
        return (_slice_of(shared, a), _slice_of(shared, b)) if shared else None
    if isinstance(a, range):
        found = common(b, a)
        return (found[1], found[0]) if found else None
    if isinstance(b, range):
        return _listed(a, b)
    _, in_a, in_b = np.intersect1d(a, b, assume_unique=True, return_indices=True)
    return (in_a, in_b) if in_a.size else None


def common_range(a: range, b: range) -> range:
    """The ids in both; steps are positive.

    By the Chinese remainder theorem: x = a.start + k * a.step is in b's rhythm for one k modulo
    b.step / gcd, where the starts differ by a multiple of the gcd.
    """
    if not a or not b:
        return range(0)
    divisor = math.gcd(a.step, b.step)
    apart = b.start - a.start
    if apart % divisor:
        return range(0)
    period = b.step // divisor
    k = apart // divisor * pow(a.step // divisor, -1, period) % period
    step = a.step * period
    first = a.start + k * a.step
    first += max(0, -(-(b.start - first) // step)) * step
    return range(first, min(a[-1], b[-1]) + 1, step)


def copy_records(
    source: np.ndarray, of: Cut, target: np.ndarray, to: Cut, target_rows: Places
) -> None:
    """target[target_rows] = source, in the columns that both have; the other bytes stay.

    source: [m, stride] uint8 cut as `of`; target: [n, stride] uint8 cut as `to`.
    """
    for begin, to_begin, size in _spans(of, to):
        target[target_rows, to_begin : to_begin + size] = source[:, begin : begin + size]


def _spans(of: Cut, to: Cut) -> list[tuple[int, int, int]]:
    """(first byte in a record of `of`, first byte in one of `to`, how many): all that both have."""
    assert of.whole == to.whole, "records of one table"
    here, there = of.layout, to.layout
    if of.columns == to.columns:
        return [(0, 0, here.stride)]
    first, end = max(of.columns[0], to.columns[0]), min(of.columns[1], to.columns[1])
    if first >= end:
        return []
    size = here.as_ints()[1]
    skip, to_skip = first - of.columns[0], first - to.columns[0]
    spans = [(skip * size, to_skip * size, (end - first) * size)]
    for part in range(of.per_column):
        begin = here.state_offset + 4 * (part * of.dim + skip)
        to_begin = there.state_offset + 4 * (part * to.dim + to_skip)
        spans.append((begin, to_begin, 4 * (end - first)))
    rest = 4 * (of.per_row + of.whole.has_step)
    if rest:
        spans.append((here.stride - rest, there.stride - rest, rest))
    return spans


def _slice_of(ids: range, held: range) -> slice:
    """The places of ids, all of them held, among those held."""
    first, last = held.index(ids[0]), held.index(ids[-1])
    return slice(first, last + 1, ids.step // held.step)


def _listed(ids: np.ndarray, held: range) -> tuple[Places, Places] | None:
    """`common` of ids that are listed and a range."""
    if not held:
        return None
    begin, end = np.searchsorted(ids, [held.start, held[-1] + 1])
    places, rest = np.divmod(ids[begin:end] - held.start, held.step)
    if held.step == 1:
        return (slice(int(begin), int(end)), places) if places.size else None
    here = np.flatnonzero(rest == 0)
    return (here + begin, places[here]) if here.size else None
