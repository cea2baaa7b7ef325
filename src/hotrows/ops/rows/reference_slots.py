"""The ops of a slot map on a device, in plain PyTorch: the specification.

A cache of C slots in front of R rows, at most k batches in flight. Batches are numbered as they are
planned. The state, int32 but for the last:

    slot_of    [R]  the slot of each row; -1: it has none
    coming     [R]  the last batch fed so far that reads each row; -1: none
    row_of     [C]  the row in each slot; -1: the slot is free
    last_use   [C]  the last batch that reads its row, of those planned and some after them; of a
                    free slot `FREE`, of one filled before the first batch -1 and below
    ranking    [C]  slots in the order in which they may be vacated, as of when they were ranked
    progress   [3]  int64: the first place of the ranking that was not looked at yet; the number of its
                    slots whose rows no batch needed; the number of slots that have a row

A row that any of the k - 1 batches before or after batch t reads has last_use > t - k: it keeps its slot.
Before `take_slots` of batch t come `feed_rows` of batches after it and `touch_slots` of t + k - 1.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hotrows.runtime.shapes import Int32, Int64

FREE = -(2**31)  # before any batch
LATER = 2**30  # in the ranking, what is added to the last use of a row that a batch fed will read
_NEVER = 2**31 - 1
SEARCHED = 2  # slots that are looked at for each id of a batch: of these it reads one at most
DRAINED, BYPASSES = 1, 2


def feed_rows(coming: Int32[Tensor, "R"], rows: Int64[Tensor, "N"], batch: int) -> None:
    """Notes that a batch to come reads these rows, in any order, with repeats; -1 is padding."""
    coming[rows[rows >= 0]] = batch


def touch_slots(
    slot_of: Int32[Tensor, "R"], last_use: Int32[Tensor, "C"], rows: Int64[Tensor, "U"], batch: int
) -> None:
    """Keeps the slots of the rows that a batch reads, distinct, until k - 1 batches after it."""
    slots = slot_of[rows[rows >= 0]]
    last_use[slots[slots >= 0]] = batch


def rank_slots(
    row_of: Int32[Tensor, "C"],
    last_use: Int32[Tensor, "C"],
    coming: Int32[Tensor, "R"],
    ranking: Int32[Tensor, "C"],
    progress: Int64[Tensor, "3"],
    batch: int,
    in_flight: int,
) -> None:
    """Ranks all slots for the batches from this one on: free ones, then those whose row no batch fed
    reads, then all others, the least recently used first; last, those that are kept."""
    is_needed = (row_of >= 0) & (coming[row_of.clamp(min=0)] >= batch)
    is_kept = last_use > max(batch - in_flight, -1)
    age = last_use + torch.where(is_needed, LATER, 0)
    order = torch.where(is_kept, _NEVER, age).sort(stable=True).indices
    ranking.copy_(order)
    progress[0] = 0
    progress[1] = (~(is_needed | is_kept)).sum()


def take_slots(
    slot_of: Int32[Tensor, "R"],
    row_of: Int32[Tensor, "C"],
    last_use: Int32[Tensor, "C"],
    coming: Int32[Tensor, "R"],
    ranking: Int32[Tensor, "C"],
    progress: Int64[Tensor, "3"],
    rows: Int64[Tensor, "U"],
    batch: int,
    in_flight: int,
    slots: Int64[Tensor, "U"],
    moves: Int64[Tensor, "4 U"],
    counts: Int64[Tensor, "4"],
) -> None:
    """Gives slots to the rows of the next batch, distinct and ascending, -1 being padding.

    Where k - 1 batches on either side keep too many slots, the batch is drained: any row that it does not
    read itself may go. Where it has more rows than there are slots, it bypasses the cache.

    Fills slots: 0 for padding, -1 where the row has none; moves: rows that come in, their slots, rows
    that go out, their slots, of each as many as counted; counts: rows, rows that had no slot, rows that
    go out, and `DRAINED`, `BYPASSES`, or 0.
    """
    is_real, oldest, num_slots = rows >= 0, max(batch - in_flight, -1), ranking.numel()
    slots.copy_(torch.where(is_real, slot_of[rows.clamp(min=0)], 0))
    last_use[slots[is_real & (slots >= 0)]] = batch
    is_missing = slots < 0
    missing = rows[is_missing]

    # Search the ranking for slots whose rows may go.
    num_searched = min(SEARCHED * rows.numel(), num_slots)
    places = progress[0] + torch.arange(num_searched, device=rows.device)
    searched = ranking[places % max(num_slots, 1)].long()
    use, held = last_use[searched], row_of[searched]
    is_unneeded = (held < 0) | (coming[held.clamp(min=0)] < batch)
    may_go = (places < num_slots) & (use <= oldest) & (is_unneeded | (places >= progress[1]))
    # Where there are too few: wait for all batches in flight, or leave the cache out.
    case = 0
    if may_go.sum() < missing.numel():
        may_go, case = use != batch, DRAINED
    if may_go.sum() < missing.numel():
        may_go, case = torch.zeros_like(may_go), BYPASSES
    chosen = may_go.nonzero().squeeze(1)[: missing.numel()]
    taken, held = searched[chosen], held[chosen].long()
    is_out = held >= 0  # free slots are ranked before all others
    if chosen.numel():
        progress[0] = (places[chosen[-1]] + 1).clamp(max=num_slots)
        progress[2] += (~is_out).sum()
        slot_of[held[is_out]] = -1
        slot_of[missing], row_of[taken], last_use[taken] = taken.int(), missing.int(), batch
        slots[is_missing] = taken
        for part, values in zip(moves, (missing, taken, held[is_out], taken[is_out]), strict=True):
            part[: values.numel()] = values
    numbers = int(is_real.sum()), missing.numel(), int(is_out.sum()), case
    counts.copy_(torch.tensor(numbers))
