"""The GPU benchmark on a pretended device: `python -m tests.support.rehearsal` and its arguments.

Parts run as they do on a GPU, each a process of its own, small; times are those of the host. The variable
HOTROWS_REHEARSED plants a fault: `lookup=die`, `layers=memory`, `probe=hang`, by the name of a part.
"""

import importlib
import itertools
import os
import signal
import sys
import time
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from unittest import mock

import torch
from benchmarks import gpu
from benchmarks.arms.gpu_arms import ARMS
from benchmarks.gpu_parts import timing, workloads

from hotrows import ops
from tests.support import pretend

FAULTS = "HOTROWS_REHEARSED"
PROPERTIES = SimpleNamespace(
    name="a pretended GPU", total_memory=80 << 30, major=9, minor=0, multi_processor_count=132,
    L2_cache_size=50 << 20,
)  # fmt: skip


class Event:
    """A time by the host's clock, since all work is done when it is launched."""

    def __init__(self, **options):
        self.time = 0.0

    def record(self, *stream):
        self.time = time.perf_counter()

    def elapsed_time(self, end):
        return max(1e3 * (end.time - self.time), 1e-6)


class _HostGenerator(torch.Generator):
    """The generator of a pretended device; a class, for modules of PyTorch name it in annotations."""

    def __new__(cls, device="cpu"):
        return super().__new__(cls)


@contextmanager
def gpu_of_benchmarks():
    """A pretended GPU with what only benchmarks ask of one."""
    with _gpu()() as device, ExitStack() as stack:
        for name, value in {
            "Event": Event, "get_device_properties": lambda *_: PROPERTIES,
            "get_device_name": lambda *_: PROPERTIES.name,
            "memory_stats": lambda *_: {"segment.all.allocated": 1}, "memory_reserved": lambda *_: 0,
            "memory_allocated": lambda *_: 0, "max_memory_allocated": lambda *_: 0,
            "reset_peak_memory_stats": lambda *_: None, "device_count": lambda: 1,
        }.items():  # fmt: skip
            stack.enter_context(mock.patch.object(torch.cuda, name, value))
        locks = {"lock": lambda block, _: device.lock(block), "unlock": lambda *_: None}
        for place, name in itertools.product(_modules(), locks):
            if hasattr(place, name):
                stack.enter_context(mock.patch.object(place, name, locks[name]))
        move = "hotrows.ops.triton.copy_rows.move"
        stack.enter_context(mock.patch(move, lambda *of: ops.copy_rows(*of[:4])))
        stack.enter_context(mock.patch.object(torch, "Generator", _HostGenerator))
        stack.enter_context(mock.patch.object(timing, "page_locked", _page_locked(device)))
        stack.enter_context(mock.patch.object(timing, "_FLUSH_BYTES", 1 << 10))
        on_host = workloads.zipf_stream  # drawn on the device, by a generator of the device
        for place in _modules():
            if getattr(place, "zipf_stream", None) is on_host:
                stack.enter_context(mock.patch.object(place, "zipf_stream", _on_host(on_host)))
            if getattr(place, "page_locked", None) is not None:
                stack.enter_context(mock.patch.object(place, "page_locked", _page_locked(device)))
            if hasattr(place, "PLAIN"):  # nor are sparse gradients
                stack.enter_context(mock.patch.object(place, "PLAIN", {}))
            if hasattr(place, "PAIRS"):  # nor cuDNN on packed sequences
                stack.enter_context(mock.patch.dict(place.PAIRS))
                del place.PAIRS["GRU"]
            if hasattr(place, "MEMORY"):
                memories = dict.fromkeys(place.MEMORY, _page_locked(device))
                stack.enter_context(mock.patch.dict(place.MEMORY, memories))
            if hasattr(place, "_profiled"):  # nor PyTorch's profiler of kernels
                stack.enter_context(mock.patch.object(place, "_profiled", lambda *_: [(0.0, 1.0)]))
            if hasattr(place, "run_tests"):  # they are run without a device
                tests = "tests/a.py::b PASSED [100%]"
                stack.enter_context(mock.patch.object(place, "run_tests", lambda *_, t=tests: (0, t)))
            if hasattr(place, "SMALL_ORDER"):
                order = tuple((*of, _pretended(arms)) for *of, arms in place.SMALL_ORDER)
                stack.enter_context(mock.patch.object(place, "SMALL_ORDER", order))
            if "as a graph" in getattr(place, "AS_GRAPH", {}):  # what PyTorch compiles is not pretended
                stack.enter_context(mock.patch.dict(place.AS_GRAPH))
                del place.AS_GRAPH["compiled"]
        yield device


def _gpu():
    """With accelerated tables only where a part has imported acceleration, and so PyTorch's compiler."""
    if "hotrows.acceleration" not in sys.modules:
        return pretend.gpu
    return importlib.import_module("tests.support.pretend_tables").gpu


def _pretended(arms):
    """Those that neither compile nor launch kernels themselves, nor need sparse gradients."""
    return tuple(
        arm for arm in arms if ARMS[arm].step != "compiled" and ARMS[arm].kind not in ("plain", "in-step")
    )


def _modules():
    return [module for name, module in sys.modules.items() if name.startswith("benchmarks.")]


def _on_host(stream):
    return lambda num_rows, count, device, seed=0: stream(num_rows, count, "cpu", seed)


def _page_locked(device):
    return lambda size, setting: device.lock(torch.zeros(size, dtype=torch.uint8))


def _plant(part, fault):
    def run(findings, setting):
        findings.check("begins", True)
        if fault == "die":
            os.kill(os.getpid(), signal.SIGSEGV)
        if fault == "memory":
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 90.00 GiB.")
        time.sleep(3600)

    sys.modules[f"benchmarks.gpu_parts.{gpu.PARTS[part].module or part}"] = SimpleNamespace(run=run)


def main():
    for planted in filter(None, os.environ.get(FAULTS, "").split(",")):
        _plant(*planted.split("="))
    part = sys.argv[-1]
    if part not in os.environ.get(FAULTS, ""):
        __import__(f"benchmarks.gpu_parts.{gpu.PARTS[part].module or part}")
    torch.set_num_threads(1)
    with gpu_of_benchmarks():
        sys.exit(gpu.main())


if __name__ == "__main__":
    main()
