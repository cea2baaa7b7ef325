"""Key tables: dynamic ids. Which keys are live, which rows they have, and how both change by batch.

    table = KeyTable(Dynamic(capacity=1_000_000, admit="after:3", evict="lru"))
    while table.wants():
        table.feed(keys of the next batch)         # where admission or eviction looks forward
    resolved = table.resolve(keys of the next batch)
    ..                                             # the batch is trained
    table.trained()

A key is any int64. The caller passes keys of real values alone, and gives padding and missing values
their ids itself, so that no key is reserved. A batch is resolved as follows, whatever was trained since:

    1. live keys that it reads are noted as read
    2. keys that expired, idle ones, lose their rows
    3. the other keys that it reads are admitted or not
    4. where the capacity has no room for all, keys that the batch does not read lose their rows, as many
       as are needed and there are, in the order of the policy; of equal ones the one read longest ago,
       then the one of the lowest id
    5. new keys get the lowest free ids, by ascending hash; those for which there is no room train unknown
       ids, and are counted

All is a function of the settings and of the reads of the batches in order: how often a batch reads which
key, in whatever order. `tests/reference/keys.py` is the specification; the
table is one of the native core, which holds, for the process alone,

    22.5 to 24 B a live key, its 8 included, from millions on; 1 to 2 B more where keys are evicted
    24 B a key that waits for admission, counted exactly; 8 B a row of the capacity for the sketch
    32 B a key and 16 B a batch that reads it, of the window
    12 B a key read by a batch, until that is trained
"""

from __future__ import annotations

import ctypes
import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from hotrows.dynamic import MOST_ROWS, Dynamic
from hotrows.runtime import native
from hotrows.runtime.shapes import Int64

READ = 16
"""The count that a read adds to a live key, so that halving keeps fractions of reads."""
_OF_EQUAL_LENGTH = (
    ("counters",),
    ("keys", "ids", "last_use", "counts"),
    ("waiting_keys", "waiting_counts"),
    ("clock_batches", "clock_times"),
)
_MOST = (1 << 62) - 1
MOST_COUNTED = 2**32 - 1
SKETCH_ROWS = 4
COUNTERS = ("batches", "num_unknown", "rows", "admitted", "evicted", "refused", "sketch_place", "time")
"""The names of state()["counters"]; time: the largest event time, without meaning if no `clock_times`."""
_NONE = torch.empty(0, dtype=torch.int64)
_ADMISSIONS = native.codes(
    "key_admission", "first", "after", "sketch", "probability", "ahead", "frequent"
)
_EVICTIONS = native.codes("key_eviction", "none", "lru", "lfu", "ahead", "idle", "time")
_SETTINGS = native.codes(
    *("key_settings", "capacity", "num_unknown", "admission", "reads", "probability"),
    *("sketch_width", "eviction", "limit"),
)
_TOTALS = native.codes("key_totals", *COUNTERS[2:])


@dataclass(frozen=True)
class Resolved:
    """The ids of a batch's keys, and what the batch changes.

    ids: one per key: the row of a live key, 2 + num_unknown and up; an unknown id of any other.
    born: ids that the batch gives to new keys, ascending; born_keys: those keys, by ascending hash.
    died: ids that it takes from evicted keys before, ascending; died_keys: those keys.
    """

    ids: Int64[Tensor, "N"]
    born: Int64[Tensor, "_"]
    born_keys: Int64[Tensor, "_"]
    died: Int64[Tensor, "_"]
    died_keys: Int64[Tensor, "_"]


class KeyTable:
    """The live keys of one vocabulary and their ids; see `keys`. Threads may share it.

    num_unknown: ids for keys without a row, which are hashed over them.
    num_fed, num_resolved, num_trained: batches so far, from the beginning of the stream.
    """

    def __init__(self, dynamic: Dynamic, num_unknown: int = 1) -> None:
        if num_unknown < 1:
            raise ValueError("keys without a row need an unknown id")
        self.dynamic, self.num_unknown = dynamic, num_unknown
        self.first_id = 2 + num_unknown
        self.num_fed = self.num_resolved = self.num_trained = 0
        self._ended = False
        self._queue: deque[Tensor] = deque()  # batches fed that the window does not reach yet
        self._lock = threading.RLock()
        self._open()

    def _open(self) -> None:
        """Makes the table of the native core."""
        admission, eviction = self.dynamic.admission, self.dynamic.eviction
        values = {
            "capacity": self.dynamic.capacity or MOST_ROWS,
            "num_unknown": self.num_unknown,
            "admission": _ADMISSIONS["sketch" if admission.sketch else admission.kind],
            "reads": admission.reads,
            "probability": int(admission.probability * 2**53),
            "sketch_width": self.dynamic.sketch_width,
            "eviction": _EVICTIONS[eviction.kind],
            "limit": eviction.limit,
        }
        settings = _ints(*(values[name] for name in _SETTINGS))
        self._core = native.Object("keys", settings)
        self._now = self._totals(trained=False)

    def feed(self, keys: Int64[Tensor, "N"]) -> None:
        """Makes known the keys of the next batch not yet fed."""
        with self._lock:
            self._ended = False
            self.num_fed += 1
            if self.dynamic.batches_ahead:
                self._queue.append(keys.contiguous())
                self._look_ahead()

    def end(self) -> None:
        """Marks the last batch fed as the last one, until another is fed all the same."""
        self._ended = True

    def wants(self) -> bool:
        """True if another batch should be fed before the next one is resolved."""
        ahead = self.dynamic.batches_ahead
        return bool(ahead) and not self._ended and self.num_fed <= self.num_resolved + ahead

    def resolve(self, keys: Int64[Tensor, "N"], time: int | None = None) -> Resolved:
        """Gives ids to the keys of the next batch, which a row admits, evicts and assigns rows for.

        time: largest event time of the batch, in seconds, for evict="time:SECONDS" (default: no new one).
        """
        with self._lock:
            if self.num_fed == self.num_resolved:
                ended = self._ended
                self.feed(keys)
                self._ended = ended
            if self.wants():
                raise RuntimeError("resolve() needs the batches of the window fed, or end()")
            resolved = self._resolve(keys.contiguous(), time)
            self.num_resolved += 1
            self._look_ahead()
            return resolved

    def find(self, keys: Int64[Tensor, "N"]) -> Int64[Tensor, "N"]:
        """The ids of keys as of the batches trained; changes nothing."""
        with self._lock:
            return self._find(keys.contiguous())

    def trained(self) -> None:
        """Notes that the oldest batch that was resolved and not trained has now been trained."""
        with self._lock:
            if self.num_trained >= self.num_resolved:
                raise RuntimeError("trained() comes after resolve()")
            self._trained()
            self.num_trained += 1

    def state(self) -> dict[str, Tensor]:
        """All that resuming needs, as of the batches trained.

        keys, ids, last_use (a batch), counts: [n] each, of the live keys, by ascending id. Counts are
        those of evict="lfu", in sixteenths of a read, halved up to the last use.
        waiting_keys, waiting_counts: [m] each, reads of the keys not admitted yet, by ascending key.
        sketch: [2, 4, width] counters, newer ones first.
        clock_batches, clock_times: the batches where the event time rose, and to what.
        counters: see `COUNTERS`.
        """
        with self._lock:
            return self._state()

    def load(self, state: dict[str, Tensor]) -> None:
        """Goes on from a state, in place of what the table holds; batches from then on are fed anew.

        Capacity, admission and eviction may be others than when the state was saved. A sketch of another
        width is left behind, and reads are counted anew.
        """
        with self._lock:
            _check(state, self.dynamic, self.num_unknown)
            self._load(state)
            self._queue.clear()
            self._ended = False
            self.num_fed = self.num_resolved = self.num_trained = int(state["counters"][0])

    @property
    def num_rows(self) -> int:
        """Number of rows that the table of weights needs so far, reserved ids included."""
        return self.first_id + self.growth()["rows"]

    @property
    def num_live(self) -> int:
        """Number of live keys, as of the batches resolved."""
        growth = self.growth()
        return growth["admitted"] - growth["evicted"]

    def _look_ahead(self) -> None:
        ahead = self.dynamic.batches_ahead
        while self._queue and self.num_fed - len(self._queue) <= self.num_resolved + ahead:
            self._add_uses(self._queue.popleft())

    # ---- the native core

    @property
    def num_bytes(self) -> int:
        """Bytes of memory."""
        with self._lock:
            queued = sum(keys.numel() * keys.element_size() for keys in self._queue)
            return self._core.call("num_bytes") + queued

    def growth(self) -> dict[str, int]:
        """Counts as of the batches resolved.

        rows: rows in use at most so far. admitted, evicted: keys. refused: keys of batches for which
        there was no room.
        """
        return dict(zip(COUNTERS[2:6], self._now, strict=False))

    def _add_uses(self, keys: Tensor) -> None:
        """Notes the reads of the next batch that comes into the window."""
        self._core.call("feed", keys, keys.numel())

    def _resolve(self, keys: Tensor, time: int | None) -> Resolved:
        ids, counts = torch.empty_like(keys), (ctypes.c_int64 * len(COUNTERS))()
        event_time = None if time is None else _ints(time)
        case = self._core.call("resolve", keys, keys.numel(), event_time, ids, counts)
        if case != 0:
            raise RuntimeError("resolve() got other keys than feed()")
        num_born, num_died, *self._now = counts
        if not num_born + num_died:
            return Resolved(ids, _NONE, _NONE, _NONE, _NONE)
        sizes = (num_born, num_born, num_died, num_died)
        changes = torch.empty(sum(sizes), dtype=torch.int64).split(sizes)
        self._core.call("changes", *changes)
        return Resolved(ids, *changes)

    def _find(self, keys: Tensor) -> Tensor:
        ids = torch.empty_like(keys)
        self._core.call("find", keys, keys.numel(), ids)
        return ids

    def _trained(self) -> None:
        """Forgets how the oldest batch not trained is undone."""
        self._core.call("trained")

    def _totals(self, trained: bool) -> list[int]:
        totals = _ints(*[0] * len(_TOTALS))
        self._core.call("totals", int(trained), totals)
        return totals.tolist()

    def _state(self) -> dict[str, Tensor]:
        totals = self._totals(trained=True)
        num_live = totals[1] - totals[2]
        rows = [torch.empty(num_live, dtype=torch.int64) for _ in range(4)]
        self._core.call("read_rows", *rows)
        most = self._core.call("read_waiting", None, None)
        waiting = torch.empty(2, most, dtype=torch.int64)
        num_waiting = self._core.call("read_waiting", waiting[0], waiting[1])
        waiting_keys, order = waiting[0, :num_waiting].sort()
        clock = torch.empty(2, self._core.call("read_clock", None, None), dtype=torch.int64)
        self._core.call("read_clock", clock[0], clock[1])
        sketch = torch.empty(2, SKETCH_ROWS, self.dynamic.sketch_width, dtype=torch.uint8)
        self._core.call("read_sketch", sketch)
        return {
            **dict(zip(("keys", "ids", "last_use", "counts"), rows, strict=True)),
            "waiting_keys": waiting_keys,
            "waiting_counts": waiting[1, :num_waiting][order],
            "sketch": sketch,
            "clock_batches": clock[0],
            "clock_times": clock[1],
            "counters": _ints(self.num_trained, self.num_unknown, *totals),
        }

    def _load(self, state: dict[str, Tensor]) -> None:
        """Takes over a state that was checked."""
        state = {name: part.contiguous() for name, part in state.items()}
        totals = state["counters"][2:].clone()
        keeps_sketch = state["sketch"].shape[2] == self.dynamic.sketch_width
        totals[_TOTALS["sketch_place"]] *= keeps_sketch
        rows = [state[name] for name in ("keys", "ids", "last_use", "counts")]
        num_batches = int(state["counters"][0])
        self._core.call("load", num_batches, totals, rows[0].numel(), *rows)
        waiting, clock = state["waiting_keys"], state["clock_batches"]
        self._core.call("load_waiting", waiting.numel(), waiting, state["waiting_counts"])
        self._core.call("load_clock", clock.numel(), clock, state["clock_times"])
        if keeps_sketch:
            self._core.call("load_sketch", state["sketch"])
        self._now = totals.tolist()


def _check(state: dict[str, Tensor], dynamic: Dynamic, num_unknown: int) -> None:
    """Raises ValueError where a state does not fit the table, or is none: the core believes it."""
    if problem := _problem(state):
        raise ValueError(f"the saved keys are damaged: {problem}; load an older checkpoint")
    counters = dict(zip(COUNTERS, state["counters"].tolist(), strict=True))
    if counters["num_unknown"] != num_unknown:
        raise ValueError(
            f"the keys were saved with num_unknown={counters['num_unknown']}, not {num_unknown}, so that "
            f"all ids would move; declare num_unknown={counters['num_unknown']}"
        )
    num_live = state["keys"].numel()
    if dynamic.capacity is not None and num_live > dynamic.capacity:
        raise ValueError(
            f"{num_live:,} keys are live, and a capacity of {dynamic.capacity:,} rows cannot hold them; "
            f"declare capacity={num_live} or more"
        )


def _problem(state: Mapping[str, Tensor]) -> str:
    """Describes what is wrong with a state by itself; empty: nothing."""
    for names in _OF_EQUAL_LENGTH:
        parts = [state.get(name) for name in names]
        if any(part is None or part.dtype != torch.int64 or part.ndim != 1 for part in parts):
            return f"expected numbers of 64 bits of {', '.join(names)}"
        if len({len(part) for part in parts if part is not None}) > 1:
            return f"{', '.join(names)} are not equally many"
    sketch, counters = state.get("sketch", torch.empty(0)), state["counters"].tolist()
    if sketch.dtype != torch.uint8 or sketch.ndim != 3 or sketch.shape[:2] != (2, SKETCH_ROWS):
        return "expected two sketches"
    if len(counters) != len(COUNTERS) or min(counters[:-1]) < 0 or max(counters[:-1]) > _MOST:
        return f"expected counts of {', '.join(COUNTERS)}"
    batches, num_unknown, rows, admitted, evicted = counters[:5]
    ids, last_use = state["ids"], state["last_use"]
    first, end = 2 + num_unknown, 2 + num_unknown + rows
    rises = bool((ids[1:] > ids[:-1]).all())
    if admitted - evicted != len(ids) or rows > MOST_ROWS:
        return f"{admitted:,} keys got {rows:,} rows, {evicted:,} lost theirs, and {len(ids):,} are live"
    if len(ids) and not (rises and first <= int(ids[0]) and int(ids[-1]) < end):
        return f"ids do not rise from {first:,} to {end - 1:,}"
    if bool((last_use >= batches).any()):
        return f"a key was read after the {batches:,} batches"
    reads = torch.cat([state["counts"], state["waiting_counts"]])
    return "reads were miscounted" if bool(((reads < 0) | (reads > MOST_COUNTED)).any()) else ""


def _ints(*numbers: int) -> Tensor:
    return torch.tensor(numbers, dtype=torch.int64)
