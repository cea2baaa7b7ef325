"""A budget of bytes for all rows: how it is divided over key tables, what it allows, what it refuses."""

import dataclasses
import itertools
import json
import re

import numpy as np
import pytest
from numpy.random import default_rng

from hotrows import TrainConfig
from hotrows.cli import main as cli
from hotrows.data import prepare
from hotrows.dynamic import Dynamic
from hotrows.ops.record import layout_of
from hotrows.schema import Dense, Schema, Sparse
from hotrows.tools.tuning.owned_rows import owned_rows
from hotrows.tools.tuning.rows_budget import (
    ValueReads,
    capacities,
    coverage,
    divide,
    reads,
    with_capacities,
)
from hotrows.train.loop.recommender import model_and_tables
from hotrows.train.start.defaults import settle
from tests.support.runs import CONFIG, write_rows

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


def declared(data, num_bytes):
    """What `capacities` says, the bytes that the tables then take, and those of the largest row."""
    config = settle(SMALL, data)
    tables = model_and_tables(config, data.schema)[1]
    keys, _ = reads(data, tables)
    found = capacities(data.schema, tables, keys, num_bytes)
    sized = with_capacities(data.schema, {n: d.capacity for n, d in found.items()}, keys)
    taken = sum(t.rows * layout_of(t).stride for t in model_and_tables(config, sized)[1])
    return found, taken, max(layout_of(t).stride for t in tables)


def test_the_records_of_all_tables_fit_into_the_budget(keys):
    found, taken, largest = declared(keys, BUDGET)
    assert BUDGET - 2 * largest < taken <= BUDGET
    a, b = found["a"], found["b"]
    assert (a.admit, a.evict, b.admit, b.evict) == ("frequent:2", "lfu:8", "after:2", "none")
    assert a.capacity + b.capacity < 60, "of as many values"


def test_the_sketch_of_a_huge_budget_is_that_of_the_lookups_there_are(keys):
    """Four counters for each of 50 million rows once made checkpoints of 3 GB, for a table of 60 keys."""
    a = declared(keys, 4 << 30)[0]["a"]
    assert a.admit == "frequent:2,1048576" and a.sketch_width == 2**20 and a.capacity > 2**24
    for counts, width in ((np.full(10**6, 30), 30 * 10**6), (np.zeros(0, np.int64), 2**31)):
        many = Schema(
            (Sparse("a", dynamic=Dynamic(admit="frequent:3", evict="lfu", capacity=9, partitions=4)),)
        )
        many = with_capacities(many, {"a": 2**29}, {"a": ValueReads(counts, 8)})
        assert many.sparse[0].dynamic.sketch_width == width, "nothing is known of those not counted"


def test_budgets_that_cannot_be_met_are_refused(keys, tmp_path):
    for data, num_bytes, many in ((keys, 100, 2), (data_of(tmp_path), BUDGET, 0)):
        with pytest.raises(ValueError, match=rf"rows_budget is .* for each of {many} dynamic vocabular"):
            declared(data, num_bytes)


def test_simulate_prints_what_a_schema_is_to_declare(keys, capsys):
    cli(["simulate", str(keys.path), "--model", "fm", "--batches", "4", "--rows-budget", "3KB"])
    told = capsys.readouterr().out
    assert "for 2.93 KiB of all rows, write into the schema:" in told
    features = [f'{{"kind": "sparse", "name": "{name}", "dynamic": {fields}}}' for name, fields in
                re.findall(r'^  (\w): "dynamic": (.*)$', told, re.MULTILINE)]  # fmt: skip
    written = Schema.from_json(f'{{"features": [{", ".join(features)}]}}')
    assert [f.dynamic.admit for f in written.sparse] == ["frequent:2", "after:2"]
    assert all(0 < f.dynamic.capacity < 60 for f in written.sparse)


@pytest.mark.parametrize("used", [None, BUDGET])
def test_a_config_of_an_earlier_version_is_read_and_says_what_is_gone(used, caplog):
    fields = {**json.loads(SMALL.to_json()), "rows_budget": used}
    assert TrainConfig.from_fields(fields) == SMALL
    assert ("rows_budget=2000 is no longer a setting" in caplog.text) == (used is not None)


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
