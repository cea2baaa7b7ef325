"""The slot map in plain Python: the specification of `slots.SlotMap`, which tests hold equal to it.

Batches are numbered as they come; `batch` below is the one being taken. A row of the cache has an
age: its last use, and its number among the rows last used together. One that was warmed in and not
used yet is older than all, the less wanted the older.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from hotrows.plan import Moves
from hotrows.planning import policy as policies
from hotrows.planning.policy import Frequency, Hot, Lookahead, Newest, Policy, Window


@dataclass(frozen=True)
class Taken:
    """Where the rows of a batch sit.

    slots: [U] int64, one per row; -1 where a row passes through without one.
    moves: what is brought in and what leaves for it.
    waits_for: the batch that must have left the pipeline before a row of this one moves; -1: none.
    """

    slots: Tensor
    moves: Moves
    waits_for: int


class ReferenceSlotMap:
    """`SlotMap` with dicts and sorting."""

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
        self.num_slots, self.policy, self.in_flight = num_slots, policy, in_flight
        self._past = in_flight - 1 if past_pins is None else past_pins
        self._future = in_flight - 1 if future_pins is None else future_pins
        self._window = Window(policy, num_slots, in_flight, self._future, lookahead_bytes)
        self.fed = self.taken = self.hits = self.misses = 0
        self._ended = False
        self._waits_for = -1
        self._unseen: deque[list[int]] = deque()  # batches fed that the window does not reach yet
        self._uses: dict[int, deque[int]] = {}  # row: the batches to come that use it
        self._slots: dict[int, int] = {}  # row: its slot
        self._last_use: dict[int, int] = {}  # resident row: batch; below 0: warmed in, not used
        self._counts: dict[int, int] = {}
        self._wanted: set[int] = set()
        self._num_wanted = 0

    @property
    def num_resident(self) -> int:
        return len(self._slots)

    @property
    def window(self) -> int | None:
        return self._window.batches

    @property
    def num_bytes(self) -> int:
        """What the native map would need, about."""
        return self._lookahead_bytes + 80 * self.num_slots

    def feed(self, rows: Tensor) -> None:
        self._ended = False
        self._feed(rows)

    def end(self) -> None:
        self._ended = True

    def wants(self) -> bool:
        return not self._ended and self._reaches(self.fed)

    def warm(self, rows: Tensor) -> Moves:
        assert self.taken == 0 and not self._slots, "warm() comes once, before the first take()"
        wanted = list(dict.fromkeys(rows.tolist()))[: self.num_slots]
        self._last_use = {row: -1 - rank for rank, row in enumerate(wanted)}
        self._slots = {row: slot for slot, row in enumerate(sorted(wanted))}
        return Moves(*_pairs(self._slots.items()), *_pairs([]))

    def take(self, rows: Tensor) -> Taken:
        batch, used = self.taken, rows.tolist()
        if self.fed == batch:
            self._feed(rows)
        assert self._ended or self.fed > batch + self._future, (
            f"take({batch}) needs the batches up to {batch + self._future} fed, or end()"
        )
        self._choose_wanted(batch, len(used))

        missing = [row for row in used if row not in self._slots]
        num_free = self.num_slots - len(self._slots)
        num_out = max(len(missing) - num_free, 0)
        others = self._slots.keys() - set(used)
        may_go = [row for row in others if not self._is_pinned(row, batch)]
        passes_through = len(used) > self.num_slots
        drained = passes_through or num_out > len(may_go)
        going: list[int] = []
        if not passes_through:
            going = sorted(others if drained else may_go, key=self._order(batch))[:num_out]

        rows_out = [(row, self._slots.pop(row)) for row in going]
        rows_in: list[tuple[int, int]] = []
        if not passes_through:
            free = range(self.num_slots - num_free, self.num_slots)
            rows_in = list(zip(missing, [*free, *(slot for _, slot in rows_out)], strict=False))
        self._slots.update(rows_in)
        self._leave(batch, used, len(missing))
        slots = torch.tensor([self._slots.get(row, -1) for row in used], dtype=torch.int64)
        moves = Moves(*_pairs(rows_in), *_pairs(rows_out), passes_through)
        return Taken(slots, moves, self._wait(batch, drained))

    def _feed(self, rows: Tensor) -> None:
        self.fed += 1
        self._unseen.append(sorted(set(rows.tolist())))
        self._look_ahead()

    def _look_ahead(self) -> None:
        while self._unseen and self._reaches(self.fed - len(self._unseen)):
            batch = self.fed - len(self._unseen)
            for row in self._unseen.popleft():
                self._uses.setdefault(row, deque()).append(batch)

    def _reaches(self, batch: int) -> bool:
        return self._window.reaches(batch - self.taken, self._lookahead_bytes)

    @property
    def _lookahead_bytes(self) -> int:
        num_uses = sum(len(batches) for batches in self._uses.values())
        return Window.num_bytes(num_uses, len(self._uses.keys() - self._slots.keys()))

    def _is_pinned(self, row: int, batch: int) -> bool:
        past = self._last_use[row] >= max(batch - self._past, 0)
        return past or (row in self._uses and self._uses[row][0] <= batch + self._future)

    def _order(self, batch: int) -> Callable[[int], tuple]:
        """What sorts rows by who goes first."""

        def age(row: int) -> tuple[int, int]:
            return self._last_use[row], row

        def next_use(row: int) -> float:
            known = row in self._uses and self._window.knows(self._uses[row][0] - batch)
            return self._uses[row][0] if known else float("inf")

        if isinstance(self.policy, Lookahead):
            return lambda row: (-next_use(row), *age(row))
        if isinstance(self.policy, Newest):
            return lambda row: (-self._last_use[row], -row)
        return lambda row: (row in self._wanted, *age(row))

    def _choose_wanted(self, batch: int, num_rows: int) -> None:
        if batch == 0:
            self._num_wanted = policies.num_wanted(self.num_slots, self.in_flight, num_rows)
        if not policies.chooses_anew(self.policy, batch):
            return
        if isinstance(self.policy, Hot):
            ranked = self.policy.rows.tolist()
        else:
            ranked = sorted(self._counts, key=lambda row: (-self._counts[row], row))
        self._wanted = set(ranked[: self._num_wanted])

    def _leave(self, batch: int, used: list[int], num_misses: int) -> None:
        """Notes that the batch has used its rows, and goes on to the next one."""
        for row in used:
            assert self._uses.get(row, [None])[0] == batch, "take() got other rows than feed()"
            self._uses[row].popleft()
            if not self._uses[row]:
                del self._uses[row]
            if row in self._slots:
                self._last_use[row] = batch
        self._count(used)
        self.misses += num_misses
        self.hits += len(used) - num_misses
        self._window.after(len(used), num_misses)
        self.taken += 1
        self._look_ahead()

    def _count(self, used: list[int]) -> None:
        if not isinstance(self.policy, Frequency):
            return
        for row in used:
            while row not in self._counts and len(self._counts) == policies.num_counted(
                self.num_slots
            ):
                halves = {row: count // 2 for row, count in self._counts.items()}
                self._counts = {row: count for row, count in halves.items() if count}
            self._counts[row] = self._counts.get(row, 0) + 1

    def _wait(self, batch: int, drained: bool) -> int:
        """A drained batch waits for all before it, and the next one waits for it."""
        waits_for = max(self._waits_for, batch - (1 if drained else self.in_flight))
        self._waits_for = batch if drained else waits_for
        return waits_for


def _pairs(pairs: Iterable[tuple[int, int]]) -> tuple[Tensor, Tensor]:
    """Rows, ascending, and their slots."""
    flat = torch.tensor(sorted(pairs), dtype=torch.int64).view(-1, 2)
    return flat[:, 0].contiguous(), flat[:, 1].contiguous()
