"""What memory there is: of the machine, and of the container that the process is in."""

import pytest

from hotrows import environment
from hotrows.environment import available_memory

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


@pytest.mark.parametrize(
    ("files", "expected"),
    [({}, 20000 * 1024), (SECOND, 6500000), (FIRST, 5000020), (OVER, 0), (FREE, 20000 * 1024)],
)
def test_the_least_of_all_limits_counts(monkeypatch, files, expected):
    texts = {"/proc/meminfo": MEMINFO, **files}
    monkeypatch.setattr(environment, "_text_of", lambda path: texts.get(path, ""))
    assert available_memory() == expected


def test_a_system_that_does_not_say_gives_none(monkeypatch):
    monkeypatch.setattr(environment, "_text_of", lambda path: "")
    assert available_memory() is None


def test_here_it_is_a_number_of_bytes():
    found = available_memory()
    assert found is None or found > 1 << 20
