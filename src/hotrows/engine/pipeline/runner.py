"""Runners: take batches through the stages and hand each to the caller to train.

`Serial` runs every stage of a batch before the next batch begins: the specification. `Overlapped`
gives each lane a thread of its own and lets the schedule decide. Both yield the same works, ready to
be trained, in one order; a work counts as trained when the next one is requested.

    runner = Overlapped(stages, run_ahead=2)
    for work in runner: train(work)         # close it early through contextlib.closing
    with runner.paused(): ...               # nothing moves meanwhile: evaluate, flush, save
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from hotrows.engine.pipeline.schedule import Stage, Work, may_run
from hotrows.engine.pipeline.trace import Event
from hotrows.runtime.background import PATIENCE, Worker

TRAIN = "train"
_KEPT_EVENTS = 20_000
_PATIENCE = 2.0  # seconds for a thread that waits for ranks which will not come


class NoMore(Exception):
    """Raised by the first stage: there is no further batch."""


class _Runner:
    """Stages, counters and events of a runner.

    stages: in order; one of them is `train`. first: the number of the first batch.
    stalled: seconds in which the caller waited, by the stage that it waited for.
    busy: seconds in which each stage was at work; on a device, in which its work was launched.
    """

    def __init__(self, stages: Sequence[Stage], first: int = 0, trace: bool = False) -> None:
        self.stages = tuple(stages)
        self.train = [stage.name for stage in stages].index(TRAIN)
        self.stalled: defaultdict[str, float] = defaultdict(float)
        self.busy = dict.fromkeys((stage.name for stage in stages), 0.0)
        self.events: deque[Event] = deque(maxlen=_KEPT_EVENTS if trace else 0)
        self._done = [first] * len(stages)
        self._trained_since = 0.0

    @property
    def num_trained(self) -> int:
        """The number of the next batch to train."""
        return self._done[self.train]

    def __iter__(self) -> Iterator[Work]:
        return self

    def __next__(self) -> Work:
        raise NotImplementedError

    def _run(self, s: int, work: Work) -> None:
        stage, begin = self.stages[s], time.perf_counter()
        assert stage.run is not None
        stage.run(work)
        self._note(s, work.number, begin)

    def _hand_out(self, work: Work) -> Work:
        if begin := self.stages[self.train].begin:
            begin(work)
        self._trained_since = time.perf_counter()
        return work

    def _take_back(self, work: Work) -> None:
        if end := self.stages[self.train].end:
            end(work)
        self._note(self.train, work.number, self._trained_since)

    def _note(self, s: int, batch: int, begin: float) -> None:
        stage, end = self.stages[s], time.perf_counter()
        self.busy[stage.name] += end - begin
        self.events.append(Event(stage.name, stage.lane, batch, begin, end))


class Serial(_Runner):
    """One batch after the other, on the caller's thread."""

    _work: Work | None = None
    _handed: Work | None = None  # the work handed out, until it is trained

    def __next__(self) -> Work:
        self._finish_training()
        if self._work is not None:
            self._through(self._work, self.train + 1, len(self.stages))
        work = Work(self._done[0])
        self._work = None
        try:
            self._through(work, 0, self.train)
        except NoMore:
            raise StopIteration from None
        self._work = self._handed = work
        return self._hand_out(work)

    def _finish_training(self) -> None:
        work, self._handed = self._handed, None
        if work is not None:
            self._take_back(work)

    def _through(self, work: Work, begin: int, end: int) -> None:
        for s in range(begin, end):
            before = time.perf_counter()
            self._run(s, work)
            self.stalled[self.stages[s].name] += time.perf_counter() - before
            self._done[s] += 1

    @contextmanager
    def paused(self, trained: bool = True) -> Iterator[None]:
        if trained:
            self._finish_training()
        yield

    def close(self) -> None:
        self._finish_training()

    def wake(self) -> None:
        pass

    def abandon(self) -> None:
        pass


class Overlapped(_Runner):
    """A thread per lane; the caller is the lane of `train`.

    run_ahead: number of batches that may be planned beyond those that have entered.
    lockstep: beyond those that are trained instead, and all of them are planned before this pauses: the
        first stage runs for equal batches on every rank, and ranks wait for one another in it.
    """

    def __init__(
        self, stages: Sequence[Stage], first: int = 0, trace: bool = False, run_ahead: int = 2,
        lockstep: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(stages, first, trace)
        self._run_ahead, self._lockstep = run_ahead, lockstep
        self._works: dict[int, Work] = {}
        self._end: int | None = None  # the number of batches, once it is known
        self._error: BaseException | None = None
        self._closed = False
        self._num_pauses = 0  # that have begun, and not ended
        self._running = 0
        self._handed: int | None = None
        self._ended = False  # what was handed out has been taken back
        self._changed = threading.Condition()
        enters = next((s for s, stage in enumerate(stages) if stage.enters), self.train)
        self._paces = self.train if lockstep else enters  # the stage that planning keeps ahead of
        lanes = dict.fromkeys(stage.lane for stage in stages if stage.name != TRAIN)
        patience = _PATIENCE if lockstep else PATIENCE
        self._workers: list[Worker[None]] = []
        try:
            for lane in lanes:
                run = partial(self._lane, lane)
                self._workers.append(Worker(f"hotrows-{lane}", run, self.abandon, patience))
        except BaseException:  # the system may start no more threads
            self.abandon()
            self._end_threads()
            raise

    def __next__(self) -> Work:
        self._end_training()
        with self._changed:
            self._finish_training()
            number = self._done[self.train]
            while self._error is not None or self._done[self.train - 1] <= number:
                if self._error is not None:
                    raise self._error
                if self._end is not None and number >= self._end and self._drained():
                    raise StopIteration
                stages = zip(self.stages, self._done, strict=True)
                missing = next((stage for stage, n in stages if n <= number), self.stages[-1])
                before = time.perf_counter()
                self._changed.wait()
                self.stalled[missing.name] += time.perf_counter() - before
            self._handed, work = number, self._works[number]
        return self._hand_out(work)  # may wait for a device, while the lanes run

    @contextmanager
    def paused(self, trained: bool = True) -> Iterator[None]:
        """Pauses the stages; trained: the work handed out last counts as trained, otherwise its
        training continues afterwards. May be nested, and of several threads. Once the runner is closed,
        nothing is left to pause."""
        if not self._workers:
            yield
            return
        if trained:
            self._end_training()
        with self._changed:
            if trained:
                self._finish_training()
            self._num_pauses += 1
            self._changed.notify_all()
        try:
            with self._changed:
                self._changed.wait_for(self._is_idle)
                if self._error is not None:
                    raise self._error
            yield
        finally:
            with self._changed:
                self._num_pauses -= 1
                self._changed.notify_all()

    def close(self) -> None:
        """Ends the threads; batches that are not trained are dropped where they are."""
        try:
            self._end_training()
        except BaseException:
            self.abandon()
            raise
        finally:
            self._end_threads()

    def _end_threads(self) -> None:
        with self._changed:
            self._finish_training()
            if self._lockstep and not self._closed:
                self._num_pauses += 1
                self._changed.wait_for(self._is_idle)
            self._closed = True
            self._changed.notify_all()
        for worker in self._workers:
            worker.wait(_PATIENCE if self._lockstep and self._error else None)
        self._workers.clear()

    def wake(self) -> None:
        """Looks again whether the first stage has input."""
        with self._changed:
            self._changed.notify_all()

    def abandon(self) -> None:
        """Ends without waiting for other ranks; called before `close`, after an error."""
        with self._changed:
            self._error = self._error or RuntimeError("abandoned")
            self._closed = True
            self._changed.notify_all()

    def _is_idle(self) -> bool:
        """True if nothing runs, and in lockstep all that may be planned is planned."""
        is_busy = self._running or (self._lockstep and self._may_plan())
        return self._error is not None or not is_busy

    def _may_plan(self) -> bool:
        has_room = self._done[0] < self._done[self._paces] + self._run_ahead
        has_input = self.stages[0].has_input
        return self._end is None and has_room and (has_input is None or has_input())

    def _drained(self) -> bool:
        return self._done[-1] == self._end

    def _end_training(self) -> None:
        """Ends training outside of the lock: it may wait for a device, which lanes need not do."""
        if self._handed is None or self._ended:
            return
        self._ended = True
        try:
            self._take_back(self._works[self._handed])
        except BaseException as error:
            with self._changed:
                self._error = error  # the threads end with it
                self._changed.notify_all()
            raise

    def _finish_training(self) -> None:
        if self._handed is not None:
            self._done[self.train] += 1
            if self.train == len(self.stages) - 1:
                del self._works[self._handed]
            self._handed, self._ended = None, False
            self._changed.notify_all()

    def _lane(self, lane: str) -> None:
        stages = [s for s, stage in enumerate(self.stages) if stage.lane == lane]
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._over() or self._next_of(stages) is not None)
                if self._over():
                    return
                s = self._next_of(stages)
                assert s is not None
                work = self._works.setdefault(self._done[s], Work(self._done[s]))
                self._running += 1
            error: BaseException | None = None
            try:
                self._run(s, work)
            except BaseException as raised:
                error = raised
            with self._changed:
                self._running -= 1
                self._record(s, work, error)
                self._changed.notify_all()

    def _record(self, s: int, work: Work, error: BaseException | None) -> None:
        if isinstance(error, NoMore):
            self._end = work.number
            del self._works[work.number]
        elif error is not None:
            self._error = self._error or error
        else:
            self._done[s] += 1
            if s == len(self.stages) - 1:
                del self._works[work.number]

    def _over(self) -> bool:
        return self._closed or self._error is not None or (self._end is not None and self._drained())

    def _next_of(self, stages: Sequence[int]) -> int | None:
        """The stage that may run now, of those of one lane; the one nearest to the end first."""
        for s in reversed(stages):
            if self._num_pauses and not (self._lockstep and s == 0):
                continue
            if s == 0 and not self._may_plan():
                continue
            batch = self._done[s]
            work = self._works.get(batch, Work(batch) if s == 0 else None)
            if work is not None and may_run(self.stages, s, batch, work.waits_for, self._done):
                return s
        return None
