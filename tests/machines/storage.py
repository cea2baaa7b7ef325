"""Storage that fails: a file system of fsspec whose calls raise, or return half, by a seeded plan."""

import errno
import os
import random
import time

from hotrows.runtime.remote import files as remote_files
from hotrows.runtime.remote.files import open_files

_CALLS = ("find", "put_file", "pipe_file", "get_file", "cat_file", "rm_file")


class Faulty:
    """Calls a file system; `rate` of the calls fail, as busy servers and cut connections make them fail.

    faults: how many were injected, by kind. got: bytes read, by path.
    """

    def __init__(self, system, rate, seed=0):
        self._system, self._rate, self._random = system, rate, random.Random(seed)
        self.faults, self.got = {}, {}

    def __getattr__(self, name):
        call = getattr(self._system, name)
        if name not in _CALLS:
            return call

        def called(*arguments, **options):
            if self._random.random() < self._rate:
                return self._fail(name, call, arguments, options)
            result = call(*arguments, **options)
            if name == "get_file":
                self.got[arguments[0]] = self.got.get(arguments[0], 0) + os.path.getsize(arguments[1])
            return result

        return called

    def _fail(self, name, call, arguments, options):
        kind = self._random.choice(["503", "reset", "late", "half"])
        self.faults[kind] = self.faults.get(kind, 0) + 1
        if kind == "503":
            raise OSError(errno.EBUSY, "Service Unavailable")
        if kind == "late":  # the server has done it, and its answer is lost
            call(*arguments, **options)
            raise TimeoutError("Read timeout on endpoint URL")
        if kind == "half" and name == "get_file":  # nobody says that it is not all
            call(*arguments, **options)
            os.truncate(arguments[1], os.path.getsize(arguments[1]) // 2)
            return
        raise ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")


def make_faulty(url, monkeypatch, rate=0.0, seed=0):
    """The files below a URL, which fail from now on."""
    files = open_files(url)
    faulty = Faulty(files._system, rate, seed)
    monkeypatch.setattr(files, "_system", faulty)
    monkeypatch.setattr(remote_files, "_FIRST_PAUSE", 0.0005)
    monkeypatch.setattr(remote_files, "_MOST_PAUSE", 0.001)
    return faulty


def slow(faulty, seconds):
    """Makes every file take so long to be sent."""
    call = faulty._system.put_file
    faulty.put_file = lambda *a, **o: (time.sleep(seconds), call(*a, **o))[1]
