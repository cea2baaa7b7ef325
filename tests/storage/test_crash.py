"""A store survives whatever ends its process: killed anywhere, or cut off from power.

The child plays a script on a store and reports each step that is done; the parent, which can play
the same script on a dictionary, then opens what is left and compares every row. To kill at more
moments: HOTROWS_TEST_KILLS=1000 HOTROWS_TEST_SCRIPTS=50 pytest --all tests/storage/test_crash.py
"""

import os
import random
import shutil
import signal
import tempfile
import time
from pathlib import Path

import pytest

from hotrows.engine.storage.file_store import FileStore
from tests.support.choice import everything
from tests.support.file_stores import ENGINES, META, assert_rows, engine, first_values
from tests.support.forked import run as in_a_small_process  # forking one that has run tests takes long
from tests.support.store_crashes import Crash, child, crash_at, reports
from tests.support.store_script import NUM_ROWS, STRIDE, Books, check_what_is_left, play, script

NUM_KILLS = int(os.environ.get("HOTROWS_TEST_KILLS", "40" if everything() else "6"))
EVERY = 1 if everything() else 19  # of all changes of the disk, one is the last
NUM_SCRIPTS = int(os.environ.get("HOTROWS_TEST_SCRIPTS", "1"))

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


@pytest.fixture
def memory_path(tmp_path):
    """A folder in memory, where there is one: hundreds of crashes need no disk that is slow to sync."""
    if not os.access("/dev/shm", os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        yield Path(folder)


@pytest.mark.parametrize("how", ["core", pytest.param("half", marks=pytest.mark.slow), "power"])
def test_a_crash_at_any_change_of_the_disk_loses_no_checkpoint(memory_path, how):
    in_a_small_process(crash_everywhere, memory_path, how)


def crash_everywhere(folder, how):
    with engine(how == "core", 3000, 3000):
        for seed in range(NUM_SCRIPTS):
            for number in range(0, 10_000, EVERY):
                path = folder / f"{seed}-{number}"
                ended = crash_at(path, number, seed, half=how == "half", power=how == "power")
                shutil.rmtree(path)
                if ended:
                    break
            assert number > 50


@pytest.mark.parametrize("with_core", ENGINES, ids=["plain", "core"])
def test_a_store_killed_at_any_time_comes_back_to_its_last_checkpoint(tmp_path, with_core):
    in_a_small_process(kill_at_any_time, tmp_path, with_core)


def kill_at_any_time(tmp_path, with_core):
    path, chance, books = tmp_path / "store", random.Random(5), Books()
    num_finished = 0
    with engine(with_core, 400, 900):
        FileStore.create(path, NUM_ROWS, STRIDE, first_values, META).close()
        for seed in range(NUM_KILLS):
            steps = [step for step in script(seed, 300) if step[0] != "merge"]  # in the background

            def work(report, steps=steps):
                store = FileStore.open(path, NUM_ROWS, STRIDE, first_values, META)
                store.restore(books.last)
                report(0)
                play(store, steps, report, books)

            with child(work) as (process, pipe):
                opened = seed % 2 and pipe.read(8)  # every other one is killed once it trains
                time.sleep(chance.uniform(0.0, 0.15))
                os.kill(process, signal.SIGKILL)
                results = reports(pipe)[0 if opened else 1 :]
                os.waitpid(process, 0)
            num_finished += len(results)
            check_what_is_left(path, steps, results, books).close(merge=False)
    assert num_finished > NUM_KILLS


def test_creation_that_was_interrupted_is_done_again(tmp_path):
    in_a_small_process(interrupt_creation, tmp_path)


def interrupt_creation(tmp_path):
    for number in range(100):
        path = tmp_path / str(number)

        def work(report, path=path, number=number):
            with pytest.MonkeyPatch.context() as patch:
                Crash(number).install(patch)
                FileStore.create(path, NUM_ROWS, STRIDE, first_values, META)

        with child(work) as (process, pipe):
            reports(pipe)
            code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        if (path / "store.json").exists():
            store = FileStore.open(path, NUM_ROWS, STRIDE, first_values, META)
            store.restore(None)
        else:
            with pytest.raises(ValueError, match="store.json is missing"):
                FileStore.open(path, NUM_ROWS, STRIDE, first_values, META)
            store = FileStore.create(path, NUM_ROWS, STRIDE, first_values, META)
        assert_rows(store, {})
        store.close()
        if code == 0:
            return
    raise AssertionError("creation never ended")
