"""Device: where fast memory is, and in what order work on it is done.

On the host, work is done at once. On a GPU it is launched, and done some time later. What is launched
on one lane is done in that order, and lanes wait for one another by marks, so that the host never
waits where it need not:

    mark = device.launch("move", copy, after=[ready])    # on the lane `move`, once `ready` is passed
    device.wait(mark)                                    # training waits for it, the host does not
    device.finish(mark)                                  # the host waits: before it reads the result

A lane is a CUDA stream and a mark an event. Training's own lane is the stream of the calling thread.
"""

from __future__ import annotations

import gc
import os
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, ClassVar

import torch
from torch import Tensor

Mark = Any  # what a lane has reached; None on the host, where everything is done already
Marks = Sequence[Mark]

ALIGNMENT = 16  # bytes: what a GPU reads at once
_PORTABLE_AND_MAPPED = 1 | 2


class Device:
    """The host; the base of every other device."""

    on_host = True

    def __init__(self) -> None:
        self.torch = torch.device("cpu")

    @property
    def name(self) -> str:
        """As `torch.device` and `torch.autocast` take it: `cpu` or `cuda`."""
        return self.torch.type

    def empty(self, lane: str, *shape: int, dtype: torch.dtype = torch.uint8) -> Tensor:
        """Allocates memory that a lane writes first; launches on other lanes name it in `holds`."""
        return torch.empty(shape, dtype=dtype)

    def put(self, tensor: Tensor) -> Tensor:
        """Copies a tensor to the device; the caller waits for the copy."""
        return tensor.to(self.torch)

    def staging(self, *shape: int, dtype: torch.dtype = torch.uint8) -> Tensor:
        """Allocates host memory that can be copied to and from the device asynchronously."""
        return torch.empty(shape, dtype=dtype)

    def page_lock(self, tensor: Tensor) -> None:
        """Lets the device read and write a tensor in host memory for as long as the tensor lives.

        The tensor must have its pages for itself (`engine.storage.store.empty_records`): pages are locked
        as a whole, and none twice.
        """

    def launch(
        self, lane: str, work: Callable[[], object], after: Marks = (), holds: Sequence[Tensor] = ()
    ) -> Mark:
        """Does `work` on a lane once all of `after` are passed; returns the mark behind it.

        holds: tensors of the device that it touches, whose memory is not reused before it is done.
        """
        work()
        return None

    def mark(self) -> Mark:
        """A mark behind what the calling thread has launched so far."""
        return None

    def wait(self, mark: Mark, holds: Sequence[Tensor] = ()) -> None:
        """Makes what the calling thread launches from here on, with tensors `holds`, follow the mark."""

    def finish(self, mark: Mark) -> None:
        """Returns once the mark is passed."""

    def synchronize(self) -> None:
        """Returns once all that was launched on any lane is done."""

    def graph_pool(self) -> Any:
        """Returns memory for captures that are launched one after the other, which they share."""

    def capture(self, work: Callable[[], Tensor], pool: Any = None) -> Callable[[], Tensor]:
        """Returns a function that does the work, on a device as one CUDA graph: its result is in the
        same memory every time, and `work` itself runs once, now, to be recorded.

        pool: of `graph_pool`; None: a new one. A capture that fails leaves the process as it was.
        """
        return work

    @contextmanager
    def noting_waits(self) -> Iterator[list[str]]:
        """Notes where the calling thread waits for the device within: `file:line` of each time."""
        yield []

    def figures(self) -> dict[str, float]:
        """How busy the device is, and the most memory that was taken of it, as far as it is known."""
        return {}

    def generators(self) -> list[torch.Generator]:
        """PyTorch's own generators of the host and of the device."""
        return [torch.default_generator]

    @contextmanager
    def products_in_tf32(self) -> Iterator[None]:
        """Within, matrices of float32 may be multiplied in TF32, with 10 bits of the mantissa."""
        yield

    @contextmanager
    def ahead_of_lanes(self) -> Iterator[None]:
        """Runs the launches of the calling thread ahead of those on lanes: training's steps
        before moves of rows."""
        yield


class Cuda(Device):
    """One NVIDIA GPU; index: its number among those that the process sees."""

    on_host = False
    # Of the process: PyTorch has 32 streams and then gives out the first again, so that a lane made
    # anew for every run would end up on the stream of a capture.
    _streams: ClassVar[dict[tuple[str, int], torch.cuda.Stream]] = {}
    _making = threading.Lock()

    def __init__(self, index: int = 0) -> None:
        self.torch = torch.device("cuda", index)

    def empty(self, lane: str, *shape: int, dtype: torch.dtype = torch.uint8) -> Tensor:
        # The allocator may hand out what an earlier launch on the same stream still reads.
        with torch.cuda.stream(self._lane(lane)):
            return torch.empty(shape, dtype=dtype, device=self.torch)

    def staging(self, *shape: int, dtype: torch.dtype = torch.uint8) -> Tensor:
        with torch.cuda.device(self.torch):  # or each thread would begin to use the first one
            return torch.empty(shape, dtype=dtype, pin_memory=True)

    def page_lock(self, tensor: Tensor) -> None:
        # Not `pin_memory`, which allocates anew and rounds sizes up to powers of two.
        if not tensor.numel():
            return
        address, size = tensor.data_ptr(), tensor.numel() * tensor.element_size()
        runtime: Any = torch.cuda.cudart()
        status = runtime.cudaHostRegister(address, size, _PORTABLE_AND_MAPPED)
        if int(status) != 0:
            raise ValueError(
                f"the system does not page-lock {size / 2**30:.1f} GiB of host memory "
                f"for the GPU (CUDA error {int(status)}): raise the limit of locked memory "
                f"(ulimit -l), or keep the tables in a file (store='file:PATH')"
            )
        # Before the memory is freed: whatever is allocated there next would be taken for locked.
        weakref.finalize(tensor, _unlock, self.torch, address).atexit = False

    def launch(
        self, lane: str, work: Callable[[], object], after: Marks = (), holds: Sequence[Tensor] = ()
    ) -> Mark:
        stream = self._lane(lane)
        with torch.cuda.stream(stream):
            for mark in after:
                if mark is not None:
                    stream.wait_event(mark)
            work()
            for tensor in holds:
                tensor.record_stream(stream)
            return stream.record_event(_event())

    def mark(self) -> Mark:
        return torch.cuda.current_stream(self.torch).record_event(_event())

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

    def graph_pool(self) -> Any:
        return torch.cuda.graph_pool_handle()

    def capture(self, work: Callable[[], Tensor], pool: Any = None) -> Callable[[], Tensor]:
        graph, pool = torch.cuda.CUDAGraph(), pool or self.graph_pool()
        outer = stream = torch.cuda.current_stream(self.torch)
        if stream == torch.cuda.default_stream(self.torch):  # which cannot be captured
            stream = self._lane("capture")
        collects = gc.isenabled()
        gc.collect()
        gc.disable()  # what dies in a capture may wait for the device, which would end it
        try:
            # Other threads launch and allocate meanwhile: what they do is no concern of this capture.
            with torch.cuda.graph(graph, pool, stream, capture_error_mode="thread_local"):
                result = work()
        except BaseException:
            torch.cuda.set_stream(outer)
            self._end_failed_capture(pool)
            raise
        finally:
            if collects:
                gc.enable()

        def launch() -> Tensor:
            graph.replay()
            return result

        return launch

    def _end_failed_capture(self, pool: Any) -> None:
        """Does what PyTorch's own end of a capture does not come to where the driver refuses the graph.

        The allocator would never again reuse memory of two streams, and random numbers would be refused.
        """
        with suppress(RuntimeError):  # it has come to it: only the work has failed
            torch._C._cuda_endAllocateToPool(self.torch.index, pool)
            torch._C._cuda_releasePool(self.torch.index, pool)
        generator = torch.cuda.default_generators[self.torch.index]
        generator.graphsafe_set_state(generator.clone_state())  # a state that is in no capture

    @contextmanager
    def noting_waits(self) -> Iterator[list[str]]:
        places: list[str] = []
        thread, mode = threading.get_ident(), torch.cuda.get_sync_debug_mode()
        with warnings.catch_warnings():
            warnings.filterwarnings("always", ".*synchroniz", UserWarning)  # in any case of letters
            show = warnings.showwarning

            def note(message: Any, kind: Any, file: str, line: int, *where: Any) -> None:
                if "synchroniz" not in str(message).lower():
                    show(message, kind, file, line, *where)
                elif "called a" in str(message) and threading.get_ident() == thread:
                    places.append(f"{file}:{line}")  # lanes of other threads may wait

            warnings.showwarning = note  # type: ignore[assignment]
            torch.cuda.set_sync_debug_mode("warn")
            try:
                yield places
            finally:
                torch.cuda.set_sync_debug_mode(mode)

    def figures(self) -> dict[str, float]:
        figures = {"peak_gpu_memory_bytes": float(torch.cuda.max_memory_allocated())}
        with suppress(ImportError, RuntimeError):  # without nvidia-ml-py, or where no driver says it
            figures["gpu_busy"] = torch.cuda.utilization() / 100
            figures["gpu_memory_busy"] = torch.cuda.memory_usage() / 100
        return figures

    def generators(self) -> list[torch.Generator]:
        torch.cuda.init()
        return [torch.default_generator, torch.cuda.default_generators[self.torch.index]]

    @contextmanager
    def products_in_tf32(self) -> Iterator[None]:
        products = torch.backends.cuda.matmul
        before = products.fp32_precision  # PyTorch refuses to read `allow_tf32` where this was set
        products.allow_tf32 = True  # and so the other one
        try:
            yield
        finally:
            products.allow_tf32 = before == "tf32"
            products.fp32_precision = before

    @contextmanager
    def ahead_of_lanes(self) -> Iterator[None]:
        # Most lanes, and the default stream, have the lowest priority; -1 is above.
        outer, stream = torch.cuda.current_stream(self.torch), torch.cuda.Stream(self.torch, priority=-1)
        stream.wait_stream(outer)
        try:
            with torch.cuda.stream(stream):
                yield
        finally:
            outer.wait_stream(stream)

    def _lane(self, name: str) -> torch.cuda.Stream:
        key = name, self.torch.index
        is_of_a_step = name == "capture" or name.startswith("side ")
        with self._making:
            if key not in self._streams:
                self._streams[key] = torch.cuda.Stream(self.torch, priority=-1 if is_of_a_step else 0)
            return self._streams[key]


def _event() -> torch.cuda.Event:
    """An event for which a thread that waits sleeps: others need the core."""
    return torch.cuda.Event(blocking=True)


def _unlock(device: torch.device, address: int) -> None:
    torch.cuda.synchronize(device)
    runtime: Any = torch.cuda.cudart()
    runtime.cudaHostUnregister(address)


HOST = Device()


def find(name: str) -> Device:
    """The device of that name: `cpu`, or `cuda`: of several ranks that torchrun has started on a host
    each has one of its own, in order (`LOCAL_RANK`); else the one of `torch.cuda.set_device`, which is
    the first that the process sees."""
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
    num = torch.cuda.device_count()
    index = int(os.environ.get("LOCAL_RANK", torch.cuda.current_device()))
    if index >= num:
        raise ValueError(
            f"rank {index} of this host has no GPU of its own: PyTorch sees {num}, and each rank needs "
            f"one; start {num} ranks here (torchrun --nproc-per-node {num}), or train with device='cpu'"
        )
    if index:
        torch.cuda.set_device(index)  # of the calling thread, or it would begin to use the first one
    return Cuda(index)


def device_of(place: torch.device) -> Device:
    """The device with the tensors of such a place."""
    return HOST if place.type == "cpu" else Cuda(place.index or 0)


def aligned(size: int, to: int = ALIGNMENT) -> int:
    """The size in bytes, rounded up: to what a device reads at once, unless to another number."""
    return -(-size // to) * to
