"""The timeline keeps what was at work during the slowest step, however long a run goes on after it."""

import json

from hotrows.engine.pipeline.trace import Event
from hotrows.train.run import trace as run_trace
from hotrows.train.run.trace import SLOWEST, RunTrace
from hotrows.train.telling.progress import Interval, SlowestStep


def test_the_slowest_step_and_what_was_at_work_meanwhile_stay(tmp_path, monkeypatch):
    clock = 0.0
    monkeypatch.setattr(run_trace.time, "perf_counter", lambda: clock)
    monkeypatch.setattr(run_trace.pictures, "draw_timeline", lambda events, path: None)
    monkeypatch.setattr(run_trace, "_FIRST", 2)
    trace, stages = RunTrace(tmp_path / "trace.json"), []
    trace.events = run_trace.deque(maxlen=10)
    for step in range(100):
        begin = clock
        trace.batch = step
        clock += {0: 9.0, 50: 5.0}.get(step, 1.0)  # the first steps do not count
        if step == 51:  # what was at work is noted when it ends, after the step
            stages.append(Event("collect", "move", 53, begin - 4.0, begin + 0.5))
        trace.note("train", "train", begin, clock)
        trace.end_step(begin, stages)
        stages = []
    trace.write()
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    names = [event["name"] for event in events if event["ph"] == "X"]
    assert {f"{SLOWEST} 50", "train 50", "collect 53", "train 99"} <= set(names)
    assert "train 20" not in names and len(names) < 20
    (slowest,) = (event for event in events if event["name"] == f"{SLOWEST} 50")
    assert slowest["dur"] == 5e6


def test_a_run_without_a_timeline_keeps_nothing():
    trace = RunTrace(None)
    trace.end_step(0.0, [Event("plan", "plan", 1, 0.0, 1.0)])
    assert not trace.events


def test_an_interval_says_which_step_was_the_slowest():
    interval = Interval()
    for step, seconds in enumerate((0.2, 0.9, 0.3)):
        interval.add_slowest(SlowestStep(step, seconds, seconds / 2, "collect"))
    assert interval.slowest.to_json() == {
        "slowest_step": 1,
        "slowest_seconds": 0.9,
        "slowest_stalled": 0.45,
        "slowest_waited_for": "collect",
    }
