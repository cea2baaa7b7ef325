"""Rates of missing and unknown values: always reported, with a warning where they are far from usual."""

import numpy as np
import pyarrow as pa
import pytest

from hotrows.data import EncodedData, Encoder, ValueRates, prepare
from hotrows.data.encode.rates import UsualCounts, ValueCounts
from hotrows.schema import Dense, Schema, Sequence, Sparse

SCHEMA = Schema(
    label="click",
    delimiter=",",
    features=(Dense("price"), Sparse("user"), Sparse("device", min_count=3), Sequence("seen")),
)


def rows(num_rows=400, seed=0, users=20) -> pa.Table:
    rng = np.random.default_rng(seed)
    return pa.table(
        {
            "click": rng.integers(0, 2, num_rows),
            "price": [None if n % 5 == 0 else float(n) for n in range(num_rows)],
            "user": pa.array(rng.integers(0, users, num_rows)),
            "device": [None if n % 10 == 0 else f"d{n % 7}" for n in range(num_rows)],
            "seen": [[] if n % 4 == 0 else ["a", "b"] for n in range(num_rows)],
        }
    )


def replaced(table: pa.Table, **columns) -> pa.Table:
    for name, values in columns.items():
        table = table.set_column(table.schema.names.index(name), name, pa.array(values))
    return table


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rates")
    prepare(rows(), SCHEMA, folder / "enc")
    return folder / "enc"


def test_rates_are_beside_the_batches(folder):
    batches = Encoder.open(folder).encode(rows(100, seed=1, users=21), batch_size=30)
    assert batches.rates.rows == 0
    assert sum(batch.size for batch in batches) == 100
    rates = batches.rates
    assert rates.features["price"] == ValueCounts(100, 20, 0)
    assert rates.features["device"] == ValueCounts(100, 10, 0)
    assert rates.features["seen"] == ValueCounts(
        75 * 2 + 25, 25, 0, 100
    )  # an empty list is a missing value
    assert rates.features["user"].unknown == (rows(100, 1, 21)["user"].to_numpy() == 20).sum()
    assert rates.far == ()
    assert rates.summary().startswith(
        "100 samples; missing: 11.6% of the values, most in 'seen' (25.0%); unknown: 0."
    )


def test_lists_that_are_empty_are_warned_of_by_their_share_of_lists():
    """By their share of the items, 46 % of empty histories were 4 %, and nobody was warned."""
    usual = UsualCounts(({"seen": ValueCounts(18_290, 90, 0, 1_000)},))
    rates = ValueRates(1_000, {"seen": ValueCounts(11_260, 460, 0, 1_000)}, usual)
    assert rates.far == ("'seen' 46.0% missing, expected 9.0%",)
    words = ValueCounts(5, 5, 0, 3)  # of three lists, one with three missing values
    assert (words.count("missing"), words.rate("missing")) == ((3, 3), 1.0)


def test_unknown_values_are_warned_of_with_an_example(folder):
    """A CSV with another spelling of the same values gave unknown ids, without a word."""
    table = rows(200, seed=2)
    spelled = replaced(table, user=[f"{user}.00" for user in table["user"].to_pylist()])
    batches = Encoder.open(folder).encode(spelled)
    example = spelled["user"][0].as_py()
    with pytest.warns(
        UserWarning, match=rf"'user' 100\.0% unknown \(such as '{example}'\), expected 0\.0%; is the"
    ):
        list(batches)
    assert len(batches.rates.far) == 1


def test_missing_values_are_warned_of_whether_more_or_fewer(folder):
    table = rows(200, seed=2)
    lists = replaced(table, seen=[["a"]] * 200, price=[None] * 200)
    with pytest.warns(
        UserWarning,
        match=r"'price' 100\.0% missing, expected 1.* to .*; 'seen' 0\.0% missing, expected 1",
    ):
        list(Encoder.open(folder).encode(lists))


@pytest.mark.parametrize(
    ("num_rows", "wrong", "is_far"),
    [(1, 1, False), (2, 2, True), (40, 2, False), (40, 3, True), (4000, 200, False), (4000, 201, True)],
)
def test_few_rows_and_small_differences_are_no_reason(num_rows, wrong, is_far):
    """Of 100,000 values none was unknown: how many unknown ones are far from that?"""
    usual = UsualCounts(({"user": ValueCounts(100_000, 0, 0)},))
    assert bool(ValueRates(num_rows, {"user": ValueCounts(num_rows, 0, wrong)}, usual).far) == is_far


def test_a_rate_between_those_of_the_parts_is_usual():
    """With min_count=1 nothing is unknown in the training part, but in the others much may be."""
    parts = ({"user": ValueCounts(10_000, 100, 0)}, {"user": ValueCounts(1_000, 300, 300)})
    usual = UsualCounts(parts)

    def far(missing, unknown):
        return ValueRates(1_000, {"user": ValueCounts(1_000, missing, unknown)}, usual).far

    assert far(10, 0) == far(150, 150) == far(300, 340) == ()
    assert far(300, 400) == ("'user' 40.0% unknown, expected 0.0% to 30.0%",)
    assert len(far(500, 0)) == 1
    none = UsualCounts(({"user": ValueCounts()},))
    assert ValueRates(9, {"user": ValueCounts(9, 9, 0)}, none).far == ()


def test_fewer_unknown_values_than_usual_are_good_news():
    usual = UsualCounts(({"user": ValueCounts(10_000, 0, 3_000)},))
    assert ValueRates(1_000, {"user": ValueCounts(1_000, 0, 0)}, usual).far == ()


def test_the_farthest_features_are_named_and_the_others_counted():
    features = {f"f{n}": ValueCounts(1_000, 500 + n, 0) for n in range(14)}
    usual = UsualCounts(({name: ValueCounts(1_000, 0, 0) for name in features},))
    with pytest.warns(
        UserWarning, match=r"from: 'f13' 51\.3% missing, .*'f4' 50.4% missing, .*; and 4 more; is the"
    ):
        ValueRates(1_000, features, usual).warn()


def test_later_data_is_compared_with_the_data_that_it_is_like(tmp_path, folder, recwarn):
    data = prepare(rows(100, seed=3), None, tmp_path / "same", like=folder)
    assert not recwarn.list
    strange = replaced(rows(100, seed=3), user=["?"] * 100)
    with pytest.warns(UserWarning, match="'user' 100.0% unknown, expected 0.0%"):
        prepare(strange, None, tmp_path / "strange", like=folder)
    with pytest.warns(UserWarning, match="'user' 100.0% missing, expected 0.0%"):
        prepare(replaced(strange, user=[""] * 100), None, tmp_path / "grown", extend=folder)
    counts = ValueRates.of_parts(data.parts.values(), EncodedData.open(folder).parts.values())
    assert (counts.rows, counts.features["price"]) == (100, ValueCounts(100, 20, 0))
