"""Sharding: which rank holds which rows of a pack; arithmetic on sizes alone.

A `Placement` says where the ids of a table go. Ids stand by falling frequency, so the first ones are
the hot ones: every rank may hold them, and the others are dealt over ranks like cards.

    10 ids, hot=2, num_ranks=2, first_rank=1, three ranks
    every rank  0 1        rank 1  2 4 6 8        rank 2  3 5 7 9

The rows of a pack are then numbered rank by rank: what a batch asks of one rank stands together
once its rows are sorted, and a rank's own rows are one range.

    row         0 ..          H ..                  H + owned(0) ..
                every rank's  rank 0: its tables    rank 1: its tables     ..
    local row   0 ..          H ..  on every rank: its own rows follow the shared ones

By `columns`, every rank holds some columns of all rows; rows are then numbered as on one rank.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hotrows.piece import Piece
from hotrows.schema import Table


@dataclass(frozen=True)
class Placement:
    """Where the rows of a table are.

    hot: so many of the first ids every rank holds; their gradients are summed over all ranks.
    num_ranks: how many ranks share the other ids, from `first_rank` on: id hot + j is the
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
KINDS = ("rows", "tables", "columns", "replicated")


def uniform(kind: str, tables: Sequence[Table], num_ranks: int) -> dict[str, Placement]:
    """All tables placed in one way, by name.

    rows: ids dealt over all ranks; tables: whole, the largest first, each where there is least yet;
    columns: where a table has as many columns as there are ranks, else by rows; replicated.
    """
    if kind == "tables":
        return _whole_tables(tables, num_ranks)
    found = {}
    for t, table in enumerate(tables):
        narrow = kind == "columns" and table.dim < num_ranks
        if kind == "rows" or narrow:
            # The most frequent ids of tables meet on one rank unless each begins with another.
            found[table.name] = by_rows(num_ranks, t % num_ranks)
        else:
            found[table.name] = BY_COLUMNS if kind == "columns" else replicated(table.rows)
    return found


def _whole_tables(tables: Sequence[Table], num_ranks: int) -> dict[str, Placement]:
    held, found = [0] * num_ranks, {}
    for table in sorted(tables, key=lambda of: -of.rows * of.dim):
        rank = held.index(min(held))
        held[rank] += table.rows * table.dim
        found[table.name] = by_table(rank)
    return found


@dataclass(frozen=True)
class Sharding:
    """The rows of a pack over P ranks.

    rows: of each table; placements: of each table. A pack is by columns as a whole or not at all.
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
        """How many ids of each table every rank holds."""
        pairs = zip(self.rows, self.placements, strict=True)
        return tuple(0 if self.columns else min(of.hot, rows) for rows, of in pairs)

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

    def num_local(self, rank: int) -> int:
        """Rows in the store of a rank."""
        if self.columns:
            return sum(self.rows)
        return self.num_shared + sum(self._owned(rank))

    def pieces(self, rank: int) -> tuple[Piece, ...]:
        """What the store of a rank is made of; a table has a piece for its shared and its own ids."""
        if self.columns:
            firsts = _starts(self.rows)
            return tuple(Piece(t, firsts[t], rows) for t, rows in enumerate(self.rows))
        shared = [
            Piece(t, first, hot, shared=True)
            for t, (first, hot) in enumerate(zip(_starts(self.hot), self.hot, strict=False))
            if hot
        ]
        owned, first = [], self.num_shared
        for t, num in enumerate(self._owned(rank)):
            of = self.placements[t]
            turn = (rank - of.first_rank) % self.num_ranks
            owned.append(Piece(t, first, num, self.hot[t] + turn, of.num_ranks))
            first += num
        return (*shared, *(piece for piece in owned if piece.num_rows))

    def routes(self) -> Tensor:
        """[T, 4 + P] int64, as `ops.resolve` takes them: hot ids, the row of the first of them, how
        many ranks share the others, the first of these, and each rank's row of the first it owns."""
        owned = torch.tensor([self._owned(rank) for rank in range(self.num_ranks)])  # [P, T]
        before = owned.cumsum(1) - owned
        first_owned = torch.tensor(self.owner_starts[:-1])[:, None] + before
        table = torch.tensor(
            [
                [hot, first, of.num_ranks, of.first_rank]
                for hot, first, of in zip(
                    self.hot, _starts(self.hot), self.placements, strict=False
                )
            ]
        )
        return torch.cat([table, first_owned.t()], 1).contiguous()

    def _owned(self, rank: int) -> tuple[int, ...]:
        """How many ids of each table a rank alone holds."""
        return tuple(
            _dealt(rows - hot, of.num_ranks, (rank - of.first_rank) % self.num_ranks)
            for rows, hot, of in zip(self.rows, self.hot, self.placements, strict=True)
        )


def columns_of(dim: int, rank: int, num_ranks: int) -> tuple[int, int]:
    """The first of a rank's columns and their end: 10 columns over 3 ranks are 0:3, 3:6, 6:10."""
    return dim * rank // num_ranks, dim * (rank + 1) // num_ranks


def _dealt(num: int, hands: int, turn: int) -> int:
    """How many of `num` cards the hand whose turn comes at `turn` gets."""
    return max(0, -(-(num - turn) // hands)) if turn < hands else 0


def _starts(sizes: Sequence[int]) -> list[int]:
    starts = [0]
    for size in sizes:
        starts.append(starts[-1] + size)
    return starts
