"""The store on disk equals a dictionary with versions, whatever the order of what is done to it."""

import errno
import json
import os
import random
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hotrows.engine.storage.disk_io import Disk, RecordFile
from hotrows.engine.storage.file_store import FileStore
from hotrows.engine.storage.record_io import Fetcher, Index, alignment
from hotrows.engine.storage.store_state import FILE
from hotrows.engine.storage.store_view import view_at
from hotrows.runtime import native
from tests.reference.records import PlainIndex
from tests.support import forked
from tests.support.choice import everything, examples
from tests.support.file_stores import (
    ENGINES,
    META,
    assert_rows,
    engine,
    first_values,
    new_values,
    read,
    write,
)


@pytest.fixture(params=ENGINES, ids=["plain", "core"])
def with_core(request):
    with engine(request.param):
        yield request.param


class Played:
    """A store and the dictionary that it must equal: the step that wrote each row last."""

    def __init__(self, path, num_rows, stride):
        self.arguments = (path, num_rows, stride, first_values, META)
        self.store = FileStore.create(*self.arguments)
        self.steps, self.held, self.versions = {}, set(), {}
        self.last, self.step, self.num_rows = None, 0, num_rows

    def act(self, action, chance):
        getattr(self, action)(chance)

    def write(self, chance, keeps=False):
        self.step += 1
        rows = sorted(chance.sample(range(self.num_rows), chance.randint(1, self.num_rows)))
        write(self.store, rows, self.step, keeps)
        self.steps |= dict.fromkeys(rows, self.step)
        self.held = self.held | set(rows) if keeps else self.held - set(rows)

    def flush(self, chance):
        self.write(chance, keeps=True)

    def check(self, chance):
        assert_rows(self.store, self.steps, self.held)

    def checkpoint(self, chance):
        self.last = self.store.checkpoint()
        self.versions[self.last] = dict(self.steps)
        assert self.last in self.store.generations

    def retain(self, chance):
        if self.last is None:
            return
        kept = {self.last, *(g for g in self.versions if chance.random() < 0.7)}
        self.store.retain(kept)
        self.versions = {g: self.versions[g] for g in sorted(kept)}

    def merge(self, chance):
        self.store.merge_now()

    def restore(self, chance):
        generation = chance.choice([None, *self.versions])
        self.store.restore(generation)
        self.steps = dict(self.versions.get(generation, {}))
        known = -1 if generation is None else generation
        self.versions = {g: steps for g, steps in self.versions.items() if g <= known}
        self.last, self.held = max(self.versions, default=None), set()

    def reopen(self, chance):
        self.store.close(merge=chance.random() < 0.5)
        self.store = FileStore.open(*self.arguments)
        self.restore(chance)

    def view(self, chance):
        assert self.store.generations == sorted(self.versions)
        for generation, steps in self.versions.items():
            with self.store.view(generation) as view:
                assert_rows(view, steps)


ACTIONS = [
    *["write"] * 5, *["flush"] * 2, *["check"] * 3, *["checkpoint"] * 4, *["retain"] * 4,
    *["merge"] * 3, "restore", "reopen", "view", "view",
]  # fmt: skip


@pytest.mark.parametrize("with_core", ENGINES)
@settings(max_examples=examples(60, 6), deadline=None)
@given(
    stride=st.integers(1, 175).map(lambda n: 4 * n),
    num_rows=st.integers(1, 300),
    actions=st.lists(st.sampled_from(ACTIONS), min_size=5, max_size=40),
    seed=st.integers(0, 2**32),
    merge_bytes=st.sampled_from([1, 5000, 1 << 25]),
)
def test_any_sequence_equals_a_dictionary_with_versions(
    tmp_path_factory, with_core, stride, num_rows, actions, seed, merge_bytes
):
    chance = random.Random(seed)
    with engine(with_core, merge_bytes, max(merge_bytes, 3000)):
        played = Played(tmp_path_factory.mktemp("play") / "store", num_rows, stride)
        try:
            for action in [*actions, "check", "view"]:
                played.act(action, chance)
        finally:
            played.store.close(merge=False)


@pytest.mark.parametrize("first", [True, False])
def test_the_core_and_plain_python_open_each_others_folders(tmp_path, first):
    chance = random.Random(1)
    with engine(first, 5000, 3000):
        played = Played(tmp_path / "store", 200, 68)
    for number in range(12):
        with engine(first == (number % 2 == 0), 5000, 3000):
            played.store.close(merge=False)
            played.store = FileStore.open(*played.arguments)
            played.restore(chance)
            for action in ["check", "view", "write", "flush", "checkpoint", "retain", "write",
                           "checkpoint", "retain", "merge", "view", "check"]:  # fmt: skip
                played.act(action, chance)
    played.store.close()


@pytest.fixture
def store(tmp_path, with_core):
    store = FileStore.create(tmp_path / "store", 1000, 32, first_values, META)
    yield store
    store.close(merge=False)


def test_untouched_rows_cost_no_request(store):
    assert_rows(store, {})
    assert store.counters["requests"] == store.counters["bytes_read"] == 0
    assert store.counters["rows_read"] == store.counters["rows_initialised"] == 1000
    assert store.num_bytes < 200_000


def test_a_merged_row_comes_from_base_and_its_log_is_gone(store):
    write(store, [3, 999], 1)
    store.retain([store.checkpoint()])
    store.merge_now()
    assert sorted(os.listdir(store.path)) == ["base-1", "lock", "log-2", "store.json"]
    assert_rows(store, {3: 1, 999: 1})
    assert store.counters["rows_initialised"] == 998


def test_rows_that_the_writer_holds_on_take_no_memory_and_are_in_the_checkpoint(store):
    write(store, [1, 2], 1)
    write(store, [2, 3], 2, keeps=True)
    assert len(store._logs[0].index) == 2
    store.restore(store.checkpoint())
    assert_rows(store, {1: 1, 2: 2, 3: 2})


def test_a_long_log_wants_a_checkpoint(tmp_path):
    store = FileStore.create(tmp_path / "store", 1000, 32, first_values, META, log_rows=150)
    write(store, range(100), 1)
    assert not store.wants_checkpoint
    write(store, range(100), 2)
    assert store.wants_checkpoint
    store.retain([store.checkpoint()])
    store.merge_now()
    assert not store.wants_checkpoint
    store.close()


def test_logs_are_merged_once_they_are_full_together(tmp_path):
    store = FileStore.create(tmp_path / "store", 1000, 32, first_values, META, log_rows=150)
    for step in (1, 2):
        write(store, range(80), step)
        store.retain([store.checkpoint()])
        store._merger.join()
        assert store._saved.state.merged == (2 if step == 2 else 0)
    assert_rows(store, dict.fromkeys(range(80), 2))
    write(store, range(50), 3)
    last = store.checkpoint()
    store.close()
    with FileStore.open(tmp_path / "store", 1000, 32, first_values, META, log_rows=150) as again:
        again.restore(last)  # of a log that was opened, its rows are counted, too
        write(again, range(101), 4)
        assert again.wants_checkpoint


def test_a_checkpoint_is_merged_although_the_merge_before_it_has_hardly_ended(store):
    """A thread that has found nothing more to merge, and has not ended, would not merge the next log; it
    waited for the checkpoint after."""
    store.log_rows = 1
    merger, found_nothing, may_end = store._merger, threading.Event(), threading.Event()
    run = merger._run

    def slow_to_end():
        run()
        found_nothing.set()
        assert may_end.wait(30)

    merger._run = slow_to_end
    for generation in (1, 2):
        write(store, [0, 1], generation)
        store.retain([store.checkpoint()])
        assert found_nothing.wait(30)
    may_end.set()
    merger.join()
    assert store._saved.state.merged == 2


def test_old_bytes_are_kept_once_however_long_a_checkpoint_is_retained(store):
    write(store, range(1000), 1)
    best = store.checkpoint()
    for step in range(2, 12):
        write(store, range(500), step)
        store.retain([best, store.checkpoint()])
        store.merge_now()
    bases = {file.name: file.stat().st_size for file in store.path.glob("base-*")}
    assert sorted(bases) == ["base-11"] and [*store.path.glob("log-1")]  # which `best` is read from
    with store.view(best) as view:
        assert_rows(view, dict.fromkeys(range(1000), 1))
    store.retain([store.checkpoint()])
    assert not list(store.path.glob("log-1"))


def test_every_retained_checkpoint_behind_base_is_restored_exactly(store):
    versions = {}
    for step in range(1, 6):
        write(store, range(2 * step, 50), step)
        versions[store.checkpoint()] = {row: min(step, row // 2) for row in range(2, 50)}
        store.retain(versions)
        store.merge_now()
    for generation in sorted(versions, reverse=True)[1::2]:
        for earlier in versions:
            if earlier <= generation:
                with store.view(earlier) as view:
                    assert_rows(view, versions[earlier])
        store.restore(generation)
        assert_rows(store, versions[generation])


def test_a_view_stays_as_it_is_whatever_the_store_does(store):
    write(store, [1], 1)
    first = store.checkpoint()
    write(store, [1, 2], 2)
    store.retain([first, store.checkpoint()])
    view = store.view(first)
    store.merge_now()
    write(store, [1], 3)
    assert_rows(view, {1: 1})
    assert_rows(store, {1: 3, 2: 2})
    store.retain([store.checkpoint()])
    store.merge_now()
    assert_rows(view, {1: 1})
    store.restore(None)
    assert_rows(view, {1: 1})
    view.close()
    with pytest.raises(ValueError, match="view of a store is closed"):
        read(view, [1])


def test_an_earlier_checkpoint_is_read_by_another_process(tmp_path):
    path = tmp_path / "store"
    with FileStore.create(path, 1000, 32, first_values, META) as store:
        write(store, [1, 2], 1)
        best = store.checkpoint()
        write(store, [2, 3], 2)
        store.retain([best, store.checkpoint()])
    before = {file.name: file.stat().st_mtime_ns for file in path.iterdir()}
    forked.run(read_earlier, path, best)
    assert before == {file.name: file.stat().st_mtime_ns for file in path.iterdir()}


def read_earlier(path, best):
    with view_at(path, 1000, 32, first_values, META, best) as view:
        assert_rows(view, {1: 1, 2: 1})


def test_a_view_has_no_part_in_what_another_process_merges(tmp_path):
    """The reader has no part in the locks of the writer, which may delete the files that it reads."""
    path = tmp_path / "store"
    with FileStore.create(path, 1000, 32, first_values, META) as store:
        write(store, [1, 2], 1)
        first = store.checkpoint()
        store.retain([first])
        store.merge_now()
        with view_at(path, 1000, 32, first_values, META, first) as view:
            for kept in ({first}, set()):
                write(store, [2, 3], 2)
                store.retain(kept | {store.checkpoint()})
                store.merge_now()
                assert_rows(view, {1: 1, 2: 1})
        with pytest.raises(ValueError, match="has no checkpoint 1 to go to"):
            view_at(path, 1000, 32, first_values, META, first)


def test_a_reader_a_writer_and_merging_at_once(tmp_path, with_core):
    num_rows, steps, failures = 2000, {}, []

    def keep_reading(steps, without):
        try:
            for _ in range(5):
                assert_rows(store, steps, without)
        except BaseException as error:
            failures.append(error)

    with engine(with_core, 20_000, 20_000):
        store = FileStore.create(tmp_path / "store", num_rows, 32, first_values, META)
        best = None
        for step in range(30 if everything() else 10):
            written = range(step % 2, num_rows, 2)
            reader = threading.Thread(target=keep_reading, args=(dict(steps), set(written)))
            reader.start()
            for begin in range(0, num_rows // 2, 100):
                write(store, written[begin : begin + 100], step)
            last = store.checkpoint()
            best = last if step % 7 == 0 else best
            store.retain([best, last])
            reader.join()
            assert not failures, failures
            steps |= dict.fromkeys(written, step)
        assert_rows(store, steps)
        store.close()


@pytest.mark.pairs
@pytest.mark.parametrize("stride", [4, 36, 512, 4096, 70_000])
@pytest.mark.parametrize("direct", [False, True])
@pytest.mark.parametrize("shorten", [0, 1, 3])
@pytest.mark.parametrize("ring", [False, True])
def test_records_are_whole_however_reads_fall_out(tmp_path, stride, direct, shorten, ring):
    chance = np.random.default_rng(stride)
    records = chance.integers(0, 256, (2500 if stride < 70_000 else 50, stride), dtype=np.uint8)
    path = tmp_path / "records"
    path.write_bytes(records.tobytes() + bytes(-records.size % 4096))
    align = alignment(path) if direct else 1
    file, fetcher = RecordFile(path, stride, align), Fetcher(stride, ring)
    native.load().hotrows_file_fetcher_shorten(fetcher._core.handle, shorten)
    for count in [1, 2, 40, len(records) // (8 if shorten == 1 else 1)]:
        wanted = chance.permutation(len(records))[:count]
        out = np.zeros_like(records)
        fetcher.fetch(file, wanted * stride, np.arange(len(wanted)), out)
        assert (out[: len(wanted)] == records[wanted]).all()
    file.close()


@pytest.mark.parametrize("num_rows", [1, 2, 3, 1000, 1 << 20, 10**9, 1 << 48])
@pytest.mark.parametrize("among", [30_000, 1 << 48])
def test_an_index_finds_the_newest_place_of_every_row(num_rows, among):
    chance, index, plain = np.random.default_rng(num_rows), Index(num_rows), PlainIndex()
    for stride in [4, 36, 8]:
        rows = np.unique(chance.integers(0, min(num_rows, among), 20_000))
        first = 4 * int(chance.integers(1, 2000))
        for one in (index, plain):
            one.put(rows, first, stride)
        asked = np.concatenate([rows, chance.integers(0, num_rows, 5000), [0, num_rows - 1]])
        assert (index.find(asked) == plain.find(asked)).all()
    assert len(index) == len(plain)


def test_an_index_takes_memory_for_the_rows_that_are_in_it():
    """A billion rows within 2 GiB: of three logs, each took what a full one needs."""
    index, taken = Index(1 << 20), [0]
    for begin in range(0, 400_000, 20_000):
        assert index.memory_bytes == taken[-1]
        index.put(np.arange(begin, begin + 20_000) * 2, 4096, 4)
        taken.append(index.memory_bytes)
        assert len(index) * 10 < taken[-1] < len(index) * Index.ROW_BYTES


def test_a_log_that_is_too_long_for_an_index_is_refused():
    index = Index(1 << 48)
    with pytest.raises(ValueError, match="a log of 1,073,741,820 bytes is too long .* more ranks"):
        index.put(np.array([0, 5]), (1 << 30) - 4, 36)
    assert len(index) == 0


@pytest.mark.parametrize("ring", [False, True])
@pytest.mark.parametrize("depth", [1, 3, 300])
def test_any_number_of_reads_in_flight_brings_all_records(tmp_path, ring, depth):
    path = tmp_path / "records"
    records = np.random.default_rng(0).integers(0, 256, (600, 40_000), np.uint8)
    path.write_bytes(records.tobytes())
    file, fetcher, out = RecordFile(path, 40_000), Fetcher(40_000, ring, depth), np.zeros_like(records)
    fetcher.fetch(file, np.arange(600) * 40_000, np.arange(600), out)
    assert (out == records).all() and fetcher.num_requests > depth
    assert fetcher.memory_bytes == depth * (64 << 10)
    file.close()


def _rings():
    folder = Path("/proc/self/fd")
    return {int(fd.name) for fd in folder.glob("*") if fd.is_symlink() and "io_uring" in os.readlink(fd)}


def test_threads_fetch_what_a_ring_refuses(tmp_path):
    """A fetch whose io_uring_enter failed left its requests in the ring: the next one took their answers
    for its own, and waited for ever."""
    path, chance = tmp_path / "records", np.random.default_rng(0)
    records = chance.integers(0, 256, (300, 80_000), np.uint8)
    path.write_bytes(records.tobytes())
    before, file, fetcher = _rings(), RecordFile(path, 80_000), Fetcher(80_000)
    for ring in _rings() - before:  # none where the system has no io_uring
        with open(os.devnull) as other:
            os.dup2(other.fileno(), ring)
    for wanted in (np.arange(200), np.arange(250, 253)):
        out = np.zeros((len(wanted), 80_000), np.uint8)
        fetcher.fetch(file, wanted * 80_000, np.arange(len(wanted)), out)
        assert (out == records[wanted]).all()
    file.close()


@pytest.mark.parametrize("ring", [False, True])
def test_failed_reads_name_the_file_and_the_place(tmp_path, ring):
    path = tmp_path / "records"
    path.write_bytes(bytes(8192))
    places, out = np.arange(0, 40_000, 8), np.empty((5000, 8), np.uint8)
    file, fetcher = RecordFile(path, 8), Fetcher(8, ring)
    with pytest.raises(ValueError, match=r"records is cut off: it ends before byte [\d,]+ is whole"):
        fetcher.fetch(file, places, np.arange(5000), out)
    file.close()
    with pytest.raises(OSError, match=r"records: reading at byte 0 failed \(Bad file descriptor\)"):
        fetcher.fetch(file, places[:10], np.arange(10), out)


def test_short_reads_are_read_on_and_failed_ones_name_the_file(tmp_path, monkeypatch):
    with engine(False):
        store = FileStore.create(tmp_path / "store", 100, 32, first_values, META)
        write(store, range(50), 1)
        with monkeypatch.context() as patch:
            pread = os.pread
            patch.setattr(Disk, "pread", lambda fd, size, offset: pread(fd, min(size, 7), offset))
            assert_rows(store, dict.fromkeys(range(50), 1))
            store.restore(store.checkpoint())
            assert_rows(store, dict.fromkeys(range(50), 1))

            def fail(fd, size, offset):
                raise OSError(errno.EIO, "")

            patch.setattr(Disk, "pread", fail)
            with pytest.raises(OSError, match=r"log-1: reading at byte \d+ failed.*check the disk"):
                read(store, [1])
        assert_rows(store, dict.fromkeys(range(50), 1))
        store.close()


@contextmanager
def full_disk(room):
    """Writes stop when so many bytes are written; one that does not fit is done in part."""
    left = [room]

    def pwrite(fd, data, offset):
        data = memoryview(data)[: left[0] // 512 * 512]
        if not data:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        left[0] -= len(data)
        return os.pwrite(fd, data, offset)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Disk, "pwrite", pwrite)
        yield


NO_ROOM = r"no room for [\d,]+ bytes .*checkpoints are whole; make room, then resume, or begin again"


@pytest.mark.parametrize("room", [0, 100, 512, 4096, 20_000, 40_000])
def test_a_full_disk_spares_what_was_durable(store, room):
    write(store, range(0, 1000, 2), 1)
    first = store.checkpoint()
    write(store, [1], 2)
    with full_disk(room):
        with pytest.raises(OSError, match=NO_ROOM) as error:
            for _ in range(10):
                write(store, range(300), 3)
        assert error.value.errno == errno.ENOSPC
    write(store, [1, 5], 4)  # there is room again
    steps = dict.fromkeys(range(0, 1000, 2), 1)
    second = store.checkpoint()
    store.retain([first, second])
    store.merge_now()
    with store.view(first) as view:
        assert_rows(view, steps)
    store.restore(second)
    records = read(store, [1, 5, 998])
    assert torch.equal(records[:2], new_values([1, 5], 32, 4))
    store.restore(first)
    assert_rows(store, steps)


def test_a_full_disk_at_a_checkpoint_or_a_merge_can_be_overcome(tmp_path):
    with engine(False):
        store = FileStore.create(tmp_path / "store", 1000, 32, first_values, META)
        write(store, range(0, 1000, 3), 1)
        steps = dict.fromkeys(range(0, 1000, 3), 1)
        with full_disk(100), pytest.raises(OSError, match=f"store.json.part: {NO_ROOM}"):
            store.checkpoint()
        first = store.checkpoint()
        write(store, range(100), 2)
        second = store.checkpoint()
        store.retain([first, second])
        for room in range(0, 10_000, 1000):
            with full_disk(room), pytest.raises(OSError, match=NO_ROOM):
                store.merge_now()
        assert_rows(store, steps | dict.fromkeys(range(100), 2))
        with store.view(first) as view:
            assert_rows(view, steps)
        store.merge_now()
        assert_rows(store, steps | dict.fromkeys(range(100), 2))
        store.restore(first)
        assert_rows(store, steps)
        store.close()


def test_what_failed_in_the_background_is_said_at_the_next_checkpoint(tmp_path):
    with engine(False):
        store = FileStore.create(tmp_path / "store", 1000, 32, first_values, META)
        store.log_rows = 100
        write(store, range(0, 1000, 3), 1)
        generation = store.checkpoint()
        with full_disk(1000):
            store.retain([generation])
            store._merger.join()
        with pytest.raises(OSError, match=NO_ROOM):
            store.checkpoint()
        assert not list((tmp_path / "store").glob("base-*"))
        store.retain([store.checkpoint()])
        store.close()
        assert not list((tmp_path / "store").glob("log-1"))


def test_a_failed_sync_makes_the_store_be_opened_anew(store, monkeypatch):
    write(store, [1], 1)
    first = store.checkpoint()
    write(store, [1], 2)

    def fail(fd):
        raise OSError(errno.EIO, "no")

    with monkeypatch.context() as patch:
        patch.setattr(Disk, "sync", fail)
        with pytest.raises(OSError, match="log-2: writing failed"):
            store.checkpoint()
    with pytest.raises(ValueError, match="open the store anew"):
        store.checkpoint()
    store.restore(first)
    assert_rows(store, {1: 1})


@pytest.mark.parametrize("with_core", ENGINES, ids=["plain", "core"])
def test_a_limit_on_the_size_of_files_is_a_full_disk(tmp_path, with_core):
    forked.run(write_up_to_a_limit, tmp_path / "store", with_core)


def write_up_to_a_limit(path, with_core):
    import resource

    def limit(size):
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

    with engine(with_core):
        store = FileStore.create(path, 20_000, 128, first_values, META)
        write(store, range(0, 20_000, 3), 1)
        store.checkpoint()
        limit(98_304)
        with pytest.raises(OSError, match=NO_ROOM):
            write(store, range(10_000), 2)
        write(store, range(100), 3)
        second = store.checkpoint()
        store.retain([second])
        with pytest.raises(OSError, match=f"base-{second}: {NO_ROOM}"):
            store.merge_now()
        limit(resource.RLIM_INFINITY)
        steps = dict.fromkeys(range(0, 20_000, 3), 1) | dict.fromkeys(range(100), 3)
        assert_rows(store, steps)
        store.merge_now()
        assert_rows(store, steps)
        store.close()


def test_a_table_of_100_gb_is_made_at_once(tmp_path, with_core):
    begin, rows = time.perf_counter(), 100 * 10**9 // 128
    with pytest.warns(RuntimeWarning, match="may grow to 18"):
        store = FileStore.create(tmp_path / "store", rows, 128, first_values, META, log_rows=1000)
    assert time.perf_counter() - begin < 5
    last = [0, rows // 2, rows - 1]
    write(store, last[1:], 1)
    store.retain([store.checkpoint()])
    store.merge_now()
    assert torch.equal(read(store, last)[1:], new_values(last[1:], 128, 1))
    assert store.num_bytes < 2_000_000
    store.close()


def test_a_store_that_cannot_fit_is_refused(tmp_path):
    with pytest.raises(OSError, match=r"no room for [\d,]+ bytes"):
        FileStore.create(tmp_path / "a", 1000, 32, first_values, META, log_rows=10**15)
    with pytest.warns(RuntimeWarning, match="may grow to"):
        FileStore.create(tmp_path / "b", 2**30, 4096, first_values, META, log_rows=10).close()


def test_two_cannot_open_one_store(store):
    with pytest.raises(ValueError, match="has the store in .* open; close it there first"):
        FileStore.open(store.path, 1000, 32, first_values, META)
    forked.run(open_in_vain, store.path, os.getpid())


def open_in_vain(path, holder):
    with pytest.raises(ValueError, match=f"process {holder} on .* has the store"):
        FileStore.open(path, 1000, 32, first_values, META)


@pytest.mark.parametrize(
    "rows, stride, meta, message",
    [
        (999, 32, META, r"store.json says rows 1000, but 999 was asked for; open it as it was"),
        (1000, 36, META, "says stride 32, but 36"),
        (1000, 32, {"tables": ["user"]}, r"says meta \{'tables': \['user', 'item'\]\}, but"),
    ],
)
def test_another_store_is_refused(store, rows, stride, meta, message):
    store.close()
    with pytest.raises(ValueError, match=message):
        FileStore.open(store.path, rows, stride, first_values, meta)


def change(path, offset, size=1):
    data = bytearray(path.read_bytes())
    data[offset : offset + size] = bytes(255 - byte for byte in data[offset : offset + size])
    path.write_bytes(data)


def test_damage_is_found_and_named(store):
    arguments = (store.path, 1000, 32, first_values, META)
    write(store, range(100), 1)
    write(store, range(50, 120), 2)
    generation = store.checkpoint()
    store.close()
    log, description = store.path / "log-1", store.path / "store.json"
    content, segment = log.read_bytes(), 4096  # the first one is as long
    for offset in [0, 9, 20, 33, 64, 64 + 800, 64 + 800 + 3199, segment + 64]:
        change(log, offset)
        with FileStore.open(*arguments) as damaged:
            with pytest.raises(ValueError, match=r"log-1 is damaged: the segment at byte [\d,]+"):
                damaged.restore(generation)
            with pytest.raises(ValueError, match="restore again"):
                read(damaged, [0])
        log.write_bytes(content)
    log.write_bytes(content[:-4096])
    with (
        FileStore.open(*arguments) as damaged,
        pytest.raises(ValueError, match="log-1 is (cut off|damaged)"),
    ):
        damaged.restore(generation)
    log.unlink()
    with FileStore.open(*arguments) as damaged, pytest.raises(ValueError, match="log-1 is missing"):
        damaged.restore(generation)
    log.write_bytes(content)
    text = description.read_text()
    for other, message in [
        (text[:-5], "is damaged"),
        ("[]", "is damaged: expected a JSON object"),
        (json.dumps(FILE.sign({"kind": "x"})), "is not the description of a hotrows file store"),
        (text.replace('"format": 4', '"format": 9'), "has format version 9, this hotrows reads 4"),
        (text.replace('"bases"', '"basis"'), "is damaged"),
    ]:
        description.write_text(other)
        with pytest.raises(ValueError, match=message):
            FileStore.open(*arguments)
    description.write_text(text)
    with FileStore.open(*arguments) as opened:
        opened.restore(generation)
        assert_rows(opened, dict.fromkeys(range(100), 1) | dict.fromkeys(range(50, 120), 2))


@pytest.mark.parametrize(
    "offset, message",
    [(9, "base-1 is damaged, or of another store"), (4100, "base-1 is not the file"), (None, "cut off")],
)
def test_a_damaged_base_is_found_and_named(store, offset, message):
    write(store, range(100), 1)
    generation = store.checkpoint()
    store.retain([generation])
    store.merge_now()
    store.close()
    base = store.path / "base-1"
    content = base.read_bytes()
    change(base, offset) if offset else base.write_bytes(content[:-4096])
    with FileStore.open(store.path, 1000, 32, first_values, META) as opened:
        with pytest.raises(ValueError, match=message):
            opened.restore(generation)
        base.write_bytes(content)
        opened.restore(generation)
        assert_rows(opened, dict.fromkeys(range(100), 1))


def test_what_makes_no_sense_is_refused(store, tmp_path):
    with pytest.raises(ValueError, match="distinct, ascending and from 0 to 999"):
        write(store, [3, 3], 1)
    for rows in [[-1, 2], [5, 1000]]:
        with pytest.raises(ValueError, match="distinct, ascending and from 0 to 999"):
            read(store, rows)
    with pytest.raises(ValueError, match=r"records of \[2, 32\] uint8, not \[2, 31\]"):
        store.read(torch.tensor([1, 2]), torch.empty(2, 31, dtype=torch.uint8))
    with pytest.raises(ValueError, match="has no checkpoint 1 to go to; it has none"):
        store.restore(1)
    with pytest.raises(ValueError, match="has no checkpoint 7 to go to"):
        store.retain([7])
    first, last = store.checkpoint(), store.checkpoint()
    store.retain([last])
    for go in [store.restore, store.view]:
        with pytest.raises(ValueError, match=rf"has no checkpoint {first} to go to; it has \[2\]"):
            go(first)
    with pytest.raises(ValueError, match="is not empty; delete it"):
        FileStore.create(store.path.parent, 10, 4, first_values, META)
    with pytest.raises(ValueError, match="a multiple of 4 bytes"):
        FileStore.create(tmp_path / "odd", 10, 6, first_values, META)
    store.close()
    with pytest.raises(ValueError, match="it is closed; open it anew"):
        read(store, [1])
    opened = FileStore.open(store.path, 1000, 32, first_values, META)
    with pytest.raises(ValueError, match=r"restore\(generation\) or restore\(None\)"):
        read(opened, [1])
    opened.close()
