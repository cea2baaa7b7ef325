"""Cache: slots in fast memory in front of a store, for a group of packs that read the same rows.

It obeys the moves of plans and decides nothing. A batch's rows live through

    collect      missing rows: store -> staging           victims: slots -> a buffer
    insert       missing rows: staging -> slots
    (training reads and writes slots)
    write back                                             victims: buffer -> store

While the pipeline rests, the present value of a row is in its slot if it has one, else with the
victims that have not been written back, else in the store: `settle` writes those back, and `read`
looks through, changing nothing. The map from rows to slots by which batches are planned
(`planning.slots`) is ahead of all this and is never asked here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hotrows import ops
from hotrows.device import HOST, Device
from hotrows.plan import Moves
from hotrows.storage.store import Store, empty_records

CHUNK_ROWS = 1 << 16  # rows that a flush or a look through holds at once
_SAME, _CHANGED, _FLUSHED = 0, 1, 2  # a slot's row: as it came; trained; trained, and flushed since


@dataclass(frozen=True)
class Transit:
    """Records on their way, of one batch.

    staged: [m, stride], what comes in; rows: [e], leaving: [e, stride], what goes.
    """

    staged: Tensor
    rows: Tensor
    leaving: Tensor


class Cache:
    """`num_slots` records of each pack of a group, in front of `store`.

    strides: bytes of each pack's record; arenas: [C, stride] uint8 per pack.
    """

    def __init__(
        self, num_slots: int, strides: Sequence[int], store: Store, device: Device = HOST
    ) -> None:
        self.store = store
        self.arenas = tuple(empty_records(num_slots, stride, device) for stride in strides)
        self._row_of = torch.full((num_slots,), -1)
        self._state = torch.zeros(num_slots, dtype=torch.uint8)
        self._leaving: dict[int, Transit] = {}
        self._residents: tuple[Tensor, Tensor] | None = None

    @property
    def num_slots(self) -> int:
        return self._row_of.numel()

    @property
    def num_bytes(self) -> int:
        """Bytes of all slots."""
        return sum(arena.numel() for arena in self.arenas)

    def collect(self, moves: Moves) -> Transit:
        """Reads the rows that come in, and takes those that go out of their slots."""
        staged = self._buffer(moves.rows_in.numel())
        self.store.read(moves.rows_in, staged)
        # A row that was brought in and never trained is in the store as it was.
        trained = self._state[moves.slots_out] != _SAME
        slots = moves.slots_out[trained]
        transit = Transit(staged, moves.rows_out[trained], self._gather(slots))
        self._row_of[moves.slots_out] = -1
        self._state[moves.slots_out] = _SAME
        self._residents = None
        self._leaving[id(transit)] = transit
        return transit

    def insert(self, moves: Moves, transit: Transit) -> None:
        self._scatter(moves.slots_in, transit.staged)
        self._row_of[moves.slots_in] = moves.rows_in
        self._residents = None

    def warm(self, moves: Moves) -> None:
        """Fills empty slots before the first batch, a part of the rows at a time."""
        for part in self._in_chunks(moves):
            transit = self.collect(part)
            self.insert(part, transit)
            self.write_back(transit)

    def _in_chunks(self, moves: Moves) -> Iterator[Moves]:
        for begin, end in chunks(moves.rows_in.numel()):
            yield dataclasses.replace(
                moves, rows_in=moves.rows_in[begin:end], slots_in=moves.slots_in[begin:end]
            )

    def write_back(self, transit: Transit) -> None:
        if self._leaving.pop(id(transit), None) is not None and transit.rows.numel():
            self.store.write(transit.rows, transit.leaving)

    @property
    def rows(self) -> Tensor:
        """The rows that have a slot at present, ascending."""
        return self._row_of[self._row_of >= 0].sort().values

    def holds(self, slots: Tensor, rows: Tensor) -> bool:
        """Whether each of these slots has the row given for it."""
        return torch.equal(self._row_of[slots], rows)

    def changed(self, slots: Tensor) -> None:
        """Training has written these slots."""
        self._state[slots] = _CHANGED

    def settle(self) -> None:
        """Writes back every row that has left its slot; the pipeline rests."""
        for transit in list(self._leaving.values()):
            self.write_back(transit)

    def flush(self, keeps: bool = True) -> None:
        """Writes every trained row to the store and keeps it in its slot; the pipeline rests.

        keeps: no row will be read from the store before it was written again.
        """
        self.settle()
        for begin, end in chunks(self.num_slots):
            changed = (self._state[begin:end] == _CHANGED).nonzero().squeeze(1) + begin
            rows, order = self._row_of[changed].sort()
            if rows.numel():
                self.store.write(rows, self._gather(changed[order]), keeps=keeps)
            self._state[changed] = _FLUSHED

    def clear(self) -> None:
        """Forgets every row; what was not flushed is lost."""
        self._leaving.clear()
        self._row_of.fill_(-1)
        self._state.zero_()
        self._residents = None

    def read(self, rows: Tensor) -> Tensor:
        """[m, stride]: the present records of `rows`, distinct and ascending; the pipeline rests."""
        slots = self._slots_of(rows)
        records = self._buffer(rows.numel())
        absent, here = slots < 0, (slots >= 0).nonzero().squeeze(1)
        if absent.any():
            found = self._buffer(int(absent.sum()))
            self.store.read(rows[absent], found)
            records[absent] = found
        if here.numel():
            records[here] = self._gather(slots[here])
        return records

    def write(self, rows: Tensor, records: Tensor) -> None:
        """Makes these the present records of `rows`, distinct and ascending; the pipeline rests."""
        slots = self._slots_of(rows)
        absent, here = slots < 0, (slots >= 0).nonzero().squeeze(1)
        if here.numel():
            self._scatter(slots[here], records[here])
        self._state[slots[here]] = _CHANGED
        if absent.any():
            self.store.write(rows[absent], records[absent])

    def _slots_of(self, rows: Tensor) -> Tensor:
        """[m]: the slot of each row at present, -1 where it has none."""
        self.settle()
        if self._residents is None:
            self._residents = self._row_of.sort()
        held, slots = self._residents
        at = torch.searchsorted(held, rows).clamp(max=held.numel() - 1)
        return torch.where(held[at] == rows, slots[at], -1)

    def _gather(self, slots: Tensor) -> Tensor:
        records = self._buffer(slots.numel())
        for arena, part in zip(self.arenas, self._parts(records), strict=True):
            ops.copy_rows(arena, slots, part, None)
        return records

    def _scatter(self, slots: Tensor, records: Tensor) -> None:
        for arena, part in zip(self.arenas, self._parts(records), strict=True):
            ops.copy_rows(part, None, arena, slots)

    def _buffer(self, num_rows: int) -> Tensor:
        return torch.empty(num_rows, self.store.stride, dtype=torch.uint8)

    def _parts(self, records: Tensor) -> tuple[Tensor, ...]:
        """The records of a group as those of its packs."""
        return records.split([arena.shape[1] for arena in self.arenas], 1)


def chunks(num_rows: int, size: int = CHUNK_ROWS) -> Iterator[tuple[int, int]]:
    """(begin, end) of consecutive rows, `size` at most."""
    for begin in range(0, num_rows, size):
        yield begin, min(begin + size, num_rows)
