"""The key table in plain Python: the specification of the native one.

Batches are numbered as they are resolved, from 0. A *row* below is an id less the reserved ones.
"""

from __future__ import annotations

import heapq
from collections import Counter, deque
from collections.abc import Callable, Iterable
from itertools import filterfalse
from typing import Any

import torch
from torch import Tensor

from hotrows.dynamic import MOST_ROWS, MOST_SKETCHED, Dynamic
from hotrows.engine.keys.table import COUNTERS, MOST_COUNTED, READ, SKETCH_ROWS, KeyTable, Resolved
from hotrows.ops.rows.reference_random import mix64, random_bits


class ReferenceKeyTable(KeyTable):
    """A key table of dicts, which looks at all rows to find those to evict."""

    def __init__(self, dynamic: Dynamic, num_unknown: int = 1) -> None:
        super().__init__(dynamic, num_unknown)
        self._clear()

    def _open(self) -> None:
        """Takes no table of the native core."""

    def _clear(self) -> None:
        self._uses: dict[int, deque[tuple[int, int]]] = {}  # key: (batch, reads) in the window
        self._num_windowed = self.num_resolved
        self._rows: dict[int, int] = {}  # live key: row
        self._keys: dict[int, int] = {}  # row: live key
        self._last_use: dict[int, int] = {}  # row: batch
        self._counts: dict[int, int] = {}  # row: reads, as of its last use
        self._waiting: dict[int, int] = {}  # key: reads so far
        self._sketch: dict[int, int] = {}  # counter: what it holds
        self._recent: dict[int, int] = {}  # of `frequent`: recent reads of the batch's keys without a row
        self._clock: dict[int, int] = {}  # batch: event time, where that rose
        self._totals: dict[str, int] = dict.fromkeys(COUNTERS[2:], 0)
        self._journals: deque[list[tuple[dict, Any, Any]]] = deque()  # by batch not trained: old values

    @property
    def num_bytes(self) -> int:
        return 100 * (3 * len(self._rows) + len(self._waiting) + len(self._sketch) + len(self._uses))

    def growth(self) -> dict[str, int]:
        return {name: self._totals[name] for name in ("rows", "admitted", "evicted", "refused")}

    def _resolve(self, keys: Tensor, time: int | None) -> Resolved:
        batch = self.num_resolved
        self._journals.append([])
        read = Counter(keys.tolist())  # in the order of first occurrence
        reads_ahead = self._take_uses(batch, read)
        self._advance_clock(batch, time)
        for key in read.keys() & self._rows.keys():
            self._touch(self._rows[key], batch, read[key])
        new = self._admitted(read, reads_ahead)
        died = self._evicted(batch, read, new)
        died_keys = [self._die(row) for row in died]
        born_keys = new[: self._room(len(new))]
        free = filterfalse(self._keys.__contains__, range(MOST_ROWS))  # from the lowest
        reads = self._recent or read
        born = [self._give_birth(key, next(free), batch, reads[key]) for key in born_keys]
        self._add("refused", len(new) - len(born))
        ids = self._ids(keys, self._rows)
        return Resolved(
            ids, *(_tensor(part) for part in (self._id(born), born_keys, self._id(died), died_keys))
        )

    def _touch(self, row: int, batch: int, reads: int) -> None:
        halvings = self._epoch(batch) - self._epoch(self._last_use[row])
        self._set_read(row, batch, (self._counts[row] >> halvings) + READ * reads)

    def _set_read(self, row: int, batch: int, count: int) -> None:
        self._put(self._last_use, row, batch)
        self._put(
            self._counts, row, min(count, MOST_COUNTED) if self.dynamic.eviction.kind == "lfu" else 0
        )

    def _admitted(self, read: dict[int, int], reads_ahead: dict[int, int]) -> list[int]:
        """The keys that get a row if there is room, by ascending hash; of `frequent`, by reads first."""
        admission = self.dynamic.admission
        unknown = _by_hash([key for key in read if key not in self._rows])
        if admission.kind == "probability":
            bits = random_bits(_tensor(unknown), torch.tensor(0))
            return [key for key, x in zip(unknown, bits.tolist(), strict=True) if _is_below(x, admission)]
        if admission.kind == "ahead":
            return [key for key in unknown if reads_ahead[key] >= admission.reads]
        if admission.kind == "frequent":
            self._recent = {key: self._sketched(key, read[key]) for key in unknown}
            new = [key for key in unknown if self._recent[key] >= admission.reads]
            return sorted(new, key=lambda key: -self._recent[key])
        if admission.kind == "after":
            add = self._sketched if admission.sketch else self._counted
            return [key for key in unknown if add(key, read[key]) >= admission.reads]
        return unknown

    def _counted(self, key: int, reads: int) -> int:
        self._put(self._waiting, key, min(self._waiting.get(key, 0) + reads, MOST_COUNTED))
        return self._waiting[key]

    def _sketched(self, key: int, reads: int) -> int:
        """Counts reads in the newer sketch, no counter higher than needed; the count in both sketches."""
        width, place = self.dynamic.sketch_width, self._totals["sketch_place"]
        if place + reads > width // 2:
            self._turn_sketches(width)
            place = 0
        self._put(self._totals, "sketch_place", place + reads)
        newer = _cells(key, width)
        older = min(self._sketch.get(cell + SKETCH_ROWS * width, 0) for cell in newer)
        count = min(min(self._sketch.get(cell, 0) for cell in newer) + reads, MOST_SKETCHED)
        for cell in newer:
            self._put(self._sketch, cell, max(self._sketch.get(cell, 0), count))
        return count + older

    def _turn_sketches(self, width: int) -> None:
        newer = {cell: count for cell, count in self._sketch.items() if cell < SKETCH_ROWS * width}
        for cell in list(self._sketch):
            self._put(self._sketch, cell, None)
        for cell, count in newer.items():
            self._put(self._sketch, cell + SKETCH_ROWS * width, count)

    def _evicted(self, batch: int, read: dict[int, int], new: list[int]) -> list[int]:
        """The rows that are taken from their keys, ascending: expired ones, and others to make room."""
        eviction = self.dynamic.eviction
        others = [row for row, key in self._keys.items() if key not in read]
        oldest = {"idle": batch - eviction.limit + 1, "time": min(self._clock, default=0)}.get(
            eviction.kind
        )
        expired = {row for row in others if oldest is not None and self._last_use[row] < oldest}
        room = self._room(len(new), len(expired))
        if eviction.kind == "none":
            return []
        others = [row for row in others if row not in expired]
        first = heapq.nsmallest(len(new) - room, others, key=self._eviction_order())
        if self.dynamic.admission.kind == "frequent":
            loses = [self._is_rarer(row, key, batch) for row, key in zip(first, new[room:], strict=False)]
            first = first[: [*loses, False].index(False)]
        return sorted([*expired, *first])

    def _is_rarer(self, row: int, key: int, batch: int) -> bool:
        """Whether a row was read less often lately than a key without one."""
        mine = _weight(self._counts[row], self._epoch(self._last_use[row]))
        return mine < _weight(READ * self._recent[key], self._epoch(batch))

    def _eviction_order(self) -> Callable[[int], tuple]:
        """A sort key of rows: the row to evict first comes first."""
        kind = self.dynamic.eviction.kind

        def weight(row: int) -> tuple:
            if kind == "lfu":
                return _weight(self._counts[row], self._epoch(self._last_use[row]))
            if kind == "ahead" and self._keys[row] in self._uses:
                return 1, -self._uses[self._keys[row]][0][0]
            return 0, 0

        return lambda row: (*weight(row), self._last_use[row], row)

    def _room(self, most: int, num_freed: int = 0) -> int:
        """How many of `most` more keys the capacity admits once `num_freed` are gone."""
        if self.dynamic.capacity is None:
            return most
        return max(min(self.dynamic.capacity - len(self._rows) + num_freed, most), 0)

    def _die(self, row: int) -> int:
        key = self._keys[row]
        self._put(self._rows, key, None)
        for column in (self._keys, self._last_use, self._counts):
            self._put(column, row, None)
        self._add("evicted", 1)
        return key

    def _give_birth(self, key: int, row: int, batch: int, reads: int) -> int:
        self._put(self._rows, key, row)
        self._put(self._keys, row, key)
        self._put(self._waiting, key, None)
        self._set_read(row, batch, READ * reads)
        self._add("admitted", 1)
        self._put(self._totals, "rows", max(self._totals["rows"], row + 1))
        return row

    def _advance_clock(self, batch: int, time: int | None) -> None:
        """Notes where the event time rises; the rows of batches before the first place kept expire."""
        eviction = self.dynamic.eviction
        if eviction.kind != "time" or time is None or (self._clock and time <= self._totals["time"]):
            return
        self._put(self._clock, batch if self._clock else 0, time)
        self._put(self._totals, "time", time)
        for place in [place for place, then in self._clock.items() if time - then >= eviction.limit]:
            self._put(self._clock, place, None)

    def _epoch(self, batch: int) -> int:
        """How often the weight of a read has halved up to a batch, under evict="lfu:HALF_LIFE"."""
        eviction = self.dynamic.eviction
        return batch // eviction.limit if eviction.kind == "lfu" and eviction.limit else 0

    def _add_uses(self, keys: Tensor) -> None:
        for key, reads in Counter(keys.tolist()).items():
            self._uses.setdefault(key, deque()).append((self._num_windowed, reads))
        self._num_windowed += 1

    def _take_uses(self, batch: int, read: dict[int, int]) -> dict[int, int]:
        """The reads of each key in this batch and the window; the batch's uses are to come no more."""
        if not self.dynamic.batches_ahead:
            return read
        ahead = {key: sum(reads for _, reads in self._uses.get(key, [])) for key in read}
        for key, reads in read.items():
            assert self._uses.get(key, [None])[0] == (batch, reads), "resolve() got other keys"
            self._uses[key].popleft()
            if not self._uses[key]:
                del self._uses[key]
        return ahead

    def _find(self, keys: Tensor) -> Tensor:
        return self._ids(keys, self._as_trained(self._rows))

    def _trained(self) -> None:
        self._journals.popleft()

    def _ids(self, keys: Tensor, rows: dict[int, int]) -> Tensor:
        unknown = mix64(keys).numpy().view("uint64") % self.num_unknown
        pairs = zip(keys.tolist(), unknown.tolist(), strict=True)
        return _tensor([rows[key] + self.first_id if key in rows else 2 + other for key, other in pairs])

    def _id(self, rows: Iterable[int]) -> list[int]:
        return [row + self.first_id for row in rows]

    def _add(self, name: str, number: int) -> None:
        self._put(self._totals, name, self._totals[name] + number)

    def _put(self, column: dict, place: Any, value: int | None) -> None:
        """Sets a value, or with None removes it, and notes the old one."""
        self._journals[-1].append((column, place, column.get(place)))
        _set(column, place, value)

    def _as_trained(self, column: dict) -> dict:
        """A copy of a column without the changes of batches that were not trained."""
        copy = dict(column)
        for journal in reversed(self._journals):
            for changed, place, old in reversed(journal):
                if changed is column:
                    _set(copy, place, old)
        return copy

    def _state(self) -> dict[str, Tensor]:
        columns = (self._keys, self._last_use, self._counts)
        keys, last_use, counts = (_tensor(_by_place(self._as_trained(column))[1]) for column in columns)
        width = self.dynamic.sketch_width
        sketch = torch.zeros(2 * SKETCH_ROWS * width, dtype=torch.uint8)
        cells, values = map(_tensor, _by_place(self._as_trained(self._sketch)))
        sketch[cells] = values.to(torch.uint8)
        waiting_keys, waiting_counts = map(_tensor, _by_place(self._as_trained(self._waiting)))
        clock_batches, clock_times = map(_tensor, _by_place(self._as_trained(self._clock)))
        totals = self._as_trained(self._totals)
        return {
            "keys": keys,
            "ids": _tensor(self._id(sorted(self._as_trained(self._keys)))),
            "last_use": last_use,
            "counts": counts,
            "waiting_keys": waiting_keys,
            "waiting_counts": waiting_counts,
            "sketch": sketch.view(2, SKETCH_ROWS, width),
            "clock_batches": clock_batches,
            "clock_times": clock_times,
            "counters": _tensor([self.num_trained, self.num_unknown, *totals.values()]),
        }

    def _load(self, state: dict[str, Tensor]) -> None:
        counters = state["counters"].tolist()
        self.num_resolved = counters[0]
        self._clear()
        self._totals = dict(zip(COUNTERS[2:], counters[2:], strict=True))
        rows = (state["ids"] - self.first_id).tolist()
        self._keys = dict(zip(rows, state["keys"].tolist(), strict=True))
        self._rows = {key: row for row, key in self._keys.items()}
        self._last_use = dict(zip(rows, state["last_use"].tolist(), strict=True))
        counts = (
            state["counts"] if self.dynamic.eviction.kind == "lfu" else torch.zeros_like(state["counts"])
        )
        self._counts = dict(zip(rows, counts.tolist(), strict=True))
        if self.dynamic.admission.kind == "after" and not self.dynamic.admission.sketch:
            pairs = zip(state["waiting_keys"].tolist(), state["waiting_counts"].tolist(), strict=True)
            self._waiting = dict(pairs)
        if self.dynamic.sketch_width == state["sketch"].shape[2]:
            self._sketch = {i: x for i, x in enumerate(state["sketch"].flatten().tolist()) if x}
        else:
            self._totals["sketch_place"] = 0
        if self.dynamic.eviction.kind == "time":
            pairs = zip(state["clock_batches"].tolist(), state["clock_times"].tolist(), strict=True)
            self._clock = dict(pairs)


def _by_hash(keys: list[int]) -> list[int]:
    """Keys by ascending hash: an order in which they are, however the batch lists them."""
    hashes = mix64(_tensor(keys)).numpy().view("uint64")
    return [keys[place] for place in hashes.argsort()]


def _cells(key: int, width: int) -> list[int]:
    """The counter of a key in each row of a sketch."""
    bits = int(random_bits(torch.tensor(key), torch.tensor(1))) % 2**64
    step, start = bits >> 32, bits % 2**32
    return [row * width + ((start + row * step) % 2**32 * width >> 32) for row in range(SKETCH_ROWS)]


def _is_below(bits: int, admission: Any) -> bool:
    """Whether the upper 53 of 64 random bits, as a number in [0, 1), are below the probability."""
    return (bits % 2**64) >> 11 < int(admission.probability * 2**53)


def _weight(count: int, epoch: int) -> tuple[int, int]:
    """count * 2^epoch as exponent and mantissa, which compare as it does."""
    return (epoch + count.bit_length(), count << (32 - count.bit_length())) if count else (0, 0)


def _set(column: dict, place: Any, value: int | None) -> None:
    if value is None:
        column.pop(place, None)
    else:
        column[place] = value


def _by_place(column: dict[int, int]) -> tuple[list[int], list[int]]:
    """Places, ascending, and what stands there."""
    places = sorted(column)
    return places, [column[place] for place in places]


def _tensor(numbers: Iterable[int]) -> Tensor:
    return torch.tensor(list(numbers), dtype=torch.int64)
