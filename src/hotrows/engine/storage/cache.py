"""Cache: slots in fast memory in front of a store, for a group of packs that read the same rows.

It obeys the moves of plans and decides nothing. The rows of a batch go through

    collect       missing rows: store -> staged           victims: slots -> leaving
    insert        missing rows: staged -> slots
    (training reads and writes slots)
    write_back                                            victims: leaving -> store

in the verbs of a `Device`. The host does each at once. A GPU does it later, the calling thread goes
on, and marks say what must come first: the copy of the plan and the batch that had to leave before
`collect`, `insert` before training, training before `write_back`. Between store and slots, records go

    zero copy     from one to the other: the host in its own memory and in files, a GPU in page-locked
                  host memory, which it reads and writes itself
    staged        through a block that the host gathers or scatters, and that is copied as a whole

While the pipeline is paused, the present value of a row is in its slot if it has one, else in a
transfer that was not written back, else in the store: `write_back_all` ends transfers, and `read` looks
through, changing nothing. The map from rows to slots by which batches are planned
(`engine.planning.slots`) describes batches to come and is not used by the cache.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from hotrows import ops
from hotrows.engine.storage.store import Store, empty_records
from hotrows.ops.plan import Moves
from hotrows.runtime.device import HOST, Device, Mark, aligned
from hotrows.runtime.transfer import to_device

CHUNK_ROWS = 1 << 16  # rows that a flush or a look through holds at once
MOVE, WRITE = "move", "write"  # lanes
_SAME, _CHANGED, _FLUSHED = 0, 1, 2  # a slot's row: as it came; trained; trained, and flushed since


@dataclass(frozen=True)
class Transfer:
    """The rows of one batch between a store and slots.

    moves, device_moves: what moves, in host memory and on the device; of the rows that go out, those
        that training has changed.
    staged: [m, stride] uint8, records that come in; leaving: [e, stride] uint8, records that go out;
        both on the device. collected: the mark behind which both are filled.
    """

    moves: Moves
    device_moves: Moves
    staged: Tensor
    leaving: Tensor
    collected: Mark


class Cache:
    """`num_slots` records of each pack of a group, in front of `store`.

    strides: bytes of each pack's record; arenas: the slots, [C, stride] uint8 per pack. Records of the
    group have the bytes of `store.stride`, and gaps where the store has some: `of_packs`. device: where
    slots are. zero_copy: the device reads and writes the store's records itself, as the host always
    can.

    Which row is in each slot, and which of them training has changed, is noted on the device as well: by
    those who fill and train the slots, in their lanes.
    """

    def __init__(
        self,
        num_slots: int,
        strides: Sequence[int],
        store: Store,
        device: Device = HOST,
        zero_copy: bool = True,
    ) -> None:
        self.store, self._device, self.zero_copy = store, device, zero_copy or device.on_host
        sizes = [aligned(stride) for stride in strides]
        self._sizes = sizes if store.stride == sum(sizes) else list(strides)
        self._slots = tuple(empty_records(num_slots, size, device) for size in self._sizes)
        self.arenas = tuple(s[:, :stride] for s, stride in zip(self._slots, strides, strict=True))
        self._row_of = device.put(torch.full((num_slots,), -1))
        self._state = device.put(torch.zeros(num_slots, dtype=torch.uint8))
        self._transfers: dict[int, Transfer] = {}  # collected, and not yet written back
        self._staged: dict[int, Transfer] = {}  # collected, and not yet inserted
        self._residents: tuple[Tensor, Tensor] | None = None  # rows that have slots, sorted; slots
        self._moved: Mark = None  # behind the last `move`
        # Slots are written on another lane than made them: should the cache be dropped in the middle
        # of something, their memory waits for it.
        memory = [*self.arenas, self._row_of, self._state]
        device.launch(MOVE, lambda: None, [device.mark()], memory)

    def move(self, moves: Moves) -> None:
        """Moves the rows of a batch, every stage in turn, for what the calling thread does next."""
        copy = to_device(self._device, moves)
        after = [copy.mark, self._device.mark(), self._moved]
        transfer = self.collect(moves, copy.value, after)
        self._device.wait(self.insert(transfer), copy.blocks)
        self._moved = self.write_back(transfer)

    @property
    def num_slots(self) -> int:
        return self._row_of.numel()

    @property
    def num_bytes(self) -> int:
        """Bytes of all slots."""
        return sum(arena.numel() for arena in self.arenas)

    # ---- the moves of a batch

    def collect(
        self, moves: Moves, device_moves: Moves | None = None, after: Sequence[Mark] = ()
    ) -> Transfer:
        """Reads the rows that come in, and copies those that go out from their slots.

        device_moves: the moves on the device; None: `moves` are. after: marks to be passed first. With
        zero copy both may be on the device.
        """
        device, stride, device_moves = self._device, self.store.stride, device_moves or moves
        vacated = device_moves.slots_out
        if device.on_host:  # a device writes back what is unchanged, too: nobody there has counted it
            moves = device_moves = self._without_unchanged(moves)
            self._state[vacated] = _SAME
        # Read rows that come in on the host, unless the device reads them itself.
        staged = device.empty(MOVE, moves.rows_in.numel(), stride)
        leaving = device.empty(MOVE, moves.rows_out.numel(), stride)
        block: Tensor | None = None
        if not self.zero_copy:
            block = device.staging(*staged.shape)
            self.store.read(moves.rows_in, block)

        # Copy rows that go out, before others take their slots.
        def copy() -> None:
            if len(staged):
                if block is None:
                    self.store.read(device_moves.rows_in, staged)
                else:
                    staged.copy_(block, non_blocking=True)
            if len(leaving):
                self._copy_out(device_moves.slots_out, leaving)
            if len(vacated):
                self._row_of.index_fill_(0, vacated, -1)

        mark = device.launch(MOVE, copy, after, _blocks(device_moves))
        # Keep the transfer until it is written back.
        self._residents = None
        transfer = Transfer(moves, device_moves, staged, leaving, mark)
        self._transfers[id(transfer)] = self._staged[id(transfer)] = transfer
        return transfer

    def _without_unchanged(self, moves: Moves) -> Moves:
        """The moves without the rows that go out as they came in: the store has their values."""
        changed = self._state[moves.slots_out] != _SAME
        if changed.all():
            return moves
        return replace(moves, rows_out=moves.rows_out[changed], slots_out=moves.slots_out[changed])

    def insert(self, transfer: Transfer) -> Mark:
        """Puts the rows that come in into their slots; returns the mark that training waits for."""
        moves, staged = transfer.device_moves, transfer.staged

        def copy() -> None:
            if len(staged):
                self._copy_in(moves.slots_in, staged)
                self._row_of.index_copy_(0, moves.slots_in, moves.rows_in)

        mark = self._device.launch(MOVE, copy, holds=_blocks(moves))
        self._staged.pop(id(transfer), None)
        self._residents = None
        return mark

    def write_back(self, transfer: Transfer, after: Sequence[Mark] = ()) -> Mark:
        """Stores the rows that went out; returns the mark that batches wait for which come later.

        Where records are staged, the calling thread, which is not training's, waits for the copy.
        """
        device, leaving, moves = self._device, transfer.leaving, transfer.device_moves
        is_written = self._transfers.pop(id(transfer), None) is None
        if is_written or not len(leaving):  # a mark all the same: behind training, and in order
            return device.launch(WRITE, lambda: None, after)
        after = [transfer.collected, *after]
        if self.zero_copy:
            holds = [leaving, *_blocks(moves)]
            return device.launch(WRITE, lambda: self.store.write(moves.rows_out, leaving), after, holds)
        block = device.staging(*leaving.shape)
        mark = device.launch(WRITE, lambda: block.copy_(leaving, non_blocking=True), after, [leaving])
        device.finish(mark)
        self.store.write(transfer.moves.rows_out, block)
        return mark

    def mark_changed(self, slots: Tensor) -> None:
        """Notes that training writes these slots, on the device."""
        self._state.index_fill_(0, slots, _CHANGED)

    # ---- all rows; the pipeline is paused, and the host waits for the device

    @property
    def rows(self) -> Tensor:
        """The rows that have a slot at present, ascending, in host memory."""
        row_of = self._row_of.cpu()
        return row_of[row_of >= 0].sort().values

    def holds(self, slots: Tensor, rows: Tensor) -> bool:
        """True if slots[i] has row rows[i], for all i."""
        return torch.equal(self._row_of[slots], self._device.put(rows))

    def warm(self, moves: Moves) -> None:
        """Fills empty slots before the first batch, `CHUNK_ROWS` rows at a time."""
        for begin, end in chunks(moves.rows_in.numel()):
            rows, slots = moves.rows_in[begin:end], moves.slots_in[begin:end]
            part = replace(moves, rows_in=rows, slots_in=slots)
            copy = to_device(self._device, part)
            transfer = self.collect(part, copy.value, [copy.mark])
            self._device.finish(self.insert(transfer))
            self.write_back(transfer)

    def write_back_all(self) -> None:
        """Writes back every row that has left its slot."""
        for transfer in list(self._transfers.values()):
            self.write_back(transfer, [self._device.mark()])
        self._device.synchronize()

    def flush(self, keeps: bool = True) -> None:
        """Writes every trained row to the store; each stays in its slot.

        keeps: no row will be read from the store before it was written again.
        """
        self.write_back_all()
        state, row_of = self._state.cpu(), self._row_of.cpu()
        writing: list[tuple[Future[None], Tensor]] = []  # one chunk, while the next one is gathered

        def finish() -> None:
            for written, slots in writing:
                written.result()
                state[slots] = _FLUSHED
            writing.clear()

        with ThreadPoolExecutor(1) as writer:
            for begin, end in chunks(self.num_slots):
                changed = (state[begin:end] == _CHANGED).nonzero().squeeze(1) + begin
                changed = changed[row_of[changed] >= 0]  # padding is looked up in a slot, too
                rows, order = row_of[changed].sort()
                records = self._gather(changed[order])
                finish()
                if rows.numel():
                    written = writer.submit(self.store.write, rows, records, keeps=keeps)
                    writing.append((written, changed))
            finish()
        self._state.copy_(state)

    def clear(self) -> None:
        """Forgets every row; what was not flushed is lost."""
        self._transfers.clear()
        self._staged.clear()
        self._device.synchronize()
        self._device.finish(self._device.launch(MOVE, lambda: self._row_of.fill_(-1)))
        self._state.zero_()
        self._residents = None

    def read(self, rows: Tensor) -> Tensor:
        """[m, stride] in host memory: the present records of `rows`, distinct and ascending."""
        slots = self._slots_of(self._device.put(rows)).cpu()
        records = torch.empty(rows.numel(), self.store.stride, dtype=torch.uint8)
        absent, resident = slots < 0, (slots >= 0).nonzero().squeeze(1)
        if absent.any():
            stored = torch.empty(int(absent.sum()), self.store.stride, dtype=torch.uint8)
            self.store.read(rows[absent], stored)
            records[absent] = stored
        if resident.numel():
            records[resident] = self._gather(slots[resident])
        return records

    def write(self, rows: Tensor, records: Tensor) -> None:
        """Makes records in host memory the present ones of `rows`, distinct and ascending."""
        slots = self._slots_of(self._device.put(rows)).cpu()
        absent, resident = slots < 0, (slots >= 0).nonzero().squeeze(1)
        if resident.numel():
            changed = self._device.put(slots[resident])
            self._copy_in(changed, self._device.put(records[resident]))
            self._state[changed] = _CHANGED
        if absent.any():
            self.store.write(rows[absent], records[absent])
        for transfer in list(self._staged.values()):  # read from the store before this write
            incoming = transfer.moves.rows_in
            places = torch.searchsorted(rows, incoming).clamp(max=max(len(rows) - 1, 0))
            written = (rows[places] == incoming).nonzero().squeeze(1) if len(rows) else places[:0]
            transfer.staged[self._device.put(written)] = self._device.put(records[places[written]])

    def read_on_device(self, rows: Tensor, device_rows: Tensor) -> Tensor:
        """[m, stride] on the device: the present records of `rows` (host), `device_rows` (device)."""
        if not self.zero_copy:
            return self._device.put(self.read(rows))
        slots, places = self._residents_among(device_rows)
        records = self._empty(len(rows))
        self.store.read(device_rows, records)  # residents too: they are few, and overwritten below
        if len(slots):
            self._copy_out(slots, records, places)
        return records

    def write_on_device(self, rows: Tensor, device_rows: Tensor, records: Tensor) -> None:
        """Makes records on the device the present ones of `rows` (host), `device_rows` (device)."""
        if not self.zero_copy:
            self.write(rows, records.cpu())
            return
        slots, places = self._residents_among(device_rows)
        self.store.write(device_rows, records)
        if len(slots):
            self._copy_in(slots, records, places)

    def _residents_among(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the slots of rows that have one, and their places in `rows`; all on the device."""
        slots = self._slots_of(rows)
        places = (slots >= 0).nonzero().squeeze(1)
        return slots[places], places

    def _slots_of(self, rows: Tensor) -> Tensor:
        """[m]: the slot of each row at present, -1 where it has none; all on the device."""
        self.write_back_all()
        if self._residents is None:
            self._residents = self._row_of.sort()
        residents, slots = self._residents
        places = torch.searchsorted(residents, rows).clamp(max=residents.numel() - 1)
        return torch.where(residents[places] == rows, slots[places], -1)

    # ---- records in slots

    def _gather(self, slots: Tensor) -> Tensor:
        """[m, stride] in host memory. slots: in host memory."""
        records = self._empty(len(slots))
        self._copy_out(self._device.put(slots), records)
        return records.cpu()

    def _copy_out(self, slots: Tensor, records: Tensor, places: Tensor | None = None) -> None:
        """Copies slots into records, at `places` of them; all on the device."""
        for arena, part in zip(self._slots, records.split(self._sizes, 1), strict=True):
            ops.copy_rows(arena, slots, part, places)

    def _copy_in(self, slots: Tensor, records: Tensor, places: Tensor | None = None) -> None:
        """Copies records, those at `places`, into slots; all on the device."""
        for arena, part in zip(self._slots, records.split(self._sizes, 1), strict=True):
            ops.copy_rows(part, places, arena, slots)

    def _empty(self, num_rows: int) -> Tensor:
        return torch.empty(num_rows, self.store.stride, dtype=torch.uint8, device=self._device.torch)

    def of_packs(self, records: Tensor) -> list[Tensor]:
        """The records of a group as those of its packs, views without the gaps."""
        parts = zip(records.split(self._sizes, 1), self.arenas, strict=True)
        return [part[:, : arena.shape[1]] for part, arena in parts]


def chunks(num_rows: int, size: int = CHUNK_ROWS) -> Iterator[tuple[int, int]]:
    """(begin, end) of consecutive rows, `size` at most."""
    for begin in range(0, num_rows, size):
        yield begin, min(begin + size, num_rows)


def _blocks(moves: Moves) -> list[Tensor]:
    """The blocks of moves that a launch holds, each through a view of it."""
    return [moves.rows_in, moves.rows_out]
