"""TablePlan: which rows one lookup of several tables reads, and where they are."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from hotrows.ops.deferred import Target
from hotrows.ops.plan import PackPlan


class RowLocations(Protocol):
    """The locations of the rows of one lookup, [U], ascending, for tables whose rows can move.

    is_copy: in copies, made for this lookup.
    """

    @property
    def is_copy(self) -> bool: ...

    def between(self, begin: int, end: int) -> RowLocations:
        """Returns the locations of rows `begin` to `end`."""

    def changed(self) -> None:
        """Notes that the rows were brought up to date in place."""

    def writing(self, tables: Sequence[Any]) -> AbstractContextManager[tuple[list[Target], Tensor]]:
        """Within: the tables' targets, and the slot [U] of each row in them; writes are stored."""


@dataclass(frozen=True)
class TablePlan:
    """The plan of a lookup of T tables, which lie end to end in its pack.

    pack: distinct rows [U] of the tables laid end to end, their slots in the targets, and their bags.
    table_rows: [U] int64, the number of each row within its table.
    bounds: [T + 1] int64: the rows of table t are those from bounds[t] to bounds[t + 1].
    targets: the memory of each table's rows; empty until it is known.
    grad_weights: [N], factors of the gradients of the ids' vectors; None: `pack.weights`.
    locations: of tables behind a cache, where the rows were when they were looked up.
    known_ends: `bounds` as Python numbers, where they are known without asking a device.
    """

    pack: PackPlan
    table_rows: Tensor
    bounds: Tensor
    targets: tuple[Target, ...] = ()
    grad_weights: Tensor | None = None
    locations: RowLocations | None = None
    known_ends: tuple[int, ...] = ()

    @property
    def choice(self) -> tuple[Tensor | None, ...]:
        """All tensors that ids, offsets and weights of bags decide."""
        of_bags = self.pack.bag_starts, self.pack.weights, self.grad_weights
        return self.table_rows, self.pack.inverse, *of_bags

    @functools.cached_property
    def ends(self) -> list[int]:
        """`bounds` as Python numbers."""
        return list(self.known_ends) or self.bounds.cpu().tolist()
