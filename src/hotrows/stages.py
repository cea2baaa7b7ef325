"""Stages: what the pipeline does with each batch that an `Embedding` trains on.

    plan         load the batch; look ahead at those to come; plan its moves     thread `plan`
    collect      read the rows that come in; take out those that go              thread `move`
    transfer     bring them to the fast memory's side of the link                thread `move`
    insert       put them into their slots                                       thread `move`
    train        the caller's                                                    the caller's
    write back   store what has gone                                             thread `write`

Where every row is in memory, only `plan` and `train` are left. On one machine's memory there is no
link: `transfer` is where a device copies, and where a benchmark slows a link down.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import tee

from hotrows.batch import Batch
from hotrows.embedding import Embedding
from hotrows.pipeline.runner import TRAIN, NoMore, Overlapped, Serial
from hotrows.pipeline.schedule import Stage, Work
from hotrows.tiers import Tiers

Numbered = tuple[int, Batch]  # the step that it will make, and the batch


def training_stages(
    embedding: Embedding,
    batches: Iterable[Numbered],
    future: Iterable[Batch] | None = None,
    link: Callable[[int], None] | None = None,
) -> list[Stage]:
    """The stages of training on `batches`.

    future: the same batches once more, for the look ahead; where they can be read only once, leave
    it out, and those looked at wait in memory. link: called with the bytes of each transfer.
    """
    if embedding.tiers is None:
        plain = _PlainPlan(embedding, batches)
        return [Stage("plan", "plan", run=plain), Stage(TRAIN, TRAIN)]
    plan = _Plan(embedding, embedding.tiers, batches, future)
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
) -> Serial | Overlapped:
    """A runner that hands out the batches, planned and their rows in place, ready to be trained.

    plan_depth: batches planned beyond those that move rows; 0: everything in turn, on one thread.
    """
    stages = training_stages(embedding, batches, future, link)
    first = embedding.tiers.num_planned if embedding.tiers else 0
    if plan_depth == 0:
        return Serial(stages, first, trace)
    return Overlapped(stages, first, trace, plan_depth)


class _PlainPlan:
    """Plans where every row is resident."""

    def __init__(self, embedding: Embedding, batches: Iterable[Numbered]) -> None:
        self._embedding = embedding
        self._batches = iter(batches)

    def __call__(self, work: Work) -> None:
        step, work.batch = next(self._batches, (0, None))
        if work.batch is None:
            raise NoMore
        work.plan = self._embedding.plan(work.batch, step)


class _Plan:
    """Feeds batches ahead as far as the policy wants, then plans the moves of the next one."""

    def __init__(
        self,
        embedding: Embedding,
        tiers: Tiers,
        batches: Iterable[Numbered],
        future: Iterable[Batch] | None,
    ) -> None:
        self._embedding, self._tiers = embedding, tiers
        if future is None:
            batches, again = tee(batches)
            future = (batch for _, batch in again)
        self._batches: Iterator[Numbered] = iter(batches)
        self._future = iter(future)
        self._begun = False

    def __call__(self, work: Work) -> None:
        step, work.batch = next(self._batches, (0, None))
        if work.batch is None:
            raise NoMore
        # Batches trained before these may have ended: the first feed says that there are more.
        while self._tiers.wants or not self._begun:
            self._begun = True
            coming = next(self._future, None)
            if coming is None:
                self._tiers.feed_end()
            else:
                self._tiers.feed(self._embedding.rows(coming))
        work.plan = self._tiers.take(self._embedding.plan(work.batch, step))
        work.waits_for = work.plan.waits_for
