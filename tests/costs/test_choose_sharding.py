"""The choice of sharding: balanced, within memory, explained, and the same on every rank."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hotrows.engine.planning.sharding import BY_COLUMNS, Placement
from hotrows.train.costs.choose_sharding import choose_sharding
from hotrows.train.costs.frequencies import Frequencies
from hotrows.train.costs.machines import MACHINES
from hotrows.train.costs.step_cost import step_cost, work_seconds
from hotrows.train.costs.volumes import StepWork, TableLoad, volumes_of
from tests.support.choice import examples

STEP = StepWork(65_536, 1e7, 1e6)
CPU, GPU = MACHINES["cpu-25g"], MACHINES["h100"]


def load(rows, name="t", dim=64, lookups=1.0, exponent=1.05, **options):
    return TableLoad(name, rows, dim, 4 * dim + 4, lookups, Frequencies.zipf(rows, exponent), **options)


tables = st.lists(
    st.builds(
        load,
        rows=st.sampled_from([1, 3, 50, 2000, 10**5, 10**7]),
        dim=st.sampled_from([4, 64, 128]),
        lookups=st.sampled_from([0.5, 1.0, 20.0]),
        exponent=st.sampled_from([0.0, 1.05]),
        pooled=st.booleans(),
    ),
    min_size=1,
    max_size=12,
)


def test_one_rank_holds_everything():
    choice = choose_sharding([load(10), load(20, "u")], CPU, 1, STEP)
    assert choice.placements == (Placement(), Placement())
    assert choice.reasons[1] == "table u: the only rank holds it"


def test_a_heavy_table_is_dealt_over_all_ranks_and_says_so():
    choice = choose_sharding([load(10**7, "heavy"), load(10, "light")], CPU, 4, STEP)
    assert choice.placements[0].num_ranks == 4 and not choice.placements[0].columns
    assert choice.reasons[0].startswith("table heavy: 10,000,000 rows, ")
    assert "dealt over all ranks" in choice.reasons[0]


def test_small_tables_are_replicated_where_all_reduce_is_cheaper_than_the_exchange():
    """Between nodes a ring sends an eighth of what every rank would be sent."""
    loads = [load(500, f"small {n}", dim=128, exponent=0) for n in range(40)]
    loads.append(load(10**7, "large", dim=128, lookups=5.0, pooled=False))
    choice = choose_sharding(loads, GPU, 32, STEP, memory=10**9)
    assert all(place.hot == 500 for place in choice.placements[:-1])
    assert "on every rank" in choice.reasons[0]
    large = choice.placements[-1]
    assert 0 < large.hot < 4 * 10**6 and large.num_ranks == 32
    assert "most read rows on every rank, the others dealt over all ranks" in choice.reasons[-1]
    dealt = [Placement(num_ranks=32)] * len(loads)
    cost = step_cost(GPU, loads, choice.placements, 32, STEP)
    assert cost.critical * 1.02 < step_cost(GPU, loads, dealt, 32, STEP).critical


def test_hot_rows_must_be_worth_the_messages_of_their_all_reduce():
    choice = choose_sharding([load(500, "small"), load(10**7, "large")], GPU, 32, STEP, memory=10**9)
    assert all(place.hot == 0 for place in choice.placements)


def test_columns_only_where_each_rank_keeps_a_cache_line():
    wide = [load(1000, dim=1024, lookups=50, exponent=0)]
    for num_ranks in (2, 8, 64):
        choice = choose_sharding(wide, CPU, num_ranks, STEP)
        if choice.placements[0].columns:
            assert 1024 // num_ranks * 4 >= 64
    narrow = choose_sharding([load(1000, dim=16, lookups=50, exponent=0)], CPU, 2, STEP)
    assert not narrow.placements[0].columns


@pytest.mark.parametrize(
    ("kind", "weight_bytes", "placement"),
    [
        ("rows", 4, Placement(num_ranks=4)),
        ("columns", 4, BY_COLUMNS),
        ("columns", 1, Placement(num_ranks=4)),  # a row of integers has one scale
        ("replicated", 4, Placement(hot=1000)),
    ],
)
def test_one_way_for_all(kind, weight_bytes, placement):
    loads = [load(1000, weight_bytes=weight_bytes)]
    assert choose_sharding(loads, CPU, 4, STEP, kind=kind).placements == (placement,)


def test_whole_tables_go_to_the_rank_with_the_least_work_largest_first():
    sizes = [10, 10**6, 9 * 10**5, 2 * 10**5]
    choice = choose_sharding([load(n, f"t{n}") for n in sizes], CPU, 2, STEP, kind="tables")
    assert all(place.num_ranks == 1 for place in choice.placements)
    largest, second = choice.placements[1], choice.placements[2]
    assert (largest.first_rank, second.first_rank) == (0, 1)


def test_a_giant_table_is_dealt_over_as_many_ranks_as_it_is_shares():
    sizes = [10, 10**6, 10**5, 10**4]
    for num_ranks, expected in ((2, [1, 2, 1, 1]), (4, [1, 4, 1, 1]), (16, [1, 15, 2, 1])):
        loads = [load(n, f"t{n}") for n in sizes]
        choice = choose_sharding(loads, CPU, num_ranks, STEP, kind="tables")
        assert [place.num_ranks for place in choice.placements] == expected


def test_more_ranks_than_tables_or_rows():
    loads = [load(3, "few", exponent=0), load(10**7, "many")]
    choice = choose_sharding(loads, CPU, 64, STEP)
    few, many = choice.placements
    assert many.num_ranks == 64 and (few.hot == 3 or few.num_ranks <= 3)


def test_tables_that_do_not_fit_are_refused_with_what_would_help():
    with pytest.raises(ValueError, match="use more ranks, or a cache in front of a file"):
        choose_sharding([load(10**7)], CPU, 4, STEP, memory=10**8)
    with pytest.raises(ValueError, match="1 ranks would hold up to"):
        choose_sharding([load(10**7)], CPU, 1, STEP, memory=10**8)


def test_ways_that_there_are_none_of_are_refused():
    with pytest.raises(ValueError, match="sharding must be one of auto, rows"):
        choose_sharding([load(10)], CPU, 2, STEP, kind="diagonals")


@settings(max_examples=examples(40), deadline=None)
@given(tables, st.sampled_from([2, 3, 8, 32]), st.sampled_from([CPU, GPU]))
def test_memory_is_kept_and_the_choice_is_the_same_every_time(loads, num_ranks, machine):
    least = sum(
        volumes_of(table, Placement(num_ranks=min(num_ranks, table.rows)), num_ranks, STEP).held
        for table in loads
    )
    memory = 1.2 * float(np.max(least))
    choice = choose_sharding(loads, machine, num_ranks, STEP, memory)
    again = choose_sharding(list(loads), machine, num_ranks, STEP, memory)
    assert choice == again and len(choice.reasons) == len(loads)
    pairs = zip(loads, choice.placements, strict=True)
    held = sum(volumes_of(table, place, num_ranks, STEP).held for table, place in pairs)
    assert np.max(held) <= memory


@settings(max_examples=examples(40), deadline=None)
@given(tables, st.sampled_from([2, 3, 8, 32]), st.sampled_from([CPU, GPU]))
def test_it_is_never_slower_than_the_plain_ways(loads, num_ranks, machine):
    choice = choose_sharding(loads, machine, num_ranks, STEP)

    def seconds(placements):
        cost = step_cost(machine, loads, placements, num_ranks, STEP)
        return max(cost.critical, cost.planning, cost.moving)

    for kind in ("rows", "tables", "replicated"):
        plain = choose_sharding(loads, machine, num_ranks, STEP, kind=kind).placements
        assert seconds(choice.placements) <= 1.05 * seconds(plain), kind


@settings(max_examples=examples(40), deadline=None)
@given(tables, st.sampled_from([2, 3, 8]))
def test_work_is_balanced_to_what_the_largest_whole_piece_allows(loads, num_ranks):
    choice = choose_sharding(loads, CPU, num_ranks, STEP)
    parts = [
        work_seconds(CPU, volumes_of(table, place, num_ranks, STEP), num_ranks)
        for table, place in zip(loads, choice.placements, strict=True)
    ]
    work = sum(parts)
    spread = max(float(part.max() - part.min()) for part in parts)
    assert work.max() <= 1.02 * work.mean() + spread


def test_a_wire_of_half_the_bytes_makes_replicas_rarer():
    loads = [load(10**6, "t", dim=128, lookups=50.0, pooled=False)]
    full = choose_sharding(loads, GPU, 32, STEP, memory=3e8).placements[0].hot
    assert full > 0
    halved = dataclasses.replace(STEP, wire_bytes=2)
    assert choose_sharding(loads, GPU, 32, halved, memory=3e8).placements[0].hot <= full
