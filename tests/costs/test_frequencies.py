"""Frequencies: classes stand for all ids, however many there are."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotrows.train.costs.frequencies import Frequencies

counts_of = st.lists(st.integers(0, 50), min_size=1, max_size=40).filter(any)


def chances(rows, exponent):
    weights = np.arange(1.0, rows + 1) ** -exponent
    return weights / weights.sum()


def test_two_ids_of_equal_chance():
    ids = Frequencies.of_counts(np.array([5, 5]))
    assert ids.distinct(1) == pytest.approx(1)
    assert ids.distinct(2) == pytest.approx(1.5)  # 2 (1 - 1/4)


def test_an_id_that_is_always_read_is_one_row():
    assert Frequencies.of_counts(np.array([7])).distinct(100) == pytest.approx(1)
    assert Frequencies.of_counts(np.array([7])).distinct(0) == 0
    assert Frequencies.of_counts(np.array([7])).distinct(0.5) == pytest.approx(0.5)


@pytest.mark.parametrize("exponent", [0.0, 0.7, 1.0, 1.05, 1.5])
@pytest.mark.parametrize("lookups", [10, 1000, 100_000])
def test_classes_of_zipf_give_what_the_sum_over_all_ids_gives(exponent, lookups):
    p = chances(200_000, exponent)
    expected = -np.expm1(lookups * np.log1p(-p)).sum()
    assert Frequencies.zipf(200_000, exponent).distinct(lookups) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize(("rows", "exponent"), [(500, 1.2), (100_000, 1.05), (100_000, 0.0)])
def test_a_drawn_batch_has_as_many_distinct_rows_as_expected(rows, exponent):
    rng = np.random.default_rng(0)
    cumulated = np.cumsum(chances(rows, exponent))
    drawn = [len(np.unique(np.searchsorted(cumulated, rng.random(8192)))) for _ in range(20)]
    expected = Frequencies.zipf(rows, exponent).distinct(8192)
    assert np.mean(drawn) == pytest.approx(expected, rel=0.01)


@given(counts_of, st.floats(1, 1000), st.integers(1, 9))
def test_what_is_dealt_is_the_sum_over_each_ranks_own_ids(counts, lookups, num_ranks):
    ids = Frequencies.of_counts(np.array(counts))
    p = np.sort(counts)[::-1] / np.sum(counts)
    read = 1 - (1 - p) ** lookups
    expected = [read[rank::num_ranks].sum() for rank in range(num_ranks)]
    assert ids.sums_by_owner(ids.read(lookups), num_ranks) == pytest.approx(np.array(expected), abs=1e-9)


@given(counts_of, st.integers(0, 40), st.floats(0, 1000))
def test_head_and_tail_are_the_whole(counts, num, lookups):
    ids = Frequencies.of_counts(np.array(counts))
    head, tail = ids.head(num), ids.tail(num)
    assert head.rows == min(num, len(counts)) and head.rows + tail.rows == len(counts)
    assert head.distinct(lookups) + tail.distinct(lookups) == pytest.approx(ids.distinct(lookups))


@given(st.integers(1, 10**10), st.floats(0, 2), st.floats(0, 1e9), st.floats(0, 1e9))
def test_more_lookups_read_more_rows_and_never_more_than_either(rows, exponent, some, others):
    ids = Frequencies.zipf(rows, exponent)
    fewer, more = sorted((some, others))
    assert ids.rows == rows and float(ids.ids @ ids.chances) == pytest.approx(1)
    assert ids.distinct(fewer) <= ids.distinct(more) * (1 + 1e-9)
    assert ids.distinct(more) <= min(rows, max(more, 0)) * (1 + 1e-6) + 1e-6


def test_companions_come_with_their_id():
    ids = Frequencies.zipf(1_000_000, 1.05)
    alone, together = ids.distinct(1000), ids.with_companions(10).distinct(10_000)
    assert together == pytest.approx(10 * alone, rel=0.05)
    assert ids.with_companions(10).rows == ids.rows
    assert ids.with_companions(1) is ids


def test_a_law_without_rows_is_refused():
    with pytest.raises(ValueError, match="at least one row and an exponent of at least 0"):
        Frequencies.zipf(0, 1.0)
