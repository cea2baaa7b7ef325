"""Machines of a job before its first step: do they fit together, and are all still there?"""

from __future__ import annotations

import os
import platform
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch

from hotrows.engine.distributed.all_or_none import together
from hotrows.engine.distributed.comm import Ranks
from hotrows.engine.distributed.job import RankLost
from hotrows.engine.distributed.process_group import Processes
from hotrows.runtime.background import Worker
from hotrows.runtime.remote.copies import named, origin_of
from hotrows.runtime.units import format_bytes
from hotrows.version import VERSION

Result = TypeVar("Result")
SECONDS = 10.0  # in which a rank that is lost is noticed
_BEAT, _GRACE = 1.0, 3.0  # between two signs of life; for the error that the main thread has of it
_MOST_APART = 60.0  # seconds between two clocks


@dataclass(frozen=True)
class _Machine:
    name: str
    versions: dict[str, str]
    time: float


def met(ranks: Ranks, begin: Callable[[], Result]) -> Result:
    """Collective: the result of a first step, such as opening the data. What fails on one rank fails on
    all, in seconds."""
    with watched(ranks):
        return together(ranks, begin)


def compare(ranks: Ranks) -> None:
    """Collective: ValueError on all ranks, with rank, machine and reason, if one has other versions than
    rank 0, or another time."""
    ranks.barrier()
    machine = _Machine(
        platform.node(), {"hotrows": VERSION, "torch": str(torch.__version__)}, time.time()
    )
    first, *others = ranks.gather_objects(machine)
    for rank, other in enumerate(others, 1):
        for what, version in first.versions.items():
            if other.versions[what] != version:
                raise ValueError(
                    f"rank {rank} on {other.name} has {what} {other.versions[what]}, and rank 0 on "
                    f"{first.name} {what} {version}: install the same version on all machines"
                )
        ahead = other.time - first.time
        if abs(ahead) > _MOST_APART:
            raise ValueError(
                f"the clock of rank {rank} on {other.name} is {abs(ahead):,.0f} s "
                f"{'ahead of' if ahead > 0 else 'behind'} that of rank 0 on {first.name}: set the clocks "
                f"of all machines by the network's time (NTP)"
            )


def check_room(ranks: Ranks, run: Path, num_bytes: int) -> None:
    """Collective: ValueError on all ranks if a disk has no room for a full checkpoint of its ranks.

    num_bytes: of this rank's part of one.
    """
    is_apart = origin_of(run) is not None
    disk = (platform.node(), os.stat(run).st_dev) if is_apart else None  # None: the one that all share
    disks = ranks.gather_objects((disk, num_bytes, shutil.disk_usage(run).free, str(run)))
    for disk in dict.fromkeys(disk for disk, *_ in disks):
        of_disk = [(needed, free, place) for other, needed, free, place in disks if other == disk]
        needed, (_, free, place) = sum(needed for needed, *_ in of_disk), of_disk[0]
        if needed > free:
            where = f"{place} on {disk[0]}" if disk else named(Path(place))
            advice = "another folder for copies, --scratch" if disk else "another folder"
            raise ValueError(
                f"a checkpoint takes {format_bytes(needed)}, and the disk of {where} has "
                f"{format_bytes(free)} free: make room, or name {advice}"
            )


@contextmanager
def watched(ranks: Ranks) -> Iterator[None]:
    """Compares the machines. Within the block a rank that is lost ends all processes in seconds, whatever
    they wait for, where a collective alone would wait for `--timeout`. Collective, at begin and end."""
    compare(ranks)
    if not isinstance(ranks, Processes):
        yield
        return
    beats, is_done = ranks.within(SECONDS), threading.Event()

    def beat() -> None:
        try:
            while not all(beats.gather_objects(is_done.is_set())):
                is_done.wait(_BEAT)
        except RankLost as error:
            if not is_done.wait(_GRACE):  # the main thread does not know of it
                sys.stderr.write(f"hotrows: rank {ranks.rank}: {error}\n")
                sys.stderr.flush()
                os._exit(1)

    worker = Worker("hotrows-watch", beat, is_done.set, patience=0)
    try:
        yield
    except BaseException:
        is_done.set()
        raise
    is_done.set()
    worker.wait()
