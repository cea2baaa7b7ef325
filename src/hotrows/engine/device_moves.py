"""DeviceMoves: what the stages do where the device itself maps the slots of its cache.

    plan      load what comes into view: batches to feed, and batch t + k - 1
    upload    launch, in this order: note the rows fed; plan the packs of batch t + k - 1 and keep the
              slots of its rows; give slots to the rows of batch t
    count     wait for what was counted: how many rows batch t moves, and whether it bypasses the cache

Rows and runs are found on the device as well, or on the host where that cannot be (lists of ids, several
ranks), and then copied. What is launched waits for no count; `count`, a thread of its own, does.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from torch import Tensor

from hotrows.batch import Batch
from hotrows.engine.cached_tables import CachedTables
from hotrows.engine.distributed.comm import any_rank
from hotrows.engine.embedding import Embedding
from hotrows.engine.pipeline.runner import NoMore
from hotrows.engine.pipeline.schedule import Work
from hotrows.engine.planned_batches import PlannedBatches
from hotrows.engine.planning import on_device
from hotrows.engine.planning.device_slots import LANE, DeviceSlots, Taken
from hotrows.ops.plan import Moves, PackPlan, Plan
from hotrows.runtime.device import Mark
from hotrows.runtime.transfer import Uploaded, map_tensors, to_device


@dataclass(frozen=True)
class _Coming:
    """A batch in view, not planned yet. waits_for: see `Work`; it may have to wait for a later one."""

    batch: Batch
    plan: Plan
    waits_for: int


@dataclass
class Ahead:
    """The launches for a batch, and their results.

    fed: batches looked at, or the rows of each group that they read. touched: batches whose packs are
    planned. taken: the slots of the batch by group, counted once `mark` is passed.
    """

    fed: list[Batch | list[Tensor]] = field(default_factory=list)
    touched: list[_Coming] = field(default_factory=list)
    taken: list[Taken] = field(default_factory=list)
    mark: Mark = None


class DeviceMoves:
    """planned, future: the batches to train on, and once more to look ahead. arrived: of a stream,
    whether the next batch has come. padded: plans keep their padding."""

    def __init__(
        self,
        embedding: Embedding,
        cached_tables: CachedTables,
        planned: PlannedBatches,
        future: PlannedBatches,
        arrived: Callable[[], bool] | None,
        padded: bool,
    ) -> None:
        self._embedding, self._device = embedding, embedding.device
        self._ranks = embedding.planner.ranks
        self._groups, self._slots = cached_tables.groups, cached_tables.device_slots
        self._in_flight = cached_tables.caching.in_flight
        self._planned, self._future = planned, future
        self._arrived, self._padded = arrived, padded
        self._coming: deque[_Coming] = deque()
        self._uploaded: deque[Uploaded] = deque()
        self._num_loaded = self._num_fed = cached_tables.num_planned
        self._is_blind = True  # whether a batch was planned without knowing the k - 1 after it
        self._last_wait = -1
        self._all_fed = False

    # ---- thread `plan`

    def has_input(self) -> bool:
        """True if the next batch has arrived."""
        assert self._arrived is not None
        return bool(self._coming) or self._arrived()

    def plan(self, work: Work) -> tuple[Batch, Plan, Ahead]:
        """Loads what comes into view; returns the next batch, its plan, and what is to be launched."""
        ahead = Ahead(touched=self._load())
        if not self._coming:
            raise NoMore
        ahead.fed = self._feed()
        for slots in self._slots:
            slots.begin()
        coming = self._coming.popleft()
        work.waits_for = coming.waits_for
        return coming.batch, coming.plan, ahead

    def _load(self) -> list[_Coming]:
        """Loads batches up to the one k - 1 after the next, as far as there are any."""
        loaded: list[_Coming] = []
        while len(self._coming) < self._in_flight:
            if self._coming and not self._has_come():
                break
            try:
                batch, plan = self._planned.next()
            except NoMore:
                break
            # Those planned in ignorance of this batch may have evicted rows that it reads.
            waits_for = self._slots[0].num_allocated - 1 if self._is_blind else -1
            loaded.append(_Coming(batch, plan, waits_for))
            self._coming.append(loaded[-1])
            self._is_blind = False
        self._is_blind = len(self._coming) < self._in_flight
        self._num_loaded += len(loaded)
        return loaded

    def _feed(self) -> list[Batch | list[Tensor]]:
        """Loads batches to look at, as far as the window reaches and batches have come."""
        fed: list[Batch | list[Tensor]] = []
        while not self._all_fed and any_rank(self._ranks, self._wants()):
            try:
                fed.append(self._batch_or_rows())
                self._num_fed += 1
            except NoMore:
                self._all_fed = True
        return fed

    def _wants(self) -> bool:
        ahead = self._num_fed - self._slots[0].num_allocated
        has_come = self._num_fed < self._num_loaded or self._has_come()
        return has_come and any(slots.wants(ahead) for slots in self._slots)

    def _has_come(self) -> bool:
        """Collective: whether the next batch is there on all ranks."""
        return self._arrived is None or not any_rank(self._ranks, not self._arrived())

    def _batch_or_rows(self) -> Batch | list[Tensor]:
        """The next batch to look at, or where the device does not find its rows, these."""
        planner = self._embedding.planner
        if planner.routes:
            return self._future.rows()
        batch = self._future.batch()
        return batch if self._embedding.plans_on_device(batch) else planner.rows(batch)

    # ---- thread `upload`

    def upload(self, ahead: Ahead) -> Uploaded:
        """Launches all planning on the device for the next batch; returns its copy."""
        for fed in ahead.fed:
            self._launch_feed(fed)
        for coming in ahead.touched:
            copy = self._embedding.upload(coming.batch, coming.plan, self._padded)
            rows = self._rows_of(copy.value[1])
            work = partial(_each, DeviceSlots.touch, self._slots, rows)
            self._device.launch(LANE, work, [copy.mark], [*rows, *copy.blocks])
            self._uploaded.append(copy)
        copy = self._uploaded.popleft()
        rows = self._rows_of(copy.value[1])
        memory = [slots.memory(len(part)) for slots, part in zip(self._slots, rows, strict=True)]
        work = partial(_each, DeviceSlots.take, self._slots, rows, memory)
        ahead.mark = self._device.launch(LANE, work, [copy.mark], [*rows, *copy.blocks])
        ahead.taken = memory
        blocks = *copy.blocks, *(taken.slots for taken in memory)
        return replace(copy, blocks=blocks, mark=ahead.mark)

    def _launch_feed(self, fed: Batch | list[Tensor]) -> None:
        resolved: list[Callable[[], Tensor]]
        if isinstance(fed, Batch):
            assert self._embedding.device_planner is not None
            copy = to_device(self._device, fed.ids)
            resolved = self._embedding.device_planner.resolving(fed, copy.value)
        else:
            copy = to_device(self._device, tuple(fed))
            resolved = [rows.contiguous for rows in copy.value]
        work = partial(_each, DeviceSlots.feed, self._slots, resolved)
        self._device.launch(LANE, work, [copy.mark], copy.blocks)

    def _rows_of(self, plan: Plan) -> list[Tensor]:
        """The distinct rows of each group that a plan reads, on the device."""
        return [plan.packs[cached.group.packs[0]].rows for cached in self._groups]

    # ---- thread `count`

    def count(self, work: Work) -> None:
        """Completes the plan of a batch by what it moves, once that is counted."""
        staged: Any = work.item
        ahead: Ahead = staged.ahead
        self._device.finish(ahead.mark)
        read = [s.read(work.number, taken) for s, taken in zip(self._slots, ahead.taken, strict=True)]
        moves, num_rows = tuple(one.moves for one in read), [one.num_rows for one in read]
        bypasses = any(group.bypasses_cache for group in moves)
        plan: Plan = staged.plan
        if bypasses and plan.on_host is None:  # its rows are read and written by the host
            plan = self._planned_on_host(staged, plan)
        exact = self._with_slots(plan, ahead.taken, num_rows)
        host = plan.on_host or exact
        if bypasses:
            packs = zip(host.packs, exact.packs, strict=True)
            host = replace(host, packs=tuple(replace(h, slots=e.slots.cpu()) for h, e in packs))
        elif self._padded:
            exact = self._with_slots(plan, ahead.taken)
        moves, known = self._known(staged, moves)
        staged.plan = replace(exact, moves=moves, on_host=replace(host, moves=known))
        is_drained = any(one.is_drained for one in read)
        waits_for = work.number - (1 if is_drained else self._in_flight)
        work.waits_for = max(self._last_wait, work.waits_for, waits_for)
        self._last_wait = work.number if is_drained else work.waits_for

    def _planned_on_host(self, staged: Any, plan: Plan) -> Plan:
        """A copy of the batch's plan that the host makes."""
        copy = on_device.upload(
            self._device, staged.batch, self._embedding.planner.plan(staged.batch, plan.step)
        )
        _hold(staged, copy)
        return replace(copy.value[1], signals=plan.signals)

    def _with_slots(
        self, plan: Plan, taken: Sequence[Taken], num_rows: Sequence[int] | None = None
    ) -> Plan:
        """The plan with these slots; num_rows: of each group, to which its packs are narrowed."""
        packs = list(plan.packs)
        for g, cached in enumerate(self._groups):
            parts: dict[int, PackPlan] = {}  # packs that share a plan go on sharing it
            for p in cached.group.packs:
                part, key = packs[p], id(packs[p])
                if key not in parts:
                    part = replace(part, slots=taken[g].slots[: part.num_rows])
                    parts[key] = part if num_rows is None else part.narrowed(num_rows[g])
                packs[p] = parts[key]
        return replace(plan, packs=tuple(packs))

    def _known(
        self, staged: Any, moves: tuple[Moves, ...]
    ) -> tuple[tuple[Moves, ...], tuple[Moves, ...]]:
        """The moves on the device, and as the host must know them: all of it where it copies the rows
        itself, those that go out ascending; else the sizes alone."""
        if all(cached.cache.zero_copy for cached in self._groups):
            return moves, moves
        known = map_tensors(moves, lambda t: self._device.staging(*t.shape, dtype=t.dtype))
        copies = [(into, t) for k, m in zip(known, moves, strict=True) for into, t in _pairs(k, m)]
        self._device.finish(self._device.launch(LANE, partial(_copy_all, copies)))
        known = tuple(map(_ascending, known))
        copy = to_device(self._device, known)
        _hold(staged, copy)
        return copy.value, known


def _hold(staged: Any, copy: Uploaded) -> None:
    """Lets training wait for a copy as well."""
    staged.ready.append(copy.mark)
    staged.blocks = *staged.blocks, *copy.blocks


def _pairs(into: Moves, moves: Moves) -> list[tuple[Tensor, Tensor]]:
    names = "rows_in", "slots_in", "rows_out", "slots_out"
    return [(getattr(into, name), getattr(moves, name)) for name in names]


def _copy_all(pairs: Sequence[tuple[Tensor, Tensor]]) -> None:
    for into, tensor in pairs:
        into.copy_(tensor, non_blocking=True)


def _ascending(moves: Moves) -> Moves:
    rows_out, order = moves.rows_out.sort()
    return replace(moves, rows_out=rows_out, slots_out=moves.slots_out[order])


def _each(method: Callable[..., None], slots: Sequence[DeviceSlots], *arguments: Sequence[Any]) -> None:
    for one, *of_group in zip(slots, *arguments, strict=True):
        method(one, *of_group)
