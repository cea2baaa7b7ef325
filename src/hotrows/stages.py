"""Stages: what the pipeline does with each batch that an `Embedding` trains on.

    plan         load the batch; look ahead at those to come; plan its moves     thread `plan`
    collect      read the rows that come in; take out those that go              thread `move`
    transfer     bring them to the fast memory's side of the link                thread `move`
    insert       put them into their slots                                       thread `move`
    train        the caller's                                                    the caller's
    write back   store what has gone                                             thread `write`

Where every row is in memory, only `plan` and `train` are left. On one machine's memory there is no
link: `transfer` is where a device copies, and where a benchmark slows a link down.

On a device there is a stage more, and stages launch their work and go on; what must come first is
waited for on the device, by marks (`hotrows.device`):

    upload       the plan and what the model reads of the batch                  thread `upload`
                 or, where plans are made there, the ids in place of the plan
    collect ..   waits for the upload, and for the batch that had to leave       thread `move`
    train        waits for the rows                                              the caller's
    write back   waits for training, and for what has been taken out             thread `write`
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from itertools import tee

import torch
from torch import Tensor

from hotrows.batch import Batch, samples
from hotrows.device import Mark
from hotrows.embedding import Embedding
from hotrows.pipeline.runner import TRAIN, NoMore, Overlapped, Serial
from hotrows.pipeline.schedule import Stage, Work
from hotrows.plan import Plan
from hotrows.planning.routing import NO_MORE
from hotrows.storage.device_cache import DeviceCache
from hotrows.tiers import Tiers

_LAUNCHED = 2  # steps that the host may be ahead of the device: more would only hold memory

Numbered = tuple[int, Batch]  # the step that it will make, and the batch
Wishes = Callable[[], int]  # what this rank asks of all, when a batch is planned


def training_stages(
    embedding: Embedding,
    batches: Iterable[Numbered],
    future: Iterable[Batch] | None = None,
    link: Callable[[int], None] | None = None,
    wishes: Wishes = lambda: 0,
    padded: bool = False,
) -> list[Stage]:
    """The stages of training on `batches`.

    future: the same batches once more, for the look ahead; where they can be read only once, leave
    it out, and those looked at wait in memory. link: called with the bytes of each transfer. padded:
    plans go to the device with tensors of equal sizes (`Embedding.upload`).
    """
    on_host = embedding.device.on_host
    if embedding.tiers is None:
        plain = Stage("plan", "plan", run=_PlainPlan(embedding, batches, wishes))
        return (
            [plain, Stage(TRAIN, TRAIN)]
            if on_host
            else _OnDevice(embedding, padded).plain_stages(plain)
        )
    plan = _Plan(embedding, embedding.tiers, batches, future, wishes)
    if not on_host:
        return _OnDevice(embedding, padded).stages(plan)
    caches = embedding.tiers.caches

    def collect(work: Work) -> None:
        moved = zip(caches, work.plan.moves, strict=True)
        work.transits = [cache.collect(moves) for cache, moves in moved]

    def transfer(work: Work) -> None:
        if link is not None:
            link(sum(t.staged.numel() + t.leaving.numel() for t in work.transits))

    def insert(work: Work) -> None:
        for cache, moves, transit in zip(caches, work.plan.moves, work.transits, strict=True):
            cache.insert(moves, transit)

    def write_back(work: Work) -> None:
        for cache, transit in zip(caches, work.transits, strict=True):
            cache.write_back(transit)

    return [
        Stage("plan", "plan", run=plan),
        Stage("collect", "move", enters=True, run=collect),
        Stage("transfer", "move", run=transfer),
        Stage("insert", "move", run=insert),
        Stage(TRAIN, TRAIN),
        Stage("write back", "write", run=write_back),
    ]


def start(
    embedding: Embedding,
    batches: Iterable[Numbered],
    future: Iterable[Batch] | None = None,
    *,
    plan_depth: int = 2,
    trace: bool = False,
    link: Callable[[int], None] | None = None,
    wishes: Wishes = lambda: 0,
    padded: bool = False,
) -> Serial | Overlapped:
    """A runner that hands out the batches, planned and their rows in place, ready to be trained.

    plan_depth: batches planned beyond those that move rows; 0: everything in turn, on one thread.
    wishes: see `planning.routing`; their sum over ranks comes with every plan. padded: as above.

    Between ranks, each brings batches of its own, as many as it has: one that has no more goes on
    with empty ones until none has, so that all end together.
    """
    stages = training_stages(embedding, batches, future, link, wishes, padded)
    first = embedding.tiers.num_planned if embedding.tiers else 0
    if plan_depth == 0:
        return Serial(stages, first, trace)
    if embedding.ranks.num_ranks == 1:
        return Overlapped(stages, first, trace, plan_depth)
    if embedding.tiers:
        plan_depth += embedding.tiers.caching.in_flight
    return Overlapped(stages, first, trace, plan_depth, lockstep=True)


class _OnDevice:
    """The stages that launch work on a device."""

    def __init__(self, embedding: Embedding, padded: bool) -> None:
        self._embedding, self._device, self._padded = embedding, embedding.device, padded
        self._trained: deque[Mark] = deque()
        self._left: Mark = None  # passed once every batch that has left is in the store

    def plain_stages(self, plan: Stage) -> list[Stage]:
        return [plan, Stage("upload", "upload", run=self.upload), self._train]

    def stages(self, plan: Callable[[Work], None]) -> list[Stage]:
        return [
            Stage("plan", "plan", run=plan),
            Stage("upload", "upload", run=self.upload),
            Stage("collect", "move", enters=True, run=self.collect),
            Stage("transfer", "move", run=self.transfer),
            Stage("insert", "move", run=self.insert),
            self._train,
            Stage("write back", "write", run=self.write_back),
        ]

    @property
    def _train(self) -> Stage:
        return Stage(TRAIN, TRAIN, begin=self.begin, end=self.end)

    def begin(self, work: Work) -> None:
        for mark in work.ready:
            self._device.wait(mark, work.holds)

    def end(self, work: Work) -> None:
        work.trained = self._device.mark()
        self._trained.append(work.trained)
        if len(self._trained) > _LAUNCHED:
            self._device.finish(self._trained.popleft())
        check, work.check = work.check, None
        if check is not None:
            check()

    def upload(self, work: Work) -> None:
        sent = self._embedding.upload(work.batch, work.plan, self._padded)
        work.batch, work.plan = sent.value
        work.ready, work.holds, work.check = [sent.mark], list(sent.blocks), sent.check

    def collect(self, work: Work) -> None:
        after = [*work.ready, self._left]
        moved = zip(self._caches, work.plan.host.moves, work.plan.moves, strict=True)
        work.transits = [cache.depart(moves, here, after) for cache, moves, here in moved]

    def transfer(self, work: Work) -> None:
        for cache, journey in zip(self._caches, work.transits, strict=True):
            cache.transfer(journey)

    def insert(self, work: Work) -> None:
        for cache, journey in zip(self._caches, work.transits, strict=True):
            work.ready.append(cache.arrive(journey))

    def write_back(self, work: Work) -> None:
        for cache, journey in zip(self._caches, work.transits, strict=True):
            self._left = cache.leave(journey, [work.trained])

    @property
    def _caches(self) -> tuple[DeviceCache, ...]:
        assert self._embedding.tiers is not None
        return self._embedding.tiers.caches  # type: ignore[return-value]


class _PlainPlan:
    """Plans where every row is resident."""

    def __init__(self, embedding: Embedding, batches: Iterable[Numbered], wishes: Wishes) -> None:
        self._coming = _Coming(embedding, batches, wishes)

    def __call__(self, work: Work) -> None:
        work.batch, work.plan = self._coming.next()


class _Plan:
    """Feeds batches ahead as far as the policy wants, then plans the moves of the next one."""

    def __init__(
        self,
        embedding: Embedding,
        tiers: Tiers,
        batches: Iterable[Numbered],
        future: Iterable[Batch] | None,
        wishes: Wishes,
    ) -> None:
        self._embedding, self._tiers = embedding, tiers
        one_thread = future is None  # as `tee` demands
        if future is None:
            batches, again = tee(batches)
            future = (batch for _, batch in again)
        self._coming = _Coming(embedding, batches, wishes, one_thread)
        self._future = _Coming(embedding, enumerate(future), lambda: 0, one_thread)
        self._begun = False

    def __call__(self, work: Work) -> None:
        work.batch, plan = self._coming.next()
        # Batches trained before these may have ended: the first feed says that there are more.
        while self._any(self._tiers.wants or not self._begun):
            self._begun = True
            try:
                self._tiers.feed(self._future.rows())
            except NoMore:
                self._tiers.feed_end()
        work.plan = self._tiers.take(plan)
        work.waits_for = work.plan.waits_for

    def _any(self, wanted: bool) -> bool:
        """Whether any rank wants to see further: then all look."""
        ranks = self._embedding.planning
        if ranks.num_ranks == 1:
            return wanted
        return bool(ranks.all_gather(torch.tensor([wanted])).wait().any())


class _Coming:
    """The batches of this rank, planned together with those of all.

    Where planning has several threads, the next batch is loaded while one is planned. one_thread: it is
    loaded by the caller, when it is asked for.
    """

    def __init__(
        self,
        embedding: Embedding,
        batches: Iterable[Numbered],
        wishes: Wishes,
        one_thread: bool = False,
    ) -> None:
        self._embedding = embedding
        self._loads_ahead = embedding.threads.num > 1 and not one_thread
        self._loading: Future[tuple[int, Batch | None]] | None = None
        self._batches: Iterator[Numbered] = iter(batches)
        self._wishes = wishes
        self._alone = embedding.ranks.num_ranks == 1
        self._last: Batch | None = None

    def next(self) -> tuple[Batch, Plan]:
        """The next batch and its plan; NoMore once no rank has any."""
        step, batch = self._load()
        if batch is None and self._alone:
            raise NoMore
        wishes = self._wishes() | (NO_MORE if batch is None else 0)
        batch = self._empty() if batch is None else batch
        plan = self._embedding.plan_ahead(batch, step, wishes)
        if plan.wishes & NO_MORE:
            raise NoMore
        if self._last is None and not batch.size and wishes & NO_MORE:
            raise ValueError(
                f"rank {self._embedding.ranks.rank} has not a single batch, while others have some: "
                f"give every rank one at least"
            )
        self._last = batch
        return batch, plan

    def rows(self) -> list[Tensor]:
        """The rows that the next batch reads, for each group of packs."""
        if self._embedding.routes:
            return self._embedding.rows_of(self.next()[1])
        _, batch = self._load()
        if batch is None:
            raise NoMore
        return self._embedding.rows(batch)

    def _load(self) -> tuple[int, Batch | None]:
        if not self._loads_ahead:
            return self._next()
        begin = self._embedding.threads.begin
        found = (self._loading or begin(self._next)).result()
        self._loading = begin(self._next)
        return found

    def _next(self) -> tuple[int, Batch | None]:
        return next(self._batches, (0, None))

    def _empty(self) -> Batch:
        if self._last is not None:
            return samples(self._last, 0, 0)
        features = self._embedding.features
        return Batch(features, torch.empty(0, dtype=torch.int64), torch.empty(0, 0))
