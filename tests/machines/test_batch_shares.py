"""Unequal machines: shares of a batch by speed, which a resumed run has again."""

import dataclasses
import itertools
import json
import os
import socket
import time

import pytest

from hotrows.engine.checkpoint import fetch
from hotrows.engine.distributed import process_group
from hotrows.train import Callback, Trainer
from hotrows.train.loop import batch_shares
from tests.machines.runs import CONFIG, content, fit
from tests.support.forked import Forked

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


def works(say, rank, port, data, run):
    """One rank of two, the first of which takes twice as long for each of its samples."""
    job = {"RANK": rank, "WORLD_SIZE": 2, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": 2, "MASTER_PORT": port}
    os.environ.update({"MASTER_ADDR": "127.0.0.1", **{name: str(value) for name, value in job.items()}})
    batch_shares._STEPS, seconds = 6, (0.004, 0.002)[rank]  # so long that exchanges hardly count
    config = dataclasses.replace(CONFIG, shares="auto", steps=12, evaluate_every=100)
    trainer, ends = Trainer(data, config, run, ranks=process_group.start(60)), []
    trainer.model.register_forward_pre_hook(lambda _, inputs: time.sleep(seconds * len(inputs[1])))

    class Watch(Callback):
        def on_step_end(self, trainer, progress):
            ends.append(time.monotonic())

    trainer.fit(callbacks=[Watch()])
    steps = [end - begin for begin, end in itertools.pairwise(ends)]
    say(min(steps[:5]) / min(steps[6:]))


def test_ranks_of_unequal_speed_gain(data, tmp_path):
    """At 1 : 2 a step takes two thirds of the time, and what ranks exchange."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ranks = [Forked(works, k, port, data.path, tmp_path / "run", listens=True) for k in (0, 1)]
    ratios = [rank.hear() for rank in ranks]
    assert [rank.end(60) for rank in ranks] == [0, 0], [rank.error for rank in ranks]
    shares, _ = placing(tmp_path / "run")["2"]
    assert 0.28 < shares[0] / sum(shares) < 0.4, shares
    assert min(ratios) >= 1.4, ratios
