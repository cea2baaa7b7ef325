import time
from types import SimpleNamespace

import pytest

from hotrows.runtime import machine
from hotrows.runtime.utilization import Utilization


def spend(seconds: float) -> None:
    """Computes for so many seconds of a core's time."""
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


def test_what_this_process_used_is_its_share_of_the_cores(monkeypatch):
    clocks = {"perf_counter": iter([1.0, 3.0, 7.0]), "process_time": iter([0.5, 1.0, 3.0])}
    clock = SimpleNamespace(**{name: times.__next__ for name, times in clocks.items()})
    monkeypatch.setattr("hotrows.runtime.utilization.time", clock)
    monkeypatch.setattr("hotrows.runtime.utilization.num_cores", lambda: 2)
    used = Utilization()
    used.begin()  # anew: what was used before is left out
    assert used.end()["cores_busy"] == 0.25  # 2 s of 4 s on 2 cores


def test_times_of_the_machine_only_grow(monkeypatch):
    before = machine.machine_times()
    spend(0.03)
    after = machine.machine_times()
    assert after[0] >= before[0] and after[1] >= before[1] and after > before
    used, texts = (
        Utilization(),
        ["cpu  10 0 10 60 20 0 0 0 5 5\ncpu0 1", "cpu  30 0 10 100 40 0 20 0 9 9\n", ""],
    )
    monkeypatch.setattr(machine, "_text_of", lambda path: texts.pop(0))
    used.begin()
    assert used.end()["machine_busy"] == pytest.approx(40 / 100)


def test_where_the_system_says_nothing_there_are_fewer_figures(monkeypatch):
    monkeypatch.setattr(machine, "_text_of", lambda path: "")
    assert list(Utilization().end()) == ["cores_busy"]


def test_peak_memory_is_what_the_system_says(monkeypatch):
    assert machine.peak_memory() > 1 << 20
    monkeypatch.setattr(machine, "_text_of", lambda path: "VmPeak:\t 9 kB\nVmHWM:\t   2048 kB\n")
    assert machine.peak_memory() == 2 << 20
