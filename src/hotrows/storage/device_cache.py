"""DeviceCache: slots on a device in front of a store in host memory or in a file.

It obeys the same moves as a `Cache` and has the same map of what is where. But what moves is
launched, and done later; the host goes on. There are two ways between the store and the device:

    direct      the device itself reads and writes the store's rows, in page-locked host memory
    staged      the host gathers rows, and blocks of them are copied

Every lane waits for what must come first, by marks: a batch's rows for the plan that names them, and
for the batch that had to leave before it; training for the rows; those that leave for training.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hotrows import ops
from hotrows.device import Device, Mark
from hotrows.plan import Moves
from hotrows.storage.cache import _CHANGED, _SAME, Cache, Transit
from hotrows.storage.store import Store
from hotrows.upload import upload

MOVE, WRITE = "move", "write"  # lanes
WAYS = ("direct", "staged")


@dataclass
class Journey:
    """The rows of one batch on their way.

    moves, here: what moves, in host memory and on the device; of the rows that go, those that were
    trained. staged: [m, stride], leaving: [e, stride], on the device. waiting: [m, stride] in host
    memory, on the way `staged`. collected: passed once those that leave have left their slots.
    """

    moves: Moves
    here: Moves
    staged: Tensor
    leaving: Tensor
    waiting: Tensor | None
    collected: Mark


class DeviceCache(Cache):
    """`num_slots` records of each pack of a group on a device.

    direct: rows go the way `direct`: the store is in page-locked host memory.
    """

    def __init__(
        self, num_slots: int, strides: Sequence[int], store: Store, device: Device, direct: bool
    ) -> None:
        super().__init__(num_slots, strides, store, device)
        self._device, self._direct = device, direct
        # Slots are written on another lane than made them: should the cache be dropped in the middle
        # of something, their memory waits for it.
        device.launch(MOVE, lambda: None, [device.mark()], self.arenas)
        self._journeys: dict[int, Journey] = {}

    # ---- a batch's moves; each returns at once

    def depart(self, moves: Moves, here: Moves, after: Sequence[Mark]) -> Journey:
        """Reads the rows that come in, and takes those that go out of their slots.

        here: the same moves on the device. after: what must have passed: the plan's copy, and the
        batch that had to leave.
        """
        device, stride, after = self._device, self.store.stride, list(after)
        vacated = moves.slots_out
        moves, here = self._trained(moves, here, after)
        staged = device.empty(MOVE, moves.rows_in.numel(), stride)
        leaving = device.empty(MOVE, moves.rows_out.numel(), stride)
        waiting = None
        if not self._direct:
            waiting = device.staging(*staged.shape)
            self.store.read(moves.rows_in, waiting)

        def collect() -> None:
            if self._direct and len(staged):
                self.store.read(here.rows_in, staged)
            if len(leaving):
                self._copy_out(here.slots_out, leaving)

        mark = device.launch(MOVE, collect, after, _blocks(here))
        self._row_of[vacated] = -1
        self._state[vacated] = _SAME
        self._residents = None
        journey = Journey(moves, here, staged, leaving, waiting, mark)
        self._journeys[id(journey)] = journey
        return journey

    def _trained(self, moves: Moves, here: Moves, after: list[Mark]) -> tuple[Moves, Moves]:
        """The moves without the rows that go as they came: the store has them as they are."""
        trained = self._state[moves.slots_out] != _SAME
        if trained.all():
            return moves, here
        rows, slots = moves.rows_out[trained], moves.slots_out[trained]
        sent = upload(self._device, (rows, slots))
        after.append(sent.mark)
        return (
            dataclasses.replace(moves, rows_out=rows, slots_out=slots),
            dataclasses.replace(here, rows_out=sent.value[0], slots_out=sent.value[1]),
        )

    def transfer(self, journey: Journey) -> None:
        """Brings the rows that come in to the device."""
        waiting, staged = journey.waiting, journey.staged
        if waiting is not None and len(staged):
            self._device.launch(MOVE, lambda: _copy(staged, waiting))

    def arrive(self, journey: Journey) -> Mark:
        """Puts the rows into their slots; returns what training waits for."""
        moves, here, staged = journey.moves, journey.here, journey.staged

        def insert() -> None:
            if len(staged):
                self._copy_in(here.slots_in, staged)

        mark = self._device.launch(MOVE, insert, holds=_blocks(here))
        self._row_of[moves.slots_in] = moves.rows_in
        self._residents = None
        return mark

    def leave(self, journey: Journey, after: Sequence[Mark] = ()) -> Mark:
        """Stores what has gone; returns what the batches wait for that come after this one has left.

        Of the way `staged` the calling thread, which is not training's, waits for the copy.
        """
        device, leaving, here = self._device, journey.leaving, journey.here
        is_settled = self._journeys.pop(id(journey), None) is None
        if is_settled or not len(leaving):  # a mark all the same: behind training, and in order
            return device.launch(WRITE, lambda: None, after)
        after = [journey.collected, *after]
        if self._direct:
            return device.launch(
                WRITE, lambda: self.store.write(here.rows_out, leaving), after,
                [leaving, *_blocks(here)],
            )  # fmt: skip
        gone = device.staging(*leaving.shape)
        mark = device.launch(WRITE, lambda: _copy(gone, leaving), after, [leaving])
        device.finish(mark)
        self.store.write(journey.moves.rows_out, gone)
        return mark

    # ---- rows that pass through; nothing else moves

    def read_here(self, rows: Tensor, here: Tensor) -> Tensor:
        """[m, stride] on the device: the present records of `rows`, in host memory and `here`."""
        if not self._direct:
            return self._device.put(self.read(rows))
        slots, held = self._held(rows)
        records = torch.empty(
            len(rows), self.store.stride, dtype=torch.uint8, device=self._device.torch
        )
        self.store.read(here, records)  # those in slots too: they are few, and have the last word
        if len(slots):
            for arena, part in zip(self.arenas, self._parts(records), strict=True):
                ops.copy_rows(arena, slots, part, held)
        return records

    def write_here(self, rows: Tensor, here: Tensor, records: Tensor) -> None:
        """Makes these, on the device, the present records of `rows`, in host memory and `here`."""
        if not self._direct:
            self.write(rows, records.cpu())
            return
        slots, held = self._held(rows)
        self.store.write(here, records)
        if len(slots):
            for arena, part in zip(self.arenas, self._parts(records), strict=True):
                ops.copy_rows(part, held, arena, slots)

    def _held(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Of the rows that have slots, these and their places among all, on the device."""
        slots = self._slots_of(rows)
        held = (slots >= 0).nonzero().squeeze(1)
        return self._device.put(slots[held]), self._device.put(held)

    # ---- as every cache; the pipeline rests, and the host waits

    def collect(self, moves: Moves) -> Transit:
        raise AssertionError("on a device: depart, transfer, arrive, leave")

    def warm(self, moves: Moves) -> None:
        for part in self._in_chunks(moves):
            sent = upload(self._device, part)
            journey = self.depart(part, sent.value, [sent.mark])
            self.transfer(journey)
            self._device.finish(self.arrive(journey))
            self.leave(journey)

    def settle(self) -> None:
        for journey in list(self._journeys.values()):
            self.leave(journey, [self._device.mark()])
        self._device.synchronize()

    def clear(self) -> None:
        self._journeys.clear()
        self._device.synchronize()
        super().clear()

    def changed(self, slots: Tensor) -> None:
        """Training will have written these slots. slots: in host memory."""
        self._state[slots] = _CHANGED

    def _gather(self, slots: Tensor) -> Tensor:
        found = torch.empty(
            len(slots), self.store.stride, dtype=torch.uint8, device=self._device.torch
        )
        self._copy_out(self._device.put(slots), found)
        return found.cpu()

    def _scatter(self, slots: Tensor, records: Tensor) -> None:
        self._copy_in(self._device.put(slots), self._device.put(records))

    def _copy_out(self, slots: Tensor, records: Tensor) -> None:
        for arena, part in zip(self.arenas, self._parts(records), strict=True):
            ops.copy_rows(arena, slots, part, None)

    def _copy_in(self, slots: Tensor, records: Tensor) -> None:
        for arena, part in zip(self.arenas, self._parts(records), strict=True):
            ops.copy_rows(part, None, arena, slots)


def _copy(target: Tensor, source: Tensor) -> None:
    target.copy_(source, non_blocking=True)


def _blocks(here: Moves) -> list[Tensor]:
    """What a launch on moves holds: their blocks, each through a view of it."""
    return [here.rows_in, here.rows_out]
