"""Measurements: what they fit, and that they say something of this machine."""

import pytest
import torch

from hotrows.engine.distributed.comm import Arrived
from hotrows.train.costs import measure_machine
from hotrows.train.costs.step_cost import Link
from tests.support import pretend


class Slow:
    """Two ranks of which this is one, on links of these rates, by a clock of its own."""

    rank, num_ranks = 0, 2

    def __init__(self, latency, bandwidth):
        self.latency, self.bandwidth = latency, bandwidth
        self.now = 0.0

    def perf_counter(self):
        return self.now

    def _wait(self, num_bytes):
        self.now += self.latency + num_bytes / self.bandwidth

    def all_to_all(self, tensor, sent, received):
        self._wait(4 * sent[1])
        return Arrived(tensor)

    def all_reduce(self, tensor):
        if tensor.dtype == torch.float32:  # the times themselves are summed at once
            self._wait(4 * tensor.numel())
        return Arrived(tensor)

    def barrier(self):
        pass


def test_a_line_is_fitted_to_seconds():
    points = [(size, 7 * 1e-4 + size / 2e9) for size in (1e3, 1e5, 1e7)]
    link = measure_machine.fit(points, messages=7)
    assert link.latency == pytest.approx(1e-4) and link.bandwidth == pytest.approx(2e9)


def test_small_and_large_messages_count_alike():
    points = [(1e3, 1e-4), (1e3, 1.1e-4), (1e8, 0.1)]
    assert measure_machine.fit(points, 1).latency == pytest.approx(1.05e-4, rel=0.06)


def test_links_are_what_ranks_are_joined_by(monkeypatch):
    ranks = Slow(latency=2e-3, bandwidth=1e9)
    monkeypatch.setattr(measure_machine, "time", ranks)
    link, reducing = measure_machine.links(ranks)
    assert link == Link(pytest.approx(2e-3), pytest.approx(1e9))
    assert reducing == Link(pytest.approx(1e-3), pytest.approx(1e9))  # of each of its two messages


def test_rates_are_positive_and_plausible(monkeypatch):
    monkeypatch.setattr(measure_machine, "_WINDOW", 0.01)
    monkeypatch.setattr(measure_machine, "_COPIED", 1 << 22)
    monkeypatch.setattr(measure_machine, "_TABLE", 1 << 22)
    machine = measure_machine.measure_machine()
    assert machine.inner is machine.outer is machine.reducing is None
    assert 1e8 < machine.flops < 1e15 and 1e8 < machine.memory_bandwidth < 1e13
    assert 0 <= machine.row_seconds < 1e-5 and machine.row_bandwidth > 1e7
    assert 1e5 < machine.planning_rate < 1e11 and machine.memory > 1e8


def test_the_rates_of_a_device():
    with pretend.gpu() as device:
        rates = measure_machine.device_rates(device, size=1 << 20)
    assert len(rates) == 4 and min(rates.values()) > 0
