"""Streams and CUDA graphs of the pretended GPU: what PyTorch's own Python code finds below itself.

A capture executes nothing: what the work has changed is put back at its end. A graph holds operations and
the memory that they touch, no Python: a replay does the operations again, so that a number which Python
counts up is the same each time. What a real capture refuses ends this one, and one that has failed leaves
behind what a real one does: an allocator that thinks of a capture, and a generator in it.
"""

import itertools
import threading
import warnings
import weakref

import torch

from tests.support.pretend_calls import leaves_of, mapped, operation

aten = torch.ops.aten
# What waits for the device since its result depends on values: read in PyTorch 2.11's CUDA sources, where
# `memcpy_and_sync`, `.item()` and `cudaStreamSynchronize` are called.
_DEPENDS_ON_VALUES = {
    aten._local_scalar_dense.default, aten.is_nonzero.default, aten.equal.default,
    aten.nonzero.default, aten.argwhere.default, aten.masked_select.default, aten.bincount.default,
    aten._unique.default, aten._unique2.default, aten.unique_dim.default,
    aten.unique_consecutive.default, aten.unique_dim_consecutive.default,
    aten.repeat_interleave.Tensor, aten._coalesce.default, aten.embedding_renorm_.default,
    aten.multinomial.default, aten.linalg_eigh.default, aten._linalg_check_errors.default,
    aten.tensor_split.tensor_indices_or_sections,
}  # fmt: skip
_INDEXES = {"aten::index.Tensor", "aten::index_put_", "aten::index_put", "aten::_index_put_impl_"}
_MAKES_MEMORY = {"aten::empty", "aten::empty_like", "aten::new_empty", "aten::empty_strided"}
_numbers = itertools.count(1)


def depends_on_values(func, args, kwargs):
    """Whether the host waits for what the device has computed; a mask is an index by its places."""
    if func in _DEPENDS_ON_VALUES:
        return kwargs.get("output_size") is None
    if func is aten.histc.default:
        return len(args) < 4 or args[2] == args[3]  # the least and the largest value are asked for
    if operation(func).name in _INDEXES:
        return any(t is not None and t.dtype in (torch.bool, torch.uint8) for t in args[1])
    return False


class Stream:
    """waited_for: streams whose work comes before what is launched here from then on."""

    def __init__(self, device=None, priority=0):
        self.device, self.priority, self.cuda_stream = torch.device("cuda", 0), priority, next(_numbers)
        self.waited_for = []

    def wait_stream(self, other):
        self.waited_for.append(other)


class Generator:
    """Random numbers are drawn from the host's; a capture that is not ended refuses them."""

    def __init__(self):
        self.captures = False

    def clone_state(self):
        return Generator()

    def graphsafe_set_state(self, state):
        self.captures = state.captures

    def manual_seed(self, seed):
        torch.manual_seed(seed)


class Held:
    """A tensor of a graph, which does not own what was there before it."""

    def __init__(self, tensor, is_own):
        self.inner, self._memory = tensor.inner, weakref.ref(tensor.memory)
        self._kept = tensor.memory if is_own else None

    @property
    def memory(self):
        memory = self._memory()
        if memory is None:
            raise RuntimeError("a graph touches memory that was given back after its capture")
        return memory


class Recording:
    """Operations of one capture, in order."""

    def __init__(self):
        self.entries, self.failed, self.unjoined = [], False, set()
        self._own, self._before = {}, {}  # storages by their address: made here; as they were
        self._random = torch.get_rng_state()
        self.lock = threading.RLock()

    def refuse(self, what):
        """Raises what the driver says; from then on there is no graph to be had."""
        self.failed = True
        raise RuntimeError(f"CUDA error: operation not permitted when stream is capturing ({what})")

    def save(self, func, args, kwargs):
        """Keeps what an operation is about to change."""
        for place, (name, writes) in enumerate(operation(func).arguments):
            if not writes:
                continue
            value = args[place] if place < len(args) else kwargs.get(name)
            for tensor in leaves_of(value):
                if isinstance(tensor, torch.Tensor):
                    storage = (tensor.inner if _is_held(tensor) else tensor).untyped_storage()
                    if storage._cdata not in self._own:
                        self._before.setdefault(storage._cdata, (storage, storage.clone()))

    def note(self, func, args, kwargs, plain, result, of_device):
        """plain: the arguments as the operation took them; result: of the device, or in host memory."""
        known = {t.inner.untyped_storage()._cdata for t in of_device}
        made = [t for t in leaves_of(result) if _is_held(t)]
        for tensor in made:
            storage = tensor.inner.untyped_storage()
            if storage._cdata not in known:
                self._own[storage._cdata] = storage
        held = mapped(self._held, (args, kwargs))
        # A number in host memory is in the graph, as it is now; a block is read again.
        plain = mapped(
            lambda t: t.clone() if isinstance(t, torch.Tensor) and _is_baked(t, args) else t, plain
        )
        results = [t.inner if _is_held(t) else None for t in leaves_of(result)]
        self.entries.append((func, held, plain, results))

    def _held(self, leaf):
        if not _is_held(leaf):
            return leaf
        return Held(leaf, leaf.inner.untyped_storage()._cdata in self._own)

    def end(self):
        """Puts back what the work has changed: a capture only notes."""
        for storage, before in self._before.values():
            storage.copy_(before)
        torch.set_rng_state(self._random)

    def replay(self, run, note_uses):
        with torch.no_grad():
            for func, (args, kwargs), (plain_args, plain_kwargs), results in self.entries:
                note_uses(func, args, kwargs)
                if operation(func).is_view or operation(func).name in _MAKES_MEMORY:
                    continue
                new = leaves_of(run(func)(*plain_args, **plain_kwargs))
                for old, value in zip(results, new, strict=True):
                    if old is not None and old.untyped_storage()._cdata in self._own and old is not value:
                        assert old.shape == value.shape, f"{func} has another shape in a replay"
                        old.copy_(value)


def _is_held(leaf):
    """Whether it is a tensor of the device: `inner` of any other one is PyTorch's inner product."""
    return isinstance(getattr(leaf, "inner", None), torch.Tensor)


def _is_baked(tensor, args):
    return tensor.dim() == 0 and any(tensor is leaf for leaf in leaves_of(args))


class Driver:
    """What `torch.cuda` and its C++ know of one pretended device; `run`, `note_uses`: of operations."""

    def __init__(self, device, run, note_uses):
        self.device, self.generator = device, Generator()
        self.underway, self.mode = set(), 0
        self._default, self._thread = Stream(), device.order.thread
        self._run, self._note_uses = run, note_uses

    @property
    def recording(self):
        return getattr(self._thread, "recording", None)

    def patches(self):
        """What takes the place of names of `torch.cuda`, and of `torch._C`."""
        driver = self

        class CUDAGraph:
            def capture_begin(self, pool=None, capture_error_mode="global", **others):
                if driver.current_stream() is driver._default:
                    raise RuntimeError("CUDA graphs must be captured on a non-default stream")
                self._pool, self.recording = pool, Recording()
                driver.underway.add(pool)
                driver.generator.captures, driver._thread.recording = True, self.recording

            def capture_end(self):
                driver._thread.recording = None
                self.recording.end()
                if self.recording.failed or self.recording.unjoined:
                    raise RuntimeError(
                        "CUDA error: operation failed due to a previous error during capture"
                    )
                driver.underway.discard(self._pool)
                driver.generator.captures = False

            def replay(self):
                self.recording.replay(driver._run, driver._note_uses)

            def pool(self):
                return self._pool

        of_cuda = {
            "CUDAGraph": CUDAGraph, "Stream": Stream, "current_stream": self.current_stream,
            "default_stream": lambda *_: self._default, "set_stream": self.set_stream,
            "graph_pool_handle": lambda: (0, next(_numbers)), "default_generators": (self.generator,),
            "empty_cache": self.empty_cache, "synchronize": lambda *_: self.device.synchronize(),
            "is_current_stream_capturing": lambda: self.recording is not None,
            "get_sync_debug_mode": lambda: self.mode, "set_sync_debug_mode": self.set_mode,
        }  # fmt: skip
        of_c = {
            "_cuda_endAllocateToPool": self.end_allocate, "_cuda_releasePool": lambda index, pool: None,
            "_host_emptyCache": lambda: None,
        }  # fmt: skip
        return of_cuda, of_c

    def current_stream(self, *_):
        return getattr(self._thread, "stream", self._default)

    def set_stream(self, stream):
        self._thread.stream = stream

    def set_mode(self, mode):
        self.mode = ("default", "warn", "error").index(mode) if isinstance(mode, str) else mode

    def end_allocate(self, index, pool):
        if pool not in self.underway:
            raise RuntimeError("endAllocatePool: not currently recording to mempool_id")
        self.underway.remove(pool)

    def empty_cache(self):
        if self.underway:
            raise RuntimeError("captures_underway.empty() INTERNAL ASSERT FAILED")

    def check_random(self, func):
        """Refuses random numbers between a capture that has failed and its cleaning."""
        if not operation(func).is_random:
            return
        if self.generator.captures and self.recording is None:
            raise RuntimeError("Offset increment outside graph capture encountered unexpectedly.")

    def note_wait(self, what, place):
        """place: of the call that waits, a file and a line."""
        if self.recording is not None:
            self.recording.refuse(what)
        if self.mode == 2:
            raise RuntimeError(f"called a synchronizing CUDA operation: {what}")
        if self.mode == 1:
            warnings.warn_explicit("called a synchronizing CUDA operation", UserWarning, *place)
