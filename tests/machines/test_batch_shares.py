"""Unequal machines: shares of a batch by speed, which a resumed run has again."""

import dataclasses
import json
import threading

import pytest

from hotrows.engine.checkpoint import fetch
from hotrows.engine.distributed import in_process
from hotrows.train import Trainer
from hotrows.train.loop import batch_shares, step
from tests.machines.runs import CONFIG, content, fit

pytestmark = pytest.mark.usefixtures("one_thread", "no_pictures")


@pytest.fixture
def paces(monkeypatch):
    """Ranks are measured in four steps, and always found 1 : 2 : 4 as fast. What was measured."""
    measured = []
    monkeypatch.setattr(batch_shares, "_STEPS", 4)
    monkeypatch.setattr(
        batch_shares, "by_speed", lambda of_ranks: measured.append(of_ranks) or (1, 2, 4)[: len(of_ranks)]
    )
    return measured


def placing(run):
    return {
        num_ranks: (of["shares"], of["shares_from"])
        for num_ranks, of in json.loads((run / "placing.json").read_text()).items()
        if num_ranks.isdecimal()
    }


@pytest.mark.parametrize("kills", [(2,), (5,), (7, 10)], ids=str)
@pytest.mark.parametrize("changes", [{}, {"fast_memory": 1600, "in_flight": 2}], ids=["memory", "cache"])
def test_a_resumed_run_has_the_bits_of_one_that_never_stopped(data, tmp_path, paces, kills, changes):
    """Killed before shares are fixed; after, with a checkpoint from before; and twice."""
    how = {"shares": "auto", "checkpoint_every": 3, **changes}
    fit(data, tmp_path / "a", 2, **how)
    for kill in (*kills, None):
        fit(data, tmp_path / "b", 2, kill=kill, **how)
    assert content(tmp_path / "a") == content(tmp_path / "b")
    assert placing(tmp_path / "b") == {"2": ([1, 2], 4)}
    assert len(paces) == 4 and all(min(of_ranks) > 0 for of_ranks in paces)


def test_a_resumed_run_at_a_url_goes_by_the_copy_of_the_first_rank(data, tmp_path, paces, monkeypatch):
    """A copy of another rank may be from before a file was sent."""

    def without(place, rank, scratch):
        run = fetch.opened(place, rank, scratch)
        for name in ("placing", "choices", "checkpoints") if rank else ():
            (run / f"{name}.json").unlink()
        return run

    how = {"shares": "auto", "checkpoint_every": 3}
    fit(data, tmp_path / "a", 2, **how)
    url = f"file://{tmp_path}/b"
    fit(data, url, 2, tmp_path / "disks", kill=7, **how)
    monkeypatch.setattr("hotrows.train.loop.trainer.run_copy", without)
    fit(data, url, 2, tmp_path / "disks", **how)
    assert content(tmp_path / "a") == content(tmp_path / "b") and len(paces) == 4


def test_other_ranks_and_other_machines_are_measured_again(data, tmp_path, paces, monkeypatch):
    run, how = tmp_path / "run", {"shares": "auto", "checkpoint_every": 3, "epochs": 3}
    fit(data, run, 2, kill=7, **how)
    fit(data, run, 3, kill=13, **how)
    assert placing(run) == {"2": ([1, 2], 4), "3": ([1, 2, 4], 10)}
    fit(data, run, 2, kill=20, **how)
    assert placing(run)["2"] == ([1, 2], 4) and len(paces) == 5
    monkeypatch.setattr(batch_shares, "processor", lambda: "another")
    fit(data, run, 2, **how)
    assert placing(run)["2"] == ([1, 2], 22) and len(paces) == 7


def test_shares_of_another_number_of_ranks_are_refused_once_and_told_later(data, tmp_path, caplog):
    with pytest.raises(ValueError, match="shares=1,2 are of 2 ranks, and there are 3: give one number"):
        fit(data, tmp_path / "none", 3, shares="1,2")
    fit(data, tmp_path / "run", 2, shares="1,2", kill=7)
    with caplog.at_level("INFO", "hotrows"):
        fit(data, tmp_path / "run", 3, shares="1,2")
    assert "shares=1,2 are of 2 ranks, and there are 3: shares are equal" in caplog.text


class Clock(threading.local):
    """The seconds of a rank: those of its samples, and those in which it waits for others."""

    now = 0.0

    def perf_counter(self):
        return self.now


def test_ranks_of_unequal_speed_have_shares_by_it(data, tmp_path, monkeypatch):
    """The first of two takes twice as long for a sample."""
    clock, swap, sizes = Clock(), in_process._Meeting.swap, {0: [], 1: []}

    def waiting(meeting, channel, rank, kind, value):
        swapped = swap(meeting, channel, rank, kind, (value, clock.now))
        clock.now = max(now for _, now in swapped)
        return [value for value, _ in swapped]

    def work(ranks):
        def compute(_, inputs):
            if trainer.model.training:
                sizes[ranks.rank].append(len(inputs[1]))
            clock.now += (0.004, 0.002)[ranks.rank] * len(inputs[1])

        config = dataclasses.replace(CONFIG, shares="auto", steps=6)
        trainer = Trainer(data, config, tmp_path / "run", ranks=ranks)
        trainer.model.register_forward_pre_hook(compute)
        trainer.fit()

    monkeypatch.setattr(batch_shares, "_STEPS", 4)
    monkeypatch.setattr(in_process._Meeting, "swap", waiting)
    for module in (step, in_process):
        monkeypatch.setattr(module, "time", clock)
    in_process.run(work, 2)
    assert placing(tmp_path / "run") == {"2": ([333, 667], 4)}
    assert sizes == {0: [64] * 4 + [42] * 2, 1: [64] * 4 + [86] * 2}
