"""Histories: the events of a user before each sample, without a look into the future.

The history of a sample is the last L events of its user strictly before its time. An event of the
same time is no history: it may be the sample itself, or what followed from it.

    events   user 7 at times 1 3 3 5, user 9 at time 2
    samples  (7, 3) -> [1]      (7, 4) -> [1 3 3]      (7, 9), L = 2 -> [3 5]      (8, 3) -> []

Events are sorted once by one integer, user and time together, so that a binary search finds where a
history ends. Times are numbers of any kind whose order is the order of the events.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Events:
    """Events in order of user and time; events of one time keep their order in the log.

    users, times: distinct values, ascending. keys: [E] user * len(times) + time, by their indices in
    `users` and `times`, ascending. order: [E] index of each event in the log.
    """

    users: np.ndarray
    times: np.ndarray
    keys: np.ndarray
    order: np.ndarray


@dataclass(frozen=True)
class Histories:
    """The history of sample s: events index[offsets[s]] .. index[offsets[s + 1] - 1] of the log."""

    offsets: np.ndarray
    index: np.ndarray


def sort_events(users: np.ndarray, times: np.ndarray) -> Events:
    """Sorts events by user and time, for `histories`."""
    distinct_users, user = np.unique(users, return_inverse=True)
    distinct_times, time = np.unique(times, return_inverse=True)
    keys = user.astype(np.int64) * len(distinct_times) + time
    order = np.argsort(keys, kind="stable")
    return Events(distinct_users, distinct_times, keys[order], order)


def histories(events: Events, users: np.ndarray, times: np.ndarray, length: int) -> Histories:
    """Finds the last `length` events of each sample's user strictly before its time, oldest first."""
    if not len(events.users):
        return Histories(np.zeros(len(users) + 1, np.int64), np.zeros(0, np.int64))
    user = np.minimum(np.searchsorted(events.users, users), len(events.users) - 1)
    first_key = user * len(events.times)
    begin = np.searchsorted(events.keys, first_key)
    past = np.searchsorted(events.keys, first_key + np.searchsorted(events.times, times))
    past = np.where(events.users[user] == users, past, begin)
    first = np.maximum(begin, past - length)  # the history is order[first .. past - 1]
    offsets = np.concatenate([[0], np.cumsum(past - first)]).astype(np.int64)
    steps = np.repeat(first - offsets[:-1], past - first)
    return Histories(offsets, events.order[steps + np.arange(offsets[-1])])


def places(users: np.ndarray, times: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the place of each event among its user's, from 0, and the user's number of events.

    users = [7, 9, 7], times = [5, 2, 1]  ->  [1, 0, 0], [2, 1, 2]
    """
    events = sort_events(users, times)
    _, begins, counts = np.unique(users[events.order], return_index=True, return_counts=True)
    place, total = np.empty(len(users), np.int64), np.empty(len(users), np.int64)
    place[events.order] = np.arange(len(users)) - np.repeat(begins, counts)
    total[events.order] = np.repeat(counts, counts)
    return place, total
