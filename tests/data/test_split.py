"""Splits: every row has one part, and which one is a function of its number alone."""

from fractions import Fraction

import numpy as np
import pytest

from hotrows.data.split import parse_split, parts_of


def test_position_takes_the_parts_in_the_order_of_the_file():
    split = parse_split("position:0.7,0.1,0.2")
    assert parts_of(split, 0, 10, 10, seed=0).tolist() == [0] * 7 + [1] + [2] * 2


def test_one_share_keeps_its_last_tenth_for_validation():
    assert parse_split("position:0.8") == parse_split("position:0.72,0.08,0.2")
    assert parse_split("fraction:0.8").shares == (
        Fraction("0.72"),
        Fraction("0.08"),
        Fraction("0.2"),
    )
    split = parse_split("position:0.8")
    assert parts_of(split, 0, 100, 100, seed=0).tolist() == [0] * 72 + [1] * 8 + [2] * 20


def test_fraction_draws_each_row_by_itself():
    split = parse_split("fraction:0.8,0.1,0.1")
    whole = parts_of(split, 0, 100_000, None, seed=3)
    assert np.allclose(np.bincount(whole) / 100_000, [0.8, 0.1, 0.1], atol=0.005)
    assert (parts_of(split, 777, 50, None, seed=3) == whole[777:827]).all()
    assert (parts_of(split, 0, 100_000, None, seed=4) != whole).any()


def test_a_share_of_zero_gets_no_row():
    split = parse_split("fraction:0.9,0,0.1")
    assert 1 not in parts_of(split, 0, 10_000, None, seed=0)


@pytest.mark.parametrize(
    "text", ["", "0.8", "random:0.8", "fraction:0.8,0.2", "fraction:0.8,0.1,0.2", "position:0,0,1",
             "position:1.1,0,-0.1", "fraction:a,b,c", "fraction:2"]
)  # fmt: skip
def test_other_splits_are_refused(text):
    with pytest.raises(ValueError, match="split must be"):
        parse_split(text)
