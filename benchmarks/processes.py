"""What the processes of an arm use: CPU time, memory, and bytes that pass between them.

Read from /proc, for processes that still run. Where /proc is missing all of it is 0.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

PROC = Path("/proc")


class Traffic(NamedTuple):
    """What has gone over the loopback interface: of every process of this machine."""

    num_bytes: int
    num_packets: int


def cpu_seconds(pids: Iterable[int]) -> float:
    """CPU time of these processes since they began, together."""
    return sum(_ticks(pid) for pid in pids) / os.sysconf("SC_CLK_TCK")


def peak_rss_mb(pids: Iterable[int]) -> float:
    """The most memory that each process held, added up: what they share counts for each."""
    return sum(_peak_rss_kb(pid) for pid in pids) / 1024


def loopback() -> Traffic:
    path = PROC / "net" / "dev"
    if path.exists():
        for line in path.read_text().splitlines():
            interface, _, counts = line.partition(":")
            if interface.strip() == "lo":
                return Traffic(*map(int, counts.split()[:2]))
    return Traffic(0, 0)


def _ticks(pid: int) -> int:
    path = PROC / str(pid) / "stat"
    if not path.exists():
        return 0
    fields = path.read_text().rpartition(")")[2].split()  # behind the name, which may hold spaces
    return int(fields[11]) + int(fields[12])  # utime, stime


def _peak_rss_kb(pid: int) -> int:
    path = PROC / str(pid) / "status"
    if not path.exists():
        return 0
    facts = dict(line.split(":", 1) for line in path.read_text().splitlines())
    return int(facts.get("VmHWM", "0 kB").split()[0])
