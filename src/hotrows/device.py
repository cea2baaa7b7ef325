"""Device: where fast memory is, and in what order work on it is done.

On the host, work is done when it is asked for. On a GPU it is launched, and done some time later.
What is launched on one lane is done in that order, and lanes wait for one another by marks, so that
the host never waits where it need not:

    mark = device.launch("move", copy, after=[ready])    # on the lane `move`, once `ready` is passed
    device.wait(mark)                                    # training waits for it, the host does not
    device.finish(mark)                                  # the host waits: before it reads the result

A lane is a CUDA stream and a mark an event. Training's own lane is the stream of the calling thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

Mark = Any  # what a lane has reached; None on the host, where everything is done already

ALIGNMENT = 16  # bytes: what a GPU reads at once
_PORTABLE_AND_MAPPED = 1 | 2


class Device:
    """The host's own memory, and what every other device has a form of."""

    on_host = True

    def __init__(self) -> None:
        self.torch = torch.device("cpu")

    @property
    def name(self) -> str:
        """As `torch.device` and `torch.autocast` take it: `cpu` or `cuda`."""
        return self.torch.type

    def empty(self, lane: str, *shape: int, dtype: torch.dtype = torch.uint8) -> Tensor:
        """Memory that a lane writes first; every other one that touches it says so (`holds`)."""
        return torch.empty(shape, dtype=dtype)

    def put(self, tensor: Tensor) -> Tensor:
        """The same values here; the caller waits for them."""
        return tensor.to(self.torch)

    def staging(self, *shape: int, dtype: torch.dtype = torch.uint8) -> Tensor:
        """Host memory that is copied to and from the device while the host goes on."""
        return torch.empty(shape, dtype=dtype)

    def page_lock(self, tensor: Tensor) -> None:
        """Lets the device read and write a tensor in host memory, for as long as there is one."""

    def launch(
        self,
        lane: str,
        work: Callable[[], None],
        after: Sequence[Mark] = (),
        holds: Sequence[Tensor] = (),
    ) -> Mark:
        """Does `work` on a lane once all of `after` are passed; returns the mark behind it.

        holds: tensors of the device that the work touches: their memory is not given to others
        before it is done.
        """
        work()
        return None

    def mark(self) -> Mark:
        """What the calling thread has launched so far."""
        return None

    def wait(self, mark: Mark, holds: Sequence[Tensor] = ()) -> None:
        """What the calling thread launches from here on comes after the mark. holds: as above."""

    def finish(self, mark: Mark) -> None:
        """Returns once the mark is passed."""

    def synchronize(self) -> None:
        """Returns once all that was launched on any lane is done."""

    @contextmanager
    def own_random_numbers(self, state: Tensor | None, seed: int) -> Iterator[None]:
        """Within, the device's generator stands at `state`, None: begins with the seed; afterwards
        where it stood before. On the host PyTorch's own does this, `torch.random.fork_rng`."""
        yield

    def random_state(self) -> Tensor | None:
        """Where the device's generator stands; None on the host."""
        return None


class Cuda(Device):
    """One NVIDIA GPU."""

    on_host = False

    def __init__(self) -> None:
        self.torch = torch.device("cuda", 0)
        self._lanes: dict[str, torch.cuda.Stream] = {}
        self._locked: list[Tensor] = []

    def empty(self, lane: str, *shape: int, dtype: torch.dtype = torch.uint8) -> Tensor:
        # The allocator may hand out what an earlier launch on the same stream still reads.
        with torch.cuda.stream(self._lane(lane)):
            return torch.empty(shape, dtype=dtype, device=self.torch)

    def staging(self, *shape: int, dtype: torch.dtype = torch.uint8) -> Tensor:
        return torch.empty(shape, dtype=dtype, pin_memory=True)

    def page_lock(self, tensor: Tensor) -> None:
        # Not `pin_memory`, which allocates anew and rounds sizes up to powers of two.
        if tensor.numel() and not tensor.is_pinned():
            runtime: Any = torch.cuda.cudart()
            status = runtime.cudaHostRegister(
                tensor.data_ptr(), tensor.numel() * tensor.element_size(), _PORTABLE_AND_MAPPED
            )
            if int(status) != 0:
                raise ValueError(
                    f"the system does not page-lock {tensor.numel() / 2**30:.1f} GiB of host memory "
                    f"for the GPU (CUDA error {int(status)}): raise the limit of locked memory "
                    f"(ulimit -l), or keep the tables in a file (store='file:PATH')"
                )
            self._locked.append(tensor)  # stays locked, so it must stay

    def launch(
        self,
        lane: str,
        work: Callable[[], None],
        after: Sequence[Mark] = (),
        holds: Sequence[Tensor] = (),
    ) -> Mark:
        stream = self._lane(lane)
        with torch.cuda.stream(stream):
            for mark in after:
                if mark is not None:
                    stream.wait_event(mark)
            work()
            for tensor in holds:
                tensor.record_stream(stream)
            return stream.record_event()

    def mark(self) -> Mark:
        return torch.cuda.current_stream(self.torch).record_event()

    def wait(self, mark: Mark, holds: Sequence[Tensor] = ()) -> None:
        stream = torch.cuda.current_stream(self.torch)
        if mark is not None:
            stream.wait_event(mark)
        for tensor in holds:
            tensor.record_stream(stream)

    def finish(self, mark: Mark) -> None:
        if mark is not None:
            mark.synchronize()

    def synchronize(self) -> None:
        torch.cuda.synchronize(self.torch)

    @contextmanager
    def own_random_numbers(self, state: Tensor | None, seed: int) -> Iterator[None]:
        before = torch.cuda.get_rng_state(self.torch)
        if state is None:
            torch.cuda.default_generators[self.torch.index].manual_seed(seed)
        else:
            torch.cuda.set_rng_state(state, self.torch)
        try:
            yield
        finally:
            torch.cuda.set_rng_state(before, self.torch)

    def random_state(self) -> Tensor | None:
        return torch.cuda.get_rng_state(self.torch)

    def _lane(self, name: str) -> torch.cuda.Stream:
        if name not in self._lanes:
            self._lanes[name] = torch.cuda.Stream(self.torch)
        return self._lanes[name]


HOST = Device()


def find(name: str) -> Device:
    """The device of that name: `cpu`, or `cuda`, the first that the process sees."""
    if name == "cpu":
        return HOST
    if name != "cuda":
        raise ValueError(
            f"device must be cpu or cuda, not {name!r}; of several GPUs CUDA_VISIBLE_DEVICES chooses one"
        )
    if not torch.cuda.is_available():
        raise ValueError(
            f"device 'cuda' is not there: PyTorch {torch.__version__} sees no CUDA device; `hotrows "
            f"doctor` shows what it has, device='cpu' needs none"
        )
    return Cuda()


def aligned(size: int) -> int:
    """The size in bytes, rounded up to what a device reads at once."""
    return -(-size // ALIGNMENT) * ALIGNMENT
