"""Times on the device, and the rates of the machine that they are measured against.

On a GPU: CUDA events around each call, its launches queued behind reads of far more than the L2, which
leave nothing in that to be found, or to be written back within the call. There are as many reads as the
host needs to launch the call, so that kernels are measured and not launches; what these take, of a thread
that waits for nothing, stands beside. On the host: the clock. Medians over the repeats.
"""

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu_parts.part import Setting

_FLUSH_BYTES = 1 << 30  # far more than the L2
_FLUSH_MS = 0.2  # that reading it takes at least: of an H200 at its peak
_WINDOW = 1.0  # seconds, so that a pipeline which drains at the end of one costs next to nothing


@dataclass(frozen=True)
class Timing:
    """Milliseconds of one call; launch_ms: of the host until it is launched, None without a GPU."""

    ms: float
    lowest: float
    highest: float
    launch_ms: float | None = None

    @property
    def is_of_the_host(self) -> bool:
        """Whether a step takes as long as its launches: the device waits for the host."""
        return self.launch_ms is not None and self.launch_ms > 0.9 * self.ms

    def to_json(self) -> dict:
        return asdict(self)


def timed(
    call: Callable[..., Any],
    setting: Setting,
    *,
    before: Callable[[], tuple] = lambda: (),
    repeats: int | None = None,
) -> Timing:
    """Times `call(*before())`; what `before` does is not counted."""
    repeats = repeats or setting.pick(20, 3)
    for _ in range(setting.pick(3, 1)):
        call(*before())
    if not setting.on_gpu:
        seen = _on_host(call, before, repeats)
        return Timing(median(seen), min(seen), max(seen))
    launches = []
    for _ in range(3):
        arguments = before()
        torch.cuda.synchronize()
        launches += _on_host(call, lambda arguments=arguments: arguments, 1)
    torch.cuda.synchronize()
    reads = num_reads(median(launches))
    seen = _on_gpu(call, before, repeats, reads)
    return Timing(median(seen), min(seen), max(seen), median(launches))


def num_reads(launch_ms: float) -> int:
    """How many reads of the block take longer than the launches of a call; a call that waits for the
    device itself is not hidden by more of them."""
    return min(math.ceil(launch_ms / _FLUSH_MS) + 1, 50)


def _on_gpu(
    call: Callable[..., Any], before: Callable[[], tuple], repeats: int, reads: int
) -> list[float]:
    block = torch.zeros(_FLUSH_BYTES // 4, device="cuda")
    total = torch.empty((), device="cuda")
    spans = []
    for _ in range(repeats):
        arguments = before()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        for _ in range(reads):
            torch.sum(block, 0, out=total)
        begin.record()
        call(*arguments)
        end.record()
        spans.append((begin, end))
    torch.cuda.synchronize()
    return [begin.elapsed_time(end) for begin, end in spans]


def _on_host(call: Callable[..., Any], before: Callable[[], tuple], repeats: int) -> list[float]:
    seen = []
    for _ in range(repeats):
        arguments = before()
        begin = time.perf_counter()
        call(*arguments)
        seen.append(1e3 * (time.perf_counter() - begin))
    return seen


def seconds_of(call: Callable[[], Any], setting: Setting) -> float:
    """Seconds of a call, with all that it launches on any stream, by the host's clock."""
    synchronize(setting)
    begin = time.perf_counter()
    call()
    synchronize(setting)
    return time.perf_counter() - begin


def step_time(step: Callable[[], Any], setting: Setting) -> Timing:
    """Times steps one behind the other, as training runs them: three windows of a second or more."""

    def window(num: int) -> float:
        def steps() -> None:
            for _ in range(num):
                step()

        return seconds_of(steps, setting)

    first = setting.pick(10, 1)
    window(first)
    num = steps_of_a_window(window(first) / first, setting)
    seen = [1e3 / num * window(num) for _ in range(setting.pick(3, 1))]
    launches = _on_host(step, tuple, setting.pick(5, 1)) if setting.on_gpu else None
    synchronize(setting)
    return Timing(median(seen), min(seen), max(seen), None if launches is None else median(launches))


def steps_of_a_window(seconds: float, setting: Setting) -> int:
    """How many steps of so many seconds make a window; where small: 2."""
    return setting.pick(max(math.ceil(_WINDOW / seconds), 10), 2)


def synchronize(setting: Setting) -> None:
    if setting.on_gpu:
        torch.cuda.synchronize()


def ceilings(setting: Setting) -> dict[str, float]:
    """GB/s of plain copies: within the device, read and written bytes both counted, and over the link.

    link_in: host to device, link_out: device to host, link_both: both at once, in sum.
    """
    size = setting.pick(4 << 30, 1 << 20)
    source = torch.empty(size, dtype=torch.uint8, device=setting.device)
    target = torch.empty_like(source)
    copy = timed(lambda: target.copy_(source), setting)
    rates = {"copy": 2 * size / copy.ms / 1e6}
    size = setting.pick(1 << 30, 1 << 20)
    near = [page_locked(size, setting) for _ in range(2)]
    far = [source[:size], target[:size]]
    into = timed(lambda: far[0].copy_(near[0], non_blocking=True), setting)
    out = timed(lambda: near[1].copy_(far[1], non_blocking=True), setting)
    both = seconds_of(lambda: _both_ways(near, far, setting), setting)
    rates["link_in"], rates["link_out"] = size / into.ms / 1e6, size / out.ms / 1e6
    rates["link_both"] = 8 * size / both / 1e9
    return rates


def _both_ways(near: list[Tensor], far: list[Tensor], setting: Setting) -> None:
    """Four copies each way, on a stream for either."""
    streams = [torch.cuda.Stream() for _ in range(2)] if setting.on_gpu else [None, None]
    for _ in range(4):
        for stream, target, source in zip(streams, (far[0], near[1]), (near[0], far[1]), strict=True):
            with torch.cuda.stream(stream):
                target.copy_(source, non_blocking=True)


def page_locked(size: int, setting: Setting) -> Tensor:
    """[size] bytes of host memory that the device reads and writes; by PyTorch's allocator."""
    return torch.zeros(size, dtype=torch.uint8, pin_memory=setting.on_gpu)


def lock(block: Tensor, setting: Setting) -> None:
    """Page-locks memory where it lies; it must have its pages for itself.

    PyTorch's allocator of pinned memory rounds up to a power of two: 80 GB would take 128 GiB.
    """
    if setting.on_gpu:
        status = int(torch.cuda.cudart().cudaHostRegister(block.data_ptr(), len(block), 3))  # mapped
        if status != 0:
            raise RuntimeError(f"{len(block) / 1e9:.1f} GB: cudaHostRegister gives error {status}")


def registered(size: int, setting: Setting) -> Tensor:
    """[size] bytes of host memory, locked where it lies."""
    block = torch.zeros(size, dtype=torch.uint8)
    lock(block, setting)
    return block


def unlock(block: Tensor, setting: Setting) -> None:
    if setting.on_gpu:
        torch.cuda.synchronize()
        torch.cuda.cudart().cudaHostUnregister(block.data_ptr())
