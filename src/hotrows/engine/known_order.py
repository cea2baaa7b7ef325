"""Planning where the order of all batches is known: a cache that evicts by next use, read from files.

    inspect    read the ids of a range of batches, and find when each row is used next       once a range
    plan       plan a batch as far ahead as pins demand; allocate with the next uses of its rows

Next uses only decide which row goes first (`engine.planning.slots`): no bit depends on them, and
nothing of them is needed after a crash. A range is as long as the disk has room for; when the next one
begins, rows in slots are told when it uses them first.
"""

from __future__ import annotations

import logging
import shutil
import time
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

from torch import Tensor

from hotrows.batch import Batch
from hotrows.engine.pipeline.runner import NoMore
from hotrows.engine.planned_batches import PlannedBatches
from hotrows.engine.planning.next_uses import MOST_BATCHES, MOST_ROWS, NextUses
from hotrows.engine.planning.policy import Lookahead
from hotrows.engine.planning.slots import NEVER
from hotrows.ops.plan import Plan
from hotrows.runtime.units import format_bytes

if TYPE_CHECKING:
    from hotrows.engine.embedding import Embedding

log = logging.getLogger("hotrows")

LEAST_BATCHES = 100  # fewer are looked at in memory
_ROOM = 0.25  # of the free disk, that files of next uses take at most


def refusal(embedding: Embedding, num_batches: int) -> str | None:
    """Why next uses of `num_batches` to come are not found beforehand; None: they are."""
    cached_tables, caching = embedding.cached_tables, embedding.cached_tables.caching
    if not cached_tables.files or caching.policy != Lookahead() or cached_tables.maps_on_device:
        return "they are for tables in files under the policy lookahead"
    if num_batches < LEAST_BATCHES:
        return f"fewer than {LEAST_BATCHES} batches are known to come"
    if embedding.planner.routes or embedding.dynamic.vocabularies:
        return "several ranks, or micro-batches, and dynamic ids are planned together"
    if all(group.cache.num_slots >= group.group.rows for group in cached_tables.groups):
        return "all rows have slots"
    if any(group.group.rows > MOST_ROWS for group in cached_tables.groups):
        return f"a table has more than {MOST_ROWS:,} rows"
    return None


class PlanKnownOrder:
    """Plans batches in turn. planned, future: the batches to train on, and once more to inspect."""

    def __init__(
        self, embedding: Embedding, planned: PlannedBatches, future: PlannedBatches, num_batches: int
    ) -> None:
        self._planner, self._cached_tables = embedding.planner, embedding.cached_tables
        self._planned, self._future, self._num_batches = planned, future, num_batches
        self._coming: deque[tuple[Batch, Plan]] = deque()  # planned, and fed to the maps
        self._first = self._end = 0  # the range that was inspected
        self._uses: list[NextUses] | None = None
        self._num_planned, self._begun = 0, False

    def next(self) -> tuple[Batch, Plan]:
        """The next batch and its plan, with slots; NoMore once there is none."""
        while not self._begun or self._cached_tables.wants:  # those of an earlier run may have ended
            self._begun = True
            try:
                coming = self._planned.next()
            except NoMore:
                self._cached_tables.feed_end()
                break
            self._coming.append(coming)
            self._cached_tables.feed(self._planner.rows_of(coming[1]))
        if not self._coming:
            raise NoMore
        if self._num_planned == self._end:
            self._inspect()
        batch, plan = self._coming.popleft()
        next_uses = [self._of_group(g, plan) for g in range(len(self._cached_tables.groups))]
        plan = self._cached_tables.take(plan, next_uses)
        self._num_planned += 1
        return batch, plan

    def _of_group(self, g: int, plan: Plan) -> Tensor | None:
        """The next uses of the rows of a group, as its map numbers batches."""
        if self._uses is None:
            return None
        group = self._cached_tables.groups[g]
        num_rows = plan.packs[group.group.packs[0]].num_rows
        next_uses = self._uses[g].of_batch(self._num_planned - self._first, num_rows)
        return None if next_uses is None else self._numbered(g, next_uses)

    def _numbered(self, g: int, next_uses: Tensor) -> Tensor:
        """Batches of the range, as the map of a group numbers them."""
        shift = self._cached_tables.groups[g].host_slots.num_allocated - self._num_planned + self._first
        return next_uses.add_(shift * (next_uses != NEVER)) if shift else next_uses

    def _inspect(self) -> None:
        """Finds the next uses of the next range; where the disk is full, goes on without."""
        path, begin = self._cached_tables.caching.path, time.perf_counter()
        assert path is not None
        self._first, self._uses = self._num_planned, None
        most = min(self._num_batches - self._first, MOST_BATCHES)
        log.info("reading the ids of up to %s batches, to know when rows are used next", f"{most:,}")
        groups, room = self._cached_tables.groups, _ROOM * shutil.disk_usage(path).free
        try:
            uses = [NextUses(path / f"next-{g}", group.group.rows) for g, group in enumerate(groups)]
            self._end = self._first + max(self._read(uses, most, room), 1)  # of none it would come back
            for g, (group, of_group) in enumerate(zip(groups, uses, strict=True)):
                rows = group.host_slots.residents()
                group.host_slots.hint(rows, self._numbered(g, of_group.finish(rows)))
        except OSError as error:
            log.warning("rows are evicted by last use, since next uses cannot be found: %s", error)
            self._end = self._first + most
            return
        self._uses = uses
        log.info(
            "next uses of %s batches: %.1f s and %s of disk",
            f"{self._end - self._first:,}",
            time.perf_counter() - begin,
            format_bytes(sum(of_group.num_bytes for of_group in uses)),
        )

    def _read(self, uses: list[NextUses], most: int, room: float) -> int:
        """Adds the batches of a range; returns how many there are. One is read while another is added."""
        added: Future[None] | None = None
        with ThreadPoolExecutor(1, "hotrows-next-uses") as other_thread:
            for number in range(most):
                try:
                    rows = self._future.rows()
                except NoMore:
                    most = number
                    break
                if added is not None:
                    added.result()
                # `finish` writes each once more. What was read is added in any case.
                is_full = 2 * sum(of_group.num_bytes for of_group in uses) > room
                added = other_thread.submit(_add, uses, rows)
                if is_full:
                    most = number + 1
                    break
            if added is not None:
                added.result()
        return most


def _add(uses: list[NextUses], rows: list[Tensor]) -> None:
    for of_group, of_batch in zip(uses, rows, strict=True):
        of_group.add(of_batch)
