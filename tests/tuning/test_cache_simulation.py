"""Cache simulation: its counts, and what the command line prints of it."""

import json
import re

import pytest
import torch

from hotrows import data
from hotrows.data import Loader
from hotrows.data.datasets import schemas, synthetic
from hotrows.dynamic import Dynamic
from hotrows.engine.planning.policy import LRU, SIMULATED, Newest
from hotrows.schema import Dense, Schema, Sparse
from hotrows.tools.tuning.cache_simulation import simulate
from hotrows.train.config import TrainConfig

pytestmark = pytest.mark.usefixtures("one_thread")

STRIDE = 32  # dim 4 in float32, and as much for Adagrad


@pytest.fixture(scope="module")
def encoded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("simulate")
    raw = synthetic.synth_criteo(3000, folder / "raw", seed=0, cardinality_scale=0.001)
    return data.prepare([raw], schemas.load("criteo"), folder / "enc", split="position:0.8")


@pytest.fixture(scope="module")
def simulation(encoded):
    return simulate(
        encoded,
        TrainConfig(model="dlrm", model_options={"dim": 4}, batch_size=64, in_flight=1),
        fast_memory=[8_000, 11_000],
        batches=32,
    )


def textbook_lru(encoded, num_slots, batch_size, batches, stride_free=None):
    """Lookups and rows missed per batch after the first quarter, by a list of rows in order of use."""
    loader = Loader(encoded.parts["train"], batch_size, shuffle=True, seed=0)
    features, cache, counted = [c.name for c in encoded.parts["train"].columns.ids], [], []
    for j, batch in zip(range(batches), loader.batches(0), strict=False):
        ids = batch.ids.view(len(features), -1).tolist()
        lookups = [(f, i) for f, column in enumerate(ids) for i in column]
        rows = sorted(set(lookups))
        missing = set(rows) - set(cache)
        cache = [row for row in cache if row not in set(rows)] + rows
        cache = cache[-num_slots:]
        if j >= batches // 4:
            counted.append((len(missing), sum(row in missing for row in lookups), len(rows)))
    return [sum(column) / len(counted) for column in zip(*counted, strict=True)]


def test_lru_misses_what_a_textbook_lru_misses(encoded, simulation):
    (_, lru) = simulation.results("lru")
    misses, lookups, rows = textbook_lru(encoded, lru.slots[0], 64, 32)
    assert lru.misses == pytest.approx(misses)
    assert lru.rows_hit == pytest.approx(1 - misses / rows)
    assert lru.lookups_hit == pytest.approx(1 - lookups / simulation.lookups)
    assert simulation.rows == pytest.approx(rows)


def test_every_policy_stands_at_every_size_and_none_beats_belady(simulation):
    assert simulation.policies == tuple(SIMULATED)
    assert (simulation.batches, simulation.skipped, simulation.batch_size) == (32, 8, 64)
    for name in SIMULATED:
        small, large = simulation.results(name)
        assert (small.fast_memory, large.fast_memory) == (8_000, 11_000)
        assert large.slots == (11_000 // STRIDE,) and large.misses < small.misses
        assert large.share == pytest.approx(large.slots[0] / simulation.table_rows)


def test_epochs_follow_one_another_and_only_the_first_meets_new_rows(encoded):
    epoch = -(-encoded.parts["train"].rows // 256)
    repeated = simulate(
        encoded,
        TrainConfig(batch_size=256),
        batches=4 * epoch,
        fast_memory=[10**5],
        policies={"lru": LRU},
    )
    assert (repeated.batches, repeated.skipped) == (4 * epoch, epoch)
    assert repeated.untouched == 0
    assert (
        simulate(
            encoded, TrainConfig(batch_size=256), fast_memory=[10**5], policies={"lru": LRU}
        ).untouched
        > 0
    )


def test_the_rows_that_batches_in_flight_pin_are_bounded(encoded, simulation):
    most = simulation.pinned_rows  # of one batch in flight: its own
    assert simulation.rows <= most <= 64 * 26
    assert simulation.pinned_bytes == most * STRIDE
    one, four = (
        simulate(
            encoded, TrainConfig(model="dlrm", batch_size=64, **settings), batches=32, fast_memory=[10**5]
        )
        for settings in ({"in_flight": 1}, {})
    )
    assert four.in_flight == TrainConfig().in_flight == 4  # as training has it
    assert four.pinned_rows == 7 * one.pinned_rows


def test_rows_never_read_before_cost_no_read(simulation):
    for result in simulation.measured:
        assert result.untouched == simulation.untouched
        assert result.reads == pytest.approx(result.misses - result.untouched)
        assert result.bytes_read == pytest.approx(result.reads * STRIDE)
        assert result.bytes_written == pytest.approx(result.writes * STRIDE)


def test_the_bounds_stand_beside_any_policy(encoded):
    chosen = {"newest": Newest()}
    simulation = simulate(
        encoded, TrainConfig(batch_size=64), batches=4, fast_memory=[10**5], policies=chosen
    )
    assert simulation.policies == ("newest", "lru", "belady")
    assert (
        simulate(encoded, TrainConfig(batch_size=64), batches=4, fast_memory=[10**5], policies=chosen)
        == simulation
    )


def test_an_order_stands_beside_the_optimum_of_a_plain_shuffle(encoded):
    configs = (
        TrainConfig(model="dlrm", batch_size=4, in_flight=1, order=order)
        for order in ("shuffle", "reuse:32")
    )
    plain, reuse = (simulate(encoded, config, fast_memory=[10_000, 15_000]) for config in configs)
    assert (plain.order, plain.shuffled, plain.distinct_rows) == ("shuffle", None, 1)
    assert reuse.order == "reuse:32" and reuse.shuffled is not None
    assert reuse.shuffled.results("belady") == plain.results("belady")
    assert reuse.distinct_rows == pytest.approx(reuse.rows / plain.rows) and reuse.distinct_rows < 0.98
    for cache, optimum in zip(reuse.results("lookahead"), plain.results("belady"), strict=True):
        assert 1.1 * cache.reads < optimum.reads


def test_keys_that_are_all_live_are_read_as_ids_are(encoded, tmp_path):
    """The values of a feature as keys and as ids: what a cache misses, whatever numbers rows have."""
    rows = {
        "label": [0, 1] * 500,
        "n": [0.5, 1.0] * 500,
        "a": [n * n % 97 for n in range(1000)],
        "b": [n % 60 for n in range(1000)],
    }
    of_both = []
    for dynamic in (
        None,
        Dynamic(capacity=200, evict="lru"),
        Dynamic(capacity=20, evict="lru"),
        Dynamic(),
        Dynamic(partitions=300),
    ):
        schema = Schema((Dense("n"), Sparse("a", dynamic=dynamic), Sparse("b")), name="keys")
        of_both.append(data.prepare(rows, schema, tmp_path / f"{len(of_both)}", split="position:1,0,0"))
    config, how = TrainConfig(model="dlrm", model_options={"dim": 4}, batch_size=50), {"lru": LRU}
    static, keys, few, growing, parted = (
        simulate(d, config, fast_memory=[40 * STRIDE], policies=how) for d in of_both
    )
    assert (keys.lookups, keys.rows, keys.untouched) == (static.lookups, static.rows, static.untouched)
    (expected, _), (found, _) = static.measured, keys.measured
    assert found.misses == pytest.approx(expected.misses, rel=0.1) and found.misses > 5
    assert few.rows < keys.rows, "keys without a row share the unknown one"
    assert growing.rows == keys.rows and growing.table_rows == 49 + 3 + of_both[3].schema.rows_of("b")
    assert parted.table_rows - growing.table_rows == 300 - 49, "a partition has one row at least"


def test_crosses_of_a_model_are_rows_as_any(encoded):
    options = {"crosses": [["C1", "C2"]], "cross_rows": 500}
    simulation = simulate(
        encoded, TrainConfig(model="wide_deep", model_options=options, batch_size=64), batches=4,
        fast_memory=[10**6], policies={"lru": LRU},
    )  # fmt: skip
    rows = sum(encoded.schema.rows_of(feature.name) for feature in encoded.schema.sparse)
    assert simulation.table_rows == rows + rows + 500  # of vectors, of weights, of the cross
    assert simulation.lookups == 64 * (26 + 26 + 1)


def test_memory_for_all_rows_misses_first_touches_alone(encoded):
    simulation = simulate(encoded, TrainConfig(batch_size=64), batches=8, fast_memory=[10**9])
    results = simulation.measured
    assert all(result.share == 1 and result.misses == result.untouched for result in results)
    assert all(result.bytes_read == result.bytes_written == 0 for result in results)


def test_a_batch_larger_than_fast_memory_is_read_and_written_around_its_step(encoded):
    simulation = simulate(
        encoded, TrainConfig(batch_size=64), batches=8, fast_memory=[4096], policies={"lru": LRU}
    )
    (lru,) = simulation.results("lru")
    assert lru.writes == lru.misses == simulation.rows


def test_shares_of_the_tables_are_the_sizes_by_default(encoded):
    simulation = simulate(encoded, TrainConfig(batch_size=16), batches=4, policies={"lru": LRU})
    sizes = [result.fast_memory for result in simulation.results("lru")]
    assert len(sizes) == 6 and sizes[-1] == simulation.table_bytes // 2


def test_nothing_is_allocated_and_random_state_stays(encoded, simulation):
    before = torch.get_rng_state()
    simulate(encoded, TrainConfig(batch_size=64), batches=2, fast_memory=[10**5], policies={"lru": LRU})
    assert torch.equal(torch.get_rng_state(), before)
    assert json.loads(json.dumps(simulation.to_json()))["measured"][0]["policy"] == "lookahead"


def test_the_command_prints_every_policy_the_advice_and_a_picture(encoded, hotrows, tmp_path):
    sizes = ["--fast-memory", "100KiB", "--fast-memory", "200KiB"]
    common = ["simulate", encoded.path, "--batches", 8, "--batch-size", 64, *sizes]
    run = hotrows(*common, "--picture", tmp_path / "c.svg", "--samples-per-second", 10_000)
    assert run.code == 0, run.err
    lines = run.out.splitlines()
    assert [line.split("  ")[0] for line in lines[3:15:2]] == list(SIMULATED)
    assert [line[:11].strip() for line in lines[15:21] if len(line) > 13] == list(SIMULATED)
    assert "of the speed with all rows in memory; twice" in " ".join(lines[:2])
    assert re.search(
        r"lookups that can own a row, by bytes of all rows: (\S+ KiB \S+ %,? ?)+; prepare --min-\s?count "
        r"11 \(rows of 50.1 KiB\) loses less than 1 %",
        " ".join(lines[21:]),
    )
    shown = [*lines, *hotrows(*common).out.splitlines()]
    assert max(len(line) for line in shown if str(tmp_path) not in line) <= 80
    assert (tmp_path / "c.svg").read_text().startswith("<svg")
    figures = json.loads(hotrows(*common, "--json").out)
    assert figures["advice"]["speeds"] is None and len(figures["measured"]) == 12
    reuse = hotrows(*common, "--order", "reuse:4").out.splitlines()
    assert any("rows read, reuse:4, lookahead  shuffle, belady  times fewer" in line for line in reuse)
    assert any(line.startswith("order reuse:4: a batch reads ") for line in reuse)
    refused = hotrows(*common, "--fast-memory", "a lot")
    assert refused.code == 2 and "such as 64MiB" in refused.err


def test_batches_that_wait_for_one_another_are_counted_and_so_is_what_a_file_store_does(encoded):
    sizes = {"few slots": 4_000, "slots of seven batches": 1 << 20}
    simulation = simulate(
        encoded, TrainConfig(model="dlrm", model_options={"dim": 4}, batch_size=64), batches=16,
        fast_memory=list(sizes.values()), policies={}, in_file=True,
    )  # fmt: skip
    few, many = simulation.results("lru")
    assert many.fast_memory > simulation.pinned_bytes
    assert (few.drained, many.drained) == (1, 0)
    assert few.in_file.requests > 0 and many.in_file.requests == 0
    assert few.in_file.requests <= few.reads
    assert (
        simulate(encoded, TrainConfig(model="dlrm", batch_size=64), batches=2).measured[0].in_file is None
    )


def test_the_command_measures_the_disk_and_says_which_memory_is_the_cheapest(
    encoded, hotrows, tmp_path, monkeypatch
):
    from hotrows.train.costs import measure_disk

    monkeypatch.setattr(measure_disk, "_SIZE", 4 << 20)
    monkeypatch.setattr("hotrows.tools.tuning.measured_speed._WINDOW", 0.1)
    monkeypatch.setattr("hotrows.tools.tuning.measured_speed._WARM_UP", 0.1)
    monkeypatch.setattr("hotrows.tools.tuning.measured_speed._PAIRS", 1)
    common = ["simulate", encoded.path, "--batches", 8, "--batch-size", 64, "--fast-memory", "200KiB"]
    store = ["--store", f"file:{tmp_path / 'to' / 'be'}", "--disk", "measured"]
    run = hotrows(*common, *store, "--wanted", 1)
    assert run.code == 0, run.err
    assert f"samples/s in memory; measured at {tmp_path}: reads" in " ".join(run.out.split())
    assert "1 samples/s take 200 KiB of fast memory" in run.out
    for wrong, message in [
        (["--store", "file"], "belong together"),
        (["--disk", "measured"], "belong together"),
        (["--store", "memory", "--disk", "measured"], "--store must be file or file:PATH"),
        (["--wanted", 5], "--target-samples-per-second needs"),
    ]:
        refused = hotrows(*common, *wrong)
        assert refused.code == 2 and message in refused.err
