"""Bounds the memory of a benchmark's process, page cache included, by a cgroup (version 1)."""

import os
from pathlib import Path

_GROUPS = Path("/sys/fs/cgroup/memory")


class MemoryLimit:
    """A cgroup of at most `limit` bytes; `holds` says whether this machine lets us make it."""

    def __init__(self, name: str, limit: int) -> None:
        self.group = _GROUPS / f"hotrows-{name}"
        try:
            self.group.mkdir(exist_ok=True)
            os.sync()
            Path("/proc/sys/vm/drop_caches").write_text("3")  # what others left in the page cache
            (self.group / "memory.force_empty").write_text("0")
            (self.group / "memory.limit_in_bytes").write_text(str(limit))
            (self.group / "memory.max_usage_in_bytes").write_text("0")
        except OSError as error:
            print(f"  no memory cgroup ({error}): memory is NOT limited")
            self.holds = False
        else:
            self.holds = True

    def enter(self) -> None:
        """Puts the process that calls it into the group, where there is one: for `preexec_fn`."""
        if self.holds:
            (self.group / "cgroup.procs").write_text(str(os.getpid()))
