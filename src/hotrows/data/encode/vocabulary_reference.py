"""Vocabularies in plain Python: the specification of the native core, which run where it was not
built. Counts are dictionaries in memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from hotrows.data.encode.vocabulary_file import Values, plain_hash, plain_index, write_values
from hotrows.data.raw.columns import RawIds
from hotrows.schema import FIRST_UNKNOWN, MISSING


class PlainCounts:
    """Counts the values of the training part."""

    def __init__(self, owners: Sequence[int]) -> None:
        self._owners = list(owners)
        self._counts: list[dict[bytes, int]] = [{} for _ in range(max(owners, default=-1) + 1)]

    @staticmethod
    def resume(owners: Sequence[int], state: dict[str, Any]) -> PlainCounts:
        counts = PlainCounts(owners)
        stored = state["counts"]
        counts._counts = [{value.encode("latin-1"): n for value, n in some.items()} for some in stored]
        return counts

    def add(self, columns: Sequence[RawIds], chosen: np.ndarray) -> None:
        """Counts the values of the chosen rows, [rows] bool; of a list, all of them."""
        for v, column in zip(self._owners, columns, strict=True):
            counts = self._counts[v]
            for n in _values_of(column, chosen):
                if value := column.value(n):
                    counts[value] = counts.get(value, 0) + 1

    def spill(self) -> None:
        """Does nothing: `state` holds the counts themselves."""

    def state(self) -> dict[str, Any]:
        """The state for `resume`."""
        counts = [{value.decode("latin-1"): n for value, n in some.items()} for some in self._counts]
        return {"kind": "plain", "counts": counts}

    def write(self, v: int, path: Path, name: str, min_count: int, known: Values | None = None) -> int:
        """Writes vocabulary v to `path`; returns how many distinct values were seen."""
        write_values(path, name, _ranked(self._counts[v], min_count, known))
        distinct, self._counts[v] = len(self._counts[v]), {}
        return distinct


class PlainVocabularies:
    """Turns values into ids."""

    def __init__(
        self, values: Sequence[Values], owners: Sequence[int], num_unknown: Sequence[int]
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


def _values_of(column: RawIds, chosen: np.ndarray) -> Iterator[int]:
    """Yields the indices of the values of the chosen rows."""
    for row in np.flatnonzero(chosen).tolist():
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
