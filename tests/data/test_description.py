"""describe: sizes, rates and skew, checked against counts that are known."""

import json

import numpy as np
import pytest

from hotrows.data import describe, prepare
from hotrows.data.description import _stability, row_counts, zipf_exponent
from hotrows.schema import Dense, Schema, Sequence, Sparse
from tests.data.raw import SCHEMA, write


def test_rates_and_counts_of_a_small_file(tmp_path):
    rows = [("1", "", "a", "x"), ("0", "1", "a", "y"), ("0", "", "b", ""), ("0", "1", "c", "z")]
    raw = write(tmp_path / "raw", rows)
    data = prepare([raw], SCHEMA, tmp_path / "out", split="position:0.75,0,0.25")
    description = describe(data, dim=4)
    assert (description.parts["train"].rows, description.parts["train"].positive_rates) == (
        3,
        {"label": 1 / 3},
    )
    assert (description.parts["test"].rows, description.parts["test"].positive_rates) == (1, {"label": 0})
    assert description.parts["validation"].positive_rates == {"label": None}
    price, user, item = description.fields
    assert price.missing == {"train": 2 / 3, "test": 0}
    assert (user.unknown, item.missing["train"]) == ({"train": 0, "test": 1}, 1 / 3)
    of_user = description.vocabularies[0]
    assert (of_user.rows, of_user.lookups, of_user.top) == (5, 3, 2 / 3)  # 3 reserved, a, b
    assert of_user.curve[0] == (1 / 5, 2 / 3)
    assert of_user.curve[-1] == (1, 1)
    assert description.table_bytes == 4 * 4 * (5 + 5)
    assert row_counts(data)["item"].tolist() == [0, 1, 0, 1, 1]
    json.dumps(description.to_json(), allow_nan=False)


def test_unknown_values_count_where_they_are_looked_up(tmp_path):
    schema = Schema(features=(Sparse("user", min_count=2, num_unknown=2),), columns=("label", "user"))
    raw = write(tmp_path / "raw", [("0", user) for user in "aabcd"])
    data = prepare([raw], schema, tmp_path / "out", split="fraction:1,0,0")
    assert row_counts(data)["user"].tolist() == [0, 0, 2, 1, 2]
    assert describe(data).vocabularies[0].num_distinct == 4


@pytest.mark.parametrize("exponent", [0.8, 1.05, 1.4])
def test_the_exponent_of_a_zipf_law_is_found(exponent):
    counts = np.floor(1e9 * np.arange(1, 10_001) ** -exponent).astype(np.int64)
    assert zipf_exponent(counts) == pytest.approx(exponent, abs=0.02)


def test_hottest_rows_of_a_known_law(tmp_path):
    counts = [1000, 100, 10] + [1] * 97
    rows = [("0", f"v{i}") for i, count in enumerate(counts) for _ in range(count)]
    schema = Schema(features=(Sparse("v"),), columns=("label", "v"))
    data = prepare([write(tmp_path / "raw", rows)], schema, tmp_path / "out", split="fraction:1,0,0")
    (description,) = describe(data).vocabularies
    assert description.rows == 103
    assert description.hottest[0.01] == 1000 / 1207
    assert description.hottest[0.1] == 1117 / 1207  # the ten hottest of 103


def test_data_without_unknown_ids_is_described(tmp_path):
    """Sharing unknown lookups among no rows divided by zero."""
    schema = Schema(features=(Sparse("a", num_unknown=0),), columns=("label", "a"))
    data = prepare(
        write(tmp_path / "raw", [("0", "x"), ("1", "")]), schema, tmp_path / "out", split="fraction:1,0,0"
    )
    (description,) = describe(data).vocabularies
    assert (description.rows, description.lookups) == (3, 2)


def test_numbers_are_told_to_the_digits_that_are_stored(tmp_path):
    """-1 among numbers of 100,000 was -1.001, and 0 among hundreds was -4.98e-06."""
    far, near = [-1, *[100_084] * 20, *range(100_000, 100_079)], [i % 500 for i in range(7, 107)]
    data = prepare(
        {"label": [0, 1] * 50, "far": far, "near": [0, *near[1:]]},
        Schema((Dense("far", transform="standard"), Dense("near", transform="standard"))),
        tmp_path / "out",
        split="fraction:1,0,0",
    )
    far_used, near_used = describe(data).dense
    assert (far_used.quantiles[0], far_used.quantiles[1]) == (-1, 100_084)
    assert (near_used.quantiles[0], near_used.quantiles[1]) == (0, 106)
    assert near_used.quantiles[0.5] == 56.5


def test_missing_numbers_are_no_zeros_and_zeros_are_numbers(tmp_path):
    columns = {
        "label": [0, 1] * 4,
        "zeros": [None, None, 0, 0, 0, 3, 5, 7],
        "none": [None, None, 4, 4, 4, 4, 4, 9],
    }
    schema = Schema((Dense("zeros", transform="log"), Dense("none", transform="log")))
    zeros, none = describe(prepare(columns, schema, tmp_path / "out", split="fraction:1,0,0")).dense
    assert (zeros.count, none.count) == (6, 6)
    assert [zeros.quantiles[q] for q in (0, 0.5, 1)] == pytest.approx([0, 1.5, 7])
    assert [none.quantiles[q] for q in (0, 0.5, 1)] == pytest.approx([4, 4, 9])


def test_lists_that_are_all_empty_are_described(tmp_path):
    columns = {"label": [0, 1], "s": [[], []]}
    data = prepare(columns, Schema((Sequence("s"),)), tmp_path / "out", split="fraction:1,0,0")
    description = describe(data)
    assert description.fields[0].unknown == {"train": 0}
    assert (description.lists[0].empty, description.lists[0].longest) == (1, 0)


def test_a_list_is_missing_where_it_is_empty(tmp_path):
    """As `predict` counts: `describe` counted values, of which an empty list has none."""
    lists = [["a", "b"], [], None, ["c"], ["a", "b", "c", "d"]]
    schema = Schema((Sequence("tags"),), label="click")
    data = prepare(
        {"click": [0, 1, 0, 1, 0], "tags": lists}, schema, tmp_path / "out", split="fraction:1,0,0"
    )
    (field,) = describe(data).fields
    assert field.missing == {"train": 2 / 5}


def test_bins_that_neither_part_has_are_no_drift():
    close, apart = np.array([0, 1]), np.array([0, 90])
    counts = ([400, 600], [700, 300])
    drift, same = [_stability(*(bins.repeat(of) for of in counts)) for bins in (close, apart)]
    assert drift == same > 0.3


def test_lists_and_oddities_are_told(tmp_path):
    schema = Schema(
        features=(Sparse("a"), Sparse("twin"), Sparse("b"), Sequence("s")),
        columns=("label", "a", "twin", "b", "s"),
    )
    rows = [("1", "x", "X", "p", "1|2|3"), ("0", "y", "Y", "p", ""), ("0", "", "", "q", "1")] * 40
    rows += [("1", "y", "Y", "q", "9|9|9|9")] * 40
    raw = write(tmp_path / "raw", rows)
    description = describe(prepare(raw, schema, tmp_path / "out", split="position:0.75,0,0.25"))
    (lists,) = description.lists
    assert (lists.name, lists.mean, lists.longest) == ("s", 4 / 3, 3)
    assert lists.empty == pytest.approx(1 / 3)
    assert lists.quantiles == {0.5: 1, 0.9: 3, 0.99: 3}
    assert description.missing_together == (("a", "twin"),)
    assert description.same == (("a", "twin"),)
    assert description.drift["b"]["test"] > 1 > 0.1 > description.drift["b"].get("validation", 0)
    shares = description.parts["test"].positive_rates
    assert shares == {"label": 1.0}


def test_what_is_equal_or_missing_together_among_many_columns(tmp_path):
    """Both compared all pairs of columns, with a sort each: thousands of columns took hours."""
    draw = np.random.default_rng(0)
    columns = {"label": np.arange(200) % 2}
    for n in range(150):
        ids = draw.integers(0, 20, 200)
        columns[f"a{n:03}"] = np.where(draw.random(200) < 0.2, -1, ids)
        if n % 50 == 0:
            columns[f"b{n:03}"] = np.where(columns[f"a{n:03}"] < 0, -1, 50 - ids)
    schema = Schema(features=tuple(map(Sparse, list(columns)[1:])), missing=("-1",))
    data = prepare(columns, schema, tmp_path / "out", split="fraction:1,0,0")
    pairs = tuple((f"a{n:03}", f"b{n:03}") for n in (0, 50, 100))
    description = describe(data)
    assert description.same == pairs
    assert description.missing_together == pairs
