"""Drives the real runner and the real merging of a file store through the events of a walk, in its order.

Threads are those of the code. Each waits for its turn before an event and says when it is over; before
every event, the stages that the real runner would begin must be those that the model allows.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest import mock

from hotrows.engine.pipeline import runner as runners
from hotrows.engine.pipeline.runner import TRAIN, Overlapped
from hotrows.engine.pipeline.schedule import Stage, Work
from hotrows.engine.storage.file_store import FileStore
from tests.model_checker.explorer import Event, Walk

PATIENCE = 30.0  # seconds for an event that does not come, because model and code differ
NAMES = {"write back": "write"}  # of stages, where the model has another one


class Crash(BaseException):
    """The walk crashes here."""


class Conductor:
    """The events of a walk, and the threads that wait for their turn.

    first: the number of the batch that the runners call 0. changed: the lock of all.
    """

    def __init__(self, walk: Walk, num_ranks: int) -> None:
        self.walk, self.num_ranks, self.first = walk, num_ranks, 0
        self.changed = threading.Condition()
        self.runners: dict[int, ReplayedRunner] = {}
        self.error: str | None = None
        self.num_crashes = self._at = 0

    def add(self, rank: int, runner: ReplayedRunner) -> None:
        self.runners[rank] = runner
        self._end_runners_if_over()

    @property
    def next(self) -> Event | None:
        """The next event; None: there is no more."""
        return self.walk.events[self._at] if self._at < len(self.walk.events) else None

    def is_next(self, rank: int, *kinds: str) -> bool:
        event = self.next
        return event is not None and event.rank == rank and event.kind in kinds

    def wait(self, rank: int, *kinds: str) -> Event:
        """Waits for the turn of an event of these kinds; raises Crash where a crash comes before it."""
        with self.changed:
            self.changed.wait_for(lambda: self._is_over() or self.is_next(rank, *kinds), PATIENCE)
            if not self._is_over() and not self.is_next(rank, *kinds):
                self.fail(f"rank {rank} would do one of {kinds}, and the model is at {self.next}")
            self.raise_if_over()
            assert self.next is not None
            return self.next

    def wait_for_end(self) -> None:
        """Waits until all events have happened; raises Crash where one of them is a crash."""
        with self.changed:
            if not self.changed.wait_for(lambda: self._is_over() or self.next is None, PATIENCE):
                self.fail(f"training has ended, and the model is at {self.next}")
            self.raise_if_over()

    def raise_if_over(self) -> None:
        """Raises what went wrong, or Crash where the walk crashes now."""
        if self.error is not None:
            raise AssertionError(self.error)
        if self._crashes():
            raise Crash

    def wait_for_start(self) -> None:
        """Waits until training has begun again after a crash."""

        def has_begun() -> bool:
            kinds = [event.kind for event in self.walk.events[: self._at]]
            return next(kind for kind in reversed(kinds) if kind in ("crash", "start")) == "start"

        with self.changed:
            if not self.changed.wait_for(lambda: self._is_over() or has_begun(), PATIENCE):
                self.fail(f"training does not begin again, and the model is at {self.next}")
            if not has_begun():
                self.raise_if_over()

    def crashed(self) -> None:
        """Goes on after a crash, once all threads have ended."""
        self.runners.clear()
        self.num_crashes += 1
        self.advance()

    def advance(self) -> None:
        """Notes that the next event has happened."""
        with self.changed:
            self._at += 1
            if self.error is None:
                self._compare()
            self._end_runners_if_over()
            self.changed.notify_all()

    def do(self, rank: int, kind: str, work: Callable[[], Any] = lambda: None) -> None:
        """Waits for an event, does its work, and notes that it has happened."""
        self.wait(rank, kind)
        work()
        self.advance()

    def fail(self, error: str) -> None:
        with self.changed:
            self.error = self.error or f"event {self._at} of {len(self.walk.events)}: {error}"
            self._end_runners_if_over()
            self.changed.notify_all()

    def _crashes(self) -> bool:
        return self.next is not None and self.next.kind == "crash"

    def _is_over(self) -> bool:
        return self.error is not None or self._crashes()

    def _end_runners_if_over(self) -> None:
        for runner in self.runners.values() if self._is_over() else ():
            runner.abandon()

    def _compare(self) -> None:
        """Compares what the real runners would begin with what the model allows."""
        if self.next is None or len(self.runners) < self.num_ranks or not self.walk.may_begin:
            return
        real = {(rank, stage) for rank, runner in self.runners.items() for stage in runner.would_begin()}
        allowed = {key for key in self.walk.may_begin[self._at] if key[1] != TRAIN}
        if real != allowed:
            self.fail(f"the runner would begin {sorted(real)}, the model {sorted(allowed)}")


class ReplayedRunner(Overlapped):
    """The real runner, whose lanes begin a stage when it is its turn.

    In the model a stage reads as it begins and writes as it ends. Without races the time between makes no
    difference, so there the code does its work at either end, as `seed` has it.
    """

    def __init__(
        self, stages: Sequence[Stage], conductor: Conductor, rank: int, num_batches: int,
        seed: int, **options: Any,
    ) -> None:  # fmt: skip
        self._conductor, self._rank, self._num_batches = conductor, rank, num_batches
        self._seed, self._busy = seed, set()  # lanes that run a stage
        shared = SimpleNamespace(Condition=lambda: conductor.changed, Thread=threading.Thread)
        with conductor.changed, mock.patch.object(runners, "threading", shared):
            super().__init__([self._in_turn(stage) for stage in stages], **options)
            conductor.add(rank, self)

    def would_begin(self) -> list[str]:
        """The stages that the runner would begin if their lanes asked now."""
        if self._over():
            return []
        free = [s for s, stage in enumerate(self.stages) if stage.lane not in self._busy | {TRAIN}]
        ready = (s for s in free if super(ReplayedRunner, self)._next_of([s]) is not None)
        return [_name(self.stages[s]) for s in ready if s or self._done[0] < self._num_batches]

    def _next_of(self, stages: Sequence[int]) -> int | None:
        for s in stages:
            if super()._next_of([s]) is None:
                continue
            if s == 0 and self._done[0] == self._num_batches:
                return s  # finds that there is no further batch
            batch, begins = self._done[s] + self._conductor.first, f"{_name(self.stages[s])}-begins"
            if self._conductor.next == Event(begins, self._rank, batch, 0):
                return s
        return None

    def _in_turn(self, stage: Stage) -> Stage:
        run, name = stage.run, _name(stage)
        if run is None:
            return stage
        conductor, rank = self._conductor, self._rank

        def in_turn(work: Work) -> None:
            if name == "plan" and work.number == self._num_batches:
                run(work)
                return
            with conductor.changed:
                self._busy.add(stage.lane)
                if self._has_end(name):
                    conductor.advance()
            late = self._is_late(name, work.number)
            if not late:
                run(work)
            if self._has_end(name):
                conductor.wait(rank, f"{name}-ends")
            if late:
                run(work)

        return replace(stage, run=in_turn)

    def _is_late(self, name: str, batch: int) -> bool:
        if not self._conductor.walk.may_begin:  # a counter-example, in which stages may race
            return name in ("insert", "write")
        return name != "plan" and random.Random(f"{self._seed} {name} {batch}").random() < 0.5

    def _has_end(self, name: str) -> bool:
        """Whether a stage is two events; planning is one where no other rank takes part in it."""
        return name != "plan" or self._conductor.num_ranks > 1

    def _record(self, s: int, work: Work, error: BaseException | None) -> None:
        super()._record(s, work, error)
        stage = self.stages[s]
        if s == 0 and work.number == self._num_batches:
            return
        self._busy.discard(stage.lane)
        if error is not None:
            if not isinstance(error, (Crash, threading.BrokenBarrierError)):
                self._conductor.fail(f"{stage.name} {work.number} failed: {error!r}")
        else:
            self._conductor.advance()

    def _finish_training(self) -> None:
        is_handed = self._handed is not None
        super()._finish_training()
        if is_handed and self._conductor.is_next(self._rank, "train-ends"):
            self._conductor.advance()

    def end_training(self) -> None:
        """Counts the batch at hand as trained, as the next one or a pause does."""
        self._end_training()
        with self._changed:
            self._finish_training()

    def _is_idle(self) -> bool:
        if self._num_pauses and self._conductor.is_next(self._rank, "pause"):
            self._conductor.advance()
        return super()._is_idle()


def _name(stage: Stage) -> str:
    return NAMES.get(stage.name, stage.name)


class GatedMerging:
    """Merging of a file store, whose every step waits for its turn: rows of the new base in any order,
    which mean nothing until its name is in store.json; then that, and the change-over of reads."""

    def __init__(self, store: FileStore, conductor: Conductor, rank: int) -> None:
        merger = store._merger
        merge, write_all, switch = merger._merge, merger._write_all, merger._switch

        def merge_in_turn(due: Any) -> bool:
            conductor.wait(rank, "merge-row", "merged")
            due = store._next_to_merge(False)  # of now: further logs may have been closed
            assert due is not None
            return merge(due)

        def write_in_turn(due: Any, writer: Any) -> None:
            write_all(due, writer)
            while conductor.wait(rank, "merge-row", "merged").kind == "merge-row":
                conductor.advance()

        def switch_in_turn(*merged: Any) -> None:
            switch(*merged)
            conductor.advance()

        merger._merge, merger._write_all = merge_in_turn, write_in_turn  # type: ignore[method-assign]
        merger._switch = switch_in_turn
        merger._next_due = lambda full: store._next_to_merge(False)  # however short the logs are
