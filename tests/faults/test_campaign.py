"""A short part of the campaign, of fixed seeds; and what it calls a failure."""

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tests.faults import commands
from tests.faults.campaign import Counts, record
from tests.faults.commands import Ended, Failed
from tests.faults.kinds import KINDS
from tests.faults.kinds.publishing import Process
from tests.faults.trials import same

ROOT = Path(__file__).parents[2]
# Each takes many seconds; `test_faults.py`, `test_torchrun.py` and tests of `serving` have some of them.
OF_JOBS = ("stages of ranks", "torchrun", "network", "publishing", "live")
OTHERS = [kind for kind in KINDS if kind not in OF_JOBS]
# One of each sort: processes that are killed and interrupted, a limit, two at once, damage, a crash.
FEW = [
    *("kill", "kill ranks", "interrupt", "short files", "two at once"),
    *("damaged run", "damaged store", "store"),
]


def campaign(*options):
    command = [sys.executable, "-m", "tests.faults", *options]
    environment = {**os.environ, "OMP_WAIT_POLICY": "passive"}
    ended = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=ROOT, env=environment
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout.strip()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="stops and kills processes of Linux")
@pytest.mark.parametrize(
    ("trials", "kinds"), [("1", FEW), pytest.param("60", OTHERS, marks=pytest.mark.slow)], ids=["1", "60"]
)
def test_no_fault_loses_a_result_or_changes_it_without_a_word(trials, kinds, record_property):
    record_property("fault campaign", campaign("--trials", trials, "--kinds", ",".join(kinds)))


@pytest.mark.slow
def test_no_fault_of_several_processes_does(record_property):
    said = campaign("--trials", "3", "--kinds", ",".join(OF_JOBS))
    record_property("fault campaign, several processes", said)


@pytest.mark.parametrize(
    "code, said",
    [
        (1, "Traceback (most recent call last):\n  ..\nhotrows: so"),
        (-11, ""),
        (1, ""),
        (1, "hotrows: the first line\nand another"),
        (3, "hotrows: stopped"),
    ],
)
def test_what_is_no_refusal_in_one_line_is_a_failure(code, said):
    with pytest.raises(Failed) as failed:
        _ = Ended(("train",), code, "", said).is_done
    assert failed.value.outcome == "traceback"


def test_a_pause_of_the_whole_campaign_is_no_hang(monkeypatch):
    now = 0.0
    monkeypatch.setattr(commands.time, "monotonic", lambda: now)
    patience, looks = commands.Patience(120), 0
    now = 600.0  # it was stopped, with all that it had started
    assert not patience.is_over
    while not patience.is_over:
        now, looks = now + 0.5, looks + 1
    assert looks == 239
    patience.renew()
    assert not patience.is_over


def hangs():
    os.write(1, b"waits\n")
    threading.Event().wait()


@pytest.mark.filterwarnings("ignore:.*fork")  # of a process with threads, which the child leaves alone
def test_a_process_that_hangs_says_where(tmp_path, monkeypatch):
    monkeypatch.setattr(commands, "_fork", os.fork)
    process, until = Process(tmp_path / "said", hangs), time.monotonic() + 60
    try:
        while not (tmp_path / "said").exists() or "waits" not in process.text:
            assert time.monotonic() < until
        assert "in hangs" in process.stacks
    finally:
        process.kill()


def test_a_result_that_differs_says_in_what():
    with pytest.raises(Failed, match="/files/a: expected 1, got 2$") as failed:
        same({"files": {"a": 2, "b": 3}, "log": [1]}, {"files": {"a": 1, "b": 3}, "log": [1]})
    assert failed.value.outcome == "different"
    same({"a": [1]}, {"a": [1]})


def test_a_record_keeps_every_campaign_and_sums_them_up(tmp_path):
    file = tmp_path / "faults.json"
    record(file, {"kill": Counts(2, 3, equal=2), "pause": Counts()}, seed=0)
    record(file, {"kill": Counts(1, 1, refused=1), "store": Counts(4, 4, equal=4)}, seed=2)
    recorded = json.loads(file.read_text())
    begun = [(campaign["seed"], list(campaign["kinds"])) for campaign in recorded["campaigns"]]
    assert begun == [(0, ["kill"]), (2, ["kill", "store"])]
    assert recorded["kinds"]["kill"] == vars(Counts(3, 4, equal=2, refused=1))
    assert recorded["kinds"]["store"]["trials"] == 4
    assert recorded["kinds"]["pause"] == vars(Counts())
