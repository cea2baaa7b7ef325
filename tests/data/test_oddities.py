"""Oddities: what `prepare` and `describe` warn of, and the drift that is none."""

import dataclasses
import logging
import re
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest

from hotrows.data import EncodedData, ValueRates, describe, prepare
from hotrows.data.datasets import schemas
from hotrows.data.encode.oddities import _uncut_lists, row_hashes
from hotrows.data.rows import Rows
from hotrows.dynamic import Dynamic
from hotrows.schema import FIRST_UNKNOWN, Dense, Label, Schema, Sequence, Sparse, Time
from tests.data.raw import sample

SCHEMA = Schema(
    features=(
        Dense("price"),
        Dense("age", transform="standard"),
        Sparse("user"),
        Sparse("hour", transform="hour"),
        Sequence("seen"),
    ),
    label="click",
    time=Time("when"),
)
ROWS = 1_000


def table(**columns) -> pa.Table:
    """Rows without oddities, but for the columns named."""
    draw = np.random.default_rng(0)
    usual = {
        "click": draw.integers(0, 2, ROWS),
        "price": draw.random(ROWS) * 50,
        "age": draw.integers(18, 80, ROWS),
        "user": draw.integers(0, 90, ROWS),
        "when": 1_700_000_000 + draw.integers(0, 900_000, ROWS),
        "seen": [[str(n)] * (n % 3) for n in draw.integers(0, 9, ROWS)],
    }
    return pa.table({**usual, **columns})


@pytest.fixture
def warned(tmp_path, caplog):
    """Prepares rows and returns the warnings, those of `describe` being equal."""

    def lines(rows, schema=SCHEMA, split="fraction:0.8,0.1,0.1", **options):
        with caplog.at_level(logging.WARNING, "hotrows"):
            data = prepare(rows, schema, tmp_path / "enc", split=split, **options)
        said = [record.message for record in caplog.records]
        odd = [line for line in said if not line.startswith("no samples validate")]
        assert list(describe(EncodedData.open(data.path)).oddities) == odd
        return said

    return lines


def test_usual_data_is_not_warned_of(warned):
    assert warned(table()) == []


@pytest.mark.parametrize("number", [0, 1])
def test_one_class_only(warned, number):
    said = warned(table(click=np.full(ROWS, number)))
    assert [line.partition(" samples of ")[2] for line in said] == [
        "train: nothing can be learned of it",
        "validation: it has no AUC there",
        "test: it has no AUC there",
    ]
    assert said[0].startswith(f"label 'click' is {number} in all ")


@pytest.mark.parametrize("first, part", [(0, "train"), (800, "validation"), (900, "test")])
def test_weights_of_0_in_all_rows_of_a_part(warned, first, part):
    """Training then died at the first evaluation; nothing was said before."""
    schema = dataclasses.replace(SCHEMA, weight="w")
    rows = {"train": 800, "validation": 100, "test": 100}[part]
    weights = [float(not first <= i < first + rows) for i in range(ROWS)]
    (line,) = warned(table(w=weights), schema, split="position:0.8,0.1,0.1")
    assert line.startswith(
        f"none of the {rows} samples of {part} has the label 'click' with a weight ('w')"
    )


def test_one_class_among_the_rows_that_weigh(warned):
    clicks = [i % 2 for i in range(ROWS)]
    schema = dataclasses.replace(SCHEMA, weight="w")
    weights = [2.5 * (not 800 <= i < 900 or click) for i, click in enumerate(clicks)]
    (line,) = warned(table(click=clicks, w=weights), schema, split="position:0.8,0.1,0.1")
    assert line == "label 'click' is 1 in all 100 samples of validation: it has no AUC there"


def test_a_label_that_no_row_of_a_part_has(warned):
    schema = dataclasses.replace(SCHEMA, label=("click", "buy"))
    buys = [None if i >= 900 else i % 2 for i in range(ROWS)]
    (line,) = warned(table(buy=buys), schema, split="position:0.8,0.1,0.1")
    assert line == "none of the 100 samples of test has the label 'buy': it cannot be measured there"


WEEK = [1_700_000_000 // 86_400 * 86_400 + day * 86_400 for day in range(7) for _ in range(20)]


@pytest.mark.parametrize(
    "split, empty",
    [
        ("time:0.8,0.1,0.1", ["test"]),
        ("time:0.9", ["test"]),
        ("time:0.99,0.005,0.005", ["validation", "test"]),
        ("time:2024-01-01,2024-01-02", ["validation", "test"]),
        ("time:2024-01-01", ["test"]),
        ("time:0.7,0.15,0.15", []),
        ("time:1,0,0", []),
        ("position:0.999,0.0005,0.0005", ["validation"]),
        ("fraction:0.999,0.0005,0.0005", ["validation", "test"]),
    ],
)
def test_a_part_that_a_split_leaves_empty_is_named(tmp_path, caplog, split, empty):
    rows = {"click": [i % 2 for i in range(140)], "user": [i % 9 for i in range(140)], "when": WEEK}
    schema = Schema((Sparse("user"),), label="click", time=Time("when"))
    data = prepare(rows, schema, tmp_path / "enc", split=split)
    named = [r.message.split()[1] for r in caplog.records if "part has no samples" in r.message]
    assert named == empty
    assert all(not data.parts[name].rows for name in empty)


def test_labels_that_are_numbers_are_not_classes(warned):
    label = Label("rating", loss="squared")
    ratings = -2.5 - np.arange(ROWS) % 7
    assert warned(table(rating=ratings), dataclasses.replace(SCHEMA, label=label)) == []


def test_columns_with_one_value(warned):
    said = warned(table(user=["a"] * ROWS, age=pa.nulls(ROWS, pa.float64()), seen=[["a"]] * ROWS))
    assert said == ["one value in all rows looked at: 'age', 'user'; such columns say nothing"]


def test_another_value_in_every_row(warned):
    (line,) = warned(table(user=np.arange(ROWS)))
    said = r"'user' has another value in each of the 8\d\d training samples \(a row number"
    assert re.match(said, line)


@pytest.mark.parametrize(
    ("cells", "is_said"),
    [
        (["[1, 2]", "[]"], True),
        (["['a', 'b']|['c']"], True),
        (["1,2,3", "4,5"], True),
        (["N1 N2"], True),
        (["1", "4"], False),
        (["1,2|3,4"], False),
        (["big red|sale"], False),
        (["Toy Story (1995)|Heat (1995)"], False),
    ],
)
def test_lists_in_text_that_are_no_lists_of_the_schema(warned, cells, is_said):
    """Each became one id, without a word."""
    lines = warned(table(seen=(cells * ROWS)[:ROWS]))
    assert [line.startswith("'seen' has values such as ") for line in lines] == [True] * is_said


@pytest.mark.parametrize("feature", [Sparse("seen", many=True), Sequence("seen")])
def test_lists_of_dynamic_ids_are_keys_whose_text_is_nowhere(warned, feature):
    dynamic = dataclasses.replace(feature, dynamic=Dynamic())
    schema = dataclasses.replace(SCHEMA, features=(Dense("price"), dynamic))
    assert warned(table(seen=["1,2", "3,4"] * (ROWS // 2)), schema) == []


@pytest.mark.parametrize("beyond", [0, 20])
def test_ids_of_damaged_data_may_lie_beyond_the_values_that_are_kept(tmp_path, beyond):
    """Of 40 values that were seen, 10 are kept: those of one list alone are unknown."""
    lists = [f"({n % 10},{n % 10})" if n % 4 else f"{n}-{n}" for n in range(ROWS)]
    feature = Sparse("seen", many=True, min_count=2)
    schema = dataclasses.replace(SCHEMA, features=(Dense("price"), feature))
    data = prepare(table(seen=lists), schema, tmp_path / "enc", split="fraction:0.8,0.1,0.1")
    ids = np.arange(FIRST_UNKNOWN + 1, FIRST_UNKNOWN + 6) + beyond
    rows = SimpleNamespace(values=lambda _: ids, bounds={"seen": np.arange(6)})
    assert len(list(_uncut_lists(data, rows))) == (beyond == 0)


def test_values_below_0_under_log(warned):
    prices = np.arange(ROWS) - 2.5
    (line,) = warned(table(price=prices, age=prices))
    assert line.startswith("'price' has values below 0 (down to -2.5), which transform='log' makes 0")


CLICKS = np.array(table()["click"])
NUMBERS = np.random.default_rng(5).random(ROWS)


def telling(said):
    return [line for line in said if "tells the label" in line]


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("price", CLICKS * 9.5),
        ("price", pa.array(NUMBERS, mask=CLICKS == 0)),  # known only of clicks
        ("age", CLICKS + 0.5 * NUMBERS),
        ("age", -3.0 * CLICKS - NUMBERS),
        ("user", np.where(CLICKS, "yes", "no")),
        ("user", pa.array([f"click-{n}" for n in range(ROWS)], mask=CLICKS == 0)),
        ("user", 2 * (np.array(table()["user"]) % 20) + CLICKS),
        ("seen", [["a", "b"][: 1 + n] for n in CLICKS]),
    ],
)
def test_a_feature_that_tells_the_label(warned, name, values):
    """Prices of what was bought, or ids of clicks, are known only afterwards; the AUC was near 1."""
    said = f"feature {name!r} alone tells the label 'click': is it known before the label is?"
    assert said in warned(table(**{name: values}))


@pytest.mark.parametrize("rows", [30, ROWS])
def test_a_feature_that_tells_much_of_the_label_but_not_all(warned, rows):
    """One label in 20 is another; of few rows nothing is said."""
    clicks = CLICKS if rows < ROWS else np.where(NUMBERS < 0.05, 1 - CLICKS, CLICKS)
    rate = CLICKS * 9.5 + NUMBERS
    odd = table(click=clicks, price=rate, user=CLICKS, age=rate).slice(0, rows)
    assert telling(warned(odd, split="fraction:1,0,0")) == []


def test_of_rare_clicks_and_many_users_no_feature_tells_the_label(warned):
    """Most users have one label only, no click, and the clicks are no user's only label."""
    odd = table(click=(np.arange(ROWS) % 25 == 0).astype(int), user=np.arange(ROWS) // 10)
    assert telling(warned(odd)) == []


@pytest.mark.parametrize(
    ("name", "schema"), [("criteo_kaggle_10k.tsv", "criteo"), ("avazu_14k.csv", "avazu")]
)
def test_no_feature_of_real_clicks_tells_the_label(warned, name, schema):
    assert telling(warned([sample(name)], schemas.BY_NAME[schema])) == []


@pytest.mark.parametrize(
    ("format", "per_second", "years", "advice"),
    [
        ("unix_ms", 1, "1970 to 1970", "is its format 'unix'?"),
        ("unix_us", 1000, "1970 to 1970", "is its format 'unix_ms'?"),
        ("unix_ns", 10**6, "1970 to 1970", "is its format 'unix_us'?"),
        ("unix", 1e-5, "1970 to 1970", "is it a time?"),
        ("unix", 100, "7357 to 7359", "is it a time?"),
    ],
)
def test_times_of_another_unit(warned, format, per_second, years, advice):
    when = np.array(table()["when"]) * per_second
    schema = dataclasses.replace(SCHEMA, time=Time("when", format))
    line = f"the time 'when' as {format!r} is of the years {years}: {advice}"
    assert line in warned(table(when=when.astype(np.int64)), schema)


@pytest.mark.parametrize(("split", "is_said"), [(None, True), ("time:0.8", False)])
def test_a_random_split_of_data_with_a_time_is_said(tmp_path, caplog, split, is_said):
    with caplog.at_level(logging.INFO, "hotrows"):
        prepare(table(), SCHEMA, tmp_path / "enc", split=split)
    assert ("parts were drawn at random although the schema has a time" in caplog.text) == is_said


def test_rows_of_the_test_part_that_stand_in_training(warned):
    """The test file is a piece of the training file; equal rows within training alone are none."""
    rows = table()
    said = warned(rows, split=None, test=rows.slice(100, 300))
    assert said[0].startswith("no samples validate")
    assert said[1].startswith("about 100% of the samples of test are in training too, label and all")
    assert len(said) == 2


def test_rows_that_are_equal_by_chance_are_no_copies(warned):
    draw = np.random.default_rng(1)
    few = {"price": draw.integers(0, 2, ROWS), "age": draw.integers(0, 3, ROWS), "seen": [[]] * ROWS}
    schema = dataclasses.replace(SCHEMA, features=SCHEMA.features[:2], time=None)
    assert warned(table(**few), schema) == []


def test_a_row_hash_changes_with_every_value():
    rows = Rows(
        6,
        {
            "ids/one": np.array([3, 3, 3, 4, 3, 3]),
            "ids/many": np.array([5, 6, 5, 6, 5, 6, 6, 5, 5, 6]),
            "dense": np.array([[1.0], [2.0], [1.0], [1.0], [1.0], [1.0]], np.float32),
            "labels": np.array([0, 0, 1, 0, 0, 0], np.uint8),
        },
        {"many": np.array([0, 2, 4, 6, 8, 10, 10])},
    )
    assert len(set(row_hashes(rows).tolist())) == 5  # rows 0 and 4 are equal
    assert row_hashes(rows)[0] == row_hashes(rows)[4]
    assert (row_hashes(rows[2:6]) == row_hashes(rows)[2:6]).all()


def drift_of(tmp_path, train, test, schema=None):
    def rows(users):
        return pa.table({"label": np.arange(len(users)) % 2, "user": users})

    schema = schema or Schema(features=(Sparse("user"),))
    data = prepare(rows(train), schema, tmp_path / "enc", test=rows(test))
    return describe(data).drift["user"]["test"]


def test_ids_that_are_new_are_no_drift(tmp_path):
    """New users every day gave an index of 9 and more, though nothing known had shifted."""
    users = np.random.default_rng(2).integers(0, 500, 6_000)
    assert drift_of(tmp_path, users[:4_000], 1_000 + users[4_000:]) == 0


@pytest.mark.parametrize("num_users", [50, 3_000, 1_000_000])
@pytest.mark.parametrize("min_count", [1, 5])
def test_one_distribution_does_not_drift_however_many_ids_are_seen_once(tmp_path, num_users, min_count):
    """Half of the ids of a long tail are new in the test part."""
    draw = np.random.default_rng(3)
    users = (num_users ** draw.random(8_000)).astype(np.int64)
    schema = Schema(features=(Sparse("user", min_count=min_count),))
    assert drift_of(tmp_path, users[:6_000], users[6_000:], schema) < 0.05


def test_known_ids_that_become_frequent_drift(tmp_path):
    users = np.random.default_rng(4).integers(0, 100, 6_000)
    later = np.where(users < 50, users, 99)
    assert drift_of(tmp_path, users[:4_000], later[4_000:]) > 0.25


def test_hours_and_weekdays_that_a_part_does_not_cover_are_no_drift(tmp_path):
    """Under a split by time, or between folds, the last days were an alarm of unknown values."""
    at = 1_700_000_000 + 3_600 * np.arange(400) // 3  # five and a half days
    names = ("hour", "weekday", "weekend", "day")
    schema = Schema((*(Sparse(name, transform=name) for name in names),), time=Time("at"))
    table = pa.table({"label": np.arange(400) % 2, "at": at})
    data = prepare(table, schema, tmp_path / "enc", split="time:0.6,0,0.4")
    rates = ValueRates.of_parts([data.parts["test"]], [data.parts["train"]])
    assert rates.features["weekday"].rate("unknown") > 0.5 and rates.far == ()
    assert describe(data).drift == {}
