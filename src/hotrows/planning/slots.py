"""Which row sits in which slot of a cache that looks forward (ScratchPipe, and past it).

    map = SlotMap(num_slots, Lookahead())
    while map.wants():
        map.feed(rows of the next batch)         # may run as far ahead as it likes
    taken = map.take(distinct rows of the next batch to plan)

With at most k batches in flight, a row used by the k - 1 batches before or after the one being taken
does not leave, so that no slot is reused while it is trained and no row is fetched before it was
written back. Where this leaves too few, the batch is *drained*: any row that it does not use itself
may go, it waits until all before it have left the pipeline, and the next one waits for it. A batch of
more rows than slots *passes through*, drained: nothing moves, rows that have a slot keep it.

Free slots come first, from the lowest; then those of the rows that the policy lets go. All is a
function of the rows and the settings; how early a batch is fed beyond what `wants` asks has no part
in it. `slots_reference` is the specification; the native map holds, for the process alone,

    17 B a slot, and 8 to 16 B for its place in the order
    24 B a known row (one with a slot, or with uses to come), in a table 1/2 to 3/4 full
     8 B a use to come, in a ring that doubles
"""

from __future__ import annotations

import ctypes
from collections import deque
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hotrows import native
from hotrows.native import pointer
from hotrows.plan import Moves
from hotrows.planning import policy as policies
from hotrows.planning.policy import Frequency, Hot, Lookahead, Newest, Policy, Window
from hotrows.planning.slots_reference import ReferenceSlotMap, Taken

__all__ = ["SlotMap", "Taken"]

_DRAINED, _PASSES_THROUGH = 1, 2
_FAR = 2**31 - 1


class SlotMap:
    """The rows and slots of one group of packs.

    num_slots: C; in_flight: k, how many batches may be between their first move and their
    write-back. lookahead_bytes: what the metadata of batches to come may take; None: no bound.
    past_pins, future_pins: how many batches' rows stay, before and after; k - 1 by default, and
    wrong below that: for tests. Without the native core it is a `ReferenceSlotMap`.
    """

    def __new__(cls, *args: Any, **options: Any) -> Any:
        return ReferenceSlotMap(*args, **options) if native.load() is None else super().__new__(cls)

    def __init__(
        self,
        num_slots: int,
        policy: Policy,
        in_flight: int = 1,
        *,
        lookahead_bytes: int | None = None,
        past_pins: int | None = None,
        future_pins: int | None = None,
    ) -> None:
        assert 0 < num_slots < 2**31 and in_flight > 0, (num_slots, in_flight)
        self.num_slots, self.policy, self.in_flight = num_slots, policy, in_flight
        self._past = in_flight - 1 if past_pins is None else past_pins
        self._future = in_flight - 1 if future_pins is None else future_pins
        self._window = Window(policy, num_slots, in_flight, self._future, lookahead_bytes)
        self.fed = self.taken = self.hits = self.misses = 0
        self._ended = False
        self._waits_for = -1
        self._unseen: deque[Tensor] = deque()  # batches fed that the window does not reach yet
        self._num_wanted = 0
        self._pairs = torch.empty(4, 0, dtype=torch.int64)
        self._core: Any = native.load()
        self._handle = self._call(
            "new", ctypes.c_int64(num_slots), self._past, self._future, self._known_window(),
            isinstance(policy, Newest), ctypes.c_int64(policies.num_counted(num_slots)),
            returns=ctypes.c_void_p,
        )  # fmt: skip

    @property
    def num_resident(self) -> int:
        """Rows that have a slot."""
        return self._sizes()[0]

    @property
    def num_bytes(self) -> int:
        """Bytes of metadata."""
        unseen = sum(rows.numel() * rows.element_size() for rows in self._unseen)
        return self._call("num_bytes", self._handle, returns=ctypes.c_int64) + unseen

    @property
    def window(self) -> int | None:
        """How many batches past the next one are looked at; None: all."""
        return self._window.batches

    def feed(self, rows: Tensor) -> None:
        """Tells the rows of the next batch not yet fed: [N] int64, in any order, with repeats."""
        self._ended = False
        self._feed(rows)

    def end(self) -> None:
        """Says that no batch follows, until one is fed all the same."""
        self._ended = True

    def wants(self) -> bool:
        """Whether another batch should be fed before the next one is taken."""
        return not self._ended and self._reaches(self.fed)

    def warm(self, rows: Tensor) -> Moves:
        """Brings in the first distinct rows, most wanted first; once, before the first batch."""
        assert self.taken == 0 and self.num_resident == 0, "warm() comes before the first take()"
        distinct, first = np.unique(rows.numpy(), return_index=True)
        ranked = torch.from_numpy(distinct[first.argsort()][: self.num_slots])
        wanted, rank = ranked.sort()
        ages = (-1 - rank).int()
        self._call("warm", self._handle, pointer(wanted), pointer(ages), _size(wanted))
        none = torch.empty(0, dtype=torch.int64)
        return Moves(wanted, torch.arange(wanted.numel()), none, none)

    def take(self, rows: Tensor) -> Taken:
        """Gives the next batch its slots: [U] int64, its distinct rows, ascending."""
        batch, rows = self.taken, rows.contiguous()
        if self.fed == batch:
            self._feed(rows)
        assert self._ended or self.fed > batch + self._future, (
            f"take({batch}) needs the batches up to {batch + self._future} fed, or end()"
        )
        self._choose_wanted(batch, rows.numel())
        slots = torch.empty_like(rows)
        pairs = self._room(rows.numel())
        num_in, num_out = ctypes.c_int64(), ctypes.c_int64()
        case = self._call(
            "take", self._handle, pointer(rows), _size(rows), pointer(slots), *map(pointer, pairs),
            ctypes.byref(num_in), ctypes.byref(num_out), returns=ctypes.c_int64,
        )  # fmt: skip
        assert case >= 0, "take() got other rows than feed()"
        passes_through = case == _PASSES_THROUGH
        num_misses = int((slots < 0).sum()) if passes_through else num_in.value
        self._leave(rows, num_misses)
        rows_in, slots_in = (part[: num_in.value].clone() for part in pairs[:2])
        rows_out, slots_out = (part[: num_out.value].clone() for part in pairs[2:])
        moves = Moves(rows_in, slots_in, rows_out, slots_out, passes_through)
        return Taken(slots, moves, self._wait(batch, passes_through or case == _DRAINED))

    def __del__(self) -> None:
        if getattr(self, "_handle", None) is not None:
            self._call("free", self._handle)

    def _room(self, num_rows: int) -> list[Tensor]:
        """Where `take` leaves rows and slots: kept, since fresh memory costs more than they do."""
        if self._pairs.shape[1] < num_rows:
            self._pairs = torch.empty(4, num_rows * 5 // 4, dtype=torch.int64)
        return list(self._pairs)

    def _feed(self, rows: Tensor) -> None:
        self.fed += 1
        self._unseen.append(rows.contiguous())
        self._look_ahead()

    def _look_ahead(self) -> None:
        while self._unseen and self._reaches(self.fed - len(self._unseen)):
            rows = self._unseen.popleft()
            self._call("feed", self._handle, pointer(rows), _size(rows))

    def _reaches(self, batch: int) -> bool:
        _, num_uses, num_known = self._sizes()
        return self._window.reaches(batch - self.taken, Window.num_bytes(num_uses, num_known))

    def _known_window(self) -> int:
        """Up to how many batches ahead a next use counts for who goes first."""
        if not isinstance(self.policy, Lookahead):
            return 0
        return self.policy.window if isinstance(self.policy.window, int) else _FAR

    def _choose_wanted(self, batch: int, num_rows: int) -> None:
        if batch == 0:
            self._num_wanted = policies.num_wanted(self.num_slots, self.in_flight, num_rows)
        if not policies.chooses_anew(self.policy, batch):
            return
        if isinstance(self.policy, Hot):
            wanted = self.policy.rows[: self._num_wanted].contiguous()
        else:
            wanted = torch.empty(self._num_wanted, dtype=torch.int64)
            found = self._call(
                "most_counted", self._handle, _size(wanted), pointer(wanted),
                returns=ctypes.c_int64,
            )  # fmt: skip
            wanted = wanted[:found]
        self._call("want", self._handle, pointer(wanted), _size(wanted))

    def _leave(self, rows: Tensor, num_misses: int) -> None:
        if isinstance(self.policy, Frequency):
            self._call("count", self._handle, pointer(rows), _size(rows))
        self.misses += num_misses
        self.hits += rows.numel() - num_misses
        self._window.after(rows.numel(), num_misses)
        self.taken += 1
        self._look_ahead()

    def _wait(self, batch: int, drained: bool) -> int:
        waits_for = max(self._waits_for, batch - (1 if drained else self.in_flight))
        self._waits_for = batch if drained else waits_for
        return waits_for

    def _sizes(self) -> list[int]:
        """Rows that have a slot, uses to come, rows known for these alone."""
        sizes = (ctypes.c_int64 * 3)()
        self._call("sizes", self._handle, sizes)
        return list(sizes)

    def _call(self, name: str, *arguments: Any, returns: Any = None) -> Any:
        function = getattr(self._core, f"hotrows_slots_{name}")
        function.restype = returns
        found = function(*arguments)
        return ctypes.c_void_p(found) if returns is ctypes.c_void_p else found


def _size(rows: Tensor) -> ctypes.c_int64:
    return ctypes.c_int64(rows.numel())
