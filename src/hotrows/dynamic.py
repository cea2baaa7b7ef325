"""Dynamic ids: when a key gets a row of a table that grows and shrinks, and when it loses it again.

    Dynamic(capacity=1_000_000, admit="after:3", evict="lru")

A read is one occurrence of a key in a batch. A key without a row trains the unknown rows of its table.
`planning.keys` obeys what is declared here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

ADMISSIONS = "'first', 'frequent:READS[,WIDTH]', 'after:READS[,sketch]', 'probability:P' or 'ahead:READS'"
EVICTIONS = "'none', 'lru', 'lfu', 'lfu:HALF_LIFE', 'ahead', 'idle:BATCHES' or 'time:SECONDS'"
MOST_ROWS = 2**31 - 1
GROWING = 2**30  # rows that a table without a capacity may grow to
MOST_PARTITIONS = 2**12
MOST_SKETCHED = 255  # what a counter of the sketch holds
_PER_ROW, _LEAST_SKETCHED = 4, 2**14  # counters in a row of the sketch of `frequent`


@dataclass(frozen=True)
class Dynamic:
    """How the rows of a table come and go with the keys that are read.

    capacity: number of live keys at most; None: no bound.
    admit: which keys get a row. `first`: every key, at its first read. `frequent:2`: a key that was read
        twice lately; where there is no room, one that was read more often lately than the key that
        `lfu` evicts for it (TinyLFU, Einziger et al. 2017). Reads are counted in a sketch, see
        `sketch_width`; `frequent:2,4000` bounds it. `after:3`: a key at its third
        read, counted exactly, which needs memory for every key that was read less often.
        `after:3,sketch`: counted by a count-min sketch of fixed size, see `sketch_width`.
        `probability:0.2`: a fifth of all keys, chosen by their hash, at their first read. `ahead:3`: a
        key that this batch and the `window` batches after it read three times.
    evict: which keys lose their row. `lru`: where a new key finds no room, the one read longest ago.
        `lfu`: the one with the fewest reads since it got its row; `lfu:100`: where each read weighs
        half as much after 100 batches. `ahead`: the one that the `window` batches to come do not read,
        the one read longest ago first; where they read all, the one that they read last. `idle:100`:
        every key as soon as 100 batches in a row have not read it. `time:3600`: every key that was not
        read for so many seconds of event time, where the time of a batch is the largest event time so
        far. With a capacity, `idle` and `time` also evict as `lru` does. `none`: no key; new ones
        beyond the capacity train the unknown rows.
    window: number of batches known ahead, for `ahead` (default 64).
    partitions: number of parts that keys are dealt to by their hash (default 1). Each has its share of
        the capacity, admits and evicts by itself, and belongs to one rank: several ranks share the work
        on the keys of a table that has as many partitions. What is trained depends on this number, and
        not on the number of ranks.

    >>> hotrows.Sparse("user", dynamic=Dynamic(capacity=1000, evict="lru")).dynamic.evict
    'lru'
    """

    capacity: int | None = None
    admit: str = "first"
    evict: str = "none"
    window: int = 64
    partitions: int = 1

    def __post_init__(self) -> None:
        for name, kinds in (
            ("capacity", (int, type(None))),
            ("window", int),
            ("partitions", int),
            ("admit", str),
            ("evict", str),
        ):
            value = getattr(self, name)
            if not isinstance(value, kinds) or isinstance(value, bool):
                expected = "a text" if kinds is str else "a whole number"
                raise ValueError(f"{name} of dynamic ids must be {expected}, not {value!r}")
        if self.capacity is not None and not 0 < self.capacity <= MOST_ROWS:
            raise ValueError(
                f"capacity of dynamic ids must be from 1 to {MOST_ROWS:,} rows, or None for no bound, "
                f"not {self.capacity:,}"
            )
        if not 0 < self.window < 2**20:
            raise ValueError(
                f"window of dynamic ids must be from 1 to {2**20 - 1:,} batches, not {self.window:,}"
            )
        if not 0 < self.partitions <= min(MOST_PARTITIONS, self.capacity or MOST_PARTITIONS):
            raise ValueError(
                f"partitions of dynamic ids must be from 1 to {MOST_PARTITIONS:,}, and not more than the "
                f"capacity, not {self.partitions:,}"
            )
        assert self.admission, "an error of admit= comes first"
        _, eviction = self.admission, self.eviction  # both are parsed, and refused, at once
        if self.admission.kind == "frequent" and eviction.kind != "lfu":
            raise ValueError(
                f"admit={self.admit!r} needs evict='lfu' or 'lfu:HALF_LIFE', not {self.evict!r}: "
                f"a new key's reads are compared with those of the key that would go"
            )
        if self.capacity is None and eviction.kind in ("lru", "lfu", "ahead"):
            raise ValueError(f"evict={self.evict!r} needs capacity=ROWS: without one nothing is evicted")

    @cached_property
    def admission(self) -> Admission:
        """`admit`, as a value."""
        return _parse_admission(self.admit)

    @cached_property
    def eviction(self) -> Eviction:
        """`evict`, as a value."""
        return _parse_eviction(self.evict)

    @property
    def batches_ahead(self) -> int:
        """Number of batches after the next one that must be known; 0 where nothing looks forward."""
        return self.window if "ahead" in (self.admission.kind, self.eviction.kind) else 0

    @property
    def sketch_width(self) -> int:
        """Counters in each of the four rows of the sketch; 0 without one.

        There are two such sketches of one byte a counter: one takes up reads, and after width / 2 of them
        it stands in for the other, which is forgotten. So the last width / 2 reads of keys without a row
        are never counted too low, and either sketch counts c too high with a probability of at most
        (2c)^-4: a counter holds at most 1/2 of other keys on average, and the least of four counts.
        """
        if self.admission.kind == "frequent":
            width = max(_PER_ROW * (self.capacity or 0), _LEAST_SKETCHED)
            return min(width, self.admission.most_width or width)
        return max(self.capacity or 2**20, 2**10) if self.admission.sketch else 0


def check_feature(feature: Any) -> None:
    """Raises ValueError where a feature that is dynamic declares what such a one cannot have."""
    if feature.dynamic is None:
        return
    name, num_unknown, min_count = feature.name, feature.num_unknown, feature.min_count
    transform = getattr(feature, "transform", "none")
    if num_unknown < 1:
        raise ValueError(
            f"feature {name!r}: a dynamic feature needs num_unknown of at least 1, not {num_unknown}: "
            f"keys without a row train these ids"
        )
    if min_count != 1:
        raise ValueError(
            f"feature {name!r}: which keys of a dynamic feature get a row is said by admit, such as "
            f"admit='after:{min_count}'; leave out min_count={min_count}"
        )
    if transform != "none":
        raise ValueError(f"feature {name!r}: transform {transform!r} makes few ids: leave out dynamic")


def expiring(features: Iterable[Any]) -> list[str]:
    """The names of the features whose keys expire by event time."""
    return [f.name for f in features if f.dynamic is not None and f.dynamic.eviction.kind == "time"]


@dataclass(frozen=True)
class Admission:
    """Which keys get a row; see `Dynamic.admit`. most_width: of the sketch; 0: no bound."""

    kind: str
    reads: int = 1
    sketch: bool = False
    probability: float = 1.0
    most_width: int = 0


@dataclass(frozen=True)
class Eviction:
    """Which keys lose their row; see `Dynamic.evict`.

    kind: none, lru, lfu, ahead, idle or time. limit: half-life in batches (0: none), batches, seconds.
    """

    kind: str
    limit: int = 0


def _parse_admission(text: str) -> Admission:
    if text == "first":
        return Admission("first")
    if match := re.fullmatch(r"frequent:([1-9]\d{0,1})(?:,([1-9]\d{0,9}))?", text):
        return Admission("frequent", int(match[1]), most_width=int(match[2] or 0))
    if match := re.fullmatch(r"(after|ahead):([1-9]\d{0,8})", text):
        return Admission(match[1], int(match[2]))
    if match := re.fullmatch(r"after:([1-9]\d{0,2}),sketch", text):
        if int(match[1]) <= MOST_SKETCHED:
            return Admission("after", int(match[1]), sketch=True)
        raise ValueError(f"admit={text!r}: a sketch counts up to {MOST_SKETCHED} reads")
    if match := re.fullmatch(r"probability:(\d*\.?\d+)", text):
        probability = float(match[1])
        if 0 < probability <= 1:
            return Admission("probability", probability=probability)
        raise ValueError(f"admit={text!r}: a probability is above 0 and at most 1")
    raise ValueError(f"admit of dynamic ids must be {ADMISSIONS}, not {text!r}")


def _parse_eviction(text: str) -> Eviction:
    if text in ("none", "lru", "lfu", "ahead"):
        return Eviction(text)
    if match := re.fullmatch(r"(lfu|idle|time):([1-9]\d{0,8})", text):
        return Eviction(match[1], int(match[2]))
    raise ValueError(f"evict of dynamic ids must be {EVICTIONS}, not {text!r}")
