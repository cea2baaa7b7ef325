"""What cores and memory there are: of the machine, and of the container that the process is in."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import hotrows
from hotrows.runtime import machine
from hotrows.runtime.machine import available_memory, num_cores, num_threads, total_memory

MEMINFO = "MemTotal:  24000 kB\nMemFree:  1000 kB\nMemAvailable:  20000 kB\n"
SECOND = {
    "/proc/self/cgroup": "0::/a/b\n",
    "/sys/fs/cgroup/a/memory.max": "9000000\n",
    "/sys/fs/cgroup/a/memory.current": "3000000\n",
    "/sys/fs/cgroup/a/memory.stat": "anon 5\ninactive_file 500000\nactive_file 7\n",
    "/sys/fs/cgroup/a/b/memory.max": "max\n",
    "/sys/fs/cgroup/a/b/memory.current": "2000000\n",
}
FIRST = {
    "/proc/self/cgroup": "4:memory:/on/the/host\n3:cpuset:/\n",
    "/sys/fs/cgroup/memory/memory.limit_in_bytes": "8000000\n",
    "/sys/fs/cgroup/memory/memory.usage_in_bytes": "3000000\n",
    "/sys/fs/cgroup/memory/memory.stat": "inactive_file 1\ntotal_inactive_file 20\n",
}
OVER = {**FIRST, "/sys/fs/cgroup/memory/memory.usage_in_bytes": "9000000\n"}
FREE = {**FIRST, "/sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n"}
PHYSICAL = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


@pytest.fixture
def texts(monkeypatch):
    """What the files of the system say."""
    contents = {"/proc/meminfo": MEMINFO}
    monkeypatch.setattr(machine, "_text_of", lambda path: contents.get(path, ""))
    return contents


@pytest.mark.parametrize(
    ("files", "expected", "total"),
    [
        ({}, 20000 * 1024, PHYSICAL),
        (SECOND, 6500000, 9000000),
        (FIRST, 5000020, 8000000),
        (OVER, 0, 8000000),
        (FREE, 20000 * 1024, PHYSICAL),
    ],
)
def test_the_least_of_all_limits_counts(texts, files, expected, total):
    texts |= files
    assert available_memory() == expected
    assert total_memory() == total


def test_a_system_that_does_not_say_gives_none(texts):
    texts.clear()
    assert available_memory() is None


def test_here_it_is_a_number_of_bytes():
    available = available_memory()
    assert available is None or available > 1 << 20
    assert 1 << 20 < total_memory() <= PHYSICAL


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, 16),
        ({"/proc/self/cgroup": "0::/a/b\n", "/sys/fs/cgroup/a/cpu.max": "250000 100000\n"}, 3),
        ({"/proc/self/cgroup": "0::/a/b\n", "/sys/fs/cgroup/a/cpu.max": "max 100000\n"}, 16),
        ({"/proc/self/cgroup": "0::/\n", "/sys/fs/cgroup/cpu.max": "10 100000\n"}, 1),
        (
            {
                "/proc/self/cgroup": "4:cpu,cpuacct:/\n",
                "/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "400000\n",
                "/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
            },
            4,
        ),
        (
            {
                "/proc/self/cgroup": "5:memory:/\n4:cpuacct,cpu:/docker/a\n0::/\n",
                "/sys/fs/cgroup/cpu/cpu.cfs_quota_us": "150000\n",
                "/sys/fs/cgroup/cpu/cpu.cfs_period_us": "50000\n",
            },
            3,
        ),
        (
            {
                "/proc/self/cgroup": "4:cpu:/\n",
                "/sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
                "/sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
            16,
        ),
    ],
)
def test_cores_are_those_of_the_process_and_of_its_container(texts, monkeypatch, files, expected):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(16)), raising=False)
    texts |= files
    assert num_cores() == num_threads(None) == expected
    assert num_threads(0) == 1
    assert num_threads(5) == 5


PRETENDED = """
import os, pathlib, sys
if sys.argv[1] == "torch first":
    import torch
    torch.set_num_threads(16)
os.sched_getaffinity = lambda process: set(range(16))
quota, read = "150000 100000", pathlib.Path.read_text
texts = {"/proc/self/cgroup": "0::/pod/a", "/sys/fs/cgroup/pod/cpu.max": quota}
pathlib.Path.read_text = lambda self, *how, **more: texts.get(str(self)) or read(self, *how, **more)
import hotrows, torch
from hotrows.runtime.machine import num_threads
print(torch.get_num_threads(), num_threads(None))
"""


@pytest.mark.parametrize(
    ("order", "given", "expected"),
    [
        ("hotrows first", {}, "2 2"),
        ("torch first", {}, "2 2"),
        ("torch first", {"OMP_NUM_THREADS": "5"}, "16 2"),
    ],
)
def test_threads_follow_the_quota_of_a_container_unless_the_user_says_how_many(order, given, expected):
    """PyTorch took a thread for each of the host's cores: those beyond the quota were stopped, and each
    step waited for them."""
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    environment |= {"PYTHONPATH": str(Path(hotrows.__file__).parents[1]), **given}
    command = [sys.executable, "-c", PRETENDED, order]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == expected


@pytest.mark.parametrize(
    ("given", "expected"),
    [({}, "3000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "active"}, "None")],
)
def test_waiting_threads_spin_briefly_unless_the_user_says_otherwise(given, expected):
    ours = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
    environment = {name: value for name, value in os.environ.items() if name not in ours} | given
    environment["PYTHONPATH"] = str(Path(hotrows.__file__).parents[1])
    program = "import hotrows, os; print(os.environ.get('GOMP_SPINCOUNT'))"
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.stdout.split() == [expected]
