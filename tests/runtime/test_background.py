"""Workers end before the process does, with those that they start, and hand on what their work gave."""

import subprocess
import sys
import textwrap
import threading

import pytest

from hotrows.runtime import background
from hotrows.runtime.background import Worker


def test_the_result_is_that_of_the_work_and_the_error_too():
    assert Worker("test", lambda: 3).result() == 3
    failed = Worker("test", lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        failed.result()
    assert isinstance(failed.error, ZeroDivisionError)


def test_a_worker_may_close_itself():
    """A garbage collection on its own thread may be what closes it."""
    own, may_close = [], threading.Event()
    own.append(Worker("test", lambda: may_close.wait(60) and own[0].close()))
    may_close.set()
    assert own[0].result() is None


def test_the_end_stops_workers_and_those_that_they_start():
    stopped, left, later = threading.Event(), threading.Event(), threading.Event()

    def work():
        stopped.wait(60)
        return Worker("test", lambda: later.wait(60), later.set)

    first = Worker("test", work, stopped.set)
    stuck = Worker("test", lambda: left.wait(60), patience=0.1)
    background.end()
    assert not first.is_alive() and not first.result().is_alive()
    assert stuck.is_alive()  # given up: it may wait for what never comes
    left.set()
    stuck.close()


def test_finalizers_run_once_no_worker_runs():
    """They free what workers use: `weakref` runs those that are left as the process ends, too."""
    script = """
        import threading, time, weakref
        from hotrows.runtime.background import Worker
        class Used: pass
        used, ends = Used(), threading.Event()
        weakref.finalize(used, print, "freed")
        def work():
            ends.wait()
            time.sleep(0.2)
            print("ended")
        Worker("test", work, ends.set)
    """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "ended\nfreed\n", "")


def test_processes_end_as_they_should_with_threads_at_work():
    """Lanes that nobody closed aborted each of them, and so did a collective that ended meanwhile."""
    command = [sys.executable, "-m", "tests.support.exits", "--ranks", "3", "--lanes", "3"]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr
