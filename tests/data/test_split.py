"""Splits: every row has one part, and which one is a function of its number alone."""

from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest

from hotrows.data import prepare
from hotrows.data.encode.split import Sharing, Split, parse_split
from hotrows.data.rows import RawRows
from hotrows.schema import Dense, Schema, Sparse, Time


def columns(first_row, num_rows, labels=None, times=None):
    """A chunk that has nothing but what a split may ask for."""
    values = {} if labels is None else {"labels": np.array([labels], np.uint8)}
    values |= {} if times is None else {"times": np.array(times)}
    return RawRows(first_row, num_rows, values, lambda row: f"row {row}")


def parts_of(split: Split, first_row, num_rows, total, seed):
    return Sharing(split, seed, total).parts(columns(first_row, num_rows))


def test_position_takes_the_parts_in_the_order_of_the_file():
    split = parse_split("position:0.7,0.1,0.2")
    assert parts_of(split, 0, 10, 10, seed=0).tolist() == [0] * 7 + [1] + [2] * 2


def test_one_share_keeps_its_last_tenth_for_validation():
    assert parse_split("position:0.8") == parse_split("position:0.72,0.08,0.2")
    assert parse_split("fraction:0.8").shares == (Fraction("0.72"), Fraction("0.08"), Fraction("0.2"))
    split = parse_split("position:0.8")
    assert parts_of(split, 0, 100, 100, seed=0).tolist() == [0] * 72 + [1] * 8 + [2] * 20


def test_fraction_draws_each_row_by_itself():
    split = parse_split("fraction:0.8,0.1,0.1")
    all_parts = parts_of(split, 0, 100_000, None, seed=3)
    assert np.allclose(np.bincount(all_parts) / 100_000, [0.8, 0.1, 0.1], atol=0.005)
    assert (parts_of(split, 777, 50, None, seed=3) == all_parts[777:827]).all()
    assert (parts_of(split, 0, 100_000, None, seed=4) != all_parts).any()


def test_a_share_of_zero_gets_no_row():
    split = parse_split("fraction:0.9,0,0.1")
    assert 1 not in parts_of(split, 0, 10_000, None, seed=0)


@pytest.mark.parametrize(
    "text", ["", "0.8", "random:0.8", "position:0,0,1", "position:1.1,0,-0.1", "fraction:a,b,c",
             "fraction:2", "group:user:2024-03-01,2024-03-08", "time:user:0.8,0.1,0.1", 0.8,
             (0.8, 0.1, 0.1)]
)  # fmt: skip
def test_other_splits_are_refused(text):
    with pytest.raises(ValueError, match="split must be"):
        parse_split(text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("fraction:0.8,0.2", "found 2 that sum to 1$"),
        ("fraction:0.8,0.1,0.2", "found 3 that sum to 1.1$"),
        ("time:0.8,0.1,0.2", "found 3 that sum to 1.1$"),
        ("time:80,10,10", "found 3 that sum to 100$"),
        ("time:0.8,0.1", "found 2 that sum to 0.9$"),
        ("group:user:80,10,10", "found 3 that sum to 100$"),
        ("position:0,0,0", "found 3 that sum to 0$"),
    ],
)
def test_shares_that_do_not_sum_to_1_are_refused_with_their_sum(text, said):
    """`time:80,10,10` said that '80' is no time."""
    with pytest.raises(ValueError, match=said):
        parse_split(text, int)


@pytest.mark.parametrize("cuts", [[], [7], [1, 2, 1500, 2999]])
def test_strata_have_their_share_of_every_label_wherever_chunks_end(cuts):
    labels = (np.arange(3000) % 3 == 0).astype(np.uint8)  # a thousand of one, two of the other
    sharing = Sharing(parse_split("stratified:0.8,0.15,0.05"), seed=0)
    bounds = [0, *cuts, 3000]
    parts = []
    for first, end in pairwise(bounds):
        sharing = Sharing(parse_split("stratified:0.8,0.15,0.05"), 0, state=sharing.state)
        parts.append(sharing.parts(columns(first, end - first, labels[first:end])))
    joined_parts = np.concatenate(parts)
    assert np.bincount(joined_parts[labels == 1]).tolist() == [800, 150, 50]
    assert np.bincount(joined_parts[labels == 0]).tolist() == [1600, 300, 100]
    parts_at_once = Sharing(parse_split("stratified:0.8,0.15,0.05"), 0).parts(columns(0, 3000, labels))
    assert (joined_parts == parts_at_once).all()
    other = Sharing(parse_split("stratified:0.8,0.15,0.05"), 1).parts(columns(0, 3000, labels))
    assert (other != parts_at_once).any()


def test_strata_are_of_the_first_label_where_another_is_a_number():
    """All labels are then float32, and a missing one is NaN; the strata are those of bytes."""
    binary = np.tile(np.array([0, 1, 0, 255], np.uint8), 500)
    numbers = np.where(binary == 255, np.nan, binary).astype(np.float32)
    labels = np.stack([numbers, np.linspace(1, 5, 2000, dtype=np.float32)])
    both = RawRows(0, 2000, {"labels": labels}, lambda row: f"row {row}")
    split = parse_split("stratified:0.8,0.15,0.05")
    parts = Sharing(split, 0).parts(both)
    assert (parts == Sharing(split, 0).parts(columns(0, 2000, binary))).all()
    for of_label, num in ((numbers == 0, 1000), (numbers == 1, 500), (np.isnan(numbers), 500)):
        expected = [num * 0.8, num * 0.15, num * 0.05]
        assert np.abs(np.bincount(parts[of_label]) - expected).max() < 20


def test_time_cuts_where_it_says():
    split = parse_split("time:20,30", int)
    assert split == Split("time", None, (20, 30))
    parts = Sharing(split, 0).parts(columns(0, 5, times=[19, 20, 29, 30, 99]))
    assert parts.tolist() == [0, 1, 1, 2, 2]
    assert parse_split("time:20", int).before == (20, 20)
    assert parse_split("time:0.8,0.1,0.1", int).before is None
    with pytest.raises(ValueError, match="split must be"):
        parse_split("time:30,20", int)
    missing = columns(0, 2, times=[1, np.iinfo(np.int64).min])
    with pytest.raises(ValueError, match="row 1 has no time"):
        Sharing(split, 0).parts(missing)


@pytest.mark.parametrize(
    ("text", "declared", "expected"),
    [
        ("fraction:0.9", ["test"], "fraction:0.9,0.1,0"),
        ("position:0.9", ["validation"], "position:0.9,0,0.1"),
        ("fraction:0.8,0.2,0", ["test"], "fraction:0.8,0.2,0"),
        ("fraction:1,0,0", ["validation", "test"], "fraction:1,0,0"),
    ],
)
def test_parts_with_files_of_their_own_get_no_rows_of_others(text, declared, expected):
    """One share, with a test file beside it, moved the last fifth of the training file into the test."""
    assert parse_split(text, None, declared) == parse_split(expected)


@pytest.mark.parametrize(
    ("text", "declared", "part"),
    [
        ("fraction:0.8,0.1,0.1", ["test"], "test"),
        ("fraction:0.8,0.1,0.1", ["validation"], "validation"),
        ("stratified:0.9", ["validation", "test"], "test"),
        ("time:5,9", ["test"], "test"),
        ("time:5,9", ["validation"], "validation"),
        ("time:5", ["validation", "test"], "test"),
    ],
)
def test_a_split_that_moves_rows_into_a_part_with_files_is_refused(text, declared, part):
    with pytest.raises(ValueError, match=f"would move rows of the training files into the {part} part"):
        parse_split(text, int, declared)


def test_one_time_beside_a_part_with_files_goes_to_the_other():
    times = columns(0, 4, times=[1, 5, 6, 9])
    assert Sharing(parse_split("time:5", int, ["test"]), 0).parts(times).tolist() == [0, 1, 1, 1]
    assert Sharing(parse_split("time:5", int, ["validation"]), 0).parts(times).tolist() == [0, 2, 2, 2]


@pytest.mark.parametrize("by", ["time", "position", "fraction", "stratified", "group:user"])
def test_a_split_leaves_words_of_columns_that_it_does_not_read(by, tmp_path):
    """By shares of time the rows are read without features, whose words `missing` still named."""
    prices = ["n/a" if n % 4 == 0 else str(n) for n in range(40)]
    frame = {"user": list(range(40)), "price": prices, "label": [0, 1] * 20, "at": list(range(40))}
    schema = Schema((Sparse("user"), Dense("price")), time=Time("at"), missing={"price": ("n/a",)})
    data = prepare(frame, schema, tmp_path / "enc", split=f"{by}:0.8,0.1,0.1")
    assert sum(part.missing["price"] for part in data.parts.values()) == 10
