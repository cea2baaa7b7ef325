"""Moment: the sum of a table's squared weights after some step, computed when somebody reads it.

    rows that have made fewer steps    make those up to it, and count as they are then
    rows that have made more           count as they are now, less the changes that kernels have counted

So a loss with such a term may be held while training goes on, and costs nothing of the table's size until
its value is read.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from hotrows.acceleration.exclusive import exclusive
from hotrows.ops import deferred
from hotrows.ops.deferred import Target


class Moment:
    """The sum of squares of a table that has made `step` steps."""

    def __init__(self, table: Any, step: int) -> None:
        self.step = step
        self._table, self._changes = table, list[Tensor]()
        self._value: float | None = None

    @property
    def is_read(self) -> bool:
        return self._value is not None

    def note(self, change: Tensor) -> None:
        """Counts how the squares of rows have changed that went on from this moment."""
        self._changes.append(change)

    def read_as(self, squares: float) -> None:
        """Takes the present squares, of rows that have made the steps up to this moment or more."""
        self._value = squares - sum(map(float, self._changes))
        self._table, self._changes = None, []

    @exclusive
    def get(self) -> float:
        if self._value is None:
            table = self._table
            table.moments.settle(before=self.step)  # for which the steps below would not count
            table.bring_all(self.step)
            self.read_as(table.present_squares())
        assert self._value is not None
        return self._value


class Moments:
    """The moments of a table that somebody may read."""

    def __init__(self, table: Any) -> None:
        self._table, self._known = table, list[weakref.ref[Moment]]()

    @exclusive
    def open(self) -> Moment:
        """Opens the present moment, which may have been read."""
        self._table.store_writes()
        now = self._table.history.now
        alive = [moment for ref in self._known if (moment := ref()) is not None]
        moment = next((x for x in alive if x.step == now), None) or Moment(self._table, now)
        self._known = [weakref.ref(x) for x in alive if x is not moment and not x.is_read]
        self._known.append(weakref.ref(moment))
        return moment

    def _unread(self) -> list[Moment]:
        alive = (ref() for ref in self._known)
        return [moment for moment in alive if moment is not None and not moment.is_read]

    def present(self) -> Moment | None:
        """The present moment, if it is open and has not been read."""
        return next((x for x in self._unread() if x.step == self._table.history.now), None)

    def last(self) -> Moment | None:
        """The last moment before the present; the ones before that are read now."""
        now = self._table.history.now
        early = sorted((x for x in self._unread() if x.step < now), key=lambda x: x.step)
        for moment in early[:-1]:
            moment.get()
        return early[-1] if early else None

    def settle(self, before: float = math.inf) -> None:
        """Reads those before a step: all that are open by default."""
        for moment in sorted(self._unread(), key=lambda x: x.step):
            if moment.step < before:
                moment.get()
        if before == math.inf:  # the weight is about to change within a step
            self._known = []


def read_present(tables: Sequence[Any]) -> list[Moment]:
    """Opens and reads the present moment of each table in one sweep.

    tables: of one kind of rule, width, dtype and device, with their rows in memory.
    """
    moments = [table.moments.open() for table in tables]
    unread = [n for n, moment in enumerate(moments) if not moment.is_read]
    behind = []
    for n in unread:
        tables[n].moments.settle(before=moments[n].step)
        if tables[n].can_be_behind:
            behind.append(tables[n].target)
    if behind:
        deferred.catch_up_all(tables[0].rule.kind, behind)
    squares = deferred.sums_of_squares([tables[n].target for n in unread])
    for n, value in zip(unread, squares, strict=True):
        moments[n].read_as(value)
    return moments


@contextmanager
def _counted(moments: Sequence[Moment | None], device: torch.device) -> Iterator[Tensor | None]:
    """Within: [T] float64 for the changes of squares since the tables' moments; None: none is open."""
    if not any(moments):
        yield None
        return
    changes = torch.zeros(len(moments), dtype=torch.float64, device=device)
    yield changes
    for moment, change in zip(moments, changes, strict=True):
        if moment is not None:
            moment.note(change)


def catch_up(
    kind: str, tables: Sequence[Any], targets: Sequence[Target], slots: Tensor, bounds: Tensor
) -> None:
    """`deferred.catch_up` of rows of tables, by way of a moment that somebody may read.

    tables: `RowTable`s; None: one whose rows here are copies, or that has no steps to make.
    """
    moments = [None if table is None else table.moments.last() for table in tables]
    if any(moments):
        pairs = zip(targets, moments, strict=True)
        by_way = [target if moment is None else target.until(moment.step) for target, moment in pairs]
        deferred.catch_up(kind, by_way, slots, bounds)
    with _counted(moments, bounds.device) as changes:
        deferred.catch_up(kind, targets, slots, bounds, changes)


def update(
    kind: str, tables: Sequence[Any], targets: Sequence[Target], slots: Tensor, bounds: Tensor, *args: Any
) -> None:
    """`deferred.update` of tables, `RowTable`s, which goes on from the present moment."""
    with _counted([table.moments.present() for table in tables], bounds.device) as changes:
        if changes is not None:
            deferred.catch_up(kind, targets, slots, bounds)
        deferred.update(kind, targets, slots, bounds, *(*args, changes))
