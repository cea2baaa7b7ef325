"""Slot map: allocates the slots of a cache that looks forward (ScratchPipe, and past it) to rows.

    slots = SlotMap(num_slots, Lookahead())
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
in it. `tests/reference/slots.py` is the specification; the map is one of
the native core, which holds, for the process alone,

    16 B a slot, and 8 to 16 B for its place in the order; 24 B and these past 2^32 rows
     8 B a known row (one with a slot, or with uses to come), in a table 3/5 to 3/4 full; 16 B past 2^32
     4 B a use to come
     8 B a row that Frequency counts, in a table like that; 16 B past 2^32
     4 B a slot, where it is hinted

A map that is *hinted* is told with each batch when its rows are used next
(`engine.planning.next_uses`), and looks no farther ahead than pins demand: of rows without a known use,
those go first whose hint is farthest, and before all those without one.
"""

from __future__ import annotations

import ctypes
from collections import deque
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from hotrows.engine.planning import policy as policies
from hotrows.engine.planning.policy import Lookahead, Newest, Policy, Window
from hotrows.ops.plan import Moves
from hotrows.runtime import native
from hotrows.runtime.shapes import Int32, Int64

_FAR, _ANY = 2**31 - 1, 2**63 - 1
NEVER = 2**31 - 1  # in place of the number of a batch


@dataclass(frozen=True)
class Allocation:
    """The slots of the rows of a batch.

    slots: one per row; -1 where a row bypasses the cache.
    moves: the rows that are brought in, and those that are evicted for them.
    waits_for: the batch that must have left the pipeline before a row of this one moves; -1: none.
    """

    slots: Int64[Tensor, "U"]
    moves: Moves
    waits_for: int


class SlotMap:
    """The rows and slots of one group of packs; see `slots`.

    num_slots: C; in_flight: k, the number of batches that may be between their first move and their
    write-back. lookahead_bytes: a bound for the metadata of batches to come; None: no bound.
    hinted: see above.
    num_rows: rows are numbered below it; None: below 2^63, which takes more memory.
    past_pins, future_pins: the number of batches before and after whose rows are not evicted; k - 1 by
    default, and for tests alone below that, where slots would be reused too early.
    num_fed, num_allocated: batches so far; hits, misses: distinct rows of batches so far.
    num_drained: batches so far that waited for all before them; most_rows: of a batch so far.
    """

    def __init__(
        self,
        num_slots: int,
        policy: Policy,
        in_flight: int = 1,
        *,
        lookahead_bytes: int | None = None,
        num_rows: int | None = None,
        past_pins: int | None = None,
        future_pins: int | None = None,
        hinted: bool = False,
    ) -> None:
        if not 0 < num_slots < 2**31 or in_flight < 1:
            raise ValueError(
                f"expected 1 to 2^31 - 1 slots, {num_slots=}, and some batches, {in_flight=}"
            )
        self.num_slots, self.policy, self.in_flight = num_slots, policy, in_flight
        self.hinted = hinted
        self.num_rows = num_rows
        self._past = in_flight - 1 if past_pins is None else past_pins
        self._future = in_flight - 1 if future_pins is None else future_pins
        window_of = policies.LRU if hinted else policy
        self._window = Window(window_of, num_slots, in_flight, self._future, lookahead_bytes)
        self.num_fed = self.num_allocated = self.hits = self.misses = 0
        self.num_drained = self.most_rows = 0
        self._ended = False
        self._last_wait = -1
        self._queue: deque[Tensor] = deque()  # batches fed that the window does not reach yet
        self._num_protected = 0
        self._buffers = torch.empty(4, 0, dtype=torch.int64)
        self._cases = native.codes("slot_case", "overlapped", "drained", "passes_through")
        self._core = native.Object(
            "slots", num_slots,
            self._past, self._future, 0 if hinted else self._known_window(),
            isinstance(policy, Newest), hinted,
            policies.num_counted(num_slots), _ANY if num_rows is None else num_rows,
        )  # fmt: skip

    @property
    def most_pinned(self) -> int:
        """A bound of the rows pinned at once: so many slots never drain a batch of those so far."""
        return (self._past + 1 + self._future) * self.most_rows

    @property
    def window(self) -> int | None:
        """The number of batches past the next one that are looked at; None: all."""
        return self._window.batches

    def feed(self, rows: Int64[Tensor, "N"]) -> None:
        """Adds the rows of the next batch not yet fed, in any order, with repeats."""
        if self._ended and self.num_allocated:  # slots were given without knowing of this batch: it may
            self._last_wait = max(self._last_wait, self.num_allocated - 1)  # read rows that they evict
        self._ended = False
        self._feed(rows)

    def end(self) -> None:
        """Marks the last batch fed as the last one, until another is fed all the same."""
        self._ended = True

    def wants(self) -> bool:
        """True if another batch should be fed before slots of the next one are allocated."""
        return not self._ended and self._reaches(self.num_fed)

    def allocate(
        self, rows: Int64[Tensor, "U"], next_uses: Int32[Tensor, "U"] | None = None
    ) -> Allocation:
        """Gives slots to the rows of the next batch, distinct, ascending. next_uses: the batches that use
        them next, NEVER where none does; where the map is hinted."""
        batch, rows = self.num_allocated, rows.contiguous()
        if self.num_fed == batch:
            self._feed(rows)
        if not self._ended and self.num_fed <= batch + self._future:
            last = batch + self._future
            raise RuntimeError(f"allocate() for batch {batch} needs those up to {last} fed, or end()")
        self._choose_protected(batch, rows.numel())
        slots, moves, drained = self._allocate(rows, next_uses)
        if self.policy.counts_rows:
            self._count(rows)
        misses = int((slots < 0).sum()) if moves.bypasses_cache else moves.rows_in.numel()
        self.misses += misses
        self.hits += rows.numel() - misses
        self.num_drained += drained
        self.most_rows = max(self.most_rows, rows.numel())
        self._window.after(rows.numel(), misses)
        self.num_allocated += 1
        self._look_ahead()
        return Allocation(slots, moves, self._wait(batch, drained))

    def _feed(self, rows: Tensor) -> None:
        self.num_fed += 1
        self._queue.append(rows.contiguous())
        self._look_ahead()

    def _look_ahead(self) -> None:
        while self._queue and self._reaches(self.num_fed - len(self._queue)):
            self._add_uses(self.num_fed - len(self._queue), self._queue.popleft())

    def _reaches(self, batch: int) -> bool:
        return self._window.reaches(batch - self.num_allocated, self._lookahead_bytes)

    def _choose_protected(self, batch: int, num_rows: int) -> None:
        if batch == 0:
            self._num_protected = policies.num_protected(self.num_slots, self.in_flight, num_rows)
        if self.policy.chooses_anew(batch):
            rows = self.policy.protected(self._num_protected, self._most_counted)
            self._protect(rows.contiguous())

    def _wait(self, batch: int, drained: bool) -> int:
        """A drained batch waits for all before it, and the next one waits for it."""
        waits_for = max(self._last_wait, batch - (1 if drained else self.in_flight))
        self._last_wait = batch if drained else waits_for
        return waits_for

    # ---- the native core

    @property
    def num_resident(self) -> int:
        """Rows that have a slot."""
        return self._sizes()[0]

    @property
    def num_bytes(self) -> int:
        """Bytes of metadata."""
        queued = sum(rows.numel() * rows.element_size() for rows in self._queue)
        return sum(self.bytes_by_part().values()) + queued

    def bytes_by_part(self) -> dict[str, int]:
        """Bytes of memory that the native map has allocated, by what stands in them."""
        parts = (ctypes.c_int64 * 4)()
        self._core.call("bytes", parts)
        return dict(zip(("slots", "known_rows", "uses", "counted_rows"), parts, strict=True))

    def warm(self, rows: Int64[Tensor, "_"]) -> Moves:
        """Brings in the first distinct rows, most preferred first; once, before the first batch."""
        if self.num_allocated or self.num_resident:
            raise RuntimeError("warm() comes once, before allocate()")
        distinct, first = np.unique(rows.numpy(), return_index=True)
        ranked = torch.from_numpy(distinct[first.argsort()][: self.num_slots])
        rows_in, rank = ranked.sort()
        ages = (-1 - rank).int()
        self._core.call("warm", rows_in, ages, len(rows_in))
        none = torch.empty(0, dtype=torch.int64)
        return Moves(rows_in, torch.arange(rows_in.numel()), none, none)

    def residents(self) -> Int64[Tensor, "_"]:
        """The rows that have a slot, ascending."""
        rows = torch.empty(self.num_resident, dtype=torch.int64)
        self._core.call("residents", rows)
        return rows

    def hint(self, rows: Int64[Tensor, "_"], next_uses: Int32[Tensor, "_"]) -> None:
        """Says of all rows that have a slot, ascending, which batch uses them next; NEVER: none."""
        self._core.call("hint", rows, next_uses, len(rows))

    def _allocate(
        self, rows: Int64[Tensor, "U"], next_uses: Int32[Tensor, "U"] | None
    ) -> tuple[Int64[Tensor, "U"], Moves, bool]:
        """The slots of the batch's rows, its moves, and whether it is drained."""
        slots = torch.empty_like(rows)
        pairs = self._buffers_for(rows.numel())
        num_in, num_out = (ctypes.c_int64 * 1)(), (ctypes.c_int64 * 1)()
        case = self._core.call("take", rows, next_uses, len(rows), slots, *pairs, num_in, num_out)
        if case < 0:
            raise RuntimeError("allocate() got other rows than feed()")
        rows_in, slots_in = (part[: num_in[0]].clone() for part in pairs[:2])
        rows_out, slots_out = (part[: num_out[0]].clone() for part in pairs[2:])
        moves = Moves(rows_in, slots_in, rows_out, slots_out, case == self._cases["passes_through"])
        return slots, moves, case != self._cases["overlapped"]

    def _buffers_for(self, num_rows: int) -> list[Tensor]:
        """Memory for rows and slots, reused by every batch: fresh memory costs more than they do."""
        if self._buffers.shape[1] < num_rows:
            self._buffers = torch.empty(4, num_rows * 5 // 4, dtype=torch.int64)
        return list(self._buffers)

    def _add_uses(self, batch: int, rows: Tensor) -> None:
        """Notes that a batch to come uses these rows."""
        self._core.call("feed", rows, len(rows))

    @property
    def _lookahead_bytes(self) -> int:
        """Bytes of metadata of batches to come."""
        _, num_uses, num_known = self._sizes()
        return Window.num_bytes(num_uses, num_known)

    def _known_window(self) -> int:
        """Up to how many batches ahead a next use counts for the order of eviction."""
        if not isinstance(self.policy, Lookahead):
            return 0
        return self.policy.window if isinstance(self.policy.window, int) else _FAR

    def _protect(self, rows: Tensor) -> None:
        """Evicts these rows after all others, in place of those protected before."""
        self._core.call("want", rows, len(rows))

    def _most_counted(self, num: int) -> Tensor:
        """The rows that most batches used, most frequent first."""
        rows = torch.empty(num, dtype=torch.int64)
        return rows[: self._core.call("most_counted", num, rows)]

    def _count(self, rows: Tensor) -> None:
        """Counts a use of each row."""
        self._core.call("count", rows, len(rows))

    def _sizes(self) -> list[int]:
        """Rows that have a slot, uses to come, rows known for these alone."""
        sizes = (ctypes.c_int64 * 3)()
        self._core.call("sizes", sizes)
        return list(sizes)
