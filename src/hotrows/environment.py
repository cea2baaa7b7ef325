"""The environment: what a run's numbers depend on beside its settings, and what `doctor` shows.

Nothing in it names the machine or its user.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import torch

from hotrows import native
from hotrows.version import VERSION


def environment() -> dict[str, Any]:
    """Versions, processor, cores, memory, native core, GPU and commit; plain values for JSON."""
    return {
        "hotrows": VERSION,
        "commit": _commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "system": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "cores": _num_cores(),
        "threads": torch.get_num_threads(),
        "memory_gib": _memory_gib(),
        "huge_pages": _huge_pages(),
        "native_core": native.name(),
        **_gpu(),
    }


def _gpu() -> dict[str, Any]:
    """The first GPU, its memory and what runs on it."""
    if not torch.cuda.is_available():
        return {"gpu": None}
    found = torch.cuda.get_device_properties(0)
    return {
        "gpu": found.name,
        "gpu_memory_gib": round(found.total_memory / 2**30, 1),
        "gpu_capability": f"{found.major}.{found.minor}",
        "cuda": torch.version.cuda,
        "triton": _version_of("triton"),
    }


def _version_of(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def available_memory() -> int | None:
    """Bytes that may be taken without swapping, by the machine's and any container's limits; None
    where the system does not say."""
    return min([*_available_on_machine(), *_available_in_groups()], default=None)


def _available_on_machine() -> Iterator[int]:
    for line in _text_of("/proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            yield int(line.split()[1]) * 1024


def _available_in_groups() -> Iterator[int]:
    """What is left in each control group of this process that has a limit, of either version."""
    names = {
        "": ("memory.max", "memory.current", "inactive_file "),
        "memory": ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file "),
    }
    for line in _text_of("/proc/self/cgroup").splitlines():
        _, kinds, path = line.split(":", 2)
        if kinds not in names:
            continue
        own, (limit, usage, cached) = Path(path.lstrip("/")), names[kinds]
        for group in {own, *own.parents}:
            folder = Path("/sys/fs/cgroup") / kinds / group
            found = [_text_of(str(folder / name)).strip() for name in (limit, usage)]
            if all(text.isdigit() for text in found):  # without a limit: max, or no file
                stat = _text_of(str(folder / "memory.stat")).splitlines()
                given_back = sum(int(of.split()[1]) for of in stat if of.startswith(cached))
                yield max(0, int(found[0]) - int(found[1]) + given_back)


def _processor() -> str:
    """The processor's model, as the system calls it."""
    lines = _text_of("/proc/cpuinfo").splitlines()
    named = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.processor() or platform.machine()


def _num_cores() -> int:
    """Cores this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _memory_gib() -> float | None:
    if "SC_PHYS_PAGES" not in os.sysconf_names:
        return None
    return round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1)


def _huge_pages() -> str | None:
    """`always`, `madvise` (enough for tables) or `never`, where the system says so."""
    text = _text_of("/sys/kernel/mm/transparent_hugepage/enabled")
    return text[text.index("[") + 1 : text.index("]")] if "[" in text else None


def _commit() -> str | None:
    """The commit of the working directory, if it is one of git's."""
    command = ["git", "rev-parse", "--verify", "HEAD"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return found.stdout.strip() if found.returncode == 0 else None


def _text_of(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""
