"""Slot map on a device: gives slots where rows are looked up, and waits for no count.

    slots.feed(rows of a batch to come)       # as far ahead as `wants` says
    slots.touch(rows of batch t + k - 1)      # k: batches in flight
    slots.take(distinct rows of batch t, ..)  # fills in slots, moves and counts; batches later:
    moves = slots.read(taken)                 # what was counted, once the host needs it

LRU among the rows that no batch fed ahead reads; once none is left of these, among all that batches in
flight do not read (`ops.rows.reference_slots`). Pins, drained batches and the bypass are those of every
slot map (`slots`): no slot is reused while its row is trained, and no row is fetched before it was
written back.

`feed`, `touch` and `take` are launched on one lane, in the order of batches; each touches a few numbers
for each id. Slots are ranked every 16 batches, and before as many ids have been read as half of them.
Memory of the device, beside the slots: 8 B a row, 12 B a slot.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from hotrows import ops
from hotrows.engine.planning.policy import Lookahead, Policy, Window
from hotrows.ops.plan import Moves
from hotrows.ops.rows.reference_slots import BYPASSES, FREE, LATER, SEARCHED
from hotrows.runtime.device import Device
from hotrows.runtime.shapes import Int64

LANE = "plan"
_RANKED_EVERY = 16  # batches
_KNOWN_AFTER = 16  # batches: misses count for the window of those planned so much later
_TURNOVERS = 1.4  # see `Window`: with a longer one, too few rows are left that no batch reads


@dataclass(frozen=True)
class Taken:
    """The slots of a batch, on the device once the lane has come so far.

    slots: of each row, -1: none; moves: rows that come in, their slots, rows that go out, their slots,
    as many as counted. counts: in host memory, see `ops.take_slots`.
    """

    slots: Int64[Tensor, "U"]
    moves: Int64[Tensor, "4 U"]
    counts: Int64[Tensor, "4"]


@dataclass(frozen=True)
class Counted:
    """The moves of a batch: the number of rows that it reads, the moves, on the device, and whether it
    waits until all batches before it have left the pipeline, and the next one for it."""

    num_rows: int
    moves: Moves
    is_drained: bool


def refusal(
    policy: Policy, num_rows: Sequence[int], num_slots: Sequence[int], most_bytes: int
) -> str | None:
    """Why the slots of these groups must be mapped on the host; None: a device can do it.

    most_bytes: of the maps.
    """
    if not isinstance(policy, Lookahead) or policy.window is None:
        return "the policy is not LRU with a bounded look ahead"
    if max(num_rows) >= 2**31 or max(num_slots) >= LATER:
        return "there are 2^31 rows or more"
    num_bytes = 8 * sum(num_rows) + 12 * sum(num_slots)
    if num_bytes > most_bytes:
        return (
            f"the map takes {num_bytes / 2**20:,.0f} MiB of the device, more than fast_memory and "
            f"lookahead_memory, the larger of which is {most_bytes / 2**20:,.0f} MiB"
        )
    return None


class DeviceSlots:
    """The rows and slots of one group of packs.

    num_rows: R; num_slots: C; in_flight: k, of batches between their first move and their write-back.
    num_allocated: batches that slots were requested for; hits, misses: distinct rows of those counted so
    far; num_drained: batches of these that waited for all before them; most_rows: of one of them.
    """

    def __init__(
        self, num_rows: int, num_slots: int, policy: Lookahead, in_flight: int, device: Device
    ) -> None:
        self.num_slots, self.policy, self.in_flight = num_slots, policy, in_flight
        self.num_allocated = self.hits = self.misses = 0
        self.num_drained = self.most_rows = self.num_resident = 0
        self._device = device
        self._window = Window(Lookahead(), num_slots, in_flight, in_flight - 1, turnovers=_TURNOVERS)
        self._counted: deque[tuple[int, int, int]] = deque()  # batch, rows, misses: not yet in the window
        self._fed = self._touched = self._taken = 0
        self._ranked = self._read_since = 0  # since then: batch, and ids
        int32 = partial(device.empty, LANE, dtype=torch.int32)
        # One row where a rank has none, so that kernels have something to look at.
        self._slot_of, self._coming = int32(max(num_rows, 1)), int32(max(num_rows, 1))
        self._row_of, self._last_use, self._ranking = (int32(num_slots) for _ in range(3))
        self._progress = device.empty(LANE, 3, dtype=torch.int64)
        none = torch.empty(0, dtype=torch.int64)
        device.launch(LANE, partial(self._begin, none, none))

    # ---- how far to look, on the host

    @property
    def most_pinned(self) -> int:
        """A bound of the rows pinned at once: so many slots never drain a batch of those so far."""
        return (2 * self.in_flight - 1) * self.most_rows

    @property
    def window(self) -> int:
        """The number of batches past the next one that are looked at: no more than the policy says."""
        most, fits = self.policy.window, self._window.batches
        assert fits is not None
        return min(most, fits) if isinstance(most, int) else fits

    def wants(self, ahead: int) -> bool:
        """True if the batch `ahead` batches after the next one to plan should be fed."""
        return ahead < self.in_flight or ahead <= self.window

    def begin(self) -> None:
        """Goes on to the next batch; what is known of the misses of earlier ones decides on the window.

        These are the same ones however far planning is ahead, up to 16 batches.
        """
        while self._counted and self._counted[0][0] + _KNOWN_AFTER <= self.num_allocated:
            self._window.after(*self._counted.popleft()[1:])
        self.num_allocated += 1

    # ---- launched on the lane, in the order of batches

    def _begin(self, rows: Tensor, last_use: Tensor) -> None:
        num = len(rows)
        self._slot_of.fill_(-1)
        self._coming.fill_(-1)
        self._row_of.fill_(-1)
        self._last_use.fill_(FREE)
        self._progress.fill_(num)
        if num:
            self._row_of[:num] = rows
            self._last_use[:num] = last_use
            self._slot_of[rows] = torch.arange(num, dtype=torch.int32, device=rows.device)

    def feed(self, resolve: Callable[[], Tensor]) -> None:
        """Notes the rows of the next batch not yet fed: [N], in any order, with repeats and padding.

        resolve: makes them, on the device.
        """
        ops.feed_rows(self._coming, resolve(), self._fed)
        self._fed += 1

    def touch(self, rows: Int64[Tensor, "U"]) -> None:
        """Keeps the slots of the rows of the next batch not yet touched, distinct ones and padding."""
        ops.touch_slots(self._slot_of, self._last_use, rows, self._touched)
        self._touched += 1

    def take(self, rows: Int64[Tensor, "U"], taken: Taken) -> None:
        """Gives slots to the rows of the next batch: distinct, ascending, then padding."""
        batch, self._taken = self._taken, self._taken + 1
        self._read_since += rows.numel()
        map_ = self._row_of, self._last_use, self._coming, self._ranking, self._progress
        room = self._read_since + (SEARCHED - 1) * rows.numel() <= self.num_slots
        if batch == 0 or batch >= self._ranked + _RANKED_EVERY or not room:
            ops.rank_slots(*map_, batch, self.in_flight)
            self._ranked, self._read_since = batch, rows.numel()
        counts = torch.empty(4, dtype=torch.int64, device=rows.device)
        ops.take_slots(
            self._slot_of, *map_, rows, batch, self.in_flight, taken.slots, taken.moves, counts
        )
        taken.counts.copy_(counts, non_blocking=True)

    # ---- on the host

    def memory(self, num_rows: int) -> Taken:
        """Memory that `take` fills for so many rows, padding included."""
        int64 = partial(self._device.empty, LANE, dtype=torch.int64)
        return Taken(int64(num_rows), int64(4, num_rows), self._device.staging(4, dtype=torch.int64))

    def read(self, batch: int, taken: Taken) -> Counted:
        """The moves of a batch, once the lane has computed them."""
        rows, misses, num_out, case = taken.counts.tolist()
        num_in = 0 if case == BYPASSES else misses
        self.misses += misses
        self.hits += rows - misses
        self.num_drained += case > 0
        self.most_rows = max(self.most_rows, rows)
        self.num_resident += num_in - num_out
        self._counted.append((batch, rows, misses))
        rows_in, slots_in = taken.moves[:2, :num_in]
        rows_out, slots_out = taken.moves[2:, :num_out]
        moves = Moves(rows_in, slots_in, rows_out, slots_out, case == BYPASSES)
        return Counted(rows, moves, is_drained=case > 0)

    def warm(self, rows: Int64[Tensor, "_"]) -> Moves:
        """Brings in the first distinct rows, most preferred first; once, before the first batch."""
        if self.num_allocated or self.num_resident:
            raise RuntimeError("warm() comes once, at the beginning")
        distinct, first = np.unique(rows.numpy(), return_index=True)
        rows_in, rank = torch.from_numpy(distinct[first.argsort()][: self.num_slots]).sort()
        values = [self._device.put(values) for values in (rows_in, (-1 - rank).int())]
        ready = [self._device.mark()]
        self._device.launch(LANE, partial(self._begin, *values), ready, values)
        self.num_resident = len(rows_in)
        none = torch.empty(0, dtype=torch.int64)
        return Moves(rows_in, torch.arange(len(rows_in)), none, none)
