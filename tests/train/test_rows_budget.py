"""A budget of bytes for all rows: how it is divided over key tables, what it allows, what it refuses."""

import dataclasses
import itertools

import numpy as np
import pytest
import torch
from numpy.random import default_rng

from hotrows.data import prepare, prepare_schema
from hotrows.distributed.in_process import run as on_threads
from hotrows.dynamic import Dynamic
from hotrows.record import layout_of
from hotrows.schema import Dense, Schema, Sparse
from hotrows.train import Interrupted, Trainer, load_run, rows_budget, run_folder
from hotrows.train.defaults import settle
from hotrows.train.rows_budget import Replay, ValueReads, coverage, divide, with_capacities
from hotrows.tuning.owned_rows import owned_rows
from tests.reference.keys import ReferenceKeyTable
from tests.support.runs import CONFIG, assert_same_run, interrupt_after, write_rows

pytestmark = pytest.mark.usefixtures("one_thread", "no_pictures")

SMALL = dataclasses.replace(CONFIG, batch_size=32, epochs=1, checkpoint_every=4, shuffle=False)
BUDGET = 2000


def data_of(folder, a=None, b=None, rows=800):
    raw = write_rows(folder / "raw.csv", rows)
    features = (Dense("n", transform="standard"), Sparse("a", dynamic=a), Sparse("b", dynamic=b))
    of = Schema(features, delimiter=",", name="tiny")
    return prepare([raw], of, folder / "enc", split="position:0.6,0.2,0.2")


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    return data_of(tmp_path_factory.mktemp("keys"), Dynamic(), Dynamic(admit="after:2", partitions=3))


def read_of(draw, sizes, row_bytes):
    counts = (np.sort(draw.integers(1, 40, num))[::-1] for num in sizes)
    pairs = zip(counts, row_bytes, strict=True)
    return {f"v{n}": ValueReads(c, size) for n, (c, size) in enumerate(pairs)}


def test_room_for_more_keys_is_divided_beyond_64_bits():
    """Rows times bytes once overflowed: 100 million keys got other capacities than a terabyte allows."""
    none = np.zeros(0, np.int64)
    read = {"a": ValueReads(none, 1000, least=10**8), "b": ValueReads(none, 1000, least=3 * 10**8)}
    assert divide(read, 10**12) == {"a": 250_000_000, "b": 750_000_000}


@pytest.mark.parametrize("row_bytes", [(8, 8, 8), (8, 12, 40)])
def test_no_other_division_serves_more_lookups(row_bytes):
    draw = default_rng(0)
    for _ in range(40):
        sizes = draw.integers(1, 7, 3)
        read, budget = read_of(draw, sizes, row_bytes), int(draw.integers(60, 160))
        all_rows = itertools.product(*(range(1, num + 1) for num in sizes))

        def served(rows, read=read):
            return coverage(read, dict(zip(read, rows, strict=True)))

        def best(most, all_rows=tuple(all_rows)):
            return max(served(rows) for rows in all_rows if np.dot(rows, row_bytes) <= most)

        rows = divide(read, budget)
        assert np.dot(list(rows.values()), row_bytes) <= budget
        if row_bytes == (8, 8, 8):
            assert served(rows.values()) == best(budget)
        else:  # rows of unequal size may leave a gap, less than the largest of them
            assert served(rows.values()) >= best(max(budget - 40, 60))


def test_bytes_that_no_key_needs_are_room_for_more_of_them():
    read = read_of(default_rng(0), (4, 2), (8, 8))
    assert divide(read, 480) == {"v0": 40, "v1": 20} and coverage(read, divide(read, 480)) == 1


def test_the_records_of_all_tables_fit_into_the_budget(keys, tmp_path, caplog):
    caplog.set_level("INFO", "hotrows")
    trainer = Trainer(keys, dataclasses.replace(SMALL, rows_budget="2000B"), tmp_path / "run")
    tables = trainer.embedding.tables
    taken = sum(table.rows * layout_of(table).stride for table in tables)
    assert BUDGET - 2 * max(layout_of(table).stride for table in tables) < taken <= BUDGET
    a, b = (feature.dynamic for feature in trainer.data.schema.sparse)
    assert (a.admit, a.evict, b.admit, b.evict) == ("frequent:2", "lfu:8", "after:2", "none")
    assert f"rows of 1.95 KiB: a {a.capacity}, b {b.capacity} keys; " in caplog.text
    assert a.capacity + b.capacity < 60, "of as many values"


def test_the_sketch_of_a_huge_budget_is_that_of_the_lookups_there_are(keys, tmp_path):
    """Four counters for each of 50 million rows once made checkpoints of 3 GB, for a table of 60 keys."""
    trainer = Trainer(keys, dataclasses.replace(SMALL, rows_budget="4GiB"), tmp_path / "run")
    a = trainer.data.schema.sparse[0].dynamic
    assert a.admit == "frequent:2,1048576" and a.sketch_width == 2**20 and a.capacity > 2**24
    for counts, width in ((np.full(10**6, 30), 30 * 10**6), (np.zeros(0, np.int64), 2**31)):
        many = Schema(
            (Sparse("a", dynamic=Dynamic(admit="frequent:3", evict="lfu", capacity=9, partitions=4)),)
        )
        many = with_capacities(many, {"a": 2**29}, {"a": ValueReads(counts, 8)})
        assert many.sparse[0].dynamic.sketch_width == width, "nothing is known of those not counted"


@pytest.mark.parametrize("num_bytes", [BUDGET, 100])
def test_the_first_rank_counts_for_all(keys, monkeypatch, num_bytes):
    """Each rank once read the whole training part."""
    counted, count = [], rows_budget.reads
    monkeypatch.setattr(rows_budget, "reads", lambda *of: counted.append(of) or count(*of))
    config = settle(dataclasses.replace(SMALL, rows_budget=num_bytes), keys)

    def schema_on(ranks):
        try:
            return rows_budget.budgeted(keys, config, None, ranks).schema
        except ValueError as error:
            return str(error).split(": ")[-1]

    first, second = on_threads(schema_on, 2)
    assert first == second and len(counted) == 1
    assert first == "give more" if num_bytes == 100 else first != keys.schema


def test_keys_of_a_stream_are_not_counted_and_share_evenly(tmp_path, caplog):
    caplog.set_level("INFO", "hotrows")
    many = Schema((Sparse("a", dynamic=Dynamic()), Sparse("b", dynamic=Dynamic())), name="stream")
    prepare_schema(many, tmp_path / "enc")
    trainer = Trainer(tmp_path / "enc", dataclasses.replace(SMALL, rows_budget=BUDGET), tmp_path / "run")
    a, b = (feature.dynamic.capacity for feature in trainer.data.schema.sparse)
    assert a == b > 15 and f"a {a}, b {b} keys; even, as none is counted" in caplog.text


def test_a_budgeted_run_resumes_to_the_same_bits_and_knows_what_it_was_made_with(keys, tmp_path):
    config = dataclasses.replace(SMALL, rows_budget=BUDGET)
    whole = (tmp_path / "whole", Trainer(keys, config, tmp_path / "whole").fit())
    run = tmp_path / "run"
    with pytest.raises(Interrupted):
        Trainer(keys, config, run, progress=interrupt_after(5)).fit()
    with pytest.raises(ValueError, match="begun with rows_budget=2000, not 5000"):
        Trainer(keys, dataclasses.replace(config, rows_budget=5000), run, resume=True)
    resumed = Trainer(keys, SMALL, run, resume=True)  # the budget of the run
    assert_same_run(run, resumed.fit(), whole)
    assert run_folder.read_config(run).rows_budget == BUDGET
    assert load_run(run).schema == run_folder.read_schema(run) == resumed.data.schema
    assert resumed.data.schema != keys.schema


def test_a_run_begins_with_one_of_another_budget(keys, tmp_path):
    Trainer(keys, dataclasses.replace(SMALL, rows_budget=BUDGET), tmp_path / "a").fit()
    start = dataclasses.replace(SMALL, start_from=str(tmp_path / "a"), steps=1, epochs=None)
    trained = load_run(tmp_path / "a").vectors("a").to_pydict()
    for name, changes in (("b", {"rows_budget": 8000}), ("c", {})):
        larger = Trainer(keys, dataclasses.replace(start, **changes), tmp_path / name)
        vectors = larger.recommender.vectors("a").to_pydict()
        assert dict(zip(vectors["value"], vectors["vector"], strict=True)) == dict(
            zip(trained["value"], trained["vector"], strict=True)
        )


def test_budgets_that_cannot_be_met_are_refused(keys, tmp_path):
    def refused(data, match, **changes):
        with pytest.raises(ValueError, match=match):
            Trainer(data, dataclasses.replace(SMALL, **changes), tmp_path / "run")

    refused(keys, r"rows_budget is 100 bytes, and .* one for each dynamic feature, need .*: give more$",
            rows_budget=100)  # fmt: skip
    static = data_of(tmp_path)
    refused(static, r"give more, or prepare the data with --min-count 1\d, which keeps", rows_budget=1500)
    assert Trainer(
        static, dataclasses.replace(SMALL, rows_budget=10_000), tmp_path / "fits"
    ).data.rows_budget
    for value in (0, "a lot"):
        with pytest.raises(ValueError, match=r"rows_budget|a size must be"):
            dataclasses.replace(SMALL, rows_budget=value)


def test_the_advised_min_count_keeps_the_budget(tmp_path):
    raw = {"label": [0, 1] * 200, "a": [n * n % 61 for n in range(400)], "b": [n % 7 for n in range(400)]}
    of = Schema((Sparse("a"), Sparse("b")), name="few")
    data = prepare(raw, of, tmp_path / "all", split="position:1,0,0")
    config = dataclasses.replace(SMALL, model="fm", model_options={"dim": 4}, rows_budget=1200)
    with pytest.raises(ValueError, match=r"--min-count (\d+)") as refusal:
        Trainer(data, config, tmp_path / "run")
    least = int(str(refusal.value).split("--min-count ")[1].split(",")[0])
    fits = [
        prepare(
            raw, dataclasses.replace(of, features=tuple(
                dataclasses.replace(f, min_count=num) for f in of.features)),
            tmp_path / f"{num}", split="position:1,0,0",
        )
        for num in (least, least - 1)
    ]  # fmt: skip
    Trainer(fits[0], config, tmp_path / "run")
    with pytest.raises(ValueError, match="--min-count"):
        Trainer(fits[1], config, tmp_path / "other")


def test_the_smallest_bytes_that_lose_little_do_so():
    draw = default_rng(1)
    read = read_of(draw, (200, 100), (8, 16))
    owned = owned_rows((), Schema(()), read, {})
    fixed = 3 * 8 + 3 * 16
    assert coverage(read, divide(read, owned.enough - fixed)) >= 0.99
    assert coverage(read, divide(read, owned.enough - fixed - 8)) < 0.99
    assert list(owned.shares.values()) == sorted(owned.shares.values())
    unread = {"v": ValueReads(np.zeros(3, np.int64), 8)}
    assert owned_rows((), Schema(()), {}, unread) is None, "no share of no lookup, which once was NaN"


def served_by(num_rows, evict, batches):
    """The reads of keys whose rows earlier batches have trained."""
    table, served = ReferenceKeyTable(Dynamic(num_rows, "frequent:2", evict)), 0
    for keys in batches:
        served += sum(id >= table.first_id for id in table.find(keys).tolist())
        table.resolve(keys)
        table.trained()
    return served


@pytest.mark.parametrize("num_keys", [1, 2, 37])
def test_a_replay_counts_what_each_capacity_serves(num_keys):
    draw, sizes = default_rng(num_keys), sorted({min(1 << n, num_keys) for n in range(7)})
    weights = draw.pareto(1.0, (30, num_keys)) + 0.01  # other keys are popular in each batch
    batches = [torch.from_numpy(draw.choice(num_keys, 20, p=w / w.sum())) for w in weights]
    replay = Replay(num_keys)
    for keys in batches:
        replay.read(keys)
    counts = replay.counts()
    assert len(counts) == num_keys and (np.diff(counts) <= 1e-9).all() and (counts >= 0).all()
    by_evict = {
        size: {evict: served_by(size, evict, batches) for evict in ("lfu:8", "lfu:32")} for size in sizes
    }
    served = {0: 0, **{size: max(both.values()) for size, both in by_evict.items()}}
    for size, both in by_evict.items():
        assert both[replay.evict(size)] == max(both.values())
    curve = {size: counts[:size].sum() for size in served}
    assert all(curve[size] >= served[size] - 1e-6 for size in served)
    assert curve[max(served)] == pytest.approx(max(served.values()))
    corners = [n for n in served if 0 < n < num_keys and counts[n - 1] > counts[n] + 1e-9]
    assert all(curve[size] == pytest.approx(served[size]) for size in corners)


@pytest.mark.parametrize(("num_keys", "num_reads"), [(600_000, 0), (200_000, 1 << 25)])
def test_of_many_keys_some_stand_for_all(num_keys, num_reads):
    replay = Replay(num_keys, num_reads)
    for keys in torch.arange(num_keys).repeat(3).split(num_keys):
        replay.read(keys)  # the third time all that fit were trained
    counts = replay.counts()
    assert len(Replay(0).counts()) == 0
    assert len(counts) == num_keys and counts.sum() == pytest.approx(num_keys, rel=0.02)


def test_users_who_leave_get_few_rows_in_order_and_many_of_shuffled_samples(tmp_path):
    """Counts once gave most rows to users who never came back, and CAFE was better on MovieLens."""
    draw, num = default_rng(0), 4000
    raw = {
        "label": draw.integers(0, 2, num),
        "user": np.arange(num) // 8,
        "item": draw.zipf(1.3, num) % 300,
    }
    of = Schema((Sparse("user", dynamic=Dynamic()), Sparse("item", dynamic=Dynamic())), name="passing")
    data = prepare(raw, of, tmp_path / "enc", split="position:1,0,0")
    rows = {}
    for shuffle in (False, True):
        config = dataclasses.replace(SMALL, rows_budget=8000, shuffle=shuffle)
        trained = Trainer(data, config, tmp_path / f"{shuffle}").data.schema
        rows[shuffle] = {feature.name: feature.dynamic.capacity for feature in trained.sparse}
    assert rows[False]["user"] < 4 < 40 < rows[True]["user"], rows
    assert sum(rows[True].values()) - 2 <= sum(rows[False].values()) <= sum(rows[True].values()) + 2
