"""Replays a walk through the model with the real planner, runner, stages, caches and stores.

Every lookup, every evaluation, every checkpoint and the end are compared, bit by bit, with serial
training on tables in memory.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hotrows import Adagrad, Batch, Embedding, Table
from hotrows.engine.caching import Caching
from hotrows.engine.distributed.comm import OneRank
from hotrows.engine.distributed.in_process import run as run_ranks
from hotrows.engine.pipeline.schedule import Stage, Work
from hotrows.engine.stages import training_stages
from tests.model_checker.cases import Case
from tests.model_checker.conductor import Conductor, Crash, GatedMerging, ReplayedRunner
from tests.model_checker.explorer import Walk

FEATURE, DIM = "item", 4


def replay(case: Case, walk: Walk, folder: Path, seed: int = 0) -> None:
    """Replays a walk; raises where any bit differs, or where code and model allow different orders."""
    conductor, saved = Conductor(walk, case.num_ranks), Saved(case.keep_last)
    serial = _on_ranks(case, lambda ranks: Serial(case, ranks))

    def train(ranks: Any) -> None:
        _Training(case, conductor, ranks, serial[ranks.rank], saved, folder, seed).run()

    while True:  # from crash to crash
        try:
            _on_ranks(case, train)
            break
        except Crash:
            conductor.crashed()
    assert conductor.next is None, f"the walk goes on with {conductor.next}"


def _on_ranks(case: Case, work: Callable[[Any], Any]) -> list[Any]:
    return [work(OneRank())] if case.num_ranks == 1 else run_ranks(work, case.num_ranks)


class Serial:
    """Training on tables in memory, step by step.

    leaves: by step, what was looked up; records: by number of steps, all rows of this rank.
    """

    def __init__(self, case: Case, ranks: Any) -> None:
        embedding = Embedding(_tables(case), seed=3, ranks=ranks)
        self.leaves: list[list[Tensor]] = []
        self.records = [_records(embedding)]
        for step in range(case.num_batches):
            plan = embedding.plan(batch_of(case, step), step)
            self.leaves.append(_train(embedding, plan))
            self.records.append(_records(embedding))


@dataclass(frozen=True)
class Checkpoint:
    """By rank, the generations of its file store, or its rows in memory."""

    step: int
    generations: dict[int, list[int]] = field(default_factory=dict)
    rows: dict[int, list[Tensor]] = field(default_factory=dict)


class Saved:
    """What is left of a run after a crash: the checkpoints that it points at (`checkpoint.pointer`).

    next: the one that ranks write at present.
    """

    def __init__(self, keep_last: int) -> None:
        self.checkpoints: list[Checkpoint] = []
        self._keep_last, self._best = keep_last, 0  # a step
        self._next = Checkpoint(0)

    def next(self, step: int) -> Checkpoint:
        if self._next.step != step:
            self._next = Checkpoint(step)
        return self._next

    def publish(self, is_best: bool) -> None:
        """Points at the next checkpoint too, at the last ones, and at the best."""
        earlier, first = self.checkpoints, len(self.checkpoints) - self._keep_last + 1
        if is_best or not earlier:
            self._best = self._next.step
        kept = [c for i, c in enumerate(earlier) if i >= first or c.step == self._best]
        self.checkpoints, self._next = [*kept, self._next], Checkpoint(0)

    def generations(self, rank: int) -> list[list[int]]:
        return [checkpoint.generations[rank] for checkpoint in self.checkpoints]


class _Training:
    """A training behind a cache on one rank up to a crash, whose every step is an event of the walk."""

    def __init__(
        self, case: Case, conductor: Conductor, ranks: Any, serial: Serial, saved: Saved, folder: Path,
        seed: int,
    ) -> None:  # fmt: skip
        self._case, self._conductor, self._ranks, self._folder = case, conductor, ranks, folder
        self._serial, self._saved, self._seed = serial, saved, seed

    def run(self) -> None:
        try:
            self._begin()
            self._train()
        except (Crash, threading.BrokenBarrierError):
            if self._ranks.num_ranks > 1:  # another one may wait for this rank
                self._ranks._meeting.break_up()
            raise
        except BaseException as error:
            self._conductor.fail(repr(error))
            raise
        finally:
            self._end()

    # ---- beginning and end

    def _begin(self) -> None:
        """Makes the tables; after a crash, goes back to the last checkpoint."""
        self._runner: ReplayedRunner | None = None
        self._embedding = Embedding(
            _tables(self._case), seed=3, ranks=self._ranks, caching=_caching(self._case, self._folder)
        )
        assert self._embedding.cached_tables
        self._cached_tables = self._embedding.cached_tables
        (self._group,) = self._cached_tables.groups
        assert self._group.cache.num_slots == min(self._case.num_slots, self._case.num_rows)
        if self._case.removes_planner_rule:
            self._group.slots = self._case.slot_map()
        for store in self._cached_tables.files:
            GatedMerging(store, self._conductor, self._rank)
        start = self._restart() if self._conductor.num_crashes else 0
        if self._case.warm:
            self._cached_tables.warm()
        self._start(start)

    def _start(self, start: int) -> None:
        self._conductor.first = start
        numbered = [(step, batch_of(self._case, step)) for step in range(start, self._case.num_batches)]
        stages = training_stages(self._embedding, numbered, [batch for _, batch in numbered])
        run_ahead = self._case.run_ahead + (self._case.in_flight if self._ranks.num_ranks > 1 else 0)
        self._plans = self._case.plans(self._rank, start)
        self._runner = ReplayedRunner(
            [self._checked(stage) for stage in stages], self._conductor, self._rank, len(numbered),
            self._seed, run_ahead=run_ahead, lockstep=self._ranks.num_ranks > 1,
        )  # fmt: skip

    @property
    def _rank(self) -> int:
        return self._ranks.rank

    def _restart(self) -> int:
        """Brings rows back to the last checkpoint, if any; returns its step."""
        last = self._saved.checkpoints[-1] if self._saved.checkpoints else Checkpoint(0)
        for store in self._cached_tables.files:
            self._go_back(store, last.generations[self._rank][0] if last.step else None)
        if self._case.in_file:
            self._retain()
        elif last.step:
            for store, records in zip(self._embedding.stores, last.rows[self._rank], strict=True):
                store.records.copy_(records)
        if self._rank == 0:
            self._conductor.do(0, "start")
        else:
            self._conductor.wait_for_start()
        return last.step

    def _retain(self) -> None:
        generations = self._saved.generations(self._rank)
        self._conductor.do(self._rank, "retain", lambda: self._cached_tables.retain(generations))

    def _go_back(self, store: Any, generation: int | None) -> None:
        """Restores a file store; a crash may come before and after store.json is written."""
        save = store._saved.save
        store._saved.save = lambda state: self._conductor.do(self._rank, "restore", lambda: save(state))
        try:
            store.restore(generation)
        finally:
            store._saved.save = save
        self._conductor.do(self._rank, "open-logs")
        self._cached_tables.forget_plans()

    def _end(self) -> None:
        """Ends all threads; nothing more is written."""
        if self._runner is not None:
            self._runner.abandon()
            with suppress(BaseException):
                self._runner.close()
        for store in self._cached_tables.files:
            store.close(merge=False)
        self._embedding.close()

    # ---- training

    def _train(self) -> None:
        runner, conductor = self._runner, self._conductor
        assert runner is not None
        for work in self._works():
            plan, step = work.item.plan, work.item.plan.step
            conductor.wait(self._rank, "train-begins")
            conductor.advance()
            vectors = self._embedding.lookup(plan)
            expected = self._serial.leaves[step]
            assert _same(vectors.leaves, expected), f"training on batch {step} reads other bits"
            if self._ranks.num_ranks > 1:
                if self._rank == 0:
                    conductor.wait(0, "exchange")
                    conductor.advance()
                _learn(self._embedding, plan, vectors)
                conductor.wait(self._rank, "train-ends")
            else:
                conductor.wait(self._rank, "train-ends")
                _learn(self._embedding, plan, vectors)
            runner.end_training()
            kind = dict(self._case.pauses).get(step + 1, 0)
            if kind:
                self._pause(runner, step + 1)
        self._check(self._group.cache.read(torch.arange(self._group.group.rows)), self._case.num_batches)
        conductor.wait_for_end()  # of merging in the background, and of other ranks

    def _works(self) -> Any:
        while True:
            try:
                work = next(self._runner)  # type: ignore[call-overload]
            except StopIteration:
                return
            except (AssertionError, RuntimeError):
                self._conductor.raise_if_over()
                raise
            yield work

    def _checked(self, stage: Stage) -> Stage:
        """The stage `plan`, whose moves are those of the model's plan."""
        if stage.name != "plan":
            return stage
        run = stage.run

        def checked(work: Work) -> None:
            run(work)
            expected, plan = self._plans[work.number], work.item.plan
            (moves,) = plan.moves
            assert plan.packs[0].rows.tolist() == list(expected.used)
            assert moves.rows_in.tolist() == list(expected.rows_in)
            rows_out = dict(zip(moves.rows_out.tolist(), moves.slots_out.tolist(), strict=True))
            assert rows_out == expected.rows_out
            waits_for = plan.waits_for + self._conductor.first if plan.waits_for >= 0 else -1
            assert (waits_for, moves.bypasses_cache) == (expected.waits_for, expected.bypasses)

        return Stage(stage.name, stage.lane, stage.enters, checked)

    # ---- pauses

    def _pause(self, runner: ReplayedRunner, step: int) -> None:
        conductor, kind = self._conductor, dict(self._case.pauses)[step]
        conductor.wait(self._rank, "pause")
        try:
            with runner.paused():
                if kind & 1:
                    conductor.do(self._rank, "evaluate", lambda: self._evaluate(step))
                if kind & 2:
                    self._save(step, bool(kind & 4))
                conductor.wait(self._rank, "resume")
        except RuntimeError:  # of a runner that was abandoned
            conductor.raise_if_over()
            raise
        conductor.advance()

    def _evaluate(self, step: int) -> None:
        self._check(self._group.cache.read(torch.arange(self._group.group.rows)), step)

    def _save(self, step: int, is_best: bool) -> None:
        conductor, rank = self._conductor, self._rank
        conductor.do(rank, "flush", lambda: self._flush(step))
        if self._case.in_file:
            conductor.do(rank, "close-log", lambda: self._close_log(step))
        if rank == 0:
            conductor.do(0, "publish", lambda: self._saved.publish(is_best))
        if self._case.in_file:
            conductor.wait(rank, "retain")  # which comes after it is published
            self._retain()

    def _flush(self, step: int) -> None:
        self._cached_tables.flush()
        rows = self._saved.next(step).rows[self._rank] = _records(self._embedding)
        if rows:
            self._check(torch.cat(rows, 1), step)

    def _close_log(self, step: int) -> None:
        (store,) = self._cached_tables.files
        self._saved.next(step).generations[self._rank] = [store.checkpoint()]

    def _check(self, records: Tensor, step: int) -> None:
        expected = torch.cat(self._serial.records[step], 1)
        rows = (records != expected).any(1).nonzero().flatten().tolist()
        assert not rows, f"after {step} batches, rows {rows} have other bits than in serial training"


def batch_of(case: Case, step: int) -> Batch:
    """A batch that reads these rows of every rank, each once by each rank: local row r of rank p is id
    P * r + p."""
    by_rank = [case.batches[rank][step] for rank in range(case.num_ranks)]
    ids = [len(by_rank) * row + rank for rank, rows in enumerate(by_rank) for row in rows]
    return Batch((FEATURE,), torch.tensor(ids, dtype=torch.int64), torch.zeros(len(ids), 2))


def _tables(case: Case) -> list[Table]:
    return [Table("t", case.num_ranks * case.num_rows, DIM, (FEATURE,), optimizer=Adagrad(lr=0.1))]


def _caching(case: Case, folder: Path) -> Caching:
    stride = Embedding(_tables(case)).groups[0].stride
    return Caching(
        case.num_slots * stride,
        f"file:{folder / 'store'}" if case.in_file else "memory",
        case.policy,
        case.in_flight,
        hot_ids={"t": torch.tensor(case.warm) * case.num_ranks} if case.warm else None,
    )


def _records(embedding: Embedding) -> list[Tensor]:
    return [store.records.clone() for store in embedding.stores]


def _train(embedding: Embedding, plan: Any) -> list[Tensor]:
    vectors = embedding.lookup(plan)
    leaves = [leaf.detach().clone() for leaf in vectors.leaves]
    _learn(embedding, plan, vectors)
    return leaves


def _learn(embedding: Embedding, plan: Any, vectors: Any) -> None:
    sum((k + 1) * leaf.sin().sum() for k, leaf in enumerate(vectors.leaves)).backward()
    embedding.update(plan, vectors)


def _same(actual: Sequence[Tensor], expected: Sequence[Tensor]) -> bool:
    return len(actual) == len(expected) and all(map(torch.equal, actual, expected))
