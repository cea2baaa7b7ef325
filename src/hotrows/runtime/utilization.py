"""How busy the machine was for a while, and how much memory this process has taken.

used = Utilization(device)
used.begin()
...                     # what is measured
used.end()              # {"cores_busy": 0.93, "machine_busy": 0.97, "peak_memory_bytes": ...}
"""

from __future__ import annotations

import time

from hotrows.runtime.device import HOST, Device
from hotrows.runtime.machine import machine_times, num_cores, peak_memory


class Utilization:
    """Shares of the time between `begin` and `end`. device: a GPU's are noted, too."""

    def __init__(self, device: Device = HOST) -> None:
        self._device, self._num_cores = device, num_cores()
        self.begin()

    def begin(self) -> None:
        self._clock, self._process = time.perf_counter(), time.process_time()
        self._machine = machine_times()

    def end(self) -> dict[str, float]:
        """Returns by name, where the system says it:

        cores_busy: of the cores that this process may use, the share of the time that it used.
        machine_busy: the share of the time of all cores of the machine that any process used.
        peak_memory_bytes: the most memory that this process has had so far, mapped files included.
        gpu_busy, gpu_memory_busy: the shares of the last second, or less, in which a kernel ran, and in
        which the GPU's memory was read or written (with `nvidia-ml-py`).
        peak_gpu_memory_bytes: allocated by PyTorch.
        """
        seconds = max(time.perf_counter() - self._clock, 1e-9)
        figures = {"cores_busy": (time.process_time() - self._process) / (seconds * self._num_cores)}
        if self._machine and (now := machine_times()):
            busy, idle = (after - before for after, before in zip(now, self._machine, strict=True))
            figures["machine_busy"] = busy / max(busy + idle, 1)
        if (peak := peak_memory()) is not None:
            figures["peak_memory_bytes"] = peak
        return figures | self._device.figures()
