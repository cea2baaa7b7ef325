"""Sharding: which rank holds which rows of a pack; arithmetic on sizes alone.

A `Placement` assigns the ids of a table to ranks. Ids are in order of falling frequency, so the first
ones are the hot ones: every rank may hold them, and all other ids are dealt over ranks like cards.

    10 ids, hot=2, num_ranks=2, first_rank=1, three ranks
    every rank  0 1        rank 1  2 4 6 8        rank 2  3 5 7 9

The rows of a pack are then numbered rank by rank: rows that a batch requests of one rank are adjacent
once its rows are sorted, and a rank's own rows are one range.

    row         0 ..          H ..                  H + owned(0) ..
                every rank's  rank 0: its tables    rank 1: its tables     ..
    local row   0 ..          H ..  on every rank: its own rows come after the shared ones

By `columns`, every rank holds some columns of all rows; rows are then numbered as on one rank.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hotrows.record import TableSlice
from hotrows.shapes import Int64
from hotrows.table import Table


@dataclass(frozen=True)
class Placement:
    """Where the rows of a table are.

    hot: number of the first ids that every rank holds; their gradients are summed over all ranks.
    num_ranks: number of ranks that share all other ids, from `first_rank` on: id hot + j is the
        (j // num_ranks)-th row of rank first_rank + j % num_ranks (modulo all ranks).
    columns: every rank holds its share of the columns of all rows.
    """

    hot: int = 0
    num_ranks: int = 1
    first_rank: int = 0
    columns: bool = False


def by_rows(num_ranks: int, first_rank: int = 0) -> Placement:
    """Ids dealt over all ranks."""
    return Placement(num_ranks=num_ranks, first_rank=first_rank)


def by_table(rank: int) -> Placement:
    """The whole table on one rank."""
    return Placement(first_rank=rank)


def replicated(rows: int) -> Placement:
    """The whole table on every rank."""
    return Placement(hot=rows)


BY_COLUMNS = Placement(columns=True)


def uniform(kind: str, tables: Sequence[Table], num_ranks: int) -> dict[str, Placement]:
    """Places all tables in one way: a placement by table name.

    rows: ids dealt over all ranks; tables: whole, the largest first, each to the rank with least yet;
    columns: where a table has as many columns as there are ranks, else by rows; replicated.
    """
    if kind == "tables":
        return _whole_tables(tables, num_ranks)
    placements = {}
    for t, table in enumerate(tables):
        narrow = kind == "columns" and table.dim < num_ranks
        if kind == "rows" or narrow:
            # The most frequent ids of tables meet on one rank unless each begins with another.
            placements[table.name] = by_rows(num_ranks, t % num_ranks)
        else:
            placements[table.name] = BY_COLUMNS if kind == "columns" else replicated(table.rows)
    return placements


def _whole_tables(tables: Sequence[Table], num_ranks: int) -> dict[str, Placement]:
    held, placements = [0] * num_ranks, {}
    for table in sorted(tables, key=lambda t: -t.rows * t.dim):
        rank = held.index(min(held))
        held[rank] += table.rows * table.dim
        placements[table.name] = by_table(rank)
    return placements


@dataclass(frozen=True)
class Sharding:
    """The rows of a pack over P ranks.

    rows, placements: of each table. A pack is sharded by columns as a whole or not at all.
    """

    num_ranks: int
    rows: tuple[int, ...]
    placements: tuple[Placement, ...]

    def __post_init__(self) -> None:
        assert len({placement.columns for placement in self.placements}) == 1

    @property
    def columns(self) -> bool:
        return self.placements[0].columns

    @functools.cached_property
    def hot(self) -> tuple[int, ...]:
        """The number of ids of each table that every rank holds."""
        if self.columns:
            return (0,) * len(self.rows)
        return tuple(min(p.hot, rows) for rows, p in zip(self.rows, self.placements, strict=True))

    @property
    def num_shared(self) -> int:
        """H, the rows that every rank holds."""
        return sum(self.hot)

    @functools.cached_property
    def owner_starts(self) -> tuple[int, ...]:
        """P + 1 row numbers: rank p alone holds the rows owner_starts[p] .. owner_starts[p + 1] - 1.

        By columns every rank holds all rows, and this has no meaning.
        """
        starts = [self.num_shared]
        for rank in range(self.num_ranks):
            starts.append(starts[-1] + sum(self._owned(rank)))
        return tuple(starts)

    def slices(self, rank: int) -> tuple[TableSlice, ...]:
        """Slices of tables in the store of a rank: per table one of shared ids, and one of its own."""
        if self.columns:
            firsts = _starts(self.rows)
            return tuple(TableSlice(t, firsts[t], rows) for t, rows in enumerate(self.rows))
        shared = [
            TableSlice(t, first, hot, shared=True)
            for t, (first, hot) in enumerate(zip(_starts(self.hot), self.hot, strict=False))
            if hot
        ]
        owned, first = [], self.num_shared
        for t, num in enumerate(self._owned(rank)):
            placement = self.placements[t]
            turn = (rank - placement.first_rank) % self.num_ranks
            owned.append(TableSlice(t, first, num, self.hot[t] + turn, placement.num_ranks))
            first += num
        return (*shared, *(piece for piece in owned if piece.num_rows))

    def routes(self) -> Int64[Tensor, "{len(self.rows)} {self.num_ranks}+4"]:
        """A row per table for `ops.resolve`: number of hot ids, row of the first hot id, number of
        ranks that share all other ids, the first of these, and by rank the row of its first own id."""
        owned = torch.tensor([self._owned(rank) for rank in range(self.num_ranks)])  # [P, T]
        before = owned.cumsum(1) - owned
        first_owned = torch.tensor(self.owner_starts[:-1])[:, None] + before  # [P, T]
        table = torch.tensor(
            [
                [hot, first, placement.num_ranks, placement.first_rank]
                for hot, first, placement in zip(
                    self.hot, _starts(self.hot), self.placements, strict=False
                )
            ]
        )
        return torch.cat([table, first_owned.t()], 1).contiguous()

    def _owned(self, rank: int) -> tuple[int, ...]:
        """The number of ids of each table that a rank alone holds."""
        return tuple(
            _dealt(rows - hot, p.num_ranks, (rank - p.first_rank) % self.num_ranks)
            for rows, hot, p in zip(self.rows, self.hot, self.placements, strict=True)
        )


def columns_of(dim: int, rank: int, num_ranks: int) -> tuple[int, int]:
    """The first of a rank's columns and the end: 10 columns over 3 ranks are 0:3, 3:6, 6:10."""
    return dim * rank // num_ranks, dim * (rank + 1) // num_ranks


def _dealt(num: int, hands: int, turn: int) -> int:
    """The number of cards, of `num`, that the hand with turn `turn` of `hands` gets."""
    return max(0, -(-(num - turn) // hands)) if turn < hands else 0


def _starts(sizes: Sequence[int]) -> list[int]:
    starts = [0]
    for size in sizes:
        starts.append(starts[-1] + size)
    return starts
