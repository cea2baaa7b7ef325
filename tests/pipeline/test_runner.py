"""Runners hand out every batch once, in order, and end, pause and fail in an orderly way."""

import dataclasses
import json
import random
import threading
import time
from contextlib import closing

import pytest

from hotrows.engine.pipeline.runner import NoMore, Overlapped, Serial
from hotrows.engine.pipeline.schedule import Stage
from hotrows.engine.pipeline.trace import trace_text


class Log:
    """Stages that note what they do, in_flight of them at most, each after a random while."""

    def __init__(self, batches, in_flight=3, fails=None, slow=0.0):
        self.ran, self.fails, self.slow = [], fails, slow
        self.lock, self.random = threading.Lock(), random.Random(batches)
        self.batches, self.in_flight = batches, in_flight
        lanes = {"plan": "plan", "collect": "move", "insert": "move", "write": "write"}
        names = ["plan", "collect", "insert", "train", "write"]
        self.stages = [
            Stage(name, lanes.get(name, name), name == "collect", self._run(name)) for name in names
        ]

    def _run(self, name):
        def run(work):
            if name == "plan":
                if work.number == self.batches:
                    raise NoMore
                work.waits_for = work.number - self.in_flight
            if (name, work.number) == self.fails:
                raise ValueError(f"{name} of batch {work.number} is bad")
            time.sleep(self.random.random() * self.slow)
            self.note(name, work.number)

        return None if name == "train" else run

    def note(self, name, batch):
        with self.lock:
            self.ran.append((name, batch))

    def train(self, runner):
        for work in runner:
            self.note("train", work.number)


BEFORE: set[threading.Thread] = set()  # what tests of other modules have left to the garbage collector


@pytest.fixture(autouse=True)
def threads_before():
    BEFORE.clear()
    BEFORE.update(threading.enumerate())


def no_threads():
    threads = set(threading.enumerate()) - BEFORE
    return not [t for t in threads if t.name.startswith("hotrows-")]


@pytest.mark.parametrize("kind", [0, 1])
@pytest.mark.parametrize("batches", [0, 1, 2, 7])
@pytest.mark.parametrize("in_flight", [1, 2, 4])
def test_every_stage_of_every_batch_runs_in_a_legal_order(kind, batches, in_flight):
    log = Log(batches, in_flight, slow=0.002)
    with closing([Serial, Overlapped][kind](log.stages)) as runner:
        log.train(runner)
    at = {work: number for number, work in enumerate(log.ran)}
    names = [stage.name for stage in log.stages]
    assert len(at) == len(log.ran) == batches * len(names)
    for batch in range(batches):
        assert [at[name, batch] for name in names] == sorted(at[name, batch] for name in names)
        for name in names:
            assert batch == 0 or at[name, batch - 1] < at[name, batch]
        if batch >= in_flight:
            assert at["write", batch - in_flight] < at["collect", batch]
    assert no_threads()


def test_stages_run_beside_training():
    log = Log(8, in_flight=4)
    with closing(Overlapped(log.stages)) as runner:
        for work in runner:
            time.sleep(0.02)
            if work.number == 4:
                assert ("insert", 5) in log.ran and ("write", 3) in log.ran


@pytest.mark.parametrize("kind", [Serial, Overlapped])
@pytest.mark.parametrize("stage", ["plan", "collect", "insert", "write"])
def test_an_error_of_any_stage_reaches_the_caller(kind, stage):
    log = Log(9, fails=(stage, 2))
    with (
        pytest.raises(ValueError, match=f"{stage} of batch 2 is bad"),
        closing(kind(log.stages)) as runner,
    ):
        log.train(runner)
    assert no_threads()


def test_nothing_moves_while_paused():
    log = Log(30, slow=0.003)
    with closing(Overlapped(log.stages)) as runner:
        for work in runner:
            log.note("train", work.number)
            if work.number % 5 == 0:
                with runner.paused():
                    before = list(log.ran)
                    time.sleep(0.01)
                    assert log.ran == before
    assert len(log.ran) == 30 * 5


def test_pauses_of_two_threads_end_with_the_later_one():
    log, begun, may_end = Log(30, slow=0.003), threading.Event(), threading.Event()

    def pause():
        with runner.paused(trained=False):
            begun.set()
            may_end.wait(5)

    with closing(Overlapped(log.stages)) as runner:
        next(runner)
        thread = threading.Thread(target=pause)
        with runner.paused():
            thread.start()
            begun.wait()
        before = list(log.ran)
        time.sleep(0.02)
        assert log.ran == before
        may_end.set()
        thread.join()
        log.train(runner)


@pytest.mark.parametrize("kind", [Serial, Overlapped])
def test_leaving_early_ends_the_threads(kind):
    log = Log(1000)
    with closing(kind(log.stages)) as runner:
        for work in runner:
            if work.number == 3:
                break
    assert no_threads()


def test_numbers_go_on_where_an_earlier_runner_ended():
    log = Log(10)
    with closing(Overlapped(log.stages, first=6)) as runner:
        assert [work.number for work in runner] == [6, 7, 8, 9]


def test_the_caller_knows_what_it_waited_for():
    log = Log(5, slow=0.0)
    log.stages[1] = Stage("collect", "move", True, lambda work: time.sleep(0.02))
    with closing(Overlapped(log.stages)) as runner:
        log.train(runner)
    assert max(runner.stalled, key=runner.stalled.get) == "collect"
    assert runner.stalled["collect"] > 0.05


@pytest.mark.parametrize("kind", [Serial, Overlapped])
def test_a_trace_has_every_stage_of_every_batch(kind, tmp_path):
    log = Log(3)
    with closing(kind(log.stages, trace=True)) as runner:
        log.train(runner)
    (tmp_path / "trace.json").write_text(trace_text(runner.events))
    trace = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    spans = {event["name"] for event in trace if event["ph"] == "X"}
    assert spans == {f"{stage.name} {batch}" for stage in log.stages for batch in range(3)}
    lanes = {e["args"]["name"] for e in trace if e["ph"] == "M"}
    assert lanes == {"plan", "move", "train", "write"}
    assert all(event["dur"] >= 0 and event["ts"] >= 0 for event in trace if event["ph"] == "X")


def test_a_pause_may_leave_the_work_at_hand_in_training():
    log = Log(6, in_flight=2, slow=0.001)
    with closing(Overlapped(log.stages)) as runner:
        for work in runner:
            with runner.paused(trained=False), runner.paused(trained=False):
                before = list(log.ran)
                time.sleep(0.01)
                assert log.ran == before and ("write", work.number) not in before
            log.note("train", work.number)
    assert [batch for name, batch in log.ran if name == "write"] == list(range(6))
    assert no_threads()


def test_lanes_go_on_while_training_waits_to_begin():
    """As it does where the device is not yet through with the step before."""
    waits, moved = threading.Event(), threading.Event()

    def plan(work):
        if work.number == 1:
            assert waits.wait(5)

    def move(work):
        if work.number == 1:
            moved.set()

    def begin(work):
        waits.set()
        assert moved.wait(5), "nothing moved meanwhile"

    stages = [Stage("plan", "plan", run=plan), Stage("move", "move", run=move)]
    with closing(Overlapped([*stages, Stage("train", "train", begin=begin)])) as runner:
        assert next(runner).number == 0


def test_threads_end_where_training_cannot():
    """A device that has failed says so at the next call, which may be that of the end."""
    plain = Stage("plan", "plan", run=lambda work: None)
    runner = Overlapped([plain, Stage("train", "train", end=lambda work: 1 / 0)])
    next(runner)
    with pytest.raises(ZeroDivisionError):
        runner.close()
    assert no_threads()


def test_no_thread_waits_for_a_batch_that_has_not_come():
    """Of a stream: the stages pause, and end, while the next batch is still to come."""
    log, arrived = Log(2), []
    first = dataclasses.replace(log.stages[0], has_input=lambda: bool(arrived))
    with closing(Overlapped([first, *log.stages[1:]])) as runner:
        with runner.paused():
            assert log.ran == []
        arrived.append(0)
        runner.wake()
        assert next(runner).number == 0
        arrived.clear()
        with runner.paused():
            pass
    assert no_threads()


def test_lanes_that_have_started_end_where_another_cannot(monkeypatch):
    """They went on with stores that their owner closed."""
    start, left = threading.Thread.start, [1]

    def start_one(thread):
        if not left:
            raise RuntimeError("can't start new thread")
        left.pop()
        return start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_one)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        Overlapped(Log(5).stages)
    assert no_threads()
