"""The environment: what a run's numbers depend on beside its settings, and what `doctor` shows.

Nothing in it names the machine or its user.
"""

from __future__ import annotations

import os
import platform
import subprocess
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
        "gpu": torch.cuda.get_device_name(0) if torch.cuda.is_available() else None,
    }


def available_memory() -> int | None:
    """Bytes that may be taken without swapping; None where the system does not say."""
    for line in _text_of("/proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


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
