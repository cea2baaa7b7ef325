"""The cost of a step: small cases by hand, and what must hold of any."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotrows.engine.planning.sharding import BY_COLUMNS, Placement
from hotrows.train.costs.frequencies import Frequencies
from hotrows.train.costs.machines import MACHINES
from hotrows.train.costs.step_cost import (
    Link,
    Machine,
    cost_in_parts,
    message_seconds,
    reduce_seconds,
    step_cost,
    wire_seconds,
)
from hotrows.train.costs.volumes import StepWork, TableLoad, volumes_of

ROUND = Machine(
    name="round", flops=1e6, memory_bandwidth=1e6, row_seconds=1e-3, row_bandwidth=1e6,
    planning_rate=1e4, memory=1e6, outer=Link(1e-2, 1e4),
)  # fmt: skip
NODES = dataclasses.replace(ROUND, inner=Link(1e-3, 1e5), ranks_per_node=4)
STEP = StepWork(batch_size=4, flops_per_sample=1000, dense_parameters=100)


def load(rows=1, dim=2, lookups=1.0, name="t", exponent=0.0, **options):
    return TableLoad(name, rows, dim, 4 * dim + 4, lookups, Frequencies.zipf(rows, exponent), **options)


def test_one_row_on_one_of_two_ranks_by_hand():
    """Row 0 is read by all: rank 1 owns it, rank 0 asks for it once, and gives one gradient."""
    volumes = volumes_of(load(), Placement(first_rank=1), 2, STEP)
    assert volumes.gathered_rows.tolist() == [0, 1] and volumes.gathered_bytes.tolist() == [0, 8]
    assert volumes.sent.tolist() == [0, 8] and volumes.received.tolist() == [8, 0]
    assert volumes.numbers_sent.tolist() == [4, 0] and volumes.numbers_received.tolist() == [0, 4]
    assert volumes.updated_bytes.tolist() == [0, 2 * 12] and volumes.held.tolist() == [0, 12]
    assert volumes.copied.tolist() == [0, 2 * (8 + 8) * 2]
    assert volumes.looked_up.tolist() == [2, 2 + 2]  # two lookups each; the owner dedups two numbers
    assert volumes.reduced == 0


def test_the_parts_of_its_step_by_hand():
    cost = step_cost(ROUND, [load()], [Placement(first_rank=1)], 2, STEP)
    assert cost.gather == pytest.approx(1e-3 + 8e-6 + 32e-6)
    assert cost.latency == pytest.approx(2 * 1e-2)
    assert cost.exchange == pytest.approx(2 * (1e-2 + 8 / 1e4))
    assert cost.pool == pytest.approx(2 * (2 + 2) * 8 / 1e6)
    assert cost.dense == pytest.approx(2 * 1000 / 1e6 + 28 * 100 / 1e6)
    assert cost.dense_reduce == pytest.approx(2 * (1 / 2) * 400 / 1e4 + 2 * 1e-2)
    assert cost.update == pytest.approx(1e-3 + 24e-6 + 32e-6)
    assert cost.planning == pytest.approx(4 / 1e4 + 4 / 1e4 + 2e-2)
    assert (cost.messages, cost.held, cost.reduce) == (2, 12, 0)
    assert cost.serial_seconds == pytest.approx(sum(cost.parts.values()))
    hidden = 2 / 3 * cost.dense
    work = cost.gather + cost.pool + cost.dense + cost.update + cost.exchange
    assert cost.seconds == pytest.approx(work + cost.dense_reduce - hidden)
    assert cost.limit == "dense_reduce"


def test_a_replicated_row_is_read_everywhere_and_its_gradient_reduced():
    volumes = volumes_of(load(), Placement(hot=1), 2, STEP)
    assert volumes.gathered_rows.tolist() == volumes.updated_rows.tolist() == [1, 1]
    assert volumes.sent.tolist() == volumes.received.tolist() == [0, 0]
    assert volumes.reduced == 8 and volumes.held.tolist() == [12, 12]
    assert volumes.numbers_sent.tolist() == [4, 4] and volumes.looked_up.tolist() == [2 + 2, 2 + 2]
    cost = step_cost(ROUND, [load()], [Placement(hot=1)], 2, STEP)
    assert cost.exchange == 0 and cost.reduce == pytest.approx(8 / 1e4 + 2e-2)


def test_columns_are_near_even_and_each_is_asked_for_all_rows():
    volumes = volumes_of(load(dim=5), BY_COLUMNS, 3, dataclasses.replace(STEP, batch_size=3))
    assert volumes.sent == pytest.approx(np.array([2 * 1 * 4, 2 * 2 * 4, 2 * 2 * 4]))
    assert volumes.received == pytest.approx(np.array([4 * 4, 3 * 4, 3 * 4]))
    assert volumes.numbers_sent == pytest.approx(np.array([8, 8, 8]))
    assert volumes.held.sum() == pytest.approx(24)
    few = volumes_of(load(dim=2), BY_COLUMNS, 3, STEP)
    assert few.held.tolist() == [0, 6, 6] and few.gathered_rows.tolist() == [0, 1, 1]


def test_owners_send_sums_of_long_lists_where_that_is_less():
    """Ten lookups over a million rows are ten rows, or one sum for a sample."""
    long = load(rows=10**6, lookups=10.0)
    sums = volumes_of(long, Placement(), 2, STEP)
    assert sums.sent.tolist() == [2 * 8, 0]  # two samples of the other rank
    rows = volumes_of(long, Placement(), 2, dataclasses.replace(STEP, send_sums=False))
    assert rows.sent[0] == pytest.approx(20 * 8, rel=1e-3)
    apart = volumes_of(dataclasses.replace(long, pooled=False), Placement(), 2, STEP)
    assert apart.sent[0] == pytest.approx(20 * 8, rel=1e-3)


def test_links_within_nodes_and_between():
    assert wire_seconds(NODES, 700, 8) == pytest.approx(max(300 / 1e5, 400 / 1e4))
    assert message_seconds(NODES, 8) == pytest.approx(max(3e-3, 4e-2))
    assert message_seconds(NODES, 4) == pytest.approx(3e-3)
    bytes_ = max(2 * 3 / 4 * 800 / 1e5, 2 * 1 / 2 * 800 / 4 / 1e4)
    assert reduce_seconds(NODES, 800, 8) == pytest.approx(bytes_ + 6 * 1e-3 + 2 * 1e-2)
    ring = dataclasses.replace(NODES, reducing=Link(1e-3, 1e4))
    assert reduce_seconds(ring, 800, 8) == pytest.approx(14 * (100 / 1e4 + 1e-3))


def test_links_that_are_not_known_are_asked_for():
    with pytest.raises(ValueError, match=r"what connects 2 ranks of 'round' is not known"):
        wire_seconds(dataclasses.replace(ROUND, outer=None), 1, 2)


def test_a_placement_beyond_the_table_or_the_ranks_is_refused():
    for place in (Placement(hot=2), Placement(num_ranks=3), Placement(first_rank=2)):
        with pytest.raises(ValueError, match="cannot be placed"):
            volumes_of(load(), place, 2, STEP)


def test_tables_that_outgrow_memory_move_rows_of_a_cache():
    small = dataclasses.replace(ROUND, memory=1600 + 60 * 12, far_memory=1e6, far_bandwidth=1e3)
    table = load(rows=100)
    cost = step_cost(small, [table], [Placement()], 1, STEP)
    expected = 40 * (1 - 0.99**4) * 12 / 1e3  # four lookups over a hundred rows, of which 60 fit
    assert cost.moving == pytest.approx(expected)
    assert step_cost(ROUND, [table], [Placement()], 1, STEP).moving == 0


def test_a_node_reads_whole_pages_of_the_data_and_never_more_than_the_batch():
    machine = dataclasses.replace(MACHINES["cpu-25g"], disk_bandwidth=1e6)
    step = StepWork(10_000, 1, 1, bytes_per_sample=100)

    def seconds(num_ranks):
        return step_cost(machine, [], [], num_ranks, step).loading

    assert seconds(1) == seconds(2) == seconds(40) == pytest.approx(1.0)
    assert seconds(100) == pytest.approx(100 * 4096 / 1e6)


def test_micro_batches_run_wires_beside_work():
    machine, place = MACHINES["cpu-10g"], Placement(num_ranks=8)
    table = load(rows=10**6, dim=128)
    costs = [
        step_cost(machine, [table], [place], 8, StepWork(65_536, 1e6, 1e5, micro_batches=m))
        for m in (1, 4)
    ]
    work = costs[0].gather + costs[0].pool + costs[0].dense + costs[0].update
    wires = costs[0].exchange
    assert costs[0].critical == pytest.approx(work + wires + costs[0].exposed_reduce)
    assert costs[1].critical == pytest.approx(
        max(work, wires) + min(work, wires) / 4 + costs[1].exposed_reduce
    )
    one, four = (StepWork(65_536, 1e6, 1e5, micro_batches=m) for m in (1, 4))
    assert cost_in_parts(machine, [table], [place], 8, one) == costs[0]
    in_parts = cost_in_parts(machine, [table], [place], 8, four)  # rows that two read travel twice
    assert in_parts.critical > costs[1].critical and in_parts.exchange > costs[0].exchange


PLACED = st.sampled_from(["rows", "one", "columns", "replicated", "hot"])


def place_of(kind, rows, num_ranks):
    return {
        "rows": Placement(num_ranks=num_ranks),
        "one": Placement(first_rank=num_ranks - 1),
        "columns": BY_COLUMNS,
        "replicated": Placement(hot=rows),
        "hot": Placement(hot=rows // 2, num_ranks=num_ranks),
    }[kind]


@given(
    PLACED, st.integers(1, 10**6), st.integers(1, 200), st.floats(0.1, 50), st.floats(0, 1.5),
    st.integers(1, 33), st.integers(1, 10**5), st.booleans(),
)  # fmt: skip
def test_what_is_sent_is_received_and_all_rows_are_held(
    kind, rows, dim, lookups, exponent, num_ranks, batch_size, pooled
):
    table = load(rows, dim, lookups, exponent=exponent, pooled=pooled)
    step = StepWork(batch_size, 1e6, 1e6)
    volumes = volumes_of(table, place_of(kind, rows, num_ranks), num_ranks, step)
    for values in (getattr(volumes, f.name) for f in dataclasses.fields(volumes)):
        assert np.all(np.asarray(values) >= -1e-6)
    assert volumes.sent.sum() == pytest.approx(volumes.received.sum(), rel=1e-6, abs=1e-3)
    assert volumes.numbers_sent.sum() == pytest.approx(volumes.numbers_received.sum(), rel=1e-6, abs=1e-3)
    times = {"replicated": num_ranks, "hot": 1}.get(kind, 1)
    held = table.bytes * times + (rows // 2 * (num_ranks - 1) * table.record_bytes) * (kind == "hot")
    assert volumes.held.sum() == pytest.approx(held)
    if num_ranks == 1:
        assert volumes.sent.sum() == volumes.received.sum() == volumes.reduced == 0


def slower(machine, times):
    """The machine with all rates, but those of links, a fraction of what they were."""
    rates = ("flops", "memory_bandwidth", "row_bandwidth", "planning_rate")
    lower = {name: getattr(machine, name) / times for name in rates}
    return dataclasses.replace(machine, row_seconds=machine.row_seconds * times, **lower)


@given(PLACED, st.integers(2, 64), st.floats(1.1, 10))
def test_no_part_gets_shorter_with_more_samples_or_a_slower_machine(kind, num_ranks, times):
    table = load(100_000, 32, 2.0, exponent=1.05, pooled=False)
    place = place_of(kind, table.rows, num_ranks)
    step = StepWork(8192, 1e6, 1e6, 160)
    more = dataclasses.replace(step, batch_size=int(8192 * times))
    machine = MACHINES["h100"]
    base = step_cost(machine, [table], [place], num_ranks, step)
    for other in (
        step_cost(machine, [table], [place], num_ranks, more),
        step_cost(slower(machine, times), [table], [place], num_ranks, step),
    ):
        for part, seconds in base.parts.items():
            assert other.parts[part] >= seconds * (1 - 1e-9), part
        assert other.seconds >= base.seconds and other.serial_seconds >= other.seconds


def test_machines_are_what_their_names_say():
    assert {"cpu-10g", "cpu-25g", "cpu-100g", "h100"} == MACHINES.keys()
    assert MACHINES["cpu-100g"].outer.bandwidth == 10 * MACHINES["cpu-10g"].outer.bandwidth
    assert MACHINES["h100"].ranks_per_node == 8
