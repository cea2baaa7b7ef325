"""Streams: pieces of work that need not wait for one another, in parallel on a device.

    streams.run_all([lookup_of(pack) for pack in packs], holds=[block])     # in turn on the host

Small kernels leave most of a GPU idle: those of several packs run at the same time, the kernels of
one pack in order (PICASSO calls it kernel interleaving). Results do not depend on it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from hotrows.runtime.device import Device, Mark

Works = Sequence[Callable[[], Tensor | None]]


@dataclass
class PendingTensors:
    """Tensors that are filled on a lane."""

    mark: Mark
    tensors: list[Tensor] = field(default_factory=list)

    def wait(self, device: Device) -> list[Tensor]:
        """Makes later launches of the calling thread follow the work, and returns the tensors."""
        device.wait(self.mark)
        device.wait(None, self.tensors)  # they are in another stream's memory
        return self.tensors


class Streams:
    """Lanes of a device. num: how many beside the caller's; 1: the caller's alone, as on the host."""

    def __init__(self, device: Device, num: int = 1) -> None:
        self._device = device
        self.num = 1 if device.on_host else num

    @property
    def are_several(self) -> bool:
        return self.num > 1

    def run_all(self, works: Works, holds: Sequence[Tensor] = ()) -> list[Tensor]:
        """Runs all works and returns their tensors; the caller's next launch comes after all.

        holds: tensors that the caller made and the works read.
        """
        if not self.are_several or len(works) == 1:
            return _run(works)
        pending = [self.begin([work], holds, n % self.num) for n, work in enumerate(works)]
        return [tensor for tensors in pending for tensor in tensors.wait(self._device)]

    def begin(self, works: Works, holds: Sequence[Tensor] = (), n: int = 0) -> PendingTensors:
        """Runs works on lane n, after what the caller has launched, and returns at once."""
        pending = PendingTensors(None)

        def run() -> None:
            pending.tensors += _run(works)

        pending.mark = self._device.launch(f"side {n}", run, [self._device.mark()], holds)
        return pending


def _run(works: Works) -> list[Tensor]:
    """The tensors of those works that return one."""
    return [tensor for work in works if (tensor := work()) is not None]
