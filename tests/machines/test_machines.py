"""Machines that do not fit together end all ranks before the first step, with one sentence."""

import os
import shutil
import signal
import socket
import threading
import time
from collections import namedtuple

import pytest

from hotrows.engine.distributed import machines, process_group
from hotrows.engine.distributed.in_process import run as on_threads
from tests.support.forked import Forked

Usage = namedtuple("Usage", "total used free")


def named_by_rank(monkeypatch, **of_rank_1):
    """Each thread is a rank on its own machine; of_rank_1: what it has, in place of what rank 0 has."""
    of = threading.local()

    def fact(name, usual):
        return lambda *_: of_rank_1.get(name, usual) if getattr(of, "rank", 0) else usual

    monkeypatch.setattr("platform.node", lambda: "abc"[getattr(of, "rank", 0)] + "-machine")
    monkeypatch.setattr("time.time", fact("time", 1000.0))
    monkeypatch.setattr(
        machines, "torch", type("torch", (), {"__version__": _Version(fact("torch", "2.10"))})
    )
    monkeypatch.setattr(shutil, "disk_usage", fact("disk", Usage(9 << 30, 0, 9 << 30)))
    return of


class _Version:
    def __init__(self, fact):
        self._fact = fact

    def __str__(self):
        return self._fact()


@pytest.mark.parametrize(
    ("of_rank_1", "words"),
    [
        ({}, None),
        ({"time": 1059.0}, None),
        (
            {"torch": "2.11"},
            "rank 1 on b-machine has torch 2.11, and rank 0 on a-machine torch 2.10: install",
        ),
        (
            {"time": 4600.0},
            "the clock of rank 1 on b-machine is 3,600 s ahead of that of rank 0 on a-machine",
        ),
        ({"time": 900.0}, "the clock of rank 1 on b-machine is 100 s behind that of rank 0 on a-machine"),
    ],
)
def test_machines_that_do_not_fit_are_named(monkeypatch, of_rank_1, words):
    of, told = named_by_rank(monkeypatch, **of_rank_1), []

    def work(ranks):
        of.rank = ranks.rank
        try:
            machines.compare(ranks)
        except ValueError as error:
            told.append(str(error))

    on_threads(work, 2)
    assert all(text.startswith(words) for text in told) and len(told) == (2 if words else 0)


@pytest.mark.parametrize(
    ("is_apart", "free", "words"),
    [
        (True, 3 << 30, None),
        (True, 1 << 30, "run on b-machine has 1 GiB free: make room, or name another folder for copies"),
        (False, 3 << 30, None),
        (False, 9 << 30, "a checkpoint takes 10 GiB, and the disk of "),
    ],
)
def test_a_disk_without_room_is_named_before_the_first_step(monkeypatch, tmp_path, is_apart, free, words):
    """On disks of their own each has room for its ranks, on one that is shared there is room for all."""
    of, told = named_by_rank(monkeypatch, disk=Usage(free, 0, free)), []
    monkeypatch.setattr(machines, "origin_of", lambda run: "s3://bucket/run" if is_apart else None)
    num_bytes = (5 if free == 9 << 30 else 2) << 30
    (tmp_path / "run").mkdir()

    def work(ranks):
        of.rank = ranks.rank
        try:
            machines.check_room(ranks, tmp_path / "run", num_bytes)
        except ValueError as error:
            told.append(str(error))

    on_threads(work, 2)
    assert all(words in text for text in told) and len(told) == (2 if words else 0), told


def begins(say, rank, port, seconds):
    """One rank of two, which begins: it waits for the other in a collective, for long."""
    of_job = {"RANK": rank, "WORLD_SIZE": 2, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1}
    os.environ.update({name: str(value) for name, value in of_job.items()})
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    machines.SECONDS, machines._GRACE = seconds, 0.3
    ranks = process_group.start(300)
    with machines.watched(ranks):
        say("begun")
        if rank:
            time.sleep(300)
        ranks.barrier()


def test_a_machine_that_is_silent_during_the_start_is_not_waited_for():
    """As where the network is cut: the process is there, and nothing of it arrives."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ranks = [Forked(begins, rank, port, 2.0, listens=True) for rank in (0, 1)]
    assert [rank.hear() for rank in ranks] == ["begun", "begun"]
    begin = time.monotonic()
    os.kill(ranks[1].process.pid, signal.SIGSTOP)
    ranks[0].process.join(60)
    seconds = time.monotonic() - begin
    os.kill(ranks[1].process.pid, signal.SIGKILL)
    ranks[1].process.join()
    assert ranks[0].process.exitcode == 1 and seconds < 15, seconds
