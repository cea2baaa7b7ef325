"""Random numbers of PyTorch's generators, of which a process has one for each device.

Layers such as dropout draw from them, so that trainings in threads, and who else draws, would share
them. Each training has states of its own, which the generators have while it draws; one draws at a time.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext

import torch
from torch import Generator, Tensor

TURN = threading.RLock()  # of this process: held by who draws


class RandomNumbers:
    """The random numbers of one training, which begin by a seed.

    generators: that of the host, and of a device. takes_turns: draws while no other one of the process
    does; ranks that wait for each other as they draw cannot. states: where the next ones begin.
    """

    def __init__(self, generators: Sequence[Generator], seed: int, takes_turns: bool = True) -> None:
        self._generators, self._turn = generators, TURN if takes_turns else nullcontext()
        self.begin_at(seed)

    def begin_at(self, seed: int) -> None:
        devices = [generator.device for generator in self._generators]
        self.states: list[Tensor] = [Generator(d).manual_seed(seed).get_state() for d in devices]

    @contextmanager
    def drawing(self) -> Iterator[None]:
        """Within, these are what is drawn; PyTorch's generators are as before afterwards."""
        with self._turn:
            before = [generator.get_state() for generator in self._generators]
            for generator, state in zip(self._generators, self.states, strict=True):
                generator.set_state(state)
            try:
                yield
            finally:
                self.states = [generator.get_state() for generator in self._generators]
                for generator, state in zip(self._generators, before, strict=True):
                    generator.set_state(state)


@contextmanager
def restored(devices: Iterable[torch.device] = ()) -> Iterator[None]:
    """Within, anything may be drawn on the host, and on these CUDA devices; their generators are as
    before afterwards."""
    with TURN, torch.random.fork_rng(devices=list(devices)):
        yield
