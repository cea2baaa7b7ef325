"""The first Ctrl-C asks for a stop, the second says what is under way, the third ends it."""

import logging
import os
import signal
import threading
import time

import pytest

from hotrows.train.loop.trainer import Trainer
from hotrows.train.run.signals import stop_signals
from tests.support.runs import CONFIG, encode


def wait_for(said, caplog):
    until = time.monotonic() + 60
    while said not in caplog.text:
        assert time.monotonic() < until, caplog.text
        time.sleep(0.01)


CAUGHT = signal.SIGINT, signal.SIGTERM, signal.SIGHUP


@pytest.fixture(autouse=True)
def with_terminal():
    """Also where the tests themselves run under nohup, which ignores SIGHUP."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("numbers", [(number,) * 3 for number in CAUGHT])
def test_each_signal_is_answered(caplog, numbers):
    before = [signal.getsignal(number) for number in CAUGHT]
    with stop_signals(lambda: "training after step 3 of 9") as requested:
        assert not requested()
        os.kill(os.getpid(), numbers[0])
        assert requested()
        wait_for("stopping: the step is finished and the run saved first", caplog)
        os.kill(os.getpid(), numbers[1])
        wait_for("still training after step 3 of 9; another Ctrl-C ends it at once", caplog)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), numbers[2])
            time.sleep(60)
    assert [signal.getsignal(number) for number in CAUGHT] == before
    assert signal.set_wakeup_fd(-1) == -1
    assert not [thread for thread in threading.enumerate() if thread.name == "hotrows-signals"]


def test_a_run_outlives_its_terminal_under_nohup():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stop_signals() as requested:
            os.kill(os.getpid(), signal.SIGHUP)
            assert not requested()
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_signal_that_comes_last_is_no_error(monkeypatch, capfd):
    join = threading.Thread.join

    def join_and_signal(thread, *timeout):
        join(thread, *timeout)
        os.kill(os.getpid(), signal.SIGTERM)

    with stop_signals() as requested:
        monkeypatch.setattr(threading.Thread, "join", join_and_signal)
    assert requested()
    assert not capfd.readouterr().err


def test_a_child_made_by_fork_handles_signals_as_before(caplog):
    ready, said = os.pipe()
    with stop_signals() as requested:
        child = os.fork()
        if child == 0:
            os.write(said, b"!")
            time.sleep(60)
            os._exit(0)
        os.read(ready, 1)
        os.kill(child, signal.SIGTERM)
        _, status = os.waitpid(child, 0)
        assert os.WTERMSIG(status) == signal.SIGTERM
        assert not requested()
    assert not caplog.text


def test_a_run_says_what_it_is_doing(tmp_path, caplog, no_pictures):
    caplog.set_level(logging.WARNING)
    encoded = encode(tmp_path)
    seen = []

    def progress(now):
        if now.done == 2 and not seen:
            seen.append(now)
            for _ in range(2):
                os.kill(os.getpid(), signal.SIGINT)
                time.sleep(0.01)  # two equal signals at once are one
            wait_for("still", caplog)

    with pytest.raises(KeyboardInterrupt, match="stopped after step 2 of 30"):
        Trainer(encoded, CONFIG, tmp_path / "run", progress=progress).fit()
    assert "still training after step 2 of 30; another Ctrl-C" in caplog.text
