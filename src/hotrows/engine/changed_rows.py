"""ChangedRows: which rows of a rank training changes, noted for any number of readers.

    reader = changed.reader("increments of checkpoints")  # notes from here on
    changed.add(g, rows)                                  # before training changes these rows of group g
    reader.take()                                         # by group, those changed since the last take

Checkpoints read it for their increments, publishing for its deltas.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from hotrows.runtime.shapes import Int64

_FEW = 1 / 16  # of a group's rows: fewer are sorted, more are found in the marks


class ChangeReader:
    """One reader's changed rows. purpose: what it reads them for, in words.

    Costs as much as the rows that change, not as those that there are.
    """

    def __init__(self, num_rows: Sequence[int], purpose: str) -> None:
        self.purpose, self._num_rows = purpose, tuple(num_rows)
        self.forget()

    def add(self, g: int, rows: Int64[Tensor, "U"]) -> None:
        """Notes rows of group g, distinct ones."""
        new = rows[~self._is_marked[g][rows]]
        self._is_marked[g][new] = True
        self._parts[g].append(new)

    def counts(self) -> list[int]:
        """By group, how many rows are noted."""
        return [sum(map(len, parts)) for parts in self._parts]

    def take(self) -> list[Tensor]:
        """By group, the rows that are noted, ascending; none is noted then."""
        return [self._take(g, count) for g, count in enumerate(self.counts())]

    def _take(self, g: int, count: int) -> Int64[Tensor, "U"]:
        marks, parts, self._parts[g] = self._is_marked[g], self._parts[g], []
        if count > _FEW * len(marks):
            rows = marks.nonzero().squeeze(1)
        else:
            rows = torch.from_numpy(np.sort(torch.cat([torch.empty(0).long(), *parts]).numpy()))
        marks[rows] = False
        return rows

    def forget(self) -> None:
        """Notes nothing of what has changed so far."""
        self._is_marked = [torch.from_numpy(np.zeros(num, bool)) for num in self._num_rows]
        self._parts: list[list[Tensor]] = [[] for _ in self._num_rows]


class ChangedRows:
    """The changes of a rank's rows. num_rows: of each group; readers: those that want to know."""

    def __init__(self, num_rows: Iterable[int]) -> None:
        self._num_rows = tuple(num_rows)
        self.readers: list[ChangeReader] = []

    def reader(self, purpose: str) -> ChangeReader:
        """Adds a reader, which is removed from `readers` once it reads no more."""
        self.readers.append(ChangeReader(self._num_rows, purpose))
        return self.readers[-1]

    def add(self, g: int, rows: Int64[Tensor, "U"]) -> None:
        """Notes distinct rows of group g, which are about to change."""
        for reader in self.readers:
            reader.add(g, rows)


def spans_of(rows: Int64[Tensor, "U"], bounds: Iterable[tuple[int, int]]) -> list[slice]:
    """Where ascending rows are within each pair of bounds, a first row and the one behind the last."""
    cuts = torch.searchsorted(rows, torch.tensor(list(bounds), dtype=torch.int64).view(-1, 2))
    return [slice(first, end) for first, end in cuts.tolist()]
