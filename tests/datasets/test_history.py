"""Histories: the last events of a user strictly before a sample, never the future."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hotrows.data.datasets.events import histories, places, sort_events

EVENTS = st.lists(st.tuples(st.integers(0, 4), st.integers(-3, 6)), max_size=30)


def histories_one_by_one(events, samples, length):
    """The obvious way: every event is looked at for every sample."""
    indices = []
    for user, time in samples:
        before = [(when, i) for i, (owner, when) in enumerate(events) if owner == user and when < time]
        indices.append([i for _, i in sorted(before)][-length:])
    return indices


def columns(pairs):
    both = np.array(pairs, np.int64).reshape(-1, 2)
    return both[:, 0], both[:, 1]


def lists(past):
    return [part.tolist() for part in np.split(past.index, past.offsets[1:-1])]


def test_a_small_log():
    events = sort_events(np.array([7, 9, 7, 7, 7]), np.array([3, 2, 1, 5, 3]))
    samples = np.array([7, 7, 7, 9, 8]), np.array([3, 4, 9, 2, 3])
    past = histories(events, *samples, length=2)
    assert lists(past) == [[2], [0, 4], [4, 3], [], []]


@given(EVENTS, st.lists(st.tuples(st.integers(0, 5), st.integers(-5, 8)), max_size=20), st.data())
def test_histories_are_those_found_one_by_one(events, samples, data):
    length = data.draw(st.integers(1, 5))
    past = histories(sort_events(*columns(events)), *columns(samples), length)
    assert len(past.offsets) == len(samples) + 1
    assert not samples or lists(past) == histories_one_by_one(events, samples, length)


@given(EVENTS)
def test_no_event_sees_itself_or_another_of_its_time(events):
    users, times = columns(events)
    past = histories(sort_events(users, times), users, times, length=100)
    of_sample = np.repeat(np.arange(len(users)), np.diff(past.offsets))
    assert (users[past.index] == users[of_sample]).all()
    assert (times[past.index] < times[of_sample]).all()


def test_times_may_be_larger_than_a_product_of_64_bits_would_hold():
    users = np.array([2**62, 2**62, 3])
    times = np.array([-(2**62), 2**62, 0])
    past = histories(sort_events(users, times), users, times, 10)
    assert lists(past) == [[], [0], []]


@given(EVENTS)
def test_places_count_the_events_of_a_user_in_order_of_time(events):
    users, times = columns(events)
    place, total = places(users, times)
    for i, (user, time) in enumerate(events):
        mine = [(when, j) for j, (owner, when) in enumerate(events) if owner == user]
        assert place[i] == sorted(mine).index((time, i))
        assert total[i] == len(mine)
