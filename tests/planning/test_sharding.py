"""Which rank holds which row: arithmetic, without ranks."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hotrows import SGD, Table, ops
from hotrows.engine.planning.packing import pack_tables
from hotrows.engine.planning.sharding import (
    BY_COLUMNS,
    Placement,
    Sharding,
    by_rows,
    columns_of,
    replicated,
    uniform,
)
from hotrows.runtime.json_file import build


def test_ids_are_dealt_like_cards_behind_the_hot_ones():
    sharding = Sharding(3, (10,), (Placement(hot=2, num_ranks=2, first_rank=1),))
    ids = [[list(piece.ids) for piece in sharding.slices(rank)] for rank in range(3)]
    assert ids == [[[0, 1]], [[0, 1], [2, 4, 6, 8]], [[0, 1], [3, 5, 7, 9]]]
    assert sharding.num_shared == 2 and sharding.owner_starts == (2, 2, 6, 10)


def test_a_table_on_one_rank_is_whole_there():
    sharding = Sharding(2, (3, 4), (by_rows(1, 1), by_rows(1, 0)))
    assert [[list(piece.ids) for piece in sharding.slices(rank)] for rank in (0, 1)] == [
        [[0, 1, 2, 3]],
        [[0, 1, 2]],
    ]


def test_by_columns_every_rank_has_all_rows():
    sharding = Sharding(2, (3, 4), (BY_COLUMNS, BY_COLUMNS))
    assert sharding.slices(0) == sharding.slices(1)
    assert sum(piece.num_rows for piece in sharding.slices(1)) == 7
    assert [columns_of(10, rank, 3) for rank in range(3)] == [(0, 3), (3, 6), (6, 10)]


def test_the_most_frequent_ids_of_tables_begin_on_ranks_in_turn():
    tables = [Table(name, 5, 4, (name,)) for name in "abc"]
    placements = uniform("rows", tables, 2)
    assert placements == {"a": by_rows(2, 0), "b": by_rows(2, 1), "c": by_rows(2, 0)}


def test_whole_tables_go_where_there_is_least():
    tables = [Table(name, rows, 4, (name,)) for name, rows in zip("abcd", (10, 90, 50, 45), strict=True)]
    ranks = {name: place.first_rank for name, place in uniform("tables", tables, 2).items()}
    assert ranks == {"b": 0, "c": 1, "d": 1, "a": 0}


def test_a_giant_table_is_dealt_over_as_many_ranks_as_it_is_shares():
    """A whole one would leave its rank with most of all weights, however the others are placed."""
    tables = [Table(name, rows, 4, (name,)) for name, rows in zip("abcd", (900, 60, 50, 45), strict=True)]
    placements = uniform("tables", tables, 4)
    assert placements["a"] == by_rows(4)
    tables = [
        Table(name, rows, 4, (name,)) for name, rows in zip("abcd", (500, 300, 140, 60), strict=True)
    ]
    placements = uniform("tables", tables, 4)
    assert placements == {"a": by_rows(2), "b": by_rows(2, 2), "c": by_rows(1, 2), "d": by_rows(1, 3)}
    sharding = Sharding(4, (500, 300, 140, 60), tuple(placements[name] for name in "abcd"))
    held = [sum(piece.num_rows for piece in sharding.slices(rank)) for rank in range(4)]
    assert held == [250, 250, 290, 210]


def test_tables_of_fewer_columns_than_ranks_are_dealt_by_rows():
    tables = [Table("wide", 9, 4, ("wide",)), Table("narrow", 9, 2, ("narrow",))]
    placements = uniform("columns", tables, 3)
    assert placements["wide"] == BY_COLUMNS and placements["narrow"] == by_rows(3, 1)


def test_hot_ids_may_stand_anywhere():
    place = Placement(num_ranks=2, first_rank=1).with_hot(torch.tensor([3, 8]), 10)
    assert place == Placement(2, 2, 1, runs=((3, 4), (8, 9)))
    sharding = Sharding(3, (10,), (place,))
    ids = [[i for piece in sharding.slices(rank) for i in piece.ids] for rank in range(3)]
    assert ids == [[3, 8], [3, 8, 0, 2, 5, 7], [3, 8, 1, 4, 6, 9]]
    assert sharding.num_shared == 2 and sharding.owner_starts == (2, 2, 6, 10)


@pytest.mark.parametrize(
    ("hot", "ids", "expected"),
    [
        (0, [0, 1, 2], Placement(3)),
        (2, [2], Placement(3)),  # the first two were shared before
        (2, [1, 4], Placement(3, runs=((0, 2), (4, 5)))),
        (9, [1, 4], Placement(6)),  # more than the table has
    ],
)
def test_hot_ids_that_are_the_first_ones_stay_a_number(hot, ids, expected):
    assert Placement(hot).with_hot(torch.tensor(ids), 6) == expected


def test_of_very_many_runs_of_hot_ids_the_longest_are_shared(monkeypatch):
    monkeypatch.setattr("hotrows.engine.planning.sharding.MOST_RUNS", 2)
    place = Placement().with_hot(torch.tensor([1, 4, 5, 8, 11, 12, 13]), 20)
    assert place == Placement(5, runs=((4, 6), (11, 14)))


def test_a_placement_is_written_as_before_unless_it_has_runs():
    fields = {"hot": 2, "num_ranks": 1, "first_rank": 0, "columns": False}
    assert Placement(2).to_json() == fields
    scattered = Placement(2, runs=((3, 5),))
    assert scattered.to_json() == {**fields, "runs": [[3, 5]]}
    assert build(Placement, scattered.to_json()) == scattered


@st.composite
def shardings(draw, runs=False):
    num_ranks = draw(st.integers(1, 6))
    rows = draw(st.lists(st.integers(1, 40), min_size=1, max_size=4))
    placement = st.builds(
        Placement,
        hot=st.integers(0, 45),
        num_ranks=st.integers(1, num_ranks),
        first_rank=st.integers(0, num_ranks - 1),
    )
    placements = [draw(st.one_of(placement, st.just(replicated(n)))) for n in rows]
    if runs:
        hot_ids = [draw(st.sets(st.integers(0, n - 1), min_size=1)) for n in rows]
        placements = [
            place.with_hot(torch.tensor(sorted(ids)), n)
            for place, ids, n in zip(placements, hot_ids, rows, strict=True)
        ]
    return Sharding(num_ranks, tuple(rows), tuple(placements))


@given(shardings() | shardings(runs=True))
def test_every_row_is_shared_or_on_one_rank_where_its_number_says(sharding):
    """Pieces, row numbers and the routes that ids take are three views of one thing."""
    owners = {}
    for rank in range(sharding.num_ranks):
        pieces = sharding.slices(rank)
        first_owned, end = sharding.owner_starts[rank : rank + 2]
        num_owned = end - first_owned
        assert sum(piece.num_rows for piece in pieces) == sharding.num_shared + num_owned
        first = 0
        for piece in pieces:
            assert piece.first_row == first
            first += piece.num_rows
            for k, i in enumerate(piece.ids):
                owners.setdefault((piece.table, i), []).append(
                    (None if piece.shared else rank, piece.first_row + k)
                )
    assert owners.keys() == {(t, i) for t, rows in enumerate(sharding.rows) for i in range(rows)}
    for t, rows in enumerate(sharding.rows):
        resolved = sharding.rows_among_ranks(torch.arange(rows) + sum(sharding.rows[:t]))
        if not sharding.has_runs:
            by_route, *_ = ops.resolve(
                torch.arange(rows), None, rows, torch.tensor([0]), torch.tensor([0]),
                torch.tensor([rows]), 1, sharding.routes()[t : t + 1],
            )  # fmt: skip
            assert torch.equal(by_route, resolved)
        for i, row in enumerate(resolved.tolist()):
            held = owners[t, i]
            if held[0][0] is None:
                assert len(held) == sharding.num_ranks and {number for _, number in held} == {row}
                assert row < sharding.num_shared
            else:
                ((rank, local),) = held
                assert sharding.owner_starts[rank] <= row < sharding.owner_starts[rank + 1]
                assert local == row - sharding.owner_starts[rank] + sharding.num_shared


@given(shardings(), st.data())
def test_routes_of_the_native_core_equal_the_reference(sharding, data):
    num = len(sharding.rows)
    size = data.draw(st.integers(0, 5))
    ids = torch.tensor(
        [data.draw(st.integers(-2, rows + 2)) for rows in sharding.rows for _ in range(size)],
        dtype=torch.int64,
    )
    args = (ids, None, size, torch.arange(num), torch.zeros(num, dtype=torch.int64),
            torch.tensor(sharding.rows), num, sharding.routes())  # fmt: skip
    offsets = torch.arange(num * size + 1)
    for given_offsets in (None, offsets):
        args = (ids, given_offsets, *args[2:])
        for fast, slow in zip(ops.resolve(*args), ops.reference.resolve(*args), strict=True):
            assert torch.equal(fast.long(), slow.long())


def test_packs_in_parts_have_near_equal_numbers_of_features():
    tables = [
        Table(str(t), 5, 4, tuple(f"{t}.{k}" for k in range(num)), optimizer=SGD())
        for t, num in enumerate((1, 1, 4, 1, 1))
    ]
    packs = pack_tables(tables, parts=2)
    assert [[table.name for table in pack.tables] for pack in packs] == [["0", "1", "2"], ["3", "4"]]
    assert [len(pack.tables) for pack in pack_tables(tables, parts=99)] == [1] * 5
    assert len(pack_tables(tables, parts=1)) == 1


@pytest.mark.parametrize("parts", range(1, 8))
def test_no_part_is_empty(parts):
    tables = [Table(str(t), 5, 4, (f"f{t}",), optimizer=SGD()) for t in range(6)]
    packs = pack_tables(tables, parts=parts)
    assert len(packs) == min(parts, 6)
    assert [table.name for pack in packs for table in pack.tables] == list("012345")
