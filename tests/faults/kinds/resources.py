"""Too little of something: disk, descriptors, memory, time that is what it seems."""

from __future__ import annotations

import itertools
import os
import random
import resource
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from hotrows.engine.storage.disk_io import Disk
from tests.faults.commands import Failed
from tests.faults.kinds.processes import a_job
from tests.faults.trials import Trial

_KIB, _MIB = 1 << 10, 1 << 20
_CGROUP = Path("/sys/fs/cgroup")


def _limited(trial: Trial, limit: Callable[[], object], must_be_done: bool = False) -> str:
    """A job within a limit, and once more without it where it was refused."""
    job, run_of = a_job(trial)
    trial.note(f"{job}, on {run_of}")
    trial.world.undisturbed(job, run_of)
    trial.world.begin(job, run_of)
    ended = trial.command(job, before=limit).end()
    if ended.is_killed or not ended.is_done:
        if must_be_done:
            raise Failed("lost", str(ended))
        trial.struck(ended)
    return trial.finish_and_compare(job, run_of)


def full_disk(trial: Trial) -> str:
    """A disk that is full after some KiB, and larger when the command is run again."""
    job, run_of = a_job(trial)
    size = trial.choose.choice([64, 128, 256, 512, 1024, 2048]) * _KIB
    trial.note(f"{job}, on {run_of}, on a disk of {size:,} bytes")
    trial.world.undisturbed(job, run_of)
    with _small_disk(trial.here) as disk:
        trial.world.begin(job, run_of)
        taken = sum(file.stat().st_blocks * 512 for file in disk.rglob("*"))
        _resize(disk, taken + size)
        ended = trial.command(job).end()
        if not ended.is_done:
            trial.struck(ended)
            if not any(words in ended.said for words in ("space", "full", "room")):
                raise Failed("lost", f"does not say that the disk is full: {ended}")
        _resize(disk, 64 * _MIB)
        return trial.finish_and_compare(job, run_of)


def short_files(trial: Trial) -> str:
    """Files that may not grow beyond a limit."""
    most = trial.choose.choice([0, 100, 1000, 3000, 10_000, 100_000, 600_000])
    trial.note(f"files of at most {most:,} bytes")
    return _limited(trial, lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (most, most)))


def descriptors(trial: Trial) -> str:
    """Few descriptors."""
    most = trial.choose.randint(8, 40)
    trial.note(f"{most} descriptors")
    return _limited(trial, lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (most, most)))


def address_space(trial: Trial) -> str:
    """Little memory that may be mapped."""
    more = trial.choose.choice([1, 4, 16, 32, 64, 128, 256, 512]) * _MIB
    trial.note(f"{more:,} bytes more than the command begins with")

    def limit() -> None:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        most = pages * resource.getpagesize() + more
        resource.setrlimit(resource.RLIMIT_AS, (most, most))

    return _limited(trial, limit)


def memory_of_a_group(trial: Trial) -> str:
    """Little memory for the control group, whose processes are killed where they take more."""
    most = trial.choose.choice([2, 4, 8, 16, 32, 64]) * _MIB
    trial.note(f"a control group of {most:,} bytes")
    job, run_of = a_job(trial)
    trial.world.undisturbed(job, run_of)
    trial.world.begin(job, run_of)
    with _group(most) as group:
        ended = trial.command(
            job, before=lambda: (group / "cgroup.procs").write_text(f"{os.getpid()}")
        ).end()
    if ended.is_killed or not ended.is_done:
        trial.struck(ended)
    return trial.finish_and_compare(job, run_of)


def slow_disk(trial: Trial) -> str:
    """Calls to the disk that take long now and then."""
    seed, share = trial.choose.random(), trial.choose.choice([0.02, 0.1, 0.5])
    trial.num_faults += 1

    def slow() -> None:
        choose = random.Random(seed)

        def slowed(call: Callable) -> Callable:
            def later(*arguments, **options):
                if choose.random() < share:
                    time.sleep(choose.choice([0.001, 0.01, 0.05]))
                return call(*arguments, **options)

            return later

        for name in ("fsync", "replace", "rename", "unlink", "pwrite", "pread", "link"):
            setattr(os, name, slowed(getattr(os, name)))
        for name in ("pread", "pwrite", "truncate", "sync", "replace", "unlink"):
            setattr(Disk, name, staticmethod(slowed(getattr(Disk, name))))

    return _limited(trial, slow, must_be_done=True)


def clock(trial: Trial) -> str:
    """A calendar clock that jumps by days, back too, and others that jump ahead."""
    seed = trial.choose.random()
    trial.num_faults += 1

    def jump() -> None:
        choose = random.Random(seed)

        def jumping(call: Callable[[], float], *steps: float) -> Callable[[], float]:
            offset = itertools.accumulate(iter(lambda: choose.choice(steps), None))
            ahead = [0.0]

            def now() -> float:
                if choose.random() < 0.05:
                    ahead[0] = next(offset)
                return call() + ahead[0]

            return now

        time.time = jumping(time.time, -86400.0 * 400, -3600.0, -1.0, 3600.0, 86400.0 * 365)
        time.monotonic = jumping(time.monotonic, 0.1, 60.0, 3600.0)
        time.perf_counter = jumping(time.perf_counter, 0.1, 60.0, 3600.0)

    return _limited(trial, jump, must_be_done=True)


@contextmanager
def _small_disk(folder: Path) -> Iterator[Path]:
    """A file system of its own; PermissionError where none may be mounted."""
    folder.mkdir()
    _command("mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(folder))
    try:
        yield folder
    finally:
        _command("umount", "-l", str(folder))
        folder.rmdir()


def _resize(disk: Path, size: int) -> None:
    _command("mount", "-o", f"remount,size={size}", str(disk))


@contextmanager
def _group(most: int) -> Iterator[Path]:
    """A control group whose processes may take so many bytes; PermissionError where none can be."""
    is_first_version = (_CGROUP / "memory").is_dir()
    group = _CGROUP / ("memory" if is_first_version else "") / f"hotrows-faults-{os.getpid()}"
    try:
        group.mkdir()
        name = "memory.limit_in_bytes" if is_first_version else "memory.max"
        (group / name).write_text(str(most))
    except OSError as error:
        raise PermissionError(f"no control group can be made: {error}") from None
    try:
        yield group
    finally:
        group.rmdir()


def _command(*words: str) -> None:
    ended = subprocess.run(words, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise PermissionError(f"{' '.join(words)}: {ended.stderr.strip()}")
