"""The slot map in plain Python: what every map does, and the specification of the native one.

Batches are numbered as they come; `batch` below is the one that slots are allocated for. A row of the
cache has an age: its last use, and its number among the rows last used together. A row that was warmed
in and not used yet is older than all others, the less preferred the older.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from hotrows.plan import Moves
from hotrows.planning import policy as policies
from hotrows.planning.policy import Frequency, Hot, Lookahead, Newest, Policy, Window
from hotrows.shapes import Int64


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


class SlotMap(ABC):
    """The rows and slots of one group of packs; see `slots`.

    num_slots: C; in_flight: k, the number of batches that may be between their first move and their
    write-back. lookahead_bytes: a bound for the metadata of batches to come; None: no bound.
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
    ) -> None:
        assert 0 < num_slots < 2**31 and in_flight > 0, (num_slots, in_flight)
        self.num_slots, self.policy, self.in_flight = num_slots, policy, in_flight
        self.num_rows = num_rows
        self._past = in_flight - 1 if past_pins is None else past_pins
        self._future = in_flight - 1 if future_pins is None else future_pins
        self._window = Window(policy, num_slots, in_flight, self._future, lookahead_bytes)
        self.num_fed = self.num_allocated = self.hits = self.misses = 0
        self.num_drained = self.most_rows = 0
        self._ended = False
        self._last_wait = -1
        self._queue: deque[Tensor] = deque()  # batches fed that the window does not reach yet
        self._num_protected = 0

    @property
    @abstractmethod
    def num_resident(self) -> int:
        """Rows that have a slot."""

    @property
    @abstractmethod
    def num_bytes(self) -> int:
        """Bytes of metadata."""

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
        """Whether another batch should be fed before slots of the next one are allocated."""
        return not self._ended and self._reaches(self.num_fed)

    @abstractmethod
    def warm(self, rows: Int64[Tensor, "_"]) -> Moves:
        """Brings in the first distinct rows, most preferred first; once, before the first batch."""

    def allocate(self, rows: Int64[Tensor, "U"]) -> Allocation:
        """Gives slots to the rows of the next batch, distinct, ascending."""
        batch, rows = self.num_allocated, rows.contiguous()
        if self.num_fed == batch:
            self._feed(rows)
        assert self._ended or self.num_fed > batch + self._future, (
            f"allocate() for batch {batch} needs the batches up to {batch + self._future} fed, or end()"
        )
        self._choose_protected(batch, rows.numel())
        slots, moves, drained = self._allocate(rows)
        if isinstance(self.policy, Frequency):
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

    @abstractmethod
    def _allocate(self, rows: Int64[Tensor, "U"]) -> tuple[Int64[Tensor, "U"], Moves, bool]:
        """The slots of the batch's rows, its moves, and whether it is drained."""

    @abstractmethod
    def _add_uses(self, batch: int, rows: Tensor) -> None:
        """Notes that a batch to come uses these rows."""

    @property
    @abstractmethod
    def _lookahead_bytes(self) -> int:
        """Bytes of metadata of batches to come."""

    @abstractmethod
    def _protect(self, rows: Tensor) -> None:
        """Evicts these rows after all others, in place of those protected before."""

    @abstractmethod
    def _most_counted(self, num: int) -> Tensor:
        """The rows that most batches used, most frequent first."""

    @abstractmethod
    def _count(self, rows: Tensor) -> None:
        """Counts a use of each row."""

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
        if policies.chooses_anew(self.policy, batch):
            if isinstance(self.policy, Hot):
                rows = self.policy.rows[: self._num_protected]
            else:
                rows = self._most_counted(self._num_protected)
            self._protect(rows.contiguous())

    def _wait(self, batch: int, drained: bool) -> int:
        """A drained batch waits for all before it, and the next one waits for it."""
        waits_for = max(self._last_wait, batch - (1 if drained else self.in_flight))
        self._last_wait = batch if drained else waits_for
        return waits_for


class ReferenceSlotMap(SlotMap):
    """A slot map with dicts and sorting."""

    def __init__(self, num_slots: int, policy: Policy, in_flight: int = 1, **options: int | None) -> None:
        super().__init__(num_slots, policy, in_flight, **options)
        self._uses: dict[int, deque[int]] = {}  # row: the batches to come that use it
        self._slots: dict[int, int] = {}  # row: its slot
        self._last_use: dict[int, int] = {}  # resident row: batch; below 0: warmed in, not used
        self._counts: dict[int, int] = {}
        self._protected: set[int] = set()

    @property
    def num_resident(self) -> int:
        return len(self._slots)

    @property
    def num_bytes(self) -> int:
        """The bytes that the native map would need, about."""
        return self._lookahead_bytes + 80 * self.num_slots

    def warm(self, rows: Int64[Tensor, "_"]) -> Moves:
        assert self.num_allocated == 0 and not self._slots, "warm() comes once, before allocate()"
        ranked = list(dict.fromkeys(rows.tolist()))[: self.num_slots]
        self._last_use = {row: -1 - rank for rank, row in enumerate(ranked)}
        self._slots = {row: slot for slot, row in enumerate(sorted(ranked))}
        return Moves(*_pairs(self._slots.items()), *_pairs([]))

    def _allocate(self, rows: Int64[Tensor, "U"]) -> tuple[Int64[Tensor, "U"], Moves, bool]:
        batch, used = self.num_allocated, rows.tolist()
        missing = [row for row in used if row not in self._slots]
        num_free = self.num_slots - len(self._slots)
        num_out = max(len(missing) - num_free, 0)
        others = self._slots.keys() - set(used)
        evictable = [row for row in others if not self._is_pinned(row, batch)]
        bypasses_cache = len(used) > self.num_slots
        drained = bypasses_cache or num_out > len(evictable)
        evicted: list[int] = []
        if not bypasses_cache:
            candidates = others if drained else evictable
            evicted = sorted(candidates, key=self._eviction_order(batch))[:num_out]

        rows_out = [(row, self._slots.pop(row)) for row in evicted]
        rows_in: list[tuple[int, int]] = []
        if not bypasses_cache:
            free = range(self.num_slots - num_free, self.num_slots)
            rows_in = list(zip(missing, [*free, *(slot for _, slot in rows_out)], strict=False))
        self._slots.update(rows_in)
        self._remove_uses(batch, used)
        slots = torch.tensor([self._slots.get(row, -1) for row in used], dtype=torch.int64)
        return slots, Moves(*_pairs(rows_in), *_pairs(rows_out), bypasses_cache), drained

    def _add_uses(self, batch: int, rows: Tensor) -> None:
        for row in sorted(set(rows.tolist())):
            self._uses.setdefault(row, deque()).append(batch)

    def _remove_uses(self, batch: int, used: list[int]) -> None:
        for row in used:
            assert self._uses.get(row, [None])[0] == batch, "allocate() got other rows than feed()"
            self._uses[row].popleft()
            if not self._uses[row]:
                del self._uses[row]
            if row in self._slots:
                self._last_use[row] = batch

    @property
    def _lookahead_bytes(self) -> int:
        num_uses = sum(len(batches) for batches in self._uses.values())
        return Window.num_bytes(num_uses, len(self._uses.keys() - self._slots.keys()))

    def _is_pinned(self, row: int, batch: int) -> bool:
        past = self._last_use[row] >= max(batch - self._past, 0)
        return past or (row in self._uses and self._uses[row][0] <= batch + self._future)

    def _eviction_order(self, batch: int) -> Callable[[int], tuple]:
        """A sort key of rows: the row to evict first comes first."""

        def age(row: int) -> tuple[int, int]:
            return self._last_use[row], row

        def next_use(row: int) -> float:
            known = row in self._uses and self._window.knows(self._uses[row][0] - batch)
            return self._uses[row][0] if known else float("inf")

        if isinstance(self.policy, Lookahead):
            return lambda row: (-next_use(row), *age(row))
        if isinstance(self.policy, Newest):
            return lambda row: (-self._last_use[row], -row)
        return lambda row: (row in self._protected, *age(row))

    def _protect(self, rows: Tensor) -> None:
        self._protected = set(rows.tolist())

    def _most_counted(self, num: int) -> Tensor:
        ranked = sorted(self._counts, key=lambda row: (-self._counts[row], row))
        return torch.tensor(ranked[:num], dtype=torch.int64)

    def _count(self, rows: Tensor) -> None:
        most = policies.num_counted(self.num_slots)
        for row in rows.tolist():
            while row not in self._counts and len(self._counts) == most:
                halves = {row: count // 2 for row, count in self._counts.items()}
                self._counts = {row: count for row, count in halves.items() if count}
            self._counts[row] = self._counts.get(row, 0) + 1


def _pairs(pairs: Iterable[tuple[int, int]]) -> tuple[Tensor, Tensor]:
    """Rows, ascending, and their slots."""
    flat = torch.tensor(sorted(pairs), dtype=torch.int64).view(-1, 2)
    return flat[:, 0].contiguous(), flat[:, 1].contiguous()
