"""Merging gives way to reads, ends before the log is full, and never holds much in memory."""

import threading
import time
import tracemalloc

import pytest
import torch

from hotrows.engine.storage import base_file, merge_pace
from hotrows.engine.storage.base_file import BaseWriter
from hotrows.engine.storage.disk_io import Disk
from hotrows.engine.storage.file_store import FileStore
from hotrows.engine.storage.merge_pace import LEAST, MOST, MergePace
from tests.support.file_stores import META, assert_rows, engine, first_values, new_values, write
from tests.support.syncs import SYNC


def test_a_merge_works_as_much_as_the_log_that_fills_demands():
    fullness = 0.0
    pace = MergePace(lambda: fullness)
    pace.begin()
    assert pace.share(0.0) == LEAST
    fullness = 0.4
    assert (pace.share(0.49), pace.share(0.51)) == (MOST, LEAST)
    fullness = merge_pace.LATE
    assert pace.share(0.99) == 1
    fullness = 0.0
    with pace.at_once():
        assert pace.share(0.5) == 1


def test_a_merge_that_begins_late_does_not_pause():
    pace = MergePace(lambda: 0.9)
    pace.begin()
    begin = time.perf_counter()
    pace.pause(begin - 1, done=0.5)
    assert time.perf_counter() - begin < 0.1


def test_a_piece_waits_for_a_read_to_end(monkeypatch):
    monkeypatch.setattr(merge_pace, "_READ", 30)
    pace, ended = MergePace(lambda: 0.0), []
    pace.begin()
    with pace.reading():
        thread = threading.Thread(target=lambda: ended.append(pace.pause(time.perf_counter(), 0.5)))
        thread.start()
        thread.join(0.05)
        assert not ended
    thread.join(10)
    assert ended


def test_writes_go_on_as_a_late_merge_does():
    fullness, done, looks = 0.0, 0.0, []
    pace = MergePace(lambda: fullness)
    pace.begin()

    class Ended(threading.Event):
        def wait(self, timeout=None):
            looks.append(done)
            return done >= 1

    fullness = merge_pace.WAIT
    pace.hold_back(Ended())
    assert not looks and pace.held_back == 0
    fullness = (merge_pace.WAIT + merge_pace.MOST_FULL) / 2

    class Moving(Ended):
        def wait(self, timeout=None):
            nonlocal done
            done += 0.125
            pace.pause(time.perf_counter(), done)
            return super().wait(timeout)

    assert pace.share(0.0) == 1  # while a write waits, the merge does not
    pace.hold_back(Moving())
    assert looks == [0.125, 0.25, 0.375, 0.5]
    fullness = merge_pace.MOST_FULL
    pace.hold_back(Moving())
    assert looks[-1] == 1  # at last until merging has ended
    assert pace.held_back > 0


def test_a_merge_that_begins_with_much_in_the_log_does_not_stop_writes_at_once():
    fullness = 0.9
    pace = MergePace(lambda: fullness)
    pace.begin()
    pace.hold_back(threading.Event())
    assert pace.held_back == 0


def test_a_write_waits_no_longer_than_merging():
    pace, ended = MergePace(lambda: 2.0), threading.Event()
    timer = threading.Timer(0.05, ended.set)
    timer.start()
    pace.hold_back(ended)
    assert ended.is_set()
    waited = pace.held_back
    assert 0 < waited < 600
    pace.hold_back(ended)  # nothing is merged
    assert pace.held_back == waited


@pytest.fixture
def slow_merging(monkeypatch):
    """Merges take so long that logs fill meanwhile; returns how many records a piece had."""
    written, add = [], BaseWriter.add

    def slowly(self, first, bits, old, rows, records):
        written.append(len(old) + len(rows))
        time.sleep(0.002)
        add(self, first, bits, old, rows, records)

    monkeypatch.setattr(BaseWriter, "add", slowly)
    monkeypatch.setattr(base_file, "PIECE_BYTES", 4096)
    monkeypatch.setattr(Disk, "sync", SYNC)  # checkpoints take their time
    return written


@pytest.mark.parametrize("with_core", [False, True], ids=["plain", "core"])
def test_no_more_than_two_logs_however_slow_merging_is(tmp_path, with_core, slow_merging):
    """The open log is not closed before the one before it is merged; what is written is held back."""
    with engine(with_core):
        store = FileStore.create(tmp_path / "store", 20_000, 32, first_values, META, log_rows=2000)
        steps = {}
        for step in range(60):
            rows = range(step % 7, 20_000, 160)
            write(store, rows, step)
            steps |= dict.fromkeys(rows, step)
            if store.wants_checkpoint:
                store.retain([store.checkpoint()])
            assert len(store._logs) <= 2
            assert store._fullness() < 1.2
        assert store._pace.held_back > 0
        assert max(slow_merging) <= 2 * (4096 // 32 + base_file.COUNTED)
        assert_rows(store, steps)
        store.close()


def test_a_store_that_closes_does_not_wait_for_pauses(tmp_path, monkeypatch):
    monkeypatch.setattr(merge_pace, "LEAST", 1e-6)
    monkeypatch.setattr(base_file, "PIECE_BYTES", 4096)
    with FileStore.create(tmp_path / "store", 20_000, 32, first_values, META, log_rows=10**6) as store:
        write(store, range(0, 20_000, 3), 1)
        store.retain([store.checkpoint()])
        time.sleep(0.05)
        begin = time.perf_counter()
        store.merge_now()
        assert time.perf_counter() - begin < 5
        assert store._saved.state.merged == 1


def test_a_merge_holds_no_row_numbers_in_memory(tmp_path):
    """Of a log of half a million rows, 4 MB of numbers, a merge takes memory for a portion of records."""
    rows = torch.arange(500_000)
    with engine(True, merge_bytes=1 << 20, segment_bytes=1 << 20):
        store = FileStore.create(tmp_path / "store", 500_000, 4, first_values, META)
        for begin in range(0, 500_000, 20_000):
            part = rows[begin : begin + 20_000]
            store.write(part, new_values(part.numpy(), 4, 1))
        generation = store.checkpoint()
        store.log_rows = 10**6  # nothing is merged in the background
        store.retain([generation])
        tracemalloc.start()
        store.merge_now()
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert most < 3 << 20
        store.close()


def test_a_disk_as_slow_as_a_rotating_one_breaks_nothing(tmp_path, monkeypatch):
    """Every request takes five milliseconds: training from it is slow, and right."""

    def paced(call):
        def slowly(*arguments):
            time.sleep(0.005)
            return call(*arguments)

        return staticmethod(slowly)

    for name in ("pread", "pwrite", "sync"):
        monkeypatch.setattr(Disk, name, paced(getattr(Disk, name)))
    with engine(False):
        store = FileStore.create(tmp_path / "store", 400, 32, first_values, META, log_rows=100)
        steps = {}
        for step in range(8):
            rows = range(step, 400, 9)
            write(store, rows, step)
            steps |= dict.fromkeys(rows, step)
            if store.wants_checkpoint:
                store.retain([store.checkpoint()])
        assert_rows(store, steps)
        last = store.checkpoint()
        store.close()
        with FileStore.open(tmp_path / "store", 400, 32, first_values, META) as again:
            again.restore(last)
            assert_rows(again, steps)
