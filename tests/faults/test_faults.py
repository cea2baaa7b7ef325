"""Whatever happens to a rank: none hangs, the checkpoint is whole, and going on gives the same bits.

And of processes that nobody watches over: a second one on a run, a restart before it began, Ctrl-C while
another rank hangs.
"""

import os
import re
import signal
import time
from contextlib import contextmanager

import pytest

from tests.faults import cases, jobs
from tests.faults.inject import Fault

SLOW = pytest.mark.slow


def slow(*faults):
    return [pytest.param(fault, marks=SLOW) for fault in faults]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return cases.tiny_data(tmp_path_factory.mktemp("data"))


@pytest.mark.parametrize(
    "fault",
    [
        Fault("kill", "pointed", 0, 3),
        *slow(
            Fault("kill", "planning", 1, 8),
            Fault("kill", "backward", 0, 8),
            Fault("kill", "forward", 1, 1),
            Fault("kill", "rows on their way", 0, 8),
            Fault("kill", "forward", 1, 8),
            Fault("kill", "update", 1, 8),
            Fault("kill", "evaluation", 1, 3),
            Fault("kill", "snapshot", 1, 3),
            Fault("kill", "half written", 1, 5),
            Fault("kill", "written", 0, 3),
            Fault("kill", "published", 0, 3),
        ),
    ],
    ids=str,
)
def test_a_rank_is_killed(data, tmp_path, fault):
    cases.a_rank_is_killed(data, tmp_path / "run", 2, fault)


@SLOW
@pytest.mark.parametrize(
    "fault",
    [Fault("kill", "planning", 2, 8), Fault("kill", "backward", 0, 8), Fault("kill", "writing", 3, 3)],
    ids=str,
)
def test_one_of_four_ranks_is_killed(data, tmp_path, fault):
    cases.a_rank_is_killed(data, tmp_path / "run", 4, fault)


@SLOW
@pytest.mark.parametrize("stage", ["planned", "forward"])
def test_a_rank_raises(data, tmp_path, stage):
    cases.a_rank_raises(data, tmp_path / "run", 2, Fault("raise", stage, 1, 8))


@SLOW
@pytest.mark.parametrize("stage", ["update", "writing"])
def test_a_rank_hangs(data, tmp_path, stage):
    cases.a_rank_hangs(data, tmp_path / "run", 2, Fault("stop", stage, 1, 3))


@SLOW
def test_a_rank_lags(data, tmp_path):
    cases.a_rank_lags(data, tmp_path / "run", 2, Fault("lag", "forward", 1, 1))


def test_the_disk_of_one_rank_is_full(data, tmp_path):
    cases.a_disk_is_full(data, tmp_path / "run", 2, Fault("full", "writing", 1, 3))


@SLOW
def test_the_disk_of_all_ranks_is_full(data, tmp_path):
    try:
        with cases.small_disk(tmp_path / "disk") as disk:
            fault = Fault("fill", "writing", 1, 3, path=str(disk / "ballast"))
            cases.a_disk_is_full(data, disk / "run", 2, fault)
    except PermissionError as error:
        pytest.skip(f"needs to mount a small file system: {error}")


# ---- several processes


def wait_until(condition, seconds=60):
    until = time.monotonic() + seconds
    while not (result := condition()):
        assert time.monotonic() < until
        time.sleep(0.02)
    return result


def is_stopped(process):
    return process.exitcode is None and jobs.is_struck(process)


@contextmanager
def started(data, run, num_ranks, *more, faults):
    """The ranks of a job, and where each says what it says; killed at the end."""
    ranks, outputs = jobs.start(data, run, num_ranks, *more, faults=faults, timeout=60)
    try:
        yield ranks, outputs
    finally:
        for process in ranks:
            process.kill()
            process.join()


def test_a_second_process_on_a_run_is_refused_and_changes_nothing(data, tmp_path):
    """On all its ranks, while the first is at work, which then ends with the same bits."""
    run = tmp_path / "run"
    with started(data, run, 1, faults=(Fault("stop", "forward", 0, 8),)) as ((first,), _):
        wait_until(lambda: is_stopped(first))
        config = (run / "config.json").read_text()
        ended = jobs.train(data, run, 2, said="second")
        assert ended.codes == (1, 1), ended
        words = f"is being written by process {first.pid} on .*; wait until"
        for rank, said in enumerate(ended.said):
            assert re.fullmatch(f"hotrows: rank {rank}: .*{words}.*", said.strip()), said
        os.kill(first.pid, signal.SIGCONT)
        first.join()
        assert first.exitcode == 0
    assert (run / "config.json").read_text() == config
    assert jobs.checksums(run) == cases.undisturbed(data, 1)


def test_a_restart_after_a_kill_before_the_run_began_makes_the_store_anew(data, tmp_path):
    run, store = tmp_path / "run", f"file:{tmp_path / 'store'}"
    options = ("--fast-memory", "4000", "--store", store)
    ended = jobs.train(data, run, 2, *options, faults=(Fault("kill", "start", 0),))
    assert ended.failed and not (run / "config.json").exists()
    assert list((tmp_path / "store").iterdir())
    ended = jobs.train(data, run, 2, *options)
    assert not ended.failed, ended
    assert "was made for a run that never began" in " ".join(ended.said[0].split())


def test_ctrl_c_is_answered_while_another_rank_hangs(data, tmp_path):
    run = tmp_path / "run"
    with started(data, run, 2, faults=(Fault("stop", "forward", 1, 8),)) as (ranks, outputs):
        wait_until(lambda: is_stopped(ranks[1]))

        def said():
            assert ranks[0].exitcode in (None, 130), outputs[0].read_text()
            return " ".join(outputs[0].read_text().split())

        for words in (
            "stopping: the step is finished and the run saved first",
            r"rank 0: still training after step \d+ of \d+ on 2 ranks \(a silent one is given up",
            "rank 0: ended at once; go on from the last checkpoint with --resume",
        ):
            os.kill(ranks[0].pid, signal.SIGINT)
            wait_until(lambda words=words: re.search(words, said()))
        ranks[0].join()
        assert ranks[0].exitcode == 130
