"""TablePlan: which rows one lookup of several tables reads, and where they are."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from torch import Tensor

from hotrows.acceleration.table import RowLocations
from hotrows.ops.deferred import Target
from hotrows.plan import PackPlan


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

    @functools.cached_property
    def ends(self) -> list[int]:
        """`bounds` as Python numbers."""
        return list(self.known_ends) or self.bounds.cpu().tolist()
