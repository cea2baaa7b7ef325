"""A child plays a script on a file store and ends at any change of the disk; what is left is checked."""

import os
import random
import threading
from contextlib import contextmanager

import pytest

from hotrows.engine.storage.disk_io import Disk
from hotrows.engine.storage.file_store import FileStore
from tests.support.file_stores import META, assert_rows, first_values
from tests.support.store_script import NUM_ROWS, STRIDE, Books, check_what_is_left, play, script

CHANGES = ("pwrite", "truncate", "sync", "replace", "unlink")


@contextmanager
def child(work):
    """Runs work(report) in a process of its own; gives its number and the pipe of its reports."""
    reading, writing = os.pipe()
    process = os.fork()
    if not process:
        code = 1
        try:
            os.close(reading)
            work(lambda result: os.write(writing, int(result).to_bytes(8, "little")))
            code = 0
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            os._exit(code)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        yield process, pipe


def reports(pipe):
    data = pipe.read()
    return [int.from_bytes(data[i : i + 8], "little") for i in range(0, len(data) // 8 * 8, 8)]


class Crash:
    """Ends the process at the n-th change of the disk; `half`: with half of a write done.

    power: what was not synced is lost, each write and renaming by chance.
    """

    def __init__(self, number, half=False, power=False):
        self.left, self.half, self.chance = number, half, random.Random(number) if power else None
        self.unsynced = []  # (file, how to take it back)
        self.one = threading.RLock()  # at a time: training and merging both change the disk

    def install(self, patch):
        for name in CHANGES:
            patch.setattr(Disk, name, staticmethod(self.wrap(name, getattr(Disk, name))))

    def wrap(self, name, call):
        def change(*arguments):
            with self.one:
                return self.change(name, call, *arguments)

        return change

    def change(self, name, call, *arguments):
        self.left -= 1
        if self.left < 0:
            if self.half and name == "pwrite":
                fd, bytes_, offset = arguments
                size = len(bytes_) // 2 // 512 * 512
                os.pwrite(fd, bytes_[:size], offset)
            self.lose_power()
            os._exit(9)
        if self.chance:
            self.remember(name, *arguments)
        return call(*arguments)

    def remember(self, name, *arguments):
        if name == "pwrite":
            fd, bytes_, offset = arguments
            copy, before = os.dup(fd), os.pread(fd, len(bytes_), offset)
            before = before.ljust(len(bytes_), b"\0")
            self.unsynced.append((os.fstat(fd).st_ino, lambda: os.pwrite(copy, before, offset)))
        if name == "replace":
            _, target = arguments
            before = target.read_bytes() if target.exists() else None
            folder = os.stat(target.parent).st_ino
            self.unsynced.append((folder, lambda: before and target.write_bytes(before)))
        if name == "sync":
            synced = os.fstat(arguments[0]).st_ino
            self.unsynced = [(file, undo) for file, undo in self.unsynced if file != synced]

    def lose_power(self):
        for _, take_back in reversed(self.unsynced):
            if self.chance.random() < 0.7:
                take_back()


def crash_at(path, number, seed, half=False, power=False):
    """Whether the script came to its end before the n-th change; what is left is checked."""
    steps = list(script(seed, 4))

    def work(report):
        with pytest.MonkeyPatch.context() as patch:
            store = FileStore.create(path, NUM_ROWS, STRIDE, first_values, META, log_rows=100)
            Crash(number, half, power).install(patch)
            play(store, steps, report, Books())

    with child(work) as (process, pipe):
        results = reports(pipe)
        status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    assert status in (0, 9), "the child failed; see its traceback"
    books = Books()
    store = check_what_is_left(path, steps, results, books)
    play(store, script(seed + 1, 2), lambda result: None, books)  # and on from there
    store.merge_now()
    for generation, expected in books.versions.items():
        with store.view(generation) as view:
            assert_rows(view, expected)
    store.restore(books.best)
    assert_rows(store, books.versions[books.best])
    store.close()
    return status == 0
