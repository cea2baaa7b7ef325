"""Piece: ids of one table as they stand in a rank's store.

A store holds rows, numbered through; they are pieces of tables, end to end. On one rank a piece is
a table, whole. Of a table that is dealt over ranks, a rank holds every P-th id:

    store of rank 1 of 2        rows 0 1 2 | 3 4 5 6 | 7 8
    pieces   table a, ids 0 1 2, on every rank | table a, ids 4 6 8 10 | table b, ids 1 3
"""

from __future__ import annotations

from dataclasses import dataclass

from hotrows.schema import Table


@dataclass(frozen=True)
class Piece:
    """Row first_row + k of the store is id first_id + k * id_step of the table.

    table: its place in the pack; num_rows: how many (0: the rank has none of its ids).
    shared: every rank holds these rows, and keeps them the same.
    """

    table: int
    first_row: int
    num_rows: int
    first_id: int = 0
    id_step: int = 1
    shared: bool = False

    @property
    def ids(self) -> range:
        return range(self.first_id, self.first_id + self.num_rows * self.id_step, self.id_step)


@dataclass(frozen=True)
class Shard:
    """What a rank holds of a pack: a store's worth.

    tables: of the pack; pieces: of them, end to end; columns: the first that the rank holds of every
    row, and their end; rank, num_ranks: whose it is.
    """

    tables: tuple[Table, ...]
    pieces: tuple[Piece, ...]
    columns: tuple[int, int]
    rank: int = 0
    num_ranks: int = 1

    @property
    def rows(self) -> int:
        """How many rows the store has."""
        return self.pieces[-1].first_row + self.pieces[-1].num_rows if self.pieces else 0

    @property
    def dim(self) -> int:
        return self.columns[1] - self.columns[0]

    @property
    def is_whole(self) -> bool:
        """Whether all rows and columns of all tables are here."""
        return self.num_ranks == 1
