"""Vocabularies: the values of id columns, counted, ranked, and turned into ids.

`Vocabularies` is a set of them in the native core; `PlainVocabularies` does the same with
dictionaries: the specification, and what runs where the core was not built.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hotrows import native
from hotrows.data.foreign import call
from hotrows.data.text import Fields
from hotrows.schema import FIRST_UNKNOWN, MISSING

_GOLDEN = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1


@dataclass(frozen=True)
class Values:
    """The values of a vocabulary by falling count, equal counts by their bytes.

    counts: [V] int64; ends: [V] int64, where each value ends in `text`; text: uint8.
    num_distinct: how many values were seen, those below min_count too.
    """

    counts: np.ndarray
    ends: np.ndarray
    text: np.ndarray
    num_distinct: int

    def __len__(self) -> int:
        return len(self.counts)

    def value(self, rank: int) -> bytes:
        start = int(self.ends[rank - 1]) if rank else 0
        return self.text[start : int(self.ends[rank])].tobytes()


class Vocabularies:
    """Vocabularies in the native core. Several features may read one: `owners` says which."""

    def __init__(self, library: ctypes.CDLL, owners: Sequence[int]) -> None:
        self._library = library
        self._owners = np.array(owners, np.int32)
        self._num_vocabularies = max(owners, default=-1) + 1
        self._handle = call(library, "vocabularies_create", self._num_vocabularies)

    def __del__(self) -> None:
        if hasattr(self, "_handle"):
            call(self._library, "vocabularies_destroy", self._handle)

    def count(self, fields: Fields, chosen: np.ndarray) -> None:
        """Counts the values of the chosen rows, [rows] bool."""
        columns = np.array(fields.layout.sparse, np.int32)
        arguments = (columns, self._owners, len(columns), chosen.view(np.uint8), fields.threads)
        self._call("count", *fields.as_arguments(), *arguments)

    def take(self, min_counts: Sequence[int], threads: int) -> list[Values]:
        """The ranked values of every vocabulary; the vocabularies are empty afterwards."""
        self._call("vocabularies_rank", np.array(min_counts, np.int64), threads)
        return [self._take(v) for v in range(self._num_vocabularies)]

    def fill(self, v: int, values: Values, num_unknown: int) -> None:
        """Gives the values their ids, in order."""
        ends = np.ascontiguousarray(values.ends)
        text = np.ascontiguousarray(values.text)
        self._call("vocabulary_fill", v, len(values), ends, text, num_unknown)

    def encode(self, fields: Fields) -> np.ndarray:
        """[features, rows] int64."""
        columns = np.array(fields.layout.sparse, np.int32)
        ids = np.empty((len(columns), fields.num_rows), np.int64)
        arguments = (columns, self._owners, len(columns), ids, fields.threads)
        self._call("encode", *fields.as_arguments(), *arguments)
        return ids

    def _take(self, v: int) -> Values:
        sizes = np.zeros(3, np.int64)
        self._call("vocabulary_sizes", v, sizes)
        distinct, ranked, num_bytes = (int(size) for size in sizes)
        counts, ends = np.empty(ranked, np.int64), np.empty(ranked, np.int64)
        text = np.empty(num_bytes, np.uint8)
        self._call("vocabulary_take", v, counts, ends, text)
        return Values(counts, ends, text, distinct)

    def _call(self, name: str, *arguments) -> None:
        if call(self._library, name, self._handle, *arguments) != 0:
            raise MemoryError(
                "the vocabularies do not fit in memory, which grows with the number of distinct "
                "values; use more, or leave out the columns with the most values"
            )


class PlainVocabularies:
    """The same in Python, one dictionary per vocabulary."""

    def __init__(self, owners: Sequence[int]) -> None:
        self._owners = list(owners)
        self._numbers: list[dict[bytes, int]] = [{} for _ in range(max(owners, default=-1) + 1)]
        self._num_unknown = [1] * len(self._numbers)

    def count(self, fields: Fields, chosen: np.ndarray) -> None:
        for v, column in zip(self._owners, fields.layout.sparse, strict=True):
            counts = self._numbers[v]
            for row in np.flatnonzero(chosen).tolist():
                if value := fields.value(column, row):
                    counts[value] = counts.get(value, 0) + 1

    def take(self, min_counts: Sequence[int], threads: int) -> list[Values]:
        taken = [_ranked(*of) for of in zip(self._numbers, min_counts, strict=True)]
        self._numbers = [{} for _ in self._numbers]
        return taken

    def fill(self, v: int, values: Values, num_unknown: int) -> None:
        self._num_unknown[v] = num_unknown
        first = FIRST_UNKNOWN + num_unknown
        self._numbers[v] = {values.value(rank): first + rank for rank in range(len(values))}

    def encode(self, fields: Fields) -> np.ndarray:
        ids = np.empty((len(self._owners), fields.num_rows), np.int64)
        for f, column in enumerate(fields.layout.sparse):
            for row in range(fields.num_rows):
                ids[f, row] = self._id(self._owners[f], fields.value(column, row))
        return ids

    def _id(self, v: int, value: bytes) -> int:
        if not value:
            return MISSING
        found = self._numbers[v].get(value)
        return FIRST_UNKNOWN + plain_hash(value) % self._num_unknown[v] if found is None else found


def vocabularies(owners: Sequence[int]) -> Vocabularies | PlainVocabularies:
    """Empty vocabularies; feature f reads number owners[f]."""
    library = native.load()
    return PlainVocabularies(owners) if library is None else Vocabularies(library, owners)


def plain_hash(value: bytes) -> int:
    """h = length * golden; h = mix64(h ^ word) for each eight bytes, the last padded with zeros."""
    h = len(value) * _GOLDEN & _MASK
    for i in range(0, len(value), 8):
        h = _mix64(h ^ int.from_bytes(value[i : i + 8], "little"))
    return h


def _ranked(counts: dict[bytes, int], min_count: int) -> Values:
    kept = sorted(
        ((count, value) for value, count in counts.items() if count >= min_count),
        key=lambda pair: (-pair[0], pair[1]),
    )
    ends = np.cumsum([len(value) for _, value in kept], dtype=np.int64)
    text = np.frombuffer(b"".join(value for _, value in kept), np.uint8)
    return Values(np.array([count for count, _ in kept], np.int64), ends, text, len(counts))


def _mix64(x: int) -> int:
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & _MASK
    return x ^ (x >> 31)
