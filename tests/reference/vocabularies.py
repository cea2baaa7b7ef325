"""Vocabularies in plain Python: counts are dictionaries in memory; files are those of the native core."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from hotrows.data.encode.vocabulary import Values, write_values
from hotrows.data.raw.values import RawIds
from hotrows.schema import FIRST_UNKNOWN, MISSING

_GOLDEN = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1
_INLINE = 8  # values of at most this many bytes are stored in their slot
_LONGER = 9  # stands for every larger length


class PlainCounts:
    """Counts the values of the training part."""

    def __init__(self, owners: Sequence[int], *_: Any, state: dict[str, Any] | None = None) -> None:
        self._owners = list(owners)
        self._counts: list[dict[bytes, int]] = [{} for _ in range(max(owners, default=-1) + 1)]
        if state is not None:
            stored = state["counts"]
            self._counts = [{value.encode("latin-1"): n for value, n in some.items()} for some in stored]

    def add(self, columns: Sequence[RawIds], times: np.ndarray) -> None:
        """Counts the values of each row times[row] times, [rows] bool or integers; all of a list."""
        for v, column in zip(self._owners, columns, strict=True):
            counts = self._counts[v]
            for n in _values_of(column, times):
                if value := column.value(n):
                    counts[value] = counts.get(value, 0) + 1

    def spill(self) -> None:
        """Does nothing: `state` holds the counts themselves."""

    def state(self) -> dict[str, Any]:
        """The state to resume from."""
        counts = [{value.decode("latin-1"): n for value, n in some.items()} for some in self._counts]
        return {"counts": counts}

    def write(self, v: int, path: Path, name: str, min_count: int, known: Values | None = None) -> int:
        """Writes vocabulary v to `path`; returns how many distinct values were seen."""
        write_values(path, name, _ranked(self._counts[v], min_count, known))
        distinct, self._counts[v] = len(self._counts[v]), {}
        return distinct


class PlainVocabularies:
    """Turns values into ids."""

    def __init__(
        self, values: Sequence[Values], owners: Sequence[int], num_unknown: Sequence[int], *_: Any
    ) -> None:
        self._owners = list(owners)
        self._num_unknown = list(num_unknown)
        self._ranks = [{known.value(r): r for r in range(len(known))} for known in values]

    def encode(self, columns: Sequence[RawIds]) -> list[np.ndarray]:
        """Returns the ids of each column's values, int64; see `Vocabularies.encode`."""
        return [
            np.array([self._id(v, column.value(n)) for n in range(len(column))], np.int64)
            for v, column in zip(self._owners, columns, strict=True)
        ]

    def _id(self, v: int, value: bytes) -> int:
        if not value:
            return MISSING
        num_unknown = self._num_unknown[v]
        if value in self._ranks[v]:
            return FIRST_UNKNOWN + num_unknown + self._ranks[v][value]
        return FIRST_UNKNOWN + plain_hash(value) % num_unknown if num_unknown else -1


def _values_of(column: RawIds, times: np.ndarray) -> Iterator[int]:
    """Yields the indices of the values of each row times[row] times."""
    for row in np.repeat(np.arange(len(times)), times).tolist():
        if column.offsets is None:
            yield row
        else:
            yield from range(int(column.offsets[row]), int(column.offsets[row + 1]))


def _ranked(counts: dict[bytes, int], min_count: int, known: Values | None) -> Values:
    """Ranks known values in their order, then new ones by falling count and by their bytes."""
    values = [] if known is None else [known.value(rank) for rank in range(len(known))]
    old = set(values)
    new = [v for v, count in counts.items() if count >= min_count and v not in old]
    values += sorted(new, key=lambda value: (-counts[value], value))
    return Values(
        counts=np.array([counts.get(value, 0) for value in values], np.int64),
        ends=np.array(list(accumulate(map(len, values))), np.int64),
        text=np.frombuffer(b"".join(values), np.uint8),
        num_distinct=len(counts),
        index=plain_index(values),
    )


def plain_index(values: Sequence[bytes]) -> np.ndarray:
    """Builds the index of values by rank, [S, 2] uint64.

    V values have V * 8 // 5 + 1 homes, that of hash h is h * homes >> 64. In the order of (hash,
    rank), each takes the first slot from its home on that comes after the one before. A slot holds
    the value as a little-endian word, its hash where it is longer than eight bytes, and rank << 8 |
    min(length, 9). Free slots are zero; the last one is always free.
    """
    homes = num_homes(len(values))
    slots: list[tuple[int, int]] = []
    for hashed, rank in sorted((plain_hash(value), rank) for rank, value in enumerate(values)):
        free = home_of(hashed, homes) - len(slots)
        slots.extend([(0, 0)] * free)
        value = values[rank]
        word = int.from_bytes(value, "little") if len(value) <= _INLINE else hashed
        slots.append((word, rank << 8 | min(len(value), _LONGER)))
    slots.extend([(0, 0)] * max(1, homes - len(slots)))
    return np.array(slots, np.uint64)


def plain_hash(value: bytes) -> int:
    """Hashes a value: h = length * golden, then h = mix64(h ^ word) for every eight bytes, the last
    padded with zeros."""
    h = len(value) * _GOLDEN & _MASK
    for i in range(0, len(value), 8):
        h = _mix64(h ^ int.from_bytes(value[i : i + 8], "little"))
    return h


def num_homes(num_values: int) -> int:
    return num_values * 8 // 5 + 1


def home_of(hashed: int, homes: int) -> int:
    return hashed * homes >> 64


def _mix64(x: int) -> int:
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & _MASK
    return x ^ (x >> 31)
