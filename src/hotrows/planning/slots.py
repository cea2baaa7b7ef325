"""Slot map: allocates the slots of a cache that looks forward (ScratchPipe, and past it) to rows.

    slots = slot_map(num_slots, Lookahead())
    while slots.wants():
        slots.feed(rows of the next batch)            # may run as far ahead as it likes
    allocation = slots.allocate(distinct rows of the next batch to plan)

With at most k batches in flight, a row used by the k - 1 batches before or after the one that slots
are allocated for is not evicted, so that no slot is reused while its row is trained and no row is
fetched before it was written back. Where this leaves too few, the batch is *drained*: any row that it
does not use itself may be evicted, it waits until all before it have left the pipeline, and the next
one waits for it. A batch of more rows than slots *bypasses the cache*, drained: nothing moves, rows
that have a slot keep it.

Free slots are allocated first, from the lowest; then those of the rows that the policy evicts. All is
a function of the rows and the settings; how early a batch is fed beyond what `wants` says has no part
in it. `slots_reference` is the specification; the native map holds, for the process alone,

    16 B a slot, and 8 to 16 B for its place in the order; 24 B and these past 2^32 rows
     8 B a known row (one with a slot, or with uses to come), in a table 3/5 to 3/4 full; 16 B past 2^32
     4 B a use to come
     8 B a row that Frequency counts, in a table like that; 16 B past 2^32
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hotrows.plan import Moves
from hotrows.planning import policy as policies
from hotrows.planning.policy import Lookahead, Newest, Policy, Window
from hotrows.planning.slots_reference import Allocation, ReferenceSlotMap, SlotMap
from hotrows.runtime import native
from hotrows.runtime.native import pointer
from hotrows.shapes import Int64

__all__ = ["Allocation", "NativeSlotMap", "SlotMap", "slot_map"]

_DRAINED, _BYPASSES_CACHE = 1, 2
_FAR, _ANY = 2**31 - 1, 2**63 - 1


def slot_map(num_slots: int, policy: Policy, in_flight: int = 1, **options: int | None) -> SlotMap:
    """A `SlotMap`: the native one, or without the native core its reference.

    options: lookahead_bytes, num_rows, and for tests past_pins and future_pins.
    """
    kind = ReferenceSlotMap if native.load() is None else NativeSlotMap
    return kind(num_slots, policy, in_flight, **options)


class NativeSlotMap(SlotMap):
    """A slot map in the native core."""

    _handle: ctypes.c_void_p | None = None

    def __init__(self, num_slots: int, policy: Policy, in_flight: int = 1, **options: int | None) -> None:
        super().__init__(num_slots, policy, in_flight, **options)
        self._buffers = torch.empty(4, 0, dtype=torch.int64)
        self._core: Any = native.load()
        order = self._past, self._future, self._known_window(), isinstance(policy, Newest)
        counted, rows = policies.num_counted(num_slots), _ANY if self.num_rows is None else self.num_rows
        sizes = ctypes.c_int64(counted), ctypes.c_int64(rows)
        self._handle = self._call(
            "new", ctypes.c_int64(num_slots), *order, *sizes, returns=ctypes.c_void_p
        )

    def __del__(self) -> None:
        if self._handle is not None:
            self._call("free", self._handle)

    @property
    def num_resident(self) -> int:
        return self._sizes()[0]

    @property
    def num_bytes(self) -> int:
        queued = sum(rows.numel() * rows.element_size() for rows in self._queue)
        return sum(self.bytes_by_part().values()) + queued

    def bytes_by_part(self) -> dict[str, int]:
        """Bytes of memory that the native map has allocated, by what stands in them."""
        parts = (ctypes.c_int64 * 4)()
        self._call("bytes", self._handle, parts)
        return dict(zip(("slots", "known_rows", "uses", "counted_rows"), parts, strict=True))

    def warm(self, rows: Int64[Tensor, "_"]) -> Moves:
        assert self.num_allocated == 0 and self.num_resident == 0, "warm() comes once, before allocate()"
        distinct, first = np.unique(rows.numpy(), return_index=True)
        ranked = torch.from_numpy(distinct[first.argsort()][: self.num_slots])
        rows_in, rank = ranked.sort()
        ages = (-1 - rank).int()
        self._call("warm", self._handle, pointer(rows_in), pointer(ages), _size(rows_in))
        none = torch.empty(0, dtype=torch.int64)
        return Moves(rows_in, torch.arange(rows_in.numel()), none, none)

    def _allocate(self, rows: Int64[Tensor, "U"]) -> tuple[Int64[Tensor, "U"], Moves, bool]:
        slots = torch.empty_like(rows)
        pairs = self._buffers_for(rows.numel())
        num_in, num_out = ctypes.c_int64(), ctypes.c_int64()
        batch = pointer(rows), _size(rows), pointer(slots)
        room = *map(pointer, pairs), ctypes.byref(num_in), ctypes.byref(num_out)
        case = self._call("take", self._handle, *batch, *room, returns=ctypes.c_int64)
        assert case >= 0, "allocate() got other rows than feed()"
        rows_in, slots_in = (part[: num_in.value].clone() for part in pairs[:2])
        rows_out, slots_out = (part[: num_out.value].clone() for part in pairs[2:])
        moves = Moves(rows_in, slots_in, rows_out, slots_out, case == _BYPASSES_CACHE)
        return slots, moves, case in (_DRAINED, _BYPASSES_CACHE)

    def _buffers_for(self, num_rows: int) -> list[Tensor]:
        """Memory for rows and slots, reused by every batch: fresh memory costs more than they do."""
        if self._buffers.shape[1] < num_rows:
            self._buffers = torch.empty(4, num_rows * 5 // 4, dtype=torch.int64)
        return list(self._buffers)

    def _add_uses(self, batch: int, rows: Tensor) -> None:
        self._call("feed", self._handle, pointer(rows), _size(rows))

    @property
    def _lookahead_bytes(self) -> int:
        _, num_uses, num_known = self._sizes()
        return Window.num_bytes(num_uses, num_known)

    def _known_window(self) -> int:
        """Up to how many batches ahead a next use counts for the order of eviction."""
        if not isinstance(self.policy, Lookahead):
            return 0
        return self.policy.window if isinstance(self.policy.window, int) else _FAR

    def _protect(self, rows: Tensor) -> None:
        self._call("want", self._handle, pointer(rows), _size(rows))

    def _most_counted(self, num: int) -> Tensor:
        rows = torch.empty(num, dtype=torch.int64)
        num_rows = self._call(
            "most_counted", self._handle, _size(rows), pointer(rows), returns=ctypes.c_int64
        )
        return rows[:num_rows]

    def _count(self, rows: Tensor) -> None:
        self._call("count", self._handle, pointer(rows), _size(rows))

    def _sizes(self) -> list[int]:
        """Rows that have a slot, uses to come, rows known for these alone."""
        sizes = (ctypes.c_int64 * 3)()
        self._call("sizes", self._handle, sizes)
        return list(sizes)

    def _call(self, name: str, *arguments: Any, returns: Any = None) -> Any:
        function = getattr(self._core, f"hotrows_slots_{name}")
        function.restype = returns
        result = function(*arguments)
        return ctypes.c_void_p(result) if returns is ctypes.c_void_p else result


def _size(rows: Tensor) -> ctypes.c_int64:
    return ctypes.c_int64(rows.numel())
