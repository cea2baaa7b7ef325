"""The machine: its cores and memory, as far as this process may use them, and its software.

Affinity and the limits of containers (control groups of either version) are respected. `environment`
is stored with every run; nothing in it names the machine or its user. Importing hotrows imports this
module, which therefore imports what it needs where it needs it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hotrows.version import VERSION


def environment() -> dict[str, Any]:
    """Versions, processor, cores, memory, native core, GPU and commit; plain values for JSON."""
    import platform

    import numpy
    import torch

    from hotrows.runtime import native

    return {
        "hotrows": VERSION,
        "commit": _commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "system": f"{platform.system()} {platform.machine()}",
        "processor": processor(),
        "cores": num_cores(),
        "threads": torch.get_num_threads(),
        "memory_gib": round(total_memory() / 2**30, 1),
        "huge_pages": _huge_pages(),
        "native_core": native.name(),
        **_gpu(),
    }


def _gpu() -> dict[str, Any]:
    """The first GPU: its name, memory and compute capability, and the versions of CUDA and Triton."""
    import importlib.metadata

    import torch

    if not torch.cuda.is_available():
        return {"gpu": None}
    try:
        triton = importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError:
        triton = None
    gpu = torch.cuda.get_device_properties(0)
    return {
        "gpu": gpu.name,
        "gpu_memory_gib": round(gpu.total_memory / 2**30, 1),
        "gpu_capability": f"{gpu.major}.{gpu.minor}",
        "cuda": torch.version.cuda,
        "triton": triton,
    }


def cache_folder() -> Path:
    """Where this user keeps what can be made again; OSError: the user has no home."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if not cache.is_absolute():
        try:
            cache = Path.home() / ".cache"
        except RuntimeError:
            raise OSError("there is no home for a cache folder: set HOME or XDG_CACHE_HOME") from None
    return cache / "hotrows"


def num_cores() -> int:
    """Cores that this process may run on: by its affinity and by any container's limits, at least 1."""
    return max(1, min([_usable_cores(), *_core_limits()]))


def _usable_cores() -> int:
    """Cores by affinity alone, as OpenMP counts them."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def limit_threads() -> None:
    """Lets loops of PyTorch and of the native core have at most as many threads as `num_cores`.

    OpenMP knows no quota: of threads beyond it some are stopped for the rest of each period, while the
    others wait for them. Does nothing where the user says how many (OMP_NUM_THREADS), or nothing limits.
    """
    cores = num_cores()
    if "OMP_NUM_THREADS" in os.environ or cores >= _usable_cores():
        return
    os.environ["OMP_NUM_THREADS"] = str(cores)  # read when OpenMP is loaded, and by child processes
    torch = sys.modules.get("torch")
    if torch is not None and torch.get_num_threads() > cores:
        torch.set_num_threads(cores)


def num_threads(requested: int | None) -> int:
    """How many threads to use: as many as requested, from 1 to 1,024; None: one for each core."""
    return num_cores() if requested is None else min(max(1, requested), 1024)


def total_memory() -> int:
    """Bytes of memory: the machine's, or less where a container is limited to less."""
    if hasattr(os, "sysconf"):
        physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    else:
        physical = _windows_memory()
    return min([physical, *(limit for limit, _ in _memory_limits())])


def _windows_memory() -> int:
    import ctypes

    kibibytes = ctypes.c_ulonglong()
    kernel = ctypes.windll.kernel32  # type: ignore[attr-defined]
    if not kernel.GetPhysicallyInstalledSystemMemory(ctypes.byref(kibibytes)):
        raise OSError("Windows does not say how much memory there is")
    return kibibytes.value * 1024


def available_memory() -> int | None:
    """Bytes that may be taken without swapping, by the machine's and any container's limits; None
    where the system does not say."""
    lines = _text_of("/proc/meminfo").splitlines()
    on_machine = [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    return min([*on_machine, *(unused for _, unused in _memory_limits())], default=None)


def peak_memory() -> int | None:
    """The most bytes of memory that this process has had; None where the system does not say."""
    lines = _text_of("/proc/self/status").splitlines()
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")), None)


def machine_times() -> tuple[int, int] | None:
    """Ticks since the start in which cores of the machine were busy, and idle; None where the system does
    not say."""
    first = _text_of("/proc/stat").partition("\n")[0].split()
    if first[:1] != ["cpu"] or len(first) < 6:
        return None
    ticks = [int(number) for number in first[1:9]]  # guests are in the first two already
    idle = ticks[3] + ticks[4]
    return sum(ticks) - idle, idle


def _memory_limits() -> Iterator[tuple[int, int]]:
    """(bytes allowed, bytes of these unused) of each control group of this process with a limit."""
    for folder, version in _groups("memory"):
        limit, usage, cached = {
            1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file "),
            2: ("memory.max", "memory.current", "inactive_file "),
        }[version]
        numbers = [_text_of(str(folder / name)).strip() for name in (limit, usage)]
        if all(text.isdigit() for text in numbers):  # without a limit: max, or no file
            stat = _text_of(str(folder / "memory.stat")).splitlines()
            reclaimable = sum(int(line.split()[1]) for line in stat if line.startswith(cached))
            allowed, used = map(int, numbers)
            yield allowed, max(0, allowed - used + reclaimable)


def _core_limits() -> Iterator[int]:
    """Cores that each control group of this process with a quota allows, rounded up."""
    for folder, version in _groups("cpu"):
        names = ("cpu.cfs_quota_us", "cpu.cfs_period_us") if version == 1 else ("cpu.max",)
        numbers = " ".join(_text_of(str(folder / name)) for name in names).split()
        if len(numbers) == 2 and all(text.isdigit() for text in numbers):  # no quota: max, or -1
            quota, period = map(int, numbers)
            yield -(-quota // period)


def _groups(controller: str) -> Iterator[tuple[Path, int]]:
    """The folders of this process's control groups that may limit `controller`, and their version."""
    for line in _text_of("/proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        group = Path(path.lstrip("/"))
        mounted = {controllers, controller} if controllers else {""}  # cpuacct,cpu is mounted as cpu, too
        for folder in {group, *group.parents}:
            for name in mounted:
                yield Path("/sys/fs/cgroup") / name / folder, 1 if controllers else 2


def processor() -> str:
    """The processor's model, as the system calls it."""
    import platform

    lines = _text_of("/proc/cpuinfo").splitlines()
    named = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.processor() or platform.machine()


def vendor() -> str:
    """The processor's vendor as Linux names it (AuthenticAMD, GenuineIntel), or ""."""
    lines = _text_of("/proc/cpuinfo").splitlines()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("vendor_id")), "")


def _huge_pages() -> str | None:
    """`always`, `madvise` (enough for tables) or `never`, where the system says so."""
    text = _text_of("/sys/kernel/mm/transparent_hugepage/enabled")
    return text[text.index("[") + 1 : text.index("]")] if "[" in text else None


def _commit() -> str | None:
    """The commit of this package, if it is in a git repository: not in one that only surrounds it."""
    import subprocess

    how: dict[str, Any] = {"cwd": Path(__file__).parent, "capture_output": True, "timeout": 5}
    try:
        for command in (f"ls-files --error-unmatch {Path(__file__).name}", "rev-parse HEAD"):
            done = subprocess.run(["git", *command.split()], text=True, check=True, **how)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _text_of(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""
