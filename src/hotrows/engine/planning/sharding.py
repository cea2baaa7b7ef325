"""Sharding: which rank holds which rows of a pack; arithmetic on sizes alone.

A `Placement` assigns the ids of a table to ranks. Ids are in order of falling frequency, so the first
ones are the hot ones: every rank may hold them, and all other ids are dealt over ranks like cards.
Where a profile finds other ids hot, these are listed as runs of ids.

    10 ids, hot=2, num_ranks=2, first_rank=1, three ranks
    every rank  0 1        rank 1  2 4 6 8        rank 2  3 5 7 9
    the same, but runs=((3, 4), (8, 9))
    every rank  3 8        rank 1  0 2 5 7        rank 2  1 4 6 9

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
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from hotrows.ops.record import TableSlice
from hotrows.runtime.shapes import Int64
from hotrows.table import Table, is_integer


@dataclass(frozen=True)
class Placement:
    """Where the rows of a table are.

    hot: number of ids that every rank holds; their gradients are summed over all ranks.
    num_ranks: number of ranks that share all other ids, from `first_rank` on: the j-th of these is the
        (j // num_ranks)-th row of rank first_rank + j % num_ranks (modulo all ranks).
    columns: every rank holds its share of the columns of all rows.
    runs: the ids that every rank holds as runs (first, end), ascending; empty: the first `hot` ids.
    """

    hot: int = 0
    num_ranks: int = 1
    first_rank: int = 0
    columns: bool = False
    runs: tuple[tuple[int, int], ...] = field(default=(), hash=False)  # hashed for every batch

    def to_json(self) -> dict[str, Any]:
        """The fields; `runs` only where there are any, so that records without it stay as they were."""
        fields = asdict(self)
        runs = fields.pop("runs")
        return {**fields, "runs": [list(run) for run in runs]} if runs else fields

    def with_hot(self, ids: Int64[Tensor, "_"], rows: int) -> Placement:
        """The placement that lets every rank hold `ids`, ascending, too; rows: of the table.

        At most `MOST_RUNS` runs of ids, the longest ones: each is a piece of the table in checkpoints.
        """
        assert not self.runs and not self.columns
        ids = torch.cat([torch.arange(min(self.hot, rows)), ids]).unique()
        breaks = torch.cat([torch.tensor([True]), ids.diff() != 1])
        firsts = ids[breaks]  # of each run
        lengths = torch.cat([breaks.nonzero().squeeze(1), torch.tensor([len(ids)])]).diff()
        longest = torch.argsort(lengths, descending=True, stable=True)[:MOST_RUNS].sort().values
        runs = torch.stack([firsts, firsts + lengths], 1)[longest]
        hot = int(lengths[longest].sum())
        if len(runs) == 1 and int(firsts[0]) == 0:
            return replace(self, hot=hot)
        return replace(self, hot=hot, runs=tuple((first, end) for first, end in runs.tolist()))


def by_rows(num_ranks: int, first_rank: int = 0) -> Placement:
    """Ids dealt over so many ranks from the first on; over one rank, the whole table is there."""
    return Placement(num_ranks=num_ranks, first_rank=first_rank)


def replicated(rows: int) -> Placement:
    """The whole table on every rank."""
    return Placement(hot=rows)


BY_COLUMNS = Placement(columns=True)
MOST_RUNS = 4096  # of the hot ids of a table


def uniform(kind: str, tables: Sequence[Table], num_ranks: int) -> dict[str, Placement]:
    """Places all tables in one way: a placement by table name.

    rows: ids dealt over all ranks; tables: whole, the largest first, each to the rank with least yet,
    but for giant ones, whose rows are dealt over as many ranks as they are shares (`num_shares`);
    columns: where a table has as many columns as there are ranks, and none of integers, whose rows have
    one scale; else by rows; replicated.
    """
    if kind == "tables":
        return _whole_tables(tables, num_ranks)
    placements = {}
    for t, table in enumerate(tables):
        narrow = kind == "columns" and (table.dim < num_ranks or is_integer(table.dtype))
        if kind == "rows" or narrow:
            # The most frequent ids of tables meet on one rank unless each begins with another.
            placements[table.name] = by_rows(num_ranks, t % num_ranks)
        else:
            placements[table.name] = BY_COLUMNS if kind == "columns" else replicated(table.rows)
    return placements


def num_shares(size: int, sizes: Sequence[int], num_ranks: int) -> int:
    """Number of ranks that a table is dealt over so that none gets more than a rank's share of all.

    sizes: of all tables.

    >>> num_shares(10, (10, 90, 50, 45), 2), num_shares(90, (90, 10), 2)
    (1, 2)
    """
    return min(num_ranks, max(1, -(-size * num_ranks // sum(sizes))))


def _whole_tables(tables: Sequence[Table], num_ranks: int) -> dict[str, Placement]:
    held, placements = [0.0] * num_ranks, {}
    sizes = [table.rows * table.dim for table in tables]
    for table in sorted(tables, key=lambda t: -t.rows * t.dim):
        size = table.rows * table.dim
        num = min(num_shares(size, sizes, num_ranks), table.rows)
        windows = [[(first + n) % num_ranks for n in range(num)] for first in range(num_ranks)]
        ranks = min(windows, key=lambda window: max(held[rank] for rank in window))
        for rank in ranks:
            held[rank] += size / num
        placements[table.name] = by_rows(num, ranks[0])
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
        shared, owned = [], []
        first_shared, first_owned = 0, self.num_shared
        for t, segments in enumerate(self._segments):
            placement = self.placements[t]
            turn, num_ranks = (rank - placement.first_rank) % self.num_ranks, placement.num_ranks
            for first_id, end, is_hot, before in segments:
                if is_hot:
                    num = end - first_id
                    shared.append(TableSlice(t, first_shared, num, first_id, shared=True))
                    first_shared += num
                    continue
                skipped = (turn - before) % num_ranks  # ids of the segment until this rank's turn
                num = _dealt(end - first_id, num_ranks, skipped) if turn < num_ranks else 0
                owned.append(TableSlice(t, first_owned, num, first_id + skipped, num_ranks))
                first_owned += num
        return (*shared, *(piece for piece in owned if piece.num_rows))

    @functools.cached_property
    def _segments(self) -> tuple[list[tuple[int, int, bool, int]], ...]:
        """The ids of each table in order, hot and cold in turn: first id, end, whether they are hot, and
        the number of cold ids before them."""
        tables = []
        for rows, hot, placement in zip(self.rows, self.hot, self.placements, strict=True):
            segments, id_, cold = [], 0, 0
            runs = placement.runs or ((0, hot),)
            for first, end in (*runs, (rows, rows)):
                segments += [(id_, first, False, cold)] if id_ < first else []
                cold += max(first - id_, 0)
                segments += [(first, end, True, cold)] if first < end else []
                id_ = end
            tables.append(segments)
        return tuple(tables)

    @property
    def has_runs(self) -> bool:
        """True if hot ids of a table are not its first ones, so that `rows_among_ranks` numbers rows."""
        return any(placement.runs for placement in self.placements)

    @functools.cached_property
    def _segment_table(self) -> tuple[Tensor, Tensor]:
        """The first row of each segment of the pack as on one rank [S], and per segment [S, 5]: its
        table, whether it is hot, number of ranks that share its rows, the first of these, and what a
        row adds to be the shared row or the number of the cold id in its table."""
        firsts, table, first_row, shared = [], [], 0, 0
        for t, segments in enumerate(self._segments):
            placement = self.placements[t]
            for first_id, end, is_hot, before in segments:
                firsts.append(first_row + first_id)
                to = shared if is_hot else before
                ranks = [placement.num_ranks, placement.first_rank]
                table.append([t, int(is_hot), *ranks, to - first_row - first_id])
                shared += end - first_id if is_hot else 0
            first_row += self.rows[t]
        return torch.tensor(firsts), torch.tensor(table)

    def rows_among_ranks(self, rows: Int64[Tensor, "N"]) -> Int64[Tensor, "N"]:
        """The numbers that rows of the pack, numbered as on one rank, have among ranks."""
        firsts, segments = self._segment_table
        segment = segments[torch.searchsorted(firsts, rows, right=True) - 1]  # [N, 5]
        table, is_hot, sharing, first_rank, added = segment.unbind(1)
        j = rows + added
        rank = (first_rank + j % sharing) % self.num_ranks
        return torch.where(is_hot.bool(), j, self._first_owned[rank, table] + j // sharing)

    def local_rows(
        self, rows: Int64[Tensor, "N"], rank: int
    ) -> tuple[Int64[Tensor, "n"], Int64[Tensor, "n"]]:
        """The local rows of a rank, ascending, that rows of the pack are, numbered as on one rank; and
        which of `rows` each is."""
        if not self.columns:
            first, end = self.owner_starts[rank : rank + 2]
            rows = self.rows_among_ranks(rows)
            is_here = (rows < self.num_shared) | (rows >= first) & (rows < end)
            rows = torch.where(rows < self.num_shared, rows, rows - first + self.num_shared)
            places = is_here.nonzero().squeeze(1)
        else:
            places = torch.arange(len(rows))
        local, order = rows[places].sort()
        return local, places[order]

    @functools.cached_property
    def _first_owned(self) -> Int64[Tensor, "{self.num_ranks} {len(self.rows)}"]:
        """The row of the first id of each table that a rank alone holds."""
        owned = torch.tensor([self._owned(rank) for rank in range(self.num_ranks)])  # [P, T]
        before = owned.cumsum(1) - owned
        return torch.tensor(self.owner_starts[:-1])[:, None] + before

    def routes(self) -> Int64[Tensor, "{len(self.rows)} {self.num_ranks}+4"]:
        """A row per table for `ops.resolve`: number of hot ids, row of the first hot id, number of
        ranks that share all other ids, the first of these, and by rank the row of its first own id."""
        assert not self.has_runs
        table = torch.tensor(
            [
                [hot, first, placement.num_ranks, placement.first_rank]
                for hot, first, placement in zip(
                    self.hot, _starts(self.hot), self.placements, strict=False
                )
            ]
        )
        return torch.cat([table, self._first_owned.t()], 1).contiguous()

    def _owned(self, rank: int) -> tuple[int, ...]:
        """The number of ids of each table that a rank alone holds."""
        return tuple(
            _dealt(rows - hot, p.num_ranks, (rank - p.first_rank) % self.num_ranks)
            for rows, hot, p in zip(self.rows, self.hot, self.placements, strict=True)
        )


def columns_of(dim: int, rank: int, num_ranks: int) -> tuple[int, int]:
    """The first of a rank's columns, and the end.

    >>> [columns_of(10, rank, 3) for rank in range(3)]
    [(0, 3), (3, 6), (6, 10)]
    """
    return dim * rank // num_ranks, dim * (rank + 1) // num_ranks


def _dealt(num: int, hands: int, turn: int) -> int:
    """The number of cards, of `num`, that the hand with turn `turn` of `hands` gets."""
    return max(0, -(-(num - turn) // hands)) if turn < hands else 0


def _starts(sizes: Sequence[int]) -> list[int]:
    starts = [0]
    for size in sizes:
        starts.append(starts[-1] + size)
    return starts
