"""The slot map in plain Python, with dicts and sorting: the specification of the native one.

Batches are numbered as they come; `batch` below is the one that slots are allocated for. A row of the
cache has an age: its last use, and its number among the rows last used together. A row that was warmed
in and not used yet is older than all others, the less preferred the older.
"""

from collections import deque
from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from hotrows.engine.planning import policy as policies
from hotrows.engine.planning.policy import Lookahead, Newest, Policy, Window
from hotrows.engine.planning.slots import NEVER, SlotMap
from hotrows.ops.plan import Moves


class ReferenceSlotMap(SlotMap):
    """A slot map with dicts and sorting."""

    def __init__(self, num_slots: int, policy: Policy, in_flight: int = 1, **options) -> None:
        super().__init__(num_slots, policy, in_flight, **options)
        self._uses: dict[int, deque[int]] = {}  # row: the batches to come that use it
        self._slots: dict[int, int] = {}  # row: its slot
        self._last_use: dict[int, int] = {}  # resident row: batch; below 0: warmed in, not used
        self._counts: dict[int, int] = {}
        self._protected: set[int] = set()
        self._hints: dict[int, int] = {}  # row: the batch that uses it next, as it was told

    def _knows(self, ahead: int) -> bool:
        """True if the policy may know of a use `ahead` batches after the present one."""
        batches, grows = self._window.batches, self._window._grows
        return grows or batches is None or ahead <= batches

    @property
    def num_resident(self) -> int:
        return len(self._slots)

    @property
    def num_bytes(self) -> int:
        """The bytes that the native map would need, about."""
        return self._lookahead_bytes + 80 * self.num_slots

    def warm(self, rows: Tensor) -> Moves:
        if self.num_allocated or self._slots:
            raise RuntimeError("warm() comes once, before allocate()")
        ranked = list(dict.fromkeys(rows.tolist()))[: self.num_slots]
        self._last_use = {row: -1 - rank for rank, row in enumerate(ranked)}
        self._slots = {row: slot for slot, row in enumerate(sorted(ranked))}
        return Moves(*_pairs(self._slots.items()), *_pairs([]))

    def residents(self) -> Tensor:
        return torch.tensor(sorted(self._slots), dtype=torch.int64)

    def hint(self, rows: Tensor, next_uses: Tensor) -> None:
        self._hints = dict(zip(rows.tolist(), next_uses.tolist(), strict=True))

    def _allocate(self, rows: Tensor, next_uses: Tensor | None) -> tuple[Tensor, Moves, bool]:
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
        if self.hinted:
            never = [NEVER] * len(used)
            self._hints |= dict(
                zip(used, never if next_uses is None else next_uses.tolist(), strict=True)
            )
        slots = torch.tensor([self._slots.get(row, -1) for row in used], dtype=torch.int64)
        return slots, Moves(*_pairs(rows_in), *_pairs(rows_out), bypasses_cache), drained

    def _add_uses(self, batch: int, rows: Tensor) -> None:
        for row in sorted(set(rows.tolist())):
            self._uses.setdefault(row, deque()).append(batch)

    def _remove_uses(self, batch: int, used: list[int]) -> None:
        for row in used:
            if self._uses.get(row, [None])[0] != batch:
                raise RuntimeError("allocate() got other rows than feed()")
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
            if self.hinted and row not in self._uses:
                hint = self._hints.get(row, NEVER)
                return hint if batch <= hint < NEVER else float("inf")
            known = row in self._uses and self._knows(self._uses[row][0] - batch)
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
