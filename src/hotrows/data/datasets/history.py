"""Histories: the events of a user before each sample, without a look into the future.

The history of a sample is the last L events of its user strictly before its time. An event of the
same time is no history: it may be the sample itself, or what followed from it.

    events   user 7 at times 1 3 3 5, user 9 at time 2
    samples  (7, 3) -> [1]      (7, 4) -> [1 3 3]      (7, 9), L = 2 -> [3 5]      (8, 3) -> []

Events are sorted once, so that a binary search finds where a history ends. Times are numbers of any kind
whose order is the order of the events.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hotrows.data.rows import ends_of
from hotrows.data.stored.histories import events_before, places_between


@dataclass(frozen=True)
class Events:
    """Events in order of user and time; events of one time keep their order in the log.

    users: [U] distinct, ascending; starts: [U + 1] where the events of each begin. times: [E]; order:
    [E] index of each event in the log.
    """

    users: np.ndarray
    starts: np.ndarray
    times: np.ndarray
    order: np.ndarray


@dataclass(frozen=True)
class Histories:
    """The history of sample s: events index[offsets[s]] .. index[offsets[s + 1] - 1] of the log."""

    offsets: np.ndarray
    index: np.ndarray


def sort_events(users: np.ndarray, times: np.ndarray) -> Events:
    """Sorts events by user and time, for `histories`."""
    order = np.lexsort((times, users))
    distinct, starts = np.unique(users[order], return_index=True)
    return Events(distinct, np.append(starts, len(order)), times[order], order)


def histories(events: Events, users: np.ndarray, times: np.ndarray, length: int) -> Histories:
    """Finds the last `length` events of each sample's user strictly before its time, oldest first."""
    begins, ends = events_before(events.users, events.starts, events.times, users, times)
    begins = np.maximum(begins, ends - length)
    return Histories(ends_of(ends - begins), events.order[places_between(begins, ends)])


def places(users: np.ndarray, times: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the place of each event among its user's, from 0, and the user's number of events.

    users = [7, 9, 7], times = [5, 2, 1]  ->  [1, 0, 0], [2, 1, 2]
    """
    events = sort_events(users, times)
    begins, counts = events.starts[:-1], np.diff(events.starts)
    place, total = np.empty(len(users), np.int64), np.empty(len(users), np.int64)
    place[events.order] = np.arange(len(users)) - np.repeat(begins, counts)
    total[events.order] = np.repeat(counts, counts)
    return place, total
