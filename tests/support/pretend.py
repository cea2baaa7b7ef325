"""A pretended GPU: tensors that say they are on `cuda:0`, hold their values in host memory, and mix
with others as a GPU's would; lanes that are threads, each as late as it likes.

    with pretend.gpu() as device:
        embedding = Embedding(tables, device=device)     # or Trainer(..., device="cuda")

What runs on it has run the engine's code for devices, with real values, on a machine without any. An
op on tensors of both sides raises, and so does a kernel of the native core that is given a tensor of
the device. So does memory that two lanes touch without a wait between them (`pretend_order`), the
caller's lane being as late as any; what a captured graph could not replay (`pretend_graph`); and host
memory that is not page-locked where a kernel reads it. `waits` counts where a thread waited for the
device: copies each way, `item()`, whatever depends on values.
"""

from __future__ import annotations

import queue
import random
import sys
import threading
import time
from collections import Counter
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from unittest import mock

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing

from hotrows import ops
from hotrows.ops.rows import reference
from hotrows.runtime.device import Cuda, Device
from tests.support import pretend_lists
from tests.support.pretend_calls import leaves_of, mapped, operation
from tests.support.pretend_graph import Driver, Held, depends_on_values
from tests.support.pretend_order import Memory, Order, Race

CUDA = torch.device("cuda", 0)
aten = torch.ops.aten
_COPIES = (aten._to_copy.default, aten.copy_.default, aten._copy_from.default)
_TO = {getattr(aten.to, overload) for overload in aten.to.overloads()}
# Rows of page-locked host memory are read and written by the device itself; PyTorch copies indices.
_READS_HOST = {"hotrows::copy_rows": (0, 2)}
_COPIES_INDICES = {
    "aten::index.Tensor": (1,), "aten::index_put_": (1,), "aten::index_put": (1,),
    "aten::_index_put_impl_": (1,),
}  # fmt: skip


def _check_places(places, size):
    """Refuses places that a race has written over: the native core would read and write beyond memory."""
    if places is not None and places.numel() and not 0 <= int(places.min()) <= int(places.max()) < size:
        raise Race(f"places from {int(places.min())} to {int(places.max())} of {size}")


def _pool(records, layout, slots, inverse, bag_starts=None, *others):
    if bool((inverse < 0).any()):
        return reference.pool(records, layout, slots, inverse, bag_starts, *others)
    _check_places(inverse, len(slots))
    _check_places(slots[inverse.long()], len(records))
    _check_places(bag_starts, len(inverse) + 1)
    return ops.pool(records, layout, slots, inverse, bag_starts, *others)


def _update(records, layout, slots, rows, order, starts, *others):
    u, others = int((rows >= 0).sum()), list(others)
    _check_places(slots[:u], len(records))
    _check_places(starts[: u + 1], len(order) + 1)
    others[7:] = (t if t is None else t[:u] for t in others[7:])  # decay and mean squares
    torch.ops.hotrows.update(records, layout, slots[:u], rows[:u], order, starts[: u + 1], *others)


def _sum_gradients(grad, *runs):
    return (ops.sum_gradients if grad.dtype == torch.float32 else reference.sum_gradients)(grad, *runs)


# A device skips padding; the native core is never given any, nor gradients in float64.
_KERNELS = {
    "hotrows::pool": _pool, "hotrows::update": _update, "hotrows::sum_gradients": _sum_gradients,
    **pretend_lists.KERNELS,
}  # fmt: skip


class PretendTensor(torch.Tensor):
    """inner: the values, in host memory; memory: who used them, of all views of them."""

    inner: torch.Tensor
    memory: Memory
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, inner, like=()):
        # The form of a tensor on `meta`, with the dispatch keys of one on CUDA, as fake tensors have.
        size = inner.untyped_storage().nbytes() // max(inner.element_size(), 1)
        with torch._C.DisableTorchFunction(), no_dispatch():
            form = torch.empty(size, dtype=inner.dtype, device="meta").as_strided(
                inner.size(), inner.stride(), inner.storage_offset()
            )
        tensor = torch.Tensor._make_subclass(
            cls, form, False, dispatch_device=True, device_for_backend_keys=CUDA
        )
        tensor.inner = inner
        storage = inner.untyped_storage()._cdata
        shared = (t.memory for t in like if t.inner.untyped_storage()._cdata == storage)
        tensor.memory = next(shared, None) or Memory(_order[0])
        return tensor

    @property
    def data(self):
        return PretendTensor(self.inner, [self])

    @data.setter
    def data(self, new):
        self.inner, self.memory = new.inner, new.memory

    @property
    def device(self):
        return CUDA

    @property
    def is_cuda(self):
        return True

    @property
    def is_meta(self):
        return False

    def data_ptr(self):
        raise RuntimeError("a tensor of the device has no address on the host")

    def __deepcopy__(self, memo):
        if id(self) not in memo:
            memo[id(self)] = PretendTensor(self.inner.clone()).requires_grad_(self.requires_grad)
        return memo[id(self)]

    def __repr__(self):
        return f"PretendTensor({self.inner})"

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return _run(func, args, kwargs or {})


class _Mode(TorchDispatchMode):
    @classmethod
    def _should_skip_dynamo(cls):  # which imports PyTorch's compiler, and takes its time at each call
        return False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return _run(func, args, kwargs or {})


# What `torch.autocast` multiplies in 16 bits; PyTorch's C++ sees `meta`, which it leaves alone.
_NARROWED = {
    torch.nn.functional.linear, torch.matmul, torch.Tensor.matmul, torch.Tensor.__matmul__, torch.mm,
    torch.bmm, torch.addmm, torch.baddbmm, torch.Tensor.mm, torch.Tensor.bmm, torch.einsum,
}  # fmt: skip


class _Functions(TorchFunctionMode):
    """What PyTorch's C++ decides by the device before an op is dispatched, and so for `meta`."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is torch.Tensor.__getitem__ and isinstance(args[0], PretendTensor):
            args = args[0], _on_device(args[1])
        if func is torch.tensor and _is_cuda((kwargs or {}).get("device")):
            return func(*args, **{**kwargs, "device": "cpu"}).to(CUDA)
        if func is torch.Tensor.to:  # which asks CUDA's part of PyTorch for the number of a device
            args, kwargs = mapped(lambda leaf: CUDA if _is_cuda(leaf) else leaf, (args, kwargs or {}))
        if func in _NARROWED and torch.is_autocast_enabled("cuda"):
            args, kwargs = mapped(_narrowed, (args, kwargs or {}))
        return func(*args, **(kwargs or {}))


def _is_cuda(leaf):
    return isinstance(leaf, str | torch.device) and str(leaf) == "cuda"


def _on_device(index):
    """The index with lists of numbers as tensors of the device, of which `meta` would lose the values."""
    if isinstance(index, tuple):
        return tuple(map(_of_dimension, index))
    return _of_dimension(index)


def _of_dimension(index):
    is_list = isinstance(index, list | tuple) and len(index) > 0 and all(type(n) is int for n in index)
    return torch.tensor(index, device="cpu").to(CUDA) if is_list else index


def _narrowed(leaf):
    if isinstance(leaf, PretendTensor) and leaf.dtype == torch.float32:
        return leaf.to(torch.get_autocast_dtype("cuda"))
    return leaf


waits: Counter = Counter()
_order = [Order()]  # of the device that there is
_driver = [None]
_PROPERTIES = SimpleNamespace(name="a pretended GPU", total_memory=1 << 34, major=0, minor=0)


def present_order():
    """That of the device that there is."""
    return _order[0]


def _run(func, args, kwargs):
    if func is torch.ops.prim.device.default:  # PyTorch's C++ has a guard for `meta`, none for CUDA
        return torch.device("meta")
    leaves = leaves_of((args, kwargs))
    for leaf in leaves:  # what has a meaning of its own goes on making tensors of the device
        if isinstance(leaf, torch.Tensor) and _is_own(type(leaf)):
            with _Mode():
                return type(leaf).__torch_dispatch__(func, (type(leaf),), args, kwargs)
    device = kwargs.get("device")
    on_device = any(isinstance(leaf, PretendTensor) for leaf in leaves)
    # PyTorch's C++ sees `meta`, and asks for it: zeros for a gradient that there is none of.
    to_device = device is not None and torch.device(device).type in ("cuda", "meta")
    if not on_device and not to_device:
        return func(*args, **kwargs)
    if func in _TO:  # which is made of others, and arrives whole where autograd is past
        with _Mode():
            return func.decompose(*args, **kwargs)
    _refuse_mixture(func, args, leaves)
    driver = _driver[0]
    driver.check_random(func)
    _note_uses(func, args, kwargs)
    plain_args, plain_kwargs = mapped(_inner, args), mapped(_inner, kwargs)
    if to_device:
        plain_kwargs["device"] = torch.device("cpu")
    back = device is not None and torch.device(device).type == "cpu"
    if _waits(func, args, kwargs, leaves, back):
        _wait(str(func))
    recording = driver.recording
    if recording is not None:
        recording.save(func, args, kwargs)
    with torch._C.DisableTorchFunction(), torch.no_grad():
        result = _kernel(func)(*plain_args, **plain_kwargs)
    of_device = [leaf for leaf in leaves if isinstance(leaf, PretendTensor)]
    if not back and func is not aten.copy_.default:
        result = mapped(
            lambda leaf: PretendTensor(leaf, of_device) if isinstance(leaf, torch.Tensor) else leaf,
            result,
        )
    if recording is not None:
        with recording.lock:
            recording.note(func, args, kwargs, (plain_args, plain_kwargs), result, of_device)
    if back:
        return result
    if func is aten.copy_.default:
        return args[0]
    if on_device and operation(func).has_aliases:
        return return_and_correct_aliasing(func, args, kwargs, result)
    return result


def _kernel(func):
    return _KERNELS.get(operation(func).name, func)


def _waits(func, args, kwargs, leaves, back):
    """Whether the calling thread waits for the device: values decide, or a copy is not left to it."""
    if depends_on_values(func, args, kwargs):
        return True
    if any(map(_is_block, _those(args, _COPIES_INDICES, func))):
        return True
    into_host = func is aten.copy_.default and not isinstance(args[0], PretendTensor)
    from_host = func in _COPIES and any(map(_is_plain, leaves)) and not into_host
    if not (back or into_host or from_host):
        return False
    is_asynchronous = kwargs.get("non_blocking") or (func is aten.copy_.default and args[2:3] == (True,))
    return not is_asynchronous or not all(_is_locked(leaf) for leaf in leaves if _is_plain(leaf))


def _wait(what):
    """Notes that the calling thread waits, and where: the first line that is not of a pretence."""
    waits[what] += 1
    frame = sys._getframe()
    while frame.f_back is not None and (
        "/torch/" in (file := frame.f_code.co_filename) or "pretend" in file
    ):
        frame = frame.f_back
    _driver[0].note_wait(what, (frame.f_code.co_filename, frame.f_lineno))
    _order[0].host_waits(_order[0].now()[1])


def _is_block(leaf):
    return _is_plain(leaf) and leaf.dim() > 0


def _is_locked(tensor):
    """Whether the device may read a tensor in host memory: its pages are locked."""
    begin = tensor.data_ptr()
    end = begin + tensor.numel() * tensor.element_size()
    for first, last in sorted(_order[0].locked):  # ranges may lie side by side
        if first <= begin < last:
            begin = last
    return begin >= end


def _is_own(kind):
    """Whether tensors of a class take operations over, on any device."""
    plain = torch.Tensor.__torch_dispatch__
    return not issubclass(kind, PretendTensor) and kind.__torch_dispatch__ is not plain


def _refuse_mixture(func, args, leaves):
    if func in _COPIES:
        return
    copied, read = _those(args, _COPIES_INDICES, func), _those(args, _READS_HOST, func)
    for leaf in filter(_is_block, leaves):
        if any(leaf is other for other in read):
            if not _is_locked(leaf):
                raise ValueError(f"{func}: pointer argument cannot be accessed from Triton (cpu tensor?)")
        elif not any(leaf is other for other in copied):
            raise RuntimeError(f"{func}: a tensor in host memory among those of the device")


def _those(args, places, func):
    """The tensors at the places that a table has for an operation."""
    named = places.get(operation(func).name)
    return leaves_of([args[place] for place in named]) if named else ()


def _note_uses(func, args, kwargs):
    """Tells the order who touches what: rows of records by their slots, anything else whole."""
    name, is_view, *_, arguments = operation(func)
    by_rows = _ROWS_OF.get(name, {})
    plain_args = mapped(_inner, args) if by_rows else ()
    for place, (argument, writes) in enumerate(() if is_view and not by_rows else arguments):
        value = args[place] if place < len(args) else kwargs.get(argument)
        for tensor in leaves_of(value):
            if place in by_rows and (rows := by_rows[place](*plain_args)) is not None:
                num_rows = len(_inner(tensor))
                _memory_of(tensor).use(name, writes, rows[rows < num_rows].numpy(), num_rows)
            elif isinstance(tensor, PretendTensor | Held) and not is_view:
                tensor.memory.use(name, writes)


def _rows_of_tables(kind, weights, states, lasts, steps, counts, slots, bounds, *_):
    return None if slots is None else slots[int(bounds[0]) : int(bounds[-1])]


def _places(inverse, num_rows):
    """The places that are some: what is read too early holds others."""
    return inverse[(inverse >= 0) & (inverse < num_rows)]


_ROWS_OF = {
    "hotrows::look_up_tables": {0: lambda weights, slots, bounds, *_: slots[: int(bounds[-1])]},
    "hotrows::catch_up_tables": dict.fromkeys((1, 2, 3), _rows_of_tables),
    "hotrows::step_tables": dict.fromkeys((1, 2, 3), _rows_of_tables),
    "hotrows::copy_rows": {0: lambda _, rows, *__: rows, 2: lambda a, b, c, rows=None, *_: rows},
    "hotrows::pool": {0: lambda _, __, slots, inverse, *___: slots[_places(inverse, len(slots))]},
    "hotrows::update": {0: lambda records, layout, slots, rows, *_: slots[rows >= 0]},
}


def _memory_of(tensor):
    """Of page-locked host memory, too."""
    if isinstance(tensor, PretendTensor | Held):
        return tensor.memory
    storage = tensor.untyped_storage()
    kept = _order[0].page_locked.setdefault(storage._cdata, (storage, Memory(_order[0])))
    return kept[1]


def _is_plain(leaf):
    return isinstance(leaf, torch.Tensor) and not isinstance(leaf, PretendTensor)


def _inner(leaf):
    return leaf.inner if isinstance(leaf, PretendTensor | Held) else leaf


class _Mark(threading.Event):
    """clock: of what is before it."""

    def __init__(self, clock):
        super().__init__()
        self.clock = clock


class PretendDevice(Device):
    """delay: called before each launch is done; lanes are threads and do their work in order. Captures,
    streams and notes of waits are those of `Cuda`."""

    on_host = False
    graph_pool, capture, noting_waits = Cuda.graph_pool, Cuda.capture, Cuda.noting_waits
    _end_failed_capture, _lane, ahead_of_lanes = Cuda._end_failed_capture, Cuda._lane, Cuda.ahead_of_lanes

    def __init__(self, delay=lambda: None):
        self.torch = CUDA
        self._delay = delay
        self._queues: dict[str, queue.SimpleQueue] = {}
        self.order = Order()
        self._failures = self.order.failures
        self._lock = threading.Lock()
        self._making, self._streams = threading.Lock(), {}

    def empty(self, lane, *shape, dtype=torch.uint8):
        # Poisoned: what is read before it was written is noticed.
        tensor = PretendTensor(torch.full(shape, 0x7F, dtype=dtype))
        tensor.memory.owner = lane
        return tensor

    def put(self, tensor):
        return tensor.to(CUDA)

    def staging(self, *shape, dtype=torch.uint8):
        return self.lock(torch.empty(shape, dtype=dtype))

    def page_lock(self, tensor):
        self.lock(tensor)

    def lock(self, tensor):
        """Locks a tensor in host memory, for as long as there is the device."""
        begin = tensor.data_ptr()
        end = begin + tensor.numel() * tensor.element_size()
        self.order.locked[begin, end] = tensor.untyped_storage()
        return tensor

    def launch(self, lane, work, after=(), holds=()):
        after = [mark for mark in after if mark is not None]
        self._hold(holds, lane)
        recording = getattr(self.order.thread, "recording", None)
        with self._lock:  # in the order of their clocks
            mark = _Mark(self.order.launched(lane, [earlier.clock for earlier in after]))
            self._queue(lane).put((work, after, mark, recording))
        if recording is not None:
            recording.unjoined.difference_update(after)
            recording.unjoined.add(mark)
        return mark

    def mark(self):
        mark = _Mark(self.order.now()[1])
        mark.set()  # the caller's own work is done when it is asked for
        return mark

    def wait(self, mark, holds=()):
        self._hold(holds, self.order.caller)
        if mark is not None:
            self._pass(mark)
            self.order.launched(self.order.caller, [mark.clock])
            if (recording := getattr(self.order.thread, "recording", None)) is not None:
                recording.unjoined.discard(mark)

    def finish(self, mark):
        if mark is not None:
            if (recording := getattr(self.order.thread, "recording", None)) is not None:
                recording.refuse("an event is waited for")
            self._pass(mark)
            self.order.host_waits(mark.clock)

    def _pass(self, mark):
        assert mark.wait(60), "a launch waits for one that never comes"
        if self._failures:
            raise self._failures[0]

    def _hold(self, tensors, lane):
        for tensor in tensors:
            tensor.memory.held.add(lane)

    def synchronize(self):
        for lane in list(self._queues):
            self.finish(self.launch(lane, lambda: None))
        self.order.host_waits(self.order.now()[1])

    def close(self):
        for works in self._queues.values():
            works.put(None)

    def _queue(self, lane):
        if lane not in self._queues:
            self._queues[lane] = works = queue.SimpleQueue()
            threading.Thread(target=self._work, args=(lane, works), daemon=True).start()
        return self._queues[lane]

    def _work(self, lane, works):
        while (item := works.get()) is not None:
            work, after, mark, self.order.thread.recording = item
            for earlier in after:
                earlier.wait()
            self._delay()
            self.order.thread.launch = lane, mark.clock
            try:
                work()
            except BaseException as error:
                self._failures.append(error)
            del item, work  # what they held is given back as soon as it would be
            mark.set()


def random_delay(seed, longest=0.003):
    """Sleeps, now and then."""
    drawn = random.Random(seed)
    return lambda: time.sleep(drawn.random() * longest) if drawn.random() < 0.5 else None


@contextmanager
def gpu(delay=lambda: None):
    """Within, there is a GPU: a `PretendDevice`, which `hotrows.runtime.device.find` finds too."""
    device = PretendDevice(delay)
    _order[0], _driver[0] = device.order, Driver(device, _kernel, _note_uses)
    waits.clear()
    run = threading.Thread.run

    def run_in_mode(thread):
        with _Mode():
            run(thread)

    with ExitStack() as stack:
        of_cuda, of_c = _driver[0].patches()
        of_cuda |= {
            "_lazy_init": lambda: None, "is_available": lambda: True,
            "current_device": lambda: 0, "device_count": lambda: 1,
            "is_bf16_supported": lambda *_, **__: True, "get_device_properties": lambda *_: _PROPERTIES,
        }  # fmt: skip
        of_tensor = {"pin_memory": lambda tensor, *_: device.lock(tensor.clone())}
        for place, values in ((torch.cuda, of_cuda), (torch._C, of_c), (torch.Tensor, of_tensor)):
            for name, value in values.items():
                stack.enter_context(mock.patch.object(place, name, value, create=True))
        # Of which a CUDA build asks its driver for more than is pretended; a CPU build has none.
        stack.enter_context(mock.patch("torch.accelerator.current_accelerator", lambda *_, **__: None))
        stack.enter_context(mock.patch("hotrows.runtime.device.Cuda", lambda *_: device))
        stack.enter_context(mock.patch.object(threading.Thread, "run", run_in_mode))
        before = torch.__future__.get_swap_module_params_on_conversion()
        torch.__future__.set_swap_module_params_on_conversion(True)
        stack.callback(torch.__future__.set_swap_module_params_on_conversion, before)
        stack.callback(device.close)
        stack.enter_context(_Mode())
        stack.enter_context(_Functions())
        yield device
        if device.order.failures:
            raise device.order.failures[0]
