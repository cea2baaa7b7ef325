"""The cases of the network: the cable between two hosts is unplugged while they train, or slow."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.faults import jobs
from tests.faults.cases import undisturbed
from tests.faults.inject import Fault
from tests.faults.torchruns import Host, start_on

OUT_FOR = 10  # seconds
_SLOWLY = tuple(Fault("lag", "forward", rank, 1, attempt=0) for rank in range(4))


def a_short_cut_is_waited_out(data: Path, run: Path, hosts: Sequence[Host], per_host: int = 1) -> None:
    """The timeout is longer than the cut: the run goes on where it was."""
    with _unplugged_while_training(hosts, data, run, per_host, timeout=60) as (started, said):
        time.sleep(OUT_FOR)
        hosts[1].plug(True)
        assert _all_end(started, 120) == [0, 0], _texts(said)
    assert "hotrows:" not in _texts(said)
    assert jobs.checksums(run) == undisturbed(data, 2 * per_host)


def a_short_cut_is_a_restart(data: Path, run: Path, hosts: Sequence[Host], per_host: int = 1) -> None:
    """The timeout is shorter: the ranks give up, and torchrun begins again by itself."""
    with _unplugged_while_training(hosts, data, run, per_host, "--max-restarts", "3", timeout=4) as (
        started,
        said,
    ):
        time.sleep(OUT_FOR)
        hosts[1].plug(True)
        assert _all_end(started, 180) == [0, 0], _texts(said)
    assert re.search(r"hotrows: rank \d: (waited more than 4 s for|lost) another", _texts(said))
    assert jobs.checksums(run) == undisturbed(data, 2 * per_host)


def a_cut_for_good_ends_the_ranks(
    data: Path, run: Path, hosts: Sequence[Host], per_host: int = 1, timeout: float = 6
) -> float:
    """Every rank gives up after the timeout; started again on a whole network, the run goes on.

    Gives the seconds until the last one gave up.
    """
    with _unplugged_while_training(hosts, data, run, per_host, timeout=timeout) as (_, said):
        begun = time.monotonic()
        words = [f"hotrows: rank {rank}: " for rank in range(2 * per_host)]
        _wait(lambda: all(word in _texts(said) for word in words), timeout + 15, said)
        seconds = time.monotonic() - begun
    hosts[1].plug(True)
    again = start_on(hosts, data, run, said, ranks_per_host=per_host, timeout=60, more=["--resume"])
    assert _all_end(again, 120) == [0, 0], _texts(said)
    assert jobs.checksums(run) == undisturbed(data, 2 * per_host)
    return seconds


def a_slow_cable_is_waited_for(data: Path, run: Path, hosts: Sequence[Host], per_host: int = 1) -> None:
    """Every message takes its time, and the run ends as on a fast one."""
    said = run.with_name(f"{run.name}-said")
    for host in hosts:
        host.slow_down("1mbit")
    started = start_on(hosts, data, run, said, ranks_per_host=per_host, timeout=60)
    try:
        assert _all_end(started, 180) == [0, 0], _texts(said)
    finally:
        for process in started:
            _end(process)
    assert "hotrows:" not in _texts(said)
    assert jobs.checksums(run) == undisturbed(data, 2 * per_host)


@contextmanager
def _unplugged_while_training(
    hosts: Sequence[Host], data: Path, run: Path, per_host: int, *torchrun: str, timeout: float
) -> Iterator[tuple[list[subprocess.Popen], Path]]:
    """A job that has saved a checkpoint, and whose cable has just been unplugged."""
    said = run.with_name(f"{run.name}-said")
    started = start_on(
        hosts, data, run, said, *torchrun, ranks_per_host=per_host, timeout=timeout, faults=_SLOWLY
    )
    try:
        _wait(lambda: run.exists() and jobs.step_of(run) >= 3, 90, said)
        hosts[1].plug(False)
        yield started, said
    finally:
        for process in started:
            _end(process)


def _wait(until: Callable[[], bool], patience: float, said: Path) -> None:
    begun = time.monotonic()
    while not until():
        assert time.monotonic() - begun < patience, _texts(said)
        time.sleep(0.05)


def _all_end(started: Sequence[subprocess.Popen], patience: float) -> list[int]:
    return [process.wait(patience) for process in started]


def _end(process: subprocess.Popen) -> None:
    """torchrun and the ranks it has started, each of which has a session of its own."""
    children = subprocess.run(
        ["pgrep", "-P", str(process.pid)], capture_output=True, text=True, check=False
    ).stdout.split()
    for pid in [*map(int, children), process.pid]:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    process.wait()


def _texts(said: Path) -> str:
    return "".join(path.read_text() for path in sorted(said.parent.glob(f"{said.name}-*")))
