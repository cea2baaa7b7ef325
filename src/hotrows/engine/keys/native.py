"""Key tables: dynamic ids. Which keys are live, which rows they have, and how both change by batch.

    table = NativeKeyTable(Dynamic(capacity=1_000_000, admit="after:3", evict="lru"))
    while table.wants():
        table.feed(keys of the next batch)         # where admission or eviction looks forward
    resolved = table.resolve(keys of the next batch)
    ..                                             # the batch is trained
    table.trained()

A key is any int64. The caller passes keys of real values alone, and gives padding and missing values
their ids itself, so that no key is reserved. A batch is resolved as follows, whatever was trained since:

    1. live keys that it reads are noted as read
    2. keys that expired, idle ones, lose their rows
    3. the other keys that it reads are admitted or not
    4. where the capacity has no room for all, keys that the batch does not read lose their rows, as many
       as are needed and there are, in the order of the policy; of equal ones the one read longest ago,
       then the one of the lowest id
    5. new keys get the lowest free ids, by ascending hash; those for which there is no room train unknown
       ids, and are counted

All is a function of the settings and of the reads of the batches in order: how often a batch reads which
key, in whatever order. `tests/reference/keys.py` is the specification; the
native table holds, for the process alone,

    22.5 to 24 B a live key, its 8 included, from millions on; 1 to 2 B more where keys are evicted
    24 B a key that waits for admission, counted exactly; 8 B a row of the capacity for the sketch
    32 B a key and 16 B a batch that reads it, of the window
    12 B a key read by a batch, until that is trained
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor

from hotrows.dynamic import MOST_ROWS, Dynamic
from hotrows.engine.keys.table import COUNTERS, SKETCH_ROWS, KeyTable, Resolved
from hotrows.runtime import native
from hotrows.runtime.native import pointer

_NONE = torch.empty(0, dtype=torch.int64)
_ADMISSIONS = native.codes(
    "key_admission", "first", "after", "sketch", "probability", "ahead", "frequent"
)
_EVICTIONS = native.codes("key_eviction", "none", "lru", "lfu", "ahead", "idle", "time")
_SETTINGS = native.codes(
    *("key_settings", "capacity", "num_unknown", "admission", "reads", "probability"),
    *("sketch_width", "eviction", "limit"),
)
_TOTALS = native.codes("key_totals", *COUNTERS[2:])


class NativeKeyTable(KeyTable):
    """A key table in the native core."""

    _handle: ctypes.c_void_p | None = None

    def __init__(self, dynamic: Dynamic, num_unknown: int = 1) -> None:
        super().__init__(dynamic, num_unknown)
        self._core = native.load()
        admission, eviction = dynamic.admission, dynamic.eviction
        values = {
            "capacity": dynamic.capacity or MOST_ROWS,
            "num_unknown": num_unknown,
            "admission": _ADMISSIONS["sketch" if admission.sketch else admission.kind],
            "reads": admission.reads,
            "probability": int(admission.probability * 2**53),
            "sketch_width": dynamic.sketch_width,
            "eviction": _EVICTIONS[eviction.kind],
            "limit": eviction.limit,
        }
        settings = _ints(*(values[name] for name in _SETTINGS))
        self._handle = ctypes.c_void_p(self._call("new", settings, returns=ctypes.c_void_p))
        self._now = self._totals(trained=False)

    def __del__(self) -> None:
        if self._handle is not None:
            self._call("free", self._handle)

    @property
    def num_bytes(self) -> int:
        with self._lock:
            queued = sum(keys.numel() * keys.element_size() for keys in self._queue)
            return self._call("num_bytes", self._handle) + queued

    def growth(self) -> dict[str, int]:
        return dict(zip(COUNTERS[2:6], self._now, strict=False))

    def _add_uses(self, keys: Tensor) -> None:
        self._call("feed", self._handle, keys, keys.numel())

    def _resolve(self, keys: Tensor, time: int | None) -> Resolved:
        ids, counts = torch.empty_like(keys), (ctypes.c_int64 * len(COUNTERS))()
        event_time = None if time is None else ctypes.byref(ctypes.c_int64(time))
        case = self._call("resolve", self._handle, keys, keys.numel(), event_time, ids, counts)
        if case != 0:
            raise RuntimeError("resolve() got other keys than feed()")
        num_born, num_died, *self._now = counts
        if not num_born + num_died:
            return Resolved(ids, _NONE, _NONE, _NONE, _NONE)
        sizes = (num_born, num_born, num_died, num_died)
        changes = torch.empty(sum(sizes), dtype=torch.int64).split(sizes)
        self._call("changes", self._handle, *changes)
        return Resolved(ids, *changes)

    def _find(self, keys: Tensor) -> Tensor:
        ids = torch.empty_like(keys)
        self._call("find", self._handle, keys, keys.numel(), ids)
        return ids

    def _trained(self) -> None:
        self._call("trained", self._handle)

    def _totals(self, trained: bool) -> list[int]:
        totals = _ints(*[0] * len(_TOTALS))
        self._call("totals", self._handle, int(trained), totals)
        return totals.tolist()

    def _state(self) -> dict[str, Tensor]:
        totals = self._totals(trained=True)
        num_live = totals[1] - totals[2]
        rows = [torch.empty(num_live, dtype=torch.int64) for _ in range(4)]
        self._call("read_rows", self._handle, *rows)
        most = self._call("read_waiting", self._handle, None, None)
        waiting = torch.empty(2, most, dtype=torch.int64)
        num_waiting = self._call("read_waiting", self._handle, waiting[0], waiting[1])
        waiting_keys, order = waiting[0, :num_waiting].sort()
        clock = torch.empty(2, self._call("read_clock", self._handle, None, None), dtype=torch.int64)
        self._call("read_clock", self._handle, clock[0], clock[1])
        sketch = torch.empty(2, SKETCH_ROWS, self.dynamic.sketch_width, dtype=torch.uint8)
        self._call("read_sketch", self._handle, sketch)
        return {
            **dict(zip(("keys", "ids", "last_use", "counts"), rows, strict=True)),
            "waiting_keys": waiting_keys,
            "waiting_counts": waiting[1, :num_waiting][order],
            "sketch": sketch,
            "clock_batches": clock[0],
            "clock_times": clock[1],
            "counters": _ints(self.num_trained, self.num_unknown, *totals),
        }

    def _load(self, state: dict[str, Tensor]) -> None:
        state = {name: part.contiguous() for name, part in state.items()}
        totals = state["counters"][2:].clone()
        keeps_sketch = state["sketch"].shape[2] == self.dynamic.sketch_width
        totals[_TOTALS["sketch_place"]] *= keeps_sketch
        rows = [state[name] for name in ("keys", "ids", "last_use", "counts")]
        num_batches = int(state["counters"][0])
        self._call("load", self._handle, num_batches, totals, rows[0].numel(), *rows)
        waiting, clock = state["waiting_keys"], state["clock_batches"]
        self._call("load_waiting", self._handle, waiting.numel(), waiting, state["waiting_counts"])
        self._call("load_clock", self._handle, clock.numel(), clock, state["clock_times"])
        if keeps_sketch:
            self._call("load_sketch", self._handle, state["sketch"])
        self._now = totals.tolist()

    def _call(self, name: str, *arguments: Any, returns: Any = ctypes.c_int64) -> int:
        function = getattr(self._core, f"hotrows_keys_{name}")
        function.restype = returns
        return function(*(_converted(argument) for argument in arguments))


def _converted(argument: Any) -> Any:
    if argument is None or isinstance(argument, Tensor):
        return pointer(argument)
    return ctypes.c_int64(argument) if isinstance(argument, int) else argument


def _ints(*numbers: int) -> Tensor:
    return torch.tensor(numbers, dtype=torch.int64)
