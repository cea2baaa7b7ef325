"""CachedTableGroup: tables of the user's model behind one cache, as rows of an `engine` CachedGroup.

    CachedTableGroup   all cached tables of one width and rule: a store, a cache, a slot map
      row              tables end to end: row `first_row` + i is row i of a table
      record           | D weights | D numbers of each state | int32: steps that it has made |
    CachedRows         where the rows of one lookup are: in slots, or copied for this lookup alone
    PlannedBatch       the rows of a batch to come, planned by a look-ahead

Without a look-ahead, a lookup that trains inserts its rows into slots and waits for them. A batch of
more rows than slots is copied, and so is everything that is looked up while a look-ahead moves rows;
copies that are stepped are written back at once. A step checks that the rows of its gradient still
have the slots in which they were looked up, and inserts them again where they have not.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from hotrows.acceleration.table import RowTable
from hotrows.acceleration.table_plan import TablePlan
from hotrows.engine.cached_group import CachedGroup
from hotrows.engine.pipeline.runner import Overlapped
from hotrows.engine.planning.packing import Group
from hotrows.engine.planning.policy import Lookahead
from hotrows.engine.planning.slots import SlotMap
from hotrows.engine.storage.cache import Cache
from hotrows.engine.storage.file_store import FileStore
from hotrows.engine.storage.store import HostStore, Store
from hotrows.ops.deferred import Target
from hotrows.ops.plan import Moves
from hotrows.ops.record import RecordLayout, RecordViews, views
from hotrows.runtime.device import Device, Mark
from hotrows.runtime.transfer import copied, to_device
from hotrows.runtime.user_warnings import warn

_MAX_WAITS = 8  # lookups that wait for their rows before a warning says how to avoid it


class CachedTableGroup:
    """Tables of one width and rule, one after the other, as the rows of a `CachedGroup`.

    runner: the look-ahead that moves rows at present. training_batch: its batch that is being trained.
    num_unplanned: lookups that train and that the look-ahead did not plan.
    counts: lookups whose rows had been moved ahead; were brought into slots; were copied.
    error: of moving rows, so that some may be lost. close: closes the store, which nobody reads any more.
    """

    def __init__(
        self, layout: RecordLayout, group: Group, num_slots: int, store: Store, device: Device
    ) -> None:
        self.layout, self.num_rows, self.tables = layout, group.rows, list[RowTable]()
        self.device = device
        self.cache = Cache(num_slots, group.strides, store, device, isinstance(store, HostStore))
        self._rows = CachedGroup(group, self.cache, Lookahead(1))
        self.bound_log = self._rows.bound_log  # called after writes
        self.arena = self.views_of(self.cache.arenas[0])
        self.runner: Overlapped | None = None
        self.training_batch: PlannedBatch | None = None
        self.num_unplanned = 0
        self.counts = {"ahead": 0, "brought": 0, "copied": 0}
        self._num_waits = 0
        self.error: BaseException | None = None
        self.close = weakref.finalize(self, _close, store)

    @property
    def slots(self) -> SlotMap:
        return self._rows.host_slots

    def views_of(self, records: Tensor) -> RecordViews:
        return views(records, self.layout.as_ints())

    def add(self, table: RowTable) -> int:
        """Appends a table; returns its first row."""
        self.tables.append(table)
        return sum(len(before.values) for before in self.tables[:-1])

    def target_of(self, table: RowTable, records: RecordViews) -> Target:
        """A table as the kernels take it, with its rows in these records."""
        assert records.step is not None
        states = records.state.split(self.layout.dim, 1) if records.state.shape[1] else ()
        return table.target_at(records.weights, states, records.step)

    # ---- rows of lookups and steps

    def locate(self, rows: Tensor, trains: bool) -> CachedRows:
        """Makes rows [U], distinct and ascending, readable; trains: they may be stepped."""
        with self.paused():
            slots = self._insert(rows) if trains and self.runner is None else None
            if trains and self.runner is None:
                self._warn_of_waiting()
            elif trains:
                self.num_unplanned += 1
            self.counts["copied" if slots is None else "brought"] += 1
            if slots is not None:
                return CachedRows(self, rows, slots, self.arena)
            copies = self.views_of(self.device.put(self.cache.read(rows)))
            return CachedRows(self, rows, self._numbers(rows), copies, is_copy=True)

    def on_device(self, plan: TablePlan) -> TablePlan:
        """A plan that the host has made, where its rows are."""
        copy = to_device(self.device, plan)
        self.device.wait(copy.mark, copy.blocks)
        return replace(copy.value, known_ends=tuple(plan.ends))

    def _numbers(self, rows: Tensor) -> Tensor:
        """[U]: the place of each row among copies."""
        return torch.arange(rows.numel(), device=self.device.torch)

    @contextmanager
    def writing(self, cached: CachedRows) -> Iterator[tuple[RecordViews, Tensor]]:
        """Within: records that hold the rows, and the slot of each; writes are stored behind it."""
        self.synchronize()
        if cached.is_pinned:
            yield self.arena, cached.slots
            self.cache.mark_changed(cached.slots)
            return
        with self.paused():
            slots = None
            if self.runner is None:
                slots = cached.slots if cached.is_in_slots else self._insert(cached.rows)
            if slots is not None:
                yield self.arena, slots
                self.cache.mark_changed(slots)
                return
            records = self.device.put(self.cache.read(cached.rows))
            yield self.views_of(records), self._numbers(cached.rows)
            self.cache.write(cached.rows, records.cpu())

    def read_copies(self, rows: Tensor) -> RecordViews:
        """Copies of the present records of rows, in host memory; writing them changes no table."""
        with self.paused():
            return self.views_of(self.cache.read(rows))

    def paused(self) -> AbstractContextManager[None]:
        """Within, no row moves."""
        return nullcontext() if self.runner is None else self.runner.paused(trained=False)

    def synchronize(self) -> None:
        """Stores what users have written to copies of tables; raises if rows were lost."""
        if self.error is not None:
            raise RuntimeError(
                "rows of the tables were lost when moving them failed; make the model anew and load a "
                "state that you saved"
            ) from self.error
        for table in self.tables:
            table.store_writes(forget=True)

    def _insert(self, rows: Tensor) -> Tensor | None:
        """Brings rows into slots [U]; None where there are more than slots."""
        slots = self._rows.bring(rows)
        self.bound_log()
        return None if slots is None else copied(self.device, slots)

    def move(self, moves: Moves) -> None:
        """Makes all moves of one batch at once."""
        self._rows.move(moves)
        self.bound_log()

    def _warn_of_waiting(self) -> None:
        self._num_waits += 1
        if self._num_waits == _MAX_WAITS:
            warn(
                "training waits for its rows at every lookup; `for batch in "
                "hotrows.lookahead(loader, model)` moves them while earlier batches are trained"
            )

    # ---- looking ahead

    def train(self, batch: PlannedBatch) -> None:
        """Begins the training of a batch whose rows are on their way into slots."""
        self.training_batch = batch
        for mark in batch.ready:
            self.device.wait(mark, batch.blocks)

    def begin(self, runner: Overlapped) -> None:
        self.runner, self._num_waits = runner, _MAX_WAITS + 1

    def set_in_flight(self, in_flight: int) -> None:
        """Makes a slot map for so many batches in flight."""
        self.synchronize()
        self._rows.fit(Lookahead(in_flight), in_flight)

    # ---- all rows

    def read(self, begin: int, end: int) -> Tensor:
        """[m, stride]: copies of consecutive records."""
        with self.paused():
            return self.cache.read(torch.arange(begin, end))

    def write(self, rows: Tensor, records: Tensor) -> None:
        with self.paused():
            self.cache.write(rows, records)
            self.bound_log()


@dataclass(frozen=True)
class CachedRows:
    """The locations of the rows of one lookup.

    rows: [U] distinct rows of the group, ascending, in host memory. slots: [U], where in `records` each
        of them is; both on the device.
    is_copy: the records are copies, made for this lookup. batch: the planned batch whose rows these
    are; they stay in their slots until it has been trained.
    """

    group: CachedTableGroup
    rows: Tensor
    slots: Tensor
    records: RecordViews
    is_copy: bool = False
    batch: PlannedBatch | None = None

    def between(self, begin: int, end: int) -> CachedRows:
        return replace(self, rows=self.rows[begin:end], slots=self.slots[begin:end])

    @property
    def is_pinned(self) -> bool:
        """True if the batch is being trained, so that no row leaves its slot."""
        return self.batch is not None and not self.batch.is_over

    @property
    def is_in_slots(self) -> bool:
        """True if each row is still in the slot where it was looked up."""
        return not self.is_copy and self.group.cache.holds(self.slots, self.rows)

    @contextmanager
    def writing(self, tables: Sequence[RowTable]) -> Iterator[tuple[list[Target], Tensor]]:
        with self.group.writing(self) as (records, slots):
            yield [self.group.target_of(table, records) for table in tables], slots

    def changed(self) -> None:
        """Notes that the rows were brought up to date in place."""
        if not self.is_copy:
            self.group.cache.mark_changed(self.slots)


@dataclass
class PlannedBatch:
    """The lookups of a batch to come that read one group.

    signature: of each lookup, the weight's `id()` and the number of ids; ids: [N], of all lookups.
    plan: its rows, once they are known; moves: what they bring into slots.
    locations: where the rows are; None: in no slot, the lookup reads through the cache.
    is_over: the batch has been trained. ready: marks on a device that training waits for; blocks: what
        it then reads.
    """

    group: CachedTableGroup
    signature: tuple = ()
    ids: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64))
    plan: TablePlan | None = None
    moves: Moves | None = None
    locations: CachedRows | None = None
    is_over: bool = False
    ready: list[Mark] = field(default_factory=list)
    blocks: tuple[Tensor, ...] = ()

    @property
    def rows(self) -> Tensor:
        """[U]: distinct rows of the group."""
        return torch.empty(0, dtype=torch.int64) if self.plan is None else self.plan.pack.rows


def _close(store: Store) -> None:
    if isinstance(store, FileStore):
        store.close(merge=False)
