"""Resharding: records are read for other ids and other columns than they were written with.

The rows of a table are stored in pieces, each with ids and columns of its own. Two pieces have in
common the ids in both, whose places in either are regular too, and the columns in both:

    saved by rank 1 of 2   ids 1 3 5 7 9 11     wanted by rank 2 of 3   ids 2 5 8 11
    common                 ids 5 11             places 2 5 in the first, 1 3 in the second

A record of some columns has these columns of its weights and of every number of state that belongs
to a column, and all numbers that belong to the row (see `hotrows.ops.record`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch

from hotrows.ops.record import RecordLayout, views

Ids = range | np.ndarray  # ascending; an array is int64
Places = slice | np.ndarray


@dataclass(frozen=True)
class ColumnSlice:
    """Some columns of the rows of a table.

    full: the record with all columns; columns: the first one of the slice, and the end.
    """

    full: RecordLayout
    columns: tuple[int, int]

    @property
    def dim(self) -> int:
        return self.columns[1] - self.columns[0]

    @property
    def per_column(self) -> int:
        """How many numbers of state belong to each column."""
        return self.full.state_width // self.full.dim

    @property
    def per_row(self) -> int:
        """How many numbers of state belong to the row; they follow those of the columns."""
        return self.full.state_width % self.full.dim

    @property
    def layout(self) -> RecordLayout:
        """The records of these columns."""
        state_width = self.per_column * self.dim + self.per_row
        return RecordLayout(self.dim, self.full.dtype, state_width, self.full.has_step)


def common(a: Ids, b: Ids) -> tuple[Places, Places] | None:
    """The places in a and the places in b of the ids in both, in one order; None: there are none."""
    if isinstance(a, range) and isinstance(b, range):
        shared = common_range(a, b)
        return (_slice_of(shared, a), _slice_of(shared, b)) if shared else None
    if isinstance(a, range):
        swapped = common(b, a)
        return (swapped[1], swapped[0]) if swapped else None
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
    source: np.ndarray,
    source_columns: ColumnSlice,
    target: np.ndarray,
    target_columns: ColumnSlice,
    target_rows: Places,
) -> None:
    """target[target_rows] = source, in the columns that both have; other bytes stay.

    source: [m, stride] uint8 of source_columns; target: [n, stride] uint8 of target_columns, whose
    weights may be of another dtype.
    """
    if source_columns.full != target_columns.full:
        wanted = ColumnSlice(target_columns.full, source_columns.columns)
        source, source_columns = _converted(source, source_columns.layout, wanted.layout), wanted
    for begin, target_begin, size in _spans(source_columns, target_columns):
        target[target_rows, target_begin : target_begin + size] = source[:, begin : begin + size]


def check_scales(table: str, records: np.ndarray, layout: RecordLayout, ids: Ids) -> None:
    """Raises ValueError where records [n, stride] of rows of integers have a scale that is not finite."""
    if layout.has_scale:
        scales = records[:, layout.state_offset - 4 : layout.state_offset].copy().view(np.float32)[:, 0]
        for wrong in np.flatnonzero(~np.isfinite(scales))[:1]:
            raise ValueError(
                f"table {table!r}: the scale of row {ids[wrong]:,} in the checkpoint should be a finite "
                f"number, not {scales[wrong]}: training diverged; load an earlier checkpoint, or train "
                f"again with lower learning rates"
            )


def _converted(records: np.ndarray, layout: RecordLayout, wanted: RecordLayout) -> np.ndarray:
    """Records with weights of another dtype, rounded to the nearest."""
    before = views(torch.from_numpy(np.array(records)), layout.as_ints())
    converted = torch.zeros(len(records), wanted.stride, dtype=torch.uint8)
    after = views(converted, wanted.as_ints())
    after.write(before.read().float())
    after.state.copy_(before.state)
    if before.step is not None and after.step is not None:
        after.step.copy_(before.step)
    return converted.numpy()


def _spans(source: ColumnSlice, target: ColumnSlice) -> list[tuple[int, int, int]]:
    """(first byte in a source record, first byte in a target record, size) of all that both have."""
    assert source.full == target.full, "records of one layout"
    layout, target_layout = source.layout, target.layout
    if source.columns == target.columns:
        return [(0, 0, layout.stride)]
    first = max(source.columns[0], target.columns[0])
    end = min(source.columns[1], target.columns[1])
    if first >= end:
        return []
    size = layout.bits // 8  # integers have no columns apart
    skip, target_skip = first - source.columns[0], first - target.columns[0]
    spans = [(skip * size, target_skip * size, (end - first) * size)]
    for k in range(source.per_column):
        begin = layout.state_offset + 4 * (k * source.dim + skip)
        target_begin = target_layout.state_offset + 4 * (k * target.dim + target_skip)
        spans.append((begin, target_begin, 4 * (end - first)))
    of_row = 4 * (source.per_row + source.full.has_step)
    if of_row:
        spans.append((layout.stride - of_row, target_layout.stride - of_row, of_row))
    return spans


def _slice_of(ids: range, held: range) -> slice:
    """The places of ids, all of which are held, among those held."""
    first, last = held.index(ids[0]), held.index(ids[-1])
    return slice(first, last + 1, ids.step // held.step)


def _listed(ids: np.ndarray, held: range) -> tuple[Places, Places] | None:
    """The result of `common` for ids that are listed and a range."""
    if not held:
        return None
    begin, end = np.searchsorted(ids, [held.start, held[-1] + 1])
    places, remainders = np.divmod(ids[begin:end] - held.start, held.step)
    if held.step == 1:
        return (slice(int(begin), int(end)), places) if places.size else None
    matches = np.flatnonzero(remainders == 0)
    return (matches + begin, places[matches]) if matches.size else None
