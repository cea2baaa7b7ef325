"""How many micro-batches and packs are chosen: by memory, then by what is predicted to gain."""

import dataclasses

from hotrows.engine.planning.sharding import Placement
from hotrows.train.costs.frequencies import Frequencies
from hotrows.train.costs.interleaving import choose_micro_batches, choose_pack_parts, cost_of
from hotrows.train.costs.machines import MACHINES
from hotrows.train.costs.step_cost import Link, step_cost
from hotrows.train.costs.volumes import StepWork, TableLoad

RANKS = 8
LOADS = [TableLoad("t", 10**6, 128, 1024, 1.0, Frequencies.zipf(10**6, 0.5))]
PLACES = [Placement(num_ranks=RANKS)]
STEP = StepWork(65_536, flops_per_sample=1e6, dense_parameters=1e5)


def chosen(machine, memory=1e12, step=STEP):
    return choose_micro_batches(machine, LOADS, PLACES, RANKS, step, memory)


def with_link(bandwidth, latency=1e-5):
    return dataclasses.replace(MACHINES["cpu-10g"], outer=Link(latency, bandwidth), inner=None)


def test_a_link_as_slow_as_the_work_is_hidden_and_a_fast_one_needs_no_hiding():
    num, why = chosen(with_link(1e9))
    assert num > 1 and why.startswith(f"{num} micro-batches: predicted steps 1: ")
    assert chosen(with_link(1e15, latency=0.0))[0] == 1


def test_messages_that_cost_more_than_is_hidden_are_not_sent_apart():
    assert chosen(with_link(1e9, latency=1.0))[0] == 1


def test_one_micro_batch_costs_what_the_step_costs_and_several_send_repeated_rows():
    machine = with_link(1e9)
    whole = step_cost(machine, LOADS, PLACES, RANKS, STEP)
    assert cost_of(machine, LOADS, PLACES, RANKS, STEP, 1) == whole
    four = dataclasses.replace(STEP, micro_batches=4)
    hidden = step_cost(machine, LOADS, PLACES, RANKS, four).critical
    assert cost_of(machine, LOADS, PLACES, RANKS, STEP, 4).critical > hidden


def test_a_batch_is_cut_until_its_vectors_fit():
    bytes_of_sample = 8 * 128
    num, why = chosen(with_link(1e15, latency=0.0), memory=bytes_of_sample * 1000)
    assert num == 9  # 8,192 samples of a rank, a thousand at a time
    assert "vectors of 1,000 samples fit into memory" in why


def in_packs(machine, step=STEP, tables=26):
    return choose_pack_parts(machine, LOADS, PLACES, RANKS, step, [1e6], [tables])


def test_a_pack_is_dealt_where_its_rows_take_as_long_as_their_wire():
    light = dataclasses.replace(STEP, flops_per_sample=0.0, dense_parameters=0.0)
    slow_rows = dataclasses.replace(with_link(3e9), row_seconds=1e-7)
    parts, why = in_packs(slow_rows, light)
    assert parts[0] > 1 and f"attributes in {parts[0]} packs: predicted steps 1: " in why
    assert in_packs(slow_rows, light, tables=1)[0] == (1,)
    heavy = dataclasses.replace(STEP, flops_per_sample=1e9)
    assert in_packs(slow_rows, heavy)[0] == (1,)  # a few per cent of such a step
    assert in_packs(dataclasses.replace(slow_rows, outer=Link(1.0, 3e9)), light)[0] == (1,)
    assert in_packs(with_link(1e15, latency=0.0), light)[0] == (1,)  # nothing to hide
