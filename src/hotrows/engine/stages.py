"""Stages: what the pipeline does with each batch that an `Embedding` trains on.

    plan         load the batch; look ahead at those to come; plan its moves     thread `plan`
    upload       copy the plan and what the model reads to the device            thread `upload`
    count        where the device has mapped slots: read how many rows move      thread `count`
    collect      read the rows that come in; copy those that go out              thread `move`
    insert       put the rows that come in into their slots                      thread `move`
    train        the caller's                                                    the caller's
    write back   store the rows that went out                                    thread `write`

On the host there is no `upload`. Where every row is in memory, nothing moves: `collect`, `insert` and
`write back` are left out, and `count` where the host maps slots.

On a device, stages launch their work and return; what must come first is waited for there, by marks
(`hotrows.runtime.device`): `collect` waits for the upload and for the batch that had to leave,
training for the rows, `write back` for training. On the host the marks are None, each stage having
done its work when it returns.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from itertools import tee

from torch import Tensor

from hotrows.batch import Batch
from hotrows.engine import known_order
from hotrows.engine.cached_tables import CachedTables
from hotrows.engine.device_moves import Ahead, DeviceMoves
from hotrows.engine.distributed.comm import any_rank
from hotrows.engine.embedding import Embedding
from hotrows.engine.known_order import PlanKnownOrder
from hotrows.engine.pipeline.runner import TRAIN, NoMore, Overlapped, Serial
from hotrows.engine.pipeline.schedule import Stage, Work
from hotrows.engine.planned_batches import NumberedBatch, PlannedBatches, Signals
from hotrows.engine.storage.cache import Transfer
from hotrows.ops.plan import Plan
from hotrows.runtime.device import Mark

log = logging.getLogger("hotrows")

_LAUNCHED = 2  # steps that the host may be ahead of the device: more would only hold memory

Arrived = Callable[[], bool]  # whether the next batch is there, or none will come


@dataclass
class StagedBatch:
    """A batch on its way through the stages: `Work.item`.

    ready: marks that training waits for on the device; blocks: the memory of what was copied there.
    transfers: of the rows that it moves, by group. trained: the mark behind its training.
    check: raises what is only known on the device, such as an id outside its table. ahead: what is
    launched for it where the device maps slots.
    """

    batch: Batch
    plan: Plan
    ready: list[Mark] = field(default_factory=list)
    blocks: tuple[Tensor, ...] = ()
    transfers: list[Transfer] = field(default_factory=list)
    trained: Mark = None
    check: Callable[[], None] | None = None
    ahead: Ahead | None = None


def training_stages(
    embedding: Embedding,
    batches: Iterable[NumberedBatch],
    future: Iterable[Batch] | None = None,
    signals: Signals = lambda: 0,
    padded: bool = False,
    arrived: Arrived | None = None,
    num_known: int = 0,
) -> list[Stage]:
    """The stages of training on `batches`.

    future: the batches once more, for looking ahead; where they can be read only once, leave it out,
    and those looked at are held in memory, as those with dynamic features always are. padded: plans
    go to the device with tensors of equal sizes (`Embedding.upload`). arrived: of batches that come in
    their own time, whether the next one has; planning looks ahead as far as they have come, and no thread
    waits for another. num_known: how many batches `future` has, if their ids may be read before the first
    is trained: see `known_order`.
    """
    # Choose who plans: batches as they come, a cache on the host, or one on the device.
    batches, future = embedding.dynamic.to_plan(batches, future)
    run, cached_tables = _Stages(embedding, padded), embedding.cached_tables
    plan: Callable[[Work], None]
    has_input, count = arrived, lambda work: None
    unneeded = {"count"}
    if not cached_tables:
        unneeded |= {"collect", "insert", "write back"}
        run.planned = PlannedBatches(embedding, batches, signals, one_thread=arrived is not None)
        plan = run.plan
    else:
        readers = _planned_twice(embedding, batches, future, signals)
        moves: _PlanMoves | DeviceMoves
        if cached_tables.maps_on_device:
            run.moves = moves = DeviceMoves(embedding, cached_tables, *readers, arrived, padded)
            plan, count, unneeded = run.plan_on_device, moves.count, set()
        else:
            known = _known_order(embedding, readers, 0 if future is None or arrived else num_known)
            plan = moves = _PlanMoves(embedding, cached_tables, *readers, arrived, known)
        has_input = None if arrived is None else moves.has_input
    stages = [
        Stage("plan", "plan", run=plan, has_input=has_input),
        Stage("upload", "upload", run=run.upload),
        Stage("count", "count", run=count),
        Stage("collect", "move", enters=True, run=run.collect),
        Stage("insert", "move", run=run.insert),
        Stage(TRAIN, TRAIN, begin=run.begin_training, end=run.end_training),
        Stage("write back", "write", run=run.write_back),
    ]
    if embedding.device.on_host:
        unneeded |= {"upload"}
    return [stage for stage in stages if stage.name not in unneeded]


def start(
    embedding: Embedding,
    batches: Iterable[NumberedBatch],
    future: Iterable[Batch] | None = None,
    *,
    plan_depth: int = 2,
    trace: bool = False,
    signals: Signals = lambda: 0,
    padded: bool = False,
    arrived: Arrived | None = None,
    num_known: int = 0,
    first: int = 0,
) -> Serial | Overlapped:
    """A runner that hands out `StagedBatch`es, planned and their rows in place, ready to be trained.

    future, padded, arrived, num_known: see `training_stages`. plan_depth: batches planned beyond those
    that move rows; 0: everything in turn, on one thread. signals: `RankSignals` of this rank; those of
    all ranks come with every plan. first: the number of the first batch; a cache has its own.

    Between ranks, each brings batches of its own, as many as it has: one that has no more continues
    with empty ones until none has any, so that all end together.
    """
    stages = training_stages(embedding, batches, future, signals, padded, arrived, num_known)
    cached_tables, has_ranks = embedding.cached_tables, embedding.ranks.num_ranks > 1
    if cached_tables:
        first = cached_tables.num_planned
        plan_depth += cached_tables.caching.in_flight if has_ranks and plan_depth else 0
    if plan_depth == 0:
        return Serial(stages, first, trace)
    runner = Overlapped(stages, first, trace, plan_depth, lockstep=has_ranks)
    if cached_tables:
        embedding.packed.memory.paused = partial(runner.paused, trained=False)
    return runner


class _Stages:
    """What stages do. planned: batches of which no row moves; moves: what plans on the device, where it
    maps slots."""

    planned: PlannedBatches
    moves: DeviceMoves | None = None

    def __init__(self, embedding: Embedding, padded: bool) -> None:
        self._embedding, self._device, self._padded = embedding, embedding.device, padded
        self._caches = [group.cache for group in embedding.cached_tables.groups]
        self._trained: deque[Mark] = deque()
        self._written: Mark = None  # passed once every batch that has left is in the store

    def plan(self, work: Work) -> None:
        work.item = StagedBatch(*self.planned.next())

    def plan_on_device(self, work: Work) -> None:
        assert self.moves is not None
        batch, plan, ahead = self.moves.plan(work)
        work.item = StagedBatch(batch, plan, ahead=ahead)

    def upload(self, work: Work) -> None:
        staged: StagedBatch = work.item
        if self.moves is not None and staged.ahead is not None:
            copy = self.moves.upload(staged.ahead)
        else:
            copy = self._embedding.upload(staged.batch, staged.plan, self._padded)
        staged.batch, staged.plan = copy.value
        staged.ready, staged.blocks, staged.check = [copy.mark], copy.blocks, copy.check

    def collect(self, work: Work) -> None:
        staged: StagedBatch = work.item
        after = [*staged.ready, self._written]
        host_moves, moves = staged.plan.host.moves, staged.plan.moves
        groups = zip(self._caches, host_moves, moves, strict=True)
        staged.transfers = [cache.collect(host, device, after) for cache, host, device in groups]

    def insert(self, work: Work) -> None:
        staged: StagedBatch = work.item
        for cache, transfer in zip(self._caches, staged.transfers, strict=True):
            staged.ready.append(cache.insert(transfer))

    def begin_training(self, work: Work) -> None:
        for mark in work.item.ready:
            self._device.wait(mark, work.item.blocks)

    def end_training(self, work: Work) -> None:
        staged: StagedBatch = work.item
        staged.trained = self._device.mark()
        self._trained.append(staged.trained)
        if len(self._trained) > _LAUNCHED:
            self._device.finish(self._trained.popleft())
        check, staged.check = staged.check, None
        if check is not None:
            check()

    def write_back(self, work: Work) -> None:
        staged: StagedBatch = work.item
        for cache, transfer in zip(self._caches, staged.transfers, strict=True):
            self._written = cache.write_back(transfer, [staged.trained])


def _known_order(
    embedding: Embedding, readers: tuple[PlannedBatches, PlannedBatches], num_known: int
) -> PlanKnownOrder | None:
    """What plans where the order of batches is known; None, with the reason logged, where it cannot."""
    reason = known_order.refusal(embedding, num_known)
    embedding.cached_tables.use_hints(reason is None)
    if reason is not None:
        if embedding.cached_tables.files:
            log.info("next uses are looked for in memory: %s", reason)
        return None
    return PlanKnownOrder(embedding, *readers, num_known)


class _PlanMoves:
    """Feeds batches ahead as far as the policy wants, then plans the moves of the next one. known: plans
    in place of that where the order of all batches is known."""

    def __init__(
        self,
        embedding: Embedding,
        cached_tables: CachedTables,
        planned: PlannedBatches,
        future: PlannedBatches,
        arrived: Arrived | None,
        known: PlanKnownOrder | None = None,
    ) -> None:
        self._ranks, self._cached_tables, self._known = embedding.planner.ranks, cached_tables, known
        self._planned, self._future = planned, future
        self._begun = False
        self._arrived = arrived
        self._ahead = 0  # batches fed beyond those planned

    def has_input(self) -> bool:
        """True if the next batch has arrived."""
        assert self._arrived is not None
        return self._ahead > 0 or self._arrived()

    def __call__(self, work: Work) -> None:
        if self._known is not None:
            batch, plan = self._known.next()
            work.item, work.waits_for = StagedBatch(batch, plan), plan.waits_for
            return
        batch, plan = self._planned.next()
        self._ahead -= 1
        # Batches trained before these may have ended: the first feed says that there are more. So may
        # those of a stream that had come so far.
        is_unknown = not self._begun or (self._arrived is not None and self._ahead < 0)
        while any_rank(self._ranks, self._cached_tables.wants or is_unknown):
            is_unknown = False
            self._begun = True
            arrived = self._arrived if self._ahead >= 0 else None
            if arrived is not None and any_rank(self._ranks, not arrived()):
                self._cached_tables.feed_end()  # of those that have come so far
                break
            try:
                self._cached_tables.feed(self._future.rows())
                self._ahead += 1
            except NoMore:
                self._cached_tables.feed_end()
        plan = self._cached_tables.take(plan)
        work.item, work.waits_for = StagedBatch(batch, plan), plan.waits_for


def _planned_twice(
    embedding: Embedding,
    batches: Iterable[NumberedBatch],
    future: Iterable[Batch] | None,
    signals: Signals,
) -> tuple[PlannedBatches, PlannedBatches]:
    """The batches to plan, and once more to look ahead."""
    one_thread = future is None  # as `tee` demands
    if future is None:
        batches, again = tee(batches)
        future = (batch for _, batch in again)
    planned = PlannedBatches(embedding, batches, signals, one_thread)
    return planned, PlannedBatches(embedding, enumerate(future), lambda: 0, one_thread)
