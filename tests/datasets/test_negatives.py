"""Negatives: seeded, never a positive of the user, distributed as asked."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotrows.data.datasets.events import catalog, negatives

ITEMS = np.array([30, 10, 20, 40])
COUNTS = np.array([1, 1, 16, 81])


def draw(num, seed=0, power=0.0, positives=((5, 20),)):
    drawn_from = catalog(ITEMS, COUNTS, power)
    users, items = np.array(positives).T
    return negatives(drawn_from, np.full(num, 5), users, items, np.random.default_rng(seed))


def test_the_seed_decides():
    assert (draw(100, seed=1) == draw(100, seed=1)).all()
    assert (draw(100, seed=1) != draw(100, seed=2)).any()


def test_a_positive_of_the_user_is_never_drawn():
    drawn = draw(2000, positives=((5, 20), (5, 40), (6, 30)))
    assert set(drawn.tolist()) == {10, 30}


@pytest.mark.parametrize(
    ("power", "shares"),
    [(0.0, {10: 1 / 3, 30: 1 / 3, 40: 1 / 3}), (0.75, {10: 1 / 29, 30: 1 / 29, 40: 27 / 29})],
)
def test_items_are_drawn_by_popularity_to_a_power(power, shares):
    drawn = draw(20_000, power=power)
    for item, share in shares.items():
        assert (drawn == item).mean() == pytest.approx(share, abs=0.015)


def test_a_user_who_chose_nearly_everything_gets_what_is_left():
    items = np.arange(5000)
    drawn_from = catalog(items, np.ones(5000))
    positives = items[items != 4321]
    drawn = negatives(drawn_from, np.full(3, 5), np.full(4999, 5), positives, np.random.default_rng(0))
    assert drawn.tolist() == [4321] * 3


def test_a_user_who_chose_everything_is_an_error():
    with pytest.raises(ValueError, match="user 5 chose all 4 items, so that there is no negative"):
        draw(1, positives=tuple((5, item) for item in ITEMS))


@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 8)), min_size=1, max_size=40), st.integers(0, 3)
)
def test_no_pair_of_the_log_is_a_negative(log, seed):
    users, items = np.array(log).T
    drawn_from = catalog(np.arange(10), np.arange(1, 11), 0.75)
    drawn = negatives(drawn_from, users, users, items, np.random.default_rng(seed))
    assert not set(zip(users.tolist(), drawn.tolist(), strict=True)) & set(log)
