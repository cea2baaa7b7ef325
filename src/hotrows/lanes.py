"""Lanes: pieces of work that need not wait for one another, side by side on a device.

    lanes.each([lookup_of(pack) for pack in packs], holds=[block])     # in turn on the host

Small kernels leave most of a GPU idle: those of several packs run at the same time, each pack's in
their order (kernel interleaving, in PICASSO's words). Results do not depend on it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from hotrows.device import Device, Mark


@dataclass
class Begun:
    """Tensors that a lane is making."""

    mark: Mark
    tensors: list[Tensor] = field(default_factory=list)

    def wait(self, device: Device) -> list[Tensor]:
        """The tensors; what the calling thread launches from here on comes after them."""
        device.wait(self.mark)
        device.wait(None, self.tensors)  # they are another lane's memory
        return self.tensors


class Lanes:
    """num: how many there are beside the caller's; 1: the caller's own alone, and on the host."""

    def __init__(self, device: Device, num: int = 1) -> None:
        self._device = device
        self.num = 1 if device.on_host else num

    @property
    def are_several(self) -> bool:
        return self.num > 1

    def each(
        self, works: Sequence[Callable[[], Tensor | None]], holds: Sequence[Tensor] = ()
    ) -> list[Tensor]:
        """Does all of it, and returns what it makes; the caller's next launch comes after all.

        holds: tensors that the caller made and the work reads.
        """
        if not self.are_several or len(works) == 1:
            return [made for work in works if (made := work()) is not None]
        begun = [self.begin([work], holds, n % self.num) for n, work in enumerate(works)]
        return [made for of in begun for made in of.wait(self._device)]

    def begin(
        self, works: Sequence[Callable[[], Tensor | None]], holds: Sequence[Tensor] = (), n: int = 0
    ) -> Begun:
        """Does it on lane n, after what the caller has launched; the caller goes on beside it."""
        begun = Begun(None)

        def run() -> None:
            begun.tensors += [made for work in works if (made := work()) is not None]

        begun.mark = self._device.launch(f"side {n}", run, [self._device.mark()], holds)
        return begun
