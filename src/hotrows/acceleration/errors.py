"""Errors that a device finds: raised once the host knows of them without having to wait.

    check(bad, error)       bad: [1] int64, the place of what is wrong, or -1; error(place) is raised

`error` must hold no large tensors, since it may live for some steps.

On the host that is at once. On a device it is some lookups later, when the steps launched meanwhile bound
how far the host is ahead, or at `check_all`, before anything is read as a whole.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from hotrows.runtime import device as devices
from hotrows.runtime.device import Device, Mark

_MOST = 64  # lookups that the host may be ahead of the device

Found = Callable[[int], Exception]


class _Pending(threading.local):
    """Checks of one thread: device, number on its way to the host, its mark, and the error."""

    def __init__(self) -> None:
        self.checks: deque[tuple[Device, Tensor, Mark, Found]] = deque()


_PENDING = _Pending()


def check(bad: Tensor, error: Found) -> None:
    """Raises the error if a lookup found one; on a device, later."""
    if bad.device.type == "cpu":
        if int(bad) >= 0:
            raise error(int(bad))
        return
    device = devices.device_of(bad.device)
    number = device.staging(1, dtype=bad.dtype)
    number.copy_(bad, non_blocking=True)
    _PENDING.checks.append((device, number, device.mark(), error))
    while len(_PENDING.checks) > _MOST:
        _raise_oldest()


def check_all() -> None:
    """Waits for all that was launched, and raises the first error of it."""
    while _PENDING.checks:
        _raise_oldest()


def _raise_oldest() -> None:
    device, number, mark, error = _PENDING.checks.popleft()
    device.finish(mark)
    if int(number) >= 0:
        _PENDING.checks.clear()
        raise error(int(number))


def refuse_capture(weights: Iterable[Tensor]) -> None:
    """Raises where a CUDA graph is being captured: it would repeat one step's number and rows."""
    if any(weight.is_cuda for weight in weights) and torch.cuda.is_current_stream_capturing():
        raise RuntimeError(
            "tables of hotrows.accelerate cannot be part of a CUDA graph: which rows a step reads, and "
            "how many steps these have missed, differ from step to step, and a graph would repeat those "
            "of its capture; capture the layers behind the embeddings alone, or leave the graph out"
        )
