"""Packing: tables of equal attributes are laid end to end and served by one operator (PICASSO, 2.2).

Tables agree when dim, dtype, row optimizer and initializer agree. A pack numbers its rows through:
table t's id i is row first_rows[t] + i. A thousand features cost as many operators as there are
packs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from hotrows.engine.planning.sharding import Placement, Sharding, columns_of
from hotrows.ops.record import RankShard, RecordLayout, layout_of
from hotrows.table import Table, is_integer


@dataclass(frozen=True)
class Pack:
    """Tables of equal attributes, end to end.

    tables: in order; first_rows: T + 1 row numbers, where each table begins and the last one ends.
    columns: (feature, table index) for each vector a sample gets from this pack, in order;
    sequences: (feature, table index) for each feature whose vectors are not pooled.
    placements: where the rows of each table are among ranks; empty: all in this process.
    column_of: the position in `columns` of a (feature, role); sequence_of: its position in `sequences`.
    """

    name: str
    tables: tuple[Table, ...]
    first_rows: tuple[int, ...]
    columns: tuple[tuple[str, int], ...]
    sequences: tuple[tuple[str, int], ...]
    placements: tuple[Placement, ...] = ()
    column_of: dict[tuple[str, str], int] = field(init=False, repr=False, compare=False)
    sequence_of: dict[tuple[str, str], int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "column_of", _positions(self.columns, self.tables))
        object.__setattr__(self, "sequence_of", _positions(self.sequences, self.tables))

    @property
    def dim(self) -> int:
        return self.tables[0].dim

    @property
    def rows(self) -> int:
        return self.first_rows[-1]

    def sharding(self, num_ranks: int) -> Sharding:
        """How the rows of the pack are divided over `num_ranks` ranks."""
        placements = self.placements or (Placement(),) * len(self.tables)
        return Sharding(num_ranks, tuple(table.rows for table in self.tables), placements)

    def shard(self, rank: int, num_ranks: int) -> RankShard:
        """The part of the pack that one of `num_ranks` ranks holds."""
        sharding = self.sharding(num_ranks)
        columns = columns_of(self.dim, rank, num_ranks) if sharding.columns else (0, self.dim)
        return RankShard(self.tables, sharding.slices(rank), columns, rank, num_ranks)


def pack_tables(
    tables: Sequence[Table],
    sequences: Sequence[str] = (),
    placements: Mapping[str, Placement] | None = None,
    parts: int | Sequence[int] = 1,
) -> tuple[Pack, ...]:
    """Groups tables into packs, in the order in which their attributes first appear.

    tables: every one with its optimizer filled in. sequences: names of the sequence features.
    placements: by table name, where its rows are among ranks; tables by columns have packs of their own.
    parts: number of packs, of near equal numbers of lookups, over which tables of equal attributes are
        dealt: one is looked up while the rows of another are exchanged (PICASSO's groups). At most one
        per table; several numbers: for each set of equal attributes, in order.
    """
    _check_names(tables)
    groups: dict[tuple[Any, ...], list[Table]] = {}
    for table in tables:
        columns = placements is not None and placements[table.name].columns
        if columns and is_integer(table.dtype):
            raise ValueError(
                f"table {table.name!r}: rows of {table.dtype} have one scale for all columns, so that no "
                f"rank can hold some of them; place it by rows"
            )
        key = (table.dim, table.dtype, table.optimizer, table.initializer, columns)
        groups.setdefault(key, []).append(table)
    num_parts = [parts] * len(groups) if isinstance(parts, int) else [*parts, *[1] * len(groups)]
    dealt = [
        part
        for group, num in zip(groups.values(), num_parts, strict=False)
        for part in _dealt(group, num)
    ]
    packs = [_pack(number, part, sequences) for number, part in enumerate(dealt)]
    if placements is None:
        return tuple(packs)
    return tuple(
        replace(pack, placements=tuple(placements[table.name] for table in pack.tables)) for pack in packs
    )


@dataclass(frozen=True)
class Group:
    """Packs that read equal rows: one slot serves all of them, and their records move together.

    packs: their numbers; rows: number of rows of each pack on this rank.
    strides: bytes of each pack's record; offsets: its first byte in the record of the group.
    lookups: vectors that a sample gets from each pack (sequences count once).
    """

    packs: tuple[int, ...]
    rows: int
    strides: tuple[int, ...]
    lookups: int

    @property
    def stride(self) -> int:
        """Bytes of a record of the group: the records of its packs, one after the other."""
        return sum(self.strides)

    @property
    def offsets(self) -> tuple[int, ...]:
        return tuple(sum(self.strides[:p]) for p in range(len(self.strides)))


def group_packs(packs: Sequence[Pack], rank: int = 0, num_ranks: int = 1) -> tuple[Group, ...]:
    """Groups packs by the rows that they read, in order of appearance; optimizers are filled in.

    rank, num_ranks: the rank whose rows and columns are counted.
    """
    groups: dict[tuple[Any, ...], list[int]] = {}
    for p, pack in enumerate(packs):
        key = (pack.first_rows, pack.columns, pack.sequences, pack.placements)
        groups.setdefault(key, []).append(p)
    shards = [pack.shard(rank, num_ranks) for pack in packs]
    return tuple(
        Group(
            packs=tuple(members),
            rows=shards[members[0]].rows,
            strides=tuple(layout_in(shards[p]).stride for p in members),
            lookups=len(packs[members[0]].columns) + len(packs[members[0]].sequences),
        )
        for members in groups.values()
    )


def rows_of(packs: Sequence[Pack], table: str) -> tuple[int, int, int]:
    """The pack of a table, its first row there, and the row after its last."""
    for p, pack in enumerate(packs):
        for t, member in enumerate(pack.tables):
            if member.name == table:
                return p, pack.first_rows[t], pack.first_rows[t + 1]
    names = [member.name for pack in packs for member in pack.tables]
    raise LookupError(f"no table {table!r}; tables: {names}")


def layout_in(shard: RankShard) -> RecordLayout:
    """The layout of a shard's records: they hold its columns alone."""
    return layout_of(replace(shard.tables[0], dim=shard.dim))


def describe(packs: Sequence[Pack]) -> str:
    """The pack assignment as text, a line per pack and one per table."""
    lines = []
    for pack in packs:
        first = pack.tables[0]
        kind = first.optimizer.kind if first.optimizer else "no optimizer"
        lines.append(
            f"{pack.name}: {len(pack.tables)} tables, {pack.rows:,} rows, dim {pack.dim}, "
            f"{first.dtype}, {kind}"
        )
        for table, row in zip(pack.tables, pack.first_rows, strict=False):
            lines.append(
                f"  {table.name}: rows {row:,} to {row + table.rows - 1:,}, read by "
                f"{', '.join(table.features)}"
            )
    return "\n".join(lines)


def _dealt(tables: list[Table], parts: int) -> list[list[Table]]:
    """Consecutive tables in `parts` lists with near equal numbers of features; none is empty."""
    parts = min(parts, len(tables))
    total, seen = sum(len(table.features) for table in tables), 0
    dealt: list[list[Table]] = [[]]
    for left, table in zip(range(len(tables), 0, -1), tables, strict=True):
        due = seen * parts >= len(dealt) * total or left <= parts - len(dealt)
        if dealt[-1] and due and len(dealt) < parts:
            dealt.append([])
        dealt[-1].append(table)
        seen += len(table.features)
    return dealt


def _pack(number: int, tables: list[Table], sequences: Sequence[str]) -> Pack:
    first_rows = [0]
    for table in tables:
        first_rows.append(first_rows[-1] + table.rows)
    reads = [(feature, t) for t, table in enumerate(tables) for feature in table.features]
    return Pack(
        name=f"pack-{number}",
        tables=tuple(tables),
        first_rows=tuple(first_rows),
        columns=tuple(read for read in reads if read[0] not in sequences),
        sequences=tuple(read for read in reads if read[0] in sequences),
    )


def _positions(reads: Any, tables: tuple[Table, ...]) -> dict[tuple[str, str], int]:
    return {(name, tables[t].role): position for position, (name, t) in enumerate(reads)}


def _check_names(tables: Sequence[Table]) -> None:
    names = [table.name for table in tables]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"table names must be unique, but these stand twice: {', '.join(twice)}")
