"""A folder is written by one process at a time, which a file in it names."""

import errno
import fcntl
import os
import shutil
import signal
import subprocess
import sys

import pytest

from hotrows.runtime.locks import Held, Lock, holder_of

_HOLDER = """
import os, sys
from pathlib import Path
from hotrows.runtime.locks import Lock
lock = Lock(Path(sys.argv[1]))
child = os.fork() if sys.argv[2] == "fork" else 0
if child or sys.argv[2] == "alone":
    print(child or "locked", flush=True)
sys.stdin.read()  # until it is killed
"""


def holder(folder, kind="alone"):
    return subprocess.Popen(
        [sys.executable, "-c", _HOLDER, folder, kind], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        text=True,
    )  # fmt: skip


def test_a_lock_keeps_others_out_and_says_who_has_it(tmp_path):
    lock = Lock(tmp_path / "run")
    with pytest.raises(Held, match=rf"locked by process {os.getpid()} on \S+, since \d{{4}}-.*\(.*\);"):
        Lock(tmp_path / "run")
    lock.check()
    lock.release()
    lock.release()
    assert not list((tmp_path / "run").iterdir())
    Lock(tmp_path / "run").release()


def test_a_lock_ends_with_its_process_even_where_a_fork_of_it_lives_on(tmp_path):
    with holder(tmp_path, "fork") as process:
        child = int(process.stdout.readline())
        try:
            with pytest.raises(Held, match=f"process {process.pid} on"):
                Lock(tmp_path)
            process.kill()
            process.wait()
            os.kill(child, 0)  # it is there
            lock = Lock(tmp_path)  # over the text of the one that was killed
            assert f"process {os.getpid()} on" in lock.path.read_text()
            lock.release()
        finally:
            os.kill(child, signal.SIGKILL)


def test_a_lock_waits_for_a_process_that_is_just_ending(tmp_path):
    with holder(tmp_path) as process:
        process.stdout.readline()
        ending = subprocess.Popen(["sh", "-c", f"sleep 0.5; kill -9 {process.pid}"])
        Lock(tmp_path, patience=60).release()
        ending.wait()


def test_a_fork_neither_holds_nor_ends_the_lock_of_its_parent(tmp_path):
    lock = Lock(tmp_path)
    child = os.fork()
    if child == 0:
        held = lock.is_held
        lock.release()
        os._exit(int(held))
    assert os.waitpid(child, 0)[1] == 0
    lock.check()
    with pytest.raises(Held):
        Lock(tmp_path)
    lock.release()


def test_a_folder_that_was_deleted_or_taken_over_is_noticed(tmp_path):
    lock = Lock(tmp_path / "run")
    text = lock.path.read_text()
    lock.path.write_text("process 1 on another host\n")
    with pytest.raises(ValueError, match="run was taken over by process 1 on another host: its file"):
        lock.check()
    lock.path.write_text(text)
    lock.check()
    shutil.rmtree(tmp_path / "run")
    with pytest.raises(ValueError, match="run was deleted or moved while it was written"):
        lock.check()
    lock.release()
    assert not (tmp_path / "run").exists()


def test_a_release_deletes_no_lock_of_another_process(tmp_path):
    lock = Lock(tmp_path)
    lock.path.write_text("process 1 on another host\n")
    lock.release()
    assert lock.path.read_text() == "process 1 on another host\n"


@pytest.mark.parametrize("number", ["ENOLCK", "EINVAL", "ENOTSUP", "EBADF", "EIO", "EPERM", "EACCES"])
def test_a_file_system_that_cannot_lock_is_no_other_process(tmp_path, monkeypatch, caplog, number):
    """All but four errors once counted as a holder: no waiting helped where a lock daemon was dead."""
    error = OSError(getattr(errno, number), os.strerror(getattr(errno, number)))

    def failing(fd, operation):
        raise error

    monkeypatch.setattr(fcntl, "flock", failing)
    assert holder_of(tmp_path) is None
    lock = Lock(tmp_path)
    lock.check()
    lock.release()
    said = f"has no locks ({error.strerror}): see that one process alone writes there"
    assert said in caplog.text


def test_a_lock_that_would_block_is_held(tmp_path, monkeypatch, caplog):
    def held(fd, operation):
        raise OSError(errno.EWOULDBLOCK, "Resource temporarily unavailable")

    monkeypatch.setattr(fcntl, "flock", held)
    with pytest.raises(Held):
        Lock(tmp_path)
    assert not caplog.text


@pytest.mark.parametrize("is_taken", [False, True])
def test_a_file_that_its_holder_deletes_before_it_is_locked_is_no_lock(tmp_path, monkeypatch, is_taken):
    """A process opens the file, whose holder then deletes it as it ends: its lock keeps no one out. One
    that took it as the folder's wrote the tables of a third process, which had locked the new file."""
    (tmp_path / "lock").touch()
    flock, others = fcntl.flock, []

    def late(fd, operation):
        monkeypatch.setattr(fcntl, "flock", flock)
        (tmp_path / "lock").unlink()
        others.extend([Lock(tmp_path)] if is_taken else [])
        flock(fd, operation)

    monkeypatch.setattr(fcntl, "flock", late)
    if is_taken:
        with pytest.raises(Held, match=f"process {os.getpid()} on"):
            Lock(tmp_path)
        others[0].check()
        return
    lock = Lock(tmp_path)
    with pytest.raises(Held):
        Lock(tmp_path)
    lock.release()
