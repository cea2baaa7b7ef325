"""Simulation: what it counts, what it advises, and what the command line makes of it."""

import dataclasses
import json
import math

import pytest
import torch

from hotrows import data
from hotrows.data import Loader, synth
from hotrows.planning.policy import LRU, Newest
from hotrows.simulate import (
    POLICIES,
    Measured,
    Simulation,
    SlowMemory,
    advise,
    simulate,
)
from tests.test_cli import hotrows, one_thread  # noqa: F401  (fixtures)

STRIDE = 32  # dim 4 in float32, and as much for Adagrad


@pytest.fixture(scope="module")
def encoded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("simulate")
    raw = synth.synth_criteo(3000, folder / "raw", seed=0, cardinality_scale=0.001)
    return data.prepare([raw], data.schemas.load("criteo"), folder / "enc", split="position:0.8")


@pytest.fixture(scope="module")
def found(encoded):
    return simulate(
        encoded, model_options={"dim": 4}, batch_size=64, fast_memory=[8_000, 11_000], batches=32
    )


def textbook_lru(encoded, num_slots, batch_size, batches, stride_free=None):
    """Lookups and rows missed per batch after the first quarter, by a list of rows in order of use."""
    loader = Loader(encoded.parts["train"], batch_size, shuffle=True, seed=0)
    features, cache, counted = encoded.parts["train"].features, [], []
    for j, batch in zip(range(batches), loader.batches(0), strict=False):
        ids = batch.ids.view(len(features), -1).tolist()
        lookups = [(f, i) for f, of in enumerate(ids) for i in of]
        rows = sorted(set(lookups))
        missing = set(rows) - set(cache)
        cache = [row for row in cache if row not in set(rows)] + rows
        cache = cache[-num_slots:]
        if j >= batches // 4:
            counted.append((len(missing), sum(row in missing for row in lookups), len(rows)))
    return [sum(of) / len(counted) for of in zip(*counted, strict=True)]


def test_lru_misses_what_a_textbook_lru_misses(encoded, found):
    (_, measured) = found.of("lru")
    misses, lookups, rows = textbook_lru(encoded, measured.slots[0], 64, 32)
    assert measured.misses == pytest.approx(misses)
    assert measured.rows_hit == pytest.approx(1 - misses / rows)
    assert measured.lookups_hit == pytest.approx(1 - lookups / found.lookups)
    assert found.rows == pytest.approx(rows)


def test_every_policy_stands_at_every_size_and_none_beats_belady(found):
    assert found.policies == tuple(POLICIES)
    assert (found.batches, found.skipped, found.batch_size) == (32, 8, 64)
    for name in POLICIES:
        small, large = found.of(name)
        assert (small.fast_memory, large.fast_memory) == (8_000, 11_000)
        assert large.slots == (11_000 // STRIDE,) and large.misses < small.misses
        assert large.share == pytest.approx(large.slots[0] / found.table_rows)


def test_rows_never_read_before_cost_no_read(found):
    for of in found.measured:
        assert of.untouched == found.untouched
        assert of.reads == pytest.approx(of.misses - of.untouched)
        assert of.bytes_read == pytest.approx(of.reads * STRIDE)
        assert of.bytes_written == pytest.approx(of.writes * STRIDE)


def test_the_bounds_stand_beside_any_policy(encoded):
    chosen = {"newest": Newest()}
    found = simulate(encoded, batch_size=64, batches=4, fast_memory=[10**5], policies=chosen)
    assert found.policies == ("newest", "lru", "belady")
    assert simulate(
        encoded, batch_size=64, batches=4, fast_memory=[10**5], policies=chosen
    ) == found  # fmt: skip


def test_crosses_of_a_model_are_rows_as_any(encoded):
    options = {"crosses": [["C1", "C2"]], "cross_rows": 500}
    found = simulate(
        encoded, model="wide_deep", model_options=options, batch_size=64, batches=4,
        fast_memory=[10**6], policies={"lru": LRU},
    )  # fmt: skip
    rows = sum(encoded.schema.rows_of(feature.name) for feature in encoded.schema.sparse)
    assert found.table_rows == rows + rows + 500  # of vectors, of weights, of the cross
    assert found.lookups == 64 * (26 + 26 + 1)


def test_memory_for_all_rows_misses_first_touches_alone(encoded):
    found = simulate(encoded, batch_size=64, batches=8, fast_memory=[10**9])
    assert all(of.share == 1 and of.misses == of.untouched for of in found.measured)
    assert all(of.bytes_read == of.bytes_written == 0 for of in found.measured)


def test_a_batch_larger_than_fast_memory_is_read_and_written_around_its_step(encoded):
    found = simulate(encoded, batch_size=64, batches=8, fast_memory=[4096], policies={"lru": LRU})
    (of,) = found.of("lru")
    assert of.writes == of.misses == found.rows


def test_shares_of_the_tables_are_the_sizes_by_default(encoded):
    found = simulate(encoded, batch_size=16, batches=4, policies={"lru": LRU})
    sizes = [of.fast_memory for of in found.of("lru")]
    assert len(sizes) == 6 and sizes[-1] == found.table_bytes // 2


def test_nothing_is_allocated_and_random_state_stays(encoded, found):
    before = torch.get_rng_state()
    simulate(encoded, batch_size=64, batches=2, fast_memory=[10**5], policies={"lru": LRU})
    assert torch.equal(torch.get_rng_state(), before)
    assert json.loads(json.dumps(found.to_json()))["measured"][0]["policy"] == "lookahead"


def curve(*points, untouched=0.0, table_bytes=1 << 30):
    """A simulation whose misses, of 1,000 rows a batch, are given by size."""
    measured = Measured("lookahead", 0, (1,), 0, 0, 0, 0, 0, 0, 0, 0, 0, None)
    rows = [
        dataclasses.replace(
            measured, fast_memory=size, misses=misses, reads=misses, writes=misses,
            bytes_written=misses * 128,
        )
        for size, misses in points
    ]  # fmt: skip
    return Simulation(
        "dlrm", 100, 1, 0, 8, 2, 2600, 1000, untouched, 10**6, table_bytes, tuple(rows)
    )


def test_speed_is_bound_by_the_slowest_part_of_a_step():
    found = curve((1 << 20, 800), (1 << 24, 100))  # a step in memory takes 1 ms
    advice = advise(found, samples_per_second=100_000, slow=SlowMemory(reads_per_second=200_000))
    assert advice.speeds == {1 << 20: pytest.approx(0.25), 1 << 24: 1.0}
    slow = SlowMemory(reads_per_second=1e9, bytes_per_second=51.2e6)
    assert advise(found, samples_per_second=100_000, slow=slow).speeds[1 << 20] == 0.5
    slow = SlowMemory(reads_per_second=1e9, writes_per_second=400_000)
    assert advise(found, samples_per_second=100_000, slow=slow).speeds[1 << 20] == 0.5


def test_the_knee_is_where_doubling_stops_to_gain_five_percent():
    steep = [(1 << (20 + n), 1000 * 2.0**-n) for n in range(8)]  # halves with each doubling
    advice = advise(curve(*steep))
    last_paying = math.log2(steep[3][0]) + math.log2(125 / 100)  # 125 rows less 62.5; 100 less 50
    assert math.log2(advice.knee) == pytest.approx(last_paying, abs=0.5)
    assert advice.fast_memory == 1 << 24
    assert advice.sentence.startswith(
        "with 16 MiB of fast memory expect 62 of the 1,000 rows of a batch to come from slow memory"
    )


def test_where_no_doubling_gains_the_knee_is_below_the_sizes():
    advice = advise(curve((1 << 28, 10), (1 << 29, 9)), samples_per_second=1000)
    assert advice.knee is None
    assert advice.sentence == (
        "with 256 MiB of fast memory expect 100 % of in-memory speed; the knee is below 256 MiB"
    )


def test_the_command_prints_every_policy_the_advice_and_a_picture(encoded, hotrows, tmp_path):  # noqa: F811
    sizes = ["--fast-memory", "100KiB", "--fast-memory", "200KiB"]
    common = ["simulate", encoded.path, "--batches", 8, "--batch-size", 64, *sizes]
    run = hotrows(*common, "--picture", tmp_path / "c.png", "--samples-per-second", 10_000)
    assert run.code == 0, run.err
    lines = run.out.splitlines()
    assert [line.split("  ")[0] for line in lines[1:13:2]] == list(POLICIES)
    assert "of in-memory speed; the knee is" in lines[-1]
    assert (tmp_path / "c.png").read_bytes().startswith(b"\x89PNG")
    figures = json.loads(hotrows(*common, "--json").out)
    assert figures["advice"]["speeds"] is None and len(figures["measured"]) == 12
    refused = hotrows(*common, "--fast-memory", "a lot")
    assert refused.code == 2 and "such as 64MiB" in refused.err
