"""Hot and cold batches: none is mixed, every row comes once, and the schedule resumes anywhere."""

import dataclasses
import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hotrows.batch import Batch
from hotrows.data import HotColdLoader, profile, regroup, write_encoded
from hotrows.data.hot_cold import hot_and_cold
from hotrows.data.hot_cold.schedule import SEQUENTIAL, Block, Position, Rate, _even, advance, next_block
from hotrows.runtime.json_file import build
from hotrows.schema import Dense, Schema, Sparse

ROWS = 1000


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Rows that tell their number; those whose number 3 divides read hot ids."""
    folder = tmp_path_factory.mktemp("hot_cold")
    number = torch.arange(ROWS)
    ids = torch.where(number % 3 == 0, number % 7, 1000 + number)
    batch = Batch(("id",), ids, number.float()[:, None], (number % 2).float())
    schema = Schema(features=(Dense("number"), Sparse("id", rows=300_000)))
    data = write_encoded(folder / "enc", schema, {"train": [batch]})
    hot_profile = profile(data, bytes_per_row={"id": 4}, fast_memory=28, sample=0.5)
    return regroup(data, hot_profile, folder / "hot")


def loader(data, batch_size=50, shuffle=True, seed=0):
    return HotColdLoader(*hot_and_cold(data), batch_size, shuffle=shuffle, seed=seed)


def numbers(batches) -> list[int]:
    return [n for batch in batches for n in batch.dense[:, 0].int().tolist()]


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("batch_size", [1, 50, 77, 5000])
def test_no_batch_is_mixed_and_every_row_comes_once(data, batch_size, shuffle):
    hot_cold = loader(data, batch_size, shuffle)
    batches = list(hot_cold.batches(0))
    assert len(batches) == len(hot_cold) == -(-334 // batch_size) + -(-666 // batch_size)
    kinds = [set((batch.ids < 7).tolist()) for batch in batches]
    assert kinds == [{False}] * len(hot_cold.cold) + [{True}] * len(hot_cold.hot)
    assert sorted(numbers(batches)) == list(range(ROWS))


def test_samples_are_counted_as_in_the_training_part(data):
    cold, *_, last = loader(data, 334, shuffle=False).batches(0)
    assert (cold.first_sample, last.first_sample) == (334, 0)
    assert numbers([cold])[:3] == [1, 2, 4]
    assert numbers([last])[:3] == [0, 3, 6]


@pytest.mark.parametrize("first", [0, 3, 13, 14, 17, 20, 21, 99])
def test_an_epoch_can_be_entered_at_any_batch(data, first):
    hot_cold = loader(data)
    assert numbers(hot_cold.batches(1, first)) == numbers(list(hot_cold.batches(1))[first:])


def test_a_block_has_hot_batches_then_cold_ones(data):
    hot_cold = loader(data)
    sequential = [numbers([batch]) for batch in hot_cold.batches(2)]
    block = [numbers([batch]) for batch in hot_cold.block(2, 1, 3, 4, 5)]
    assert block == [sequential[14 + 1], sequential[14 + 2], sequential[4]]
    assert list(hot_cold.block(2, 3, 3, 5, 5)) == []


def test_the_rate_halves_when_the_loss_rises():
    rate = Rate().after(0.5)
    assert rate == Rate(50, 0, 0.5)
    percents = []
    for loss in (0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2):
        rate = rate.after(loss)
        percents.append(rate.percent)
    assert percents == [25, 12, 6, 3, 1, 1, 1]


def test_the_rate_doubles_after_four_falls_in_a_row():
    rate, percents = Rate(30).after(1.0), []
    for loss in (0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0.09, 0.08, 0.07):
        rate = rate.after(loss)
        percents.append(rate.percent)
    assert percents == [30, 30, 30, 60, 60, 60, 60, 100, 100, 100, 100, 100]
    assert rate.falls == 0


def test_a_rise_and_a_standstill_end_a_row_of_falls():
    assert Rate(8, 3, 0.5).after(0.4) == Rate(16, 0, 0.4)
    assert Rate(8, 3, 0.5).after(0.5) == Rate(8, 0, 0.5)
    assert Rate(8, 3, 0.5).after(0.6) == Rate(4, 0, 0.6)


def blocks(position, num_hot, num_cold, epochs=1):
    """The blocks of some epochs at one rate, as (epoch, hot_from, hot_to, cold_from, cold_to)."""
    blocks_run = []
    while position.epoch < epochs:
        block = next_block(position, num_hot, num_cold)
        blocks_run.append((block.epoch, block.hot_from, block.hot_to, block.cold_from, block.cold_to))
        position = advance(position, len(block), num_hot, num_cold)
    return blocks_run


def test_blocks_share_out_an_epoch():
    halves = [(0, 0, 3, 0, 4), (0, 3, 6, 4, 8)]
    assert blocks(Position(), 6, 8) == halves
    assert blocks(Position(), 6, 8, 2) == [*halves, (1, 0, 3, 0, 4), (1, 3, 6, 4, 8)]
    assert blocks(Position(rate=Rate(100)), 6, 8) == [(0, 0, 6, 0, 8)]
    assert blocks(Position(rate=Rate(25)), 6, 8) == [
        (0, 0, 2, 0, 2), (0, 2, 4, 2, 4), (0, 4, 6, 4, 6), (0, 6, 6, 6, 8)
    ]  # fmt: skip
    assert blocks(Position(rate=Rate(1)), 2, 3) == [(0, 0, 1, 0, 1), (0, 1, 2, 1, 2), (0, 2, 2, 2, 3)]


def test_without_evaluations_cold_batches_come_first():
    assert blocks(SEQUENTIAL, 6, 8, 2) == [
        (0, 0, 0, 0, 8), (0, 0, 6, 8, 8), (1, 0, 0, 0, 8), (1, 0, 6, 8, 8)
    ]  # fmt: skip
    assert blocks(SEQUENTIAL, 0, 8) == [(0, 0, 0, 0, 8)]
    assert blocks(SEQUENTIAL, 6, 0) == [(0, 0, 6, 0, 0)]


def test_sequential_blocks_are_the_order_of_an_epoch(data):
    hot_cold = loader(data)
    in_blocks = [
        number
        for block in blocks(SEQUENTIAL, len(hot_cold.hot), len(hot_cold.cold))
        for number in numbers(hot_cold.block(*block))
    ]
    assert in_blocks == numbers(hot_cold.batches(0))


def test_a_block_is_gone_on_with_where_it_stopped():
    position = advance(Position(), 2, 6, 8)
    assert position == Position(done=2)
    assert next_block(position, 6, 8) == Block(0, 2, 3, 0, 4)
    position = advance(position, 3, 6, 8)
    assert next_block(position, 6, 8) == Block(0, 3, 3, 2, 4)
    assert advance(position, 2, 6, 8) == Position(hot=3, cold=4)


@given(
    num_hot=st.integers(0, 30),
    num_cold=st.integers(0, 30),
    losses=st.lists(st.floats(0, 1), max_size=40),
    steps=st.lists(st.integers(1, 60), max_size=60),
    sequential=st.booleans(),
)
def test_any_run_trains_every_batch_once_an_epoch(num_hot, num_cold, losses, steps, sequential):
    """However it stops, is saved, goes on, and whatever the evaluations say in between."""
    if num_hot + num_cold == 0:
        return
    position, trained = SEQUENTIAL if sequential else Position(), []
    given, sizes = iter(losses), iter(steps)
    while position.epoch < 2:
        position = build(Position, json.loads(json.dumps(dataclasses.asdict(position))))
        block = next_block(position, num_hot, num_cold)
        assert len(block) > 0
        batches = [(block.epoch, "hot", i) for i in range(block.hot_from, block.hot_to)]
        batches += [(block.epoch, "cold", i) for i in range(block.cold_from, block.cold_to)]
        size = min(next(sizes, 60), len(block))
        trained += batches[:size]
        position = advance(position, size, num_hot, num_cold)
        if position.done == 0 and position.rate is not None:
            rate = position.rate.after(next(given, 0.5))
            position = Position(position.epoch, position.hot, position.cold, 0, rate)
    all_batches = [("hot", i) for i in range(num_hot)] + [("cold", i) for i in range(num_cold)]
    assert sorted(trained) == sorted((epoch, *hot_cold) for epoch in (0, 1) for hot_cold in all_batches)


def test_samples_are_dealt_evenly_to_the_batches():
    assert [_even(rows, 300) for rows in (1000, 300, 301, 1, 0)] == [250, 300, 151, 1, 1]
